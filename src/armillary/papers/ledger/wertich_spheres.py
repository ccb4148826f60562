"""Wertich §6.3 to §6.4: the form v'Cw for vectors on spheres at a given angle, its bounds, and whether it is normal."""

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.stats import chi2

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend, mean_and_error, variance_and_error
from armillary.theory.bilinear import (
    excess_kurtosis_of_product,
    independent_weights_variance,
    symmetric_weights_variance,
    tied_weights_mean,
    tied_weights_variance,
)

Vectors = Float[np.ndarray, "count n"]
Samples = Float[np.ndarray, "count"]


def on_sphere(rng: np.random.Generator, count: int, n: int) -> Vectors:
    """Unit vectors, all directions equally likely."""
    x = rng.standard_normal((count, n))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def at_cosine(rng: np.random.Generator, count: int, n: int, cosine: float) -> tuple[Vectors, Vectors]:
    """Pairs of unit vectors with <v, w> = cosine, all orientations equally likely."""
    v, other = on_sphere(rng, count, n), rng.standard_normal((count, n))
    other -= (other * v).sum(1, keepdims=True) * v
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    return v, np.asarray(cosine * v + np.sqrt(1 - cosine**2) * other)


def in_plane(cosine: float) -> tuple[Float[np.ndarray, "2"], Float[np.ndarray, "2"]]:
    """The same pair in coordinates of its plane: Gaussian weights have the same law in every basis."""
    return np.array([1.0, 0.0]), np.array([cosine, np.sqrt(1 - cosine**2)])


def forms(rng: np.random.Generator, count: int, n: int, cosine: float) -> Samples:
    """v'Cw, each with its own pair at that cosine and its own C of variance 1/n."""
    v, w = at_cosine(rng, count, n, cosine)
    c = rng.standard_normal((count, n, n)) / np.sqrt(n)
    return np.asarray(np.einsum("cl,cl->c", v, (c @ w[:, :, None])[:, :, 0]))


def same_coordinate(n: int, cosine: float) -> float:
    """sum_l Var(v_l w_l) = (1 + 2 k^2)/(n + 2) - k^2/n."""
    return (1 + 2 * cosine**2) / (n + 2) - cosine**2 / n


def other_coordinate(n: int, cosine: float) -> float:
    """Var(v_l w_m) = (n + 1 - 2 k^2)/(n (n - 1)(n + 2)), l and m not equal."""
    return (n + 1 - 2 * cosine**2) / (n * (n - 1) * (n + 2))


def check_T6_35(rng: np.random.Generator) -> list[Evidence]:
    n, length = 6, 2.0
    first = length * on_sphere(rng, 200_000, n)[:, 0]
    mean, mean_error = mean_and_error(first)
    variance, error = variance_and_error(first)
    return [
        Number("E x_i, n=6, l=2", mean, 0.0, error=mean_error),
        Number("Var x_i", variance, length**2 / n, error=error),
    ]


def check_T6_36(rng: np.random.Generator) -> list[Evidence]:
    n, length = 6, 2.0
    x = length * on_sphere(rng, 200_000, n)
    covariance, error = mean_and_error(x[:, 0] * x[:, 1])
    of_sum, sum_error = variance_and_error(x.sum(1))
    return [
        Number("Cov[x_1, x_2], n=6, l=2", covariance, -(length**2) / (n * (n - 1)), 0.0, error),
        Number("Var(sum x_i), which the printed step takes for zero", of_sum, 0.0, length**2, sum_error),
    ]


def check_T6_37(rng: np.random.Generator) -> list[Evidence]:
    n, cosine, lengths = 6, 0.6, (2.0, 3.0)
    v, w = at_cosine(rng, 200_000, n, cosine)
    x, y = lengths[0] * v, lengths[1] * w
    same, same_error = mean_and_error(x[:, 0] * y[:, 0])
    other, other_error = mean_and_error(x[:, 0] * y[:, 1])
    return [
        Number("Cov[x_i, y_i], n=6", same, cosine * lengths[0] * lengths[1] / n, error=same_error),
        Number("Cov[x_i, y_j]", other, 0.0, error=other_error),
    ]


