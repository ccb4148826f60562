"""Tokens as the page shows them: each by itself, joined to words, or several to a cell where a text is long."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from armillary.words import Words

MOST = 256
"""A matrix on the page has at most so many rows and columns; up to so many tokens it is exact."""


@dataclass(frozen=True)
class Cells:
    """Token t is shown in cell of_token[t]; a cell is a run of tokens. `step` words or tokens make a cell."""

    of_token: Int[np.ndarray, "token"]
    step: int

    @property
    def starts(self) -> Int[np.ndarray, "cell"]:
        """The first token of every cell."""
        return np.flatnonzero(np.diff(self.of_token, prepend=-1))

    @property
    def ends(self) -> Int[np.ndarray, "cell"]:
        """The token after the last of every cell."""
        return np.append(self.starts[1:], len(self.of_token))


def cells_of(words: Words) -> Cells:
    """Every word a cell or, where there are more than MOST, as few neighbours to a cell as bring them below it."""
    step = -(-len(words.names) // MOST)
    return Cells(words.of_token // step, step)


def mean_cells(
    values: Float[np.ndarray, "query key"], visible: Bool[np.ndarray, "query key"], cells: Cells
) -> Float[np.ndarray, "cell cell"]:
    """The mean of every block over its visible pairs; NaN where none is visible."""
    counts = _sums(visible.astype(np.float64), cells)
    sums = _sums(np.where(visible, values, 0.0), cells)
    return np.asarray(np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0))


def max_cells(values: Float[np.ndarray, "word word"], step: int) -> Float[np.ndarray, "cell cell"]:
    """The largest value of every block of `step` x `step` words; NaN where all of them are."""
    edges = np.arange(0, len(values), step)
    filled = np.where(np.isnan(values), -np.inf, values)
    found = np.maximum.reduceat(np.maximum.reduceat(filled, edges, axis=0), edges, axis=1)
    return np.asarray(np.where(np.isneginf(found), np.nan, found))


def _sums(values: Float[np.ndarray, "query key"], cells: Cells) -> Float[np.ndarray, "cell cell"]:
    return np.asarray(np.add.reduceat(np.add.reduceat(values, cells.starts, axis=0), cells.starts, axis=1))
