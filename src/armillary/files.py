"""Files and folders written so that a reader never meets half of one, and a checksum that tells a damaged one."""

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
"""What a path can be that no file is written to."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary neighbor, flush it to disk, then put it in place under its name.

    A symlink stays one: the file that it leads to is replaced. Devices, pipes and folders are refused.
    """
    _write(destination(path), (data,))


def destination(path: Path) -> Path:
    """The file that writing to this path changes, symlinks followed; an error if that is no regular file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None  # new, also where a symlink leads to nothing yet
    except OSError as error:
        raise ArmillaryError(write_problem(path, error)) from error
    kind = next((words for holds, words in KINDS if mode is not None and holds(mode)), None)
    if kind is None and _is_open_file(path):
        kind = "an open file of this process"
    if kind is not None:
        raise ArmillaryError(f"{path} is {kind}: name a file, new or to be replaced")
    target = Path(os.path.realpath(path))
    if mode is not None and not os.access(target, os.W_OK):
        raise ArmillaryError(f"{path} is write-protected: name another file, or allow writing (chmod u+w)")
    return target


def _is_open_file(path: Path) -> bool:
    """Whether the path leads through /proc/self/fd, as /dev/stdout does: what is open cannot be replaced."""
    for _ in range(40):
        if not path.is_symlink():
            return False
        if path.parent.name == "fd" and Path(os.path.realpath(path.parent)).parts[1:2] == ("proc",):
            return True
        path = path.parent / path.readlink()
    return False


def _write(path: Path, pieces: Iterable[Buffer]) -> str:
    """The SHA-256 of what was written, piece by piece."""
    part, digest = _beside(path, "part"), hashlib.sha256()
    try:
        with part.open("xb") as file:  # new: never through a link that somebody has put there
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file() and not path.is_symlink():
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
    except OSError as error:
        _leave(part)
        raise ArmillaryError(write_problem(path, error)) from error
    except BaseException:
        _leave(part)
        raise
    return digest.hexdigest()


def _leave(part: Path) -> None:
    """Remove what was begun; a disk that refuses that too (one that is read-only) has told its reason already."""
    with suppress(OSError):
        part.unlink()


def _beside(path: Path, kind: str) -> Path:
    """A new hidden name beside a path; two writers never share one."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{kind}")


def write_problem(path: Path, error: OSError) -> str:
    """A sentence for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"there is no space left to write {path}: make room; what was finished before is kept"
    return f"{path} cannot be written: {error.strerror or error}"


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever writes inside: what the disk refuses becomes a sentence about this path."""
    try:
        yield
    except OSError as error:
        raise ArmillaryError(write_problem(path, error)) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # how safetensors tells a full disk
            raise
        raise ArmillaryError(f"{path} cannot be written: {error}") from error


# folders ------------------------------------------------------------------------------------------------------


@contextmanager
def whole_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `path` when the block ends well.

    Without `replace`, `path` must be absent or empty then too. At every moment the old folder or the new one is whole:
    a kill between the two renames leaves both beside `path`, and `recover` puts the old one back.
    """
    path = Path(os.path.realpath(path))
    make_folder(path.parent)
    part = _beside(path, "part")
    try:
        with writing(path):
            part.mkdir()
            yield part
            if replace:
                _take_place(part, path)
            else:
                part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _take_place(part: Path, path: Path) -> None:
    """Put a finished folder where another may be; also if somebody else does the same."""
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
    for old in _set_aside(path):
        shutil.rmtree(old, ignore_errors=True)


def _set_aside(path: Path) -> list[Path]:
    """Folders that were moved out of the way of this one."""
    return [old for old in path.parent.iterdir() if old.name.startswith(f".{path.name}.") and old.suffix == ".old"]


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left half written in a folder that nobody writes to now."""
    for path in folder.iterdir():
        if re.fullmatch(r"\..+\.[0-9a-f]{8}\.part", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def recover(path: Path) -> None:
    """Put back the folder that a killed `whole_folder` had moved aside, if nothing took its place."""
    if path.exists() or not path.parent.is_dir():
        return
    aside = sorted(_set_aside(path), key=lambda old: old.stat().st_mtime_ns)
    if aside:
        aside[-1].replace(path)


# checksums ----------------------------------------------------------------------------------------------------


def write_with_checksum(path: Path, pieces: Iterable[Buffer]) -> None:
    """Write the file, then its SHA-256 beside it; without the second the first counts as unfinished.

    These are files of our own: a symlink to another scan's file (ScanFolder.adopt) is replaced, not followed.
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
