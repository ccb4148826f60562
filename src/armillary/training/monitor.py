"""Monitor attention while a model trains: spectra, entropy, rank, logits, and warnings that name collapsed heads."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from armillary.anatomy.layout import entry, find_stack
from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError
from armillary.files.atomic import writing
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView
from armillary.streams.attention import AttentionStatistics
from armillary.streams.similarity import OutputRank, TokenSimilarity
from armillary.streams.stream import Stream
from armillary.training.timeline import TimelineWriter

# Imports inside functions: transformers takes seconds to import, and a monitor runs without it.

ONE_HOT = 0.03
"""Below this mean share of log(visible keys), a head's entropy is so low that it attends to one key."""
SATURATED = 30.0
"""The softmax gradient vanishes when a logit is this far from the mean of its row."""
ALIKE = 0.05
"""Below this rank-one distance (relative to the norm), all tokens are nearly the same vector."""

HEAD_MEASURES = ("eigen_mean", "eigen_scale", "entropy", "entropy_norm", "largest_logit", "rho", "rank_one_distance")


@dataclass(frozen=True)
class Snapshot:
    """The measures of every head at one step, and the rank-one distance of every layer."""

    step: int
    heads: dict[str, Float[np.ndarray, "layer head"]]
    layers: Float[np.ndarray, "layer_"]
    warnings: tuple[str, ...] = ()

    def summary(self) -> dict[str, float]:
        """Means over heads (for logits the maximum), and the smallest rank-one distance of a layer."""
        means = {
            name: float(values.max() if name == "largest_logit" else np.nanmean(values))
            for name, values in self.heads.items()
            if np.isfinite(values).any()
        }
        return {**means, "least_rank_one_distance": float(self.layers.min())}

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the log."""
        return {
            "step": self.step,
            **{name: value if isfinite(value) else None for name, value in self.summary().items()},
            "heads": {name: _finite(values) for name, values in self.heads.items()},
            "layers": _finite(self.layers),
            "warnings": list(self.warnings),
        }


def _finite(values: Float[np.ndarray, "*n"]) -> list[Any]:
    """Rounded, with null for what is not finite: JSON has no NaN."""
    rounded = np.round(values, 6).astype(object)
    rounded[~np.isfinite(values)] = None
    return list(rounded.tolist())


@torch.no_grad()
def snapshot(model: nn.Module, tokens: Int[Tensor, "..."], step: int = 0, skip: int = 1) -> Snapshot:
    """Run a probe batch through the model and measure every head; restores train/eval mode.

    eigen_mean = tr(W)/d and eigen_scale = sqrt(|W|_F^2/d - eigen_mean^2) of W = W_q W_k' (for a symmetric W: mean and
    standard deviation of its d eigenvalues); rho: the share of keys that pass a signal (streams/localization.py).
    """
    anatomy = describe(model)
    _check(tokens, skip, anatomy.vocabulary)
    length = tokens.shape[1]
    attention = Stream(AttentionStatistics(skip, length))
    output, similarity = Stream(OutputRank(skip)), Stream(TokenSimilarity(skip))
    largest: dict[int, Tensor] = {}

    def on_attention(view: AttentionView) -> None:
        attention.update(view.layer, view)
        output.update(view.layer, view)
        largest[view.layer] = _largest_logit(view)

    def on_residual(layer: int, h: Tensor) -> None:
        similarity.update(layer, h)

    with evaluating(model):
        has_blocks = bool(find_stack(model, anatomy).blocks)
        with Tap(model, on_attention, on_residual if has_blocks else None):
            entry(model)(input_ids=tokens.to(next(model.parameters()).device))
    statistics = attention.finish()
    heads = {
        **_spectra(model),
        "entropy": statistics["entropy"].cpu().numpy(),
        "entropy_norm": statistics["entropy_norm"].cpu().numpy(),
        "largest_logit": torch.stack([largest[layer] for layer in sorted(largest)]).cpu().double().numpy(),
        "rho": np.nanmean(statistics["rho"].cpu().numpy(), axis=-1),
        "rank_one_distance": output.finish()["rank_one_distance"].cpu().numpy(),
    }
    layers = similarity.finish()["rank_one_distance"].cpu().numpy() if has_blocks else np.ones(1)
    measured = Snapshot(step, heads, layers)
    return Snapshot(step, heads, layers, tuple(collapses(measured)))


def _spectra(model: nn.Module) -> dict[str, Float[np.ndarray, "layer head"]]:
    """Mean and scale of every head's eigenspectrum, by e x e products; empty for a family without an adapter."""
    anatomy = describe(model)
    if anatomy.missing:
        return {}
    means, spreads = [], []
    for layer in anatomy.layers:
        weights = anatomy.weights(layer.index)
        q = torch.stack(weights.q).float()
        k = torch.stack([weights.k[layer.kv_head(a)] for a in range(layer.heads)]).float()
        mean = (q * k).sum((1, 2)) / anatomy.d_model
        energy = ((q.mT @ q) * (k.mT @ k)).sum((1, 2)) / anatomy.d_model
        means.append(mean)
        spreads.append((energy - mean.square()).clamp(min=0).sqrt())
    return {
        "eigen_mean": torch.stack(means).cpu().double().numpy(),
        "eigen_scale": torch.stack(spreads).cpu().double().numpy(),
    }


