"""Temporary folders, removed when the program ends."""

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
    folder = Path(tempfile.gettempdir()) / f"armillary-{secrets.token_hex(8)}"
    _folders.add(folder)  # before it is created, so that a signal does not leave it behind
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        _folders.discard(folder)
        raise ArmillaryError(
            f"there is no place for temporary files ({error})", advice="set TMPDIR to a folder that can be written"
        ) from error
    return folder


def remove_at_exit(folder: Path) -> None:
    """Remove this folder when the program ends."""
    _folders.add(folder)


def remove_folder(folder: Path) -> None:
    """Remove a temporary folder now."""
    shutil.rmtree(folder, ignore_errors=True)
    _folders.discard(folder)


@atexit.register
def remove_all() -> None:
    """Remove every temporary folder; call it before os._exit."""
    for folder in list(_folders):
        remove_folder(folder)
