"""Wertich §2.3 to §2.5: layer normalization, the attention matrix, and matrices of independent normal entries."""

import numpy as np
from jaxtyping import Float
from scipy.integrate import quad
from scipy.special import gammaln, softmax
from scipy.stats import kstest, norm

from armillary.papers.ledger.entry import (
    Entry,
    Evidence,
    Fact,
    Number,
    Trend,
    mean_and_error,
    variance_and_error,
)
from armillary.theory.random_matrix import MarchenkoPastur, quarter_circle_cdf, quarter_circle_mean

# Imports inside functions: statements are listed without torch.


def mean_length(n: int, spread: float) -> float:
    """E |v| = s sqrt 2 Gamma((n + 1)/2) / Gamma(n/2) for n normal entries of spread s; nearly s sqrt n."""
    return float(spread * np.sqrt(2) * np.exp(gammaln((n + 1) / 2) - gammaln(n / 2)))


def singular_values(n: int, repeats: int, spread: float, rng: np.random.Generator) -> Float[np.ndarray, "repeat n"]:
    """Singular values of random n x n matrices with normal entries, largest first."""
    return np.asarray(np.linalg.svd(spread * rng.standard_normal((repeats, n, n)), compute_uv=False))


def semicircle_cdf(x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """The share of the semicircle on [-2, 2] up to x."""
    return np.asarray((1 + np.sign(x) * quarter_circle_cdf(np.abs(x))) / 2)


def check_T2_3a(rng: np.random.Generator) -> list[Evidence]:
    import torch

    tokens = rng.exponential(size=(400, 32)) * np.geomspace(0.2, 5, 32)
    normalized = torch.nn.functional.layer_norm(torch.from_numpy(tokens), (32,), eps=0.0).numpy()
    sizes, distances = (400, 4000, 40_000), []
    for n in sizes:
        column = rng.exponential(size=n)
        distances.append(float(kstest((column - column.mean()) / column.std(), norm.cdf).statistic))
    # The exponential law less its mean starts at -1, where the normal one has already risen to this.
    own = float(norm.cdf(-1))
    return [
        Number(
            "variance of the last feature over tokens, after torch's layer_norm", float(normalized[:, -1].var()), 1.0
        ),
        Number("largest mean of a token over its features", float(np.abs(normalized.mean(1)).max()), corrected=0.0),
        Number("|x|^2/d of the first token", float(np.square(normalized[0]).mean()), corrected=1.0),
        Trend(
            "largest distance of a standardized exponential feature's law from the normal law",
            tuple(f"n = {n}" for n in sizes),
            tuple(distances),
            bound=0.05,
        ),
        Number("the same at n = 40,000", distances[-1], corrected=own, tolerance=0.02),
    ]


def check_T2_4a(rng: np.random.Generator) -> list[Evidence]:
    import torch

    n, e = 64, 16
    q, k = np.sqrt(5) * rng.standard_normal((2, n, e))
    # With the identity for values, what comes out is the attention matrix itself.
    queries, keys, values = (torch.from_numpy(x)[None] for x in (q, k, np.eye(n)))
    attention = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)[0].numpy()
    once = softmax(q @ k.T / np.sqrt(e), axis=1)
    twice = softmax(once, axis=1)
    ceiling = float(np.e / (np.e + n - 1))
    return [
        Number("largest attention, 64 tokens, by torch", float(attention.max()), float(twice.max()), float(once.max())),
        Number("softmax once less torch's, largest", float(np.abs(attention - once).max()), corrected=0.0),
        Fact(
            "softmax twice never exceeds e/(e + n - 1)",
            bool(twice.max() <= ceiling),
            "corrected",
            f"{twice.max():.4f} and {ceiling:.4f}",
        ),
    ]


def check_T2_4b(rng: np.random.Generator) -> list[Evidence]:
    q, k, v = rng.standard_normal((3, 12, 8))
    a = softmax(q @ k.T / np.sqrt(8), axis=1)
    summed = np.stack([sum((a[i, j] * v[j] for j in range(12)), np.zeros(8)) for i in range(12)])
    return [
        Number("largest |row sum - 1|", float(np.abs(a.sum(1) - 1).max()), 0.0),
        Number("AV less the sums of a_ij V_j, largest", float(np.abs(a @ v - summed).max()), 0.0),
    ]


