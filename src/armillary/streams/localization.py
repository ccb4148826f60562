"""Which keys pass a signal (rho), and the least possible entropy of every row, from a tile of logits."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.observe.precision import wide
from armillary.streams.stream import State
from armillary.streams.tiles import of_heads

PLACES = 16
"""The keys that a row sees are divided into this many equal parts (places), oldest first."""


TOGETHER = 16
"""This many consecutive rows are counted together; their places begin within a few keys of each other."""

HITS = ("rho_hits", "rho_count", "rho_keys", "rho_rows")
"""The counts in the state."""


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
        self._runs: _Runs | None = None

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

    @classmethod
    def runs(
        cls,
        first: Int[Tensor, "1 1 row"],
        count: Int[Tensor, "1 1 row"],
        query: Int[Tensor, "row"],
        length: int,
    ) -> "Propagation":
        """For rows whose kept keys are `count` consecutive ones from `first` on; neither decreases from row to row."""
        late = _late(query, length)
        propagation = cls(late, count[..., late])
        propagation._keys = first[..., late, None] + propagation._before
        if propagation.any:
            propagation._runs = _Runs(propagation._keys[0, 0])
        return propagation

    def passes(
        self,
        off: Float[Tensor, "batch head row key"],
        shift: Float[Tensor, "batch head row"] | None,
        heads: slice,
        out: Float[Tensor, "batch head late key"],
        top: Float[Tensor, "batch head row"] | None = None,
    ) -> Float[Tensor, "batch head late key"]:
        """1 where a key passes a signal, in the late rows; off + shift are the logits minus their row's mean.

        top: an upper bound of `off` by row, if known.
        """
        high = wide(of_heads(self._count, heads) - 1)
        low = torch.full_like(high, -1)
        if shift is not None:
            low, high = (limit - shift[:, :, self.late, None] for limit in (low, high))
        off = off[:, :, self.late]
        torch.ge(off, low.to(off), out=out)
        largest = off.amax(-1, keepdim=True) if top is None else top[:, :, self.late, None]
        if bool((largest > high.to(off)).any()):  # rare
            out.mul_(off <= high.to(off))
        return out

    def none(self, heads: int, batch: int) -> State:
        """The counts if no row is late."""
        empty = torch.zeros(batch, heads, 0, self._keys.shape[-1], device=self._count.device)
        return self.hits(empty, slice(0, heads))

    def hits(self, passes: Float[Tensor, "batch head late key"], heads: slice) -> State:
        """The counts of these heads; passes: 1 where a kept key of a late row passes, else 0. Overwrites passes."""
        count, keys = (of_heads(part, heads) for part in (self._count, self._keys))
        shape = (passes.shape[0], passes.shape[1], -1, -1)
        if self._runs is None and count.shape[0] == 1 and len(passes) > 1:  # places are the same in all sequences
            passes = passes.sum(0, keepdim=True)
        before = _before(passes, keys) if self._runs is None else self._runs.before(passes)
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


class _Runs:
    """The same where keys move little from row to row: rows are added first, then summed along the keys."""

    def __init__(self, keys: Int[Tensor, "late edge"]) -> None:
        group = torch.arange(len(keys), device=keys.device) // TOGETHER
        base = keys[::TOGETHER]  # of the first row of every group; the others are less than `width` further
        off = keys - base[group]
        self._width = int(off.max()) + 1
        step = torch.arange(self._width, device=keys.device)
        self._at, self._there = (base - 1).clamp(min=0), base > 0
        self._more, self._between = (base[group][..., None] + step).flatten(1), (step < off[..., None]).flatten(1)

    def before(self, passes: Float[Tensor, "batch head late key"]) -> Float[Tensor, "head edge"]:
        heads, late, keys = passes.shape[1:]
        full = late // TOGETHER * TOGETHER
        columns = passes[:, :, :full].unflatten(2, (-1, TOGETHER)).sum(3).sum(0)
        if full < late:
            columns = torch.cat([columns, passes[:, :, full:].sum((0, 2))[:, None]], 1)
        upto = columns.cumsum(-1, dtype=torch.float64).gather(-1, self._at.expand(heads, -1, -1))
        at = self._more.clamp(max=keys - 1).expand(*passes.shape[:2], -1, -1)
        more = wide((passes.gather(-1, at) * self._between).sum((0, 2))).unflatten(-1, (-1, self._width))
        sums: Tensor = (upto * self._there).sum(1) + more.sum(-1)
        return sums


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
