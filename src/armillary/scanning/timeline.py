"""Makes a timeline: scans every checkpoint of a model on the same tokens, and stacks the tables in one store."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from jaxtyping import Shaped

from armillary.anatomy.description import Anatomy
from armillary.anatomy.identity import folder_identity
from armillary.anatomy.loading import tokenizer_of
from armillary.anatomy.options import ModelOptions, complete, keywords, of
from armillary.anatomy.source import describe
from armillary.atlas.timelines.rows import CheckpointFacts, CheckpointRows, rows_of
from armillary.atlas.timelines.store import write_timeline
from armillary.atlas.timelines.timeline import STORE, Timeline, open_timeline
from armillary.engines import opened
from armillary.engines.engine import Engine
from armillary.errors import ArmillaryError, brief
from armillary.files.hashes import file_hash
from armillary.files.records import read_record
from armillary.machine.temporary import temporary_folder
from armillary.observe.verified import versions
from armillary.progress import Progress
from armillary.scanning.checkpoints import Checkpoint, Series, find_checkpoints, logged, read_loss, tokens_per_step
from armillary.scanning.job import Facts, ScanJob
from armillary.scanning.options import ScanOptions, ScanSettings, TimelineOptions
from armillary.scanning.scan import Corpus, corpus_name, needs_tokenizer, scan_sequences, sequences_of, settings_for
from armillary.scanning.settings import as_record
from armillary.scanning.timeline_folder import TimelineFolder, disk_use
from armillary.text.loss import chosen_loss
from armillary.text.sequences import Sequences, check_corpus

TRIES = 2
"""A checkpoint that fails is tried once more."""


@keywords(TimelineOptions)
def timeline(
    *sources: str | Path,
    corpus: Corpus = "builtin:prose",
    out: str | Path | None = None,
    revisions: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    keep_atlases: bool = False,
    tokenizer: Any = None,
    **options: Unpack[TimelineOptions],
) -> Timeline:
    """Scan every checkpoint on the same tokens with the same settings, and return their Timeline, kept in `out`.

    `sources`: a training run's folder (out: RUN/timeline), a hub id with `revisions`, or several folders. Checkpoints
    with the same weights are scanned once. One that fails is tried once more, then recorded; the others go on. Started
    again, a timeline continues: it tries failed checkpoints again and adds new ones. `columns`: only these columns of
    heads and layers, with the label. Without `out`, several folders are kept until the program ends. The other
    parameters are those of `scan`.
    """
    chosen: TimelineOptions = complete(options, TimelineOptions, "timeline")
    series = find_checkpoints(sources, revisions)
    if chosen["revision"] is not None:
        raise ArmillaryError("a timeline has several revisions", advice="name them with `revisions`")
    if out is None:
        out = series.run / "timeline" if series.run is not None else temporary_folder() / "timeline"
    progress = chosen["progress"] or Progress()
    engine_options = (chosen["engine"], chosen["workers"], chosen["threads"], chosen["address"])
    work = _Timeline(series, corpus, tokenizer, chosen, columns, keep_atlases, progress)
    with TimelineFolder(Path(out)) as folder:
        folder.begin(work.description, overwrite=chosen["overwrite"])
        with opened(*engine_options) as engine:
            work.into(folder, engine)
    return open_timeline(out)


class CheckpointProgress(Progress):
    """Passes progress on under a checkpoint's name, without the notes of its scan, which every checkpoint repeats."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def begin(self, what: str, total: int, unit: str, *, done: int = 0, pieces: int = 0, saved: int = 0) -> None:
        self._progress.begin(self._name, total, unit, done=done, pieces=pieces, saved=saved)

    def advance(self, count: int = 1, worker: object = None) -> None:
        self._progress.advance(count, worker)

    def status(self, words: str) -> None:
        self._progress.status(words)

    def piece_saved(self) -> None:
        self._progress.piece_saved()

    def piece_merged(self, index: int) -> None:
        self._progress.piece_merged(index)


