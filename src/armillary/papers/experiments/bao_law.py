"""Bao's Figures 2, 3 and 4: signal propagation and the bound on entropy, as printed, corrected, simulated."""

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.figures.style import styled
from armillary.figures.theory import entropy_minimum
from armillary.papers.experiments.experiment import SAME_SIZE, Claim, Experiment, Outcome, Settings, ordered, sized
from armillary.papers.ledger.bao_propagation import printed_bound
from armillary.theory.localization import Spectrum, limit_rho, minimum_entropy
from armillary.theory.random_walk import simulate_walks

MISPRINT = "the printed variance has 2 theta^2 + 7/12 for 2 theta^2 - 2 theta + 7/12 (LEDGER L12)"
COLORS = ("#440154", "#3b528b", "#21918c", "#5ec962", "#e0a000")


@dataclass(frozen=True)
class LawPlan:
    """The grid of xi and eta, and how many walks check the law."""

    walks: int
    tokens: int
    d: int = 128
    xis: tuple[float, ...] = (-10.0, -1.0, 0.0, 1.0, 10.0)
    etas: tuple[float, ...] = (0.001, 0.1, 0.5, 1.0, 10.0)
    places: int = 41


SMALL = LawPlan(walks=1000, tokens=1000)
PAPER = LawPlan(walks=20_000, tokens=1000)


def spectrum_at(xi: float, eta: float) -> Spectrum:
    """The spectrum of a symmetric W with these xi and eta, for lambda = 1."""
    return Spectrum(trace=xi * eta, square=eta * eta, frobenius=None, scale=1.0)


def weights_at(xi: float, eta: float, d: int) -> Float[np.ndarray, "d d"]:
    """A diagonal W, d x d, with these xi and eta for lambda = sqrt(d): eigenvalues mean + and - one deviation."""
    mean = xi * eta / sqrt(d)
    deviation = sqrt(max(0.0, eta * eta - mean * mean))
    return np.diag(mean + deviation * np.where(np.arange(d) % 2, 1.0, -1.0))


def spread(rho: Float[np.ndarray, "n"]) -> float:
    """(max - min) / max: 0 if rho is constant."""
    return float((rho.max() - rho.min()) / rho.max())


def band(spectrum: Spectrum) -> tuple[float, float]:
    """The position theta of the peak of rho, and the width at half its height."""
    theta = np.linspace(0, 1, 4001)
    rho = limit_rho(spectrum, theta)
    inside = theta[rho >= rho.max() / 2]
    middle = theta[rho >= rho.max() * 0.999].mean()
    return float(middle), float(inside[-1] - inside[0])


