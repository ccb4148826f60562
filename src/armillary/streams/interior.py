"""The keys that every row of a block sees, away from the diagonal: most of a long text, and no mask is needed there.

The keys are taken less their mean, so that their logits c are centred in every row: logit = c + q . mean(k). The work
is done in a few buffers that all tiles use, and as matrix products where it can be: sums by lag are products with a
view of the tile whose rows lie one place further each.
"""

import math
import threading

import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.streams.by_place import Places, by_cell_of_row, cell_edges
from armillary.streams.localization import HITS, Propagation
from armillary.streams.rows import FARTHEST, RowPowers, RowSums, SoftRows, read
from armillary.streams.stream import State, wide
from armillary.streams.tiles import TILE, Rows
from armillary.view import AttentionView, exact_arithmetic

LOG2E = math.log2(math.e)

WORTH = 2
"""An interior is taken if it has at least so many times as many keys as lie outside it."""


def interior_keys(view: AttentionView, block: Rows, skip: int) -> slice | None:
    """A range of kept keys that all rows see, without the rows' own, previous and first ones; None if it is short."""
    (span,) = block.spans
    first, last = int(block.query[0]), int(block.query[-1])
    start = max(skip, 1, span.start if view.window is None else last - view.window + 1)
    stop = min(first - 1, span.stop)
    outside = span.stop - span.start - (stop - start)
    if view.bias is not None or view.softcap is not None or stop - start < WORTH * outside:
        return None
    if view.q.device.type == "mps":  # has no float64
        return None
    if not bool(block.seen[..., start - span.start : stop - span.start].all()):
        return None
    return slice(start, stop)


class Shared:
    """What the interiors of all blocks of one layer use: sums of the first keys, and memory that is used again."""

    def __init__(self, view: AttentionView) -> None:
        self._k = view.k
        self._lock, self._own = threading.Lock(), threading.local()
        self._upto: Tensor | None = None

    @property
    def upto(self) -> Float[Tensor, "batch kv_head place e"]:
        """Sums of the keys before each place."""
        with self._lock:
            if self._upto is None:
                self._upto = torch.nn.functional.pad(wide(self._k).cumsum(2), (0, 0, 1, 0))
            return self._upto

    def take(self, name: str, count: int, like: Tensor) -> Float[Tensor, "count"]:
        """So many numbers by this name, this thread's own, with whatever was left in them."""
        flat: Tensor | None = getattr(self._own, name, None)
        if flat is None or len(flat) < count:
            flat = like.new_empty(max(count, 2 * TILE))
            setattr(self._own, name, flat)
        return flat[:count]


