"""Heads that attend as they are told: their attention is replaced, and all that follows is computed from it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.errors import ArmillaryError
from armillary.tap import Tap
from armillary.view import AttentionView, exact_arithmetic

Told = Callable[[AttentionView], dict[int, Float[Tensor, "batch query key"]]]
"""Gives the new attention of some heads of a layer, from what the layer saw; none for a layer that stays."""


Outputs = Callable[[AttentionView], dict[int, Float[Tensor, "batch query ev"]]]
"""Gives the new output of some heads of a layer: what their attention mixes from the values."""


@contextmanager
def attending(model: nn.Module, told: Told) -> Iterator[nn.Module]:
    """While open, the output of every head that `told` names is its new attention times v. No weight is touched.

    It works wherever the tap does, on the model's own output of attention, without gradients.
    """

    def outputs(view: AttentionView) -> dict[int, Float[Tensor, "batch query ev"]]:
        return {head: mixed(view, head, attention) for head, attention in told(view).items()}

    with giving(model, outputs):
        yield model


@contextmanager
def giving(model: nn.Module, outputs: Outputs) -> Iterator[nn.Module]:
    """While open, the output of every head that `outputs` names is what it says."""

    def receive(view: AttentionView) -> None:
        for head, output in outputs(view).items():
            if view.output is None or torch.is_grad_enabled():
                raise ArmillaryError(
                    "attention cannot be replaced here: run the model under torch.no_grad(), with sdpa or eager"
                )
            view.output[:, :, head] = output.to(view.output.dtype)  # the model's own tensor

    with Tap(model, receive):
        yield model


def mixed(
    view: AttentionView, head: int, attention: Float[Tensor, "batch query key"]
) -> Float[Tensor, "batch query ev"]:
    """This attention times the values that the head reads."""
    values = view.v[:, head // (view.heads // view.v.shape[1])].to(attention.dtype)
    with exact_arithmetic(attention):
        return attention @ values
