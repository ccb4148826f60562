"""Wertich, §5.3: ratios of attention at normal logits, and the nonlinearity of exp."""

from fractions import Fraction
from math import factorial

import numpy as np
from jaxtyping import Float
from scipy.special import softmax as probabilities
from scipy.stats import pearsonr

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend, mean_and_error, variance_and_error
from armillary.papers.ledger.wertich_softmax import (
    directions,
    exponential_mean_series,
    exponential_variance_series,
    normal_average,
)
from armillary.theory import softmax
from armillary.theory.bilinear import excess_kurtosis_of_product


def ratios_at_normal_logits(
    rng: np.random.Generator, draws: int
) -> tuple[Float[np.ndarray, "draws"], tuple[float, float, float, float, float]]:
    """Ratios of two entries of softmax at correlated normal logits, and of these logits both means, both variances
    and the covariance.
    """
    mean = np.array([0.6, -0.4, -0.3, 0.2])
    root = 0.35 * np.eye(4) + 0.1 * rng.uniform(-1, 1, (4, 4))
    cov = root @ root.T
    p = probabilities(mean + rng.normal(size=(draws, 4)) @ root.T, -1)
    moments = float(mean[0]), float(mean[1]), float(cov[0, 0]), float(cov[1, 1]), float(cov[0, 1])
    return p[:, 0] / p[:, 1], moments


