"""Means and second moments of vectors: by position, over all tokens, and between tokens at given lags.

Two-pass inside a batch, then combined by the formulas for merging means and scatters, so that a small variance survives
beside a large mean. Vectors are float32 (float64 if the model is), a few at a time; sums are float64.
"""

import itertools

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.machine.compiler import serves
from armillary.machine.parallel import in_spans
from armillary.observe.precision import single, wide
from armillary.observe.view import exact_arithmetic
from armillary.streams.declaration import Declaration, Option, Reads
from armillary.streams.stream import Axes, State


class PositionMoments:
    """Of vectors h[c, t]: the mean at each position t and the sum over sequences of |h - mean_t|^2 there.

    Also the mean length |h| and the mean squared length at each position, including skipped ones.
    """

    def __init__(self) -> None:
        self.dims = {
            "mean": ("position", "width"),
            "scatter": ("position",),
            "norm": ("position",),
            "norm_squared": ("position",),
            "sequences": (),
        }

    def measure(self, batch: Float[Tensor, "sequence position width"]) -> State:
        if serves(batch):
            return self._compiled(single(batch).contiguous())
        parts = [self._positions(single(part)) for part in batch.split(positions_together(batch), 1)]
        state = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        count = torch.tensor(float(len(batch)), dtype=torch.float64, device=state["mean"].device)
        return {"sequences": count, **state}

    @staticmethod
    def _compiled(h: Float[Tensor, "sequence position width"]) -> State:
        """The same sums from one compiled loop."""
        # for start-up: it imports numba, which may be missing
        from armillary.streams.compiled_vectors import add_positions

        mean, sums = np.zeros(h.shape[1:]), np.zeros((3, h.shape[1]))
        vectors = h.detach().numpy()
        in_spans(lambda *span: add_positions(span, vectors, mean, *sums), h.shape[1])
        count = torch.tensor(float(len(h)), dtype=torch.float64)
        names = ("scatter", "norm", "norm_squared")
        by_position = {name: torch.from_numpy(values) for name, values in zip(names, sums, strict=True)}
        return {"sequences": count, "mean": torch.from_numpy(mean), **by_position}

    @staticmethod
    def _positions(h: Float[Tensor, "sequence position width"]) -> State:
        mean = wide(h).mean(0)
        near = mean.to(h)
        squares = wide(h.square().sum(-1))
        return {
            "mean": mean,
            "scatter": wide((h - near).square_().sum(-1)).sum(0) - len(h) * (mean - wide(near)).square().sum(-1),
            "norm": squares.sqrt().sum(0),
            "norm_squared": squares.sum(0),
        }

    def combine(self, a: State, b: State) -> State:
        n, m = a["sequences"], b["sequences"]
        shift = b["mean"] - a["mean"]
        return {
            "sequences": n + m,
            "mean": a["mean"] + shift * (m / (n + m)),
            "scatter": a["scatter"] + b["scatter"] + shift.square().sum(-1) * (n * m / (n + m)),
            "norm": a["norm"] + b["norm"],
            "norm_squared": a["norm_squared"] + b["norm_squared"],
        }

    def finish(self, state: State) -> dict[str, Tensor]:
        n = state["sequences"]
        return {**state, "norm": state["norm"] / n, "norm_squared": state["norm_squared"] / n}


class Covariance:
    """Mean and covariance (divided by n) of vectors, over all sequences and kept positions at once."""

    def __init__(self, skip: int) -> None:
        self.skip = skip
        self.dims = {"mean": ("width",), "covariance": ("width", "width_"), "tokens": ()}

    def measure(self, batch: Float[Tensor, "sequence position width"]) -> State:
        x = single(batch[:, self.skip :]).flatten(0, 1)
        mean = mean_of(x)
        count = torch.tensor(float(len(x)), dtype=torch.float64, device=mean.device)
        return {"tokens": count, "mean": mean, "upper": upper_scatter(x, mean)}

    def combine(self, a: State, b: State) -> State:
        n, m = a["tokens"], b["tokens"]
        shift = b["mean"] - a["mean"]
        return {
            "tokens": n + m,
            "mean": a["mean"] + shift * (m / (n + m)),
            "upper": (a["upper"] + b["upper"]).addr_(shift * (n * m / (n + m)), shift),
        }

    def finish(self, state: State) -> dict[str, Tensor]:
        upper = state["upper"].triu() / state["tokens"]
        covariance = upper + upper.triu(1).T
        return {"tokens": state["tokens"], "mean": state["mean"], "covariance": covariance}


