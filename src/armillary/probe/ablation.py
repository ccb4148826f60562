"""Whether heads matter: the loss without each of them, exactly and to first order, on text and on repeated tokens."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from armillary.anatomy.description import Anatomy
from armillary.anatomy.layout import output_projections
from armillary.anatomy.modes import evaluating
from armillary.atlas.atlas import Atlas
from armillary.errors import ArmillaryError
from armillary.interventions.ablation import (
    HeadMeans,
    Instead,
    ablated,
    instead_of,
    mean_outputs,
    output_of,
    replacements,
)
from armillary.interventions.attention import replaced_output
from armillary.observe.precision import single, wide
from armillary.observe.rebuild import gates
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView
from armillary.probe.after_attention import AfterAttention
from armillary.probe.attribution import direct_logits
from armillary.probe.losses import sequence_losses
from armillary.probe.resuming import Resumable
from armillary.probe.trial import predicts
from armillary.progress import Progress
from armillary.scanning.passes import repeated_sequences

EXACT = 32
"""So many heads, those with the largest estimates, are ablated exactly unless all are asked for."""

MEAN_OVER = 64
"""A head's mean output at each position is taken over at most so many sequences."""

Head = tuple[int, int]


@dataclass(frozen=True)
class Corpus:
    """Sequences to ablate on, those that means are taken over, and the first row whose prediction counts."""

    tokens: Int[np.ndarray, "sequence token"]
    mean_over: Int[np.ndarray, "other token"]
    first: int


