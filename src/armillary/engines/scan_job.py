"""What a worker of a scan does: a shard of blocks through a tapped model into streams."""

import inspect
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from armillary.anatomy.adapter import known_families
from armillary.anatomy.description import Anatomy
from armillary.anatomy.source import describe
from armillary.anatomy.weights import LayerWeights
from armillary.collector import SAMPLED_SEQUENCES, Collector, NotFinite, Wanted, new_streams
from armillary.corpus import Blocks
from armillary.engines.engine import Advanced, Begun, Done, Engine, Event, Task, TaskFailed, ask, sentence
from armillary.errors import ArmillaryError
from armillary.identity import config_hash, fingerprint
from armillary.layout import entry, find_stack
from armillary.models import load_on
from armillary.modes import evaluating
from armillary.packing import Packed, unpack
from armillary.passes import PROBES, Pass, further_passes
from armillary.settings import ScanSettings
from armillary.shards import Shard, from_tensors, taken, to_tensors
from armillary.streams import Stream
from armillary.tap import Tap
from armillary.text_loss import Asked, Losses, asked_of, losses, predicts_next, summary
from armillary.verified import versions
from armillary.view import AttentionView

LOSS = "loss"
"""The name of the task that asks how well the model predicts the text."""

FIRST = "shard"
"""The name of the first round; further ones are named by their Pass."""


@dataclass(frozen=True)
class Facts:
    """What the driver must know of the model that its workers hold."""

    anatomy: Anatomy
    weights: str
    config: str
    dtype: str
    versions: dict[str, str]
    families: tuple[str, ...]
    readable: bool
    parameters: int


@dataclass(frozen=True)
class ScanJob:
    """A model by its folder or hub id, or one that is loaded in this process."""

    model: nn.Module | str | Path
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    device_map: Any = None

    @property
    def here_only(self) -> bool:
        return isinstance(self.model, nn.Module)

    def open(self, number: int, workers: int) -> "ScanBench":
        if isinstance(self.model, nn.Module):
            return ScanBench(self.model)
        return ScanBench(
            load_on(
                self.model,
                device=own_device(self.device, number) if self.device_map is None else self.device,
                dtype=self.dtype,
                trust_remote_code=self.trust_remote_code,
                device_map=self.device_map,
                gpus=own_gpus(number, workers, torch.cuda.device_count()),
            )
        )

    def differences(self, first: Facts, other: Facts) -> list[str]:
        found = [] if first.weights == other.weights else ["it has other weights"]
        found += [] if first.config == other.config else ["it has another config.json"]
        found += [] if first.dtype == other.dtype else [f"{other.dtype} instead of {first.dtype}"]
        for name, version in first.versions.items():
            if other.versions.get(name) != version:
                found.append(f"{name} {other.versions.get(name)} instead of {version}")
        return found


