"""Which keys pass a signal, and how low entropy could have gone: computed while a block of logits is at hand."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from armillary.streams.stream import State
from armillary.view import row_centred

PLACES = 16
"""The keys of a row are told by their place among those it sees, in so many equal parts, oldest first."""


def propagation_counts(
    logits: Float[Tensor, "batch head row key"],
    kept: Bool[Tensor, "batch #head row key"],
    query: Tensor,
    length: int,
) -> State:
    """How often softmax to first order, (b_i - mean(b) + 1) / T over the row's T kept keys, lies in [0, 1]; by place.

    Rows of the last quarter of the text only, so that T is about the same in all. (theory/localization.py)
    """
    late = query >= length - max(1, length // 4)
    kept = kept[:, :, late]
    seen = kept.sum(-1, keepdim=True)
    share = (row_centred(logits[:, :, late], kept) + 1) / seen.clamp(min=1)
    passes = ((share >= 0) & (share <= 1) & kept).double()
    place = ((kept.cumsum(-1) - 1).clamp(min=0) * PLACES // seen.clamp(min=1)).clamp(max=PLACES - 1)
    at_place = [(place == at) & kept for at in range(PLACES)]
    return {
        "rho_hits": torch.stack([(passes * here).sum((0, 2, 3)) for here in at_place], -1),
        "rho_count": torch.stack([here.expand_as(passes).sum((0, 2, 3)).double() for here in at_place], -1),
        "rho_keys": seen.expand(-1, passes.shape[1], -1, -1).sum((0, 2, 3)).double(),
        "rho_rows": (seen > 0).expand(-1, passes.shape[1], -1, -1).sum((0, 2, 3)).double(),
    }


def least_entropy(
    logits: Float[Tensor, "batch head row key"], seen: Bool[Tensor, "batch #head row key"]
) -> Float[Tensor, "batch head row"]:
    """theory.localization.minimum_entropy of every row: the least entropy that logits of its norm can have."""
    count = seen.sum(-1).double()
    others = (count - 1).clamp(min=1)
    norm = row_centred(logits, seen).square().sum(-1).sqrt()
    gap = norm * (count / others).sqrt()
    odds = others.log() - gap
    least = torch.nn.functional.softplus(odds) + gap * torch.sigmoid(odds)
    return torch.where(count > 1, least, 0.0)
