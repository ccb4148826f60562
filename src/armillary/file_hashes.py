"""The SHA-256 of large files, each read once: remembered in the user's cache while nothing about the file changes.

A file counts as unchanged if its place, size, inode, time of change (mtime) and time of the last change of anything,
which no program can set back (ctime), are the same. The cache is ~/.cache/armillary (XDG_CACHE_HOME moves it);
ARMILLARY_CACHE names another folder, and ARMILLARY_CACHE= none at all. What cannot be read or written there is
computed again: nothing depends on it.
"""

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from armillary.errors import ArmillaryError
from armillary.files import write_atomically

SETTLED = 2.0
"""Seconds. A file that changed so lately may change again within the same tick of its clock, and is not remembered."""


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    path = Path(os.path.realpath(path))
    try:
        before = _state(path)
        known = _remembered(path, before)
        if known is not None:
            return known
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        after = _state(path)
    except OSError as error:
        raise ArmillaryError(f"{path} cannot be read: {error.strerror or error}") from error
    if before != after:
        raise ArmillaryError(f"{path} was changed while it was read: wait until it is whole, then start again")
    if time.time() - max(after["mtime_ns"], after["ctime_ns"]) / 1e9 > SETTLED:
        _remember(path, after, found)
    return found


def _state(path: Path) -> dict[str, int]:
    """What changes whenever a file does."""
    told = path.stat()
    return {
        "size": told.st_size,
        "mtime_ns": told.st_mtime_ns,
        "ctime_ns": told.st_ctime_ns,
        "inode": told.st_ino,
        "device": told.st_dev,
    }


def cache_folder() -> Path | None:
    """Where hashes are remembered, or None."""
    chosen = os.environ.get("ARMILLARY_CACHE")
    if chosen is not None:
        return Path(chosen).expanduser() if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "armillary"
    except RuntimeError:  # a user without a home
        return None


def _entry(path: Path) -> Path | None:
    folder = cache_folder()
    return folder and folder / "hashes" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"


def _remembered(path: Path, state: dict[str, int]) -> str | None:
    entry = _entry(path)
    if entry is None:
        return None
    try:
        kept = json.loads(entry.read_text(encoding="utf-8"))
        if kept["state"] == state and kept["check"] == _check(state, kept["sha256"]):
            return str(kept["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _remember(path: Path, state: dict[str, int], found: str) -> None:
    entry = _entry(path)
    if entry is not None:
        with suppress(OSError, ArmillaryError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            kept = {"path": str(path), "state": state, "sha256": found, "check": _check(state, found)}
            write_atomically(entry, json.dumps(kept).encode())


def _check(state: dict[str, int], found: str) -> str:
    """Tells an entry that was damaged on the disk."""
    return hashlib.sha256(json.dumps([state, found], sort_keys=True).encode()).hexdigest()
