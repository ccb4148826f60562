"""Files written so that a reader never meets half of one, and a checksum that tells a damaged one."""

import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from armillary.errors import ArmillaryError

Buffer = bytes | bytearray | memoryview


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary neighbour, flush it to disk, then put it in place under its name."""
    _write(path, (data,))


def _write(path: Path, pieces: Iterable[Buffer]) -> str:
    """The SHA-256 of what was written, piece by piece."""
    part, digest = path.with_name(f".{path.name}.part"), hashlib.sha256()
    try:
        with part.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ArmillaryError(write_problem(path, error)) from error
    return digest.hexdigest()


def write_problem(path: Path, error: OSError) -> str:
    """A sentence for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"there is no space left to write {path}: make room; what was finished before is kept"
    return f"{path} cannot be written: {error.strerror or error}"


def write_with_checksum(path: Path, pieces: Iterable[Buffer]) -> None:
    """Write the file, then its SHA-256 beside it; without the second the first counts as unfinished."""
    write_atomically(checksum_path(path), _write(path, pieces).encode())


def read_checked(path: Path) -> bytes | None:
    """The file's bytes, or None if it is absent, unfinished or damaged."""
    try:
        data, expected = path.read_bytes(), checksum_path(path).read_text()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == expected else None


def remove_with_checksum(path: Path) -> None:
    """Remove the file and its checksum."""
    checksum_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
