"""Figures for the statements whose correction matters most: printed, corrected, simulated."""

from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.figures.style import styled
from armillary.theory import bilinear
from armillary.theory.localization import Spectrum, exact_rho, limit_moments, limit_rho, minimum_entropy
from armillary.theory.random_walk import simulate_walks
from armillary.theory.softmax import kl_small_radius, slerp

PRINTED = dict(color="#c0392b", dash="dash")
CORRECTED = dict(color="#2a9d5c")
SIMULATED = dict(color="black", size=5)


def propagation_variance() -> go.Figure:
    """Variance and rho over the place of a token: print leaves out -2 theta (LEDGER L12, L15)."""
    rng = np.random.default_rng(0)
    d, t, scale = 64, 60, 8.0
    w = np.diag(rng.normal(0.5, 0.3, d))
    spectrum = Spectrum(float(np.trace(w)), float(np.trace(w @ w)), None, scale)
    theta = np.linspace(0.02, 1, 80)
    figure = make_subplots(1, 2, subplot_titles=("variance", "rho"))
    for col, values in (
        (1, [limit_moments(spectrum, theta, printed=p)[1] for p in (True, False)]),
        (2, [limit_rho(spectrum, theta, printed=p) for p in (True, False)]),
    ):
        for name, line, y in zip(("as printed", "corrected"), (PRINTED, CORRECTED), values, strict=True):
            figure.add_scatter(
                x=theta, y=y, name=name, line=line, legendgroup=name, showlegend=col == 1, row=1, col=col
            )
    seen, _ = simulate_walks(w, None, t, scale, 4000, 0)
    at = (np.arange(t) + 1) / t
    figure.add_scatter(x=at, y=seen, mode="markers", marker=SIMULATED, name="simulated walks", row=1, col=2)
    figure.add_scatter(x=at, y=exact_rho(spectrum, t), name="exact at T = 60", line_color="#888", row=1, col=2)
    figure.update_xaxes(title="place of the token, i / T")
    return styled(figure, "Which tokens pass a signal", height=380)


def bilinear_variance() -> go.Figure:
    """Var(x'Cy) over the correlation of x and y: the printed form does not see it (LEDGER T6.3)."""
    rng = np.random.default_rng(1)
    d, n = 6, 200_000
    c = rng.standard_normal((d, d))
    mean = rng.standard_normal(d) / 2
    noise = rng.standard_normal((2, n, d))
    correlations = np.linspace(0, 0.95, 12)
    eye = np.eye(d)
    simulated, full, printed = [], [], []
    for rho in correlations:
        x = mean + noise[0]
        y = mean + rho * noise[0] + np.sqrt(1 - rho**2) * noise[1]
        simulated.append(np.einsum("nd,de,ne->n", x, c, y).var())
        full.append(float(bilinear.bilinear_variance(c, mean, mean, eye, eye, rho * eye)))
        printed.append(float(bilinear.bilinear_variance(c, mean, mean, eye, eye, 0 * eye)))
    figure = go.Figure()
    figure.add_scatter(x=correlations, y=printed, name="as printed (independent x, y)", line=PRINTED)
    figure.add_scatter(x=correlations, y=full, name="with the cross-covariance", line=CORRECTED)
    figure.add_scatter(x=correlations, y=simulated, mode="markers", marker=SIMULATED, name="simulated")
    figure.update_xaxes(title="correlation of x and y").update_yaxes(title="variance of x'Cy")
    return styled(figure, "The variance of a bilinear form", height=380)


def slerp_error() -> go.Figure:
    """KL along a great circle, and the best sinusoid: the conjectured form is not exact (LEDGER T5.17)."""
    rng = np.random.default_rng(2)
    figure = make_subplots(1, 2, subplot_titles=("radius 1", "radius 10"))
    t = np.linspace(0, 1, 60)
    for col, radius in enumerate((1.0, 10.0), start=1):
        v = rng.standard_normal(8)
        w = rng.standard_normal(8)
        w -= v * (v @ w) / (v @ v)
        v, w = (radius * u / np.linalg.norm(u) for u in (v, w))
        path = slerp(v, w, t)
        log_p = path - np.log(np.exp(path).sum(-1, keepdims=True))
        target = np.exp(w) / np.exp(w).sum()
        kl = (target * (np.log(target) - log_p)).sum(-1)
        basis = np.stack([np.cos(np.pi * t / 2), np.sin(np.pi * t / 2), np.ones_like(t)], 1)
        fitted = basis @ np.linalg.lstsq(basis, kl, rcond=None)[0]
        small = [kl_small_radius(w, u) for u in path]
        for name, y, style in (
            ("KL", kl, dict(color="black")),
            ("best sinusoid, as conjectured", fitted, PRINTED),
            ("half the variance of w - v", small, CORRECTED),
        ):
            figure.add_scatter(x=t, y=y, name=name, line=style, legendgroup=name, showlegend=col == 1, row=1, col=col)
    figure.update_xaxes(title="t along the great circle")
    return styled(figure, "KL divergence along SLERP", height=380)


