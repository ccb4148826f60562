"""Bao, Hataya and Karakida, Sections 3 and 6 and Appendix B: the gradient of W_QK, its orders in T, and LocAteR."""

from collections.abc import Callable
from math import log, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from armillary.papers.ledger.bao_moments import everywhere, spectrum_of
from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend
from armillary.theory.localization import exact_rho, localizing_target, locater_minimizer, spectrum_regime
from armillary.theory.random_walk import linearized, qk_gradient, qk_gradient_terms, simulate_walks

# Imports inside functions: statements are listed without torch.

Square = Float[np.ndarray, "d d"]


class Walk(NamedTuple):
    """One walk with the weights of a layer: tokens are the columns of x, and y is the token after the last."""

    x: Float[np.ndarray, "d t"]
    y: Float[np.ndarray, "d"]
    w_qk: Square
    w_v: Square
    w_f: Square
    scale: float


def draw_walk(rng: np.random.Generator, d: int, t: int, strength: float) -> Walk:
    steps = rng.standard_normal((d, t + 1)).cumsum(1)
    w_qk, w_v, w_f = rng.standard_normal((3, d, d))
    return Walk(steps[:, :-1], steps[:, -1], strength * w_qk, w_v, w_f, sqrt(d))


def gradient_by_autograd(walk: Walk) -> Square:
    """The gradient in W_QK of 1/2 |y - W_F (W_V X S~(omega) + x_T)|^2, S~ softmax linearized and clipped to [0, 1]."""
    import torch

    x, y, w_qk, w_v, w_f = (torch.tensor(array) for array in walk[:5])
    w_qk.requires_grad_()
    omega = x.T @ w_qk @ x[:, -1] / walk.scale
    weights = torch.clamp((omega - omega.mean() + 1) / len(omega), 0, 1)
    missed = y - w_f @ (w_v @ x @ weights + x[:, -1])
    (slope,) = torch.autograd.grad(missed.square().sum() / 2, w_qk)
    return np.asarray(slope.numpy())


def clipped(walk: Walk) -> tuple[Square, Float[np.ndarray, "t"]]:
    """Gamma, whose column i is gamma~^i, and gamma~_0 as Section 2 defines them."""
    t = walk.x.shape[1]
    share = linearized(walk.x.T @ walk.w_qk @ walk.x[:, -1] / walk.scale)
    passes = (share >= 0) & (share <= 1)
    return (np.eye(t) / t - 1 / t**2) * passes, np.where(passes, 1 / t, (share > 1).astype(np.float64))


def printed_gradient(walk: Walk) -> Square:
    """(3) as printed, for one walk."""
    x, y, w_qk, w_v, w_f, scale = walk
    last = x[:, -1]
    gamma, gamma_0 = clipped(walk)
    p = x.T @ w_v.T @ w_f.T @ w_f @ w_v @ x
    q = x.T @ w_v.T @ w_f.T @ (w_f @ last - y)
    first = x @ gamma @ p @ gamma.T @ x.T @ w_qk @ np.outer(last, last) / scale**2
    return np.asarray(first + np.outer(x @ gamma @ p @ gamma_0, last) / scale + np.outer(x @ gamma @ q, last) / scale)


def printed_terms(walk: Walk) -> list[Square]:
    """(19), (20) and (21) as printed, index by index, for one walk."""
    x, y, w_qk, w_v, w_f, scale = walk
    last = x[:, -1]
    gamma, gamma_0 = clipped(walk)  # gamma[a, i] is gamma~^i_a
    inner = x.T @ (w_v.T @ w_f.T @ w_f @ w_v) @ x
    signal = x.T @ w_v.T @ w_f.T @ (w_f @ last - y)
    sums = (
        np.einsum("ai,bj,ij,b,da,e->de", gamma, gamma, inner, x.T @ w_qk @ last, x, last) / scale**2,
        np.einsum("ai,b,ib,da,e->de", gamma, gamma_0, inner, x, last) / scale,
        np.einsum("ai,i,da,e->de", gamma, signal, x, last) / scale,
    )
    return [np.asarray(term) for term in sums]


# The gradient and its orders -------------------------------------------------------------------------------------


