"""Memory for tiles of logits that all blocks of a layer reuse: named buffers whose rows begin on cache lines."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.streams.tiles import LONG
from armillary.view import AttentionView

TILE = 1 << 19
"""About so many logits are computed at once; of long texts four times as many."""

CACHE_LINE = 16
"""Numbers of float32 in a line of the processor's cache."""


class Workspace:
    """Three buffers of about one tile: `logits` and `squares`, padded with zeros, and `weights`."""

    def __init__(self, view: AttentionView) -> None:
        self.tile = TILE if view.keys < LONG else 4 * TILE
        self._flat: dict[str, Tensor] = {}
        self._cleared: dict[str, tuple[int, int, int]] = {}

    def padded(
        self, name: str, many: int, rows: int, size: int, like: Tensor
    ) -> tuple[Float[Tensor, "many row key"], Float[Tensor, "many row diagonal"]]:
        """A tile with zeros behind every row and before the first; and the same with rows one place further each.

        In the second view a column is a diagonal of the first, so that a sum over its rows is a sum by lag. What is
        never written stays zero, from tile to tile of one shape.
        """
        before, width = _lines(rows - 1), _lines(size + rows - 1)
        flat = self._take(name, before + many * rows * width, like)
        tile = flat[before:].view(many, rows, width)
        cleared = self._cleared.get(name, (0, 0, 0))
        if cleared[1:] != (rows, size) or many > cleared[0]:
            flat[:before].zero_()
            tile[..., size:].zero_()
            self._cleared[name] = (many, rows, size)
        shape, strides = (many, rows, size + rows - 1), (rows * width, width + 1, 1)
        return tile[..., :size], flat.as_strided(shape, strides, before - (rows - 1))

    def plain(self, name: str, shape: tuple[int, ...], size: int, like: Tensor) -> Float[Tensor, "*shape key"]:
        """A tile with whatever was left in it."""
        width = _lines(size)
        self._cleared.pop(name, None)
        return self._take(name, math.prod(shape) * width, like).view(*shape, width)[..., :size]

    def _take(self, name: str, count: int, like: Tensor) -> Float[Tensor, "count"]:
        flat = self._flat.get(name)
        if flat is None or len(flat) < count:
            flat = self._flat[name] = torch.empty(
                max(count, self.tile + self.tile // 8), dtype=like.dtype, device=like.device
            )
            self._cleared.pop(name, None)
        return flat[:count]


def _lines(count: int) -> int:
    """So many numbers or a few more, that fill lines of the cache: products and tiles in them are much faster."""
    return -(-count // CACHE_LINE) * CACHE_LINE
