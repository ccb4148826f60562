"""A scan as its driver sees it: rounds of shards, given to an engine, merged in their order, written as an atlas."""

import json
import pickle
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from armillary import text_loss
from armillary.anatomy.description import Anatomy
from armillary.atlas_writing import write_atlas
from armillary.collector import new_streams
from armillary.corpus import Blocks
from armillary.engines.driving import drive
from armillary.engines.engine import Done, Engine, Task
from armillary.engines.scan_job import FIRST, Facts, ShardBlocks, anatomy_through, further
from armillary.engines.scan_job import text_loss as loss_of
from armillary.errors import ArmillaryError, brief
from armillary.files import read_checked, write_problem, write_with_checksum
from armillary.packing import Data, Packed
from armillary.passes import Pass, further_passes
from armillary.progress import Progress
from armillary.records import parse_record
from armillary.settings import ScanSettings
from armillary.shards import MERGE_EVERY, Part, Plan, ScanFolder, Shard, plan, restore, unpack_file
from armillary.streams import Stream
from armillary.verified import versions

FEW = 16
"""With fewer sequences a note says that positional shares cannot be trusted."""

FIRST_FILES = ("series", FIRST)
"""What a shard of the first round leaves."""


@dataclass
class Run:
    """One scan: what is scanned, how, by whom, and who is told. With a `part`, only its shards, and no atlas."""

    engine: Engine
    facts: Facts
    blocks: Blocks
    settings: ScanSettings
    model_name: str
    corpus_name: str
    progress: Progress
    part: Part | None = None

    @property
    def shards(self) -> Plan:
        """All shards of the scan."""
        return plan(len(self.blocks.tokens), self.settings.shard)

    def into(
        self, folder: Path, *, resume: bool, overwrite: bool, adopted: dict[int, ScanFolder] | None = None
    ) -> None:
        """Run what is not finished yet, merge the shards in their order, write the atlas.

        `adopted` says which shards other folders hold, finished.
        """
        description = self.description()
        shards = self.shards if self.part is None else self.part.shards(self.shards)
        with ScanFolder(folder) as place:
            if place.begin(description, resume=resume, overwrite=overwrite):
                return
            for index, other in (adopted or {}).items():
                place.adopt(FIRST_FILES, index, other)
            if self.part is not None:
                self._run_part(place, shards)
                return
            anatomy = anatomy_through(self.engine, self.facts)
            merged = self._first_round(place, shards, anatomy)
            passes = self._passes(place, shards, merged, anatomy)
            if passes:
                place.write_merged(len(shards), merged)
                merged |= self._further_rounds(place, passes, merged, shards)
            try:
                write_atlas(place, shards, merged, anatomy, self.blocks, {**description, **self._about()}, versions())
            except OSError as error:
                shutil.rmtree(place.work / "atlas.zarr", ignore_errors=True)
                raise ArmillaryError(write_problem(place.atlas, error)) from error

    def _run_part(self, place: ScanFolder, shards: Sequence[Shard]) -> None:
        """The shards of a part, and its blocks; what merges them wants each by itself."""
        write_blocks(place, self.blocks, shards[0].first, shards[-1].last)
        self._tell(shards, 0)
        drive(self.engine, _FirstRound(self, place, shards, None), self.progress, len(shards))

    def _first_round(self, place: ScanFolder, shards: Sequence[Shard], anatomy: Anatomy) -> dict[str, Stream]:
        merged = new_streams(self.settings.wanted(), anatomy)
        done = place.merged(merged)
        self._tell(shards, done)
        drive(self.engine, _FirstRound(self, place, shards[done:], merged), self.progress, MERGE_EVERY)
        if merged and not any(stream.states for stream in merged.values()):
            raise ArmillaryError("every block of this corpus gives NaN or infinite numbers: there is nothing to keep")
        return merged

    def _tell(self, shards: Sequence[Shard], done: int) -> None:
        tokens = (shards[-1].last - shards[0].first) * self.blocks.tokens.shape[1]
        self.progress.begin(len(shards), done, tokens)
        for note in (*self.notes(), self.facts.anatomy.missing):
            if note:
                self.progress.note(note)

    def notes(self) -> list[str]:
        """What a reader of the numbers should know of the text."""
        count, length = self.blocks.tokens.shape
        few = f"{count} sequences are few: means by position then hold content too, and positional shares are too large"
        long = self.facts.anatomy.too_long(length)
        about_text = [*([few] if count < FEW else []), *([long] if long else [])]
        return [*self.blocks.notes, *about_text, *text_loss.notes(self.loss)]

    @cached_property
    def loss(self) -> dict[str, Any] | None:
        """How well the model predicts this text; asked once, of a few blocks."""
        return loss_of(self.engine, self.facts, self.blocks)

    def _about(self) -> dict[str, Any]:
        """Where the text comes from, and how it suits the model."""
        length, made_for = self.blocks.tokens.shape[1], self.facts.anatomy.max_positions
        beyond = made_for is not None and length > made_for
        text = {"sources": list(self.blocks.sources), "made_for": made_for, "longer_than_made_for": beyond}
        around = {"before": list(self.blocks.before), "after": list(self.blocks.after)}
        return {"text": {**text, **around}, "loss": self.loss, "notes": self.notes()}

    def _passes(
        self, place: ScanFolder, shards: Sequence[Shard], first: dict[str, Stream], anatomy: Anatomy
    ) -> list[Pass]:
        """The rounds after the first, on blocks that gave numbers."""
        return further_passes(
            self.settings.wanted(),
            anatomy,
            self._good(place, shards),
            first,
            sample=self.settings.second_pass,
            seed=self.settings.seed,
        )

    def _good(self, place: ScanFolder, shards: Sequence[Shard]) -> Any:
        skipped = [int(block) for series in place.series(shards) for block in series["skipped"]]
        return np.delete(self.blocks.tokens, skipped, axis=0)

    def _further_rounds(
        self, place: ScanFolder, passes: list[Pass], first: dict[str, Stream], shards: Sequence[Shard]
    ) -> dict[str, Stream]:
        """The merged streams of all further rounds; their shards run side by side."""
        work = _FurtherRounds(self, place, passes)
        self.progress.begin(len(work), 0, sum(one.tokens.size for one in passes))
        self.engine.share(pickle.dumps(further(self.settings, self._good(place, shards), first)))
        drive(self.engine, work, self.progress, MERGE_EVERY)
        return work.merged

    def description(self) -> dict[str, Any]:
        """What the numbers depend on; a resumed scan must agree with it."""
        whole = {
            "model": {
                "name": self.model_name,
                "weights": self.facts.weights,
                "config": self.facts.config,
                "dtype": self.facts.dtype,
                "family": self.facts.anatomy.family,
            },
            "corpus": {"name": self.corpus_name, "sha256": self.blocks.sha256},
            "settings": self.settings.as_dict(),
        }
        return whole if self.part is None else {**whole, "part": {"number": self.part.number, "of": self.part.of}}


