"""Watch attention while a model trains: spectra, entropy, rank, logits; a warning, with names, when it collapses."""

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

from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError
from armillary.files import writing
from armillary.layout import entry, find_stack
from armillary.modes import evaluating
from armillary.streams.attention import AttentionStatistics
from armillary.streams.similarity import OutputRank, TokenSimilarity
from armillary.streams.stream import Stream
from armillary.tap import Tap
from armillary.view import AttentionView

ONE_HOT = 0.03
"""A head whose entropy is below this share of log(visible keys) on average looks at one key and cannot learn others."""
SATURATED = 30.0
"""Logits this far from their row's mean make softmax's gradient vanish."""
ALIKE = 0.05
"""Tokens whose distance to one common vector is below this share of their length cannot be told apart."""

HEAD_MEASURES = ("eigen_mean", "eigen_scale", "entropy", "entropy_norm", "largest_logit", "rho", "rank_one_distance")


@dataclass(frozen=True)
class Snapshot:
    """What the monitor saw at one step: a number for every head and measure, and the rank-one distance by layer."""

    step: int
    heads: dict[str, Float[np.ndarray, "layer head"]]
    layers: Float[np.ndarray, "layer_"]
    warnings: tuple[str, ...] = ()

    def summary(self) -> dict[str, float]:
        """Means over heads (of the logits the largest), and the least rank-one distance of any layer."""
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
    """Run a probe batch through the model and measure every head; the model is left as it was, mode and all.

    eigen_mean = tr(W)/d and eigen_scale = sqrt(|W|_F^2/d - eigen_mean^2) of W = W_q W_k' (for a symmetric W: mean and
    standard deviation of its d eigenvalues); rho: how many of the keys pass a signal (streams/localization.py).
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
        largest[view.layer] = _largest(view)

    def on_residual(layer: int, h: Tensor) -> None:
        similarity.update(layer, h)

    with evaluating(model):
        follows = bool(find_stack(model, anatomy).blocks)
        with Tap(model, on_attention, on_residual if follows else None):
            entry(model)(input_ids=tokens.to(next(model.parameters()).device))
    found = attention.finish()
    heads = {
        **_spectra(model),
        "entropy": found["entropy"].cpu().numpy(),
        "entropy_norm": found["entropy_norm"].cpu().numpy(),
        "largest_logit": torch.stack([largest[layer] for layer in sorted(largest)]).cpu().double().numpy(),
        "rho": np.nanmean(found["rho"].cpu().numpy(), axis=-1),
        "rank_one_distance": output.finish()["rank_one_distance"].cpu().numpy(),
    }
    layers = similarity.finish()["rank_one_distance"].cpu().numpy() if follows else np.ones(1)
    taken = Snapshot(step, heads, layers)
    return Snapshot(step, heads, layers, tuple(collapses(taken)))


def _spectra(model: nn.Module) -> dict[str, Float[np.ndarray, "layer head"]]:
    """Mean and scale of every head's eigenspectrum, by e x e products; nothing where the weights are not known."""
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


