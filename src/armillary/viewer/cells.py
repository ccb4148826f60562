"""Cells of the page's matrices: a token, a word or, for long texts, several of them per cell."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from armillary.text.words import Words

MOST = 256
"""The largest number of rows and columns of a matrix on the page; up to this many tokens it is exact."""


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
    """One cell per word or, with more than MOST words, as few neighbors per cell as needed."""
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
    largest = np.maximum.reduceat(np.maximum.reduceat(filled, edges, axis=0), edges, axis=1)
    return np.asarray(np.where(np.isneginf(largest), np.nan, largest))


def _sums(values: Float[np.ndarray, "query key"], cells: Cells) -> Float[np.ndarray, "cell cell"]:
    return np.asarray(np.add.reduceat(np.add.reduceat(values, cells.starts, axis=0), cells.starts, axis=1))