def entropy_minimum() -> go.Figure:
    """The least entropy that logits of a given norm allow: print exceeds log T (LEDGER L26)."""
    t, norm = 40, np.linspace(0.01, 12, 200)
    printed = np.log(1 + t * np.exp(-norm)) + norm * np.exp(-norm / 2) / (1 / t + np.exp(-norm))
    figure = go.Figure()
    figure.add_scatter(x=norm, y=printed, name="as printed", line=PRINTED)
    figure.add_scatter(x=norm, y=minimum_entropy(norm, t), name="corrected", line=CORRECTED)
    figure.add_hline(np.log(t), line_color="#888", annotation_text="log T: no entropy is larger")
    figure.update_xaxes(title="norm of the logits").update_yaxes(title="least entropy (nats)")
    return styled(figure, "The least attention entropy, T = 40", height=380)


def angular_information() -> go.Figure:
    """Var(v'Cw) over the angle: a random C does not see it, a tied one does (LEDGER T6.47, T6.48b)."""
    rng = np.random.default_rng(3)
    n, draws = 24, 3000
    cosines = np.linspace(0, 1, 9)
    free, tied = [], []
    v = np.eye(n)[0]
    for k in cosines:
        w = k * v + np.sqrt(1 - k**2) * np.eye(n)[1]
        c = rng.standard_normal((draws, n, n)) / np.sqrt(n)
        free.append(np.einsum("i,dij,j->d", v, c, w).var())
        tied.append(np.einsum("dki,i,dkj,j->d", c, v, c, w).var())
    vector = np.stack([v] * len(cosines))
    others = np.stack([k * v + np.sqrt(1 - k**2) * np.eye(n)[1] for k in cosines])
    figure = go.Figure()
    figure.add_scatter(x=cosines, y=cosines**2 / n + (n - 1) / n**2, name="as printed", line=PRINTED)
    independent = bilinear.independent_weights_variance(vector, others, n)
    figure.add_scatter(x=cosines, y=independent, name="independent weights", line=CORRECTED)
    both = bilinear.tied_weights_variance(vector, others, n)
    figure.add_scatter(x=cosines, y=both, name="tied weights", line=dict(color="#1f77b4"))
    figure.add_scatter(x=cosines, y=free, mode="markers", marker=SIMULATED, name="simulated, independent")
    tied_marker = dict(color="#1f77b4", size=6, symbol="x")
    figure.add_scatter(x=cosines, y=tied, mode="markers", marker=tied_marker, name="simulated, tied")
    figure.update_xaxes(title="cosine of the two vectors").update_yaxes(
        title="variance of the logit", rangemode="tozero"
    )
    return styled(figure, "Does a random head see angles?", height=380)


def collapse() -> go.Figure:
    """Distance to one common token over depth, with and without skip (LEDGER T7.7)."""
    rng = np.random.default_rng(4)
    n, d, depth = 24, 48, 16
    curves: dict[str, list[float]] = {"no skip": [], "with skip": []}
    start = rng.standard_normal((n, d))
    states = dict.fromkeys(curves, start)
    for _ in range(depth):
        wq, wk, wv = rng.standard_normal((3, d, d)) / np.sqrt(d)
        for name, x in states.items():
            centred = x - x.mean(0)
            curves[name].append(float(np.linalg.norm(centred) / np.linalg.norm(x)))
            logits = (x @ wq) @ (x @ wk).T / np.sqrt(d)
            a = np.exp(logits - logits.max(1, keepdims=True))
            mixed = a / a.sum(1, keepdims=True) @ x @ wv
            new = mixed + x if name == "with skip" else mixed
            states[name] = new * np.sqrt(d) / np.linalg.norm(new, axis=1, keepdims=True)
    figure = go.Figure()
    for name, values in curves.items():
        figure.add_scatter(x=np.arange(depth), y=np.maximum(values, 1e-17), name=name, mode="lines+markers")
    figure.update_xaxes(title="layer").update_yaxes(title="distance to one common token", type="log")
    return styled(figure, "Random attention layers make tokens alike", height=380)


def theorem_one() -> go.Figure:
    """What the first k vectors leave of a smooth Gram matrix: the printed basis against the DCT-II (LEDGER S8, S9)."""
    t = 64
    place = np.arange(1, t + 1)
    g = np.cos((place - 0.5) * np.pi / t)
    matrix = np.outer(g, g)
    left: dict[str, list[float]] = {"as printed": [], "corrected (DCT-II)": []}
    counts = range(1, 9)
    for k in counts:
        for name, basis in (
            ("as printed", np.cos(np.outer(place - 1, np.arange(1, k + 1) - 0.5) * np.pi / t)),
            ("corrected (DCT-II)", np.cos(np.outer(place - 0.5, np.arange(k)) * np.pi / t)),
        ):
            q = np.linalg.qr(basis)[0]
            residual = matrix - q @ (q.T @ matrix @ q) @ q.T
            left[name].append(float(np.linalg.norm(residual, 2) / t))
    figure = go.Figure()
    for (name, values), style in zip(left.items(), (PRINTED, CORRECTED), strict=True):
        figure.add_scatter(x=list(counts), y=np.maximum(values, 1e-17), name=name, line=style, mode="lines+markers")
    figure.update_xaxes(title="vectors in the basis").update_yaxes(title="what is left", type="log")
    return styled(figure, "Theorem 1: the basis matters", height=380)


FIGURES: dict[str, Callable[[], go.Figure]] = {
    "S8": theorem_one,
    "L12": propagation_variance,
    "T6.3": bilinear_variance,
    "T5.17": slerp_error,
    "L26": entropy_minimum,
    "T6.47": angular_information,
    "T7.7": collapse,
}
"""By the id of the entry that each figure belongs to."""
