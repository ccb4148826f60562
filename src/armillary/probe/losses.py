"""The loss of every sequence, from the model's logits."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from armillary.observe.precision import wide

AT_ONCE = 1_000_000
"""Logits converted to float64 at once: small enough that the memory is reused; new pages cost more than the losses."""


def sequence_losses(
    logits: Float[Tensor, "batch token vocabulary"],
    ids: Int[Tensor, "batch token"],
    first: int,
    last: int | None = None,
) -> Float[np.ndarray, "batch"]:
    """Mean loss of every sequence on the tokens that follow row `first` and later rows, up to token `last`."""
    last = ids.shape[1] if last is None else last
    rows = max(1, AT_ONCE // logits.shape[-1])
    losses = []
    for predicted, following in zip(logits[:, first : last - 1], ids[:, first + 1 : last], strict=True):
        parts = zip(predicted.split(rows), following.split(rows), strict=True)
        exact = ((wide(a), b) for a, b in parts)
        losses.append(torch.cat([cross_entropy(a, b.to(a.device), reduction="none") for a, b in exact]).mean())
    return torch.stack(losses).cpu().numpy()
