"""Bao's Figure 5: signal propagation and entropy over simulated walks, by mean and scale of W_QK's eigenspectrum."""

from dataclasses import dataclass
from math import hypot, log, sqrt
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.figures.style import POSITIVE, styled
from armillary.papers.experiments.experiment import SAME_SIZE, Claim, Experiment, Outcome, Settings, ordered
from armillary.theory.localization import Spectrum, exact_rho, head_spectrum, limit_rho
from armillary.theory.random_walk import random_w, simulate_walks
from armillary.theory.softmax import entropy

PAIRS = ((0.0, 0.1), (0.05, 0.05), (0.1, 0.1), (0.5, 0.1), (0.5, 0.5), (1.0, 0.3))
"""Mean and scale of the eigenvalues in the figure of rho; read off the paper's figure, which has no numbers."""
MEANS = (0.0, 0.02, 0.1, 0.5)
SCALES = (0.01, 0.05, 0.2, 0.5)
COLORS = ("#999999", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7")


@dataclass(frozen=True)
class WalkPlan:
    """300 walks of 40 tokens for every W, d = 128, as in the paper; `small` has fewer draws of W."""

    draws: int
    entropy_draws: int
    walks: int = 300
    tokens: int = 40
    d: int = 128

    @property
    def scale(self) -> float:
        return sqrt(self.d)


SMALL = WalkPlan(draws=6, entropy_draws=2)
PAPER = WalkPlan(draws=10, entropy_draws=10)


def anisotropic(d: int, seed: int) -> Float[np.ndarray, "d d"]:
    """The paper's covariance R'R / d with the elements of R uniform in [-2.5, 2.5]."""
    r = np.random.default_rng(seed).uniform(-2.5, 2.5, (d, d))
    return np.asarray(r.T @ r / d)


def walks(settings: Settings) -> Outcome:
    """rho by token and entropy by mean and scale, for steps of covariance I and of the paper's anisotropic one."""
    plan = SMALL if settings.small else PAPER
    covariances = {"isotropic": None, "anisotropic": anisotropic(plan.d, 0)}
    propagation = pd.concat([_propagation(plan, name, sigma) for name, sigma in covariances.items()])
    entropies = pd.concat([_entropies(plan, name, sigma) for name, sigma in covariances.items()])
    widths = _widths(propagation)
    return Outcome(
        tables={"rho": propagation.round(4), "widths": widths.round(4), "entropy": entropies.round(4)},
        figures={"rho": rho_figure(propagation), "entropy": entropy_figure(entropies, plan.tokens)},
        claims=claims(plan, propagation, widths, entropies),
        learned=learned(plan, propagation, entropies),
    )


def _propagation(plan: WalkPlan, name: str, sigma: Float[np.ndarray, "d d"] | None) -> pd.DataFrame:
    """Per pair and token: simulated rho with its error over walks and W, and the laws of the same W."""
    parts = []
    for mean, scale in PAIRS:
        simulated, laws = [], []
        for draw in range(plan.draws):
            w = random_w(plan.d, mean, scale, seed=draw)
            walk_rho, _ = simulate_walks(w, sigma, plan.tokens, plan.scale, plan.walks, seed=100 + draw)
            spectrum = head_spectrum(w, np.eye(plan.d), sigma, plan.scale)
            simulated.append(walk_rho)
            laws.append(_laws(spectrum, plan.tokens))
        rho = np.mean(simulated, axis=0)
        smoothed = (rho * plan.walks * plan.draws + 1) / (plan.walks * plan.draws + 2)
        printed, exact = np.mean(laws, axis=0)
        parts.append(
            pd.DataFrame(
                {
                    "covariance": name,
                    "mean": mean,
                    "scale": scale,
                    "token": np.arange(1, plan.tokens + 1),
                    "simulated": rho,
                    "error": np.sqrt(smoothed * (1 - smoothed) / (plan.walks * plan.draws)),
                    "printed": printed,
                    "exact": exact,
                }
            )
        )
    return pd.concat(parts)


def _laws(spectrum: Spectrum, tokens: int) -> Float[np.ndarray, "2 t"]:
    """rho of every token by the printed law, and by the exact mean and variance."""
    theta = np.arange(1, tokens + 1) / tokens
    return np.stack([limit_rho(spectrum, theta, printed=True), exact_rho(spectrum, tokens)])


def _entropies(plan: WalkPlan, name: str, sigma: Float[np.ndarray, "d d"] | None) -> pd.DataFrame:
    """Mean attention entropy of all queries of walks, by mean and scale; its error over draws of W and walks."""
    root = np.eye(plan.d) if sigma is None else np.linalg.cholesky(sigma).T
    rows = []
    for mean in MEANS:
        for scale in SCALES:
            draws = []
            for draw in range(plan.entropy_draws):
                random = np.random.default_rng(200 + draw)
                steps = random.standard_normal((plan.walks, plan.tokens, plan.d)) @ root
                x = steps.cumsum(1)
                w = random_w(plan.d, mean, scale, seed=draw)
                logits = x @ w @ x.transpose(0, 2, 1) / plan.scale
                draws.append(entropy(logits).mean(1))  # one number per walk
            all_walks = np.concatenate(draws)
            rows.append(
                {
                    "covariance": name,
                    "mean": mean,
                    "scale": scale,
                    "entropy": all_walks.mean(),
                    "error": all_walks.std(ddof=1) / sqrt(len(all_walks)),
                }
            )
    return pd.DataFrame(rows)


def _widths(propagation: pd.DataFrame) -> pd.DataFrame:
    """Per pair: the number of tokens that pass a signal (the sum of rho), the peak, and the errors of the laws."""
    rows = []
    for (name, mean, scale), part in propagation.groupby(["covariance", "mean", "scale"], sort=False):
        row = {"covariance": name, "mean": mean, "scale": scale, "width": part["simulated"].sum()}
        row |= {
            "width_error": float(np.sqrt((part["error"] ** 2).sum() * len(part)))
        }  # tokens of a walk are not independent
        row |= {"peak": int(part["token"].iloc[int(part["simulated"].to_numpy().argmax())])}
        row |= {f"{law}_missed": (part[law] - part["simulated"]).abs().mean() for law in ("printed", "exact")}
        rows.append(row)
    return pd.DataFrame(rows)


def _by_pair(table: pd.DataFrame, covariance: str) -> dict[Any, dict[Any, Any]]:
    """The rows of one covariance by (mean, scale)."""
    rows = table[table["covariance"] == covariance].drop(columns="covariance")
    return rows.set_index(["mean", "scale"]).T.to_dict()


def claims(plan: WalkPlan, rho: pd.DataFrame, widths: pd.DataFrame, entropies: pd.DataFrame) -> list[Claim]:
    judged = []
    for name in ("isotropic", "anisotropic"):
        width, heat = _by_pair(widths, name), _by_pair(entropies, name)

        far, near, tight, loose = (0.1, 0.1), (0.5, 0.1), (0.5, 0.1), (0.5, 0.5)
        low, high = (0.1, 0.5), (0.1, 0.01)
        off = (rho["printed"] - rho["simulated"]).abs() > 4 * rho["error"]
        missed = float(off[rho["covariance"] == name].mean())
        judged += [
            ordered(
                f"rho localizes with a larger mean ({name}): tokens that pass at mean 0.1, and at 0.5 (scale 0.1)",
                width[far]["width"],
                width[near]["width"],
                error=hypot(width[far]["width_error"], width[near]["width_error"]),
                printed="Figure 5, left",
            ),
            ordered(
                f"rho localizes with a smaller scale ({name}): tokens that pass at scale 0.5, and at 0.1 (mean 0.5)",
                width[loose]["width"],
                width[tight]["width"],
                error=hypot(width[loose]["width_error"], width[tight]["width_error"]),
                printed="Figure 5, left",
                why="the width is 1 / |r|, r = tr(W) / lambda: the scale moves it little (LEDGER L18)",
            ),
            Claim(
                f"Simulated rho is the printed law's ({name}): share of tokens more than 4 standard errors off",
                "Equation (6), Figure 5",
                f"{missed:.0%}",
                "same size" if missed <= 0.05 else "differs",
                "the printed variance is wrong, and (6) leaves out 1 / T (LEDGER L12, L15)" if missed > 0.05 else "",
            ),
            ordered(
                f"A smaller scale at a fixed mean raises entropy ({name}): scale 0.01, and 0.5 (mean 0.1)",
                heat[high]["entropy"],
                heat[low]["entropy"],
                error=hypot(heat[high]["error"], heat[low]["error"]),
                printed="Figure 5, right; A2",
            ),
        ]
        share = float(heat[0.5, 0.01]["entropy"]) / log(plan.tokens)
        judged.append(
            Claim(
                f"Localized attention (mean 0.5, scale 0.01) has high entropy, 75% of log T or more ({name})",
                "a small variance prevents both rank and entropy collapse (abstract, Section 5)",
                f"{share:.0%} of log T",
                "same size" if share >= 1 - SAME_SIZE else "differs",
                "a larger mean lowers entropy; localization and high entropy exclude each other (LEDGER L18)"
                if share < 1 - SAME_SIZE
                else "",
            )
        )
    return judged


def learned(plan: WalkPlan, rho: pd.DataFrame, entropies: pd.DataFrame) -> list[str]:
    errors = [(rho[law] - rho["simulated"]).abs().mean() for law in ("printed", "exact")]
    heat = _by_pair(entropies, "isotropic")
    return [
        f"In the paper's own simulation the exact mean and variance predict rho to {errors[1]:.3f} on average, the "
        f"printed law to {errors[0]:.3f}.",
        f"At scale 0.01 entropy falls from {heat[0.0, 0.01]['entropy']:.2f} to {heat[0.5, 0.01]['entropy']:.2f} nats "
        f"(of {log(plan.tokens):.2f}) as the mean goes from 0 to 0.5, where rho localizes: in "
        "these walks localized attention has low entropy.",
    ]


def rho_figure(rho: pd.DataFrame) -> go.Figure:
    """rho by token for every mean and scale: dots are walks, lines the exact law, dotted lines the printed one."""
    names = list(rho["covariance"].unique())
    figure = make_subplots(1, len(names), subplot_titles=names, shared_yaxes=True, horizontal_spacing=0.04)
    for col, name in enumerate(names, start=1):
        rows = rho[rho["covariance"] == name]
        for color, ((mean, scale), part) in zip(COLORS, rows.groupby(["mean", "scale"], sort=False), strict=False):
            label = f"mean {mean:g}, scale {scale:g}"
            for law, style in (("exact", "solid"), ("printed", "dot")):
                figure.add_scatter(
                    x=part["token"],
                    y=part[law],
                    name=label,
                    legendgroup=label,
                    showlegend=law == "exact" and col == 1,
                    line=dict(color=color, dash=style, width=2 if law == "exact" else 1),
                    row=1,
                    col=col,
                )
            figure.add_scatter(
                x=part["token"],
                y=part["simulated"],
                mode="markers",
                marker=dict(color=color, size=5),
                legendgroup=label,
                showlegend=False,
                name=label,
                row=1,
                col=col,
            )
    figure.update_xaxes(title="token i of 40").update_yaxes(title="rho", range=[0, 1.05], col=1)
    figure.update_layout(legend=dict(orientation="h", y=-0.2))
    return styled(figure, "Signal propagation over walks (dots), exact law (lines), printed law (dotted)", width=1000)


def entropy_figure(entropies: pd.DataFrame, tokens: int) -> go.Figure:
    """Mean entropy by the mean and the scale of the eigenvalues."""
    names = list(entropies["covariance"].unique())
    figure = make_subplots(1, len(names), subplot_titles=names, shared_yaxes=True, horizontal_spacing=0.06)
    for col, name in enumerate(names, start=1):
        grid = entropies[entropies["covariance"] == name].pivot(index="mean", columns="scale", values="entropy")
        figure.add_heatmap(
            z=grid.to_numpy(),
            x=[f"{value:g}" for value in grid.columns],
            y=[f"{value:g}" for value in grid.index],
            text=grid.round(2).to_numpy(),
            texttemplate="%{text:.2f}",
            zmin=0,
            zmax=log(tokens),
            colorscale=POSITIVE,
            showscale=col == len(names),
            colorbar=dict(title="nats"),
            row=1,
            col=col,
        )
    figure.update_xaxes(title="scale of the eigenvalues", type="category")
    figure.update_yaxes(type="category").update_yaxes(title="mean of the eigenvalues", col=1)
    return styled(figure, f"Attention entropy (log T = {log(tokens):.2f}): lowest where rho localizes", height=400)


EXPERIMENTS = (
    Experiment(
        name="bao-walks",
        paper="Bao",
        of="Figure 5",
        question="Do simulated walks localize, and keep entropy, as the eigenspectrum's mean and scale say?",
        run=walks,
        minutes=0.2,
        needs="nothing",
        quick=True,
    ),
)
