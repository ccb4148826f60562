"""The folder of a running scan: its lock, its files of finished work with their checksums, and how a scan resumes.

OUT/scan.json            model, corpus and settings of the scan, with its checksum
OUT/work/shard-00003     the streams of a finished shard, with its checksum
OUT/work/series-00003    a row for every sequence of that shard
OUT/work/merged-00008    the streams of shards 0 to 7, merged in order; replaces their files
OUT/atlas.zarr           the result

A part of a scan (`part=2/4`) keeps the files of all its shards, and its sequences (work/blocks), for `merge`.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, overload

from safetensors import SafetensorError
from torch import Tensor

from armillary.atlas.differences import differences, essential
from armillary.engines.packing import Data, Packed, pieces, unpack
from armillary.errors import ArmillaryError, brief
from armillary.files.atomic import (
    checksum_path,
    read_checked,
    remove_with_checksum,
    write_with_checksum,
)
from armillary.files.lock import FolderLock
from armillary.files.records import read_record
from armillary.streams.declaration import Pass
from armillary.streams.stream import Stream
from armillary.text.numerals import whole_number

MERGE_EVERY = 8
"""After this many shards, their files are replaced by one file of their merged streams."""


class FileKind(StrEnum):
    """What a file of finished work holds; the value is the first part of the file's name."""

    FIRST = "shard"
    """The streams of a shard of the first pass."""
    SERIES = "series"
    """A row for every sequence of that shard."""
    MERGED = "merged"
    """The streams of the first shards, merged."""
    SAMPLE = "sample"
    """A shard of the pass over a sample of the text, once the means are known."""
    REPEATS = "repeats"
    """A shard of the pass over repeated random tokens."""
    SOURCES = "sources"
    """A shard of the pass that splits the stream by what wrote it."""
    LAYER = "layer"
    """The spectra of a layer's weights."""


PASS_FILES = {
    Pass.FIRST: FileKind.FIRST,
    Pass.SAMPLE: FileKind.SAMPLE,
    Pass.REPEATS: FileKind.REPEATS,
    Pass.SOURCES: FileKind.SOURCES,
}
"""The file that a shard of each pass leaves; one of the first pass leaves its series too."""