def _largest(view: AttentionView) -> Float[Tensor, "head"]:
    """The largest distance of a visible logit from the mean of its row."""
    logits, seen = view.logits(), view.visible()
    mean = (logits * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
    return ((logits - mean).abs() * seen).amax((0, 2, 3))


def collapses(taken: Snapshot) -> Iterator[str]:
    """Sentences about what has collapsed: heads that look at one key only, layers whose tokens are all alike."""
    stuck = (taken.heads["entropy_norm"] < ONE_HOT) & (taken.heads["largest_logit"] > SATURATED)
    if stuck.any():
        names = ", ".join(f"{layer}.{head}" for layer, head in np.argwhere(stuck)[:12])
        more = f" and {int(stuck.sum()) - 12} more" if stuck.sum() > 12 else ""
        yield (
            f"entropy collapse at step {taken.step}: attention of head {names}{more} is one-hot with logits up to "
            f"{float(taken.heads['largest_logit'][stuck].max()):.0f}: lower the learning rate, or regularise W_q W_k'"
        )
    if not np.isfinite(taken.heads["entropy"]).all():
        yield f"attention is not finite at step {taken.step}: the run has diverged"
    alike = np.argwhere(taken.layers[1:] < ALIKE)[:, 0] + 1
    if len(alike):
        names = ", ".join(map(str, alike))
        heads = np.argwhere(taken.heads["rank_one_distance"] < ALIKE)[:12]
        which = f" (heads {', '.join(f'{layer}.{head}' for layer, head in heads)})" if len(heads) else ""
        yield f"rank collapse at step {taken.step}: after layer {names} all tokens are nearly one vector{which}"


def _check(tokens: Int[Tensor, "..."], skip: int, vocabulary: int) -> None:
    if tokens.dim() != 2 or tokens.shape[1] < skip + 2:
        raise ArmillaryError(
            f"a monitor's tokens are (sequence, token) with {skip + 2} tokens or more, not {tuple(tokens.shape)}"
        )
    if vocabulary and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ArmillaryError(f"the monitor's tokens are not all between 0 and {vocabulary - 1}, the model's vocabulary")


Tracker = Callable[[int, dict[str, float]], None]
"""Told the step and the summary."""


@dataclass
class Monitor:
    """Takes a snapshot of `model` on `tokens` every `every` steps: call it after each step of any loop.

    Snapshots go to the JSON-lines file `log` where one is given, to `trackers`, and to wandb or trackio where the
    program has a run of theirs open. `on_warning` is told each collapse once. `overhead` is the share of the time
    since the first call that the monitor itself took.
    """

    model: nn.Module
    tokens: Int[Tensor, "..."]
    every: int = 50
    log: Path | None = None
    trackers: Sequence[Tracker] = ()
    on_warning: Callable[[str], None] = lambda sentence: print(f"armillary: {sentence}", file=sys.stderr)  # noqa: T201
    history: list[Snapshot] = field(default_factory=list)
    _begun: float | None = None
    _spent: float = 0.0
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ArmillaryError(f"a monitor looks every 1 or more steps, not every {self.every}")

    def __call__(self, step: int) -> Snapshot | None:
        """Look, if it is time; returns the snapshot that was taken, if any."""
        self._begun = time.perf_counter() if self._begun is None else self._begun
        return self.look(step) if step % self.every == 0 else None

    def look(self, step: int) -> Snapshot:
        """Take a snapshot now."""
        begun = time.perf_counter()
        taken = snapshot(self.model, self.tokens, step)
        self.history.append(taken)
        if self.log is not None:
            with writing(self.log), self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(taken.as_dict()) + "\n")
        for track in (*self.trackers, *open_trackers()):
            track(step, {f"attention/{name}": value for name, value in taken.summary().items()})
        for sentence in taken.warnings:
            news = re.sub(r" at step \d+|logits up to \S+", "", sentence)  # the same heads again are no news
            if news not in self._told:
                self._told.add(news)
                self.on_warning(sentence)
        self._spent += time.perf_counter() - begun
        return taken

    @property
    def overhead(self) -> float:
        """Seconds in the monitor over all seconds since its first call."""
        if self._begun is None:
            return 0.0
        return self._spent / max(time.perf_counter() - self._begun, 1e-9)


def open_trackers() -> list[Tracker]:
    """wandb and trackio, where this program has imported them and a run is open; nothing is imported or started."""
    found: list[Tracker] = []
    wandb: Any = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        found.append(lambda step, numbers: wandb.log(numbers, step=step))
    trackio: Any = sys.modules.get("trackio")
    current = getattr(getattr(trackio, "context_vars", None), "current_run", None)
    if current is not None and current.get() is not None:
        found.append(lambda step, numbers: trackio.log({**numbers, "step": step}))
    return found


def tensorboard(writer: Any) -> Tracker:
    """A tracker for a torch.utils.tensorboard SummaryWriter."""

    def track(step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return track


def callback(monitor: Monitor) -> Any:
    """The monitor as a transformers TrainerCallback: Trainer(..., callbacks=[callback(monitor)])."""
    from transformers import TrainerCallback

    class AttentionMonitor(TrainerCallback):  # type: ignore[misc]
        """Looks at the end of every step."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            monitor(int(state.global_step))

    return AttentionMonitor()