@dataclass
class _Timeline:
    """One timeline: its checkpoints, text and settings."""

    series: Series
    corpus: Corpus
    tokenizer: Any
    options: TimelineOptions
    columns: Sequence[str] | None
    keep_atlases: bool
    progress: Progress
    failed: list[dict[str, Any]] = field(default_factory=list)
    largest: int = 0
    """Bytes of the largest atlas that was removed."""
    tokenizers: dict[str, str] = field(default_factory=dict)
    """By the hash of a tokenizer's file: the hash of the text that it gives."""

    @cached_property
    def anatomy(self) -> Anatomy:
        """Of the first checkpoint that can be described."""
        error = ArmillaryError("there is no checkpoint")
        for checkpoint in self.series.checkpoints:
            try:
                return describe(
                    checkpoint.source,
                    revision=checkpoint.revision,
                    trust_remote_code=self.options["trust_remote_code"],
                )
            except ArmillaryError as problem:
                error = problem
        raise error

    @cached_property
    def settings(self) -> ScanSettings:
        """The settings of every scan; the shard's size follows from the model, which all checkpoints share."""
        return settings_for(self.options, self.corpus, self.anatomy.max_positions)

    @cached_property
    def sequences(self) -> Sequences:
        """The text, tokenized once for all checkpoints, by the tokenizer of the first that has one."""
        if self.tokenizer is None and needs_tokenizer(self.corpus):
            check_corpus(self.corpus)  # type: ignore[arg-type]
            self.tokenizer = self._tokenizer()
        return sequences_of(self.corpus, self.tokenizer, self.settings, self.anatomy.vocabulary)

    def _tokenizer(self) -> Any:
        error = ArmillaryError("there is no checkpoint")
        for checkpoint in self.series.checkpoints:
            try:
                return tokenizer_of(checkpoint.source, self._model_options(checkpoint))
            except ArmillaryError as problem:
                error = problem
        raise error

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the numbers depend on besides the checkpoints; a continued timeline must have the same."""
        return {
            "corpus": {"name": corpus_name(self.corpus), "sha256": self.sequences.sha256},
            "settings": as_record(self.settings),
            "columns": None if self.columns is None else list(self.columns),
            "dtype": str(self.options["dtype"]),
            "adapter": None if self.options["adapter"] is None else str(self.options["adapter"]),
        }

    def into(self, folder: TimelineFolder, engine: Engine) -> None:
        """Measure every checkpoint that is not measured yet, and write the store."""
        every: dict[str, CheckpointRows] = {}
        for number, checkpoint in enumerate(self.series.checkpoints, 1):
            rows = self._known(checkpoint, folder) or self._tried(checkpoint, number, folder, engine, every)
            if rows is not None:
                every[checkpoint.name] = rows
        if not every:
            raise ArmillaryError(f"no checkpoint could be scanned: {self.failed[0]['name']}: {self.failed[0]['why']}")
        write_timeline(folder.out, list(every.values()), self._about(every), self.log)
        folder.done()
        if not self.keep_atlases:
            shutil.rmtree(folder.out / "atlases", ignore_errors=True)
        self._say_disk_use(folder)

    def _known(self, checkpoint: Checkpoint, folder: TimelineFolder) -> CheckpointRows | None:
        """The rows of an earlier run, if the checkpoint is still the same."""
        rows = folder.rows(checkpoint.name)
        if rows is None or rows.facts["identity"] != self._identity(checkpoint):
            return None
        return rows.under(**self._from_log(checkpoint))

    def _tried(
        self,
        checkpoint: Checkpoint,
        number: int,
        folder: TimelineFolder,
        engine: Engine,
        earlier: dict[str, CheckpointRows],
    ) -> CheckpointRows | None:
        """The rows of a checkpoint, or None with a record of why there are none."""
        why = ""
        for attempt in range(TRIES):
            try:
                return self._measured(checkpoint, number, folder, engine, earlier)
            except Exception as error:  # whatever is wrong with one checkpoint, the others go on
                why = str(error) if isinstance(error, ArmillaryError) else f"{type(error).__name__}: {brief(error)}"
                again = "trying once more" if attempt + 1 < TRIES else "it is left out; the next run tries it again"
                self.progress.note(f"{checkpoint.name} cannot be scanned ({why}): {again}")
        self.failed.append({"name": checkpoint.name, "step": checkpoint.step, "why": why})
        return None

    def _measured(
        self,
        checkpoint: Checkpoint,
        number: int,
        folder: TimelineFolder,
        engine: Engine,
        earlier: dict[str, CheckpointRows],
    ) -> CheckpointRows:
        """Scan a checkpoint, or take the rows of an earlier one with the same weights; saved either way."""
        identity = self._identity(checkpoint)
        same = next((rows for rows in earlier.values() if rows.facts["identity"] == identity), None)
        if same is None:
            facts = engine.start(ScanJob(checkpoint.source, self._model_options(checkpoint)))
            same = next((rows for rows in earlier.values() if _is_same(rows.facts, facts)), None)
        if same is None:
            self._refuse_other_tokens(checkpoint)
        if same is not None:
            first = same.facts.get("same_as") or same.facts["name"]
            self.progress.note(f"{checkpoint.name} has the same weights as {first}: it is not scanned again")
            rows = same.under(**self._own_facts(checkpoint, identity), same_as=first)
        else:
            rows = self._scanned(checkpoint, number, folder, engine, facts, identity)
            if earlier:
                _refuse_other_shape(rows, next(iter(earlier.values())))
        folder.keep(rows)
        if not self.keep_atlases:
            self.largest = max(self.largest, disk_use(folder.atlas(checkpoint.name)))
            shutil.rmtree(folder.atlas(checkpoint.name), ignore_errors=True)
        return rows

    def _refuse_other_tokens(self, checkpoint: Checkpoint) -> None:
        """Raise if the checkpoint's own tokenizer, where its file is another one, cuts the text into other tokens."""
        own = Path(checkpoint.source).expanduser() / "tokenizer.json"
        if not needs_tokenizer(self.corpus) or not own.is_file():
            return
        digest = file_hash(own)
        if digest not in self.tokenizers:
            tokenizer = tokenizer_of(checkpoint.source, self._model_options(checkpoint))
            read = sequences_of(self.corpus, tokenizer, self.settings, self.anatomy.vocabulary)
            self.tokenizers[digest] = read.sha256
        if self.tokenizers[digest] != self.sequences.sha256:
            raise ArmillaryError("its tokenizer gives other tokens for this text: a timeline needs the same tokens")

    def _scanned(
        self,
        checkpoint: Checkpoint,
        number: int,
        folder: TimelineFolder,
        engine: Engine,
        facts: Facts,
        identity: str,
    ) -> CheckpointRows:
        place = folder.atlas(checkpoint.name)
        name = f"{checkpoint.name} ({number} of {len(self.series.checkpoints)})"
        options: Any = {
            **self.settings,
            **self._model_options(checkpoint),
            "engine": engine,
            "progress": CheckpointProgress(self.progress, name),
            "resume": True,
            "overwrite": _is_other(place, facts),
        }
        scan_options: ScanOptions = options
        atlas = scan_sequences(checkpoint.source, self.sequences, self.corpus, place, self.tokenizer, scan_options)
        text = atlas.attrs["corpus"]["sha256"]
        if text != self.sequences.sha256:
            raise ArmillaryError(f"{checkpoint.name} was scanned on other tokens")
        described: Any = {
            **self._own_facts(checkpoint, identity),
            "weights": facts.weights,
            "config": facts.config,
            "dtype": facts.dtype,
            "text": text,
            "loss": chosen_loss(atlas.attrs.get("loss")),
            "revision": facts.revision,
            "same_as": None,
        }
        return rows_of(atlas, described, self.columns)

    def _own_facts(self, checkpoint: Checkpoint, identity: str) -> dict[str, Any]:
        """What is known of a checkpoint without running it."""
        source = checkpoint.source if checkpoint.revision is None else f"{checkpoint.source}@{checkpoint.revision}"
        if self.series.run is not None:
            source = Path(source).relative_to(self.series.run).as_posix()
        return {
            "name": checkpoint.name,
            "step": checkpoint.step,
            "source": source,
            "identity": identity,
            **self._from_log(checkpoint),
        }

    def _from_log(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """What the run says about a step: loss, held-out loss, tokens."""
        per_step = self.tokens_per_step
        return {
            "logged_loss": logged(self.log, "loss", checkpoint.step),
            "held_out_loss": logged(self.log, "held_out", checkpoint.step),
            "tokens": None if per_step is None or checkpoint.step is None else per_step * checkpoint.step,
        }

    @cached_property
    def log(self) -> dict[str, Shaped[np.ndarray, "row"]] | None:
        """The log of the run, as it was when the timeline began."""
        return read_loss(self.series.run)

    @cached_property
    def tokens_per_step(self) -> int | None:
        return tokens_per_step(self.series.run)

    def _identity(self, checkpoint: Checkpoint) -> str:
        """What distinguishes a checkpoint without loading it: the bytes of its files, or its hub id and revision."""
        if checkpoint.revision is not None or not Path(checkpoint.source).expanduser().exists():
            return f"{checkpoint.source}@{checkpoint.revision}"
        adapter, trusted = self.options["adapter"], self.options["trust_remote_code"]
        return folder_identity(checkpoint.source, adapter=adapter, trust_remote_code=trusted)

    def _model_options(self, checkpoint: Checkpoint) -> ModelOptions:
        options: Any = {**of(ModelOptions, self.options), "revision": checkpoint.revision}
        chosen: ModelOptions = options
        return chosen

    def _about(self, every: dict[str, CheckpointRows]) -> dict[str, Any]:
        first = next(iter(every.values()))
        same = [rows.facts["name"] for rows in every.values() if rows.facts.get("same_as")]
        notes = [f"{name} has the same weights as {every[name].facts['same_as']}" for name in same]
        notes += [f"{entry['name']} could not be scanned: {entry['why']}" for entry in self.failed]
        title = self.series.title or first.facts["name"]
        layers, heads = first.shape
        model = {"title": title, "family": self.anatomy.family, "layers": layers, "heads": heads}
        return {
            "model": model,
            **{name: self.description[name] for name in ("corpus", "settings", "columns")},
            "failed": self.failed,
            "notes": notes,
            "versions": versions(),
        }

    def _say_disk_use(self, folder: TimelineFolder) -> None:
        said = f"the timeline has {disk_use(folder.out / STORE) / 1e6:.2f} MB"
        atlases = disk_use(folder.out / "atlases") / 1e6
        if atlases:
            said += f"; the atlases of its checkpoints have {atlases:.1f} MB"
        elif self.largest:
            said += f"; each checkpoint's atlas had up to {self.largest / 1e6:.1f} MB and was removed"
        self.progress.note(said)


def _is_same(known: CheckpointFacts, facts: Facts) -> bool:
    """Whether a scanned checkpoint has these weights, settings and precision."""
    return (known["weights"], known["config"], known["dtype"]) == (facts.weights, facts.config, facts.dtype)


def _is_other(place: Path, facts: Facts) -> bool:
    """Whether a folder holds the scan of other weights: the checkpoint was replaced since it began."""
    record = place / "scan.json"
    if not record.is_file():
        return False
    known: dict[str, Any] = read_record(record, dict[str, Any], "delete the folder").get("model", {})
    return bool(known.get("weights") != facts.weights)


def _refuse_other_shape(rows: CheckpointRows, first: CheckpointRows) -> None:
    if rows.shape != first.shape:
        raise ArmillaryError(
            f"it has {rows.shape[0]} layers of {rows.shape[1]} heads, but {first.facts['name']} has {first.shape[0]} "
            f"of {first.shape[1]}: a timeline is of models of one shape"
        )
