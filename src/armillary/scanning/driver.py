"""Drives a scan: gives the shards of every pass to an engine, merges the results in order, writes the atlas."""

import pickle
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from armillary.anatomy.description import Anatomy
from armillary.atlas.arrays import Arrays
from armillary.engines.driving import drive
from armillary.engines.engine import Done, Engine, Task
from armillary.engines.packing import Data
from armillary.errors import ArmillaryError, brief
from armillary.files.atomic import write_problem
from armillary.observe.verified import versions
from armillary.progress import Progress
from armillary.scanning.folder import (
    MERGE_EVERY,
    PASS_FILES,
    FileKind,
    Part,
    Plan,
    ScanFolder,
    Shard,
    restore,
)
from armillary.scanning.folder import plan as plan_shards
from armillary.scanning.job import Facts, anatomy_through, vocabulary_through
from armillary.scanning.job import text_loss as loss_of
from armillary.scanning.options import ScanSettings
from armillary.scanning.parts import write_sequences
from armillary.scanning.passes import FurtherPasses, plan_further
from armillary.scanning.settings import as_record, shard_of, wanted_of
from armillary.scanning.spectra import groups_from_weights
from armillary.scanning.tasks import ShardWork
from armillary.scanning.vocabulary import add_matches, text_arrays, vocabulary_arrays
from armillary.scanning.writing import write_atlas
from armillary.streams.declaration import Pass
from armillary.streams.loops import compile_loops
from armillary.streams.stream import Stream
from armillary.streams.token_means import MEANT_TOKENS, TokenMeans
from armillary.streams.tokens import TOKENS
from armillary.text import loss as text_loss
from armillary.text.sequences import Sequences

FEW = 16
"""With fewer sequences a note says that positional shares cannot be trusted."""

FIRST_FILES = (FileKind.SERIES, FileKind.FIRST)
"""The files that a shard of the first pass leaves."""


