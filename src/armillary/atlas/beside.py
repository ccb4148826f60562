"""Records that commands keep beside a store, which itself never changes: each belongs to one atlas."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.errors import ArmillaryError
from armillary.files.atomic import checksum_path, read_checked, write_with_checksum

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def write_beside(atlas: "Atlas", file: str, record: dict[str, Any]) -> Path:
    """Write a record about this atlas into its folder, with a checksum; an earlier one is replaced."""
    path = atlas.path.parent / file
    write_with_checksum(path, [json.dumps({"atlas": identity(atlas), **record}, indent=1).encode()])
    return path


def read_beside(atlas: "Atlas", file: str, command: str) -> dict[str, Any] | None:
    """The record on this atlas; None if there is none, or if it belongs to an earlier atlas in this folder."""
    path = atlas.path.parent / file
    if not path.is_file() and not checksum_path(path).is_file():
        return None
    data = read_checked(path)
    if data is None:
        raise ArmillaryError(f"{path} is damaged: delete it, and run `armillary {command}` again")
    try:
        record: dict[str, Any] = json.loads(data)
        if not isinstance(record["heads"], list):
            raise TypeError
        return record if record["atlas"] == identity(atlas) else None
    except (ValueError, KeyError, TypeError) as error:
        raise ArmillaryError(f"{path} does not hold what {command} writes: delete it, and run it again") from error


def identity(atlas: "Atlas") -> dict[str, Any]:
    """What distinguishes this atlas from a later one in the same folder."""
    model, corpus = atlas.attrs.get("model", {}), atlas.attrs.get("corpus", {})
    return {
        "finished": atlas.attrs.get("finished"),
        "weights": model.get("weights"),
        "corpus": corpus.get("sha256"),
    }
