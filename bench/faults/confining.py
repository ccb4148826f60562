"""A process that can write to its own folder alone: cases try paths that a careless program, run by root, destroys.

The process leaves for a mount namespace of its own (Linux) in which everything else is read-only; nothing of that
outlives the process.
"""

import ctypes
import os
import stat
import tempfile
from pathlib import Path

NEW_NAMESPACE, PRIVATE, RECURSIVE, BIND, REMOUNT, READ_ONLY = 0x20000, 0x40000, 0x4000, 0x1000, 0x20, 0x1
NAMES = {"nosuid": 0x2, "nodev": 0x4, "noexec": 0x8, "noatime": 0x400, "nodiratime": 0x800, "relatime": 0x200000}
MUST = ("/", "/dev")
"""What has to be read-only for a case to be run by root."""


def mount(source: str | None, target: str | Path, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    given = [None if text is None else str(text).encode() for text in (source, str(target), kind)]
    if libc.mount(*given, ctypes.c_ulong(flags), None if options is None else options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def confined(folder: Path) -> str:
    """Let this process and its children write nowhere else; why not, where that cannot be had."""
    if not hasattr(os, "fork") or not Path("/proc/self/mountinfo").is_file():
        return "a process can be confined to a folder on Linux alone"
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(NEW_NAMESPACE):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        mount("none", "/", None, PRIVATE | RECURSIVE)
        mount(str(folder), folder, None, BIND)
        for point, options in _mounts():
            if point != str(folder):
                _read_only(point, options)
    except OSError as error:
        return f"a process can be confined to a folder by root alone ({error.strerror})"
    for name in ("TMPDIR", "TMP", "TEMP"):
        os.environ[name] = str(folder)
    tempfile.tempdir = str(folder)
    return ""


def _mounts() -> list[tuple[str, str]]:
    """The places where something is mounted, and how."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [(row[4].encode().decode("unicode_escape"), row[5]) for row in rows]


def _read_only(point: str, options: str) -> None:
    flags = sum(NAMES.get(name, 0) for name in options.split(","))
    try:
        mount(None, point, None, BIND | REMOUNT | READ_ONLY | flags)
    except OSError:
        if point in MUST or any(Path(one).is_relative_to(point) for one in MUST):
            raise


def own_device(folder: Path, name: str) -> Path:
    """A device like /dev/null or /dev/full in a folder of our own; the real one where only root could harm it."""
    real = Path("/dev") / name
    try:
        os.mknod(folder / name, stat.S_IFCHR | 0o666, real.stat().st_rdev)
    except PermissionError:
        return real
    return folder / name