@dataclass(frozen=True)
class Shard:
    """Sequences first .. last - 1 of the corpus."""

    index: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan(Sequence[Shard]):
    """Shards of `size` sequences each, those with these `indices`; each is made on access, since there may be many."""

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
    """The shards of a scan; they depend only on these two numbers."""
    return Plan(sequences, size, range(-(-sequences // size)))


WORK = 2.0e12
"""Operations of a shard's forward passes. A core does 7e10 of them a second, including the time for streams (measured
on SmolLM2-135M): a quarter of a minute on two idle cores, about a minute on two busy ones."""

LARGEST = 64
"""No shard has more sequences, however small the model."""


def shard_size(parameters: int, d_model: int, layers: int, length: int) -> int:
    """The default number of sequences per shard: it depends on model and length alone, so that bits stay the same.

    A shard is about WORK operations (2 for each weight and token, 4 d for each pair of tokens and layer), with at most
    LARGEST sequences and at least d tokens, since the sums that a shard stores are d x d. Always a power of two.
    """
    operations = 2 * parameters * length + 4 * d_model * layers * length**2
    size = LARGEST
    while size > 1 and size * operations > WORK and size // 2 * length >= d_model:
        size //= 2
    return size


@dataclass(frozen=True)
class Part:
    """Part `number` of `of` parts of a scan, counted from 1: consecutive shards."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if self.of < 1:
            raise ArmillaryError(f"there is no part {self}: a scan has at least 1 part, as in 1/1")
        if not 1 <= self.number <= self.of:
            raise ArmillaryError(f"there is no part {self}", advice=f"it can be 1/{self.of} to {self.of}/{self.of}")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def shards(self, all_shards: Plan) -> Plan:
        """The shards of this part; parts differ in size by one shard at most."""
        if self.of > len(all_shards):
            raise ArmillaryError(
                f"{len(all_shards)} shards cannot be cut into {self.of} parts",
                advice="use fewer parts, or a smaller `shard`",
            )
        first, last = ((number * len(all_shards)) // self.of for number in (self.number - 1, self.number))
        return all_shards[first:last]


def parse_part(text: str) -> Part:
    """Part 3 of 16, written as 3/16."""
    before, _, after = text.partition("/")
    number, of = whole_number(before), whole_number(after)
    if number is None or of is None:
        raise ArmillaryError(f"{text!r} is not a part", advice="write it as in 3/16, the third of sixteen")
    return Part(number, of)


class ScanFolder:
    """The folder of a scan; inside `with`, locked for this process."""

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
        """Start a scan here, or resume the one that was interrupted; an error if it is a different scan.

        True if the same scan is finished already.
        """
        record = self.out / "scan.json"
        if self.atlas.exists():
            if resume and not overwrite and not self._differs(description):
                return True
            if not overwrite:
                raise ArmillaryError(
                    f"{self.out} holds a finished atlas",
                    advice="choose another `out`, or replace it with `overwrite=True`",
                )
            self.atlas.replace(self.work / "replaced.zarr")  # atomic: a kill leaves no half of it
            self.clear()
        elif record.exists() and overwrite:
            self.clear()
        elif record.exists() and not resume:
            raise ArmillaryError(
                f"{self.out} holds an unfinished scan",
                advice="`resume=True` continues it, `overwrite=True` starts again",
            )
        elif record.exists():
            different = self._differs(description)
            if different:
                raise ArmillaryError(
                    f"{self.out} holds an unfinished scan of something else ({'; '.join(different)})",
                    advice="`overwrite=True` starts again, or choose another `out`",
                )
            return False
        elif any(path not in (self.work, checksum_path(record)) for path in self.out.iterdir()):
            raise ArmillaryError(f"{self.out} holds other files", advice="choose a new or empty folder for `out`")
        self.clear()  # files without a record belong to no scan
        write_with_checksum(record, [json.dumps(description, indent=1).encode()])
        return False

    def _differs(self, description: dict[str, Any]) -> list[str]:
        """How the scan in this folder differs from this description."""
        before = self.record("`overwrite=True` starts again")
        return differences(essential(before), essential(description))

    def record(self, remedy: str) -> dict[str, Any]:
        """The contents of scan.json, checked if its checksum exists (a kill can come before it is written)."""
        path = self.out / "scan.json"
        description: dict[str, Any] = read_record(path, dict[str, Any], remedy)
        if checksum_path(path).is_file() and read_checked(path) is None:
            raise ArmillaryError(f"{path} is damaged", advice=f"restore it from a copy, or {remedy}")
        return description

    def clear(self) -> None:
        """Remove all work, and the record last, so that after a kill no files are left without their record."""
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        remove_with_checksum(self.out / "scan.json")

    # finished work ------------------------------------------------------------------------------------------

    def keep(self, index: int, files: Mapping[str, Data]) -> None:
        """Store the results of a shard, by kind; once this returns, a kill does not lose them."""
        for kind, data in files.items():
            write_with_checksum(self.path(FileKind(kind), index), pieces(data))

    def holds(self, kinds: tuple[FileKind, ...], index: int) -> bool:
        """Whether files of all these kinds are finished and undamaged."""
        return all(read_checked(self.path(kind, index)) is not None for kind in kinds)

    def indices(self, kind: FileKind) -> list[int]:
        """The shards with files of this kind, finished or not."""
        names = (path.name.removeprefix(f"{kind}-") for path in self.work.glob(f"{kind}-*"))
        return [index for index in map(whole_number, names) if index is not None]

    def read(self, kind: FileKind, index: int) -> bytes:
        """The bytes of a finished file."""
        data = read_checked(self.path(kind, index))
        if data is None:
            raise ArmillaryError(
                f"{self.path(kind, index)} was damaged while the scan ran", advice="run again with `resume=True`"
            )
        return data

    def adopt(self, kinds: tuple[FileKind, ...], index: int, other: "ScanFolder") -> None:
        """Use the files of another folder as finished work: links to them, or copies where links are not possible."""
        for kind in kinds:
            path, original = self.path(kind, index), other.path(kind, index)
            for to, source in ((path, original), (checksum_path(path), checksum_path(original))):
                to.unlink(missing_ok=True)
                try:
                    to.symlink_to(source.resolve())
                except OSError:
                    shutil.copy2(source, to)

    def layer(self, layer: int) -> dict[str, Tensor] | None:
        """The stored spectra of a layer, or None if they are not finished or damaged."""
        data = read_checked(self.path(FileKind.LAYER, layer))
        return None if data is None else unpack_file(self.path(FileKind.LAYER, layer), data)

    def merged(self, streams: dict[str, Stream]) -> int:
        """Load the merged streams of the first shards into `streams`; returns the number of shards merged."""
        for path in sorted(self.work.glob("merged-?????"), reverse=True):
            count = whole_number(path.name.removeprefix("merged-")) or 0
            data = read_checked(path)
            if count and data is not None and all(self.holds((FileKind.SERIES,), i) for i in range(count)):
                restore(streams, path, data)
                return count
        return 0

    def write_merged(self, count: int, streams: dict[str, Stream]) -> None:
        """Store the merged streams of shards 0 .. count - 1, and remove the files they replace."""
        write_with_checksum(self.path(FileKind.MERGED, count), Packed(to_tensors(streams)).pieces())
        for path in self.work.glob("merged-?????"):
            if path != self.path(FileKind.MERGED, count):
                remove_with_checksum(path)
        for index in range(count):
            remove_with_checksum(self.path(FileKind.FIRST, index))

    def series(self, shards: Sequence[Shard]) -> Iterator[dict[str, Tensor]]:
        """The series of every shard, in order, one in memory at a time."""
        for shard in shards:
            data = read_checked(self.path(FileKind.SERIES, shard.index))
            if data is None:
                raise ArmillaryError(
                    f"{self.path(FileKind.SERIES, shard.index)} was damaged while the scan ran", advice="scan again"
                )
            yield unpack_file(self.path(FileKind.SERIES, shard.index), data)

    def path(self, kind: FileKind, index: int) -> Path:
        """The file of this kind of a shard (or layer)."""
        return self.work / f"{kind}-{index:05d}"


def unpack_file(path: Path, data: Data) -> dict[str, Tensor]:
    """The tensors of a file whose checksum is right; an error if its format is not ours."""
    try:
        return unpack(data)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArmillaryError(
            f"{path} does not hold tensors of a scan ({brief(error)})", advice="scan again with `overwrite=True`"
        ) from error


def restore(streams: dict[str, Stream], path: Path, data: Data) -> None:
    """Load a file of finished work into empty streams."""
    tensors = unpack_file(path, data)
    try:
        from_tensors(streams, tensors)
    except ValueError as error:
        raise ArmillaryError(
            f"{path} does not hold streams of a scan ({brief(error)})", advice="scan again with `overwrite=True`"
        ) from error


def to_tensors(streams: dict[str, Stream]) -> dict[str, Tensor]:
    """All states of all streams as contiguous tensors in main memory."""
    return {f"{name}/{key}": t.cpu().contiguous() for name, stream in streams.items() for key, t in stream.tensors()}


def taken(streams: dict[str, Stream]) -> dict[str, Tensor]:
    """The same, but the streams are emptied, so that each tensor is freed once it is written."""
    tensors = to_tensors(streams)
    for stream in streams.values():
        stream.states.clear()
    return tensors


def from_tensors(streams: dict[str, Stream], tensors: dict[str, Tensor]) -> None:
    """The reverse of to_tensors."""
    for name, stream in streams.items():
        stream.restore({key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")})
