"""Ablate heads: replace what chosen heads write (before W_o) by their mean, by zero, or by another text's output."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.layout import entry
from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError, unknown
from armillary.interventions.attention import replaced_output
from armillary.observe.precision import wide
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView

Instead = Literal["mean", "zero", "resampled"]
"""What a head's output is replaced by: its mean at the same position, zero, or its output on another text."""

Heads = Iterable[tuple[int, int]]
"""(layer, head) pairs."""


@dataclass(frozen=True)
class HeadMeans:
    """The mean output of every head at every position (attention times v, before W_o), layer by layer."""

    layers: tuple[Float[Tensor, "position _ _"], ...]

    def at(self, layer: int, length: int) -> Float[Tensor, "position head ev"]:
        """The means of a layer at the first `length` positions."""
        means = self.layers[layer]
        if length > len(means):
            raise ArmillaryError(
                f"the text has {length} tokens, but the means are those of {len(means)} positions",
                advice=f"cut it to {len(means)} tokens",
            )
        return means[:length]


@torch.no_grad()
def mean_outputs(model: nn.Module, tokens: Int[np.ndarray, "sequence token"], *, batch: int = 8) -> HeadMeans:
    """The mean output of every head at each position, over these sequences."""
    sums: dict[int, Tensor] = {}

    def receive(view: AttentionView) -> None:
        added = wide(output_of(view)).sum(0)
        sums[view.layer] = sums[view.layer] + added if view.layer in sums else added

    device = next(model.parameters()).device
    with evaluating(model), Tap(model, receive):
        for start in range(0, len(tokens), batch):
            entry(model)(input_ids=torch.from_numpy(tokens[start : start + batch]).to(device))
    return HeadMeans(tuple(sums[layer] / len(tokens) for layer in sorted(sums)))


@contextmanager
def ablated(
    model: nn.Module, heads: Heads, *, to: Instead = "zero", means: HeadMeans | None = None
) -> Iterator[nn.Module]:
    """Inside, the chosen heads write their mean at each position (`means`, see mean_outputs), zero, or what they write
    on another sequence of the batch (resampled). Weights do not change; the model runs under torch.no_grad().
    """
    if to not in get_args(Instead):
        raise unknown("replacement", to, get_args(Instead))
    if to == "mean" and means is None:
        raise ArmillaryError(
            "the mean outputs of the heads are not known",
            advice="pass `means=interventions.mean_outputs(model, tokens)`",
        )
    by_layer = _by_layer(describe(model), heads)
    with replaced_output(model, replacements(by_layer, to, means)):
        yield model


def replacements(
    heads: dict[int, list[int]], to: Instead, means: HeadMeans | None
) -> Callable[[AttentionView], dict[int, Float[Tensor, "batch query ev"]]]:
    """The outputs of the chosen heads of a layer, from its view."""

    def outputs(view: AttentionView) -> dict[int, Float[Tensor, "batch query ev"]]:
        chosen = heads.get(view.layer, [])
        return {head: instead_of(output_of(view), view.layer, to, means)[:, :, head].clone() for head in chosen}

    return outputs


def instead_of(
    output: Float[Tensor, "batch query head ev"], layer: int, to: Instead, means: HeadMeans | None
) -> Float[Tensor, "batch query head ev"]:
    """What the heads of a layer write instead of this output."""
    if to == "zero":
        return torch.zeros_like(output)
    if to == "resampled":
        if len(output) < 2:
            raise ArmillaryError("one sequence has no other to take a head's output from", advice="run two or more")
        return output.roll(1, 0)
    assert means is not None
    return means.at(layer, output.shape[1]).to(output).expand_as(output)


def output_of(view: AttentionView) -> Float[Tensor, "batch query head ev"]:
    """The output of the heads of a layer."""
    if view.output is None:
        raise ArmillaryError(
            "the output of this model's heads is not seen",
            advice="load the model with attn_implementation='sdpa' or 'eager'",
        )
    return view.output


def _by_layer(anatomy: Anatomy, heads: Heads) -> dict[int, list[int]]:
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        if not 0 <= layer < len(anatomy.layers) or not 0 <= head < anatomy.layers[layer].heads:
            raise ArmillaryError(
                f"there is no head L{layer}H{head}",
                advice=f"this model has layers 0 to {len(anatomy.layers) - 1} with heads 0 to "
                f"{max(described.heads for described in anatomy.layers) - 1}",
                given=(layer, head),
            )
        by_layer.setdefault(layer, []).append(head)
    return by_layer
