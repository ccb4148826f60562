"""A block of rows of plain causal attention, whole rows at a time: what a long text mostly is.

All that is masked lies near the diagonal (and, with a window, at its other end), so that masks touch only those
columns. Keys are taken less the mean of those that all rows see, so that logits are c + mean with small c. The work is
done in a few buffers that all tiles use, and as products of matrices where it can be: sums by lag are products with a
view of the tile whose rows lie one place further each; sums by cell and channel need no logits at all.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.streams.by_place import Places, cell_edges, cell_of
from armillary.streams.localization import HITS, Propagation, least_entropy
from armillary.streams.rows import (
    FARTHEST,
    HIDDEN,
    RowPowers,
    SoftRows,
    Spread,
    attention_sums,
    channel_sums,
    joined,
    logit_moments,
    read,
    soft_rows,
    spread_of,
    together,
)
from armillary.streams.stream import State, wide
from armillary.streams.tiles import Rows
from armillary.view import AttentionView, exact_arithmetic, grouped_products

LOG2E = math.log2(math.e)

TILE = 1 << 20
"""About so many logits are computed at once."""

WORTH = 2
"""Rows are taken whole if they all see at least so many times as many keys as lie in masked columns."""


class Shared:
    """What all blocks of one layer use: sums of the first keys, and memory that is used again."""

    def __init__(self, view: AttentionView) -> None:
        self._k = view.k
        self._upto: Tensor | None = None
        self._flat: dict[str, Tensor] = {}

    @property
    def upto(self) -> Float[Tensor, "batch kv_head place e"]:
        """Sums of the keys before each place."""
        if self._upto is None:
            self._upto = torch.nn.functional.pad(wide(self._k).cumsum(2), (0, 0, 1, 0))
        return self._upto

    def take(self, name: str, count: int, like: Tensor) -> Float[Tensor, "count"]:
        """So many numbers by this name, with whatever was left in them."""
        flat = self._flat.get(name)
        if flat is None or len(flat) < count:
            flat = self._flat[name] = like.new_empty(max(count, 2 * TILE))
        return flat[:count]


def plain_keys(view: AttentionView, block: Rows, skip: int) -> slice | None:
    """The kept keys that all rows see, if that is most, and if the others are hidden by causality or a window alone."""
    span, first, last = block.keys, int(block.query[0]), int(block.query[-1])
    start = max(skip, 0 if view.window is None else last - view.window + 1)
    masked = span.stop - max(span.start, skip) - (first - start)
    if first - start < WORTH * masked or view.queries != view.keys or not view.causal:
        return None
    if view.bias is not None or view.softcap is not None or view.q.device.type == "mps":  # mps has no float64
        return None
    keys = block.places
    seen = keys <= block.query[:, None]
    if view.window is not None:
        seen &= block.query[:, None] - keys < view.window
    return slice(start, first) if view.mask is None or bool((block.seen == seen).all()) else None


class CausalBlock:
    """Its rows from the first kept key that any of them sees on; those before it, which are few, are masked apart."""

    def __init__(
        self, view: AttentionView, block: Rows, plain: slice, skip: int, shared: Shared, places: Places
    ) -> None:
        self.view, self.block, self.plain, self.shared, self.places = view, block, plain, shared, places
        span = block.keys
        self.start, self.stop = max(span.start, skip), span.stop
        self.size, self.rows = self.stop - self.start, len(block.query)
        self.group = view.heads // view.k.shape[1]
        self.dtype = torch.promote_types(view.q.dtype, torch.float32)
        seen = block.seen[..., self.start - span.start :]
        self.kept = seen[:1, :1].to(self.dtype)[0, 0]  # the same in all texts and heads
        self.count = self.kept.sum(-1, dtype=torch.float64)[None, None]
        self.visible = wide(block.seen[:1, :1].sum(-1))
        self.propagation = Propagation(seen[:1, :1], block.query, places.length)
        left, right = plain.start - self.start, plain.stop - self.start
        self.masked = [part for part in (slice(0, left), slice(right, self.size)) if part.start < part.stop]
        keys = torch.arange(self.start, self.stop, device=seen.device)
        self.distance = (block.query[:, None] - keys).abs().to(self.dtype)
        k = view.k[:, :, self.start : self.stop].to(self.dtype)
        self.middle = (shared.upto[:, :, plain.stop] - shared.upto[:, :, plain.start]) / (plain.stop - plain.start)
        near = self.middle.to(k)
        self.k = (k - near[:, :, None]).sub_((self.middle - near).to(k)[:, :, None])
        self.gram = _gram(self.k[:, :, left:right])
        cell = cell_of(block.query, places.length)
        self.cells = (cell == torch.arange(int(cell[0]), int(cell[-1]) + 1, device=cell.device)[:, None]).to(self.dtype)

    def state(self) -> State:
        batch, heads = len(self.view.q), slice(0, self.view.heads)
        q = self.view.q[:, :, self.block.rows].to(self.dtype) * self.view.scale
        means = (wide(q) * self._of_heads(self.middle)[:, :, None]).sum(-1)
        got = self._tiles(q, means)
        self._add_lags(got, means)
        self._add_cells(got, q, means)
        self._count(batch)
        powers = _powers(self.count, means, *(got[name] for name in ("first", "second", "third", "fourth")))
        soft = SoftRows(got["top"] + means, got["total"], got["gap"], got["distance"], got["near"].movedim(-1, 0))
        every: Spread = powers
        if self.start > self.block.keys.start:
            beside, others = self._skipped(q)
            soft, every = joined(soft, beside), together(powers, others)
        found = read(wide(q), self.gram) + got["found"]
        found += (means - powers.mean)[..., None] * self._of_heads(self._masked_keys())
        hits = {name: got[name] for name in HITS} if self.propagation.any else self.propagation.none(heads.stop, batch)
        rows = torch.tensor(float(batch * self.rows), dtype=torch.float64, device=means.device)
        return {
            **attention_sums(soft, self.visible, self.view.sinks),
            **logit_moments(powers),
            **channel_sums(q, found, torch.zeros_like(means), powers.square),
            **hits,
            "least_entropy": least_entropy(every.square, self.visible).sum((0, 2)),
            "rows": rows,
        }

    def _of_heads(self, tensor: Float[Tensor, "batch kv_head ..."]) -> Float[Tensor, "batch head ..."]:
        return tensor.repeat_interleave(self.group, 1)

    def _tiles(self, q: Float[Tensor, "batch head row e"], means: Float[Tensor, "batch head row"]) -> State:
        """All heads, a few at a time: whole groups that share a key head, or an equal part of one."""
        few = max(1, TILE // (len(q) * self.rows * self.size))
        few = few // self.group * self.group or max(n for n in range(1, few + 1) if self.group % n == 0)
        slopes = (means - means.mean(-1, keepdim=True)).to(q)
        parts = []
        for start in range(0, q.shape[1], few):
            heads = slice(start, min(start + few, q.shape[1]))
            parts.append(self._tile(q[:, heads], heads, slopes[:, heads]))
        return {name: torch.cat([part[name] for part in parts], int(name not in HITS)) for name in parts[0]}

    def _tile(
        self, q: Float[Tensor, "batch head row e"], heads: slice, slopes: Float[Tensor, "batch head row"]
    ) -> State:
        """Sums by row; `once`, `weighted`, `twice`: along diagonals, of c, c slope, c^2; and what masked columns say.

        Hidden pairs have c = 0, which no row's largest lies below.
        """
        batch, count, rows, e = q.shape
        many = batch * count
        own = self.k[:, heads.start // self.group : (heads.stop - 1) // self.group + 1]
        k = own.reshape(-1, self.size, e)
        logits, skewed = self._padded("logits", many, q)
        squares, skewed_squares = self._padded("squares", many, q)
        weight = self.shared.take("weights", many * rows * self.size, q).view(many, rows, self.size)
        both = torch.stack([torch.ones_like(slopes), slopes], 2).view(many, 2, rows)
        with exact_arithmetic(q):
            torch.bmm(q.reshape(len(k), -1, e), k.mT, out=logits.unflatten(0, (len(k), -1)).flatten(1, 2))
            self._mask(logits)
            along = torch.bmm(both, skewed)
            edge = torch.cat([logits[..., part] for part in self.masked], -1).view(batch, count, rows, -1)
            found = read(edge, torch.cat([own[:, :, part] for part in self.masked], 2))
            cells = self.cells @ edge
        sums = {"first": wide(logits.sum(-1)), "top": wide((top := logits.amax(-1, keepdim=True))[..., 0])}
        gap = torch.add(top * -LOG2E, logits, alpha=LOG2E, out=squares).clamp_(min=FARTHEST * LOG2E)
        self._mask(torch.exp2(gap, out=weight))  # much faster than exp
        near = self._near(weight)
        sums["total"], sums["gap"] = wide(weight.sum(-1)), wide(gap.mul_(weight).sum(-1)) / LOG2E
        sums["distance"] = wide(weight.mul_(self.distance).sum(-1))
        sums["second"] = wide(torch.mul(logits, logits, out=squares).sum(-1))
        with exact_arithmetic(q):
            twice = torch.bmm(both[:, :1], skewed_squares)
        sums["third"] = wide(torch.mul(logits, squares, out=weight).sum(-1))
        sums["fourth"] = wide(torch.mul(squares, squares, out=weight).sum(-1))
        state = {name: tensor.view(batch, count, rows) for name, tensor in sums.items()}
        state |= {"near": near.view(batch, count, rows, 3), "found": wide(found), "cells": wide(cells)}
        diagonals = wide(torch.cat([along, twice], 1)).view(batch, count, 3, -1)
        state |= dict(zip(("once", "weighted", "twice"), diagonals.unbind(2), strict=True))
        if self.propagation.any:
            state |= self._hits(logits.unflatten(0, (batch, count)), -state["first"] / self.count, heads)
        return state

    def _padded(
        self, name: str, many: int, like: Tensor
    ) -> tuple[Float[Tensor, "many row key"], Float[Tensor, "many row diagonal"]]:
        """A tile with zeros behind every row and before the first; and the same with rows one place further each."""
        zeros, width = self.rows - 1, self.size + self.rows - 1
        flat = self.shared.take(name, zeros + many * self.rows * width, like)
        flat[:zeros].zero_()
        tile = flat[zeros:].view(many, self.rows, width)
        tile[..., self.size :].zero_()
        return tile[..., : self.size], flat.as_strided((many, self.rows, width), (self.rows * width, width + 1, 1))

    def _mask(self, tile: Float[Tensor, "*many row key"]) -> Float[Tensor, "*many row key"]:
        for part in self.masked:
            tile[..., part].mul_(self.kept[-tile.shape[-2] :, part])
        return tile

    def _near(self, weight: Float[Tensor, "many row key"]) -> Float[Tensor, "many row three"]:
        """The weights of each row's own key, of the one before, and of the text's first."""
        own = int(self.block.query[0]) - self.start
        first = weight[..., 0] if self.start == 0 else torch.zeros_like(weight[..., 0])
        return wide(torch.stack([weight.diagonal(own, 1, 2), weight.diagonal(own - 1, 1, 2), first], -1))

    def _hits(
        self, c: Float[Tensor, "batch head row key"], shift: Float[Tensor, "batch head row"], heads: slice
    ) -> State:
        shape = (*c.shape[:2], c[:, :, self.propagation.late].shape[2], self.size)
        passes = self.shared.take("weights", math.prod(shape), c).view(shape)
        return self.propagation.hits(self._mask(self.propagation.passes(c, shift, heads, passes)), heads)

    def _skipped(self, q: Float[Tensor, "batch head row e"]) -> tuple[SoftRows, Spread]:
        """What the keys say that are seen but not kept."""
        begin = self.block.keys.start
        span = slice(begin, self.start)
        seen = self.block.seen[:1, :1, :, : self.start - begin]
        few = Rows(self.block.rows, span, self.block.query, seen)
        logits = grouped_products(q, self.view.k[:, :, span])
        hidden = torch.zeros_like(seen, dtype=self.dtype).masked_fill_(~seen, HIDDEN)
        distance = (self.block.query[:, None] - few.places).to(self.dtype)
        return soft_rows(logits, hidden, wide(seen.sum(-1)), distance, few), spread_of(logits, seen)

    def _masked_keys(self) -> Float[Tensor, "batch kv_head row e"]:
        """Of each row, the sum of the kept keys in masked columns; all others sum to zero."""
        kept = torch.cat([self.kept[:, part] for part in self.masked], -1)
        return wide(kept @ torch.cat([self.k[:, :, part] for part in self.masked], 2))

    def _rows_of_diagonals(self) -> tuple[Int[Tensor, "diagonal"], Int[Tensor, "diagonal"]]:
        """The first row of kept pairs on each diagonal, and the one after the last; the largest lag first."""
        diagonal = torch.arange(self.size + self.rows - 1, device=self.block.query.device)
        lag = self._lowest + self.size + self.rows - 2 - diagonal
        seen = (lag >= 0) & (lag < (self.view.window or self.places.length))
        first = (self.rows - 1 - diagonal).clamp(min=0)
        return first, torch.where(seen, (self.size + self.rows - 1 - diagonal).clamp(max=self.rows), first)

    @property
    def _lowest(self) -> int:
        """The lag of the first row and the last key."""
        return int(self.block.query[0]) - int(self.stop) + 1

    def _add_lags(self, got: State, means: Float[Tensor, "batch head row"]) -> None:
        """Sums over texts and along diagonals of the logits, c + mean, and of their squares."""
        first, stop = self._rows_of_diagonals()
        heads, middle = slice(0, means.shape[1]), means.mean(-1, keepdim=True)
        some, squared = (torch.nn.functional.pad(one.cumsum(-1), (1, 0)).sum(0) for one in (means, means.square()))
        once = got["once"].sum(0) + some[:, stop] - some[:, first]
        weighted = got["weighted"] + middle * got["once"]
        twice = (got["twice"] + 2 * weighted).sum(0) + squared[:, stop] - squared[:, first]
        self.places.add_lags("lag_sum", heads, self._lowest, once.flip(-1))
        self.places.add_lags("lag_square", heads, self._lowest, twice.flip(-1))

    def _add_cells(
        self, got: State, q: Float[Tensor, "batch head row e"], means: Float[Tensor, "batch head row"]
    ) -> None:
        """Sums over texts of the logits by cell: sums of queries times sums of keys, where all is seen."""
        length, heads = self.places.length, slice(0, q.shape[1])
        edges = cell_edges(length, q.device).clamp(self.plain.start, self.plain.stop)
        keys = self.shared.upto[:, :, edges].diff(dim=2)
        sums = grouped_products(wide(self.cells) @ wide(q), keys).sum(0)
        weighted = wide(self.cells) * means.sum(0)[:, None]
        kept = torch.cat([self.kept[:, part] for part in self.masked], -1)
        places = torch.cat([torch.arange(part.start, part.stop, device=q.device) for part in self.masked]) + self.start
        edge = got["cells"].sum(0) + weighted @ wide(kept)
        self.places.cells("cell_sum", heads, self.block.query).add_(sums).index_add_(2, cell_of(places, length), edge)

    def _count(self, batch: int) -> None:
        """The numbers of pairs, by lag and cell."""
        first, stop = self._rows_of_diagonals()
        one = slice(0, 1)
        self.places.add_lags("lag_count", one, self._lowest, wide(batch * (stop - first)).flip(-1)[None])
        block = Rows(self.block.rows, slice(self.start, self.stop), self.block.query, self.kept.bool()[None, None])
        self.places.add_pairs_by_cell("cell_count", one, block, batch * wide(self.kept)[None])


def _powers(count: Tensor, mean: Tensor, first: Tensor, second: Tensor, third: Tensor, fourth: Tensor) -> RowPowers:
    """Sums of powers about the mean, from those about some number near it, which was the mean of `mean`."""
    d = first / count
    square = second - count * d**2
    cube = third - 3 * d * second + 2 * count * d**3
    return RowPowers(
        count, mean + d, square.clamp(min=0), cube, fourth - 4 * d * third + 6 * d**2 * second - 3 * count * d**4
    )


def _gram(k: Float[Tensor, "batch kv_head key e"], some: int = 64) -> Float[Tensor, "batch kv_head e e"]:
    """k'k: some keys at a time in k's precision, then in float64."""
    padded = torch.nn.functional.pad(k, (0, 0, 0, -k.shape[2] % some)).unflatten(2, (-1, some))
    with exact_arithmetic(k):
        products: Tensor = padded.mT @ padded
    return products.sum(2, dtype=torch.float64)
