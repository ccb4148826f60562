"""Buffers for tiles of logits that all blocks of a layer reuse; their rows begin on cache lines."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.observe.view import AttentionView
from armillary.streams.tiles import LONG

TILE = 1 << 19
"""About this many logits are computed at once; four times as many in long texts."""

CACHE_LINE = 16
"""float32 numbers in a line of the processor's cache."""


class Workspace:
    """Three buffers of about one tile: `logits` and `squares`, padded with zeros, and `weights`."""

    def __init__(self, view: AttentionView) -> None:
        self.tile = TILE if view.keys < LONG else 4 * TILE
        self._flat: dict[str, Tensor] = {}
        self._cleared: dict[str, tuple[int, int, int]] = {}

    def padded(
        self, name: str, many: int, rows: int, size: int, like: Tensor
    ) -> tuple[Float[Tensor, "many row key"], Float[Tensor, "many row diagonal"]]:
        """A tile with zeros after every row and before the first, and a view of it with every row shifted by one.

        A column of the second view is a diagonal of the first, so a sum over its rows is a sum by lag. The padding is
        never written, so it stays zero for all tiles of one shape.
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
        """An uninitialized tile."""
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
    """`count` rounded up to whole cache lines, which makes products much faster."""
    return -(-count // CACHE_LINE) * CACHE_LINE