def pair_products(x: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch"]:
    """sum_{i<j} x_i x_j."""
    return np.asarray((x.sum(-1) ** 2 - np.square(x).sum(-1)) / 2)


def cross_term_variance(weights: Float[np.ndarray, "n"], variance: float) -> float:
    """Var of sum_{i<j} l_i l_j x_i x_j = s^4 sum_{i<j} l_i^2 l_j^2, x_i independent N(0, s^2) (entry T5.3.2e)."""
    return float(variance**2 * pair_products(weights**2))


def two_halves(n: int) -> Float[np.ndarray, "n"]:
    """The weights (1/2, 1/2, 0, ..., 0)."""
    return np.where(np.arange(n) < 2, 0.5, 0.0)


# §5.3.1: ratios


def check_T5_20(rng: np.random.Generator) -> list[Evidence]:
    ratios, (mean_i, mean_j, variance_i, variance_j, covariance) = ratios_at_normal_logits(rng, 200_000)
    measured, error = mean_and_error(ratios)
    printed = float(np.exp((mean_i - mean_j + variance_i + variance_j - 2 * covariance) / 2))
    corrected = float(softmax.ratio_mean(mean_i, mean_j, variance_i, variance_j, covariance))
    return [Number("E[p_i / p_j]", measured, printed, corrected, error)]


def check_T5_21(rng: np.random.Generator) -> list[Evidence]:
    ratios, moments = ratios_at_normal_logits(rng, 400_000)
    measured, error = variance_and_error(ratios)
    return [Number("Var(p_i / p_j)", measured, printed=float(softmax.ratio_variance(*moments)), error=error)]


def check_T5_3_1a(rng: np.random.Generator) -> list[Evidence]:
    n, length = 64, 4.0
    v = length * rng.normal(size=(8000, n)) / np.sqrt(n)
    ratios = np.exp(v[:, ::2] - v[:, 1::2]).ravel()
    share, printed, corrected = variance_and_error(v.ravel()), length / n, length**2 / n
    (mean, mean_error), (variance, variance_error) = mean_and_error(ratios), variance_and_error(ratios)
    given = (0.0, 0.0, corrected, corrected, 0.0)
    return [
        Number(f"variance of an entry, n = {n}, l = {length:g}", share[0], printed, corrected, share[1]),
        Number("E[p_i / p_j]", mean, float(np.exp(printed)), float(softmax.ratio_mean(*given)), mean_error),
        Number(
            "Var(p_i / p_j)",
            variance,
            float(np.expm1(2 * printed) * np.exp(2 * printed)),
            float(softmax.ratio_variance(*given)),
            variance_error,
        ),
    ]


def check_T5_3_1b(rng: np.random.Generator) -> list[Evidence]:
    # The difference of two logits of variance x has variance 2x.
    mean, variance = exponential_mean_series(1, 2), exponential_variance_series(2)
    evidence: list[Evidence] = []
    for name, series, printed in (("E", mean, (1.0, 1.0, 1 / 2)), ("Var", variance, (0.0, 2.0, 6.0))):
        for power in range(3):
            measured = float(series[power] * 2**power)
            evidence.append(Number(f"coefficient of x^{power} in {name}(p_i / p_j)", measured, printed[power]))
    return evidence


def check_T5_3_1c(rng: np.random.Generator) -> list[Evidence]:
    x = rng.normal(size=(1000, 2)) @ np.array([[0.6, 0.3], [0.0, 0.7]])
    correlation = float(pearsonr(*x.T).statistic)
    one, two = x.std(0, ddof=1).tolist()
    return [
        Number(
            "covariance of 1000 pairs, from their correlation and deviations",
            float(np.cov(x.T)[0, 1]),
            printed=correlation / (one * two),
            corrected=correlation * one * two,
        )
    ]


# §5.3.2: how linear exp is


def check_T5_3_2a(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for numerator in rng.choice(np.arange(1, 20), 3, replace=False).tolist():
        weight = Fraction(numerator, 20)
        exact = [weight**k / factorial(k) for k in range(4)]
        printed = [weight / factorial(k) for k in range(4)]
        printed[0] += 1 - weight
        printed[2] += (weight**2 - weight) / 2
        for power in range(3):
            what = f"coefficient of v^{power} in exp(lambda v), lambda = {weight}"
            evidence.append(Number(what, float(exact[power]), float(printed[power])))
        left = exact[3] - printed[3]
        third = weight * (weight**2 - 1) / 6
        evidence.append(Number("coefficient of v^3 in what it leaves out", float(left), corrected=float(third)))
    return evidence


def check_T5_3_2b(rng: np.random.Generator) -> list[Evidence]:
    n = 5
    weights, v = rng.dirichlet(np.ones(n), 400), rng.normal(size=(400, n))

    def missed(scale: float, constant: int) -> float:
        x = scale * weights * v
        return float(np.abs(np.exp(x.sum(-1)) - constant - np.exp(x).sum(-1) - pair_products(x)).mean())

    at_zero = float(np.exp(np.zeros(n)).sum())
    orders = np.log10(missed(0.03, 1 - n) / missed(0.003, 1 - n))
    return [
        Number(
            "exp of the sum, n = 5, every v_i = 0", float(np.exp(np.zeros(n).sum())), n - 1 + at_zero, 1 - n + at_zero
        ),
        Number("mean error with n - 1, v_i of size 0.003", missed(0.003, n - 1), printed=0.0, tolerance=1e-3),
        Number("mean error with 1 - n there", missed(0.003, 1 - n), corrected=0.0, tolerance=1e-6),
        Number("power of |v| with which the latter falls", float(orders), corrected=3.0, tolerance=0.1),
    ]


def check_T5_3_2c(rng: np.random.Generator) -> list[Evidence]:
    one, two = rng.uniform(0.5, 1.5, 2).tolist()
    products = one * rng.normal(size=400_000) * two * rng.normal(size=400_000)
    (mean, mean_error), (variance, variance_error) = mean_and_error(products), variance_and_error(products)
    second = [normal_average(lambda x: x**2, 0.0, s**2) for s in (one, two)]
    fourth = [normal_average(lambda x: x**4, 0.0, s**2) for s in (one, two)]
    return [
        Number("E[v_i v_j]", mean, printed=0.0, error=mean_error),
        Number("Var(v_i v_j)", variance, printed=one**2 * two**2, error=variance_error),
        Number(
            "excess kurtosis of v_i v_j",
            float(np.prod(fourth) / np.prod(second) ** 2 - 3),
            corrected=float(excess_kurtosis_of_product(np.array([one * two]))),
        ),
        Fact("v_i v_j is also negative, as no chi-squared variable is", bool((products < 0).any()), "corrected"),
    ]


def check_T5_3_2d(rng: np.random.Generator) -> list[Evidence]:
    n = 10
    bound = n * (n - 1) / 2 / n**4
    concentrations = np.geomspace(0.02, 2, 10)
    draws = np.concatenate([rng.dirichlet(np.full(n, c), 5000) for c in concentrations])
    sums = pair_products(draws**2)
    equal = np.array([pair_products(np.where(np.arange(n) < k, 1 / k, 0.0) ** 2) for k in range(1, n + 1)])
    return [
        Number("sum of (l_i l_j)^2 at weights (1/2, 1/2, 0, ...), n = 10", float(equal[1]), corrected=1 / 16),
        Number("its largest value at k equal weights", float(equal.max()), printed=bound, corrected=1 / 16),
        Number("its value at n equal weights", float(equal[-1]), corrected=bound),
        Fact("no weights exceed the printed bound", bool(sums.max() <= bound), detail=f"a draw has {sums.max():.4f}"),
        Fact("no weights l_i >= 0 exceed 1/16", bool(sums.max() <= 1 / 16 + 1e-12), "corrected", f"{len(sums)} draws"),
    ]


def check_T5_3_2e(rng: np.random.Generator) -> list[Evidence]:
    n, length = 12, 1.0
    share = length / n
    printed = (n**2 - n) / n**4 * 2 * length**2 / n**2
    x = np.sqrt(share) * rng.normal(size=(200_000, n))
    evidence: list[Evidence] = []
    for name, weights in (("uniform weights", np.full(n, 1 / n)), ("weights (1/2, 1/2, 0, ...)", two_halves(n))):
        variance, error = variance_and_error(pair_products(weights * x))
        closed = cross_term_variance(weights, share)
        what = f"variance of the cross term, {name}, n = {n}, l = 1"
        evidence.append(Number(what, variance, printed, closed, error, tolerance=1e-12))
    uniform = cross_term_variance(np.full(n, 1 / n), share)
    what = "the closed form at uniform weights, as (n - 1) l^2 / (2 n^5)"
    return [*evidence, Number(what, uniform, corrected=(n - 1) * length**2 / (2 * n**5), tolerance=1e-15)]


def check_T5_3_2f(rng: np.random.Generator) -> list[Evidence]:
    n, k = 64, 8
    errors, offsets = [], []
    lengths = (5.0, 2.0, 1.0, 0.5, 0.1)
    for length in lengths:
        x = rng.dirichlet(np.ones(k), 400)[..., None] * length * directions(rng, 400, k, n)
        whole = np.exp(x.sum(1))
        off = whole - np.exp(x).sum(1)
        errors.append(float(off.std() / whole.std()))
        offsets.append(float(off.mean()))
    what = "deviation of exp(sum) - sum of exp from a constant, share of the deviation of exp(sum); n = 64, 8 vectors"
    return [
        Trend(what, tuple(f"l = {length:g}" for length in lengths), tuple(errors), bound=0.01),
        Number("the constant, l = 0.1", offsets[-1], corrected=float(1 - k), tolerance=1e-3),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "T5.20",
        "Wertich",
        "(5.20)",
        "The mean ratio of two attention probabilities at jointly normal logits.",
        r"\mathbb{E}\left[\frac{p_i}{p_j}\right] = "
        r"\exp\left(\frac{\mu_i - \mu_j + \sigma_i^2 + \sigma_j^2 - 2\sigma_{ij}}{2}\right)",
        check_T5_20,
        corrected=r"\mathbb{E}\left[\frac{p_i}{p_j}\right] = "
        r"\exp\left(\mu_i - \mu_j + \frac{\sigma_i^2 + \sigma_j^2 - 2\sigma_{ij}}{2}\right)",
        remark="The slip of T5.1a: the means are halved. The two agree where the means are equal.",
    ),
    Entry(
        "T5.21",
        "Wertich",
        "(5.21)",
        "The variance of that ratio.",
        r"\operatorname{Var}\left(\frac{p_i}{p_j}\right) = (\exp(\sigma_i^2 + \sigma_j^2 - 2\sigma_{ij}) - 1) "
        r"\exp(2(\mu_i - \mu_j) + \sigma_i^2 + \sigma_j^2 - 2\sigma_{ij})",
        check_T5_21,
    ),
    Entry(
        "T5.3.1a",
        "Wertich",
        "§5.3.1",
        "A vector with entries of variance 1/n, multiplied by l, has entries of variance l/n, and the moments of the "
        "ratio follow.",
        r"\sigma_i^2 = \frac{l}{n}, \quad \mathbb{E}\left[\frac{p_i}{p_j}\right] = \exp\left(\frac{l}{n}\right), "
        r"\quad \operatorname{Var}\left(\frac{p_i}{p_j}\right) = "
        r"\left(\exp\left(\frac{2l}{n}\right) - 1\right) \exp\left(\frac{2l}{n}\right)",
        check_T5_3_1a,
        corrected=r"\sigma_i^2 = \frac{l^2}{n}, \quad \mathbb{E}\left[\frac{p_i}{p_j}\right] = "
        r"\exp\left(\frac{l^2}{n}\right), \quad \operatorname{Var}\left(\frac{p_i}{p_j}\right) = "
        r"\left(\exp\left(\frac{2l^2}{n}\right) - 1\right) \exp\left(\frac{2l^2}{n}\right)",
        remark="The printed forms hold with l^2 for l, and as they are at l = 1.",
    ),
    Entry(
        "T5.3.1b",
        "Wertich",
        "§5.3.1",
        "The Taylor polynomials of order 2 of these moments, in the variance x of a logit.",
        r"\mathbb{E}\left[\frac{p_i}{p_j}\right] \approx 1 + x + \frac{x^2}{2}, \quad "
        r"\operatorname{Var}\left(\frac{p_i}{p_j}\right) \approx 2x + 6x^2, \quad x = \frac{l}{n}",
        check_T5_3_1b,
        remark="As Taylor polynomials in x; x itself should be l^2 / n (T5.3.1a).",
    ),
    Entry(
        "T5.3.1c",
        "Wertich",
        "§5.3.1",
        "The covariance from Pearson's correlation and the two deviations.",
        r"\sigma_{ij} = \frac{\rho}{\sigma_i \sigma_j}",
        check_T5_3_1c,
        corrected=r"\sigma_{ij} = \rho \sigma_i \sigma_j",
    ),
    Entry(
        "T5.3.2a",
        "Wertich",
        "§5.3.2",
        "The exponential of a multiple, to second order, by the exponential itself.",
        r"\exp(\lambda_i v_i) \approx \lambda_i \exp(v_i) + 1 - \lambda_i + (\lambda_i^2 - \lambda_i) \frac{v_i^2}{2}",
        check_T5_3_2a,
        remark="The first term that it leaves out is lambda (lambda^2 - 1) v^3 / 6.",
    ),
    Entry(
        "T5.3.2b",
        "Wertich",
        "§5.3.2",
        "The exponential of a sum, to second order, by the sum of the exponentials.",
        r"\exp\left(\sum_{i=1}^n \lambda_i v_i\right) \approx (n - 1) + \sum_{i=1}^n \exp(\lambda_i v_i) + "
        r"\sum_{i<j} \lambda_i \lambda_j v_i v_j",
        check_T5_3_2b,
        corrected=r"\exp\left(\sum_{i=1}^n \lambda_i v_i\right) = -(n - 1) + \sum_{i=1}^n \exp(\lambda_i v_i) + "
        r"\sum_{i<j} \lambda_i \lambda_j v_i v_j + O(|v|^3)",
        remark="At v = 0 the left side is 1 and the printed right side 2n - 1: the sign of the shift is wrong.",
    ),
    Entry(
        "T5.3.2c",
        "Wertich",
        "§5.3.2",
        "The product of two independent normal variables of mean 0 has mean 0 and the product of the variances.",
        r"\mathbb{E}[v_i v_j] = 0, \quad \operatorname{Var}(v_i v_j) = \sigma_i^2 \sigma_j^2",
        check_T5_3_2c,
        remark="The text derives it from a chi-squared law; the product of two different normal variables has none: it "
        "is symmetric, with an excess kurtosis of 6. The moments are right all the same.",
    ),
    Entry(
        "T5.3.2d",
        "Wertich",
        "§5.3.2",
        "Of weights that sum to 1, equal ones make the sum of squared pair products largest.",
        r"\sum_{i<j} (\lambda_i \lambda_j)^2 \le \sum_{i<j} \left(\frac{1}{n^2}\right)^2",
        check_T5_3_2d,
        corrected=r"\sum_{i<j} (\lambda_i \lambda_j)^2 \le \frac{1}{16}, \quad \lambda_i \ge 0",
        remark="Two weights 1/2 reach 1/16; equal weights are the largest only for n = 2. The corrected bound needs "
        "weights that are not negative: (t, 1 - t) has no bound as t grows.",
    ),
    Entry(
        "T5.3.2e",
        "Wertich",
        "§5.3.2",
        "The variance of the cross term is largest at equal weights, and about this there: of the order l^2 / n^4.",
        r"\operatorname{Var}\left(\sum_{i<j} \lambda_i \lambda_j v_i v_j\right) \le "
        r"\operatorname{Var}\left(\sum_{i<j} \frac{1}{n^2} v_i v_j\right) \approx "
        r"(n^2 - n) \frac{1}{n^4} \frac{2l^2}{n^2}",
        check_T5_3_2e,
        corrected=r"\operatorname{Var}\left(\sum_{i<j} \lambda_i \lambda_j v_i v_j\right) = "
        r"\sigma^4 \sum_{i<j} \lambda_i^2 \lambda_j^2 \le \frac{\sigma^4}{16}, \quad "
        r"\text{at equal weights } \frac{(n - 1) \sigma^4}{2 n^3}",
        remark="With the paper's sigma^2 = l/n it is four times too large at equal weights (n (n - 1) pairs for half "
        "as many, 2 l^2 / n^2 for l^2 / n^2), and no bound: two weights 1/2 exceed it. sigma^2 should be l^2 / n "
        "(T5.3.1a).",
    ),
    Entry(
        "T5.3.2f",
        "Wertich",
        "§5.3.2",
        "For vectors on a sphere of radius at most 1, the exponential of a linear combination is the sum of the "
        "exponentials of its terms up to a constant.",
        r"\exp\left(\sum_i \lambda_i v_i\right) \approx \sum_i \exp(\lambda_i v_i) + \text{const}, \quad l \le 1",
        check_T5_3_2f,
        corrected=r"\exp\left(\sum_{i=1}^k \lambda_i v_i\right) \approx \sum_{i=1}^k \exp(\lambda_i v_i) - (k - 1), "
        r"\quad l^2 \ll n",
        remark="There the exponential is linear itself to first order, exp(x) = 1 + x; and the sum of "
        "exp(lambda_i v_i) is no linear combination of the exp(v_i).",
    ),
)
