"""Wertich, Figures 2.4 and 5.1: the singular values of noise, and softmax along a great circle."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots
from scipy.special import log_softmax

from armillary.figures.style import styled
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered, sized
from armillary.papers.experiments.wertich_claims import below, mean_error
from armillary.theory.random_matrix import (
    MarchenkoPastur,
    largest_mean,
    quarter_circle_cdf,
    quarter_circle_density,
    quarter_circle_mean,
)
from armillary.theory.softmax import entropy, kl_small_radius, slerp

# Figure 2.4 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """`draws` matrices of n x n; sizes and draws for the gaps."""

    n: int
    draws: int
    gap_sizes: tuple[int, ...]
    gap_draws: int


NOISE_SMALL = Noise(n=1024, draws=3, gap_sizes=(16, 32, 64, 128, 256), gap_draws=60)
NOISE_PAPER = Noise(n=1024, draws=30, gap_sizes=(16, 32, 64, 128, 256, 512, 1024), gap_draws=200)
SHOWN = 256
"""The number of points of a spectrum in a figure."""


def spectrum(settings: Settings) -> Outcome:
    """Singular values of matrices with entries N(0, 1/n), largest first, beside the quarter-circle law."""
    chosen = NOISE_SMALL if settings.small else NOISE_PAPER
    rng, n = np.random.default_rng(0), chosen.n
    values = np.stack([singular_values(rng, n) for _ in range(chosen.draws)])
    largest, largest_error = mean_error(values[:, 0])
    energy, energy_error = mean_error(np.square(values).sum(1))
    mean, error = mean_error(values.mean(1))
    slope, slope_error = gap_slope(rng, chosen.gap_sizes, chosen.gap_draws)
    ranks = np.arange(0, n, max(1, n // SHOWN))
    law = np.sqrt(MarchenkoPastur(1.0, 1.0).quantile(1 - (ranks + 0.5) / n))
    table = pd.DataFrame({"rank": ranks + 1, "law": law})
    table = table.assign(**{f"draw_{i}": draw[ranks] for i, draw in enumerate(values)})
    steps = np.arange(1, n + 1) / n
    distance = float(np.mean([np.abs(quarter_circle_cdf(np.sort(draw)) - steps).max() for draw in values]))
    summary = pd.DataFrame(
        [
            {"measure": "largest singular value", "found": largest, "error": largest_error, "law": 2.0},
            {"measure": "sum of squares / n", "found": energy / n, "error": energy_error / n, "law": 1.0},
            {"measure": "mean singular value", "found": mean, "error": error, "law": quarter_circle_mean()},
            {"measure": "slope of log(least gap) in log n", "found": slope, "error": slope_error, "law": -1.0},
            {"measure": "distance from the law (KS)", "found": distance, "error": np.nan, "law": 0.0},
        ]
    )
    claims = [
        sized("the largest singular value of Xavier noise is 2", 2.0, largest, error=largest_error, place="Fig. 2.4"),
        sized(
            "the squares of the singular values add up to n",
            float(n),
            energy,
            error=energy_error,
            place="(6.13)",
            digits=4,
        ),
        sized(
            "squared singular values of Xavier noise end at 4/n",
            4 / n,
            float(np.square(values[:, 0]).mean()),
            place="§2.5",
            why="the printed density is that of squares divided by n once more; they end at 4 (LEDGER T2.5d)",
        ),
        Claim(
            "a singular value of noise is sigma sqrt(n) = 1 on average",
            "1 (6.29)",
            f"{mean:.4g} ± {error:.1g}",
            "differs" if abs(mean - 1) > 5 * error else "same size",
            f"the root of the mean square is 1; the mean of the law is 8/(3 pi) = {quarter_circle_mean():.4g} (T6.29)",
        ),
        sized("the least gap falls like 1/n at fixed sigma (power of n)", -1.0, slope, error=slope_error, place="§2.5"),
    ]
    learned = [
        f"How regular 'regular sampling' is: {chosen.draws} spectra of {n} x {n} noise stay within {distance:.2g} of "
        f"the quarter circle (largest distance of the distribution functions), where {n} independent draws would "
        f"stray by about {0.87 / np.sqrt(n):.2g}; the largest value is {largest:.4g}, and "
        f"{np.sqrt(largest_mean(n, n, 1 / n)):.4g} is what Tracy-Widom says, not yet 2."
    ]
    return Outcome(
        {"summary": summary, "spectrum": table}, {"spectrum": _spectrum_figure(values, ranks)}, claims, learned
    )


def singular_values(rng: np.random.Generator, n: int, scale: float | None = None) -> Float[np.ndarray, "n"]:
    """Of an n x n matrix of Gaussian entries with standard deviation `scale` (1/sqrt n), largest first."""
    matrix = rng.standard_normal((n, n)) * (1 / np.sqrt(n) if scale is None else scale)
    return np.asarray(np.linalg.svd(matrix, compute_uv=False))


def gap_slope(rng: np.random.Generator, sizes: tuple[int, ...], draws: int) -> tuple[float, float]:
    """The exponent of n in the smallest gap between singular values at sigma = 1, and its standard error over draws."""
    logs = [[np.log(-np.diff(singular_values(rng, n, 1.0)).max()) for n in sizes] for _ in range(draws)]
    return mean_error(np.polyfit(np.log(sizes), np.array(logs).T, 1)[0])


def _spectrum_figure(values: Float[np.ndarray, "draw n"], ranks: np.ndarray) -> go.Figure:
    n = values.shape[1]
    figure = make_subplots(1, 2, subplot_titles=("largest first", "density"), horizontal_spacing=0.12)
    for i, draw in enumerate(values[:3]):
        look = dict(color="steelblue", width=1)
        figure.add_scatter(x=ranks + 1, y=draw[ranks], line=look, name="noise", showlegend=i == 0, row=1, col=1)
    law = np.sqrt(MarchenkoPastur(1.0, 1.0).quantile(1 - (ranks + 0.5) / n))
    dashed = dict(color="firebrick", dash="dash")
    figure.add_scatter(x=ranks + 1, y=law, line=dashed, name="quarter-circle law", row=1, col=1)
    heights, edges = np.histogram(values, bins=40, density=True)
    centers = (edges[1:] + edges[:-1]) / 2
    figure.add_bar(x=centers, y=heights, marker_color="lightsteelblue", showlegend=False, row=1, col=2)
    x = np.linspace(0, 2, 200)
    figure.add_scatter(x=x, y=quarter_circle_density(x), line=dashed, showlegend=False, row=1, col=2)
    figure.update_xaxes(title="rank", row=1, col=1).update_xaxes(title="singular value", row=1, col=2)
    figure.update_yaxes(title="singular value", row=1, col=1).update_yaxes(title="density", row=1, col=2)
    return styled(figure, f"Singular values of {n} x {n} noise, entries N(0, 1/n) (Wertich, Figure 2.4)", height=420)


# Figure 5.1 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Circles:
    """Widths and lengths of pairs of orthogonal vectors, and the number of points between them."""

    widths: tuple[int, ...]
    radii: tuple[float, ...]
    pairs: int
    steps: int


CIRCLES_SMALL = Circles(widths=(4, 16, 256), radii=(0.1, 1.0, 3.0, 10.0, 30.0), pairs=20, steps=101)
CIRCLES_PAPER = Circles(widths=(4, 16, 64, 256, 1024), radii=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0), pairs=200, steps=201)
FIGURE_WIDTH = 16
FOLLOWS = 0.05
"""A curve 'follows' a sinusoid if its distance from the best fit is below this share of its height."""


Row = dict[str, float | int]
"""A width and a length, and what was measured there."""


def great_circle(settings: Settings) -> Outcome:
    """KL(softmax w || softmax slerp(v, w, t)) for orthogonal v, w of length l, and the best a cos(pi t/2 + b) + c."""
    chosen = CIRCLES_SMALL if settings.small else CIRCLES_PAPER
    rng, t = np.random.default_rng(0), np.linspace(0, 1, chosen.steps)
    rows: list[Row] = []
    curves: dict[tuple[int, float], Float[np.ndarray, "time"]] = {}
    for n in chosen.widths:
        for radius in chosen.radii:
            pairs = [orthogonal_pair(rng, n, radius) for _ in range(chosen.pairs)]
            kls = np.stack([divergence(w, slerp(v, w, t)) for v, w in pairs])
            missed, missed_error = mean_error(np.array([sinusoid_residual(t, kl) for kl in kls]))
            missing, missing_error = mean_error(np.array([np.log(n) - float(entropy(v)) for v, _ in pairs]))
            small = np.array([float(kl_small_radius(w, v)) for v, w in pairs])
            ratio, ratio_error = mean_error(kls[:, 0] / small)
            rows.append(
                {
                    "width": n,
                    "radius": radius,
                    "logit_spread": radius / np.sqrt(n),
                    "residual": missed,
                    "residual_error": missed_error,
                    "kl_over_small_radius": ratio,
                    "kl_over_small_radius_error": ratio_error,
                    "log_n_minus_entropy": missing,
                    "log_n_minus_entropy_error": missing_error,
                }
            )
            curves[n, radius] = kls[0]
    table = pd.DataFrame(rows)
    at = {(int(row["width"]), float(row["radius"])): row for row in rows}
    unit = {width: at[width, 1.0] for width in chosen.widths}
    n, large = max(chosen.widths), max(chosen.radii)
    shortest, few = min(chosen.radii), min(chosen.widths)
    learned = [
        "Two things make the sinusoid, and length 1 is neither. Many components: at length "
        f"{shortest:g} the curve leaves it by {at[few, shortest]['residual']:.1%} of its height at n = {few} and "
        f"by {at[n, shortest]['residual']:.2%} at n = {n}. Small logits, l/sqrt(n): at n = {n} length {large:g} "
        f"costs {at[n, large]['residual']:.1%}. Then no fit is needed: KL = Var(w - v(t))/2, about "
        f"(l^2/n)(1 - sin(pi t/2)); at n = {n}, l = 1 the divergence at t = 0 is "
        f"{unit[n]['kl_over_small_radius']:.4f} of that variance."
    ]
    return Outcome(
        {"residuals": table}, {"curves": _circle_figure(t, curves, chosen)}, _circle_claims(at, unit, n, large), learned
    )


def _circle_claims(at: dict[tuple[int, float], Row], unit: dict[int, Row], n: int, large: float) -> list[Claim]:
    """`at` has the rows by width and length, `unit` those of length 1; n and `large` are the largest of each."""
    residuals = {width: row["residual"] for width, row in unit.items()}
    return [
        Claim(
            "for orthogonal unit vectors the cross-entropy along SLERP is a cos(pi t/2 + b) + c, exactly",
            "residual 0 (Conjecture §5.2.4, (5.17))",
            ", ".join(f"{value:.1e} at n = {width}" for width, value in residuals.items()),
            "same size" if max(residuals.values()) < 1e-9 else "differs",
            "(5.16) takes softmax v(t) for constant: the sum is no sum of cosines of one frequency (LEDGER T5.17)",
        ),
        *(
            below(
                f"at length 1 the KL divergence follows a sinusoid, n = {width}",
                FOLLOWS,
                row["residual"],
                error=row["residual_error"],
                printed="sinusoidal for most of the domain (Fig. 5.1)",
            )
            for width, row in unit.items()
        ),
        ordered(
            f"longer vectors leave the sinusoid: residual at length {large:g} against 1, n = {n}",
            at[n, large]["residual"],
            unit[n]["residual"],
            error=float(np.hypot(at[n, large]["residual_error"], unit[n]["residual_error"])),
            printed="l > 1 shifts the curve to a Dirac delta (§5.2.4)",
        ),
        sized(
            f"entropy of softmax of a random unit vector is log n, n = {n}",
            float(np.log(n)),
            float(np.log(n) - unit[n]["log_n_minus_entropy"]),
            place="§5.2.4",
            digits=4,
        ),
    ]


def orthogonal_pair(
    rng: np.random.Generator, n: int, radius: float
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Two orthogonal vectors of this length, uniformly distributed."""
    q, _ = np.linalg.qr(rng.standard_normal((n, 2)))
    return radius * q[:, 0], radius * q[:, 1]


