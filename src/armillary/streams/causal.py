"""Attention statistics of a block of rows of plain causal attention, the usual case in long texts.

    keys       minus the mean of those that all rows see, so that a logit is c + q.mean with small c
    for each tile (a few heads)
        1 logits       c of all pairs, one matrix product; zero where a pair is hidden
        2 softmax      exp(c - largest c), and sums of it by row
        3 powers       sums of c^3 and c^4 by row (c and c^2 come from an e x e product)
        4 diagonals    sums of c and c^2 by lag: products with a view whose columns are diagonals
        5 hits         which keys pass a signal (streams/localization.py)
    then, for all heads together
        moments of the logits and shares of channels, sums by lag and by cell, without visiting pairs again

Masks touch only the columns of causal_geometry.py; tiles live in the buffers of workspace.py.
"""

import math
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.observe.precision import wide
from armillary.observe.view import AttentionView, exact_arithmetic, grouped_products
from armillary.streams.by_place import Places, cell_edges, cell_of
from armillary.streams.causal_geometry import Geometry
from armillary.streams.localization import HITS, least_entropy
from armillary.streams.rows import (
    FARTHEST,
    RowPowers,
    SoftRows,
    Spread,
    attention_sums,
    channel_sums,
    logit_moments,
    read,
    spread_of,
    together,
)
from armillary.streams.stream import State
from armillary.streams.tiles import Rows
from armillary.streams.workspace import Workspace

LOG2E = math.log2(math.e)


class LayerKeys:
    """What all blocks of one layer share: cumulative sums of its keys, the longest key, the memory for tiles."""

    def __init__(self, view: AttentionView) -> None:
        self._k = view.k
        self.workspace = Workspace(view)

    @cached_property
    def upto(self) -> Float[Tensor, "batch kv_head place e"]:
        """Sums of the keys before each place."""
        batch, heads, keys, e = self._k.shape
        sums = torch.zeros(batch, heads, keys + 1, e, dtype=torch.float64, device=self._k.device)
        torch.cumsum(self._k, 2, dtype=torch.float64, out=sums[:, :, 1:])
        return sums

    @cached_property
    def longest(self) -> float:
        """The length of the longest key."""
        return 1.01 * float(torch.linalg.vector_norm(self._k, dim=-1).max())  # 1.01: a margin for bfloat16


