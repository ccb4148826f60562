"""Wertich, §5.1 to §5.2.3: exponentials of normal logits, the gradient of cross-entropy, and distributions.

Derivatives are taken by a complex step (exact to rounding), Gaussian averages by quadrature, Taylor coefficients as
fractions. Great circles are in `wertich_slerp`, ratios and linearity (§5.3) in `wertich_exponentials`.
"""

from collections.abc import Callable
from fractions import Fraction
from math import factorial

import numpy as np
from jaxtyping import Float, Inexact
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import softmax as probabilities

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, mean_and_error, variance_and_error
from armillary.theory import softmax

Array = Float[np.ndarray, "*shape"]

STEP = 1e-30
"""Of complex-step derivatives: f(x + i h) has the imaginary part h f'(x), and nothing cancels."""


def worst(label: str, measured: Array, printed: Array, corrected: Array | None = None) -> list[Number]:
    """The cases with the largest error of the printed form and of the corrected form."""
    forms = (("printed", printed),) if corrected is None else (("printed", printed), ("corrected", corrected))
    numbers = []
    for name, form in forms:
        place = np.unravel_index(np.argmax(np.abs(measured - form)), measured.shape)
        numbers.append(
            Number(
                f"{label}, where the {name} form is furthest off",
                float(measured[place]),
                float(printed[place]),
                None if corrected is None else float(corrected[place]),
            )
        )
    return numbers


def normal_average(function: Callable[[Array], Array], mean: float, variance: float) -> float:
    """E f(x), x normal, by Gauss-Hermite quadrature."""
    nodes, weights = hermegauss(80)
    return float(weights @ function(mean + np.sqrt(variance) * nodes) / weights.sum())


def exponential_moments(mean: float, variance: float) -> tuple[float, float]:
    """E exp(x) and Var exp(x), x normal, by quadrature."""
    first = normal_average(np.exp, mean, variance)
    return first, normal_average(lambda x: (np.exp(x) - first) ** 2, mean, variance)


def exponential_mean_series(factor: int, order: int) -> list[Fraction]:
    """Coefficients in s^2 of E exp(factor x), x ~ N(0, s^2): factor^2m (2m - 1)!! / (2m)!, from the moments of x."""
    double = [Fraction(factorial(2 * m), 2**m * factorial(m)) for m in range(order + 1)]  # (2m - 1)!!
    return [double[m] * factor ** (2 * m) / factorial(2 * m) for m in range(order + 1)]


def exponential_variance_series(order: int) -> list[Fraction]:
    """Coefficients in s^2 of Var exp(x), x ~ N(0, s^2)."""
    mean = exponential_mean_series(1, order)
    squared = [sum((mean[j] * mean[m - j] for j in range(m + 1)), Fraction(0)) for m in range(order + 1)]
    return [second - first for second, first in zip(exponential_mean_series(2, order), squared, strict=True)]


def directions(rng: np.random.Generator, *shape: int) -> Array:
    """Random unit vectors along the last axis."""
    x = rng.normal(size=shape)
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def cross_entropy(q: Float[np.ndarray, "*#batch n"], x: Inexact[np.ndarray, "*#batch n"]) -> np.ndarray:
    """H(q, softmax x) = -sum_j q_j log softmax(x)_j, for complex x too."""
    return np.asarray(-(q * (x - np.log(np.exp(x).sum(-1, keepdims=True)))).sum(-1))


