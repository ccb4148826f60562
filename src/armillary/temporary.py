"""Folders that live as long as the program, and are removed when it ends."""

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from armillary.errors import ArmillaryError

_folders: set[Path] = set()


def temporary_folder() -> Path:
    """A new folder that only this user can read; it is removed when the program ends, if not before."""
    place = Path(tempfile.gettempdir()) / f"armillary-{secrets.token_hex(8)}"
    _folders.add(place)  # before it is made: a signal in between must not leave it behind
    try:
        os.mkdir(place, 0o700)
    except OSError as error:
        _folders.discard(place)
        raise ArmillaryError(
            f"there is no place for temporary files ({error}): set TMPDIR to a folder that can be written"
        ) from error
    return place


def remove_at_exit(place: Path) -> None:
    """Remove this folder, too, when the program ends."""
    _folders.add(place)


def remove_folder(place: Path) -> None:
    """Remove a temporary folder now."""
    shutil.rmtree(place, ignore_errors=True)
    _folders.discard(place)


@atexit.register
def remove_all() -> None:
    """Remove every temporary folder: for a program that ends without Python's own end."""
    for place in list(_folders):
        remove_folder(place)