def own_gpus(number: int, workers: int, count: int) -> range:
    """The GPUs that a model spread over several of them may use, if `workers` such models share a machine."""
    each = max(1, count // workers)
    first = number * each % max(1, count)
    return range(first, min(first + each, count))


def own_device(device: str, number: int) -> str:
    """The GPU of worker `number`: with several GPUs each worker has its own, and they share where there are fewer."""
    count = torch.cuda.device_count()
    return f"cuda:{number % count}" if count > 1 and device in ("auto", "cuda") else device


@dataclass(frozen=True)
class ShardBlocks:
    """The blocks of a shard, and how they are looked at."""

    tokens: Int[np.ndarray, "block token"]
    settings: ScanSettings


@dataclass(frozen=True)
class Further:
    """What a worker needs to make the further rounds' statistics: they know the means of the first."""

    wanted: Wanted
    sample: int
    seed: int
    tokens: Int[np.ndarray, "block token"]
    means: bytes

    def passes(self, anatomy: Anatomy) -> dict[str, Pass]:
        """The rounds, as the driver has them."""
        first = {name: stream for name, stream in new_streams(self.wanted, anatomy).items() if name in NEEDED}
        from_tensors(first, unpack(bytes(self.means)))
        found = further_passes(self.wanted, anatomy, self.tokens, first, sample=self.sample, seed=self.seed)
        return {one.name: one for one in found}


NEEDED = ("input.position",)
"""The streams of the first round that further rounds read."""


def further(settings: ScanSettings, tokens: Int[np.ndarray, "block token"], first: dict[str, Stream]) -> Further:
    """What workers get to know of the first round: its means, and enough blocks for the same rounds to follow.

    Which rounds follow depends on the first blocks, and on whether all blocks begin, and end, with the same token.
    """
    count = max(settings.second_pass, PROBES, 2)
    odd = [np.flatnonzero(tokens[:, column] != tokens[0, column])[:1] for column in (0, -1)]
    rows = np.unique(np.concatenate([np.arange(min(count, len(tokens))), *odd]))
    means = bytes(Packed(to_tensors({name: first[name] for name in NEEDED if name in first})))
    return Further(settings.wanted(), settings.second_pass, settings.seed, tokens[rows], means)


class BadBlocks(Exception):
    """Blocks of the corpus on which the model computes numbers that are not finite."""

    def __init__(self, place: str, rows: list[int]) -> None:
        super().__init__(place, rows)
        self.place = place
        self.rows = rows


class BatchFailed(Exception):
    """These rows of the shard, together, raised an error."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)
        self.rows = rows


class ScanBench:
    """A loaded model, and what it computes of the shards that come."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.anatomy = describe(model)
        self._passes: dict[str, Pass] = {}
        self._ids: Int[Tensor, "batch token"] | None = None
        parameter = next(model.parameters())
        self.facts = Facts(
            anatomy=replace(self.anatomy, _read_layer=None, _read_matrices=None),
            weights=fingerprint(model),
            config=config_hash(model),
            dtype=str(parameter.dtype).removeprefix("torch."),
            versions=versions(),
            families=known_families(),
            readable=self.anatomy._read_layer is not None,
            parameters=multiplied(model),
        )

    def share(self, data: bytes) -> None:
        shared: Further = pickle.loads(data)
        self._passes = shared.passes(self.anatomy)

    def run(self, task: Task) -> Iterator[Event]:
        with evaluating(self.model):  # a model that a user has loaded is as it came in between tasks, and at the end
            yield from self._do(task)

    def _do(self, task: Task) -> Iterator[Event]:
        if task.round == "weights":
            yield Done({"weights": pickle.dumps(in_memory(self.anatomy.weights(task.shard.index)))})
            return
        if task.round == LOSS:
            yield Done({LOSS: pickle.dumps(self._losses(task.data))})
            return
        if task.alone:
            yield from self._alone(task)
            return
        try:
            yield from self._first(task) if task.round == FIRST else self._again(task)
        except BatchFailed as failed:
            row = self._culprit(task, failed.rows)
            cause = failed.__cause__
            assert cause is not None
            raise TaskFailed(sentence(cause), None if row is None else task.shard.first + row) from cause

    def _losses(self, asked: Asked) -> dict[str, Losses] | None:
        """The losses of a text, with and without a begin token; None of a model that does not predict the next one."""
        if not predicts_next(self.model, self.anatomy.layers[0].causal):
            return None
        return losses(self.model, asked, input_device(self.model))

    def _first(self, task: Task) -> Iterator[Event]:
        """The streams of a shard of the first round, and a row for every one of its blocks."""
        shard, given = task.shard, task.data
        assert isinstance(given, ShardBlocks)
        skipped: list[int] = []
        notes: list[str] = []
        while True:
            collector = Collector(given.settings.wanted(), self.anatomy, max(0, SAMPLED_SEQUENCES - shard.first))
            rows = [row for row in range(len(given.tokens)) if row not in skipped]
            try:
                yield from self._watched(collector, given, rows)
                break
            except BadBlocks as bad:
                blocks = [shard.first + row for row in bad.rows]
                if given.settings.when_nan == "stop":
                    raise ArmillaryError(
                        f"{bad.place} of block {blocks[0]} gives NaN or infinite numbers: look at that block, "
                        "or leave such blocks out with --when-nan skip"
                    ) from bad
                skipped += bad.rows
                notes += [f"block {block} was left out: {bad.place} gives NaN or infinite numbers" for block in blocks]
        left_out = torch.tensor(sorted(shard.first + row for row in skipped), dtype=torch.int64)
        series = {name: tensor.contiguous() for name, tensor in collector.series().items()}
        streams = collector.streams
        del collector
        yield Done({"series": Packed({**series, "skipped": left_out}), FIRST: Packed(taken(streams))}, tuple(notes))

    def _watched(self, collector: Collector, given: ShardBlocks, rows: list[int]) -> Iterator[Event]:
        follows = bool(find_stack(self.model, self.anatomy).blocks)
        with Tap(self.model, collector.on_attention, collector.on_residual if follows else None):
            yield from self._run(given, rows)

    def _again(self, task: Task) -> Iterator[Event]:
        """The streams of a shard of a further round."""
        streams = self._passes[task.round].streams()

        def receive(view: AttentionView) -> None:
            for stream in streams.values():
                stream.update(view.layer, replace(view, tokens=self._ids))

        with Tap(self.model, receive):
            yield from self._run(task.data, list(range(len(task.data.tokens))))
        yield Done({task.round: Packed(taken(streams))})

    def _run(self, given: ShardBlocks, rows: list[int]) -> Iterator[Event]:
        """Blocks through the model, a batch at a time."""
        part = entry(self.model)
        options = {"use_cache": False} if "use_cache" in inspect.signature(part.forward).parameters else {}
        device = input_device(self.model)
        for start in range(0, len(rows), given.settings.batch):
            batch = rows[start : start + given.settings.batch]
            self._ids = ids = torch.from_numpy(given.tokens[batch]).to(device)
            try:
                with torch.no_grad():
                    part(input_ids=ids, **options)
            except NotFinite as found:
                raise BadBlocks(found.place, [batch[row] for row in found.rows]) from found
            except ArmillaryError:
                raise
            except Exception as error:
                raise BatchFailed(batch) from error
            yield Advanced(ids.numel())

    def _alone(self, task: Task) -> Iterator[Event]:
        """One block after the other, told before it runs: the last one told is the one that ends this worker."""
        for row in range(len(task.data.tokens)):
            yield Begun(task.shard.first + row)
            if self._fails(task, row):
                raise TaskFailed("it fails alone too", task.shard.first + row)
        yield Done({})

    def _culprit(self, task: Task, rows: list[int]) -> int | None:
        """The row that raises an error by itself, or None."""
        return next((row for row in rows if len(rows) == 1 or self._fails(task, row)), None)

    def _fails(self, task: Task, row: int) -> bool:
        alone = replace(task, data=ShardBlocks(task.data.tokens[row : row + 1], task.data.settings))
        try:
            for _ in self._first(alone) if task.round == FIRST else self._again(alone):
                pass
        except ArmillaryError:
            return False
        except Exception:
            return True
        return False


def input_device(model: nn.Module) -> torch.device:
    """Where token numbers go; of a model on several devices, where its first weights are."""
    device = next(model.parameters()).device
    return torch.device("cpu") if device.type == "meta" else device  # offloaded: accelerate moves what is passed


def multiplied(model: nn.Module) -> int:
    """How many weights every token is multiplied with: those of the part that runs, without its tables of tokens."""
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(p.numel() for p in entry(model).parameters() if id(p) not in tables)


def in_memory(value: Any) -> Any:
    """Weights with their numbers in main memory, each tensor by itself: views would carry what they are views of."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, tuple):
        return tuple(in_memory(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: in_memory(getattr(value, f.name)) for f in fields(value)})
    return value


def text_loss(engine: Engine, facts: Facts, blocks: Blocks) -> dict[str, Any] | None:
    """How well the workers' model predicts this text (text_loss.summary); None where it does not, or there is no text.

    A block that the model cannot run is told by the scan itself, which knows which one it is.
    """
    asked = asked_of(blocks, facts.anatomy.vocabulary)
    if asked is None:
        return None
    try:
        told = ask(engine, Task(LOSS, Shard(0, 0, len(asked.texts)), asked)).files[LOSS]
    except ArmillaryError:
        return None
    assert isinstance(told, bytes)
    found: dict[str, Losses] | None = pickle.loads(told)
    return None if found is None else summary(found, blocks, asked, facts.anatomy.vocabulary)


def anatomy_through(engine: Engine, facts: Facts) -> Anatomy:
    """The anatomy of the workers' model; a layer's weights come from a worker, one layer in memory at a time."""
    if facts.families != known_families() and facts.anatomy.family in set(known_families()) ^ set(facts.families):
        raise ArmillaryError(
            f"the adapter for {facts.anatomy.family!r} was registered in this process, and workers do not know it: "
            "scan with one worker, or register it in a package that they import"
        )
    if not facts.readable:
        return facts.anatomy

    def read(layer: int) -> LayerWeights:
        told = ask(engine, Task("weights", Shard(layer, layer, layer + 1))).files["weights"]
        assert isinstance(told, bytes)
        found: LayerWeights = pickle.loads(told)
        return found

    return replace(facts.anatomy, _read_layer=read)
