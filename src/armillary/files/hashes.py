"""The SHA-256 of large files, cached in the user's cache folder while the file does not change.

A file counts as unchanged if its path, size, inode, mtime and ctime (which no program can set) are the same. The cache
is ~/.cache/armillary (XDG_CACHE_HOME moves it); ARMILLARY_CACHE names another folder, and an empty ARMILLARY_CACHE
turns it off. If the cache cannot be read or written, hashes are computed again.
"""

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from armillary.errors import ArmillaryError
from armillary.files.atomic import write_atomically

SETTLED = 2.0
"""A file that changed within this many seconds may change again with the same time stamp, and is not cached."""


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    path = Path(os.path.realpath(path))
    try:
        before = _state(path)
        cached = _cached(path, before)
        if cached is not None:
            return cached
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = _state(path)
    except OSError as error:
        raise ArmillaryError(f"{path} cannot be read: {error.strerror or error}") from error
    if before != after:
        raise ArmillaryError(
            f"{path} was changed while it was read", advice="wait until it is complete, then start again"
        )
    if time.time() - max(after["mtime_ns"], after["ctime_ns"]) / 1e9 > SETTLED:
        _cache(path, after, digest)
    return digest


def _state(path: Path) -> dict[str, int]:
    """Properties that change whenever a file does."""
    status = path.stat()
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
        "device": status.st_dev,
    }


def cache_folder() -> Path | None:
    """The folder of cached hashes, or None."""
    chosen = os.environ.get("ARMILLARY_CACHE")
    if chosen is not None:
        return Path(chosen).expanduser() if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "armillary"
    except RuntimeError:  # the user has no home folder
        return None


def _entry(path: Path) -> Path | None:
    folder = cache_folder()
    return folder and folder / "hashes" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"


def _cached(path: Path, state: dict[str, int]) -> str | None:
    entry = _entry(path)
    if entry is None:
        return None
    try:
        stored = json.loads(entry.read_text(encoding="utf-8"))
        if stored["state"] == state and stored["check"] == _check(state, stored["sha256"]):
            return str(stored["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _cache(path: Path, state: dict[str, int], digest: str) -> None:
    entry = _entry(path)
    if entry is not None:
        with suppress(OSError, ArmillaryError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            stored = {"path": str(path), "state": state, "sha256": digest, "check": _check(state, digest)}
            write_atomically(entry, json.dumps(stored).encode())


def _check(state: dict[str, int], digest: str) -> str:
    """A checksum of the entry, which detects damage on disk."""
    return hashlib.sha256(json.dumps([state, digest], sort_keys=True).encode()).hexdigest()
