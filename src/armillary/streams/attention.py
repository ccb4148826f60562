"""What every head's attention looks like, in one pass over its logits, a tile at a time."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.errors import ArmillaryError
from armillary.streams.localization import Propagation, least_entropy
from armillary.streams.power_sums import MOMENT_STATE, MOMENTS, combine_moments, finish_moments
from armillary.streams.rows import (
    HIDDEN,
    CentredRows,
    centred_rows,
    channel_sums,
    logit_moments,
    row_statistics,
    square_with,
)
from armillary.streams.stream import State, wide
from armillary.streams.tiles import Rows, Tile, of_heads, row_blocks, tiles
from armillary.view import AttentionView, soft_capped

CELLS = 128
"""The mean logit matrix is kept on a grid of at most this many cells a side (exact up to as many positions)."""


class AttentionStatistics:
    """Per head, over rows t >= skip: entropy, masses, distance; and of the logits: moments, by lag, mean matrix.

    Rows see all their visible keys, the first ones too. Logit moments count pairs of kept tokens only (the first
    `skip` take no part, as queries or as keys), before the soft-cap. Entropy counts a sink as one more outcome. rho:
    how often each of PLACES parts of the keys passes a signal (streams/localization.py), rho_keys keys on average.
    channel_share, bias_share: shares of the logits, as in MEASURES 'Constituents', of each channel of q and k; they
    add to 1. Sums along a row of logits are float32 (float64 if the model is), sums of rows float64.
    """

    def __init__(self, skip: int, length: int) -> None:
        self.skip = skip
        self.length = length
        per_head = (
            "entropy",
            "entropy_norm",
            "least_entropy",
            "self_mass",
            "prev_mass",
            "first_mass",
            "sink_mass",
            "mean_distance",
        )
        self.dims: dict[str, tuple[str, ...]] = {
            **dict.fromkeys((*per_head, *MOMENTS), ("head",)),
            "logit_mean_by_lag": ("head", "lag"),
            "logit_variance_by_lag": ("head", "lag"),
            "logit_matrix": ("head", "query_cell", "key_cell"),
            "rho": ("head", "place"),
            "rho_keys": ("head",),
            "channel_share": ("head", "channel"),
            "bias_share": ("head",),
            "logit_square": ("head",),
        }

    def measure(self, batch: AttentionView) -> State:
        if batch.queries <= self.skip or batch.keys > self.length:
            raise ArmillaryError(
                f"{batch.queries} queries and {batch.keys} keys, without the first {self.skip}: these statistics were "
                f"made for texts of up to {self.length} tokens, and need one after the skipped"
            )
        total: State = {}
        for block in row_blocks(batch, self.skip):
            found = _Block(batch, block, self.skip, self.length).state()
            total = self._add(total, found) if total else found
        return total

    @staticmethod
    def _add(total: State, found: State) -> State:
        """What `combine` gives, in the memory of the first."""
        moments = combine_moments(total, found)
        for name, tensor in total.items():
            if name not in MOMENT_STATE:
                tensor += found[name]
        return total | moments

    def combine(self, a: State, b: State) -> State:
        added = {name: a[name] + b[name] for name in a if name not in MOMENT_STATE}
        return {**added, **combine_moments(a, b)}

    def finish(self, state: State) -> dict[str, Tensor]:
        rows = state["rows"]
        means = {name: state[name] / rows for name in MASSES}
        lags = slice(self.length - 1, None)  # keys at the query's place or before it
        mean_by_lag = state["lag_sum"] / state["lag_count"]
        by_lag = state["lag_square"] / state["lag_count"] - mean_by_lag.square()
        return {
            **means,
            "entropy_norm": state["entropy_norm"] / state["entropy_rows"],
            **finish_moments(state),
            "logit_mean_by_lag": mean_by_lag[:, lags],
            "logit_variance_by_lag": by_lag[:, lags].clamp(min=0),
            "logit_matrix": state["cell_sum"] / state["cell_count"],
            "rho": state["rho_hits"] / state["rho_count"],
            "rho_keys": state["rho_keys"] / state["rho_rows"],
            "channel_share": state["channel_sum"] / state["logit_square"][:, None],
            "bias_share": state["bias_sum"] / state["logit_square"],
            "logit_square": state["logit_square"],
        }


MASSES = ("entropy", "least_entropy", "self_mass", "prev_mass", "first_mass", "sink_mass", "mean_distance")


class _Block:
    """A block of rows: what all heads share, and the sums of each."""

    def __init__(self, view: AttentionView, block: Rows, skip: int, length: int) -> None:
        self.view, self.block, self.skip, self.length = view, block, skip, length
        kept = block.seen.clone()
        self.skipped = max(0, min(skip, block.keys.stop) - block.keys.start)
        kept[..., : self.skipped] = False
        dtype = torch.promote_types(view.q.dtype, torch.float32)
        self.hidden = torch.zeros(block.seen.shape, dtype=dtype, device=kept.device).masked_fill_(~block.seen, HIDDEN)
        self.kept = kept.to(dtype)
        self.visible, self.count = wide(block.seen.sum(-1)), wide(kept.sum(-1))
        keys = torch.arange(block.keys.start, block.keys.stop, device=kept.device)
        self.distance = (block.query[:, None] - keys).abs().to(dtype)
        self.propagation = Propagation(kept, block.query, length)

    def state(self) -> State:
        parts = [self._tile(tile) for tile in tiles(self.view, self.block)]
        found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        batch = self.view.q.shape[0]
        pairs = wide(self.kept[:, :1].expand(batch, -1, -1, -1).sum(0))  # alike in all heads
        rows = torch.tensor(float(batch * len(self.block.query)), dtype=torch.float64, device=pairs.device)
        cells = {"cell_sum": self._cells(found.pop("cell_rows")), "cell_count": self._cells(self._cell_rows(pairs))}
        return {**found, **cells, "rows": rows, "lag_count": self._by_lag(pairs)}

    def _tile(self, tile: Tile) -> State:
        heads = tile.heads
        hidden, kept, visible, count, seen = (
            of_heads(part, heads) for part in (self.hidden, self.kept, self.visible, self.count, self.block.seen)
        )
        logits = tile.products if tile.bias is None else tile.products + tile.bias
        shown = logits
        if self.view.softcap is not None:
            shown = soft_capped(tile.products, self.view.softcap) + (0.0 if tile.bias is None else tile.bias)
        sinks = None if self.view.sinks is None else self.view.sinks[heads]
        state = row_statistics(shown, hidden, visible, self.distance, self.block, sinks)
        rows = centred_rows(logits, kept, count)
        if self.view.softcap is not None:
            square = centred_rows(shown, seen.to(shown.dtype), visible).square
        else:
            square = square_with(rows, logits[..., : self.skipped], seen[..., : self.skipped])
        state["least_entropy"] = least_entropy(square, visible).sum((0, 2))
        return state | self._logits(tile, rows)

    def _logits(self, tile: Tile, rows: CentredRows) -> State:
        state = logit_moments(rows) | channel_sums(tile, rows)
        state |= self.propagation.hits(rows.off, tile.heads)
        once, twice = self._over_texts(rows, of_heads(self.kept, tile.heads))
        return state | {
            "lag_sum": self._by_lag(once),
            "lag_square": self._by_lag(twice),
            "cell_rows": self._cell_rows(once),
        }

    def _over_texts(
        self, rows: CentredRows, kept: Float[Tensor, "#batch #head row key"]
    ) -> tuple[Float[Tensor, "head row key"], Float[Tensor, "head row key"]]:
        """Sums over texts of the logits and of their squares, from those about their mean: large means keep digits.

        Overwrites rows.squares.
        """
        if len(rows.masked) == 1:
            one = wide(rows.masked[0])
            return one, one.square()
        count = kept.expand(rows.masked.shape[0], -1, -1, -1).sum(0)
        near = rows.masked.sum(0) / count.clamp(min=1)
        off = torch.addcmul(rows.masked, near, kept, value=-1)
        left, square = off.sum(0), torch.mul(off, off, out=rows.squares).sum(0)
        middle, number, rest = wide(near), wide(count), wide(left)
        return rest + middle * number, wide(square) + 2 * middle * rest + middle.square() * number

    def _by_lag(self, sums: Float[Tensor, "head row key"]) -> Float[Tensor, "head lag"]:
        """Sums by lag i - j, for all lags of the text, -(length - 1) .. length - 1."""
        first, keys = int(self.block.query[0]) - self.block.keys.start, sums.shape[-1]
        before = first - (keys - 1) + self.length - 1  # where the lag of the first row's last key stands among all
        after = 2 * self.length - 1 - before - (keys + sums.shape[1] - 1)
        return torch.nn.functional.pad(diagonal_sums(sums), (before, after))

    def _cell_rows(self, sums: Float[Tensor, "head row key"]) -> Float[Tensor, "head cell key"]:
        return by_cell_of_row(sums, self.block.query, self.length)

    def _cells(self, sums: Float[Tensor, "head cell key"]) -> Float[Tensor, "head cell_ cell__"]:
        keys = torch.arange(self.block.keys.start, self.block.keys.stop, device=sums.device)
        return on_grid(sums, self.block.query, keys, self.length)


def to_cells(
    sums: Float[Tensor, "head row key"], query: Int[Tensor, "row"], keys: Int[Tensor, "key"], length: int
) -> Float[Tensor, "head cell cell_"]:
    """Sums over the cells of a grid of at most CELLS a side over all length x length pairs; query and keys in order."""
    return on_grid(by_cell_of_row(sums, query, length), query, keys, length)


def cell_of(places: Int[Tensor, "place"], length: int) -> Int[Tensor, "place"]:
    """The cell of every place."""
    return places * min(length, CELLS) // length


def by_cell_of_row(
    sums: Float[Tensor, "head row key"], query: Int[Tensor, "row"], length: int
) -> Float[Tensor, "head cell key"]:
    """Rows of the same cell together, in float64."""
    among = torch.unique_consecutive(cell_of(query, length), return_counts=True)[1]
    return torch.stack([wide(part).sum(1) for part in sums.split(among.tolist(), 1)], 1)


def on_grid(
    sums: Float[Tensor, "head cell key"], query: Int[Tensor, "row"], keys: Int[Tensor, "key"], length: int
) -> Float[Tensor, "head cell_ cell__"]:
    """Keys of the same cell together, and everything in its place on the grid."""
    cells = min(length, CELLS)
    rows, columns = cell_of(query, length), cell_of(keys.to(sums.device), length)
    grid = torch.zeros(len(sums), cells, cells, dtype=torch.float64, device=sums.device)
    part = grid[:, int(rows[0]) : int(rows[-1]) + 1]
    part.index_add_(2, columns, sums)
    return grid


def diagonal_sums(matrix: Float[Tensor, "head row key"]) -> Float[Tensor, "head diagonal"]:
    """Sums along the diagonals row - key = const, from -(keys - 1) to rows - 1, in float64, without a loop."""
    heads, rows, keys = matrix.shape
    if keys > 2 * rows:  # all but the corners are whole diagonals, which need no copy
        whole = matrix.contiguous().as_strided((heads, rows, keys - rows + 1), (rows * keys, keys + 1, 1))
        first = diagonal_sums(matrix[..., :rows].tril(-1))[:, rows:]
        last = diagonal_sums(matrix[..., keys - rows :].triu(1))[:, : rows - 1]
        return torch.cat([last, wide(whole).sum(1).flip(-1), first], 1)
    width = keys + rows - 1
    skewed = matrix.new_zeros(heads, rows, width)  # each row one place further to the left than the one before
    skewed.as_strided((heads, rows, keys), (rows * width, width - 1, 1), rows - 1).copy_(matrix)
    return wide(skewed).sum(1).flip(-1)
