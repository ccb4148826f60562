"""Which pairs of a block of causal rows are masked: only those near the diagonal and at the window's far end.

The columns of a block's tile are the keys that any of its rows sees:

    0          skipped         left                        right           size
    | skipped  | window's edge | plain: seen by all rows   | diagonal edge |

Only the edges need a mask, which is the same in all texts and heads.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.observe.precision import wide
from armillary.streams.by_place import cell_of
from armillary.streams.localization import Propagation
from armillary.streams.tiles import Rows

SHORT = 1024
"""Shorter texts gain nothing from this path, and its buffers cost memory."""

WORTH = 1
"""This path is used if the keys that all rows see are at least this many times those in masked columns."""


def plain_keys(block: Rows, skip: int) -> slice | None:
    """The kept keys that all rows see; None if they are too few, or if more than causality and a window hides keys."""
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
    """Which of these keys a row sees by causality and window alone."""
    lag = block.query[:, None] - keys
    return (lag >= 0) & (lag < (block.view.window or block.view.keys))


@dataclass(frozen=True)
class Geometry:
    """The shape of a block's tile: which columns are masked, and how many keys each row sees."""

    rows: int
    size: int
    """How many keys the tile has."""
    skipped: int
    """How many of its first keys belong to skipped tokens."""
    own: int
    """The column of the first row's own key."""
    lowest_lag: int
    """The lag of the first row and the last key."""
    farthest_lag: int
    """Pairs from this lag on are hidden."""
    plain: slice
    """The columns that all rows see."""
    edges: tuple[slice, ...]
    """The columns that need a mask, without skipped ones."""
    edge_keys: Int[Tensor, "edge"]
    """The positions of the keys of those columns."""
    kept: Float[Tensor, "row edge"]
    """1 where a row sees one of those keys."""
    others: Float[Tensor, "row skipped"]
    """1 where a row sees a skipped key."""
    masks: tuple[tuple[slice, Float[Tensor, "row _"]], ...]
    """Slices of columns that need a mask, each with its mask."""
    count: Float[Tensor, "1 1 row"]
    """How many kept keys a row sees."""
    visible: Float[Tensor, "1 1 row"]
    """How many keys a row sees, skipped ones too."""
    ahead: Float[Tensor, "key"]
    """The distance from each key to the block's middle row."""
    past: Float[Tensor, "row"]
    """The distance from the middle row to each row."""
    cells: Float[Tensor, "cell row"]
    """1 where a row lies in a cell of the grid of mean logits."""
    propagation: Propagation

    @classmethod
    def of(cls, block: Rows, plain: slice, skip: int, length: int) -> "Geometry":
        """The geometry of a block; `plain`: positions of the keys that all its rows see."""
        view, start, stop = block.view, block.keys.start, block.keys.stop
        dtype = torch.promote_types(view.q.dtype, torch.float32)
        skipped, left, right = max(0, skip - start), plain.start - start, plain.stop - start
        edges = tuple(e for e in (slice(skipped, left), slice(right, stop - start)) if e.start < e.stop)
        edge_keys = torch.cat([block.places[edge] for edge in edges])
        seen, others = _seen(block, edge_keys), _seen(block, block.places[:skipped])
        kept = seen.to(dtype)
        masks = list(zip(edges, kept.split([edge.stop - edge.start for edge in edges], -1), strict=True))
        if not bool(others.all()):
            masks.append((slice(0, skipped), others.to(dtype)))
        count = (seen.sum(-1) + (right - left))[None, None]
        hidden = (left - seen[:, : left - skipped].sum(-1))[None, None]
        middle = (block.rows.start + block.rows.stop) // 2
        cell = cell_of(block.query, length)
        return cls(
            rows=block.rows.stop - block.rows.start,
            size=stop - start,
            skipped=skipped,
            own=block.rows.start - start,
            lowest_lag=int(block.rows.start - stop + 1),
            farthest_lag=view.window or view.keys,
            plain=slice(left, right),
            edges=edges,
            edge_keys=edge_keys,
            kept=kept,
            others=others.to(dtype),
            masks=tuple(masks),
            count=wide(count),
            visible=wide(count + others.sum(-1)),
            ahead=(middle - block.places).to(dtype),
            past=wide(block.query - middle),
            cells=(cell == torch.arange(int(cell[0]), int(cell[-1]) + 1, device=cell.device)[:, None]).to(dtype),
            propagation=Propagation.runs(hidden, count, block.query, length),
        )

    def mask(self, tile: Float[Tensor, "*many row key"]) -> Float[Tensor, "*many row key"]:
        """Zero, in place, where a row does not see a key. A tile with fewer rows has the block's last ones."""
        for columns, seen in self.masks:
            tile[..., columns].mul_(seen[-tile.shape[-2] :])
        return tile

    def at_edges(self, tile: Float[Tensor, "*many key"]) -> Float[Tensor, "*many edge"]:
        """The columns that need a mask."""
        return torch.cat([tile[..., edge] for edge in self.edges], -1)

    def rows_of_diagonals(self) -> tuple[Int[Tensor, "diagonal"], Int[Tensor, "diagonal"]]:
        """The first row of kept pairs on each diagonal, and the one after the last; the largest lag first."""
        diagonal = torch.arange(self.size + self.rows - 1, device=self.kept.device)
        lag = self.lowest_lag + self.size + self.rows - 2 - diagonal
        seen = (lag >= 0) & (lag < self.farthest_lag)
        first = (self.rows - 1 + self.skipped - diagonal).clamp(0, self.rows)
        stop = (self.size + self.rows - 1 - diagonal).clamp(max=self.rows)
        return first, torch.where(seen, torch.maximum(first, stop), first)