def check_T2_4c(rng: np.random.Generator) -> list[Evidence]:
    d = 64
    q, k = rng.standard_normal((2, 20_000, d))
    length, length_error = mean_and_error(np.linalg.norm(q, axis=1))
    square, square_error = mean_and_error(np.square(q).sum(1))
    variance, variance_error = variance_and_error((q * k).sum(1))
    root = float(np.sqrt(d))
    return [
        Number(
            "square root of the mean length of v, d_k = 64",
            float(np.sqrt(length)),
            root,
            float(np.sqrt(mean_length(d, 1.0))),
            length_error / (2 * float(np.sqrt(length))),
        ),
        Number("root of the mean squared length", float(np.sqrt(square)), None, root, square_error / (2 * root)),
        Number("spread of q.k", float(np.sqrt(variance)), None, root, variance_error / (2 * root)),
    ]


def check_T2_5a(rng: np.random.Generator) -> list[Evidence]:
    a = rng.standard_normal((50, 50))
    values, vectors = np.linalg.eig(a)
    rebuilt = vectors @ np.diag(values) @ np.linalg.inv(vectors)
    singular = np.linalg.svd(a, compute_uv=False)
    size = float(np.linalg.norm(a))
    gap = float(-np.diff(singular).max())
    return [
        Number("distance of A from every U L U', over |A|", float(np.linalg.norm(a - a.T)) / 2 / size, 0.0),
        Number("distance of A from P L P^-1, over |A|", float(np.linalg.norm(a - rebuilt)) / size, corrected=0.0),
        Fact(
            "full rank and distinct singular values",
            gap > 0 and float(singular[-1]) > 1e-9,
            detail=f"least {singular[-1]:.1e}, least gap {gap:.1e}",
        ),
    ]