def cross_entropy_gradient(q: Float[np.ndarray, "n"], x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """dH/dx_j by complex steps along every coordinate at once."""
    return np.asarray(cross_entropy(q, x + 1j * STEP * np.eye(len(x))).imag / STEP)


# §5.1.2: exponentiation


def check_T5_1a(rng: np.random.Generator) -> list[Evidence]:
    mean, variance = float(rng.uniform(0.5, 1.5)), float(rng.uniform(0.2, 1))
    return [
        Number(
            f"E exp X, mu = {mu:.3f}, sigma^2 = {variance:.3f}",
            normal_average(np.exp, mu, variance),
            printed=float(np.exp((mu + variance) / 2)),
            corrected=float(softmax.lognormal_mean(mu, variance)),
        )
        for mu in (0.0, mean, -mean)
    ]


def check_T5_1b(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for mean, variance in zip(rng.uniform(-1, 1, 3).tolist(), rng.uniform(0.2, 1, 3).tolist(), strict=True):
        evidence.append(
            Number(
                f"Var exp X, mu = {mean:.3f}, sigma^2 = {variance:.3f}",
                exponential_moments(mean, variance)[1],
                printed=float(softmax.lognormal_variance(mean, variance)),
            )
        )
    return evidence


def check_T5_1c(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for n in (8, 64):
        evidence.append(
            Number(f"E exp(x_i), n = {n}", normal_average(np.exp, 0.0, 1 / n), printed=float(np.exp(0.5 / n)))
        )
    series = exponential_mean_series(1, 2)
    for power, printed in ((0, 1.0), (1, 1 / 2), (2, 1 / 8)):
        evidence.append(Number(f"coefficient of (1/n)^{power} in E exp(x_i)", float(series[power]), printed))
    return evidence


def check_T5_1d(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for n in (8, 64):
        measured = exponential_moments(0.0, 1 / n)[1]
        evidence.append(Number(f"Var exp(x_i), n = {n}", measured, printed=float(np.exp(2 / n) - np.exp(1 / n))))
    series = exponential_variance_series(2)
    for power, printed in ((0, 0.0), (1, 1.0), (2, 3 / 2)):
        evidence.append(Number(f"coefficient of (1/n)^{power} in Var exp(x_i)", float(series[power]), printed))
    return evidence


def check_T5_1e(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = [
        Number("coefficient of 1/n in E exp(x_i)", float(exponential_mean_series(1, 1)[1]), printed=1.0, corrected=0.5)
    ]
    for n in (8, 1024):
        measured = normal_average(np.exp, 0.0, 1 / n)
        left_out = float(np.exp(0.5 / n)) / (8 * n * n)  # Lagrange's bound on what 1 + 1/(2n) drops
        evidence.append(Number(f"E exp(x_i), n = {n}", measured, 1 + 1 / n, 1 + 0.5 / n, tolerance=left_out))
    return evidence


# §5.2.1 and §5.2.2: differentiation, and which vectors are distributions


def check_T5_2a(rng: np.random.Generator) -> list[Evidence]:
    q, x = rng.dirichlet(np.ones(12), 50), 2 * rng.normal(size=(50, 12))
    measured = np.stack([cross_entropy_gradient(a, b) for a, b in zip(q, x, strict=True)])
    return [*worst("dH/dx_j over 50 draws", measured, probabilities(x, -1) - q)]


def check_T5_2b(rng: np.random.Generator) -> list[Evidence]:
    q, x = rng.dirichlet(np.ones(12)), rng.normal(size=12)
    p = probabilities(x)
    outer = -q / p  # dH/dp_k
    jacobian = np.diag(p) - np.outer(p, p)  # dp_k/dx_j
    measured = cross_entropy_gradient(q, x)
    return [*worst("dH/dx_j", measured, printed=outer * np.diag(jacobian), corrected=outer @ jacobian)]


def check_T5_2c(rng: np.random.Generator) -> list[Evidence]:
    q, parts = rng.dirichlet(np.ones(10)), rng.dirichlet(np.ones(10), 4)
    weights = rng.dirichlet(np.ones(4))
    measured = cross_entropy_gradient(q, np.log(weights @ parts))
    return [*worst("dH/dx_j at the mixture of 4", measured, printed=weights @ (parts - q))]


def check_T5_2d(rng: np.random.Generator) -> list[Evidence]:
    parts = rng.dirichlet(np.ones(6), (200, 2))
    signed = np.einsum("l,bli->bi", np.array([1.5, -0.5]), parts)
    convex = np.einsum("bl,bli->bi", rng.dirichlet(np.ones(2), 200), parts)
    negative = int((signed < 0).any(-1).sum())
    return [
        Fact("1.5 p - 0.5 q is a distribution", negative == 0, detail=f"{negative} of 200 pairs have a negative entry"),
        Fact(
            "with weights that are not negative it is one",
            bool((convex >= 0).all() and np.allclose(convex.sum(-1), 1)),
            "corrected",
            "200 random pairs and weights",
        ),
    ]


def check_T5_2e(rng: np.random.Generator) -> list[Evidence]:
    n, radius = 5, 1.0
    v = radius * directions(rng, 200, n)
    mirrored = v - 2 * v.mean(-1, keepdims=True)
    same_length = np.allclose(np.linalg.norm(mirrored, axis=-1), radius)
    same_softmax = np.allclose(probabilities(v, -1), probabilities(mirrored, -1))
    moved = float(np.abs(v - mirrored).max())

    logs = 0.5 * rng.normal(size=(400, n))  # log p up to a constant, centered: the shortest vector whose softmax is p
    logs -= logs.mean(-1, keepdims=True)
    shortest = np.linalg.norm(logs, axis=-1)
    inside = logs[shortest < radius]
    lift = np.sqrt((radius**2 - np.square(inside).sum(-1, keepdims=True)) / n)
    reached = all(
        np.allclose(np.linalg.norm(x, axis=-1), radius) and np.allclose(probabilities(x, -1), probabilities(inside, -1))
        for x in (inside + lift, inside - lift)
    )
    at_zero = probabilities(np.zeros(n))
    centered = np.linalg.norm(v - v.mean(-1, keepdims=True), axis=-1)
    return [
        Fact(
            "the zero vector has no distribution",
            not np.allclose(at_zero.sum(), 1),
            detail=f"each entry of softmax(0) is {at_zero[0]:.3f}, n = {n}",
        ),
        Fact(
            "on a sphere no two vectors have the same distribution",
            not (same_length and same_softmax),
            detail=f"v and v - 2 mean(v) are up to {moved:.2f} apart in an entry and have the same softmax",
        ),
        Fact(
            "every distribution is the softmax of a vector of length 1",
            bool(shortest.max() <= radius),
            detail=f"one of the draws needs a length of {shortest.max():.2f}",
        ),
        Fact("every p with |log p - mean log p| < l is reached from two vectors of length l", reached, "corrected"),
        Fact("and no other p is", bool(centered.max() <= radius + 1e-12), "corrected"),
    ]


def check_T5_3(rng: np.random.Generator) -> list[Evidence]:
    n = 50
    v, w = rng.normal(size=(2, 40_000, n)) / np.sqrt(n)
    dots = np.einsum("bi,bi->b", v, w)
    (mean, mean_error), (variance, variance_error) = mean_and_error(dots), variance_and_error(dots)
    return [
        Number(f"E <v, w>, n = {n}", mean, printed=0.0, error=mean_error),
        Number(f"Var <v, w>, n = {n}", variance, printed=1 / n, error=variance_error),
    ]


# §5.2.3: sums and multiples of vectors


def check_T5_2f(rng: np.random.Generator) -> list[Evidence]:
    v, weights = directions(rng, 100, 3, 5), rng.normal(size=(100, 3))
    weights /= np.linalg.norm(weights, axis=-1, keepdims=True)
    measured = np.linalg.norm(np.einsum("bi,bij->bj", weights, v), axis=-1)
    corrected = np.sqrt(np.einsum("bi,bik,bk->b", weights, v @ v.mT, weights))
    frame = np.linalg.qr(rng.normal(size=(5, 3)))[0].T
    return [
        *worst("|sum lambda_i v_i|, |lambda| = 1", measured, np.ones(100), corrected),
        Number("the same, v_i orthonormal", float(np.linalg.norm(weights[0] @ frame)), printed=1.0),
    ]


def check_T5_2g(rng: np.random.Generator) -> list[Evidence]:
    n = 20
    v = rng.normal(size=n)
    second, first = np.sort(v)[-2:]
    large, small = 60 / (first - second), 1e-6  # the runner-up has e^-60 of the largest
    alphas = np.geomspace(1e-2, 1e2, 200)
    falls = np.diff(softmax.entropy(alphas[:, None] * v))

    def entropy(alpha: complex) -> complex:
        x = alpha * v
        logs = x - np.log(np.exp(x).sum())
        return complex(-(np.exp(logs) * logs).sum())

    one_hot = probabilities(large * v) - (v == first)
    return [
        Number("largest |softmax(alpha v) - one-hot|, alpha large", float(np.abs(one_hot).max()), printed=0.0),
        Number("entropy, alpha large", float(softmax.entropy(large * v)), printed=0.0),
        Number("entropy, alpha = 1e-6", float(softmax.entropy(small * v)), printed=float(np.log(n))),
        Fact("the entropy never rises with alpha", bool((falls <= 1e-15).all()), detail="200 values, 0.01 to 100"),
        Number(
            "slope of the entropy, alpha = 0.7",
            entropy(0.7 + 1j * STEP).imag / STEP,
            corrected=float(softmax.entropy_slope(v, 0.7)),
        ),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "T5.1a",
        "Wertich",
        "§5.1.2, §5.3.1",
        "The mean of the exponential of a normal variable.",
        r"\mathbb{E}[\exp X] = \exp\left(\frac{\mu + \sigma^2}{2}\right)",
        check_T5_1a,
        corrected=r"\mathbb{E}[\exp X] = \exp\left(\mu + \frac{\sigma^2}{2}\right)",
        remark="The two agree only where mu = 0, which is where the paper uses it (5.1).",
    ),
    Entry(
        "T5.1b",
        "Wertich",
        "§5.1.2, §5.3.1",
        "The variance of the exponential of a normal variable.",
        r"\operatorname{Var}(\exp X) = (\exp(\sigma^2) - 1) \exp(2\mu + \sigma^2)",
        check_T5_1b,
    ),
    Entry(
        "T5.1c",
        "Wertich",
        "(5.1)",
        "The mean of exp(x_i) for logits of variance 1/n, and its Taylor polynomial of order 2.",
        r"\mathbb{E}[\exp x_i] = \exp\left(\frac{1}{2n}\right) \approx 1 + \frac{1}{2n} + \frac{1}{8n^2}",
        check_T5_1c,
        remark="Printed with an approximate sign where the first equality is exact; the last entry of the vector has "
        "l / 2n and l^2 / 8n^2, where l is not defined: read l = 1.",
    ),
    Entry(
        "T5.1d",
        "Wertich",
        "(5.2)",
        "The variance of exp(x_i) for logits of variance 1/n, and its Taylor polynomial of order 2.",
        r"\operatorname{Var}(\exp x_i) = \exp\left(\frac{2}{n}\right) - \exp\left(\frac{1}{n}\right) \approx "
        r"\frac{1}{n} + \frac{3}{2n^2}",
        check_T5_1d,
        remark="Printed with an approximate sign where the first equality is exact.",
    ),
    Entry(
        "T5.1e",
        "Wertich",
        "§5.1.2",
        "The mean of the exponentiated logits to first order.",
        r"\mathbb{E}[\hat{X}_i] \approx 1 + \frac{1}{m}",
        check_T5_1e,
        corrected=r"\mathbb{E}[\hat{X}_i] \approx 1 + \frac{1}{2n}",
        remark="m is not defined there and is read as n; (5.1), just above it, has the 1/(2n).",
    ),
    Entry(
        "T5.2b",
        "Wertich",
        "§5.2.1",
        "The derivative of the cross-entropy in a logit is that in its own probability times that of its own "
        "probability.",
        r"\frac{dH}{dx_j} = \frac{dH}{dp_j} \frac{dp_j}{dx_j}",
        check_T5_2b,
        corrected=r"\frac{dH}{dx_j} = \sum_k \frac{dH}{dp_k} \frac{dp_k}{dx_j}, \quad "
        r"\frac{dp_k}{dx_j} = p_k (\delta_{kj} - p_j)",
        remark="The single term is -q_j (1 - p_j). The result printed after it, p_j - q_j, is right (T5.2a); (5.4) has "
        "the same slip.",
    ),
    Entry(
        "T5.2a",
        "Wertich",
        "§5.2.1",
        "The gradient of the cross-entropy of a target q and softmax(x) is the difference of the two distributions.",
        r"\frac{dH(q, p)}{dx_j} = p_j - q_j",
        check_T5_2a,
    ),
    Entry(
        "T5.2c",
        "Wertich",
        "§5.2.1",
        "Where softmax gives a mixture, the gradient is the mixture of the differences.",
        r"\frac{dH}{dx_j} = \sum_{l=1}^k \lambda_l (p_j^{(l)} - q_j), \quad \sum_l \lambda_l = 1",
        check_T5_2c,
        remark="The same p_j - q_j, written out: it says nothing of how the gradient is shared among the parts.",
    ),
    Entry(
        "T5.2e",
        "Wertich",
        "§5.2.2",
        "The zero vector has no distribution, and vectors on a sphere and distributions correspond one to one.",
        r"v \in S_l^{n-1} \leftrightarrow \operatorname{Softmax}(v), \quad \text{not defined at } v = 0",
        check_T5_2e,
        corrected=r"\operatorname{Softmax}(0) = \left(\frac{1}{n}, \dots, \frac{1}{n}\right), \quad "
        r"\operatorname{Softmax}(S_l^{n-1}) = \{p : \|\log p - \operatorname{mean}(\log p)\|_2 \le l\}, "
        r"\text{ two to one}",
        remark="v and v - 2 mean(v) have the same length and softmax; they are one vector only where mean(v) = 0, the "
        "edge of the image. Distributions that are peaked beyond it cannot be reached.",
    ),
    Entry(
        "T5.2d",
        "Wertich",
        "§5.2.2",
        "Every linear combination of distributions with weights that sum to 1 is a distribution.",
        r"p = \sum_i \lambda_i p_i, \quad \sum_i \lambda_i = 1",
        check_T5_2d,
        corrected=r"p = \sum_i \lambda_i p_i, \quad \sum_i \lambda_i = 1, \quad \lambda_i \ge 0",
        remark="With weights 1.5 and -0.5 most pairs have a negative entry.",
    ),
    Entry(
        "T5.3",
        "Wertich",
        "(5.3)",
        "The inner product of two independent vectors with entries of variance 1/n has mean 0 and variance 1/n.",
        r"\mathbb{E}[\langle v, w \rangle] = 0, \quad \operatorname{Var}(\langle v, w \rangle) = \frac{1}{n}",
        check_T5_3,
    ),
    Entry(
        "T5.2f",
        "Wertich",
        "§5.2.3",
        "A combination of unit vectors with weights of Euclidean norm 1 is a unit vector.",
        r"\left\| \sum_i \frac{\lambda_i}{\|\lambda\|_2} v_i \right\|_2 = 1",
        check_T5_2f,
        corrected=r"\left\| \sum_i \frac{\lambda_i}{\|\lambda\|_2} v_i \right\|_2 = "
        r"\frac{\sqrt{\lambda^T G \lambda}}{\|\lambda\|_2}, \quad G_{ij} = \langle v_i, v_j \rangle",
        remark="It is 1 for every choice of weights only where the v_i are orthonormal.",
    ),
    Entry(
        "T5.2g",
        "Wertich",
        "§5.2.3",
        "Scaling a vector up drives softmax to the one-hot vector of its largest entry with entropy 0, scaling it down "
        "to the uniform distribution with entropy log n.",
        r"\operatorname{Softmax}(\alpha v) \to \delta_i \ (\alpha \to \infty), \quad "
        r"\operatorname{Softmax}(\alpha v) \to \left(\frac{1}{n}, \dots, \frac{1}{n}\right) \ (\alpha \to 0)",
        check_T5_2g,
        remark="Uniform is the limit at 0, not what every alpha < 1 gives. The slope of the entropy is "
        "-alpha Var_p(v), p = softmax(alpha v).",
    ),
)