@dataclass
class Effects:
    """The loss of every sequence, and how it changes without each head: to first order (all heads), and exactly."""

    loss: Float[np.ndarray, "sequence"]
    gradient: Float[np.ndarray, "sequence layer head"]
    exact: dict[Head, Float[np.ndarray, "sequence"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ablation:
    """A row for every head, and what the numbers depend on: the losses of the whole model, the replacement, counts."""

    heads: pd.DataFrame
    about: dict[str, Any]


def ablate(
    model: nn.Module,
    atlas: Atlas,
    *,
    to: Instead = "mean",
    exact: int | None = EXACT,
    sequences: int = 8,
    batch: int = 4,
    progress: Progress | None = None,
) -> Ablation:
    """How the loss changes without each head, on the atlas's first sequences and on repeated random tokens.

    gradient_loss is the change to first order, from one backward pass for all heads; ablation_loss is exact, for the
    `exact` heads with the largest estimates, or for all (None): the head's output is replaced and only the layers from
    its own on are run again. repeat_*: the same for the loss on the second copy of repeated random tokens.
    """
    if not predicts(model):
        raise ArmillaryError(
            f"{type(model).__name__} does not predict the next token, so there is no loss to ablate heads by"
        )
    anatomy = Tap(model).anatomy
    table = pd.DataFrame(
        [(layer.index, head) for layer in anatomy.layers for head in range(layer.heads)], columns=["layer", "head"]
    )
    about: dict[str, Any] = {"to": to, "sequences": sequences, "exact": len(table) if exact is None else exact}
    for prefix, corpus in corpora(atlas, anatomy, sequences).items():
        effects = effects_on(model, corpus, to=to, exact=exact, batch=batch, progress=progress)
        about[f"{prefix}loss"] = float(effects.loss.mean())
        about[f"{prefix}together"] = _together(model, corpus, effects, to, batch)
        table = table.assign(**_columns(table, prefix, effects))
    return Ablation(table, about)


def with_direct_logits(
    model: nn.Module, atlas: Atlas, ablation: Ablation, *, sequences: int = 8, progress: Progress | None = None
) -> Ablation:
    """The same with the column direct_logit, and the parts of all other sources; without it, and the reason, where
    what writes the stream is not known.
    """
    tokens = atlas.group("corpus")["tokens"].to_numpy().astype(np.int64)[:sequences]
    try:
        parts = direct_logits(model, tokens, skip=int(atlas.settings["skip"]), progress=progress)
    except ArmillaryError as error:
        return Ablation(ablation.heads, {**ablation.about, "no_direct_logit": error.problem})
    by_source = dict(zip(parts["source"], parts["direct_logit"], strict=True))
    names = [f"L{layer}H{head}" for layer, head in zip(ablation.heads["layer"], ablation.heads["head"], strict=True)]
    others = {source: float(part) for source, part in by_source.items() if source not in set(names)}
    about = {**ablation.about, "logit": float(parts.attrs["total"]), "other_logits": others}
    return Ablation(ablation.heads.assign(direct_logit=[by_source.get(name, np.nan) for name in names]), about)


def corpora(atlas: Atlas, anatomy: Anatomy, sequences: int) -> dict[str, Corpus]:
    """The atlas's text and repeated random tokens (unless sequences are too short), by the prefix of their columns."""
    text = atlas.group("corpus")["tokens"].to_numpy().astype(np.int64)
    repeated = [repeated_sequences(text, anatomy, atlas.settings["seed"] + 1 + i) for i in range(4)]
    both = {"": Corpus(text[:sequences], text[:MEAN_OVER], int(atlas.settings["skip"]))}
    tokens, period, begin = repeated[0]
    if period:
        several = np.concatenate([rows for rows, _, _ in repeated])
        both["repeat_"] = Corpus(tokens[:sequences], several, begin + period)
    return both


def effects_on(
    model: nn.Module,
    corpus: Corpus,
    *,
    to: Instead = "mean",
    exact: int | None = EXACT,
    heads: list[Head] | None = None,
    batch: int = 4,
    progress: Progress | None = None,
) -> Effects:
    """The effects of all heads on one corpus: exact for `heads`, or for the `exact` with the largest estimates."""
    means = mean_outputs(model, corpus.mean_over, batch=batch) if to == "mean" else None
    count = max(1, round(len(corpus.tokens) / batch))
    batches = [torch.from_numpy(part) for part in np.array_split(corpus.tokens, count)]
    with evaluating(model):
        estimates = [gradient_effects(model, ids, corpus.first, to, means) for ids in batches]
    gradient = np.concatenate(estimates)
    chosen = _chosen(gradient.mean(0), exact) if heads is None else sorted(heads)
    losses, exact_by_batch, resumable = [], [], Resumable(model, Tap(model).anatomy)
    for ids in (progress or Progress()).each(batches, "batches of texts"):
        with evaluating(model):
            loss, by_head = exact_effects(resumable, ids, corpus.first, to, means, chosen)
        losses.append(loss)
        exact_by_batch.append(by_head)
    by_head = {head: np.concatenate([part[head] for part in exact_by_batch]) for head in chosen}
    return Effects(np.concatenate(losses), gradient, by_head)


def _together(model: nn.Module, corpus: Corpus, effects: Effects, to: Instead, batch: int) -> dict[str, Any]:
    """The two heads with the largest exact effects, ablated at once; and how many heads have half of all that is lost.

    Effects of heads that do not add up say that one does the other's work, or needs it.
    """
    ranked = sorted(effects.exact, key=lambda head: -float(effects.exact[head].mean()))
    pair = [head for head in ranked[:2] if effects.exact[head].mean() > 0]
    losses = np.maximum(0.0, [float(effects.exact[head].mean()) for head in ranked])
    most = int((losses.cumsum() < losses.sum() / 2).sum()) + 1 if losses.sum() > 0 else 0
    means = mean_outputs(model, corpus.mean_over, batch=batch) if to == "mean" else None
    after = []
    for tokens in np.array_split(corpus.tokens, max(1, round(len(corpus.tokens) / batch))):
        ids = torch.from_numpy(tokens).to(next(model.parameters()).device)
        with torch.no_grad(), evaluating(model), ablated(model, pair, to=to, means=means):
            after.append(sequence_losses(model(input_ids=ids).logits, ids, corpus.first))
    change = np.concatenate(after) - effects.loss
    error = float(change.std(ddof=1) / np.sqrt(len(change))) if len(change) > 1 else None
    return {
        "heads": [[layer, head] for layer, head in pair],
        "loss": float(change.mean()),
        "se": error,
        "half": most,
        "ablated": len(ranked),
    }


def _chosen(estimate: Float[np.ndarray, "layer head"], count: int | None) -> list[Head]:
    """The heads with the largest absolute estimates, or all, by layer."""
    heads = [(int(layer), int(head)) for layer, head in zip(*np.nonzero(~np.isnan(estimate)), strict=True)]
    ranked = sorted(heads, key=lambda head: -abs(estimate[head]))
    return sorted(ranked if count is None else ranked[:count])


@torch.no_grad()
def exact_effects(
    resumable: Resumable,
    tokens: Int[Tensor, "batch token"],
    first: int,
    to: Instead,
    means: HeadMeans | None,
    heads: list[Head],
) -> tuple[Float[np.ndarray, "batch"], dict[Head, Float[np.ndarray, "batch"]]]:
    """The loss of every sequence, and its change without each head.

    Blocks below the head's own are not run again, nor, where that gives the same bits, the attention of its own.
    """
    model = resumable.model
    after = AfterAttention(model, Tap(model).anatomy)
    ids = tokens.to(next(model.parameters()).device)
    with after.recording():
        before = resumable.run(ids)
    loss = sequence_losses(before.logits, ids, first)
    effects: dict[Head, Float[np.ndarray, "batch"]] = {}
    for layer, head in heads:
        resumable.try_block(layer, before)
        output = after.output(layer)
        with ExitStack() as undo:
            if output is None:
                undo.enter_context(replaced_output(model, replacements({layer: [head]}, to, means)))
            else:
                instead = instead_of(output, layer, to, means)[:, :, head]
                undo.enter_context(after.replaced(layer, head, instead))
            effects[layer, head] = sequence_losses(resumable.from_block(layer).logits, ids, first) - loss
    return loss, effects


def gradient_effects(
    model: nn.Module, tokens: Int[Tensor, "batch token"], first: int, to: Instead, means: HeadMeans | None
) -> Float[np.ndarray, "batch layer head"]:
    """- dL/do . (o - what replaces o) of every head, for every sequence: one backward pass."""
    differences: dict[int, Tensor] = {}
    ids = tokens.to(next(model.parameters()).device)
    tap = Tap(model)
    anatomy = tap.anatomy

    def receive(view: AttentionView) -> None:
        output = output_of(view)
        difference = output - instead_of(output, view.layer, to, means)
        gate = None
        if anatomy.layers[view.layer].gated:
            assert view.x is not None
            gate = gates(anatomy.weights(view.layer), view.x)
        differences[view.layer] = (difference if gate is None else difference * gate).detach()

    written: list[Tensor] = []
    with torch.enable_grad(), differentiable(model), ExitStack() as hooks:
        for projection in dict.fromkeys(output_projections(model, anatomy)):
            handle = projection.register_forward_pre_hook(lambda _, args: written.append(args[0]))
            hooks.callback(handle.remove)
        with Tap(model, receive):
            logits = single(model(input_ids=ids).logits[:, first:-1])
        following = ids[:, first + 1 :].to(logits.device)
        losses = cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none").view(len(ids), -1)
        gradients = torch.autograd.grad(losses.mean(1).sum(), written)
    most = max(layer.heads for layer in anatomy.layers)
    effects = np.full((len(ids), len(anatomy.layers), most), np.nan)
    for layer, gradient in enumerate(gradients):
        difference = differences[layer]
        products = wide(gradient.reshape(difference.shape)) * wide(difference)
        effects[:, layer, : difference.shape[2]] = -products.sum((1, 3)).cpu().numpy()
    return effects


@contextmanager
def differentiable(model: Any) -> Iterator[None]:
    """Inside, the model's hidden states have gradients, also if all its weights are frozen."""
    if any(parameter.requires_grad for parameter in model.parameters()):
        yield
        return
    table = model.get_input_embeddings().weight
    table.requires_grad_(True)
    try:
        yield
    finally:
        table.requires_grad_(False)


def _columns(table: pd.DataFrame, prefix: str, effects: Effects) -> dict[str, Any]:
    heads = list(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))
    missing = np.full(len(effects.loss), np.nan)
    by_sequence = np.array([effects.exact.get(head, missing) for head in heads])
    error = by_sequence.std(1, ddof=1) / np.sqrt(by_sequence.shape[1]) if by_sequence.shape[1] > 1 else np.nan
    return {
        f"{prefix}gradient_loss": [effects.gradient[:, layer, head].mean() for layer, head in heads],
        f"{prefix}ablation_loss": by_sequence.mean(1),
        f"{prefix}ablation_se": error,
    }