class LaggedCovariance:
    """Cov(x_t, x_{t+lag}), t kept, for each lag: the mean of the earlier and of the later token, and the covariance.

    covariance[lag] has the earlier token's channels on its rows and the later one's on its columns; covariance_earlier
    and covariance_later are the covariances of each alone, over the same pairs.
    """

    def __init__(self, lags: tuple[int, ...], skip: int) -> None:
        self.lags = lags
        self.skip = skip
        self.dims = {
            "earlier": ("lag", "width"),
            "later": ("lag", "width"),
            "covariance": ("lag", "width", "width_"),
            "covariance_earlier": ("lag", "width", "width_"),
            "covariance_later": ("lag", "width", "width_"),
            "pairs": ("lag",),
        }

    def axes(self) -> Axes:
        """The lags, in tokens."""
        return {"lag": (("lag",), np.array(self.lags))}

    def measure(self, batch: Float[Tensor, "sequence position width"]) -> State:
        x = single(batch[:, self.skip :])
        states = [self._at_lag(x, lag) for lag in self.lags]
        return {name: torch.stack([state[name] for state in states]) for name in states[0]}

    def _at_lag(self, x: Float[Tensor, "sequence kept width"], lag: int) -> State:
        earlier, later = x[:, : x.shape[1] - lag].flatten(0, 1), x[:, lag:].flatten(0, 1)
        before, after = mean_of(earlier), mean_of(later)
        return {
            "pairs": torch.tensor(float(len(earlier)), dtype=torch.float64, device=before.device),
            "earlier": before,
            "later": after,
            "scatter": scatter_of(earlier, later, before, after),
            "scatter_earlier": scatter_of(earlier, earlier, before, before),
            "scatter_later": scatter_of(later, later, after, after),
        }

    def combine(self, a: State, b: State) -> State:
        n, m = a["pairs"][:, None], b["pairs"][:, None]
        before, after = b["earlier"] - a["earlier"], b["later"] - a["later"]
        weight = (n * m / (n + m))[:, :, None]
        shifts = {"scatter": (before, after), "scatter_earlier": (before, before), "scatter_later": (after, after)}
        return {
            "pairs": a["pairs"] + b["pairs"],
            "earlier": a["earlier"] + before * (m / (n + m)),
            "later": a["later"] + after * (m / (n + m)),
            **{
                name: a[name] + b[name] + left[:, :, None] * right[:, None, :] * weight
                for name, (left, right) in shifts.items()
            },
        }

    def finish(self, state: State) -> dict[str, Tensor]:
        pairs = state["pairs"][:, None, None]
        names = {"covariance": "scatter", "covariance_earlier": "scatter_earlier", "covariance_later": "scatter_later"}
        covariances = {name: state[scatter] / pairs for name, scatter in names.items()}
        return {**{name: state[name] for name in ("pairs", "earlier", "later")}, **covariances}


TOGETHER = 1024
"""Products of this many tokens are summed in float32 before they are added in float64."""

STRIPES = 4
"""A symmetric matrix is computed in so many stripes of rows, each from its diagonal on: 5/8 of all products."""


def positions_together(batch: Float[Tensor, "sequence position width"]) -> int:
    """How many positions to process at once, so that they stay in the processor's cache."""
    return max(1, (1 << 17) // (batch.shape[0] * batch.shape[2]))


def mean_of(x: Float[Tensor, "n width"]) -> Float[Tensor, "width"]:
    """The mean in float64, without a float64 copy of x."""
    parts = [wide(part).sum(0) for part in x.split(TOGETHER)]
    return torch.stack(parts).sum(0) / len(x)


def scatter_of(
    x: Float[Tensor, "n width"],
    y: Float[Tensor, "n width_"],
    x_mean: Float[Tensor, "width"],
    y_mean: Float[Tensor, "width_"],
) -> Float[Tensor, "width width_"]:
    """sum (x - mean)(y - mean)', in float64 from float32 products of TOGETHER tokens each.

    The means are rounded to the vectors' precision before they are subtracted; the result is corrected for this.
    """
    near_x, near_y = x_mean.to(x), y_mean.to(y)
    total = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64, device=x_mean.device)
    with exact_arithmetic(x):
        for start in range(0, len(x), TOGETHER):
            rows = slice(start, start + TOGETHER)
            total += wide((x[rows] - near_x).T @ (y[rows] - near_y))
    return total.addr_(x_mean - wide(near_x), y_mean - wide(near_y), alpha=-len(x))


def upper_scatter(x: Float[Tensor, "n width"], mean: Float[Tensor, "width"]) -> Float[Tensor, "width width"]:
    """sum (x - mean)(x - mean)', as `scatter_of`, on and above the diagonal; the rest is not to be read."""
    near, width = mean.to(x), x.shape[1]
    total = torch.zeros(width, width, dtype=torch.float64, device=mean.device)
    edges = [width * stripe // STRIPES for stripe in range(STRIPES + 1)]
    with exact_arithmetic(x):
        for part in x.split(TOGETHER):
            off = part - near
            for first, last in itertools.pairwise(edges):
                total[first:last, first:] += off[:, first:last].T @ off[:, first:]
    rounding = mean - wide(near)
    return total.addr_(rounding, rounding, alpha=-len(x))


POSITIONS = Option(
    "positions", "means and scatter by position and by sequence, of the residual stream and the attention input"
)
COVARIANCES = Option(
    "covariance", "covariance of the residual stream and the attention input (width x width for every layer)"
)
LAGGED = Option(
    "lags",
    "covariance of tokens 1, 2, 4, ... apart (width x width for every layer and lag), and of q with k there",
    default=False,
)

RESIDUAL_POSITIONS = Declaration(
    "residual.position", POSITIONS, Reads.RESIDUAL, lambda context: PositionMoments(), lenses=("positional",)
)
INPUT_POSITIONS = Declaration(
    "input.position",
    POSITIONS,
    Reads.INPUT,
    lambda context: PositionMoments(),
    lenses=("decomposition", "geometry", "gaussian"),
)
RESIDUAL_COVARIANCE = Declaration(
    "residual.covariance",
    COVARIANCES,
    Reads.RESIDUAL,
    lambda context: Covariance(context.skip),
    lenses=("positional",),
)
INPUT_COVARIANCE = Declaration(
    "input.covariance",
    COVARIANCES,
    Reads.INPUT,
    lambda context: Covariance(context.skip),
    lenses=("gaussian", "localization"),
)
LAGS = Declaration(
    "input.lag",
    LAGGED,
    Reads.INPUT,
    lambda context: LaggedCovariance(context.lags, context.skip),
    lenses=("gaussian",),
)