def check_T2_5b(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for n, spread, repeats in ((32, 0.5, 2000), (32, 1.0, 2000), (96, 0.3, 400)):
        v = rng.standard_normal(n)
        v /= np.linalg.norm(v)
        lengths = np.linalg.norm(spread * rng.standard_normal((repeats, n, n)) @ v, axis=1)
        mean, error = mean_and_error(lengths)
        square, square_error = mean_and_error(lengths**2)
        where = f"n = {n}, sigma = {spread}"
        evidence.append(Number(f"E |Av|, {where}", mean, n * spread**2, mean_length(n, spread), error))
        evidence.append(Number(f"E |Av|^2, {where}", square, corrected=n * spread**2, error=square_error))
    return evidence


def check_T2_5c(rng: np.random.Generator) -> list[Evidence]:
    n, spread = 100, 1.5
    squared = singular_values(n, 40, spread, rng) ** 2
    law = MarchenkoPastur(1, spread**2)  # of the squared singular values over n
    inside, inside_error = mean_and_error((squared <= 4 * spread**2).mean(1))
    middle, middle_error = mean_and_error(np.median(squared, axis=1))
    rate = 1 / n  # how far a law of n values is from its limit
    return [
        Number(
            "share of squared singular values up to 4 s^2, n = 100",
            inside,
            1.0,
            float(law.cdf(4 * spread**2 / n)),
            inside_error,
            tolerance=rate,
        ),
        Number("their median", middle, law.median, n * law.median, middle_error, tolerance=4 * rate * middle),
    ]


def check_T2_5d(rng: np.random.Generator) -> list[Evidence]:
    n = 100
    squared = singular_values(n, 40, 1 / np.sqrt(n), rng) ** 2
    law = MarchenkoPastur(1, 1.0)

    def printed_moment(power: int) -> float:
        # x = 4 sin^2(t)/n takes the root out of the integral
        def integrand(t: float) -> float:
            x = 4 * np.sin(t) ** 2 / n
            density = n / (2 * np.pi * x) * np.sqrt(max(4 * x / n - x**2, 0.0))
            return float(x**power * density * 8 * np.sin(t) * np.cos(t) / n)

        return float(quad(integrand, 0, np.pi / 2)[0])

    def law_moment(power: int) -> float:
        return float(quad(lambda x: x**power * float(law.density(x)), 0, 4)[0])

    evidence: list[Evidence] = []
    for power in (1, 2, 3):
        moment, error = mean_and_error((squared**power).mean(1))
        label = f"moment {power} of the squared singular values, n = {n}, sigma^2 = 1/n"
        # Moments are off by about p (p - 1)/n, relatively, at finite n.
        slack = power * (power - 1) * moment / n + 1e-6
        evidence.append(Number(label, moment, printed_moment(power), law_moment(power), error, tolerance=slack))
    inside, inside_error = mean_and_error((squared <= 4 / n).mean(1))
    corrected = float(law.cdf(4 / n))
    evidence.append(Number("share of them up to 4/n", inside, 1.0, corrected, inside_error, tolerance=1 / n))
    return evidence


def check_T2_5e(rng: np.random.Generator) -> list[Evidence]:
    n, repeats = 100, 40
    a = rng.standard_normal((repeats, n, n)) / np.sqrt(n)
    symmetric = (a + a.swapaxes(1, 2)) / np.sqrt(2)
    eigenvalues = np.linalg.eigvalsh(symmetric)
    singular = np.linalg.svd(symmetric, compute_uv=False)
    mean, error = mean_and_error(singular.mean(1))
    of_eigenvalues = float(kstest(eigenvalues.ravel(), semicircle_cdf).statistic)
    of_singular = float(kstest(singular.ravel(), quarter_circle_cdf).statistic)
    against = float(kstest(singular.ravel(), semicircle_cdf).statistic)
    return [
        Number("mean singular value, n = 100, sigma^2 = 1/n", mean, 0.0, quarter_circle_mean(), error, tolerance=1 / n),
        Number("distance of singular values from the semicircle law", against, 0.0, tolerance=0.02),
        Number("distance of singular values from the quarter circle", of_singular, corrected=0.0, tolerance=0.02),
        Number("distance of eigenvalues from the semicircle law", of_eigenvalues, corrected=0.0, tolerance=0.02),
    ]


def check_T2_5f(rng: np.random.Generator) -> list[Evidence]:
    # Why c = sqrt(pi): neighbors repel, so that a share pi^2 u^2/12 of gaps is below u mean gaps. Over the quarter
    # circle n^2 x^2/(4 s^2) gaps are below x, nearly independent: with probability exp(-n^2 x^2/(4 s^2)) none is.
    c, sizes, off = float(np.sqrt(np.pi)), ((2, 4000), (8, 4000), (32, 3000)), []
    for n, repeats in sizes:
        values = singular_values(n, repeats, 1.0, rng)
        off.append(abs(float((values[:, :-1] - values[:, 1:]).min(1).mean()) * n / c - 1))
    sample = rng.standard_normal((16, 16))
    gaps = [float(-np.diff(np.linalg.svd(scale * sample, compute_uv=False)).max()) for scale in (1.0, 3.0)]
    return [
        Number("least gap of 3 A over that of A", gaps[1] / gaps[0], 3.0),
        Trend(
            "|n E[least gap] / (sqrt(pi) sigma) - 1|",
            tuple(f"n = {n}" for n, _ in sizes),
            tuple(off),
            bound=0.06,
        ),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="T2.3a",
        paper="Wertich",
        place="§2.3",
        statement="Layer normalization standardizes every feature over the tokens, whose law becomes standard normal "
        "as the sequence grows.",
        printed=r"\text{features: mean } 0, \text{ variance } 1; \quad X_i \to N(0, 1) \text{ as } n \to \infty",
        corrected=r"x \mapsto \frac{x - \operatorname{mean}_k x_k}{\operatorname{std}_k x_k},"
        r" \quad \|LN(x)\|_2 = \sqrt{d}",
        remark="It acts on each token, over its features. Standardizing a feature moves and scales its law and does "
        "not change its shape: the central limit theorem is about sums.",
        check=check_T2_3a,
    ),
    Entry(
        id="T2.4a",
        paper="Wertich",
        place="§2.4",
        statement="Raw attention is a softmax, and attention the softmax of that.",
        printed=r"\hat A = \operatorname{Softmax}\left(\frac{Q K^T}{\sqrt{d_k}}\right), \quad"
        r" A = \operatorname{Softmax}(\hat A)",
        corrected=r"\hat A = \frac{Q K^T}{\sqrt{d_k}}, \quad A = \operatorname{Softmax}(\hat A)",
        remark="Twice, no token could get more than e/(e + n - 1).",
        check=check_T2_4a,
    ),
    Entry(
        id="T2.4b",
        paper="Wertich",
        place="§2.4",
        statement="Rows of attention sum to 1, and outputs are sums of values weighted by them.",
        printed=r"\sum_j a_{ij} = 1, \quad Z_i = \sum_j a_{ij} V_j",
        check=check_T2_4b,
    ),
    Entry(
        id="T2.4c",
        paper="Wertich",
        place="§2.4",
        statement="The factor sqrt(d_k) is the square root of the expected length of a standard normal vector.",
        printed=r"\sqrt{d_k} = \sqrt{E\|v\|_2}, \quad v \sim N(0, I_{d_k})",
        corrected=r"\sqrt{d_k} = \sqrt{E\|v\|_2^2} = \operatorname{std}(q \cdot k) \approx E\|v\|_2",
        remark="The length itself is about sqrt(d_k), and so is the spread of the product of two such vectors.",
        check=check_T2_4c,
    ),
    Entry(
        id="T2.5a",
        paper="Wertich",
        place="§2.5",
        statement="A random square matrix is U L U^T; it has full rank and distinct singular values.",
        printed=r"A = U \Lambda U^T",
        corrected=r"A = P \Lambda P^{-1} \text{ over the complex numbers}",
        remark="U L U^T is symmetric and A is not. The second half holds almost surely.",
        check=check_T2_5a,
    ),
    Entry(
        id="T2.5b",
        paper="Wertich",
        place="§2.5",
        statement="The expected length of a random matrix times a unit vector.",
        printed=r"E\|A v\|_2 = n \sigma^2",
        corrected=r"E\|A v\|_2^2 = n \sigma^2, \quad E\|A v\|_2 = \sigma \sqrt{2} \frac{\Gamma((n+1)/2)}{\Gamma(n/2)}"
        r" \approx \sigma \sqrt{n}",
        remark="Both are about 1 where sigma^2 = 1/n, the case that the paper uses.",
        check=check_T2_5b,
    ),
    Entry(
        id="T2.5c",
        paper="Wertich",
        place="§2.5",
        statement="The limit law of the squared singular values of an n x n matrix with entries of variance sigma^2.",
        printed=r"f(x) = \frac{1}{2\pi\sigma^2 x} \sqrt{4\sigma^2 x - x^2}, \quad 0 \le x \le 4\sigma^2",
        corrected=r"f(x) = \frac{1}{2\pi n\sigma^2 x} \sqrt{4 n\sigma^2 x - x^2}, \quad 0 \le x \le 4 n\sigma^2",
        remark="The printed law is that of the squared singular values over n.",
        check=check_T2_5c,
    ),
    Entry(
        id="T2.5d",
        paper="Wertich",
        place="§2.5",
        statement="The same law for sigma^2 = 1/n.",
        printed=r"f(x) = \frac{n}{2\pi x} \sqrt{\frac{4x}{n} - x^2}, \quad 0 \le x \le \frac{4}{n}",
        corrected=r"f(x) = \frac{1}{2\pi x} \sqrt{4x - x^2}, \quad 0 \le x \le 4",
        remark="Its moments are 1, 2, 5, 14, the Catalan numbers.",
        check=check_T2_5d,
    ),
    Entry(
        id="T2.5e",
        paper="Wertich",
        place="§2.5",
        statement="Singular values of a symmetric random matrix follow the semicircle.",
        printed=r"\sigma_i(A) \sim \text{semicircle}",
        corrected=r"\lambda_i(A) \sim \text{semicircle on } [-2\sigma\sqrt{n}, 2\sigma\sqrt{n}], \quad"
        r" \sigma_i(A) = |\lambda_i(A)| \sim \text{quarter circle}",
        remark="Eigenvalues do; singular values are never negative.",
        check=check_T2_5e,
    ),
    Entry(
        id="T2.5f",
        paper="Wertich",
        place="§2.5",
        statement="The least gap between singular values is proportional to sigma/n, on average.",
        printed=r"E[\min_i(\sigma_i - \sigma_{i-1})] \approx c \frac{\sigma}{n}",
        corrected=r"E[\min_i(\sigma_i - \sigma_{i+1})] \to \sqrt{\pi}\, \frac{\sigma}{n}",
        remark="In sigma it is exact, in n a limit, and c = sqrt(pi) = 1.772: 40 % off at "
        "n = 2, within the 2 % that sampling resolves from n = 8 on. In falling order the sign is the other.",
        check=check_T2_5f,
    ),
)
