"""Sums over pairs (query, key) by lag, and by the cells of a grid over the text."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.observe.precision import wide
from armillary.streams.stream import State
from armillary.streams.tiles import Rows

CELLS = 128
"""The mean logit matrix is stored on a grid of at most this many cells a side (exact up to as many positions)."""


class Places:
    """Sums over the pairs of a text by lag i - j, from -(length - 1), and by cell; blocks of rows add to them."""

    def __init__(self, heads: int, length: int, device: torch.device) -> None:
        self.length = length
        lags, cells = 2 * length - 1, min(length, CELLS)
        shapes = dict.fromkeys(("lag_sum", "lag_square", "lag_attention"), (heads, lags)) | {"lag_count": (1, lags)}
        grids = {"cell_sum": (heads, cells, cells), "cell_count": (1, cells, cells)}
        where = wide(torch.empty(0, device=device))
        self.state: State = {name: where.new_zeros(shape) for name, shape in {**shapes, **grids}.items()}

    def add_lags(self, name: str, heads: slice, lowest: int, sums: Float[Tensor, "head lag"]) -> None:
        """Add sums of consecutive lags from `lowest` on."""
        at = lowest + self.length - 1
        self.state[name][heads, at : at + sums.shape[-1]] += sums

    def cells(self, name: str, heads: slice, query: Int[Tensor, "row"]) -> Float[Tensor, "head cell cell_"]:
        """A view of the sums of the cells with these rows, for all cells of keys; add to it in place."""
        first, last = cell_of(query[[0, -1]], self.length).tolist()
        return self.state[name][heads, first : last + 1]

    def add_pairs_by_lag(self, name: str, heads: slice, block: Rows, pairs: Float[Tensor, "head row key"]) -> None:
        """Add the values of single pairs, the block's rows with its keys, by lag."""
        self.add_lags(name, heads, int(block.query[0]) - block.keys.stop + 1, diagonal_sums(pairs))

    def add_pairs_by_cell(self, name: str, heads: slice, block: Rows, pairs: Float[Tensor, "head row key"]) -> None:
        """Add the values of single pairs by cell."""
        rows = by_cell_of_row(pairs, block.query, self.length)
        columns = cell_of(block.places, self.length).to(rows.device)
        self.cells(name, heads, block.query).index_add_(2, columns, rows)


def to_cells(
    sums: Float[Tensor, "head row key"], query: Int[Tensor, "row"], keys: Int[Tensor, "key"], length: int
) -> Float[Tensor, "head cell cell_"]:
    """Sums over the cells of a grid of at most CELLS a side over all length x length pairs; query and keys in order."""
    return on_grid(by_cell_of_row(sums, query, length), query, keys, length)


def cell_of(places: Int[Tensor, "place"], length: int) -> Int[Tensor, "place"]:
    """The cell of every place."""
    return places * min(length, CELLS) // length


def cell_edges(length: int, device: torch.device) -> Int[Tensor, "edge"]:
    """The first place of every cell, and the place after the last."""
    cells = min(length, CELLS)
    return (torch.arange(cells + 1, device=device) * length + cells - 1) // cells


def by_cell_of_row(
    sums: Float[Tensor, "head row key"], query: Int[Tensor, "row"], length: int
) -> Float[Tensor, "head cell key"]:
    """Sums over the rows of each cell, in float64."""
    rows_per_cell = torch.unique_consecutive(cell_of(query, length), return_counts=True)[1]
    return torch.stack([wide(part).sum(1) for part in sums.split(rows_per_cell.tolist(), 1)], 1)


def on_grid(
    sums: Float[Tensor, "head cell key"], query: Int[Tensor, "row"], keys: Int[Tensor, "key"], length: int
) -> Float[Tensor, "head cell_ cell__"]:
    """Sums over the keys of each cell, placed on the grid."""
    cells = min(length, CELLS)
    rows, columns = cell_of(query, length), cell_of(keys.to(sums.device), length)
    grid = torch.zeros(len(sums), cells, cells, dtype=torch.float64, device=sums.device)
    part = grid[:, int(rows[0]) : int(rows[-1]) + 1]
    part.index_add_(2, columns, sums)
    return grid


def diagonal_sums(matrix: Float[Tensor, "head row key"]) -> Float[Tensor, "head diagonal"]:
    """Sums along the diagonals row - key = const, from -(keys - 1) to rows - 1, in float64, without a loop."""
    heads, rows, keys = matrix.shape
    if keys > 2 * rows:  # all but the corners are full diagonals, which need no copy
        whole = matrix.contiguous().as_strided((heads, rows, keys - rows + 1), (rows * keys, keys + 1, 1))
        first = diagonal_sums(matrix[..., :rows].tril(-1))[:, rows:]
        last = diagonal_sums(matrix[..., keys - rows :].triu(1))[:, : rows - 1]
        return torch.cat([last, wide(whole).sum(1).flip(-1), first], 1)
    width = keys + rows - 1
    skewed = matrix.new_zeros(heads, rows, width)  # each row shifted one column further to the left
    skewed.as_strided((heads, rows, keys), (rows * width, width - 1, 1), rows - 1).copy_(matrix)
    return wide(skewed).sum(1).flip(-1)
