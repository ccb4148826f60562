"""A block of rows of plain causal attention, whole rows at a time: what a long text mostly is.

All that is masked lies near the diagonal (and, with a window, at its other end), so that masks touch only those
columns. Keys are taken less the mean of those that all rows see, so that logits are c + mean with small c. The work is
done in a few buffers that all tiles use, and as products of matrices where it can be: sums by lag are products with a
view of the tile whose rows lie one place further each; sums by cell and channel need no logits at all.
"""

import math
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.streams.by_place import Places, cell_edges, cell_of
from armillary.streams.localization import HITS, Propagation, least_entropy
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
from armillary.streams.stream import State, wide
from armillary.streams.tiles import LONG, Rows
from armillary.view import AttentionView, exact_arithmetic, grouped_products

LOG2E = math.log2(math.e)

TILE = 1 << 19
"""About so many logits are computed at once; of long texts four times as many."""

SHORT = 1024
"""Texts shorter than this gain nothing, and the buffers cost memory."""

WORTH = 1
"""Rows are taken whole if they all see at least so many times as many keys as lie in masked columns."""


class Shared:
    """What all blocks of one layer use: sums of the first keys, and memory that is used again."""

    def __init__(self, view: AttentionView) -> None:
        self._k = view.k
        self.tile = TILE if view.keys < LONG else 4 * TILE
        self._flat: dict[str, Tensor] = {}

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
        return 1.01 * float(torch.linalg.vector_norm(self._k, dim=-1).max())  # with room for bfloat16

    def take(self, name: str, count: int, like: Tensor) -> Float[Tensor, "count"]:
        """So many numbers by this name, with whatever was left in them."""
        flat = self._flat.get(name)
        if flat is None or len(flat) < count:
            flat = self._flat[name] = like.new_empty(max(count, self.tile + self.tile // 8))
        return flat[:count]


def plain_keys(block: Rows, skip: int) -> slice | None:
    """The kept keys that all rows see, if that is most, and if the others are hidden by causality or a window alone."""
    view, first = block.view, block.rows.start
    if view.keys < SHORT:
        return None
    start = max(skip, 0 if view.window is None else block.rows.stop - view.window)
    masked = block.keys.stop - max(block.keys.start, skip) - (first - start)
    if first - start < WORTH * masked or view.queries != view.keys or not view.causal:
        return None
    if view.bias is not None or view.softcap is not None or view.q.device.type == "mps":  # mps has no float64
        return None
    if view.mask is not None and not bool((block.seen() == _seen(block, block.places)).all()):
        return None
    return slice(start, first)


def _seen(block: Rows, keys: Int[Tensor, "key"]) -> Bool[Tensor, "row key"]:
    """Which of these keys a row sees, if nothing but causality and a window hides them."""
    lag = block.query[:, None] - keys
    return (lag >= 0) & (lag < (block.view.window or block.view.keys))


class CausalBlock:
    """Its rows from the first kept key that any of them sees on; those before it, which are few, are masked apart."""

    def __init__(self, block: Rows, plain: slice, skip: int, shared: Shared, places: Places) -> None:
        self.block, self.plain, self.shared, self.places = block, plain, shared, places
        self.view = view = block.view
        self.start, self.stop = block.keys.start, block.keys.stop
        self.size, self.rows = self.stop - self.start, block.rows.stop - block.rows.start
        self.group = view.heads // view.k.shape[1]
        self.dtype = torch.promote_types(view.q.dtype, torch.float32)
        self.skipped = max(0, skip - self.start)
        left, right = plain.start - self.start, plain.stop - self.start
        parts = (slice(self.skipped, left), slice(right, self.size))
        self.masked = [part for part in parts if part.start < part.stop]
        self.masked_keys = torch.cat([block.places[part] for part in self.masked])
        seen, others = _seen(block, self.masked_keys), _seen(block, block.places[: self.skipped])
        self.kept, self.others = seen.to(self.dtype), others.to(self.dtype)  # the same in all texts and heads
        self.masks = list(
            zip(self.masked, self.kept.split([part.stop - part.start for part in self.masked], -1), strict=True)
        )
        if not bool(others.all()):
            self.masks.append((slice(0, self.skipped), self.others))
        count = (seen.sum(-1) + (right - left))[None, None]
        self.count, self.visible = wide(count), wide(count + others.sum(-1))
        hidden = (left - seen[:, : left - self.skipped].sum(-1))[None, None]
        self.propagation = Propagation.runs(hidden, count, block.query, places.length)
        k = view.k[:, :, self.start : self.stop].to(self.dtype)
        self.middle = (shared.upto[:, :, plain.stop] - shared.upto[:, :, plain.start]) / (right - left)
        near = self.middle.to(k)
        self.k = (k - near[:, :, None]).sub_((self.middle - near).to(k)[:, :, None])
        self.gram = _gram(self.k[:, :, left:right])
        self._cleared: dict[str, int] = {}
        middle = (block.rows.start + block.rows.stop) // 2
        self.ahead = (middle - block.places).to(self.dtype)  # from a key to the middle row, and from there to each
        self.past = wide(block.query - middle)
        cell = cell_of(block.query, places.length)
        self.cells = (cell == torch.arange(int(cell[0]), int(cell[-1]) + 1, device=cell.device)[:, None]).to(self.dtype)

    def state(self) -> State:
        batch, heads = len(self.view.q), self.view.heads
        q = self.view.q[:, :, self.block.rows].to(self.dtype) * self.view.scale
        means = (wide(q) * self._of_heads(self.middle)[:, :, None]).sum(-1)
        got = self._tiles(q, means)
        edge = got["edge"]
        found = read(wide(q), self.gram)  # of c times the keys
        second = (wide(q) * found).sum(-1) + wide(edge.square().sum(-1))
        powers = _powers(self.count, means, wide(edge.sum(-1)), second, got["third"], got["root"].square())
        keys = torch.cat([self.k[:, :, part] for part in self.masked], 2)
        found += wide(read(edge, keys)) + (means - powers.mean)[..., None] * self._of_heads(wide(self.kept @ keys))
        self._add_lags(got, means)
        self._add_cells(edge, q, means)
        distance = got["ahead"] + self.past * got["total"]
        soft = SoftRows(got["top"] + means, got["total"], got["gap"] / LOG2E, distance, got["near"].movedim(-1, 0))
        others = spread_of(got["others"], self.others[None, None] > 0)
        every = together(powers, Spread(others.count, others.mean + means, others.square))
        hits = {name: got[name] for name in HITS} if self.propagation.any else self.propagation.none(heads, batch)
        return {
            **attention_sums(soft, self.visible, self.view.sinks),
            **logit_moments(powers),
            **channel_sums(q, found, torch.zeros_like(means), powers.square),
            **hits,
            "least_entropy": least_entropy(every.square, self.visible).sum((0, 2)),
            "rows": torch.tensor(float(batch * self.rows), dtype=torch.float64, device=means.device),
        }

    def _of_heads(self, tensor: Float[Tensor, "batch kv_head ..."]) -> Float[Tensor, "batch head ..."]:
        return tensor.repeat_interleave(self.group, 1)

    def _tiles(self, q: Float[Tensor, "batch head row e"], means: Float[Tensor, "batch head row"]) -> State:
        """All heads, a few at a time: whole groups that share a key head, or an equal part of one."""
        few = max(1, self.shared.tile // (len(q) * self.rows * self.size))
        few = few // self.group * self.group or max(n for n in range(1, few + 1) if self.group % n == 0)
        slopes = (means - means.mean(-1, keepdim=True)).to(q)
        both = torch.stack([torch.ones_like(slopes), slopes], 2)
        farthest = 2 * float(q.norm(dim=-1).max()) * (self.shared.longest + float(self.middle.norm(dim=-1).max()))
        parts = []
        for start in range(0, q.shape[1], few):
            heads = slice(start, min(start + few, q.shape[1]))
            parts.append(self._tile(q[:, heads], heads, both[:, heads].flatten(0, 1), farthest))
        got = {name: torch.cat([part[name] for part in parts], int(name not in HITS)) for name in parts[0]}
        return {name: tensor if name in ("edge", "others") else wide(tensor) for name, tensor in got.items()}

    def _tile(
        self,
        q: Float[Tensor, "batch head row e"],
        heads: slice,
        both: Float[Tensor, "many two row"],
        farthest: float,
    ) -> State:
        """Sums by row; `along` diagonals, of c times `both`, 1 and a slope; `twice`, of c^2; `edge`, `others`: c where
        masked, and where skipped.

        Hidden pairs have c = 0: some key's c is not less, so that a row's largest is one that it sees. No two logits of
        a row are more than `farthest` apart.
        """
        batch, count, rows, e = q.shape
        many = batch * count
        k = self.k[:, heads.start // self.group : (heads.stop - 1) // self.group + 1].reshape(-1, self.size, e)
        logits, skewed = self._padded("logits", many, q)
        squares, skewed_squares = self._padded("squares", many, q)
        weight = self._aligned("weights", (many, rows), q)
        with exact_arithmetic(q):
            torch.bmm(q.reshape(len(k), -1, e), k.mT, out=logits.unflatten(0, (len(k), -1)).flatten(1, 2))
        self._mask(logits)
        top = logits.amax(-1, keepdim=True)
        gap = torch.add(top * -LOG2E, logits, alpha=LOG2E, out=squares)
        if farthest > -FARTHEST:
            gap.clamp_(min=FARTHEST * LOG2E)
        self._mask(torch.exp2(gap, out=weight))  # much faster than exp
        near = self._near(weight)
        sums = {"top": top[..., 0], "total": weight.sum(-1), "gap": gap.mul_(weight).sum(-1)}
        sums["ahead"] = weight.mul_(self.ahead).sum(-1)
        others = logits[..., : self.skipped].clone()
        logits[..., : self.skipped].zero_()
        torch.mul(logits, logits, out=squares)
        with exact_arithmetic(q):
            along, twice = torch.bmm(both, skewed), torch.bmm(both[:, :1], skewed_squares)
        sums["third"] = torch.mul(logits, squares, out=weight).sum(-1)
        sums["root"] = torch.linalg.vector_norm(squares, dim=-1)  # of the fourth powers
        edge = torch.cat([logits[..., part] for part in self.masked], -1)
        sums |= {"near": near, "edge": edge, "others": others, "along": along, "twice": twice[:, 0]}
        state = {name: tensor.unflatten(0, (batch, count)) for name, tensor in sums.items()}
        if self.propagation.any:
            shift = -wide(state["edge"].sum(-1)) / self.count
            passes = self._aligned("weights", (batch, count, self.rows - self.propagation.late.start), q)
            self.propagation.passes(logits.unflatten(0, (batch, count)), shift, heads, passes, state["top"])
            passes[..., : self.skipped].zero_()
            state |= self.propagation.hits(self._mask(passes), heads)
        return state

    def _padded(
        self, name: str, many: int, like: Tensor
    ) -> tuple[Float[Tensor, "many row key"], Float[Tensor, "many row diagonal"]]:
        """A tile with zeros behind every row and before the first; and the same with rows one place further each."""
        before, width = _lines(self.rows - 1), _lines(self.size + self.rows - 1)
        flat = self.shared.take(name, before + many * self.rows * width, like)
        tile = flat[before:].view(many, self.rows, width)
        if many > self._cleared.get(name, 0):  # what is never written stays zero, from tile to tile
            flat[:before].zero_()
            tile[..., self.size :].zero_()
            self._cleared[name] = many
        shape, strides = (many, self.rows, self.size + self.rows - 1), (self.rows * width, width + 1, 1)
        return tile[..., : self.size], flat.as_strided(shape, strides, before - (self.rows - 1))

    def _aligned(self, name: str, shape: tuple[int, ...], like: Tensor) -> Float[Tensor, "*shape key"]:
        """A tile whose rows begin where lines of the cache do."""
        width = _lines(self.size)
        return self.shared.take(name, math.prod(shape) * width, like).view(*shape, width)[..., : self.size]

    def _mask(self, tile: Float[Tensor, "*many row key"]) -> Float[Tensor, "*many row key"]:
        """Zero where a row, one of the block's last if they are fewer, does not see a key."""
        for part, seen in self.masks:
            tile[..., part].mul_(seen[-tile.shape[-2] :])
        return tile

    def _near(self, weight: Float[Tensor, "many row key"]) -> Float[Tensor, "many row three"]:
        """The weights of each row's own key, of the one before, and of the text's first."""
        own = self.block.rows.start - self.start
        first = weight[..., 0] if self.start == 0 else torch.zeros_like(weight[..., 0])
        return torch.stack([weight.diagonal(own, 1, 2), weight.diagonal(own - 1, 1, 2), first], -1)

    def _rows_of_diagonals(self) -> tuple[Int[Tensor, "diagonal"], Int[Tensor, "diagonal"]]:
        """The first row of kept pairs on each diagonal, and the one after the last; the largest lag first."""
        diagonal = torch.arange(self.size + self.rows - 1, device=self.view.q.device)
        lag = self._lowest + self.size + self.rows - 2 - diagonal
        seen = (lag >= 0) & (lag < (self.view.window or self.view.keys))
        first = (self.rows - 1 + self.skipped - diagonal).clamp(0, self.rows)
        stop = (self.size + self.rows - 1 - diagonal).clamp(max=self.rows)
        return first, torch.where(seen, torch.maximum(first, stop), first)

    @property
    def _lowest(self) -> int:
        """The lag of the first row and the last key."""
        return int(self.block.rows.start - self.stop + 1)

    def _add_lags(self, got: State, means: Float[Tensor, "batch head row"]) -> None:
        """Sums over texts and along diagonals of the logits, c + mean, and of their squares; and their number."""
        first, stop = self._rows_of_diagonals()
        heads, middle = slice(0, means.shape[1]), means.mean(-1, keepdim=True)
        one, weighted = got["along"].unbind(2)
        once = one.sum(0)
        square = (got["twice"] + 2 * (weighted + middle * one)).sum(0)
        upto = torch.nn.functional.pad(torch.stack([means, means.square()]).sum(1).cumsum(-1), (1, 0))
        few = self.rows - 1 + self.skipped  # so many diagonals have not all rows, and from `size` on they have none
        for sums, known in zip((once, square), upto, strict=True):
            sums[:, :few] += known[:, stop[:few]] - known[:, first[:few]]
            sums[:, few : self.size] += known[:, -1:]
        self.places.add_lags("lag_sum", heads, self._lowest, once.flip(-1))
        self.places.add_lags("lag_square", heads, self._lowest, square.flip(-1))
        self.places.add_lags("lag_count", slice(0, 1), self._lowest, wide(len(means) * (stop - first)).flip(-1)[None])

    def _add_cells(
        self,
        edge: Float[Tensor, "batch head row masked"],
        q: Float[Tensor, "batch head row e"],
        means: Float[Tensor, "batch head row"],
    ) -> None:
        """Sums over texts of the logits by cell: sums of queries times sums of keys, where all is seen."""
        length, cells, kept = self.places.length, wide(self.cells), wide(self.kept)
        edges = cell_edges(length, q.device).clamp(self.plain.start, self.plain.stop)
        sums = grouped_products(cells @ wide(q), self.shared.upto[:, :, edges].diff(dim=2)).sum(0)
        masked = wide(self.cells @ edge).sum(0) + (cells * means.sum(0)[:, None]) @ kept
        columns = torch.arange(len(edges) - 1, device=q.device) == cell_of(self.masked_keys, length)[:, None]
        number = cells.sum(-1)[:, None] * wide(edges.diff()) + cells @ kept @ wide(columns)
        self.places.cells("cell_sum", slice(0, q.shape[1]), self.block.query).add_(sums + masked @ wide(columns))
        self.places.cells("cell_count", slice(0, 1), self.block.query).add_(len(q) * number)


def _lines(count: int) -> int:
    """So many numbers or a few more, that fill lines of the cache: products and tiles in them are much faster."""
    return -(-count // 16) * 16


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
