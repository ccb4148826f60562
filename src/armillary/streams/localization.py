"""Which keys pass a signal (rho), and the least possible entropy of every row, from a tile of logits."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.observe.precision import wide
from armillary.streams.stream import State
from armillary.streams.tiles import of_heads

PLACES = 16
"""The keys that a row sees are divided into this many equal parts (places), oldest first."""


class Propagation:
    """How often softmax to first order, (b_i - mean(b) + 1) / T over the row's T kept keys, lies in [0, 1]; by place.

    Rows of the last quarter of the text only, so that T is about the same in all. (theory/localization.py)
    """

    def __init__(self, late: slice, count: Int[Tensor, "#batch #head late"]) -> None:
        self.late = late
        self.any = late.start < late.stop
        """Whether any row counts."""
        self._count = count[..., None]
        parts = torch.arange(PLACES + 1, device=count.device)
        self._before = (parts * self._count + PLACES - 1) // PLACES  # number of kept keys before each place
        self._number = wide(self._before.diff(dim=-1))
        self._keys = self._before

    @classmethod
    def masked(
        cls, kept: Bool[Tensor, "#batch #head row key"], query: Int[Tensor, "row"], length: int
    ) -> "Propagation":
        """For rows with any mask."""
        late = _late(query, length)
        kept = kept[:, :, late]
        propagation = cls(late, kept.sum(-1))
        propagation._keys = torch.searchsorted(kept.cumsum(-1), propagation._before, right=True)
        return propagation

    def passes(
        self,
        off: Float[Tensor, "batch head row key"],
        heads: slice,
        out: Float[Tensor, "batch head late key"],
    ) -> Float[Tensor, "batch head late key"]:
        """1 where a key passes a signal, in the late rows; off: the logits minus their row's mean."""
        high = wide(of_heads(self._count, heads) - 1)
        off = off[:, :, self.late]
        torch.ge(off, -1, out=out)
        return out.mul_(off <= high.to(off))

    def hits(self, passes: Float[Tensor, "batch head late key"], heads: slice) -> State:
        """The counts of these heads; passes: 1 where a kept key of a late row passes, else 0. Overwrites passes."""
        count, keys = (of_heads(part, heads) for part in (self._count, self._keys))
        shape = (passes.shape[0], passes.shape[1], -1, -1)
        if count.shape[0] == 1 and len(passes) > 1:  # places are the same in all sequences
            passes = passes.sum(0, keepdim=True)
        before = _before(passes, keys)
        return {
            "rho_hits": before.diff(dim=-1),
            "rho_count": of_heads(self._number, heads).expand(shape).sum((0, 2)),
            "rho_keys": wide(count).expand(shape).sum((0, 2, 3)),
            "rho_rows": wide(count > 0).expand(shape).sum((0, 2, 3)),
        }


def _before(
    passes: Float[Tensor, "batch head late key"], keys: Int[Tensor, "#batch #head late edge"]
) -> Float[Tensor, "head edge"]:
    """The number of passes before these keys of each row, over all sequences and rows. Overwrites passes."""
    upto = torch.cumsum(passes, -1, out=passes).gather(-1, (keys - 1).clamp(min=0).expand(*passes.shape[:3], -1))
    return wide(upto * (keys > 0)).sum((0, 2))


def _late(query: Int[Tensor, "row"], length: int) -> slice:
    """The rows of the last quarter."""
    first = length - max(1, length // 4)
    return slice(int((query < first).sum()), len(query))


def least_entropy(
    square: Float[Tensor, "batch head row"], count: Float[Tensor, "#batch #head row"]
) -> Float[Tensor, "batch head row"]:
    """theory.localization.minimum_entropy of every row: the least entropy of `count` logits whose squares about the
    row's mean sum to `square`."""
    others = (count - 1).clamp(min=1)
    gap = square.sqrt() * (count / others).sqrt()
    odds = others.log() - gap
    least = torch.nn.functional.softplus(odds) + gap * torch.sigmoid(odds)
    return torch.where(count > 1, least, 0.0)
