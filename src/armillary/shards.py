"""The folder of a scan while it runs: who owns it, what is finished, what can be trusted.

OUT/scan.json            what is being scanned, and how
OUT/work/shard-00003     the streams of a finished shard, with its checksum
OUT/work/series-00003    a row for every sequence of that shard
OUT/work/merged-00008    the streams of shards 0 to 7, merged in order; replaces their files
OUT/atlas.zarr           the result
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load as parse
from safetensors.torch import save as pack
from torch import Tensor

from armillary.errors import ArmillaryError
from armillary.files import read_checked, remove_with_checksum, write_atomically, write_problem, write_with_checksum
from armillary.streams import Stream

MERGE_EVERY = 8
"""After so many shards their files are replaced by that of their merged streams."""


@dataclass(frozen=True)
class Shard:
    """Blocks first .. last - 1 of the corpus."""

    index: int
    first: int
    last: int


def plan(sequences: int, size: int) -> list[Shard]:
    """The shards of a scan; they depend on nothing but these two numbers."""
    return [Shard(i, first, min(first + size, sequences)) for i, first in enumerate(range(0, sequences, size))]


class ScanFolder:
    """The folder, held by this process alone from `with` to its end."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.work = out / "work"
        self.atlas = out / "atlas.zarr"
        self._lock = FileLock(self.work / "lock", timeout=0)

    def __enter__(self) -> "ScanFolder":
        if self.out.exists() and not self.out.is_dir():
            raise ArmillaryError(f"{self.out} is a file: --out names a folder")
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            raise ArmillaryError(
                f"another scan is writing to {self.out}: wait for it, or choose another --out"
            ) from error
        except OSError as error:
            raise ArmillaryError(write_problem(self.out, error)) from error
        return self

    def __exit__(self, *exception: object) -> None:
        if self.atlas.exists() or not any(path.name != "lock" for path in self.work.iterdir()):
            shutil.rmtree(self.work, ignore_errors=True)
            if not any(self.out.iterdir()):
                self.out.rmdir()
        self._lock.release()

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
            shutil.rmtree(self.atlas)
            self._clear()
        elif record.exists() and overwrite:
            self._clear()
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
        elif any(path.name != "work" for path in self.out.iterdir()):
            raise ArmillaryError(f"{self.out} holds other files: choose a new or empty folder for --out")
        self._clear()  # files without a record belong to no scan
        write_atomically(record, json.dumps(description, indent=1).encode())
        return False

    def _differs(self, description: dict[str, Any]) -> list[str]:
        """What the scan that this folder holds does otherwise."""
        try:
            before = json.loads((self.out / "scan.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArmillaryError(f"{self.out / 'scan.json'} cannot be read: --overwrite starts anew") from error
        return differences(essential(before), essential(description))

    def _clear(self) -> None:
        """Remove all work, and the record last: a kill in between leaves nothing that could be taken for another's."""
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        (self.out / "scan.json").unlink(missing_ok=True)

    # finished work ------------------------------------------------------------------------------------------

    def write_shard(
        self, shard: Shard, streams: dict[str, Stream], series: dict[str, Tensor], skipped: list[int]
    ) -> None:
        """Keep a finished shard; once this returns, a kill loses nothing of it."""
        kept = {**series, "skipped": torch.tensor(skipped, dtype=torch.int64)}
        write_with_checksum(self._path("series", shard.index), pack(kept))
        write_with_checksum(self._path("shard", shard.index), pack(to_tensors(streams)))

    def has_shard(self, shard: Shard, streams: dict[str, Stream]) -> bool:
        """Whether the shard is finished and undamaged; if so its streams are put into `streams`."""
        data = read_checked(self._path("shard", shard.index))
        if data is None or read_checked(self._path("series", shard.index)) is None:
            return False
        from_tensors(streams, parse(data))
        return True

    def write_part(self, name: str, shard: Shard, streams: dict[str, Stream]) -> None:
        """Keep a finished shard of a further round."""
        write_with_checksum(self._path(name, shard.index), pack(to_tensors(streams)))

    def has_part(self, name: str, shard: Shard, streams: dict[str, Stream]) -> bool:
        """Whether that shard of that round is finished; if so its streams are put into `streams`."""
        data = read_checked(self._path(name, shard.index))
        if data is not None:
            from_tensors(streams, parse(data))
        return data is not None

    def write_layer(self, layer: int, arrays: dict[str, Tensor]) -> None:
        """Keep what was computed from a layer's weights."""
        write_with_checksum(self._path("layer", layer), pack(arrays))

    def layer(self, layer: int) -> dict[str, Tensor] | None:
        """What was kept of a layer's weights, if it is finished and undamaged."""
        data = read_checked(self._path("layer", layer))
        return None if data is None else parse(data)

    def merged(self, streams: dict[str, Stream]) -> int:
        """Put the merged streams of the first shards into `streams`; returns how many shards they hold."""
        for path in sorted(self.work.glob("merged-?????"), reverse=True):
            count = int(path.name.removeprefix("merged-"))
            data = read_checked(path)
            if data is not None and all(read_checked(self._path("series", i)) is not None for i in range(count)):
                from_tensors(streams, parse(data))
                return count
        return 0

    def write_merged(self, count: int, streams: dict[str, Stream]) -> None:
        """Keep the merged streams of shards 0 .. count - 1, and drop the files they replace."""
        write_with_checksum(self._path("merged", count), pack(to_tensors(streams)))
        for path in self.work.glob("merged-?????"):
            if path != self._path("merged", count):
                remove_with_checksum(path)
        for index in range(count):
            remove_with_checksum(self._path("shard", index))

    def series(self, shards: list[Shard]) -> Iterator[dict[str, Tensor]]:
        """The series of every shard, in order, one in memory at a time."""
        for shard in shards:
            data = read_checked(self._path("series", shard.index))
            if data is None:
                raise ArmillaryError(f"{self._path('series', shard.index)} was damaged while the scan ran: scan again")
            yield parse(data)

    def _path(self, kind: str, index: int) -> Path:
        return self.work / f"{kind}-{index:05d}"


def to_tensors(streams: dict[str, Stream]) -> dict[str, Tensor]:
    """All states of all streams as contiguous tensors in main memory."""
    return {f"{name}/{key}": t.cpu().contiguous() for name, stream in streams.items() for key, t in stream.tensors()}


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
    found = []
    for key in sorted({*before, *now}):
        a, b = before.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += [f"{key} {line}" for line in differences(a, b)]
        elif a != b:
            found.append(f"{key}: was {a}, now {b}")
    return found
