"""What a worker of a scan does: runs a shard of sequences through the tapped model into streams."""

import inspect
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.devices import input_device
from armillary.anatomy.hub import cached_commit
from armillary.anatomy.identity import config_hash, fingerprint
from armillary.anatomy.layout import entry, find_stack
from armillary.anatomy.loading import load
from armillary.anatomy.modes import evaluating
from armillary.anatomy.options import ModelOptions
from armillary.anatomy.registry import known_families
from armillary.anatomy.source import describe
from armillary.anatomy.weights import LayerWeights
from armillary.engines.engine import Advanced, Begun, Done, Engine, Event, Task, TaskFailed, run_task, sentence
from armillary.engines.inside import Inside
from armillary.engines.packing import Packed
from armillary.errors import ArmillaryError
from armillary.observe.precision import measurable
from armillary.observe.sources import Sources
from armillary.observe.tap import Tap
from armillary.observe.verified import versions
from armillary.observe.view import AttentionView
from armillary.scanning.folder import PASS_FILES, FileKind, taken
from armillary.scanning.passes import FurtherPasses
from armillary.scanning.settings import wanted_of
from armillary.scanning.tasks import RESULT, MeasureLoss, ReadVocabulary, ReadWeights, ShardWork
from armillary.scanning.vocabulary import LayerArrays, vocabulary_layers
from armillary.streams.collector import Collector, NotFinite
from armillary.streams.declaration import Pass
from armillary.streams.registry import declared
from armillary.streams.wanted import SAMPLED_SEQUENCES
from armillary.text.loss import Losses, LossSample, loss_sample, losses, predicts_next, summary
from armillary.text.sequences import Sequences


@dataclass(frozen=True)
class Facts:
    """What the driver must know about the workers' model."""

    anatomy: Anatomy
    weights: str
    config: str
    dtype: str
    versions: dict[str, str]
    families: tuple[str, ...]
    readable: bool
    parameters: int
    device: str
    """The kind of device of the model's first weights."""
    revision: str | None = None
    adapter: str | None = None


@dataclass(frozen=True)
class ScanJob:
    """The model to scan: a folder or a hub id with the options of `load`, or a model loaded in this process."""

    model: nn.Module | str | Path
    options: ModelOptions = field(default_factory=lambda: ModelOptions())

    @property
    def here_only(self) -> bool:
        return isinstance(self.model, nn.Module)

    def open(self, number: int, workers: int) -> "ScanBench":
        if isinstance(self.model, nn.Module):
            return ScanBench(self.model)
        device = self.options.get("device", "auto")
        if self.options.get("device_map") is None:
            device = own_device(device, number)
        gpus = own_gpus(number, workers, torch.cuda.device_count())
        options: dict[str, Any] = {**self.options, "device": device}
        bench = ScanBench(load(self.model, gpus=gpus, **options))
        adapter, commit = self.options.get("adapter"), cached_commit(self.model, self.options.get("revision"))
        bench.facts = replace(bench.facts, revision=commit, adapter=None if adapter is None else str(adapter))
        return bench

    def differences(self, first: Facts, other: Facts) -> list[str]:
        unlike = [] if first.weights == other.weights else ["it has other weights"]
        unlike += [] if first.config == other.config else ["it has another config.json"]
        unlike += [] if first.dtype == other.dtype else [f"{other.dtype} instead of {first.dtype}"]
        for name, version in first.versions.items():
            if other.versions.get(name) != version:
                unlike.append(f"{name} {other.versions.get(name)} instead of {version}")
        return unlike