class CausalBlock:
    """A block's rows with all keys that they see; `plain`: positions of the keys that all rows see."""

    def __init__(self, block: Rows, plain: slice, skip: int, layer: LayerKeys, places: Places) -> None:
        self.view, self.query, self.rows, self.plain = block.view, block.query, block.rows, plain
        self.layer, self.workspace, self.places = layer, layer.workspace, places
        self.group = self.view.heads // self.view.k.shape[1]
        self.dtype = torch.promote_types(self.view.q.dtype, torch.float32)
        self.geometry = Geometry.of(block, plain, skip, places.length)
        self.mean_key = (layer.upto[:, :, plain.stop] - layer.upto[:, :, plain.start]) / (plain.stop - plain.start)
        k = self.view.k[:, :, block.keys].to(self.dtype)
        rounded = self.mean_key.to(k)
        self.k = (k - rounded[:, :, None]).sub_((self.mean_key - rounded).to(k)[:, :, None])

    def state(self) -> State:
        """The sums of all heads over texts and rows."""
        geometry, (batch, heads) = self.geometry, self.view.q.shape[:2]
        q = self.view.q[:, :, self.rows].to(self.dtype) * self.view.scale
        means = (wide(q) * self._of_heads(self.mean_key)[:, :, None]).sum(-1)
        sums = self._tiles(q, means)
        powers, read_keys = self._moments(q, means, sums)
        self._add_lags(sums, means)
        self._add_cells(sums["edge"], q, means)
        distance = sums["ahead"] + geometry.past * sums["total"]
        soft = SoftRows(sums["top"] + means, sums["total"], sums["gap"] / LOG2E, distance, sums["near"].movedim(-1, 0))
        others = spread_of(sums["others"], geometry.others[None, None] > 0)
        all_keys = together(powers, Spread(others.count, others.mean + means, others.square))
        propagation = geometry.propagation
        hits = {name: sums[name] for name in HITS} if propagation.any else propagation.none(heads, batch)
        return {
            **attention_sums(soft, geometry.visible, self.view.sinks),
            **logit_moments(powers),
            **channel_sums(q, read_keys, torch.zeros_like(means), powers.square),
            **hits,
            "least_entropy": least_entropy(all_keys.square, geometry.visible).sum((0, 2)),
            "rows": torch.tensor(float(batch * geometry.rows), dtype=torch.float64, device=means.device),
        }

    def _of_heads(self, tensor: Float[Tensor, "batch kv_head ..."]) -> Float[Tensor, "batch head ..."]:
        return tensor.repeat_interleave(self.group, 1)

    # tiles ----------------------------------------------------------------------------------------------------

    def _tiles(self, q: Float[Tensor, "batch head row e"], means: Float[Tensor, "batch head row"]) -> State:
        """The sums of every row for all heads, a few heads at a time: groups that share a key head, or part of one."""
        few = max(1, self.workspace.tile // (len(q) * self.geometry.rows * self.geometry.size))
        few = few // self.group * self.group or max(n for n in range(1, few + 1) if self.group % n == 0)
        slopes = (means - means.mean(-1, keepdim=True)).to(q)
        ones_and_slopes = torch.stack([torch.ones_like(slopes), slopes], 2)
        widest = 2 * float(q.norm(dim=-1).max()) * (self.layer.longest + float(self.mean_key.norm(dim=-1).max()))
        parts = []
        for start in range(0, q.shape[1], few):
            heads = slice(start, min(start + few, q.shape[1]))
            parts.append(self._tile(q[:, heads], heads, ones_and_slopes[:, heads].flatten(0, 1), widest))
        sums = {name: torch.cat([part[name] for part in parts], int(name not in HITS)) for name in parts[0]}
        return {name: tensor if name in ("edge", "others") else wide(tensor) for name, tensor in sums.items()}

    def _tile(
        self,
        q: Float[Tensor, "batch head row e"],
        heads: slice,
        ones_and_slopes: Float[Tensor, "many two row"],
        widest: float,
    ) -> State:
        """The five steps. `widest` bounds the difference of any two logits of a row."""
        geometry, (batch, count) = self.geometry, q.shape[:2]
        many, like = batch * count, q
        logits, logits_by_lag = self.workspace.padded("logits", many, geometry.rows, geometry.size, like)
        squares, squares_by_lag = self.workspace.padded("squares", many, geometry.rows, geometry.size, like)
        weights = self.workspace.plain("weights", (many, geometry.rows), geometry.size, like)
        self._logits(q, heads, out=logits)
        sums = self._softmax(logits, widest, squares, weights)
        sums["others"] = logits[..., : geometry.skipped].clone()
        logits[..., : geometry.skipped].zero_()  # skipped keys are left out from here on
        torch.mul(logits, logits, out=squares)
        with exact_arithmetic(q):
            sums["along"] = torch.bmm(ones_and_slopes, logits_by_lag)
            sums["along_squares"] = torch.bmm(ones_and_slopes[:, :1], squares_by_lag)[:, 0]
        sums |= self._powers(logits, squares, weights)
        state = {name: tensor.unflatten(0, (batch, count)) for name, tensor in sums.items()}
        if geometry.propagation.any:
            state |= self._hits(logits.unflatten(0, (batch, count)), state, heads)
        return state

    def _logits(self, q: Float[Tensor, "batch head row e"], heads: slice, out: Float[Tensor, "many row key"]) -> None:
        """c of all pairs, 0 for hidden ones. Every row has a visible c >= 0, so its largest c is of a visible key."""
        k = self.k[:, heads.start // self.group : (heads.stop - 1) // self.group + 1].flatten(0, 1)
        with exact_arithmetic(q):
            torch.bmm(q.reshape(len(k), -1, q.shape[-1]), k.mT, out=out.unflatten(0, (len(k), -1)).flatten(1, 2))
        self.geometry.mask(out)

    def _softmax(
        self,
        logits: Float[Tensor, "many row key"],
        widest: float,
        gap: Float[Tensor, "many row key"],
        weights: Float[Tensor, "many row key"],
    ) -> State:
        """Weights exp(c - largest c) and their sums by row; `gap` (in units of log 2) and `weights` are overwritten."""
        top = logits.amax(-1, keepdim=True)
        torch.add(top * -LOG2E, logits, alpha=LOG2E, out=gap)
        if widest > -FARTHEST:
            gap.clamp_(min=FARTHEST * LOG2E)
        self.geometry.mask(torch.exp2(gap, out=weights))  # exp2 is much faster than exp
        own, begins = self.geometry.own, self.rows.start == self.geometry.own  # begins: the tile has the first key
        first = weights[..., 0] if begins else torch.zeros_like(weights[..., 0])
        near = torch.stack([weights.diagonal(own, 1, 2), weights.diagonal(own - 1, 1, 2), first], -1)
        total, gaps = weights.sum(-1), gap.mul_(weights).sum(-1)
        return {
            "near": near,
            "top": top[..., 0],
            "total": total,
            "gap": gaps,
            "ahead": weights.mul_(self.geometry.ahead).sum(-1),
        }

    def _powers(
        self,
        logits: Float[Tensor, "many row key"],
        squares: Float[Tensor, "many row key"],
        cubes: Float[Tensor, "many row key"],
    ) -> State:
        """Row sums of c^3, the root of row sums of c^4, and c itself in the masked columns."""
        return {
            "third": torch.mul(logits, squares, out=cubes).sum(-1),
            "root": torch.linalg.vector_norm(squares, dim=-1),
            "edge": self.geometry.at_edges(logits),
        }

    def _hits(self, logits: Float[Tensor, "batch head row key"], state: State, heads: slice) -> State:
        """Counts by place of the keys in late rows that pass a signal."""
        geometry, propagation = self.geometry, self.geometry.propagation
        shift = -wide(state["edge"].sum(-1)) / geometry.count
        late = (*logits.shape[:2], geometry.rows - propagation.late.start)
        passes = self.workspace.plain("weights", late, geometry.size, logits)
        propagation.passes(logits, shift, heads, passes, state["top"])
        passes[..., : geometry.skipped].zero_()
        return propagation.hits(geometry.mask(passes), heads)

    # all heads together ---------------------------------------------------------------------------------------

    def _moments(
        self, q: Float[Tensor, "batch head row e"], means: Float[Tensor, "batch head row"], sums: State
    ) -> tuple[RowPowers, Float[Tensor, "batch head row e"]]:
        """Sums of powers of the logits about each row's mean; and sum_j b_ij k_j with b the row-centered logits.

        In unmasked columns these sums need no pairs: sum_j c_ij k_j = q K'K, and sum_j c_ij^2 = q K'K q.
        """
        edge, kept = sums["edge"], self.geometry.kept
        read_keys = read(wide(q), _gram(self.k[:, :, self.geometry.plain]))
        second = (wide(q) * read_keys).sum(-1) + wide(edge.square().sum(-1))
        first, fourth = wide(edge.sum(-1)), sums["root"].square()
        powers = _powers_about_mean(self.geometry.count, means, first, second, sums["third"], fourth)
        keys = torch.cat([self.k[:, :, part] for part in self.geometry.edges], 2)
        read_keys += wide(read(edge, keys)) + (means - powers.mean)[..., None] * self._of_heads(wide(kept @ keys))
        return powers, read_keys

    def _add_lags(self, sums: State, means: Float[Tensor, "batch head row"]) -> None:
        """Sums over sequences and diagonals of the logits, c + mean, and of their squares; and the number of pairs."""
        geometry, lowest = self.geometry, self.geometry.lowest_lag
        first, stop = geometry.rows_of_diagonals()
        heads, mean_of_means = slice(0, means.shape[1]), means.mean(-1, keepdim=True)
        of_one, of_slope = sums["along"].unbind(2)
        summed = of_one.sum(0)
        square = (sums["along_squares"] + 2 * (of_slope + mean_of_means * of_one)).sum(0)
        upto = torch.nn.functional.pad(torch.stack([means, means.square()]).sum(1).cumsum(-1), (1, 0))
        few = geometry.rows - 1 + geometry.skipped  # diagonals that lack rows; from `size` on they have none
        for by_diagonal, known in zip((summed, square), upto, strict=True):
            by_diagonal[:, :few] += known[:, stop[:few]] - known[:, first[:few]]
            by_diagonal[:, few : geometry.size] += known[:, -1:]
        self.places.add_lags("lag_sum", heads, lowest, summed.flip(-1))
        self.places.add_lags("lag_square", heads, lowest, square.flip(-1))
        self.places.add_lags("lag_count", slice(0, 1), lowest, wide(len(means) * (stop - first)).flip(-1)[None])

    def _add_cells(
        self,
        edge: Float[Tensor, "batch head row edge"],
        q: Float[Tensor, "batch head row e"],
        means: Float[Tensor, "batch head row"],
    ) -> None:
        """Sums over sequences of the logits by cell: in unmasked columns, sums of queries times sums of keys."""
        geometry, length = self.geometry, self.places.length
        cells, kept = wide(geometry.cells), wide(geometry.kept)
        borders = cell_edges(length, q.device).clamp(self.plain.start, self.plain.stop)
        plain = grouped_products(cells @ wide(q), self.layer.upto[:, :, borders].diff(dim=2)).sum(0)
        masked = wide(geometry.cells @ edge).sum(0) + (cells * means.sum(0)[:, None]) @ kept
        columns = torch.arange(len(borders) - 1, device=q.device) == cell_of(geometry.edge_keys, length)[:, None]
        number = cells.sum(-1)[:, None] * wide(borders.diff()) + cells @ kept @ wide(columns)
        self.places.cells("cell_sum", slice(0, q.shape[1]), self.query).add_(plain + masked @ wide(columns))
        self.places.cells("cell_count", slice(0, 1), self.query).add_(len(q) * number)


def _powers_about_mean(
    count: Float[Tensor, "1 1 row"],
    mean: Float[Tensor, "batch head row"],
    first: Float[Tensor, "batch head row"],
    second: Float[Tensor, "batch head row"],
    third: Float[Tensor, "batch head row"],
    fourth: Float[Tensor, "batch head row"],
) -> RowPowers:
    """Sums of powers about the exact mean, from those about `mean`, which is near it."""
    d = first / count
    square = second - count * d**2
    cube = third - 3 * d * second + 2 * count * d**3
    return RowPowers(
        count, mean + d, square.clamp(min=0), cube, fourth - 4 * d * third + 6 * d**2 * second - 3 * count * d**4
    )


def _gram(k: Float[Tensor, "batch kv_head key e"], some: int = 64) -> Float[Tensor, "batch kv_head e e"]:
    """k'k: in k's precision for `some` keys at a time, and their sum in float64."""
    padded = torch.nn.functional.pad(k, (0, 0, 0, -k.shape[2] % some)).unflatten(2, (-1, some))
    with exact_arithmetic(k):
        products: Tensor = padded.mT @ padded
    return products.sum(2, dtype=torch.float64)
