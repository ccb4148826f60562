"""Writes files and folders atomically, and checksums that detect damaged files."""

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from armillary.errors import ArmillaryError

Buffer = bytes | bytearray | memoryview

KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)
"""Kinds of paths that cannot be written as a file."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder, flush it to disk, then rename it.

    A symlink stays a symlink: the file that it points to is replaced. Devices, pipes and folders are refused.
    """
    _write(destination(path), (data,))


def destination(path: Path) -> Path:
    """The file that writing to this path changes, symlinks followed; raises if it is not a regular file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None  # new, or a symlink to a file that does not exist yet
    except OSError as error:
        raise ArmillaryError(write_problem(path, error)) from error
    kind = next((words for is_kind, words in KINDS if mode is not None and is_kind(mode)), None)
    if kind is None and _is_open_file(path):
        kind = "an open file of this process"
    if kind is not None:
        raise ArmillaryError(f"{path} is {kind}", advice="name a file, new or to be replaced")
    target = Path(os.path.realpath(path))
    if mode is not None and not os.access(target, os.W_OK):
        raise ArmillaryError(f"{path} is write-protected", advice="name another file, or allow writing (chmod u+w)")
    return target


def _is_open_file(path: Path) -> bool:
    """Whether the path leads through /proc/self/fd, as /dev/stdout does: an open file cannot be replaced."""
    for _ in range(40):
        if not path.is_symlink():
            return False
        if path.parent.name == "fd" and Path(os.path.realpath(path.parent)).parts[1:2] == ("proc",):
            return True
        path = path.parent / path.readlink()
    return False


def _write(path: Path, pieces: Iterable[Buffer]) -> str:
    """Write the pieces and return their SHA-256."""
    part, digest = _beside(path, "part"), hashlib.sha256()
    try:
        with part.open("xb") as file:  # "x": never through an existing link
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file() and not path.is_symlink():
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
    except OSError as error:
        _discard(part)
        raise ArmillaryError(write_problem(path, error)) from error
    except BaseException:
        _discard(part)
        raise
    return digest.hexdigest()


def _discard(part: Path) -> None:
    """Remove an unfinished file; a failure here (a read-only disk) was reported by the write."""
    with suppress(OSError):
        part.unlink()


def _beside(path: Path, kind: str) -> Path:
    """A new hidden name beside a path; two writers never share one."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{kind}")


def write_problem(path: Path, error: OSError) -> str:
    """A sentence for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"there is no space left to write {path}: make room; finished work is kept"
    return f"{path} cannot be written: {error.strerror or error}"


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they are missing."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns errors of the disk inside into an ArmillaryError about this path."""
    try:
        yield
    except OSError as error:
        raise ArmillaryError(write_problem(path, error)) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # what safetensors raises on a full disk
            raise
        raise ArmillaryError(f"{path} cannot be written: {error}") from error


# folders ------------------------------------------------------------------------------------------------------


@contextmanager
def whole_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A new folder to fill, which replaces `path` if the context ends without an error.

    Without `replace`, `path` must be absent or empty at that time. The old folder or the new one is complete at every
    moment: a kill between the two renames leaves both next to `path`, and `recover` restores the old one.
    """
    path = Path(os.path.realpath(path))
    make_folder(path.parent)
    part = _beside(path, "part")
    try:
        with writing(path):
            part.mkdir()
            yield part
            if replace:
                _move_into_place(part, path)
            else:
                part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move_into_place(part: Path, path: Path) -> None:
    """Move a finished folder to `path`, replacing one that is there; safe if another process does the same."""
    while True:
        try:
            part.replace(path)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not path.is_dir():
                raise
        try:
            path.replace(_beside(path, "old"))
        except FileNotFoundError:
            continue
    for old in _old_folders(path):
        shutil.rmtree(old, ignore_errors=True)


def _old_folders(path: Path) -> list[Path]:
    """Folders that were renamed to make way for this one."""
    return [old for old in path.parent.iterdir() if old.name.startswith(f".{path.name}.") and old.suffix == ".old"]


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of killed writers from a folder that no process is writing to."""
    for path in folder.iterdir():
        if re.fullmatch(r"\..+\.[0-9a-f]{8}\.part", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def recover(path: Path) -> None:
    """Restore the folder that a killed `whole_folder` had renamed, if nothing replaced it."""
    if path.exists() or not path.parent.is_dir():
        return
    old_folders = sorted(_old_folders(path), key=lambda old: old.stat().st_mtime_ns)
    if old_folders:
        old_folders[-1].replace(path)


# checksums ----------------------------------------------------------------------------------------------------


def write_with_checksum(path: Path, pieces: Iterable[Buffer]) -> None:
    """Write the file, then its SHA-256 beside it; a file without checksum counts as unfinished.

    A symlink to another scan's file (ScanFolder.adopt) is replaced, not followed.
    """
    _write(checksum_path(path), (_write(path, pieces).encode(),))


def read_checked(path: Path) -> bytes | None:
    """The file's bytes, or None if it is absent, unfinished or damaged."""
    try:
        data, expected = path.read_bytes(), checksum_path(path).read_text()
    except (OSError, ValueError):
        return None
    return data if hashlib.sha256(data).hexdigest() == expected else None


def remove_with_checksum(path: Path) -> None:
    """Remove the file and its checksum."""
    checksum_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
