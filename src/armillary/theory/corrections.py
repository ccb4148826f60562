"""Curves of the statements whose correction matters most: as printed, corrected, simulated."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from armillary.theory import bilinear
from armillary.theory.localization import Spectrum, exact_rho, limit_moments, limit_rho, minimum_entropy
from armillary.theory.random_walk import simulate_walks
from armillary.theory.softmax import kl_small_radius, slerp

Curve = Float[np.ndarray, "n"]


@dataclass(frozen=True)
class Curves:
    """Values over x, by name; `points` are simulated or exact values over places of their own."""

    x: Curve
    values: dict[str, Curve]
    at: Float[np.ndarray, "m"] | None = None
    points: dict[str, Float[np.ndarray, "m"]] | None = None


def propagation() -> tuple[Curves, Curves]:
    """Variance and rho over the place of a token, as printed and corrected; walks and the exact law beside rho."""
    rng = np.random.default_rng(0)
    d, t, scale = 64, 60, 8.0
    w = np.diag(rng.normal(0.5, 0.3, d))
    spectrum = Spectrum(float(np.trace(w)), float(np.trace(w @ w)), None, scale)
    theta = np.linspace(0.02, 1, 80)
    kinds = {"as printed": True, "corrected": False}
    variance = {name: limit_moments(spectrum, theta, printed=printed)[1] for name, printed in kinds.items()}
    rho = {name: limit_rho(spectrum, theta, printed=printed) for name, printed in kinds.items()}
    seen, _ = simulate_walks(w, None, t, scale, 4000, 0)
    points = {"simulated": np.asarray(seen), "exact": exact_rho(spectrum, t)}
    return Curves(theta, variance), Curves(theta, rho, (np.arange(t) + 1) / t, points)


def bilinear_forms() -> Curves:
    """Var(x'Cy) over the correlation of x and y: as printed, with the cross-covariance, simulated."""
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
    named = {"as printed": printed, "corrected": full, "simulated": simulated}
    return Curves(correlations, {name: np.array(values) for name, values in named.items()})


def divergence_along_slerp(radii: tuple[float, ...] = (1.0, 10.0)) -> list[Curves]:
    """For each radius, KL along a great circle, the best sinusoid, and half the variance of w - v."""
    rng = np.random.default_rng(2)
    t = np.linspace(0, 1, 60)
    return [_along_slerp(rng, radius, t) for radius in radii]


def _along_slerp(rng: np.random.Generator, radius: float, t: Curve) -> Curves:
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
    small = np.array([kl_small_radius(w, u) for u in path])
    return Curves(t, {"exact": kl, "as printed": fitted, "corrected": small})


def least_entropy(tokens: int) -> Curves:
    """The least entropy that logits of a given norm allow, as printed and corrected."""
    norm = np.linspace(0.01, 12, 200)
    printed = np.log(1 + tokens * np.exp(-norm)) + norm * np.exp(-norm / 2) / (1 / tokens + np.exp(-norm))
    return Curves(norm, {"as printed": printed, "corrected": minimum_entropy(norm, tokens)})


def angles() -> Curves:
    """Var(v'Cw) over the cosine of v and w: as printed, for independent and for tied weights, and simulated."""
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
    values = {
        "as printed": cosines**2 / n + (n - 1) / n**2,
        "independent": bilinear.independent_weights_variance(vector, others, n),
        "tied": bilinear.tied_weights_variance(vector, others, n),
        "independent, simulated": np.array(free),
        "tied, simulated": np.array(tied),
    }
    return Curves(cosines, values)


def collapse_of_tokens() -> Curves:
    """Distance to one common token over the depth of random attention layers, with and without skip."""
    rng = np.random.default_rng(4)
    n, d, depth = 24, 48, 16
    curves: dict[str, list[float]] = {"no skip": [], "with skip": []}
    start = rng.standard_normal((n, d))
    states = dict.fromkeys(curves, start)
    for _ in range(depth):
        wq, wk, wv = rng.standard_normal((3, d, d)) / np.sqrt(d)
        for name, x in states.items():
            centered = x - x.mean(0)
            curves[name].append(float(np.linalg.norm(centered) / np.linalg.norm(x)))
            logits = (x @ wq) @ (x @ wk).T / np.sqrt(d)
            a = np.exp(logits - logits.max(1, keepdims=True))
            mixed = a / a.sum(1, keepdims=True) @ x @ wv
            new = mixed + x if name == "with skip" else mixed
            states[name] = new * np.sqrt(d) / np.linalg.norm(new, axis=1, keepdims=True)
    return Curves(np.arange(depth, dtype=float), {name: np.array(values) for name, values in curves.items()})


def smooth_gram_residuals() -> Curves:
    """What the first k vectors leave of a smooth Gram matrix: the printed basis, and the DCT-II."""
    t = 64
    place = np.arange(1, t + 1)
    g = np.cos((place - 0.5) * np.pi / t)
    matrix = np.outer(g, g)
    left: dict[str, list[float]] = {"as printed": [], "corrected": []}
    counts = range(1, 9)
    for k in counts:
        for name, basis in (
            ("as printed", np.cos(np.outer(place - 1, np.arange(1, k + 1) - 0.5) * np.pi / t)),
            ("corrected", np.cos(np.outer(place - 0.5, np.arange(k)) * np.pi / t)),
        ):
            q = np.linalg.qr(basis)[0]
            residual = matrix - q @ (q.T @ matrix @ q) @ q.T
            left[name].append(float(np.linalg.norm(residual, 2) / t))
    return Curves(np.array(counts, dtype=float), {name: np.array(values) for name, values in left.items()})
