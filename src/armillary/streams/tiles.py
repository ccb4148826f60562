"""Computes a layer's logits in tiles that fit the cache: some rows, the keys they can see, some heads."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from armillary.observe.view import AttentionView, grouped_products

TILE = 1 << 18
"""About this many logits are computed at once, so that they stay in the processor's cache."""

ROWS = 64
"""At least this many rows are processed together; more if there are few keys."""

LONG = 2048
"""Texts of at least this length are processed in blocks of four times as many rows."""


@dataclass(frozen=True)
class Rows:
    """A block of rows of a view, and the keys that any of them can see."""

    view: AttentionView
    rows: slice
    keys: slice

    @property
    def query(self) -> Int[Tensor, "row"]:
        """The positions of the rows in the text."""
        return torch.arange(self.rows.start, self.rows.stop, device=self.view.q.device)

    @property
    def places(self) -> Int[Tensor, "key"]:
        """The positions of the keys in the text."""
        return torch.arange(self.keys.start, self.keys.stop, device=self.view.q.device)

    def seen(self) -> Bool[Tensor, "#batch #head row key"]:
        """Which of the keys each row sees."""
        return self.view.visible(self.rows)[..., self.keys]


@dataclass(frozen=True)
class Tile:
    """The logits of some heads in a block of rows, in float32 or better: products = q.k; q includes the scale."""

    heads: slice
    q: Float[Tensor, "batch head row e"]
    k: Float[Tensor, "batch kv_head key e"]
    products: Float[Tensor, "batch head row key"]
    bias: Float[Tensor, "#batch #head #row key"] | None


def row_blocks(view: AttentionView, first: int = 0) -> Iterator[Rows]:
    """The rows from `first` on, in blocks; a block of causal or windowed attention has only the keys it can see."""
    batch, group = view.q.shape[0], view.heads // view.k.shape[1]
    height = max(ROWS if view.keys < LONG else 4 * ROWS, TILE // (batch * view.heads * view.keys))
    height = max(1, min(height, 8 * TILE // (batch * group * view.keys)))  # heads that share a key head stay together
    ahead = view.keys - view.queries
    for start in range(first, view.queries, height):
        rows = slice(start, min(start + height, view.queries))
        end = rows.stop + ahead if view.causal else view.keys
        begin = 0 if view.window is None else max(0, start + ahead - view.window + 1)
        if view.window is not None:
            end = min(end, rows.stop + ahead + view.window - 1)
        yield Rows(view, rows, slice(begin, end))


def tiles(block: Rows) -> Iterator[Tile]:
    """The logits of a block, a few heads at a time; heads that share a key head stay together."""
    view = block.view
    batch, count, kv_heads = view.q.shape[0], block.rows.stop - block.rows.start, view.k.shape[1]
    group = view.heads // kv_heads
    together = max(1, TILE // (batch * group * count * (block.keys.stop - block.keys.start)))
    for start in range(0, kv_heads, together):
        stop = min(start + together, kv_heads)
        heads = slice(start * group, stop * group)
        q, k = view.q[:, heads, block.rows], view.k[:, start:stop, block.keys]
        bias = view.bias
        if bias is not None:
            bias = of_heads(bias, heads)[..., block.keys]
            bias = bias if bias.shape[-2] == 1 else bias[..., block.rows, :]
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide) * view.scale, k.to(wide)
        yield Tile(heads, q, k, grouped_products(q, k), None if bias is None else bias.to(wide))


def of_heads(tensor: Shaped[Tensor, "batch head ..."], heads: slice) -> Shaped[Tensor, "batch head_ ..."]:
    """The slice of these heads; an axis of size 1 is returned as it is, to broadcast."""
    return tensor if tensor.shape[1] == 1 else tensor[:, heads]
