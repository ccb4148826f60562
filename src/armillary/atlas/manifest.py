"""The list of an atlas's files with the SHA-256 of each: changed and missing files are detected when they are read.

The list is written last, inside the store as an empty Zarr group, so that other readers can open the store.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.errors import ArmillaryError
from armillary.files.atomic import make_folder, write_atomically

PLACE = "checksums/zarr.json"
ABOUT = "SHA-256 and size of every file of this store; `armillary check` compares them"


@dataclass(frozen=True)
class Manifest:
    """The files of a store by name: (size, SHA-256)."""

    store: Path
    files: dict[str, tuple[int, str]]

    def read(self, name: str) -> bytes | None:
        """A file's checked bytes, or None if it is not in the list; an error if it is damaged."""
        if name not in self.files:
            return None
        data, what = self._read_checked(name)
        if what is not None:
            raise ArmillaryError(damage_sentence(self.store, name, what))
        return data

    def damage(self, name: str) -> str | None:
        """What is wrong with a file, in a word or two; None if nothing is."""
        return self._read_checked(name)[1]

    def _read_checked(self, name: str) -> tuple[bytes, str | None]:
        size, expected = self.files[name]
        try:
            data = (self.store / name).read_bytes()
        except FileNotFoundError:
            return b"", "missing"
        except OSError as error:
            return b"", f"unreadable: {error.strerror or error}"
        if len(data) != size:
            return b"", f"{len(data)} bytes instead of {size}"
        return data, None if hashlib.sha256(data).hexdigest() == expected else "changed"


def array_of(name: str) -> str:
    """The array or group that a file of the store belongs to."""
    array = re.sub(r"(^|/)(zarr\.json|c(/.*)?)$", "", name)
    return array or "the atlas's description"


def damage_sentence(store: Path, name: str, what: str) -> str:
    """The error message for a damaged file, with what to do."""
    return (
        f"{array_of(name)} of {store} is damaged ({name}: {what}): restore the folder from a copy, or make it again "
        f"with `overwrite=True`; `armillary check {store}` lists all damaged files"
    )


def write_manifest(store: Path) -> None:
    """List the files that a store holds now."""
    make_folder((store / PLACE).parent)
    files = {}
    for name in names_in(store):
        data = (store / name).read_bytes()
        files[name] = (len(data), hashlib.sha256(data).hexdigest())
    write_atomically(store / PLACE, _text(files))


def read_manifest(store: Path) -> Manifest | None:
    """The list of a store, or None if it has none; an error if the list is damaged."""
    try:
        data = (store / PLACE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArmillaryError(damage_sentence(store, PLACE, f"unreadable: {error.strerror or error}")) from error
    try:
        files = {
            str(name): (int(size), str(sha256))
            for name, (size, sha256) in json.loads(data)["attributes"]["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ArmillaryError(damage_sentence(store, PLACE, "not a list of checksums")) from error
    if _text(files) != data:
        raise ArmillaryError(damage_sentence(store, PLACE, "changed"))
    return Manifest(store, files)


def names_in(store: Path) -> list[str]:
    """All files of a store except the list itself."""
    names = []
    for place, folders, files in os.walk(store):
        links = [folder for folder in folders if os.path.islink(os.path.join(place, folder))]
        names += [Path(place, name).relative_to(store).as_posix() for name in (*files, *links)]
    return sorted(name for name in names if name != PLACE)


def _text(files: dict[str, tuple[int, str]]) -> bytes:
    """The list as the group's zarr.json, with its own checksum: the same files always give the same bytes."""
    listed = {name: list(files[name]) for name in sorted(files)}
    own = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
    attributes: dict[str, Any] = {"about": ABOUT, "files": listed, "sha256": own}
    return (json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=1) + "\n").encode()