class _FirstRound:
    """Shards of the corpus; without `merged` they are only kept."""

    def __init__(self, run: Run, place: ScanFolder, shards: Sequence[Shard], merged: dict[str, Stream] | None) -> None:
        self._run, self._place, self._shards, self._merged = run, place, shards, merged
        self._fresh: tuple[int, Data] | None = None

    def __len__(self) -> int:
        return len(self._shards)

    def task(self, position: int) -> Task:
        shard = self._shards[position]
        tokens = self._run.blocks.tokens[shard.first : shard.last]
        return Task(FIRST, shard, ShardBlocks(tokens, self._run.settings))

    def has(self, position: int) -> bool:
        return self._place.holds(FIRST_FILES, self._shards[position].index)

    def keep(self, position: int, done: Done) -> None:
        self._place.keep(self._shards[position].index, done.files)
        self._fresh = position, done.files[FIRST]

    def merge(self, position: int) -> None:
        shard = self._shards[position]
        if self._merged is not None:
            fresh, self._fresh = self._fresh, None
            kept = fresh[1] if fresh and fresh[0] == position else self._place.read(FIRST, shard.index)
            streams = {name: Stream(stream.statistic) for name, stream in self._merged.items()}
            path = self._place.path(FIRST, shard.index)
            restore(streams, path, kept)
            del kept, fresh
            _join(self._merged, streams, path)
        self._run.progress.shard_done(shard)
        if self._merged is not None and (shard.index + 1) % MERGE_EVERY == 0:
            self._place.write_merged(shard.index + 1, self._merged)


