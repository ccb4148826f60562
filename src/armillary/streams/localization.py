"""Which keys pass a signal, and how low entropy could have gone: computed while a tile of logits is at hand."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.streams.stream import State, wide
from armillary.streams.tiles import of_heads

PLACES = 16
"""The keys of a row are told by their place among those it sees, in so many equal parts, oldest first."""


class Propagation:
    """How often softmax to first order, (b_i - mean(b) + 1) / T over the row's T kept keys, lies in [0, 1]; by place.

    Rows of the last quarter of the text only, so that T is about the same in all. (theory/localization.py)
    """

    def __init__(self, kept: Bool[Tensor, "#batch #head row key"], query: Int[Tensor, "row"], length: int) -> None:
        first = length - max(1, length // 4)
        self._late = slice(int((query < first).sum()), None)
        self._kept = kept[:, :, self._late]
        self._count = self._kept.sum(-1, keepdim=True)
        parts = torch.arange(PLACES + 1, device=kept.device)
        before = (parts * self._count + PLACES - 1) // PLACES  # so many kept keys lie before each place
        self._keys = torch.searchsorted(self._kept.cumsum(-1), before, right=True)
        self._number = wide(before.diff(dim=-1))

    def hits(self, off: Float[Tensor, "batch head row key"], heads: slice) -> State:
        """The counts of these heads, whose row-centred logits are given."""
        kept, count, keys = (of_heads(part, heads) for part in (self._kept, self._count, self._keys))
        off = off[:, :, self._late]
        passes, below = torch.empty_like(off), torch.empty_like(off)
        torch.ge(off, -1, out=passes).mul_(torch.le(off, (count - 1).to(off.dtype), out=below)).mul_(kept)
        if kept.shape[0] == 1:  # the places are the same in all texts
            passes = passes.sum(0, keepdim=True)
        before = torch.nn.functional.pad(passes.cumsum(-1), (1, 0)).gather(-1, keys.expand(*passes.shape[:3], -1))
        every = (off.shape[0], off.shape[1], -1, -1)
        return {
            "rho_hits": wide(before.diff(dim=-1)).sum((0, 2)),
            "rho_count": of_heads(self._number, heads).expand(every).sum((0, 2)),
            "rho_keys": wide(count).expand(every).sum((0, 2, 3)),
            "rho_rows": wide(count > 0).expand(every).sum((0, 2, 3)),
        }


def least_entropy(
    square: Float[Tensor, "batch head row"], count: Float[Tensor, "#batch #head row"]
) -> Float[Tensor, "batch head row"]:
    """theory.localization.minimum_entropy of every row: the least entropy that `count` logits can have whose squares,
    less the row's mean, sum to `square`."""
    others = (count - 1).clamp(min=1)
    gap = square.sqrt() * (count / others).sqrt()
    odds = others.log() - gap
    least = torch.nn.functional.softplus(odds) + gap * torch.sigmoid(odds)
    return torch.where(count > 1, least, 0.0)