def propagation(settings: Settings) -> Outcome:
    """rho(theta) over a grid of xi and eta: printed law, corrected law, random walks."""
    plan = SMALL if settings.small else PAPER
    theta = np.linspace(0, 1, plan.places)
    rows, walks = [], []
    for xi in plan.xis:
        for eta in plan.etas:
            spectrum = spectrum_at(xi, eta)
            curve = {"printed": limit_rho(spectrum, theta, printed=True), "corrected": limit_rho(spectrum, theta)}
            rows.append(pd.DataFrame({"xi": xi, "eta": eta, "theta": theta, **curve}))
            if eta * plan.tokens < 50:
                continue  # the law for T -> infinity leaves out the mean's 1 / T (`armillary theory L15`)
            scale = sqrt(plan.d)
            simulated_rho, error = simulate_walks(
                weights_at(xi, eta, plan.d), None, plan.tokens, scale, plan.walks, seed=0
            )
            tokens = np.arange(plan.tokens // 20, plan.tokens, plan.tokens // 10)
            places = (tokens + 1) / plan.tokens
            laws = {name: limit_rho(spectrum, places, printed=name == "printed") for name in ("printed", "corrected")}
            walk = {
                "xi": xi,
                "eta": eta,
                "theta": places,
                "simulated": simulated_rho[tokens],
                "error": error[tokens],
                **laws,
            }
            walks.append(pd.DataFrame(walk))
    curves, simulated = pd.concat(rows).round(4), pd.concat(walks).round(4)
    errors = {name: float((simulated[name] - simulated["simulated"]).abs().mean()) for name in ("printed", "corrected")}
    return Outcome(
        tables={"law": curves, "walks": simulated},
        figures={"law": law_figure(curves, simulated)},
        claims=law_claims(simulated),
        learned=[
            f"Over the walks of Figure 2's grid the printed law misses rho by {errors['printed']:.3f} on average, the "
            f"corrected one by {errors['corrected']:.3f}; with xi = 0 it is not uniform but peaks at the middle token "
            f"(spread {spread(limit_rho(spectrum_at(0.0, 10.0), theta)):.2f} at eta = 10)."
        ],
    )


def law_claims(simulated: pd.DataFrame) -> list[Claim]:
    return [*_figure_2_claims(), *_figure_3_claims(), _walks_claim(simulated)]


def _figure_2_claims() -> list[Claim]:
    """Which tokens pass their signal, over xi and eta."""
    theta = np.linspace(0, 1, 401)
    late = theta > 0.5

    def rho(xi: float, eta: float) -> Float[np.ndarray, "n"]:
        return limit_rho(spectrum_at(xi, eta), theta)

    largest = max(spread(rho(xi, eta)) for xi in (-1.0, 0.0, 1.0) for eta in (0.001, 0.1, 1.0, 10.0))
    return [
        ordered(
            "rho is on fewer tokens as eta grows (xi = 10): mean of rho at eta = 0.1, and at 1",
            float(rho(10.0, 0.1).mean()),
            float(rho(10.0, 1.0).mean()),
            printed="Figure 2, first observation",
        ),
        Claim(
            "rho is relatively uniform for |xi| <= 1, whatever eta: largest (max - min) / max",
            "Figure 2, first observation; Lemma 2.3",
            f"{largest:.2f}",
            "same direction" if largest <= SAME_SIZE else "differs",
            "uniform only where both xi and eta are near 0 (LEDGER L22, L32)" if largest > SAME_SIZE else "",
        ),
        ordered(
            "xi = 10, eta = 0.001: late tokens pass their signal, early ones do not (means of rho)",
            float(rho(10.0, 0.001)[late].mean()),
            float(rho(10.0, 0.001)[~late].mean()),
            printed="Figure 2, second observation",
        ),
        ordered(
            "xi = -10, eta = 0.001: early tokens pass their signal, late ones do not (means of rho)",
            float(rho(-10.0, 0.001)[~late].mean()),
            float(rho(-10.0, 0.001)[late].mean()),
            printed="Figure 2, second observation",
        ),
        sized(
            "xi = 10, eta = 0.5: the focus is at the middle (theta of the peak)",
            0.5,
            band(spectrum_at(10.0, 0.5))[0],
            place="Figure 2, second observation",
        ),
        ordered(
            "The signal vanishes as eta grows (xi = 10): largest rho at eta = 0.1, and at 100",
            float(rho(10.0, 0.1).max()),
            float(rho(10.0, 100.0).max()),
            printed="Figure 2, third observation; Lemma 2.4",
        ),
    ]


def _figure_3_claims() -> list[Claim]:
    """The band that rho is where xi eta is large."""
    peak, width = band(spectrum_at(512.0, 0.01))
    return [
        sized(
            "xi = 512, xi eta = 5.12: rho is a band of width 1 / r",
            1 / 5.12,
            width,
            place="Figure 3, Lemma 2.1",
        ),
        sized("that band is at the middle of [1/2, 1/2 + 1/r]", 0.5 + 0.5 / 5.12, peak, place="Figure 3, Lemma 2.1"),
        sized(
            "xi = 512 with eta = 0.02 has xi eta = 5.12",
            5.12,
            512 * 0.02,
            place="text to Figure 3",
            why="a slip: eta = 0.01 (LEDGER L20)",
        ),
        ordered(
            "xi = 128 and 512 are within the range of xi: sqrt(d) of the paper's d = 128, and xi",
            sqrt(128),
            128.0,
            printed="Figure 3",
            why="|xi| <= sqrt(d), so 128 needs d >= 16384 (LEDGER L20)",
        ),
    ]


def _walks_claim(simulated: pd.DataFrame) -> Claim:
    wrong = float(((simulated["printed"] - simulated["simulated"]).abs() > 4 * simulated["error"]).mean())
    return Claim(
        "Random walks follow the printed law (6): share of places where it is more than 4 standard errors off",
        "Equation (6), Figure 2",
        f"{wrong:.0%}",
        "same size" if wrong <= 0.05 else "differs",
        MISPRINT if wrong > 0.05 else "",
    )


def law_figure(curves: pd.DataFrame, simulated: pd.DataFrame) -> go.Figure:
    """A column for every xi, a line for every eta: printed law above, corrected below, with simulated walks."""
    xis, etas = curves["xi"].unique().tolist(), curves["eta"].unique().tolist()
    figure = make_subplots(
        2,
        len(xis),
        column_titles=[f"xi = {xi:g}" for xi in xis],
        row_titles=["as printed", "corrected"],
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        vertical_spacing=0.06,
    )
    for col, xi in enumerate(xis, start=1):
        for eta, color in zip(etas, COLORS, strict=False):
            part = curves[(curves["xi"] == xi) & (curves["eta"] == eta)]
            dots = simulated[(simulated["xi"] == xi) & (simulated["eta"] == eta)]
            for row, law in enumerate(("printed", "corrected"), start=1):
                figure.add_scatter(
                    x=part["theta"],
                    y=part[law],
                    name=f"eta = {eta:g}",
                    legendgroup=str(eta),
                    showlegend=row == col == 1,
                    line_color=color,
                    row=row,
                    col=col,
                )
                figure.add_scatter(
                    x=dots["theta"],
                    y=dots["simulated"],
                    mode="markers",
                    marker=dict(color=color, size=4),
                    name="simulated walks",
                    legendgroup="dots",
                    showlegend=row == col == 1 and eta == etas[-1],
                    row=row,
                    col=col,
                )
    figure.update_xaxes(title="place i / T", row=2).update_yaxes(title="rho", range=[0, 1.05], col=1)
    figure.update_layout(legend=dict(orientation="h", y=-0.15))
    return styled(figure, "Which tokens pass a signal: the law as printed, and corrected", height=560, width=1000)


def entropy_bound(settings: Settings) -> Outcome:
    """The lower bound on attention entropy by the norm of the logits: printed, and the true minimum."""
    tokens = 40
    norms = np.linspace(0.05, 20, 400)
    printed = np.array([printed_bound(float(norm), tokens) for norm in norms])
    least = minimum_entropy(norms, tokens)
    peak = float(norms[printed.argmax()])
    falls = bool(np.all(np.diff(least) < 0))
    return Outcome(
        tables={"bound": pd.DataFrame({"norm": norms, "printed": printed, "least_entropy": least})[::4].round(5)},
        figures={"bound": entropy_minimum()},
        claims=[
            Claim(
                "The bound on entropy has one peak in the norm of the logits",
                f"at {peak:.1f} (Figure 4, equation 9, T = {tokens})",
                "the least entropy falls everywhere" if falls else "it does not fall everywhere",
                "differs" if falls else "same direction",
                "print has e^(-nu/2) for e^-nu; the corrected form has no peak (LEDGER L26)",
            ),
            ordered(
                f"It is a lower bound: the largest entropy of {tokens} tokens, log T, and the largest value of (9)",
                log(tokens),
                float(printed.max()),
                printed="Equation (9), Figure 4",
                why="the printed bound exceeds log T (LEDGER L26)",
            ),
            ordered(
                "It vanishes for large norms: least entropy at norm 1, and at 20",
                float(minimum_entropy(1.0, tokens)),
                float(minimum_entropy(20.0, tokens)),
                printed="Figure 4",
            ),
        ],
        learned=[
            f"The least entropy that logits of norm nu allow falls for every nu, so there is no norm to keep attention "
            f"near; at nu = {peak:.1f}, where the printed bound peaks, it is "
            f"{float(minimum_entropy(peak, tokens)):.2f} of at most {log(tokens):.2f} nats."
        ],
    )


EXPERIMENTS = (
    Experiment(
        name="bao-propagation",
        paper="Bao",
        of="Figures 2 and 3",
        question="Which tokens pass a signal when tokens are a random walk, by the eigenspectrum's mean and scale?",
        run=propagation,
        minutes=0.1,
        needs="nothing",
        quick=True,
    ),
    Experiment(
        name="bao-entropy-bound",
        paper="Bao",
        of="Figure 4",
        question="How low can attention entropy be, by the norm of the logits?",
        run=entropy_bound,
        minutes=0.1,
        needs="nothing",
        quick=True,
    ),
)