@dataclass
class Run:
    """One scan: model, sequences, settings, engine and progress. With a `part`, only its shards, and no atlas."""

    engine: Engine
    facts: Facts
    sequences: Sequences
    settings: ScanSettings
    model_name: str
    corpus_name: str
    progress: Progress
    part: Part | None = None

    @property
    def shards(self) -> Plan:
        """All shards of the scan."""
        return plan_shards(len(self.sequences.tokens), shard_of(self.settings))

    def into(
        self, folder: Path, *, resume: bool, overwrite: bool, adopted: dict[int, ScanFolder] | None = None
    ) -> None:
        """Run the unfinished shards, merge all shards in their order, write the atlas.

        `adopted`: folders that already hold finished shards, by shard index.
        """
        description = self.description()
        shards = self.shards if self.part is None else self.part.shards(self.shards)
        with ScanFolder(folder) as place:
            if place.begin(description, resume=resume, overwrite=overwrite):
                return
            for index, other in (adopted or {}).items():
                place.adopt(FIRST_FILES, index, other)
            if self.facts.device == "cpu":
                compile_loops(self.progress.note)  # workers load what is compiled here
            if self.part is not None:
                self._run_part(place, shards)
                return
            anatomy = anatomy_through(self.engine, self.facts)
            merged = self._first_pass(place, shards, anatomy)
            plan = self._plan_further(place, shards, merged, anatomy)
            if plan.to_run(anatomy):
                place.write_merged(len(shards), merged)
                merged |= self._further_passes(place, plan, anatomy)
            from_weights, notes = groups_from_weights(anatomy, merged)
            if TOKENS.name in self.settings["streams"]:
                arrays, unwritten = self._vocabulary(anatomy, plan, merged)
                from_weights |= {"vocabulary": arrays} if arrays else {}
                notes += unwritten
            about = {**description, **self._about(notes)}
            try:
                write_atlas(place, shards, merged, from_weights, anatomy, self.sequences, about, versions())
            except OSError as error:
                shutil.rmtree(place.work / "atlas.zarr", ignore_errors=True)
                raise ArmillaryError(write_problem(place.atlas, error)) from error

    def _run_part(self, place: ScanFolder, shards: Sequence[Shard]) -> None:
        """Run the shards of a part without merging them, and store its sequences for `merge`."""
        write_sequences(place, self.sequences, shards[0].first, shards[-1].last)
        self._begin_progress(shards, 0)
        drive(self.engine, _FirstPass(self, place, shards, None), self.progress, len(shards))

    def _first_pass(self, place: ScanFolder, shards: Sequence[Shard], anatomy: Anatomy) -> dict[str, Stream]:
        merged = wanted_of(self.settings).first_streams(anatomy)
        done = place.merged(merged)
        self._begin_progress(shards, done)
        drive(self.engine, _FirstPass(self, place, shards[done:], merged), self.progress, MERGE_EVERY)
        if merged and not any(stream.states for stream in merged.values()):
            raise ArmillaryError("every sequence of this corpus gives NaN or infinite numbers")
        return merged

    def _begin_progress(self, shards: Sequence[Shard], done: int) -> None:
        tokens = (shards[-1].last - shards[0].first) * self.sequences.tokens.shape[1]
        finished = shards[done - 1].last - shards[0].first if done else 0
        self.progress.begin(
            "scanning", tokens, "tokens", done=finished * self.sequences.tokens.shape[1], pieces=len(shards), saved=done
        )
        for note in (*self.notes(), self.facts.anatomy.missing):
            if note:
                self.progress.note(note)

    def notes(self) -> list[str]:
        """What a reader of the numbers should know about the text."""
        count, length = self.sequences.tokens.shape
        few = f"{count} sequences are few: means by position still contain content, so positional shares are too large"
        long = self.facts.anatomy.too_long(length)
        about_text = [*([few] if count < FEW else []), *([long] if long else [])]
        return [*self.sequences.notes, *about_text, *text_loss.notes(self.loss)]

    @cached_property
    def loss(self) -> dict[str, Any] | None:
        """How well the model predicts this text; measured once, on a few sequences."""
        return loss_of(self.engine, self.facts, self.sequences)

    def _about(self, notes: list[str]) -> dict[str, Any]:
        """Where the text comes from, its length against the model's, its loss; with further `notes`."""
        length, made_for = self.sequences.tokens.shape[1], self.facts.anatomy.max_positions
        beyond = made_for is not None and length > made_for
        text = {"sources": list(self.sequences.sources), "made_for": made_for, "longer_than_made_for": beyond}
        special = {"before": list(self.sequences.before), "after": list(self.sequences.after)}
        return {"text": {**text, **special}, "loss": self.loss, "notes": [*self.notes(), *notes]}

    def _plan_further(
        self, place: ScanFolder, shards: Sequence[Shard], first: dict[str, Stream], anatomy: Anatomy
    ) -> FurtherPasses:
        """The passes after the first, on sequences that gave finite numbers."""
        settings = self.settings
        return plan_further(
            wanted_of(settings),
            anatomy,
            self._finite_sequences(place, shards),
            first,
            sample=settings["second_pass"],
            seed=settings["seed"],
            vocabulary=self.sequences.vocabulary,
        )

    def _finite_sequences(self, place: ScanFolder, shards: Sequence[Shard]) -> Any:
        skipped = [int(sequence) for series in place.series(shards) for sequence in series["skipped"]]
        return np.delete(self.sequences.tokens, skipped, axis=0)

    def _further_passes(self, place: ScanFolder, plan: FurtherPasses, anatomy: Anatomy) -> dict[str, Stream]:
        """The merged streams of all further passes; shards of different passes may run at the same time."""
        work = _FurtherPasses(self, place, plan, anatomy)
        self.progress.begin("scanning", work.tokens, "tokens", pieces=len(work))
        self.engine.share(pickle.dumps(plan.for_workers()))
        drive(self.engine, work, self.progress, MERGE_EVERY)
        return work.merged

    def _vocabulary(self, anatomy: Anatomy, plan: FurtherPasses, merged: dict[str, Stream]) -> tuple[Arrays, list[str]]:
        """What heads write and match, in tokens, and the texts of tokens; with a note where the first is not known."""
        words = self.sequences.vocabulary
        if anatomy.missing:
            return text_arrays(words) if words else {}, []
        layers = vocabulary_through(self.engine, self.settings["seed"])
        if isinstance(layers, str):
            return text_arrays(words) if words else {}, [f"what heads write, in tokens, is not known: {layers}"]
        means = merged.get("tokens.mean")
        if means is not None:
            by_layer = {layer: TokenMeans.means(state) for layer, state in means.states.items()}
            add_matches(anatomy, layers, by_layer, plan.read_tokens[:MEANT_TOKENS])
        return vocabulary_arrays(layers, words), []

    def description(self) -> dict[str, Any]:
        """Everything that the numbers depend on; a resumed scan must have the same."""
        whole = {
            "model": {
                "name": self.model_name,
                "weights": self.facts.weights,
                "config": self.facts.config,
                "dtype": self.facts.dtype,
                "family": self.facts.anatomy.family,
                **({"revision": self.facts.revision} if self.facts.revision else {}),
                **({"adapter": self.facts.adapter} if self.facts.adapter else {}),
            },
            "corpus": {"name": self.corpus_name, "sha256": self.sequences.sha256},
            "settings": as_record(self.settings),
        }
        return whole if self.part is None else {**whole, "part": {"number": self.part.number, "of": self.part.of}}