def check_T6_40(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for cosine in (0.0, 0.5, 1.0):
        mean, error = mean_and_error(forms(rng, 10_000, 16, cosine))
        evidence.append(Number(f"E v'Cw at cosine {cosine}, n=16", mean, 0.0, error=error))
    return evidence


def check_T6_42(rng: np.random.Generator) -> list[Evidence]:
    n, count = 16, 15_000
    (v, other_v), (w, other_w) = (at_cosine(rng, 1, n, cosine) for cosine in (0.9, 0.95))
    mean_x, mean_y = (v[0] + other_v[0]) / 2, (w[0] + other_w[0]) / 2
    c = rng.standard_normal((count, n, n)) / np.sqrt(n)
    variance, error = variance_and_error(np.asarray((mean_x @ c) @ mean_y))
    each = float(independent_weights_variance(v[0], w[0], n))
    printed = sum((1 / 2) ** 2 * (1 / 2) ** 2 * each for _ in range(4))
    closed = float(independent_weights_variance(mean_x, mean_y, n))
    orthonormal = float(independent_weights_variance(np.array([0.5, 0.5]), np.array([0.5, 0.5]), n))
    return [
        Number("Var mu_X'C mu_Y, two alike vectors on each side, n=16", variance, printed, closed, error),
        Number("the same for orthonormal vectors", printed, None, orthonormal),
    ]


def check_T6_45(rng: np.random.Generator) -> list[Evidence]:
    n, cosine = 8, 0.6
    v, w = at_cosine(rng, 100_000, n, cosine)
    squares = np.square(v * w).sum(1)
    same, same_error = mean_and_error(squares - cosine**2 / n)
    other, other_error = mean_and_error((1 - squares) / (n * (n - 1)))  # all l, m but the equal ones; their mean is 0
    total = same_coordinate(n, cosine) + n * (n - 1) * other_coordinate(n, cosine) + cosine**2 / n
    return [
        Number("sum_l Var(v_l w_l), n=8, k=0.6", same, cosine**2, same_coordinate(n, cosine), same_error),
        Number("Var(v_l w_m)", other, 1 / n**2, other_coordinate(n, cosine), other_error),
        Number("sum of all E v_l^2 w_m^2, hence no angle in T6.47", total, None, 1.0),
    ]


def check_T6_47(rng: np.random.Generator) -> list[Evidence]:
    n = 20
    evidence: list[Evidence] = []
    for cosine in (0.5, 0.9, 1.0):
        v, w = in_plane(cosine)
        variance, error = variance_and_error(forms(rng, 12_000, n, cosine))
        printed = cosine**2 / n + (n - 1) / n**2
        closed = float(independent_weights_variance(v, w, n))
        evidence.append(Number(f"Var v'Cw at cosine {cosine}, n=20", variance, printed, closed, error))
    return evidence


def check_T6_48b(rng: np.random.Generator) -> list[Evidence]:
    n, count = 32, 20_000
    evidence: list[Evidence] = []
    for cosine in (0.0, 0.5, 0.9):
        v, w = in_plane(cosine)
        a, b = rng.standard_normal((2, count, n, 2)) / np.sqrt(n)
        g = rng.standard_normal((count, 2, 2)) / np.sqrt(n)
        symmetric = (g + np.swapaxes(g, 1, 2)) / np.sqrt(2)
        tied = ((a @ v) * (a @ w)).sum(1)
        at = f"at cosine {cosine}, n=32"
        apart, apart_error = variance_and_error(((a @ v) * (b @ w)).sum(1))
        mean, mean_error = mean_and_error(tied)
        variance, error = variance_and_error(tied)
        even, even_error = variance_and_error((symmetric @ w) @ v)
        evidence += [
            Number(f"Var<Av, Bw> {at}", apart, float(independent_weights_variance(v, w, n)), error=apart_error),
            Number(f"E<Av, Aw> {at}", mean, float(tied_weights_mean(v, w, n)), error=mean_error),
            Number(f"Var<Av, Aw> {at}", variance, float(tied_weights_variance(v, w, n)), error=error),
            Number(f"Var v'Cw, C symmetric, {at}", even, float(symmetric_weights_variance(v, w, n)), error=even_error),
        ]
    return evidence


def check_T6_48c(rng: np.random.Generator) -> list[Evidence]:
    n = int(rng.integers(16, 257))
    equal = float(brentq(lambda k: k**2 / n - (n - 1) / n**2, 0, 1, xtol=1e-14))
    above = np.linspace(1 / n, 1, 1001)[1:]
    ratio = above**2 / n / ((n - 1) / n**2)
    return [
        Number(f"cosine from which k^2/n is the larger term, n={n}", equal, 1 / n, float(np.sqrt(1 - 1 / n))),
        Fact(
            f"k^2/n is the larger term for every k > 1/n, n={n}",
            bool((ratio > 1).all()),
            detail=f"at k = 2/n it is {(2 / n) ** 2 * n / (n - 1):.2g} of the other",
        ),
        Fact("at most it is n/(n - 1) of the other", bool(ratio.max() <= n / (n - 1) + 1e-12), "corrected"),
    ]


def check_T6_49(rng: np.random.Generator) -> list[Evidence]:
    n, count = 16, 20_000
    w_q, w_k = rng.standard_normal((2, n, n)) / np.sqrt(n)
    x, y = rng.standard_normal((2, count, n))
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    cosines = np.abs((x * y).sum(1)) / lengths
    form = np.abs(((x @ w_q.T) * (y @ w_k.T)).sum(1))
    norms = float(np.linalg.norm(w_q, 2) * np.linalg.norm(w_k, 2))
    product = float(np.linalg.norm(w_q.T @ w_k, 2))
    broken = float((form > norms * lengths * cosines).mean())
    crossed = abs(float(w_q[:, 0] @ w_k[:, 1]))
    return [
        Fact("the bound with the cosine holds for random pairs", broken == 0, detail=f"broken by {broken:.1%} of them"),
        Fact("it holds for x = e_1, y = e_2, whose cosine is 0", crossed <= 0, detail=f"{crossed:.3g} is not <= 0"),
        Fact(
            "without the cosine it holds for all, already with |W_q'W_k|",
            bool((form <= product * lengths).all() and product <= norms),
            "corrected",
            f"at most {float((form / (norms * lengths)).max()):.3f} of it",
        ),
    ]


def check_T6_49b(rng: np.random.Generator) -> list[Evidence]:
    n, count = 160, 16
    w_q, w_k = rng.standard_normal((2, count, n, n)) / np.sqrt(n)
    products = np.linalg.norm(np.swapaxes(w_q, 1, 2) @ w_k, 2, axis=(1, 2))
    norms = np.linalg.norm(w_q, 2, axis=(1, 2)) * np.linalg.norm(w_k, 2, axis=(1, 2))
    mean, error = mean_and_error(products)
    return [
        Fact("|W_q'W_k| <= |W_q| |W_k|", bool((products <= norms + 1e-9).all())),
        Fact(
            "no product of Xavier matrices exceeds 4", bool((products < 4).all()), detail=f"most {products.max():.3f}"
        ),
        Number("|W_q'W_k|, n=160, and its limit", mean, None, float(np.sqrt(27 / 4)), error, tolerance=0.08),
    ]


def check_T6_49c(rng: np.random.Generator) -> list[Evidence]:
    n, count = 32, 10_000
    x, place_x, y, place_y = rng.standard_normal((4, n))
    w_q, w_k = rng.standard_normal((2, n, n)) / np.sqrt(n)
    parts = sum(float((w_q @ left) @ (w_k @ right)) for left in (x, place_x) for right in (y, place_y))
    evidence: list[Evidence] = [
        Number("the form as the sum of its four terms", float((w_q @ (x + place_x)) @ (w_k @ (y + place_y))), parts)
    ]
    for cosine in (0.0, 0.9):
        v, w = in_plane(cosine)
        a, b = rng.standard_normal((2, count, n, 2)) / np.sqrt(n)
        variance, error = variance_and_error(((a @ v) * (b @ w)).sum(1))
        closed = float(independent_weights_variance(v, w, n))
        printed = 0.0 if cosine == 0 else None  # the bound of T6.49 at cosine 0
        evidence.append(Number(f"variance of a term at cosine {cosine}, n=32", variance, printed, closed, error))
    tied, (v, w) = np.linalg.qr(rng.standard_normal((n, n)))[0], at_cosine(rng, 1, n, 0.0)
    aligned = float((tied @ v[0]) @ (tied @ w[0]))
    return [*evidence, Fact("where W_q'W_k = I the term at cosine 0 is 0", abs(aligned) < 1e-12, "corrected")]


def check_T6_4(rng: np.random.Generator) -> list[Evidence]:
    x, y = rng.standard_normal((2, 100_000))
    negative, negative_error = mean_and_error((x * y < 0).astype(np.float64))
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    second, fourth = (float(weights @ nodes**power / weights.sum()) for power in (2, 4))
    of_one = float(excess_kurtosis_of_product(np.ones(1)))
    chi_squared = float(chi2.stats(1, moments="k"))
    evidence: list[Evidence] = [
        Number("share of products x_i y_i below zero", negative, 0.0, 0.5, negative_error),
        Number("excess kurtosis of x_i y_i", fourth**2 / second**4 - 3, chi_squared, of_one),
    ]
    sizes, excess = (16, 64, 256), []
    for n in sizes:
        c = rng.standard_normal((n, n)).T @ rng.standard_normal((n, n)) / n
        excess.append(float(excess_kurtosis_of_product(np.linalg.svd(c, compute_uv=False))))
        spread = np.square(rng.standard_normal((4000, n)) @ c).sum(1)  # given x, x'Cy is N(0, |C'x|^2)
        relative = np.square(spread / spread.mean())
        kurtosis = 3 * float(relative.mean()) - 3
        error = 3 * float((relative - 2 * spread / spread.mean()).std() / np.sqrt(len(spread)))
        evidence.append(Number(f"excess kurtosis of x'Cy, n={n}", kurtosis, None, excess[-1], error))
    names = tuple(f"n={n}" for n in sizes)
    return [*evidence, Trend("excess kurtosis of x'Cy: normal in the limit", names, tuple(excess), 0.15)]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "T6.35",
        "Wertich",
        "(6.35)",
        "Mean and variance of a coordinate of a vector that is uniform on a sphere of radius l.",
        r"\mathbb{E}[x_i] = 0, \quad \operatorname{Var}(x_i) = \frac{l^2}{n}",
        check_T6_35,
    ),
    Entry(
        "T6.36",
        "Wertich",
        "(6.36)",
        "Two coordinates of a vector that is uniform on a sphere have a negative covariance.",
        r"\operatorname{Cov}[x_i, x_j] = -\frac{l^2}{n(n-1)}",
        check_T6_36,
        r"\operatorname{Cov}[x_i, x_j] = 0",
        "Turning the sign of one coordinate leaves the law as it is. The printed step takes the variance of the sum of "
        "the coordinates for zero; it is l^2.",
    ),
    Entry(
        "T6.37",
        "Wertich",
        "(6.37)-(6.38)",
        "For two vectors on spheres at cosine k the cross-covariance is a multiple of the identity.",
        r"\operatorname{Cov}[x_i, y_i] = \frac{k l_1 l_2}{n}, \quad \operatorname{Cov}[x_i, y_j] = 0",
        check_T6_37,
        remark="Exactly, not nearly as the text says.",
    ),
    Entry(
        "T6.40",
        "Wertich",
        "(6.39)-(6.41)",
        "Over a random matrix C of mean 0 the form has mean 0, whatever the angle.",
        r"\mathbb{E}[v_i^T C w_j] = 0",
        check_T6_40,
    ),
    Entry(
        "T6.42",
        "Wertich",
        "(6.42)",
        "The variance of the form of two weighted sums is the sum of the variances of its terms.",
        r"\operatorname{Var}(\mu_X^T C \mu_Y) \approx \sum_{i,j} \lambda_i^2 \tilde{\lambda}_j^2 "
        r"\operatorname{Var}(v_i^T C w_j)",
        check_T6_42,
        r"\operatorname{Var}(\mu_X^T C \mu_Y) = \frac{\|\mu_X\|^2 \|\mu_Y\|^2}{n}",
        "Terms of one C are correlated where the vectors of one side are alike, which is the case of interest; printed "
        "and corrected form are the same for orthonormal vectors on each side.",
    ),
    Entry(
        "T6.45",
        "Wertich",
        "(6.45)",
        "Variances of products of coordinates of two unit vectors at cosine k.",
        r"\sum_l \operatorname{Var}(v_l w_l) = k^2, \quad \operatorname{Var}(v_l w_m) = \frac{1}{n^2}",
        check_T6_45,
        r"\sum_l \operatorname{Var}(v_l w_l) = \frac{1 + 2k^2}{n+2} - \frac{k^2}{n}, \quad "
        r"\operatorname{Var}(v_l w_m) = \frac{n + 1 - 2k^2}{n(n-1)(n+2)}",
        "The first printed value is the squared mean of <v, w>, not a variance.",
    ),
    Entry(
        "T6.47",
        "Wertich",
        "(6.43)-(6.48)",
        "The variance of the form over random C keeps the angle between the vectors.",
        r"\operatorname{Var}(v^T C w) = \frac{k^2}{n} + \frac{n-1}{n^2}",
        check_T6_47,
        r"\operatorname{Var}(v^T C w) = \frac{\|v\|^2 \|w\|^2}{n}",
        "The same at every angle: random weights keep no angular information in the variance either.",
    ),
    Entry(
        "T6.48b",
        "Wertich",
        "§6.3.2, not printed",
        "Which random weights keep the angle: independent ones do not, tied and symmetric ones do.",
        r"\operatorname{Var}\langle Av, Bw \rangle = \frac{1}{n}, \quad \mathbb{E}\langle Av, Aw \rangle = k, \quad "
        r"\operatorname{Var}\langle Av, Aw \rangle = \operatorname{Var}(v^T C_s w) = \frac{1 + k^2}{n}",
        check_T6_48b,
        remark="An extension of T6.47 that the thesis does not have; unit vectors, entries of variance 1/n, "
        "C_s = (G + G')/sqrt 2.",
    ),
    Entry(
        "T6.48c",
        "Wertich",
        "§6.3.2, after (6.48)",
        "In the printed variance the term of the angle dominates as soon as the cosine exceeds 1/n.",
        r"\frac{k^2}{n} > \frac{n-1}{n^2} \quad \text{for} \quad k > \frac{1}{n}",
        check_T6_48c,
        r"\frac{k^2}{n} > \frac{n-1}{n^2} \quad \text{only for} \quad k > \sqrt{1 - \frac{1}{n}}",
        "Even with the printed formula, and that term is not there at all (T6.47).",
    ),
    Entry(
        "T6.49",
        "Wertich",
        "§6.3.3, statement",
        "The form is at most the product of the operator norms, the lengths and the cosine of x and y.",
        r"|\langle W_q x, W_k y \rangle| \le \|W_q\| \|W_k\| \|x\| \|y\| \, |\cos(x, y)|",
        check_T6_49,
        r"|\langle W_q x, W_k y \rangle| \le \|W_q^T W_k\| \|x\| \|y\| \le \|W_q\| \|W_k\| \|x\| \|y\|",
        "The matrices turn x and y: orthogonal vectors can have a large product.",
    ),
    Entry(
        "T6.49b",
        "Wertich",
        "(6.49)",
        "The operator norm is submultiplicative, and for Xavier matrices the product hardly exceeds 2 times 2.",
        r"\|W_q^T W_k\| \le \|W_q\| \|W_k\| \approx 2 \cdot 2",
        check_T6_49b,
        remark="For independent matrices the product tends to sqrt(27/4) = 2.598, well below 4.",
    ),
    Entry(
        "T6.49c",
        "Wertich",
        "§6.3.3, text",
        "Mixed terms of content and position are suppressed because the two are nearly orthogonal.",
        r"\langle \hat{x}, y \rangle \approx 0 \quad \text{makes} \quad \langle W_q \hat{x}, W_k y \rangle \quad "
        r"\text{small}",
        check_T6_49c,
        r"\operatorname{Var}\langle W_q \hat{x}, W_k y \rangle = \frac{\|\hat{x}\|^2 \|y\|^2}{n} \quad "
        r"\text{at every angle}",
        "The expansion into four terms is exact. Nothing suppresses two of them unless W_q'W_k is near a multiple of "
        "the identity.",
    ),
    Entry(
        "T6.4",
        "Wertich",
        "§6.4",
        "Products of coordinates and entries of C are chi-squared, so are their sums and products, and for many the "
        "form is normal.",
        r"x_i y_i \sim \chi^2, \quad x^T C y \to \mathcal{N}",
        check_T6_4,
        r"x_i y_i \sim \frac{K_0(|z|)}{\pi}, \quad \text{excess kurtosis of } x^T C y = "
        r"\frac{6 \sum_i s_i^4}{\left( \sum_i s_i^2 \right)^2} \approx \frac{18}{n}",
        "A product of independent normals is negative half of the time. That the form is nearly normal for large n is "
        "right (18/n for products of two Xavier matrices), for spectra that are not dominated by a few values. "
        "Indices: the sum is over C_ij x_i y_j with C_ij = sum_k A_ki B_kj.",
    ),
)
