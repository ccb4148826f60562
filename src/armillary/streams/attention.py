"""What every head's attention looks like, in one pass over its logits, a block of rows at a time."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from armillary.streams.localization import least_entropy, propagation_counts
from armillary.streams.stream import State, wide
from armillary.view import AttentionView, grouped_products, row_centred, soft_capped

CELLS = 128
"""The mean logit matrix is kept on a grid of at most this many cells a side (exact up to as many positions)."""

BLOCK = 8_000_000
"""Rows are taken so that a block of logits has about this many numbers."""


class AttentionStatistics:
    """Per head, over rows t >= skip: entropy, masses, distance; and of the logits: moments, by lag, mean matrix.

    Rows see all their visible keys, the first ones too. Logit moments count pairs of kept tokens only (the first
    `skip` take no part, as queries or as keys), before the soft-cap. Entropy counts a sink as one more outcome. rho:
    how often each of PLACES parts of the keys passes a signal (streams/localization.py), rho_keys keys on average.
    channel_share, bias_share: shares of the logits, as in MEASURES 'Constituents', of each channel of q and k; they
    add to 1.
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
        rows = max(1, BLOCK // (batch.q.shape[0] * batch.heads * batch.keys))
        starts = range(self.skip, batch.queries, rows)
        blocks = [self._measure_rows(batch, slice(start, min(start + rows, batch.queries))) for start in starts]
        state = blocks[0]
        for block in blocks[1:]:
            state = self.combine(state, block)
        return state

    def _measure_rows(self, view: AttentionView, rows: slice) -> State:
        products = wide_products(view, rows)
        bias = 0.0 if view.bias is None else wide(view.bias if view.bias.shape[-2] == 1 else view.bias[..., rows, :])
        seen = view.visible(rows).expand(products.shape[0], -1, -1, -1)
        query = torch.arange(view.queries, device=products.device)[rows]
        state = row_statistics(view, soft_capped(products, view.softcap) + bias, seen, query)
        logits = products + bias
        kept = seen.clone()
        kept[..., : self.skip] = False
        state.update(logit_moments(logits, kept))
        state.update(self._by_place(logits, kept, query))
        state.update(propagation_counts(logits, kept, query, self.length))
        state.update(channel_sums(view, logits, bias, kept, rows))
        return state

    def _by_place(
        self, logits: Float[Tensor, "batch head row key"], kept: Bool[Tensor, "batch #head row key"], query: Tensor
    ) -> State:
        """Sums of the logits by lag i - j and by cell of the matrix; the number of pairs is the same for all heads."""
        masked = logits * kept
        once, twice = masked.sum(0), (masked * logits).sum(0)
        count = kept[:, 0].sum(0, dtype=torch.float64)[None]
        first, keys = int(query[0]), logits.shape[-1]
        before = first + self.length - keys  # where lag -(keys - 1) of the first row stands among all lags
        after = 2 * self.length - 1 - before - (keys + len(query) - 1)
        lags = {
            name: torch.nn.functional.pad(diagonal_sums(sums), (before, after))
            for name, sums in (("lag_sum", once), ("lag_square", twice), ("lag_count", count))
        }
        cells = {name: to_cells(x, query, self.length) for name, x in (("cell_sum", once), ("cell_count", count))}
        return {**lags, **cells}

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
MOMENTS = ("logit_mean", "logit_variance", "logit_skewness", "logit_kurtosis")
MOMENT_STATE = ("logit_pairs", "logit_mean", "logit_m2", "logit_m3", "logit_m4")


@dataclass(frozen=True)
class _Softmax:
    """Attention probabilities of a block of rows, with their log normaliser."""

    attention: Float[Tensor, "batch head row key"]
    sink: Float[Tensor, "batch head row"]
    entropy: Float[Tensor, "batch head row"]


def wide_products(view: AttentionView, rows: slice) -> Float[Tensor, "batch head row key"]:
    """scale * q.k of these rows, computed in float64."""
    return grouped_products(wide(view.q[:, :, rows]), wide(view.k)) * view.scale


def softmax(
    view: AttentionView, logits: Float[Tensor, "batch head row key"], seen: Bool[Tensor, "batch #head row key"]
) -> _Softmax:
    """Probabilities and entropy of capped logits; entropy is the log normaliser minus the mean logit."""
    shown = logits.masked_fill(~seen, -torch.inf)
    log_sum = shown.logsumexp(-1)
    sink_logit = None if view.sinks is None else wide(view.sinks)[None, :, None].expand_as(log_sum)
    if sink_logit is not None:
        log_sum = torch.logaddexp(log_sum, sink_logit)
    attention = (shown - log_sum[..., None]).exp()
    mean_logit = (attention * logits.masked_fill(~seen, 0.0)).sum(-1)
    sink = torch.zeros_like(log_sum)
    if sink_logit is not None:
        sink = (sink_logit - log_sum).exp()
        mean_logit = mean_logit + sink * sink_logit
    return _Softmax(attention, sink, (log_sum - mean_logit).clamp(min=0))


def row_statistics(
    view: AttentionView,
    logits: Float[Tensor, "batch head row key"],
    seen: Bool[Tensor, "batch #head row key"],
    query: Tensor,
) -> State:
    """Sums over sequences and rows of what the attention probabilities say."""
    found = softmax(view, logits, seen)
    a, keys = found.attention, torch.arange(logits.shape[-1], device=logits.device)
    visible = seen.sum(-1).double()
    several = visible > 1
    at = query[None, None, :, None].expand(*a.shape[:3], 1)
    previous = a.gather(-1, (at - 1).clamp(min=0))[..., 0] * (query > 0)
    distance = (query[:, None] - keys[None, :]).abs().double()
    share = torch.where(several, found.entropy / visible.clamp(min=2).log(), 0.0)
    count = float(a.shape[0] * a.shape[2])
    return {
        "rows": torch.tensor(count, dtype=torch.float64, device=a.device),
        "entropy": found.entropy.sum((0, 2)),
        "least_entropy": least_entropy(logits, seen).sum((0, 2)),
        "entropy_norm": share.sum((0, 2)),
        "entropy_rows": several.expand(*a.shape[:3]).sum((0, 2)).double(),
        "self_mass": a.gather(-1, at)[..., 0].sum((0, 2)),
        "prev_mass": previous.sum((0, 2)),
        "first_mass": a[..., 0].sum((0, 2)),
        "sink_mass": found.sink.sum((0, 2)),
        "mean_distance": (a * distance).sum((0, 2, 3)),
    }


def channel_sums(
    view: AttentionView,
    logits: Float[Tensor, "batch head row key"],
    bias: Tensor | float,
    kept: Bool[Tensor, "batch #head row key"],
    rows: slice,
) -> State:
    """What every channel of q and k, and the bias, add to the sum of squares of the row-centred logits b.

    The part of channel c is sum_ij b_ij scale q_ic k_jc; since b is centred it need not be. All parts sum to sum b^2.
    """
    centred = row_centred(logits, kept)
    k = wide(view.k)
    grouped = centred.reshape(centred.shape[0], k.shape[1], -1, centred.shape[-1])
    read = (grouped @ k).reshape(*centred.shape[:3], k.shape[-1])
    biased = torch.zeros(view.heads, dtype=torch.float64, device=k.device)
    return {
        "channel_sum": view.scale * (wide(view.q[:, :, rows]) * read).sum((0, 2)),
        "bias_sum": biased if isinstance(bias, float) else (centred * bias).sum((0, 2, 3)),
        "logit_square": centred.square().sum((0, 2, 3)),
    }


def logit_moments(logits: Float[Tensor, "batch head row key"], kept: Bool[Tensor, "batch #head row key"]) -> State:
    """Number, mean and central power sums of the logits of kept pairs, per head."""
    pairs = kept.expand(-1, logits.shape[1], -1, -1).sum((0, 2, 3)).double()
    mean = (logits * kept).sum((0, 2, 3)) / pairs.clamp(min=1)
    centred = (logits - mean[:, None, None]) * kept
    square = centred.square()
    return {
        "logit_pairs": pairs,
        "logit_mean": mean,
        "logit_m2": square.sum((0, 2, 3)),
        "logit_m3": (square * centred).sum((0, 2, 3)),
        "logit_m4": square.square().sum((0, 2, 3)),
    }


def central_moments(values: Float[Tensor, "head n"]) -> State:
    """The same of plain lists of values, one for each head."""
    return logit_moments(values[None, :, None], torch.ones_like(values[None, :, None], dtype=torch.bool))


def finish_moments(state: State) -> dict[str, Tensor]:
    """Mean, variance, skewness and excess kurtosis from the power sums."""
    pairs = state["logit_pairs"]
    variance = state["logit_m2"] / pairs
    return {
        "logit_mean": state["logit_mean"],
        "logit_variance": variance,
        "logit_skewness": state["logit_m3"] / pairs / variance**1.5,
        "logit_kurtosis": state["logit_m4"] / pairs / variance**2 - 3,
    }


def combine_moments(a: State, b: State) -> State:
    """Central power sums of two sets together, from those of each."""
    n, m = a["logit_pairs"], b["logit_pairs"]
    total = (n + m).clamp(min=1)
    shift = b["logit_mean"] - a["logit_mean"]
    a2, b2, a3, b3 = a["logit_m2"], b["logit_m2"], a["logit_m3"], b["logit_m3"]
    return {
        "logit_pairs": n + m,
        "logit_mean": a["logit_mean"] + shift * m / total,
        "logit_m2": a2 + b2 + shift**2 * n * m / total,
        "logit_m3": a3 + b3 + shift**3 * n * m * (n - m) / total**2 + 3 * shift * (n * b2 - m * a2) / total,
        "logit_m4": a["logit_m4"]
        + b["logit_m4"]
        + shift**4 * n * m * (n**2 - n * m + m**2) / total**3
        + 6 * shift**2 * (n**2 * b2 + m**2 * a2) / total**2
        + 4 * shift * (n * b3 - m * a3) / total,
    }


def to_cells(sums: Float[Tensor, "head row key"], query: Tensor, length: int) -> Float[Tensor, "head cell cell_"]:
    """Sums over the cells of a grid of at most CELLS a side over all length x length pairs."""
    cells = min(length, CELLS)
    rows = torch.zeros(len(sums), cells, sums.shape[-1], dtype=torch.float64, device=sums.device)
    rows.index_add_(1, query * cells // length, sums)
    if cells == length:
        return rows
    keys = torch.arange(sums.shape[-1], device=sums.device)
    grid = torch.zeros(len(sums), cells, cells, dtype=torch.float64, device=sums.device)
    return grid.index_add_(2, keys * cells // length, rows)


def diagonal_sums(matrix: Float[Tensor, "head row key"]) -> Float[Tensor, "head diagonal"]:
    """Sums along the diagonals row - key = const, from -(keys - 1) to rows - 1, without a loop."""
    rows, keys = matrix.shape[1:]
    padded = torch.nn.functional.pad(matrix.flip(-1), (0, rows))
    return padded.flatten(1)[:, : rows * (keys + rows - 1)].reshape(-1, rows, keys + rows - 1).sum(1)