class Interior:
    """The interior of one block of rows, for all heads."""

    def __init__(self, view: AttentionView, block: Rows, keys: slice, shared: Shared) -> None:
        self.keys, self.query, self._shared = keys, block.query, shared
        self.group = view.heads // view.k.shape[1]
        self.size, self.rows = keys.stop - keys.start, len(block.query)
        self._left = keys.start - block.spans[0].start  # so many keys of the block lie before
        k = view.k[:, :, keys].to(torch.promote_types(view.k.dtype, torch.float32))
        self.middle = (shared.upto[:, :, keys.stop] - shared.upto[:, :, keys.start]) / self.size
        near = self.middle.to(k)
        self.k = (k - near[:, :, None]).sub_((self.middle - near).to(k)[:, :, None])
        self.gram = _gram(self.k)
        device = k.device
        self._ahead = torch.arange(self.size - 1, -1, -1, dtype=k.dtype, device=device)  # keys until the last one
        self._past = wide(self.query - (keys.stop - 1))  # from there to the row

    def _of(self, heads: slice) -> slice:
        """The key heads of these heads."""
        return slice(heads.start // self.group, heads.stop // self.group)

    def means(self, q: Float[Tensor, "batch head row e"], heads: slice) -> Float[Tensor, "batch head row"]:
        """The mean logit of every row; q has the scale in it."""
        middle = self.middle[:, self._of(heads)]
        own: Tensor = wide(q) * middle.repeat_interleave(self.group, 1)[:, :, None]
        return own.sum(-1)

    def measure(
        self,
        q: Float[Tensor, "batch head row e"],
        heads: slice,
        means: Float[Tensor, "batch head row"],
        within: Float[Tensor, "batch head row"],
        propagation: Propagation,
        passes: Float[Tensor, "batch head late outside"],
        places: Places,
    ) -> RowSums:
        """These heads, a few at a time; sums by lag and cell go to `places`.

        means: of the logits; within: these less the means over all kept keys; passes: Propagation's, of keys outside.
        """
        few = self._heads_at_once(len(q))
        middle = means.mean(-1, keepdim=True)
        slopes = (means - middle).to(q)
        parts = []
        for start in range(0, q.shape[1], few):
            some = slice(start, min(start + few, q.shape[1]))
            whole = slice(heads.start + some.start, heads.start + some.stop)
            part, logits = self._tile(q[:, some], whole, slopes[:, some])
            if propagation.any:
                part |= self._hits(logits, within[:, some], whole, propagation, passes[:, some])
            parts.append(part)
        got = {name: torch.cat([part[name] for part in parts], int(name not in HITS)) for name in parts[0]}
        self._add_lags(got, means, middle, heads, places)
        places.add_cells("cell_sum", heads, self.query, self._cells(q, heads, places.length))
        soft = SoftRows(got["top"] + means, got["total"], got["gap"], got["distance"], means.new_zeros(3, *means.shape))
        found = read(wide(q), self.gram[:, self._of(heads)])  # of c times the centred keys
        square = (wide(q) * found).sum(-1)
        powers = RowPowers(torch.full_like(means, self.size), means, square, got["third"], got["fourth"])
        offset = self.size * self.middle[:, self._of(heads)].repeat_interleave(self.group, 1)
        found += within[..., None] * offset[:, :, None]
        hits = {name: got[name] for name in HITS} if propagation.any else propagation.hits(passes, heads)
        return RowSums(soft, (powers,), found, hits)

    def _heads_at_once(self, batch: int) -> int:
        """Whole groups, or an equal part of one."""
        few = max(1, TILE // (batch * self.rows * self.size))
        return few // self.group * self.group or max(n for n in range(1, few + 1) if self.group % n == 0)

    def _tile(
        self, q: Float[Tensor, "batch head row e"], heads: slice, slopes: Float[Tensor, "batch head row"]
    ) -> tuple[State, Float[Tensor, "batch head row key"]]:
        """Sums by row and along the diagonals, and the centred logits c.

        `once`, `weighted`, `twice`: along diagonals, of c, c slope, c^2.
        """
        batch, count, rows, e = q.shape
        many, size, width = batch * count, self.size, self.size + rows - 1
        k = self.k[:, heads.start // self.group : (heads.stop - 1) // self.group + 1].reshape(-1, size, e)
        logits, skewed = self._padded("logits", many, q)
        squares, skewed_squares = self._padded("squares", many, q)
        weight = self._shared.take("weights", many * rows * size, q).view(many, rows, size)
        grouped = logits.unflatten(0, (len(k), -1)).flatten(1, 2)
        both = torch.stack([torch.ones_like(slopes), slopes], 2).view(many, 2, rows)
        with exact_arithmetic(q):
            torch.bmm(q.reshape(len(k), -1, e), k.mT, out=grouped)
            once, weighted = wide(torch.bmm(both, skewed)).view(batch, count, 2, width).unbind(2)
        top = logits.amax(-1, keepdim=True)
        gap = torch.add(top * -LOG2E, logits, alpha=LOG2E, out=squares).clamp_(min=FARTHEST * LOG2E)
        torch.exp2(gap, out=weight)  # much faster than exp
        total, lower = wide(weight.sum(-1)), wide(gap.mul_(weight).sum(-1)) / LOG2E
        distance = wide(weight.mul_(self._ahead).sum(-1)) + total * self._past
        torch.mul(logits, logits, out=squares)
        with exact_arithmetic(q):
            twice = wide(torch.bmm(both[:, :1], skewed_squares)).view(batch, count, width)
        by_row = {
            "top": wide(top[..., 0]),
            "total": total,
            "gap": lower,
            "distance": distance,
            "third": wide(torch.mul(logits, squares, out=weight).sum(-1)),
            "fourth": wide(torch.mul(squares, squares, out=weight).sum(-1)),
        }
        sums = {name: tensor.view(batch, count, rows) for name, tensor in by_row.items()}
        along = {"once": once, "weighted": weighted, "twice": twice}
        return {**sums, **along}, logits.unflatten(0, (batch, count))

    def _padded(
        self, name: str, many: int, like: Tensor
    ) -> tuple[Float[Tensor, "many row key"], Float[Tensor, "many row diagonal"]]:
        """A tile with zeros behind every row and before the first; and the same with rows one place further each."""
        zeros, width = self.rows - 1, self.size + self.rows - 1
        flat = self._shared.take(name, zeros + many * self.rows * width, like)
        flat[:zeros].zero_()
        tile = flat[zeros:].view(many, self.rows, width)
        tile[..., self.size :].zero_()
        skewed = flat.as_strided((many, self.rows, width), (self.rows * width, width + 1, 1))
        return tile[..., : self.size], skewed

    def _hits(
        self,
        logits: Float[Tensor, "batch head row key"],
        within: Float[Tensor, "batch head row"],
        heads: slice,
        propagation: Propagation,
        outside: Float[Tensor, "batch head late outside"],
    ) -> State:
        shape = (*outside.shape[:3], self.size + outside.shape[3])
        every = self._shared.take("weights", math.prod(shape), logits).view(shape)
        inner = slice(self._left, self._left + self.size)
        propagation.passes(logits, within, heads, every[..., inner])
        every[..., : inner.start] = outside[..., : self._left]
        every[..., inner.stop :] = outside[..., self._left :]
        return propagation.hits(every, heads)

    def _add_lags(self, got: State, means: Tensor, middle: Tensor, heads: slice, places: Places) -> None:
        """Sums over texts and along diagonals of the logits, c + mean, and of their squares."""
        first, stop = self._rows_of_diagonals()
        some, squared = (torch.nn.functional.pad(one.cumsum(-1), (1, 0)).sum(0) for one in (means, means.square()))
        once = got["once"].sum(0) + some[:, stop] - some[:, first]
        weighted = got["weighted"] + middle * got["once"]
        twice = (got["twice"] + 2 * weighted).sum(0) + squared[:, stop] - squared[:, first]
        places.add_lags("lag_sum", heads, self._lowest, once.flip(-1))
        places.add_lags("lag_square", heads, self._lowest, twice.flip(-1))

    @property
    def _lowest(self) -> int:
        """The lag of the first row and the last key."""
        return int(self.query[0]) - int(self.keys.stop) + 1

    def _rows_of_diagonals(self) -> tuple[Int[Tensor, "diagonal"], Int[Tensor, "diagonal"]]:
        """The first row on each diagonal, and the one after its last; the largest lag first."""
        diagonal = torch.arange(self.size + self.rows - 1, device=self.query.device)
        first = (self.rows - 1 - diagonal).clamp(min=0)
        return first, (self.size + self.rows - 1 - diagonal).clamp(max=self.rows)

    def _cells(
        self, q: Float[Tensor, "batch head row e"], heads: slice, length: int
    ) -> Float[Tensor, "head cell cell_"]:
        """Sums over texts of the logits in the cells of a grid: sums of queries times sums of keys."""
        edges = cell_edges(length, q.device).clamp(self.keys.start, self.keys.stop)
        upto = self._shared.upto[:, self._of(heads)][:, :, edges]
        queries = by_cell_of_row(q.flatten(0, 1), self.query, length)
        products = queries.view(len(q), upto.shape[1], -1, q.shape[-1]) @ upto.diff(dim=2).mT
        return products.sum(0).view(q.shape[1], -1, len(edges) - 1)

    def count(self, places: Places, batch: int) -> None:
        """The numbers of pairs, by lag and cell."""
        first, stop = self._rows_of_diagonals()
        places.add_lags("lag_count", slice(0, 1), self._lowest, wide(batch * (stop - first)).flip(-1)[None])
        edges = cell_edges(places.length, self.query.device).clamp(self.keys.start, self.keys.stop)
        rows = by_cell_of_row(wide(torch.ones_like(self.query))[None, :, None], self.query, places.length)
        places.add_cells("cell_count", slice(0, 1), self.query, batch * rows * wide(edges.diff()))


def _gram(k: Float[Tensor, "batch kv_head key e"], some: int = 64) -> Float[Tensor, "batch kv_head e e"]:
    """k'k: some keys at a time in k's precision, then in float64."""
    padded = torch.nn.functional.pad(k, (0, 0, 0, -k.shape[2] % some)).unflatten(2, (-1, some))
    with exact_arithmetic(k):
        return (padded.mT @ padded).sum(2, dtype=torch.float64)