def check_L5(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for strength in (0.3, 3.0):  # logits that stay inside [0, 1], and logits that clip on both sides
        walk = draw_walk(rng, 4, 15, strength)
        what, slope = f"gradient of W_QK by autograd, W_QK of size {strength:g}", gradient_by_autograd(walk)
        evidence += everywhere(what, slope, printed=printed_gradient(walk))
        evidence += everywhere(f"{what}, and what armillary uses", slope, corrected=qk_gradient(*walk))
    return evidence


def check_L6(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for strength in (0.3, 3.0):
        walk = draw_walk(rng, 3, 7, strength)
        terms, library = printed_terms(walk), qk_gradient_terms(*walk)
        total = terms[0] + terms[1] + terms[2]
        label = f"(19) + (20) + (21) and the gradient by autograd, W_QK of size {strength:g}"
        evidence += everywhere(label, gradient_by_autograd(walk), printed=total)
        size = np.abs(library).max() + 1
        for name, term, other in zip(("(19)", "(20)", "(21)"), terms, library, strict=True):
            so = bool(np.abs(term - other).max() < 1e-10 * size)
            evidence.append(Fact(f"{name} is the matrix form's term, W_QK of size {strength:g}", so))
    return evidence


def traces_of_terms(
    steps: Float[np.ndarray, "walk d tokens"], w_qk: Square, w_f: float, scale: float
) -> Float[np.ndarray, "walk 3"]:
    """The traces of (19), (20), (21) of many walks, with W_V = I and W_F = w_f I; the last token is y."""
    x, last, y = steps[..., :-1], steps[..., -2], steps[..., -1]
    t = x.shape[-1]
    omega = np.einsum("nat,na->nt", x, last @ w_qk.T) / scale
    share = linearized(omega)
    passes = (share >= 0) & (share <= 1)
    slopes = (x - x.mean(-1, keepdims=True)) / t * passes[:, None]  # X Gamma
    first = np.einsum("nat,nt->na", x, passes * (omega - omega.mean(-1, keepdims=True)) / t)  # X Gamma' omega
    second = np.einsum("nat,nt->na", x, passes / t + (share > 1))  # X gamma~_0
    signals = np.stack([w_f**2 * first, w_f**2 * second, w_f * (w_f * last - y)], 2)
    moved = slopes @ (x.transpose(0, 2, 1) @ signals)
    return np.asarray(np.einsum("nak,na->nk", moved, last) / scale)


def check_L7(rng: np.random.Generator) -> list[Evidence]:
    d, walks, sizes, w, w_f = 3, 3000, (32, 128, 512), np.diag([2.0, 1.5, 1.0]), 1.5
    means, errors = [], []
    for t in sizes:
        steps = rng.standard_normal((walks, d, t + 1)).cumsum(2)
        values = traces_of_terms(steps, w, w_f, sqrt(d))
        means.append(values.mean(0))
        errors.append(values.std(0) / sqrt(walks) / np.abs(values.mean(0)))
    walk = Walk(steps[0, :, :-1], steps[0, :, -1], w, np.eye(d), w_f * np.eye(d), sqrt(d))
    by_matrix = np.trace(qk_gradient_terms(*walk), axis1=1, axis2=2)
    growth = np.log(np.abs(means[-1] / means[0])) / log(sizes[-1] / sizes[0])
    unsure = np.hypot(errors[0], errors[-1]) / log(sizes[-1] / sizes[0])
    evidence: list[Evidence] = everywhere("traces of the terms of one walk", by_matrix[None], corrected=values[:1])
    for name, value, error, order in zip(("(19)", "(20)", "(21)"), growth, unsure, (3.0, 3.0, 2.0), strict=True):
        evidence.append(
            Number(f"order in T of tr E{name}", float(value), corrected=order, error=float(error), tolerance=0.05)
        )
    ratios = tuple(float(walk[1] / walk[0]) for walk in means)
    evidence.append(
        Trend("tr E(20) / tr E(19), 0 if (19) dominates", tuple(f"T = {t}" for t in sizes), ratios, bound=0.1)
    )
    fourth = float(np.mean(rng.standard_normal(100_000) ** 4))  # b = c
    return [*evidence, Fact("E[b^2 c^2] <= E[b^2] E[c^2], b = c normal", fourth <= 1, detail=f"{fourth:.2f} <= 1")]


# LocAteR ---------------------------------------------------------------------------------------------------------


def slopes_by_autograd(
    w_q: Float[np.ndarray, "h d"], w_k: Float[np.ndarray, "h d"], penalty: Callable[[Any], Any]
) -> list[Float[np.ndarray, "h d"]]:
    """The gradients in W_Q and W_K of a penalty of W_QK = W_Q' W_K."""
    import torch

    q, k = torch.tensor(w_q, requires_grad=True), torch.tensor(w_k, requires_grad=True)
    return [np.asarray(gradient.numpy()) for gradient in torch.autograd.grad(penalty(q.T @ k), (q, k))]


def check_L28(rng: np.random.Generator) -> list[Evidence]:
    w_q, w_k = rng.standard_normal((2, 4, 6))
    by_q, by_k = slopes_by_autograd(w_q, w_k, lambda w: (w.T @ w).trace())
    return [
        *everywhere("gradient of tr(W_QK' W_QK) in W_Q", by_q, printed=2 * w_k @ w_k.T @ w_q),
        *everywhere("gradient of tr(W_QK' W_QK) in W_K", by_k, printed=2 * w_q @ w_q.T @ w_k),
    ]


def check_L29(rng: np.random.Generator) -> list[Evidence]:
    w_q, w_k = rng.standard_normal((2, 4, 6))
    trace = float(rng.uniform(4, 6))  # away from 1 and 2, where the two forms meet
    w_q += (trace - np.sum(w_q * w_k)) / np.sum(w_k**2) * w_k
    by_q, by_k = slopes_by_autograd(w_q, w_k, lambda w: (w.trace() - 1) ** 2)
    what, factor = "gradient of (tr(W_QK) - 1)^2", trace - 1
    return [
        *everywhere(f"{what} in W_Q", by_q, printed=factor * trace * w_k, corrected=2 * factor * w_k),
        *everywhere(f"{what} in W_K", by_k, printed=factor * trace * w_q, corrected=2 * factor * w_q),
    ]


def check_L30(rng: np.random.Generator) -> list[Evidence]:
    t, d = 200, 128
    scale, r = sqrt(d), 5.0
    evidence: list[Evidence] = []
    forms: tuple[tuple[float, Literal["printed", "corrected"]], ...] = (
        (1.0, "printed"),
        (localizing_target(r, scale), "corrected"),
    )
    for target, form in forms:
        w = target / d * np.eye(d)  # the least tr(W'W) with this trace
        spectrum = spectrum_of(w, None, scale)
        regime = spectrum_regime(spectrum)
        detail = f"tr(W) / lambda = {spectrum.r:.3f}, rho is {regime}"
        evidence.append(
            Fact(
                f"the target tr(W_QK) = {target:.4g} localizes, d = {d}",
                abs(spectrum.r) > 2 and regime == "middle",
                form,
                detail,
            )
        )
        simulated, _ = simulate_walks(w, None, t, scale, 4000, int(rng.integers(2**31)))
        width = float(np.mean(simulated))
        if form == "corrected":
            evidence.append(Number("share of tokens that pass, r = 5", width, corrected=1 / r, tolerance=0.03))
        else:
            evidence.append(
                Fact("over half of all tokens pass at tr(W_QK) = 1", width > 0.5, "corrected", f"{width:.2f} of them")
            )
        by_law = float(exact_rho(spectrum, t).mean())
        evidence.append(Number("the same by the law", width, corrected=by_law, tolerance=0.03))
    return evidence


def check_L31(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for kappa1, kappa2, d in ((100.0, 1.0, 24), (100.0, 0.01, 24), (1.0, 1.0, 12), (float(rng.uniform(1, 5)), 2.0, 7)):

        def value_and_slope(
            flat: np.ndarray, k1: float = kappa1, k2: float = kappa2, d: int = d
        ) -> tuple[float, object]:
            w = flat.reshape(d, d)
            off = float(np.trace(w)) - 1
            return k1 * float(np.sum(w**2)) + k2 * off**2, (2 * k1 * w + 2 * k2 * off * np.eye(d)).ravel()

        start = rng.standard_normal(d * d)
        options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 500}
        least = minimize(value_and_slope, start, jac=True, method="L-BFGS-B", options=options).x.reshape(d, d)
        weight = locater_minimizer(kappa1, kappa2, d)
        label = f"kappa1 = {kappa1:.3g}, kappa2 = {kappa2:g}, d = {d}"
        evidence.append(
            Number(
                f"tr of the minimizer, {label}",
                float(np.trace(least)),
                printed=kappa2 * d / (kappa1 + kappa2 * d),
                corrected=d * weight,
                tolerance=1e-7,
            )
        )
        away = float(np.abs(least - weight * np.eye(d)).max())
        evidence.append(Number(f"its largest distance from w I, {label}", away, printed=0.0, tolerance=1e-7))
    return evidence


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="L5",
        paper="Bao",
        place="(3)",
        statement="The gradient of the loss in W_QK, with softmax linearized and clipped, as a sum of three terms.",
        printed=r"\nabla_{W_{QK}} J = \lambda^{-2} E[X \Gamma P \Gamma^\top X^\top W_{QK} x_T x_T^\top] "
        r"+ \lambda^{-1} E[X \Gamma P \tilde\gamma_0 x_T^\top] + \lambda^{-1} E[X \Gamma q x_T^\top]",
        remark="The derivation in Appendix B.1 drops P between Gamma and Gamma' in its fourth and fifth lines.",
        check=check_L5,
    ),
    Entry(
        id="L6",
        paper="Bao",
        place="(4), (19)-(21)",
        statement="The three terms of the gradient, written as sums over tokens.",
        printed=r"\frac{1}{\lambda^2} \sum_{i, j, \alpha, \beta} E[\tilde\gamma_\alpha^i \tilde\gamma_\beta^j "
        r"(x_i^\top \tilde P x_j) (x_\beta^\top W_{QK} x_T) x_\alpha x_T^\top]",
        remark="Shown is (19), which is (4); the check has all three.",
        check=check_L6,
    ),
    Entry(
        id="L7",
        paper="Bao",
        place="Appendix B.2",
        statement="For large T the first of the three terms dominates the gradient.",
        printed=r"|(19)| = O(T^8), \quad |(20)| = O(T^5), \quad |(21)| = O(T^4)",
        corrected=r"(19) \sim T^3, \quad (20) \sim T^3, \quad (21) \sim T^2",
        remark="The printed orders are true as upper bounds, which cannot show dominance. The walk scales as sqrt(T) "
        "times Brownian motion: (20) is of the order of (19), since gamma~_0 is 1, not 1 / T, on tokens clipped at 1; "
        "only (21) is negligible. The printed factors would give T^9 for (19), and the inequality used is not that of "
        "Cauchy and Schwarz.",
        check=check_L7,
    ),
    Entry(
        id="L28",
        paper="Bao",
        place="§6",
        statement="The gradients of LocAteR's scale term in W_Q and W_K.",
        printed=r"\nabla_{W_Q} \operatorname{tr}(W_{QK}^\top W_{QK}) = 2 W_K W_K^\top W_Q, \quad "
        r"\nabla_{W_K} \operatorname{tr}(W_{QK}^\top W_{QK}) = 2 W_Q W_Q^\top W_K",
        check=check_L28,
    ),
    Entry(
        id="L29",
        paper="Bao",
        place="§6",
        statement="The gradients of LocAteR's mean term in W_Q and W_K.",
        printed=r"\nabla_{W_Q} (\operatorname{tr}(W_{QK}) - 1)^2 = "
        r"(\operatorname{tr}(W_{QK}) - 1) \operatorname{tr}(W_{QK}) W_K",
        corrected=r"\nabla_{W_Q} (\operatorname{tr}(W_{QK}) - 1)^2 = 2 (\operatorname{tr}(W_{QK}) - 1) W_K",
        remark="For W_K the same with W_Q at the end.",
        check=check_L29,
    ),
    Entry(
        id="L30",
        paper="Bao",
        place="§6",
        statement="The target tr(W_QK) = 1 of the objective puts attention where Lemma 2 says that it localizes.",
        printed=r"\kappa_1 \operatorname{tr}(W_{QK}^\top W_{QK}) + \kappa_2 (\operatorname{tr}(W_{QK}) - 1)^2",
        corrected=r"\kappa_1 \operatorname{tr}(W_{QK}^\top W_{QK}) "
        r"+ \kappa_2 (\operatorname{tr}(W_{QK} \Sigma) - r \lambda)^2, \quad r > 2",
        remark="Localizing takes tr(W) / lambda above 2; the target 1 is 1 / sqrt(128) = 0.09 in the paper's models. "
        "That is of random walks; the trained models of Figures 6 to 12 were not trained again.",
        command="armillary train",
        check=check_L30,
    ),
    Entry(
        id="L31",
        paper="Bao",
        place="§6, not printed",
        statement="The minimizer of LocAteR's two penalty terms alone (not in the paper, derived from its objective).",
        printed=r"W^* = \frac{\kappa_2}{\kappa_1 + \kappa_2 d} I, \quad "
        r"\operatorname{tr}(W^*) = \frac{\kappa_2 d}{\kappa_1 + \kappa_2 d}",
        remark="The trace falls short of the target: 0.56 at kappa1 = 100, kappa2 = 1, d = 128, and 0.013 at "
        "kappa2 = 0.01.",
        check=check_L31,
    ),
)