class _FurtherRounds:
    """The shards of all further rounds, one round after the other."""

    def __init__(self, run: Run, place: ScanFolder, passes: list[Pass]) -> None:
        self._run, self._place = run, place
        self._parts = [(one, part) for one in passes for part in plan(len(one.tokens), run.settings.shard)]
        self.merged = {name: stream for one in passes for name, stream in one.streams().items()}

    def __len__(self) -> int:
        return len(self._parts)

    def task(self, position: int) -> Task:
        one, part = self._parts[position]
        return Task(one.name, part, ShardBlocks(one.tokens[part.first : part.last], self._run.settings))

    def has(self, position: int) -> bool:
        one, part = self._parts[position]
        return self._place.holds((one.name,), part.index)

    def keep(self, position: int, done: Done) -> None:
        self._place.keep(self._parts[position][1].index, done.files)

    def merge(self, position: int) -> None:
        one, part = self._parts[position]
        streams = one.streams()
        path = self._place.path(one.name, part.index)
        restore(streams, path, self._place.read(one.name, part.index))
        _join(self.merged, streams, path)


def _join(merged: dict[str, Stream], streams: dict[str, Stream], path: Path) -> None:
    """Take in what a file of finished work held; it is let go stream by stream."""
    try:
        for name in list(streams):
            merged[name].merge(streams.pop(name))
    except (KeyError, RuntimeError) as error:
        raise ArmillaryError(
            f"{path} does not go with the shards before it ({brief(error)}): scan again with --overwrite"
        ) from error


class DocumentsRecord(TypedDict):
    """What work/documents says about the blocks beside it."""

    documents: list[str]
    by_document: bool
    notes: list[str]
    sources: list[dict[str, Any]]
    before: list[int]
    after: list[int]
    begin: int | None
    token_names: dict[str, str]


def write_blocks(place: ScanFolder, blocks: Blocks, first: int, last: int) -> None:
    """Keep the blocks first .. last - 1 beside their shards, so that merging needs no text and no tokenizer."""
    kept = {
        "tokens": torch.from_numpy(blocks.tokens[first:last].copy()),
        "document": torch.from_numpy(blocks.document[first:last].copy()),
    }
    about = {
        "documents": blocks.documents,
        "by_document": blocks.by_document,
        "notes": blocks.notes,
        "sources": blocks.sources,
        "token_names": blocks.token_names,
        "before": blocks.before,
        "after": blocks.after,
        "begin": blocks.begin,
    }
    write_with_checksum(place.work / "blocks", Packed(kept).pieces())
    write_with_checksum(place.work / "documents", [json.dumps(about).encode()])


def read_blocks_of(places: list[ScanFolder]) -> Blocks:
    """The blocks that parts have kept, joined in the order of these folders."""
    found, about = [], None
    for place in places:
        kept, told = read_checked(place.work / "blocks"), read_checked(place.work / "documents")
        if kept is None or told is None:
            raise ArmillaryError(f"{place.out} lacks its blocks, or they are damaged: scan this part again")
        remedy = "scan this part again"
        found.append(_checked_blocks(place.work / "blocks", unpack_file(place.work / "blocks", kept)))
        about = parse_record(told, DocumentsRecord, str(place.work / "documents"), remedy)
    assert about is not None
    tokens, document = (torch.cat([one[name] for one in found]).numpy() for name in ("tokens", "document"))
    if document.min() < 0 or document.max() >= len(about["documents"]):
        raise ArmillaryError("the blocks of these parts name documents that there are not: scan the parts again")
    return Blocks(
        tokens,
        document,
        tuple(about["documents"]),
        about["by_document"],
        tuple(about["notes"]),
        tuple(about["sources"]),
        about["token_names"],
        tuple(about["before"]),
        tuple(about["after"]),
        about["begin"],
    )


def _checked_blocks(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The blocks of a part: whole numbers, a row for each."""
    tokens, document = tensors.get("tokens"), tensors.get("document")
    if (
        tokens is None
        or document is None
        or {tokens.dtype, document.dtype} != {torch.int64}
        or (tokens.dim(), document.dim()) != (2, 1)
        or len(tokens) != len(document)
        or not tokens.numel()
    ):
        raise ArmillaryError(f"{path} does not hold blocks of tokens: scan this part again")
    return tensors
