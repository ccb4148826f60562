"""Attention statistics of a layer on the CPU: matrix products make tiles of logits, a compiled loop reads each once.

Keys are taken minus their mean over the text, so that a logit is c + q.mean(k) with small c: a large mean costs no
digits. What is linear in the logits needs no pairs where all rows of a block see the same keys: the sums over j of
c_ij k_j are q K'K there, which gives the shares of channels of long texts.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.machine.parallel import on_cores
from armillary.observe.precision import single, wide
from armillary.observe.view import AttentionView, exact_arithmetic, soft_capped
from armillary.streams import by_place, compiled_tiles
from armillary.streams.compiled_rows import NAMES
from armillary.streams.localization import PLACES
from armillary.streams.stream import State
from armillary.streams.tiles import of_heads

HEIGHT = 128
"""Rows of a block; the keys before a block are seen by all its rows."""

TILE = 1 << 20
"""About this many logits are computed at once, by each thread."""

NONE = np.zeros(0, np.float32)
NO_BIAS, NO_MASK = (np.zeros((1, 1, 0, 2), kind)[..., ::2] for kind in (np.float32, bool))
"""No soft-capped logits, no bias, no mask; the last two have strides, so that one compilation serves all arrays."""


@dataclass(frozen=True)
class Block:
    """Some rows, the keys that any of them sees, and which keys each row sees (columns of the block)."""

    rows: slice
    keys: slice
    begin: Int[np.ndarray, "#batch row"]
    end: Int[np.ndarray, "#batch row"]
    mask: Bool[np.ndarray, "_ _ masked key"]
    """Which keys between begin and end are seen, if not all are; else without rows."""
    plain: slice
    """Columns that all rows see, whose share of the channels comes from products of keys."""

    @property
    def height(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @property
    def width(self) -> int:
        return int(self.keys.stop - self.keys.start)


def blocks(view: AttentionView, skip: int) -> Iterator[Block]:
    """The rows from `skip` on."""
    height = HEIGHT if view.keys > 2 * HEIGHT else view.queries
    for start in range(skip, view.queries, height):
        yield block_of(view, skip, slice(start, min(start + height, view.queries)))


def block_of(view: AttentionView, skip: int, rows: slice) -> Block:
    """The geometry of these rows, by causality and window or by the mask."""
    ahead, window = view.keys - view.queries, view.window or view.keys + view.queries
    at = np.arange(rows.start, rows.stop) + ahead
    begin, end = np.maximum(at - window + 1, 0), np.minimum(at + window, view.keys)
    end = np.minimum(end, at + 1) if view.causal else end
    keys = slice(int(begin[0]), int(end[-1]))
    begin, end = begin[None] - keys.start, end[None] - keys.start
    mask, plain = NO_MASK, slice(0, 0)
    if view.mask is not None:
        begin, end, mask = _ranges(view.visible(rows)[..., keys])
    elif view.causal and not ahead and view.bias is None and view.softcap is None:
        first = max(0, -(-(rows.stop - window - skip) // HEIGHT)) * HEIGHT + skip  # Grams are kept block by block
        if rows.start - first > view.q.shape[-1]:
            plain = slice(first - keys.start, rows.start - keys.start)
    return Block(rows, keys, begin, end, mask, plain)


def _ranges(seen: Bool[Tensor, "#batch #head row key"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The keys that every row sees, as a range if they are one in every head; else with the mask."""
    columns = torch.arange(seen.shape[-1], device=seen.device)
    first = torch.where(seen, columns, seen.shape[-1]).amin(-1)
    last = torch.where(seen, columns + 1, 0).amax(-1)
    count = seen.sum(-1)
    if seen.shape[1] == 1 and bool((torch.where(count > 0, last - first, 0) == count).all()):
        first = torch.where(count > 0, first, 0)
        return first[:, 0].numpy(), (first + count)[:, 0].numpy(), NO_MASK
    every = np.zeros((1, seen.shape[2]), np.int64)
    return every, every + seen.shape[-1], _any_strides(seen)