def _largest_logit(view: AttentionView) -> Float[Tensor, "head"]:
    """The largest distance of a visible logit from the mean of its row."""
    logits, visible = view.logits(), view.visible()
    mean = (logits * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp(min=1)
    return ((logits - mean).abs() * visible).amax((0, 2, 3))


def collapses(measured: Snapshot) -> Iterator[str]:
    """Warnings: heads that attend to one key only, layers whose tokens are all nearly equal."""
    stuck = (measured.heads["entropy_norm"] < ONE_HOT) & (measured.heads["largest_logit"] > SATURATED)
    if stuck.any():
        names = ", ".join(f"{layer}.{head}" for layer, head in np.argwhere(stuck)[:12])
        more = f" and {int(stuck.sum()) - 12} more" if stuck.sum() > 12 else ""
        yield (
            f"entropy collapse at step {measured.step}: attention of head {names}{more} is one-hot with logits up to "
            f"{float(measured.heads['largest_logit'][stuck].max()):.0f}: lower the learning rate or regularize W_q W_k'"
        )
    if not np.isfinite(measured.heads["entropy"]).all():
        yield f"attention is not finite at step {measured.step}: the run has diverged"
    alike = np.argwhere(measured.layers[1:] < ALIKE)[:, 0] + 1
    if len(alike):
        names = ", ".join(map(str, alike))
        heads = np.argwhere(measured.heads["rank_one_distance"] < ALIKE)[:12]
        listed = f" (heads {', '.join(f'{layer}.{head}' for layer, head in heads)})" if len(heads) else ""
        yield f"rank collapse at step {measured.step}: after layer {names} all tokens are nearly one vector{listed}"


def _check(tokens: Int[Tensor, "..."], skip: int, vocabulary: int) -> None:
    if tokens.dim() != 2 or tokens.shape[1] < skip + 2:
        raise ArmillaryError(
            f"a monitor's tokens are (sequence, token) with {skip + 2} tokens or more, not {tuple(tokens.shape)}"
        )
    if vocabulary and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ArmillaryError(f"the monitor's tokens are not all between 0 and {vocabulary - 1}, the model's vocabulary")


Tracker = Callable[[int, dict[str, float]], None]
"""Receives the step and the summary."""


@dataclass
class Monitor:
    """Takes a snapshot of `model` on `tokens` every `every` steps. Call it after each step of your loop.

    Snapshots go to the JSON-lines file `log` if given, to `trackers`, and to wandb or trackio if a run is open.
    `on_warning` is called once for each collapse. `overhead` is the monitor's share of the time since its first
    call. `timeline` is a folder, or a TimelineWriter with its own settings: every snapshot also scans the tokens and
    adds the tables of heads and layers to the timeline there, so that births are known without any checkpoint.
    """

    model: nn.Module
    tokens: Int[Tensor, "..."]
    every: int = 50
    log: Path | None = None
    trackers: Sequence[Tracker] = ()
    on_warning: Callable[[str], None] = lambda sentence: print(f"armillary: {sentence}", file=sys.stderr)  # noqa: T201
    history: list[Snapshot] = field(default_factory=list)
    timeline: Path | str | TimelineWriter | None = None
    _begun: float | None = None
    _spent: float = 0.0
    _warned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ArmillaryError(
                f"every={self.every} was given to the monitor",
                advice="it must be 1 or more",
                given=self.every,
                expected="1 or more",
            )
        if isinstance(self.timeline, str | Path):
            self.timeline = TimelineWriter(self.timeline, self.tokens)

    def __call__(self, step: int) -> Snapshot | None:
        """Take a snapshot if `step` is a multiple of `every`; returns it, else None."""
        self._begun = time.perf_counter() if self._begun is None else self._begun
        return self.take(step) if step % self.every == 0 else None

    def take(self, step: int) -> Snapshot:
        """Take a snapshot now, log it, and warn about new collapses."""
        begun = time.perf_counter()
        measured = snapshot(self.model, self.tokens, step)
        self.history.append(measured)
        if isinstance(self.timeline, TimelineWriter):
            self.timeline.look(self.model, step)
        if self.log is not None:
            with writing(self.log), self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(measured.as_dict()) + "\n")
        for track in (*self.trackers, *open_trackers()):
            track(step, {f"attention/{name}": value for name, value in measured.summary().items()})
        for sentence in measured.warnings:
            subject = re.sub(r" at step \d+|logits up to \S+", "", sentence)  # the same heads are reported once
            if subject not in self._warned:
                self._warned.add(subject)
                self.on_warning(sentence)
        self._spent += time.perf_counter() - begun
        return measured

    @property
    def overhead(self) -> float:
        """The monitor's share of the seconds since its first call."""
        if self._begun is None:
            return 0.0
        return self._spent / max(time.perf_counter() - self._begun, 1e-9)


def open_trackers() -> list[Tracker]:
    """Trackers for wandb and trackio if they are imported already and have an open run."""
    trackers: list[Tracker] = []
    wandb: Any = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        trackers.append(lambda step, values: wandb.log(values, step=step))
    trackio: Any = sys.modules.get("trackio")
    current = getattr(getattr(trackio, "context_vars", None), "current_run", None)
    if current is not None and current.get() is not None:
        trackers.append(lambda step, values: trackio.log({**values, "step": step}))
    return trackers


def tensorboard(writer: Any) -> Tracker:
    """A tracker for a torch.utils.tensorboard SummaryWriter."""

    def track(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return track


def callback(monitor: Monitor) -> Any:
    """The monitor as a transformers TrainerCallback: Trainer(..., callbacks=[callback(monitor)])."""
    from transformers import TrainerCallback

    class AttentionMonitor(TrainerCallback):  # type: ignore[misc]
        """Calls the monitor at the end of every step, and before the first if it writes a timeline."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if monitor.timeline is not None and int(state.global_step) == 0:
                monitor(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            monitor(int(state.global_step))

    return AttentionMonitor()