def own_gpus(number: int, workers: int, count: int) -> range:
    """The GPUs for the model of worker `number`, spread over several, if `workers` such models share a machine."""
    per_worker = max(1, count // workers)
    first = number * per_worker % max(1, count)
    return range(first, min(first + per_worker, count))


def own_device(device: str, number: int) -> str:
    """The GPU of worker `number`; workers share GPUs if there are more workers than GPUs."""
    count = torch.cuda.device_count()
    return f"cuda:{number % count}" if count > 1 and device in ("auto", "cuda") else device


class NotFiniteRows(Exception):
    """Rows of the shard on which the model computes NaN or infinite numbers."""

    def __init__(self, place: str, rows: list[int]) -> None:
        super().__init__(place, rows)
        self.place = place
        self.rows = rows


class BatchFailed(Exception):
    """A batch of these rows of the shard raised an error."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)
        self.rows = rows


class ScanBench:
    """A worker's loaded model, which runs tasks."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.anatomy = describe(model)
        if self.anatomy.positions != "tokens":
            raise ArmillaryError(
                f"{self.anatomy.family} models read {self.anatomy.positions}, not tokens: a scan reads text",
                advice="look at their heads with  armillary observe MODEL",
            )
        self._further: FurtherPasses | None = None
        self._ids: Int[Tensor, "batch token"] | None = None
        self._begun = 0  # the first row of the batch that runs
        parameter = next(model.parameters())
        self.facts = Facts(
            anatomy=replace(self.anatomy, _read_layer=None, _read_matrices=None, _read_ends=None),
            weights=fingerprint(model),
            config=config_hash(model),
            dtype=str(parameter.dtype).removeprefix("torch."),
            versions=versions(),
            families=known_families(),
            readable=self.anatomy._read_layer is not None,
            parameters=multiplied(model),
            device=input_device(model).type,
        )

    def share(self, data: bytes) -> None:
        self._further = pickle.loads(data)

    def read_here(self, layer: int) -> LayerWeights:
        """A layer's weights for a caller in this process: views of the model's, unless these are on a GPU."""
        try:
            weights: LayerWeights = in_memory(self.anatomy.weights(layer), copy=False)
        except ArmillaryError:
            raise
        except Exception as error:
            raise ArmillaryError(sentence(error)) from error
        return weights

    def run(self, task: Task) -> Iterator[Event]:
        with evaluating(self.model):  # a user's model gets its own mode back after every task
            yield from self._do(task)

    def _do(self, task: Task) -> Iterator[Event]:
        work = task.work
        if isinstance(work, ReadWeights):
            yield Done({RESULT: pickle.dumps(in_memory(self.anatomy.weights(work.layer), copy=True))})
        elif isinstance(work, ReadVocabulary):
            yield Done({RESULT: pickle.dumps(vocabulary_layers(self.anatomy, work.seed))})
        elif isinstance(work, MeasureLoss):
            yield Done({RESULT: pickle.dumps(self._losses(work.text))})
        elif task.alone:
            yield from self._alone(work)
        else:
            yield from self._run_shard(work)

    def _run_shard(self, work: ShardWork) -> Iterator[Event]:
        try:
            yield from self._pass(work)
        except BatchFailed as failed:
            row = self._culprit(work, failed.rows)
            cause = failed.__cause__
            assert cause is not None
            raise TaskFailed(sentence(cause), None if row is None else work.shard.first + row) from cause

    def _pass(self, work: ShardWork) -> Iterator[Event]:
        if work.when is Pass.SOURCES:
            return self._sources(work)
        return self._first(work) if work.when is Pass.FIRST else self._further_pass(work)

    def _losses(self, sample: LossSample) -> dict[str, Losses] | None:
        """The losses of a text, with and without a begin token; None if the model does not predict the next token."""
        if not predicts_next(self.model, self.anatomy.layers[0].causal):
            return None
        return losses(self.model, sample, input_device(self.model))

    def _first(self, work: ShardWork) -> Iterator[Event]:
        """Run a shard of the first pass: its streams, and a row for every sequence."""
        shard = work.shard
        skipped: list[int] = []
        notes: list[str] = []
        while True:
            collector = Collector(wanted_of(work.settings), self.anatomy, max(0, SAMPLED_SEQUENCES - shard.first))
            rows = [row for row in range(len(work.tokens)) if row not in skipped]
            try:
                yield from self._tapped(collector, work, rows)
                break
            except NotFiniteRows as bad:
                numbers = [shard.first + row for row in bad.rows]
                if work.settings["when_nan"] == "stop":
                    raise ArmillaryError(
                        f"{bad.place} of sequence {numbers[0]} gives NaN or infinite numbers",
                        advice="inspect that sequence, or leave such sequences out with `when_nan=skip`",
                    ) from bad
                skipped += bad.rows
                notes += [f"sequence {n} was left out: {bad.place} gives NaN or infinite numbers" for n in numbers]
        left_out = torch.tensor(sorted(shard.first + row for row in skipped), dtype=torch.int64)
        series = {name: tensor.contiguous() for name, tensor in collector.series().items()}
        streams = collector.streams
        del collector
        yield Done(
            {FileKind.SERIES: Packed({**series, "skipped": left_out}), FileKind.FIRST: Packed(taken(streams))},
            tuple(notes),
        )

    def _tapped(self, collector: Collector, work: ShardWork, rows: list[int]) -> Iterator[Event]:
        has_blocks = bool(find_stack(self.model, self.anatomy).blocks)
        with Tap(self.model, collector.on_attention, collector.on_residual if has_blocks else None):
            yield from self._run(work, rows)

    def _further_pass(self, work: ShardWork) -> Iterator[Event]:
        """Run a shard of a further pass: its streams."""
        assert self._further is not None
        streams = self._further.streams(work.when, self.anatomy)
        limits = {name: declared(name).sequences for name in streams}

        def receive(view: AttentionView) -> None:
            known = replace(view, tokens=self._ids)
            for name, stream in streams.items():
                limit = limits[name]
                left = len(view.q) if limit is None else limit - work.shard.first - self._begun
                if left >= len(view.q):
                    stream.update(view.layer, known)
                elif left > 0:
                    stream.update(view.layer, known.first_sequences(left))

        with Tap(self.model, receive):
            yield from self._run(work, list(range(len(work.tokens))))
        yield Done({PASS_FILES[work.when]: Packed(taken(streams))})

    def _sources(self, work: ShardWork) -> Iterator[Event]:
        """Run a shard of the pass that splits the stream by what wrote it, one sequence at a time."""
        assert self._further is not None
        streams, notes = self._further.streams(work.when, self.anatomy), []
        device, network = input_device(self.model), entry(self.model)
        try:
            sources = Sources(self.model, self.anatomy, work.settings["skip"])
            for tokens in work.tokens:
                ids = torch.from_numpy(tokens)[None].to(device)
                states = sources.products(partial(network, input_ids=ids, **self._uncached()))
                for stream in streams.values():
                    for layer, state in states.items():
                        stream.update(layer, state)
                yield Advanced(ids.numel())
        except ArmillaryError as error:  # the rest of the scan is worth having
            notes.append(f"there are no sources: {error.problem}")
            for stream in streams.values():
                stream.states.clear()
        yield Done({PASS_FILES[work.when]: Packed(taken(streams))}, tuple(notes))

    def _uncached(self) -> dict[str, Any]:
        """The argument that keeps a model from storing keys and values, if it has one."""
        return {"use_cache": False} if "use_cache" in inspect.signature(entry(self.model).forward).parameters else {}

    def _run(self, work: ShardWork, rows: list[int]) -> Iterator[Event]:
        """Run these rows through the model, a batch at a time."""
        network = entry(self.model)
        options = self._uncached()
        device = input_device(self.model)
        for start in range(0, len(rows), work.settings["batch"]):
            batch = rows[start : start + work.settings["batch"]]
            ids = torch.from_numpy(work.tokens[batch]).to(device)
            self._ids, self._begun = measurable(ids), start  # beside the tap's tensors
            try:
                with torch.no_grad():
                    network(input_ids=ids, **options)
            except NotFinite as bad:
                raise NotFiniteRows(bad.place, [batch[row] for row in bad.rows]) from bad
            except ArmillaryError:
                raise
            except Exception as error:
                raise BatchFailed(batch) from error
            yield Advanced(ids.numel())

    def _alone(self, work: ShardWork) -> Iterator[Event]:
        """Run one sequence at a time, each reported before it runs: the last one reported is the one that killed it."""
        for row in range(len(work.tokens)):
            yield Begun(work.shard.first + row)
            if self._fails(work, row):
                raise TaskFailed("it fails alone too", work.shard.first + row)
        yield Done({})

    def _culprit(self, work: ShardWork, rows: list[int]) -> int | None:
        """The row that raises an error by itself, or None."""
        return next((row for row in rows if len(rows) == 1 or self._fails(work, row)), None)

    def _fails(self, work: ShardWork, row: int) -> bool:
        try:
            for _ in self._pass(replace(work, tokens=work.tokens[row : row + 1])):
                pass
        except ArmillaryError:
            return False
        except Exception:
            return True
        return False


def multiplied(model: nn.Module) -> int:
    """The number of weights that every token is multiplied with: all that run, without embedding tables."""
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(p.numel() for p in entry(model).parameters() if id(p) not in tables)


def in_memory(value: Any, *, copy: bool) -> Any:
    """Weights in main memory; copied, each by itself, to be pickled: a view would take its base tensor along."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=copy)
    if isinstance(value, tuple):
        return tuple(in_memory(item, copy=copy) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: in_memory(getattr(value, f.name), copy=copy) for f in fields(value)})
    return value


def text_loss(engine: Engine, facts: Facts, sequences: Sequences) -> dict[str, Any] | None:
    """How well the workers' model predicts this text (text/loss.py, `summary`); None if it does not predict text.

    Also None if the model fails on a sequence: the scan itself then raises an error that names it.
    """
    sample = loss_sample(sequences, facts.anatomy.vocabulary)
    if sample is None:
        return None
    try:
        result = run_task(engine, Task(MeasureLoss(sample))).files[RESULT]
    except ArmillaryError:
        return None
    assert isinstance(result, bytes)
    measured: dict[str, Losses] | None = pickle.loads(result)
    return None if measured is None else summary(measured, sequences, sample, facts.anatomy.vocabulary)


def vocabulary_through(engine: Engine, seed: int) -> LayerArrays | str:
    """What the workers' model writes and matches, in tokens, by layer; or why that cannot be said."""
    try:
        result = run_task(engine, Task(ReadVocabulary(seed))).files[RESULT]
    except ArmillaryError as error:
        return str(error)
    assert isinstance(result, bytes)
    layers: LayerArrays | str = pickle.loads(result)
    return layers


def anatomy_through(engine: Engine, facts: Facts) -> Anatomy:
    """The anatomy of the workers' model; it reads weights through a worker, one layer in memory at a time.

    A model in this process is read directly, unless it is in training mode: a task sets evaluation mode, in which some
    adapters change weights.
    """
    if facts.families != known_families() and facts.anatomy.family in set(known_families()) ^ set(facts.families):
        raise ArmillaryError(
            f"the adapter for {facts.anatomy.family!r} is registered in this process but not in the workers",
            advice="scan with one worker, or register it in a package that they import",
        )
    if not facts.readable:
        return facts.anatomy

    bench = engine.bench if isinstance(engine, Inside) else None
    if isinstance(bench, ScanBench) and not any(module.training for module in bench.model.modules()):
        return replace(facts.anatomy, _read_layer=bench.read_here)

    def read(layer: int) -> LayerWeights:
        result = run_task(engine, Task(ReadWeights(layer))).files[RESULT]
        assert isinstance(result, bytes)
        weights: LayerWeights = pickle.loads(result)
        return weights

    return replace(facts.anatomy, _read_layer=read)