class FusedLayer:
    """The sums of one layer's heads over a batch of texts."""

    def __init__(self, view: AttentionView, skip: int, length: int) -> None:
        self.view, self.skip, self.length = view, skip, length
        self.q, k = single(view.q), single(view.k)
        self.group = view.heads // k.shape[1]
        self.k, self.shift = k, np.zeros(self.q.shape[:3])
        if view.softcap is None:
            mean = k.mean(2, keepdim=True)
            self.k = k - mean
            with exact_arithmetic(k):
                along = self.q.reshape(len(k), k.shape[1], -1, k.shape[-1]) @ mean.mT
            self.shift = wide(along.reshape(self.q.shape[:3]) * view.scale).numpy()
        heads, cells, lags = view.heads, min(length, by_place.CELLS), 2 * length - 1
        by_head = view.mask is not None and view.mask.shape[1] > 1  # pairs are counted for the first head alone
        self.middle = np.zeros(heads) if by_head else self.shift.mean((0, 2))
        self.sums, self.hits = np.zeros((heads, len(NAMES))), np.zeros((heads, 2, PLACES))
        self.lags, self.cells = np.zeros((heads, 3, lags)), np.zeros((heads, cells, cells))
        self.lag_count, self.cell_count = np.zeros(lags), np.zeros((cells, cells))
        self.channels = np.zeros((heads, k.shape[-1]))
        self.near = self._near_by_lag()
        self.sinks = np.zeros(0) if view.sinks is None else wide(view.sinks).numpy()
        self.blocks = list(blocks(view, skip))

    def _near_by_lag(self) -> Float[np.ndarray, "head lag"]:
        """The bias by lag as the last row (keys before it) and the first (keys after it) have it, largest lag first.

        Taken from the logits before they are squared, so that a large bias costs no digits. No lags without a bias.
        """
        bias, keys = self.view.bias, self.view.keys
        if bias is None or self.view.queries != keys:
            return np.zeros((self.view.heads, 0), np.float32)
        near = np.zeros((self.view.heads, 2 * self.length - 1), np.float32)
        near[:, self.length - keys : self.length] = single(bias[0, :, -1]).numpy()
        near[:, self.length : self.length + keys - 1] = single(bias[0, :, 0, 1:]).numpy()
        return near

    def state(self) -> State:
        """The sums, under the names that AttentionStatistics uses."""
        for block in self.blocks:
            self._count(block)
        on_cores(self._add, self._chunks())
        sums = dict(zip(NAMES, self.sums.T, strict=True))
        once, twice = self.lags[:, 0, ::-1], self.lags[:, 1, ::-1]
        count, middle = self.lag_count[::-1], self.middle[:, None]
        near = middle + self.near[:, ::-1] if self.near.shape[1] else middle
        arrays = {
            **sums,
            "rows": sums["rows"][0],
            "lag_sum": once + near * count,
            "lag_square": twice + 2 * near * once + near**2 * count,
            "lag_attention": self.lags[:, 2, ::-1],
            "lag_count": count[None],
            "cell_sum": self.cells + middle[..., None] * self.cell_count,
            "cell_count": self.cell_count[None],
            "rho_hits": self.hits[:, 0],
            "rho_count": self.hits[:, 1],
            "channel_sum": self.channels,
        }
        return {name: torch.from_numpy(np.array(values)) for name, values in arrays.items()}

    def _chunks(self) -> list[tuple[slice, slice]]:
        """Key heads, and which of the heads that read each, in chunks that are the work of one thread.

        They follow from the shape alone, and so do all bits.
        """
        kv_heads = self.k.shape[1]
        of_head = len(self.q) * max(block.height * block.width for block in self.blocks)
        few = max(1, TILE // (of_head * self.group))
        if few > 1 or self.group == 1:
            edges = [*range(0, kv_heads, few), kv_heads]
            return [(slice(*kv), slice(0, self.group)) for kv in itertools.pairwise(edges)]
        queries = max(1, TILE // of_head)
        return [
            (slice(kv, kv + 1), slice(start, min(start + queries, self.group)))
            for kv in range(kv_heads)
            for start in range(0, self.group, queries)
        ]

    def _add(self, heads: tuple[slice, slice]) -> None:
        chunk = _Chunk(self, *heads)
        for block in self.blocks:
            chunk.add(block)
        chunk.add_plain([block for block in self.blocks if block.plain.start < block.plain.stop])

    def cells_of(self, block: Block) -> tuple[Int[np.ndarray, "row"], Int[np.ndarray, "key"]]:
        places = torch.arange(self.length)
        return tuple(by_place.cell_of(places[part], self.length).numpy() for part in (block.rows, block.keys))  # type: ignore[return-value]

    def lag_of(self, block: Block) -> int:
        """Where the lag of the block's first row and key lies among the lags, largest first."""
        return int(self.length - 1 - block.rows.start + block.keys.start)

    def _count(self, block: Block) -> None:
        """Count the block's pairs; they are the same in all heads."""
        skipped, cells = max(0, self.skip - block.keys.start), self.cells_of(block)
        compiled_tiles.add_counts(
            block.begin,
            block.end,
            block.mask,
            len(self.q),
            skipped,
            *cells,
            self.lag_of(block),
            self.lag_count,
            self.cell_count,
        )


class _Chunk:
    """Some key heads of a layer, and `queries` among the heads that read each (all of them, if several key heads)."""

    def __init__(self, layer: FusedLayer, kv_heads: slice, queries: slice) -> None:
        self.layer, self.group = layer, queries.stop - queries.start
        first = kv_heads.start * layer.group + queries.start
        self.heads = slice(first, first + (kv_heads.stop - kv_heads.start) * self.group)
        self.q, self.k = layer.q[:, self.heads].contiguous(), layer.k[:, kv_heads].contiguous()
        self.means = np.empty((len(self.q), self.q.shape[1], layer.view.queries))
        """The mean of the kept logits of every row, less the row's shift."""
        self.buffer = torch.empty(0)

    def add(self, block: Block) -> None:
        """Add the block's rows to the sums of the layer."""
        layer, view, heads = self.layer, self.layer.view, self.heads
        q, k = self.q[:, :, block.rows], self.k[:, :, block.keys]
        logits = self._products(q, k)
        bias, soft = NO_BIAS, NONE
        if view.bias is not None:
            added = of_heads(view.bias, heads)[..., block.keys]
            added = single(added if added.shape[-2] == 1 else added[..., block.rows, :])
            bias = _any_strides(added.expand(-1, -1, block.height, -1))
        if view.softcap is not None:
            capped = soft_capped(logits, view.softcap)
            soft = (capped if view.bias is None else capped.add_(added)).flatten().numpy()
        if view.bias is not None:
            logits += added
        late = layer.length - max(1, layer.length // 4) - block.rows.start
        skipped = max(0, layer.skip - block.keys.start)
        tile = (skipped, block.plain.start, block.plain.stop, block.rows.start - block.keys.start, -block.keys.start)
        means = np.empty(logits.shape[:3])
        compiled_tiles.add_heads(
            (0, logits.shape[1]),
            (*tile, late, layer.lag_of(block)),
            (block.begin, block.end, *layer.cells_of(block)),
            logits.numpy(),
            soft,
            block.mask if block.mask.shape[1] == 1 else block.mask[:, heads],
            bias,
            layer.near[heads],
            np.ascontiguousarray(layer.shift[:, heads, block.rows]),  # one compilation serves all slices
            layer.middle[heads],
            layer.sinks[heads],
            *(layer.sums[heads], layer.lags[heads], layer.cells[heads], layer.hits[heads], means),
        )
        self.means[:, :, block.rows] = means
        self._channels(block, q, k, logits)

    def _products(
        self, q: Float[Tensor, "batch head row e"], k: Float[Tensor, "batch kv_head key e"]
    ) -> Float[Tensor, "batch head row key"]:
        """scale q.k in a buffer that all blocks share."""
        batch, kv_heads, keys, e = k.shape
        count = batch * q.shape[1] * q.shape[2] * keys
        if self.buffer.numel() < count:
            self.buffer = torch.empty(count)
        out = self.buffer[:count].view(batch * kv_heads, -1, keys)
        left, right = q.reshape(batch * kv_heads, -1, e), k.reshape(batch * kv_heads, keys, e).mT
        with exact_arithmetic(q):
            torch.baddbmm(out, left, right, beta=0, alpha=self.layer.view.scale, out=out)
        return out.view(batch, q.shape[1], q.shape[2], keys)

    def _channels(
        self,
        block: Block,
        q: Float[Tensor, "batch head row e"],
        k: Float[Tensor, "batch kv_head key e"],
        centered: Float[Tensor, "batch head row key"],
    ) -> None:
        """Add what every channel contributes to the sum of squares of the centered logits: scale q_c sum_j b_j k_c."""
        batch, kv_heads = k.shape[:2]
        flat, q = centered.view(batch * kv_heads, -1, block.width), q.contiguous()
        edges = [slice(0, block.plain.start), slice(block.plain.stop, block.width)]  # skipped keys are zero by now
        with exact_arithmetic(k):
            parts = [flat[..., edge] @ k[:, :, edge].flatten(0, 1) for edge in edges if edge.start < edge.stop]
        read = sum(parts[1:], parts[0]).mul_(self.layer.view.scale).view(q.shape)
        compiled_tiles.add_channels((0, q.shape[1]), q.numpy(), read.numpy(), self.layer.channels[self.heads])

    def add_plain(self, plain: list[Block]) -> None:
        """Add to the channels what comes from keys that all rows of a block see: scale^2 q_c (q K'K)_c, centered."""
        if not plain:
            return
        scale, kv_heads = self.layer.view.scale, self.k.shape[1]
        rows = slice(plain[0].rows.start, plain[-1].rows.stop)
        beyond = (0, 0, 0, len(plain) * HEIGHT - (rows.stop - rows.start))  # the last block may be lower
        q = torch.nn.functional.pad(self.q[:, :, rows], beyond).unflatten(2, (-1, HEIGHT))
        means = torch.from_numpy(self.means[:, :, rows]).to(q)
        means = torch.nn.functional.pad(means, beyond[2:]).unflatten(2, (-1, 1, HEIGHT))
        with exact_arithmetic(q):
            squares, along = wide(q.mT @ q), wide(means @ q)[..., 0, :]  # (batch, head, block, e, e), (..., e)
        gram, total = _keys_between(self.k, self.layer.skip, plain)
        squares, along = (part.unflatten(1, (kv_heads, self.group)) for part in (squares, along))
        added = (squares * gram).sum(-1) * scale**2 - along * total * scale
        self.layer.channels[self.heads] += added.sum((0, 3)).flatten(0, 1).numpy()


def _keys_between(
    k: Float[Tensor, "batch kv_head key e"], skip: int, plain: list[Block]
) -> tuple[Float[Tensor, "batch kv_head 1 block e e"], Float[Tensor, "batch kv_head 1 block e"]]:
    """Sums of k k' and of k over the keys that all rows of a block see, which are whole blocks of keys; in float64."""
    whole = (k.shape[2] - skip) // HEIGHT * HEIGHT
    parts = k[:, :, skip : skip + whole].unflatten(2, (-1, HEIGHT))
    with exact_arithmetic(parts):
        sums = (wide(parts.mT @ parts), wide(parts.sum(-2)))
    edges = [(block.plain.start + block.keys.start, block.plain.stop + block.keys.start) for block in plain]
    first, last = ([(edge - skip) // HEIGHT for edge in side] for side in zip(*edges, strict=True))
    upto = [torch.cat([torch.zeros_like(part[:, :, :1]), part.cumsum(2)], 2) for part in sums]
    gram, total = (part[:, :, None, last] - part[:, :, None, first] for part in upto)
    return gram, total


def _any_strides(tensor: Tensor) -> np.ndarray:
    """As an array that numba takes for one with any strides."""
    array: np.ndarray = tensor.numpy()
    padded = np.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
    padded[...] = array
    return padded