class _FirstPass:
    """The shards of the first pass; without `merged` they are stored and not merged."""

    def __init__(self, run: Run, place: ScanFolder, shards: Sequence[Shard], merged: dict[str, Stream] | None) -> None:
        self._run, self._place, self._shards, self._merged = run, place, shards, merged
        self._fresh: tuple[int, Data] | None = None

    def __len__(self) -> int:
        return len(self._shards)

    def task(self, position: int) -> Task:
        shard = self._shards[position]
        tokens = self._run.sequences.tokens[shard.first : shard.last]
        return Task(ShardWork(Pass.FIRST, shard, tokens, self._run.settings))

    def units(self, position: int) -> int:
        shard = self._shards[position]
        return (shard.last - shard.first) * int(self._run.sequences.tokens.shape[1])

    def failure(self, position: int, step: int | None, why: str, tries: int) -> ArmillaryError:
        return shard_failure(self._shards[position], Pass.FIRST, step, why, tries)

    def has(self, position: int) -> bool:
        return self._place.holds(FIRST_FILES, self._shards[position].index)

    def keep(self, position: int, done: Done) -> None:
        self._place.keep(self._shards[position].index, done.files)
        self._fresh = position, done.files[FileKind.FIRST]

    def merge(self, position: int) -> None:
        shard = self._shards[position]
        if self._merged is not None:
            fresh, self._fresh = self._fresh, None
            data = fresh[1] if fresh and fresh[0] == position else self._place.read(FileKind.FIRST, shard.index)
            streams = {name: Stream(stream.statistic) for name, stream in self._merged.items()}
            path = self._place.path(FileKind.FIRST, shard.index)
            restore(streams, path, data)
            del data, fresh
            _join(self._merged, streams, path)
        self._run.progress.piece_merged(shard.index)
        if self._merged is not None and (shard.index + 1) % MERGE_EVERY == 0:
            self._place.write_merged(shard.index + 1, self._merged)


class _FurtherPasses:
    """The shards of all further passes, one pass after the other."""

    def __init__(self, run: Run, place: ScanFolder, plan: FurtherPasses, anatomy: Anatomy) -> None:
        self._run, self._place, self._plan, self._anatomy = run, place, plan, anatomy
        passes = plan.to_run(anatomy)
        self._shards = [
            (when, shard)
            for when in passes
            for shard in plan_shards(len(plan.tokens[when]), 1 if when is Pass.SOURCES else shard_of(run.settings))
        ]
        self.tokens = sum(plan.tokens[when].size for when in passes)
        self.merged = {name: stream for when in passes for name, stream in plan.streams(when, anatomy).items()}

    def __len__(self) -> int:
        return len(self._shards)

    def task(self, position: int) -> Task:
        when, shard = self._shards[position]
        tokens = self._plan.tokens[when][shard.first : shard.last]
        return Task(ShardWork(when, shard, tokens, self._run.settings))

    def units(self, position: int) -> int:
        when, shard = self._shards[position]
        return int(self._plan.tokens[when][shard.first : shard.last].size)

    def failure(self, position: int, step: int | None, why: str, tries: int) -> ArmillaryError:
        when, shard = self._shards[position]
        return shard_failure(shard, when, step, why, tries)

    def has(self, position: int) -> bool:
        when, shard = self._shards[position]
        return self._place.holds((PASS_FILES[when],), shard.index)

    def keep(self, position: int, done: Done) -> None:
        self._place.keep(self._shards[position][1].index, done.files)

    def merge(self, position: int) -> None:
        when, shard = self._shards[position]
        streams = self._plan.streams(when, self._anatomy)
        path = self._place.path(PASS_FILES[when], shard.index)
        restore(streams, path, self._place.read(PASS_FILES[when], shard.index))
        _join(self.merged, streams, path)


def shard_failure(shard: Shard, when: Pass, step: int | None, why: str, tries: int) -> ArmillaryError:
    """The error for a shard that fails on every worker: on sequence `step`, if known."""
    first, last = shard.first, shard.last - 1
    which = "" if when is Pass.FIRST else f" of the pass {when.name.lower()!r}"
    at = f"sequence {step}{which} cannot be run" if step is not None else f"sequences {first} to {last}{which} fail"
    failed = why if tries == 1 else f"shard {shard.index} (sequences {first} to {last}) failed {tries} times ({why})"
    return ArmillaryError(
        f"{at}: {failed}; finished work is kept",
        advice="inspect that sequence, or leave its text out; then continue with `resume=True`",
    )


def _join(merged: dict[str, Stream], streams: dict[str, Stream], path: Path) -> None:
    """Merge the streams of one shard, read from `path`, into `merged`; each is freed once merged."""
    try:
        for name in list(streams):
            merged[name].merge(streams.pop(name))
    except (KeyError, RuntimeError) as error:
        raise ArmillaryError(
            f"{path} does not fit the shards before it ({brief(error)})", advice="scan again with `overwrite=True`"
        ) from error
