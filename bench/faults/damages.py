"""Damage to the files of a folder: what disks, interrupted copies and curious hands do."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[list[Path], Path, Path, random.Random], str]
"""Told the files that may be damaged, their folder, another one like it and random numbers; says what it did."""


def files_of(folder: Path) -> list[Path]:
    """The files of a folder in a fixed order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file by its name inside the folder."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files_of(folder)}


def _picked(files: list[Path], rng: random.Random) -> Path:
    """A file: half of the time one of the small number of descriptions (JSON), else one with numbers."""
    described = [path for path in files if path.suffix in (".json", ".jsonl")]
    numbers = [path for path in files if path not in described]
    return rng.choice(described if described and (not numbers or rng.random() < 0.4) else numbers)


def flip(files: list[Path], folder: Path, other: Path, rng: random.Random) -> str:
    path = _picked([path for path in files if path.stat().st_size], rng)
    data = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit} of {path.relative_to(folder)}"


def truncate(files: list[Path], folder: Path, other: Path, rng: random.Random) -> str:
    path = _picked([path for path in files if path.stat().st_size], rng)
    size = rng.randrange(path.stat().st_size)
    path.write_bytes(path.read_bytes()[:size])
    return f"{path.relative_to(folder)} cut to {size} bytes"


def delete(files: list[Path], folder: Path, other: Path, rng: random.Random) -> str:
    path = _picked(files, rng)
    path.unlink()
    return f"{path.relative_to(folder)} deleted"


def swap(files: list[Path], folder: Path, other: Path, rng: random.Random) -> str:
    path = _picked(files, rng)
    alike = [one for one in files if one != path and one.stat().st_size == path.stat().st_size]
    near = [one for one in files if one != path and one.suffix == path.suffix]
    second = rng.choice(alike if alike and rng.random() < 0.7 else near or files)
    first_bytes, second_bytes = path.read_bytes(), second.read_bytes()
    path.write_bytes(second_bytes)
    second.write_bytes(first_bytes)
    return f"{path.relative_to(folder)} and {second.relative_to(folder)} exchanged"


def append(files: list[Path], folder: Path, other: Path, rng: random.Random) -> str:
    path = _picked(files, rng)
    more = rng.choice([b"\x00", b" ", b"\n{}", rng.randbytes(8), path.read_bytes()])
    path.write_bytes(path.read_bytes() + more)
    return f"{len(more)} bytes after {path.relative_to(folder)}"


def zero(files: list[Path], folder: Path, other: Path, rng: random.Random) -> str:
    path = _picked([path for path in files if path.stat().st_size], rng)
    data = path.read_bytes()
    first = 0 if rng.random() < 0.5 else rng.randrange(len(data))
    path.write_bytes(data[:first] + bytes(len(data) - first))
    return f"{path.relative_to(folder)} zero from byte {first} on"


def replace(files: list[Path], folder: Path, other: Path, rng: random.Random) -> str:
    """The same file of another folder of the same kind: whole, of the right size, with sums that fit it."""
    common = [path for path in files if (other / path.relative_to(folder)).is_file()]
    path = _picked(common, rng)
    path.write_bytes((other / path.relative_to(folder)).read_bytes())
    return f"{path.relative_to(folder)} from another folder"


def duplicate(files: list[Path], folder: Path, other: Path, rng: random.Random) -> str:
    """A file once more, under a name that could be taken for another chunk."""
    path = _picked(files, rng)
    copy = path.with_name(rng.choice(["0", "1", "7", path.name + ".copy", "zarr.json.bak"]))
    if copy.exists():
        copy = path.with_name(path.name + "0")
    copy.write_bytes(path.read_bytes())
    return f"{path.relative_to(folder)} also as {copy.name}"


DAMAGES: dict[str, Damage] = {
    "flip a bit": flip,
    "truncate": truncate,
    "delete": delete,
    "swap two files": swap,
    "append": append,
    "zero": zero,
    "replace by another's": replace,
    "add a file": duplicate,
}


def damaged(folder: Path, other: Path, rng: random.Random, number: int, under: str = ".") -> tuple[str, str]:
    """Damage a file below `under`, in a way that follows from the case's number; which way, and what it did.

    Two files that are the same may be exchanged, and zeros made zero: then once more, until a byte has changed.
    """
    kind, before = list(DAMAGES)[number % len(DAMAGES)], contents(folder)
    while True:
        how = DAMAGES[kind](files_of(folder / under), folder, other, rng)
        if contents(folder) != before:
            return kind, how