def divergence(w: Float[np.ndarray, "n"], v: Float[np.ndarray, "time n"]) -> Float[np.ndarray, "time"]:
    """KL(softmax w || softmax v) at every time."""
    log_p = log_softmax(w)
    return np.asarray((np.exp(log_p) * (log_p - log_softmax(v, axis=-1))).sum(-1))


def sinusoid_residual(t: Float[np.ndarray, "time"], curve: Float[np.ndarray, "time"]) -> float:
    """Largest distance from the best a cos(pi t/2 + b) + c (least squares), over the height of the curve."""
    basis = np.stack([np.cos(np.pi * t / 2), np.sin(np.pi * t / 2), np.ones_like(t)], axis=1)
    fitted = basis @ np.linalg.lstsq(basis, curve, rcond=None)[0]
    return float(np.abs(curve - fitted).max() / np.ptp(curve))


def _circle_figure(t: np.ndarray, curves: dict[tuple[int, float], np.ndarray], chosen: Circles) -> go.Figure:
    width = FIGURE_WIDTH if FIGURE_WIDTH in chosen.widths else chosen.widths[0]
    figure = go.Figure()
    colors = sample_colorscale("Viridis", np.linspace(0, 0.9, len(chosen.radii)))
    for color, radius in zip(colors, chosen.radii, strict=True):
        curve = curves[width, radius]
        figure.add_scatter(x=t, y=curve / curve[0], line_color=color, name=f"length {radius:g}")
    dashed = dict(color="black", dash="dash")
    figure.add_scatter(x=t, y=1 - np.sin(np.pi * t / 2), line=dashed, name="1 - sin(pi t/2)")
    figure.update_xaxes(title="t: from v (0) to w (1)")
    figure.update_yaxes(title="KL(softmax w || softmax v(t)), over that at t = 0")
    title = f"Divergence along a great circle between orthogonal vectors, n = {width} (Wertich, Figure 5.1)"
    return styled(figure, title, height=440)


EXPERIMENTS = (
    Experiment(
        "wertich-spectrum",
        "Wertich",
        "Figure 2.4, §2.5, (6.12), (6.13)",
        "How do the singular values of a random matrix lie?",
        spectrum,
        minutes=0.2,
        needs="nothing: 30 random matrices of 1024 x 1024",
        quick=True,
    ),
    Experiment(
        "wertich-slerp",
        "Wertich",
        "Figure 5.1, §5.2.4",
        "Is the divergence of two softmaxes a sinusoid in the angle between their logits?",
        great_circle,
        minutes=0.1,
        needs="nothing: 200 random pairs of vectors at each width and length",
        quick=True,
    ),
)
