"""Replace the attention pattern or the output of chosen heads while the model runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.errors import ArmillaryError
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView, exact_arithmetic

Patterns = Callable[[AttentionView], dict[int, Float[Tensor, "batch query key"]]]
"""Gives the new attention of some heads of a layer, from the view of that layer; {} for no change."""


Outputs = Callable[[AttentionView], dict[int, Float[Tensor, "batch query ev"]]]
"""Gives the new output (attention times v) of some heads of a layer, from the view of that layer."""


@contextmanager
def attending(model: nn.Module, patterns: Patterns) -> Iterator[nn.Module]:
    """Inside, the output of every head in `patterns` is its new attention times v. Weights do not change.

    Works for every model that the tap supports, without gradients.
    """

    def outputs(view: AttentionView) -> dict[int, Float[Tensor, "batch query ev"]]:
        return {head: attention_times_values(view, head, attention) for head, attention in patterns(view).items()}

    with replaced_output(model, outputs):
        yield model


@contextmanager
def replaced_output(model: nn.Module, outputs: Outputs) -> Iterator[nn.Module]:
    """Inside, the heads in `outputs` have the outputs that it gives."""

    def receive(view: AttentionView) -> None:
        for head, output in outputs(view).items():
            if view.output is None or torch.is_grad_enabled():
                raise ArmillaryError(
                    "attention cannot be replaced in this run",
                    advice="run the model under torch.no_grad(), with sdpa or eager",
                )
            view.output[:, :, head] = output.to(view.output)  # in place, in the model's own tensor

    with Tap(model, receive, own=True):
        yield model


def attention_times_values(
    view: AttentionView, head: int, attention: Float[Tensor, "batch query key"]
) -> Float[Tensor, "batch query ev"]:
    """This attention times the values of the head."""
    values = view.v[:, head // (view.heads // view.v.shape[1])].to(attention)
    with exact_arithmetic(attention):
        return attention @ values
