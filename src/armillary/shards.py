"""The folder of a scan while it runs: who owns it, what is finished, what can be trusted.

OUT/scan.json            what is being scanned, and how, with its checksum
OUT/work/shard-00003     the streams of a finished shard, with its checksum
OUT/work/series-00003    a row for every sequence of that shard
OUT/work/merged-00008    the streams of shards 0 to 7, merged in order; replaces their files
OUT/atlas.zarr           the result

A part of a scan (`scan --part 2/4`) keeps the files of all its shards, and its blocks, until `merge` takes them.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from safetensors import SafetensorError
from torch import Tensor

from armillary.errors import ArmillaryError, brief
from armillary.files import (
    checksum_path,
    read_checked,
    remove_with_checksum,
    write_with_checksum,
)
from armillary.folder_lock import FolderLock
from armillary.numerals import whole_number
from armillary.packing import Data, Packed, pieces, unpack
from armillary.records import read_record
from armillary.streams import Stream

MERGE_EVERY = 8
"""After so many shards their files are replaced by that of their merged streams."""


@dataclass(frozen=True)
class Shard:
    """Blocks first .. last - 1 of the corpus."""

    index: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan(Sequence[Shard]):
    """Shards of `size` blocks each, those of these `indices`; none exists before it is asked for, however many."""

    sequences: int
    size: int
    indices: range

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, at: int) -> Shard: ...
    @overload
    def __getitem__(self, at: slice) -> "Plan": ...
    def __getitem__(self, at: int | slice) -> "Shard | Plan":
        if isinstance(at, slice):
            return Plan(self.sequences, self.size, self.indices[at])
        index = self.indices[at]
        return Shard(index, index * self.size, min((index + 1) * self.size, self.sequences))


def plan(sequences: int, size: int) -> Plan:
    """The shards of a scan; they depend on nothing but these two numbers."""
    return Plan(sequences, size, range(-(-sequences // size)))


WORK = 5.0e11
"""Operations of a shard's forward passes. With all that the streams do beside them a core does 2.4e10 a second (so
measured on SmolLM2-135M): ten seconds on two idle cores, about a minute on two that others use too."""

LARGEST = 32
"""No shard has more blocks, however small the model."""


def shard_size(parameters: int, d_model: int, layers: int, length: int) -> int:
    """How many blocks a shard has where nobody says so: a rule of model and length alone, so that bits stay the same.

    So many that a shard is about WORK operations (2 for each weight and token, 4 d for each pair of tokens and layer),
    at most LARGEST; and at least d tokens, since the sums that a shard leaves are d x d. Always a power of two.
    """
    block = 2 * parameters * length + 4 * d_model * layers * length**2
    size = LARGEST
    while size > 1 and size * block > WORK and size // 2 * length >= d_model:
        size //= 2
    return size


@dataclass(frozen=True)
class Part:
    """The `number`-th of `of` parts of a scan: a run of its shards. Numbers begin with 1."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if self.of < 1:
            raise ArmillaryError(f"there is no part {self}: a scan has 1 part at least, as in 1/1")
        if not 1 <= self.number <= self.of:
            raise ArmillaryError(f"there is no part {self}: it can be 1/{self.of} to {self.of}/{self.of}")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def shards(self, every: Plan) -> Plan:
        """The shards of this part; parts differ in size by one shard at most."""
        if self.of > len(every):
            raise ArmillaryError(
                f"{len(every)} shards cannot be cut into {self.of} parts: use fewer parts, or a smaller --shard"
            )
        first, last = ((number * len(every)) // self.of for number in (self.number - 1, self.number))
        return every[first:last]


def parse_part(text: str) -> Part:
    """Part 3 of 16, written as 3/16."""
    before, _, after = text.partition("/")
    number, of = whole_number(before), whole_number(after)
    if number is None or of is None:
        raise ArmillaryError(f"{text!r} is not a part: write it as in 3/16, the third of sixteen")
    return Part(number, of)


class ScanFolder:
    """The folder, held by this process alone from `with` to its end."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.atlas = out / "atlas.zarr"
        self._lock = FolderLock(out, "scan")
        self.work = self._lock.work

    def __enter__(self) -> "ScanFolder":
        self._lock.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.atlas.exists():
            self._lock.remove_work()
        self._lock.__exit__(*exception)

    def begin(self, description: dict[str, Any], *, resume: bool, overwrite: bool) -> bool:
        """Start a scan here, or go on with the one that was interrupted; refuse to mix two.

        True if the very same scan is finished already and there is nothing left to do.
        """
        record = self.out / "scan.json"
        if self.atlas.exists():
            if resume and not overwrite and not self._differs(description):
                return True
            if not overwrite:
                raise ArmillaryError(
                    f"{self.out} holds a finished atlas: choose another --out, or replace it with --overwrite"
                )
            self.atlas.replace(self.work / "replaced.zarr")  # gone at once: a kill leaves no half of it
            self.clear()
        elif record.exists() and overwrite:
            self.clear()
        elif record.exists() and not resume:
            raise ArmillaryError(
                f"{self.out} holds an unfinished scan: --resume goes on with it, --overwrite starts anew"
            )
        elif record.exists():
            different = self._differs(description)
            if different:
                raise ArmillaryError(
                    f"{self.out} holds an unfinished scan of something else ({'; '.join(different)}): "
                    "--overwrite starts anew, or choose another --out"
                )
            return False
        elif any(path not in (self.work, checksum_path(record)) for path in self.out.iterdir()):
            raise ArmillaryError(f"{self.out} holds other files: choose a new or empty folder for --out")
        self.clear()  # files without a record belong to no scan
        write_with_checksum(record, [json.dumps(description, indent=1).encode()])
        return False

    def _differs(self, description: dict[str, Any]) -> list[str]:
        """What the scan that this folder holds does otherwise."""
        before = self.record("--overwrite starts anew")
        return differences(essential(before), essential(description))

    def record(self, remedy: str) -> dict[str, Any]:
        """What scan.json says, checked where its checksum is there (a kill can come before it is)."""
        path = self.out / "scan.json"
        found: dict[str, Any] = read_record(path, dict[str, Any], remedy)
        if checksum_path(path).is_file() and read_checked(path) is None:
            raise ArmillaryError(f"{path} is damaged: put it back from a copy, or {remedy}")
        return found

    def clear(self) -> None:
        """Remove all work, and the record last: a kill in between leaves nothing that could be taken for another's."""
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        remove_with_checksum(self.out / "scan.json")

    # finished work ------------------------------------------------------------------------------------------

    def keep(self, index: int, files: dict[str, Data]) -> None:
        """Keep what was computed of a shard, by kind; once this returns, a kill loses nothing of it."""
        for kind, data in files.items():
            write_with_checksum(self.path(kind, index), pieces(data))

    def holds(self, kinds: tuple[str, ...], index: int) -> bool:
        """Whether files of all these kinds are finished and undamaged."""
        return all(read_checked(self.path(kind, index)) is not None for kind in kinds)

    def indices(self, kind: str) -> list[int]:
        """The shards of which there are files of this kind, finished or not."""
        names = (path.name.removeprefix(f"{kind}-") for path in self.work.glob(f"{kind}-*"))
        return [index for index in map(whole_number, names) if index is not None]

    def read(self, kind: str, index: int) -> bytes:
        """What was kept."""
        data = read_checked(self.path(kind, index))
        if data is None:
            raise ArmillaryError(f"{self.path(kind, index)} was damaged while the scan ran: run again with --resume")
        return data

    def adopt(self, kinds: tuple[str, ...], index: int, other: "ScanFolder") -> None:
        """Take the files of another folder as finished work, without copying them where links can be made."""
        for kind in kinds:
            path, found = self.path(kind, index), other.path(kind, index)
            for to, source in ((path, found), (checksum_path(path), checksum_path(found))):
                to.unlink(missing_ok=True)
                try:
                    to.symlink_to(source.resolve())
                except OSError:
                    shutil.copy2(source, to)

    def layer(self, layer: int) -> dict[str, Tensor] | None:
        """What was kept of a layer's weights, if it is finished and undamaged."""
        data = read_checked(self.path("layer", layer))
        return None if data is None else unpack_file(self.path("layer", layer), data)

    def merged(self, streams: dict[str, Stream]) -> int:
        """Put the merged streams of the first shards into `streams`; returns how many shards they hold."""
        for path in sorted(self.work.glob("merged-?????"), reverse=True):
            count = whole_number(path.name.removeprefix("merged-")) or 0
            data = read_checked(path)
            if count and data is not None and all(self.holds(("series",), i) for i in range(count)):
                restore(streams, path, data)
                return count
        return 0

    def write_merged(self, count: int, streams: dict[str, Stream]) -> None:
        """Keep the merged streams of shards 0 .. count - 1, and drop the files they replace."""
        write_with_checksum(self.path("merged", count), Packed(to_tensors(streams)).pieces())
        for path in self.work.glob("merged-?????"):
            if path != self.path("merged", count):
                remove_with_checksum(path)
        for index in range(count):
            remove_with_checksum(self.path("shard", index))

    def series(self, shards: Sequence[Shard]) -> Iterator[dict[str, Tensor]]:
        """The series of every shard, in order, one in memory at a time."""
        for shard in shards:
            data = read_checked(self.path("series", shard.index))
            if data is None:
                raise ArmillaryError(f"{self.path('series', shard.index)} was damaged while the scan ran: scan again")
            yield unpack_file(self.path("series", shard.index), data)

    def path(self, kind: str, index: int) -> Path:
        """Where what was computed of a shard is kept."""
        return self.work / f"{kind}-{index:05d}"


def unpack_file(path: Path, data: Data) -> dict[str, Tensor]:
    """The tensors of a file whose checksum is right; what made it may still have been something else."""
    try:
        return unpack(data)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArmillaryError(
            f"{path} holds no tensors of a scan ({brief(error)}): scan again with --overwrite"
        ) from error


def restore(streams: dict[str, Stream], path: Path, data: Data) -> None:
    """Put what a file of finished work holds into empty streams."""
    tensors = unpack_file(path, data)
    try:
        from_tensors(streams, tensors)
    except ValueError as error:
        raise ArmillaryError(
            f"{path} holds no streams of a scan ({brief(error)}): scan again with --overwrite"
        ) from error


def to_tensors(streams: dict[str, Stream]) -> dict[str, Tensor]:
    """All states of all streams as contiguous tensors in main memory."""
    return {f"{name}/{key}": t.cpu().contiguous() for name, stream in streams.items() for key, t in stream.tensors()}


def taken(streams: dict[str, Stream]) -> dict[str, Tensor]:
    """The same, and the streams are empty afterwards: what is done with a tensor decides how long it lives."""
    found = to_tensors(streams)
    for stream in streams.values():
        stream.states.clear()
    return found


def from_tensors(streams: dict[str, Stream], tensors: dict[str, Tensor]) -> None:
    """The reverse of to_tensors."""
    for name, stream in streams.items():
        stream.restore({key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")})


def essential(description: dict[str, Any]) -> dict[str, Any]:
    """A description less what finished shards do not depend on: the names of model and corpus, and when_nan."""
    return {
        key: {k: v for k, v in value.items() if k not in ("name", "when_nan")} if isinstance(value, dict) else value
        for key, value in description.items()
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What two descriptions of a scan disagree on, as sentences' parts."""
    return [f"{key}: was {_short(a)}, now {_short(b)}" for key, a, b in disagreements(before, now)]


def _short(value: Any) -> str:
    return text if len(text := str(value)) <= 200 else f"{text[:197]}..."


def disagreements(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(what, in a, in b) for everything that differs."""
    found = []
    for key in sorted({*a, *b}):
        ours, theirs = a.get(key), b.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            found += [(f"{key} {inner}", x, y) for inner, x, y in disagreements(ours, theirs)]
        elif ours != theirs:
            found.append((key, ours, theirs))
    return found
