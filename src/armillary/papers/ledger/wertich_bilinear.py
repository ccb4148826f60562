"""Wertich §6.1 to §6.2: the form <Ax, By> = x'Cy, C = A'B, for Gaussian x and y, and its trace for random A and B."""

from dataclasses import dataclass, replace
from math import gamma

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigvalsh_tridiagonal

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend, mean_and_error, variance_and_error
from armillary.theory.bilinear import bilinear_mean, bilinear_variance, self_pair_mean, self_pair_variance
from armillary.theory.random_matrix import alignment_z, largest_mean, quarter_circle_mean

Matrix = Float[np.ndarray, "n n"]
Vector = Float[np.ndarray, "n"]
Samples = Float[np.ndarray, "count"]


@dataclass(frozen=True)
class GaussianPair:
    """The joint law of x and y, and the matrix of the form."""

    c: Matrix
    mean_x: Vector
    mean_y: Vector
    cov_x: Matrix
    cov_y: Matrix
    cov_yx: Matrix

    def forms(self, rng: np.random.Generator, count: int) -> Samples:
        """x'Cy at random draws of (x, y)."""
        n = len(self.c)
        joint = np.block([[self.cov_x, self.cov_yx.T], [self.cov_yx, self.cov_y]])
        draws = rng.standard_normal((count, 2 * n)) @ np.linalg.cholesky(joint).T
        x, y = draws[:, :n] + self.mean_x, draws[:, n:] + self.mean_y
        return np.asarray(((x @ self.c) * y).sum(1))

    @property
    def mean(self) -> float:
        return float(bilinear_mean(self.c, self.mean_x, self.mean_y, self.cov_yx))

    @property
    def variance(self) -> float:
        return float(bilinear_variance(self.c, self.mean_x, self.mean_y, self.cov_x, self.cov_y, self.cov_yx))


def gaussian_pair(rng: np.random.Generator, coupling: float, n: int = 4) -> GaussianPair:
    """y depends on C'x with this coupling, so tr(C S_yx) and tr(C S_xy) are far apart unless C = C'."""
    c = rng.standard_normal((n, n)).T @ rng.standard_normal((n, n))
    cov_x = np.diag(np.linspace(0.5, 1.5, n)) + 0.2
    slope = coupling * c.T / np.linalg.norm(c)
    cov_y = np.diag(np.linspace(1.2, 0.6, n)) + slope @ cov_x @ slope.T
    means = rng.standard_normal((2, n)) / 2
    return GaussianPair(c, means[0], means[1], cov_x, cov_y, slope @ cov_x)


def haar(rng: np.random.Generator, count: int, n: int) -> Float[np.ndarray, "count n n"]:
    """Orthogonal matrices, all equally likely: QR of Gaussian ones, with the sign of R's diagonal taken out."""
    q, r = np.linalg.qr(rng.standard_normal((count, n, n)))
    return np.asarray(q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :])


def largest_squares(rng: np.random.Generator, n: int, count: int) -> Samples:
    """Largest squared singular values of n x n standard normal matrices.

    Rotations make such a matrix bidiagonal with independent chi entries (Dumitriu and Edelman 2002), so that no n x n
    matrix is needed.
    """
    batches = []
    for _ in range(count):
        diagonal = rng.chisquare(np.arange(n, 0, -1))
        below = rng.chisquare(np.arange(n - 1, 0, -1))
        main = diagonal + np.append(0.0, below)
        batches.append(
            eigvalsh_tridiagonal(main, np.sqrt(diagonal[:-1] * below), select="i", select_range=(n - 1, n - 1))
        )
    return np.concatenate(batches)


def product_of_means(sigma_a: Float[np.ndarray, "*batch n"], sigma_b: Float[np.ndarray, "*batch n"]) -> Samples:
    """E tr(D_A W' D_B W) = (sum sigma_a)(sum sigma_b)/n over W that is Haar: every W_ij^2 has mean 1/n."""
    return np.asarray(sigma_a.sum(-1) * sigma_b.sum(-1) / sigma_a.shape[-1])


def check_T6_2(rng: np.random.Generator) -> list[Evidence]:
    pair = gaussian_pair(rng, 0.9)
    mean, error = mean_and_error(pair.forms(rng, 200_000))
    of_means = float(pair.mean_x @ pair.c @ pair.mean_y)
    symmetric = (pair.c + pair.c.T) / 2
    even = float(bilinear_mean(symmetric, pair.mean_x, pair.mean_y, pair.cov_yx))
    even_printed = float(pair.mean_x @ symmetric @ pair.mean_y + np.trace(symmetric @ pair.cov_yx.T))
    return [
        Number(
            "E<Ax, By>, C not symmetric", mean, of_means + float(np.trace(pair.c @ pair.cov_yx.T)), pair.mean, error
        ),
        Fact("the two forms agree where C is symmetric", abs(even - even_printed) < 1e-9, "corrected"),
    ]


def check_T6_3(rng: np.random.Generator) -> list[Evidence]:
    apart, together = gaussian_pair(rng, 0.0), gaussian_pair(rng, 0.9)
    c = apart.c
    printed = (
        np.trace(apart.cov_x @ c @ apart.cov_y @ c.T)
        + apart.mean_y @ c.T @ apart.cov_x @ c @ apart.mean_y
        + apart.mean_x @ c @ apart.cov_y @ c.T @ apart.mean_x
    )
    variance, error = variance_and_error(apart.forms(rng, 200_000))
    dependent, dependent_error = variance_and_error(together.forms(rng, 200_000))
    return [
        Number("Var<Ax, By>, x and y independent", variance, float(printed), error=error),
        Number("the general form there", apart.variance, float(printed)),
        Number("dependent x and y: the general form", dependent, None, together.variance, dependent_error),
    ]


def check_T6_B7(rng: np.random.Generator) -> list[Evidence]:
    apart = gaussian_pair(rng, 0.0)
    together = replace(gaussian_pair(rng, 0.9), mean_x=np.zeros(4), mean_y=np.zeros(4))  # all that is added is positive
    printed, measured, general = [], [], []
    for pair in (apart, together):
        squares_x = pair.cov_x + np.outer(pair.mean_x, pair.mean_x)
        squares_y = pair.cov_y + np.outer(pair.mean_y, pair.mean_y)
        printed.append(float(np.trace(pair.c @ squares_y @ pair.c.T @ squares_x)))
        general.append(pair.variance + pair.mean**2)
        measured.append(mean_and_error(np.square(pair.forms(rng, 200_000))))
    return [
        Number("E(x'Cy)^2, x and y independent", measured[0][0], printed[0], general[0], measured[0][1]),
        Number("E(x'Cy)^2, dependent, Isserlis in full", measured[1][0], None, general[1], measured[1][1]),
        Fact(
            "the product form is not meant for dependent x and y: there it fails",
            abs(measured[1][0] - printed[1]) > 8 * measured[1][1],
            "corrected",
            f"{printed[1]:.4g} for {measured[1][0]:.4g}",
        ),
    ]


def check_T6_10(rng: np.random.Generator) -> list[Evidence]:
    n = 6
    a, b = rng.standard_normal((2, n, n))
    c = a.T @ b
    zero, one = np.zeros(n), np.eye(n)
    lengths = np.sort(np.linalg.norm(a, axis=0))[::-1]
    squares = np.square(np.linalg.svd(a, compute_uv=False))
    return [
        Number("tr(A'B)", float(np.linalg.eigvals(c).sum().real), float(sum(a[:, i] @ b[:, i] for i in range(n)))),
        Number(
            "tr(C'C), as the sum of squared singular values",
            float(np.square(np.linalg.svd(c, compute_uv=False)).sum()),
            float(sum((a[:, i] @ b[:, j]) ** 2 for i in range(n) for j in range(n))),
        ),
        Number(
            "Var<Ax, By> for standard normal x and y",
            float(bilinear_variance(c, zero, zero, one, one, np.zeros((n, n)))),
            float(np.linalg.norm(c) ** 2),
        ),
        Fact(
            "column lengths are not the squared singular values, as the text has it",
            bool(np.abs(lengths - squares).max() > 0.1 and np.abs(np.square(lengths) - squares).max() > 0.1),
            "corrected",
            f"lengths {lengths.round(2).tolist()}, squared singular values {squares.round(2).tolist()}",
        ),
    ]


def check_T6_12(rng: np.random.Generator) -> list[Evidence]:
    sizes, counts = (8, 32, 256, 2048), (4000, 1000, 150, 40)
    off: list[float] = []
    evidence: list[Evidence] = []
    for n, count in zip(sizes, counts, strict=True):
        if n > 32:
            squares = largest_squares(rng, n, count)
        else:
            squares = np.square(np.linalg.norm(rng.standard_normal((count, n, n)), 2, axis=(1, 2)))
        mean, error = mean_and_error(squares / n)
        off.append(abs(mean / 4 - 1))
        if n >= 32:  # Johnstone's form is itself a limit: off by 2 % at n = 8, 0.4 % at n = 32
            form = largest_mean(n, n, 1) / n
            evidence.append(Number(f"E max sigma^2 / (n s^2), n={n}", mean, None, form, error, tolerance=0.6 / n))
    return [Trend("relative distance from 4 n s^2", tuple(f"n={n}" for n in sizes), tuple(off), 0.01), *evidence]


def check_T6_13(rng: np.random.Generator) -> list[Evidence]:
    n, s, count = 20, 0.7, 4000
    sums = np.square(np.linalg.svd(s * rng.standard_normal((count, n, n)), compute_uv=False)).sum(1)
    mean, mean_error = mean_and_error(sums)
    variance, error = variance_and_error(sums)
    return [
        Number("E sum sigma_i^2, n=20, s=0.7", mean, n**2 * s**2, error=mean_error),
        Number("Var sum sigma_i^2", variance, 2 * n**2 * s**4, error=error),
    ]


def check_T6_17(rng: np.random.Generator) -> list[Evidence]:
    n, s, count = 20, 0.7, 6000
    a, b = s * rng.standard_normal((2, count, n * n))
    traces = (a * b).sum(1)
    mean, mean_error = mean_and_error(traces)
    variance, error = variance_and_error(traces)
    return [
        Number("E tr(A'B), n=20, s=0.7", mean, 0.0, error=mean_error),
        Number("Var tr(A'B)", variance, n**2 * s**4, error=error),
    ]


def check_T6_2_4(rng: np.random.Generator) -> list[Evidence]:
    pair = gaussian_pair(rng, 0.0)
    x = rng.standard_normal((200_000, 4)) @ np.linalg.cholesky(pair.cov_x).T + pair.mean_x
    forms = ((x @ pair.c) * x).sum(1)
    mean, mean_error = mean_and_error(forms)
    variance, error = variance_and_error(forms)
    printed = float(np.trace(pair.c @ pair.cov_x) + pair.mean_x @ pair.c @ pair.mean_x)
    return [
        Number("E<Ax, Bx>", mean, printed, self_pair_mean(pair.c, pair.mean_x, pair.cov_x), mean_error),
        Number("Var<Ax, Bx>, not printed", variance, None, self_pair_variance(pair.c, pair.mean_x, pair.cov_x), error),
    ]


def check_T6_25(rng: np.random.Generator) -> list[Evidence]:
    n = 6
    a, b = rng.standard_normal((2, n, n))
    (u_a, d_a, v_a), (u_b, d_b, v_b) = np.linalg.svd(a), np.linalg.svd(b)
    turn_u, turn_v = u_a.T @ u_b, v_b @ v_a.T
    form = float(np.trace(np.diag(d_a) @ turn_u @ np.diag(d_b) @ turn_v))
    transposed = float(np.trace(np.diag(d_a) @ turn_u.T @ np.diag(d_b) @ turn_v))
    trace = float((a * b).sum())
    return [
        Number("tr(A'B)", trace, form),
        Fact(
            "with (U_A'U_B)' in place of U_A'U_B, as the line before (6.30) defines it, the trace is another",
            abs(trace - transposed) > 1e-6,
            "corrected",
            f"{transposed:.4g} for {trace:.4g}",
        ),
    ]


def check_T6_29(rng: np.random.Generator) -> list[Evidence]:
    n, count = 64, 150
    _, sigma_a, v_a = np.linalg.svd(rng.standard_normal((count, n, n)))
    _, sigma_b, v_b = np.linalg.svd(rng.standard_normal((count, n, n)))
    turn = v_b @ np.swapaxes(v_a, 1, 2)
    chosen = np.einsum("cj,cji,ci->c", sigma_b, np.square(turn), sigma_a) / n**2
    best = np.linalg.svd(sigma_b[:, :, None] * turn * sigma_a[:, None, :], compute_uv=False).sum(1) / n**2
    expected = product_of_means(sigma_a, sigma_b) / n**2
    mean, mean_error = mean_and_error(chosen)
    _, error = mean_and_error(chosen - expected)
    highest, highest_error = mean_and_error(best)
    sigma, sigma_error = mean_and_error(np.concatenate([sigma_a, sigma_b]).mean(1) / np.sqrt(n))
    fuss_catalan = gamma(5 / 2) / (gamma(3 / 2) * gamma(3))  # E sqrt of the limit law of the squares of sigma(AB')
    return [
        Number("E tr(A'B)/(n s)^2 with U_A'U_B = V_A'V_B, n=64", mean, 1.0, float(expected.mean()), error),
        Number("the same, limit of large n", mean, 1.0, quarter_circle_mean() ** 2, mean_error, tolerance=0.01),
        Number("the most that any U_A, U_B give", highest, 1.0, fuss_catalan, highest_error, tolerance=0.01),
        Number("E sigma_i/(s sqrt n)", sigma, 1.0, quarter_circle_mean(), sigma_error, tolerance=0.01),
    ]


def check_T6_dof(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for n in (2, 3, 5, 8):
        spectrum = np.diag(rng.uniform(0.5, 1.0, n) + np.arange(n))
        directions = [np.outer(row, row) for row in np.eye(n)]
        for i in range(n):
            for j in range(i):
                turn = np.zeros((n, n))
                turn[i, j], turn[j, i] = 1.0, -1.0
                directions += [turn @ spectrum, spectrum @ turn]
        rank = np.linalg.matrix_rank(np.array([way.ravel() for way in directions]))
        evidence.append(Number(f"directions that U, D, V move A in, n={n}", float(rank), n + 2 * (n * (n - 1) / 2)))
        evidence.append(Number(f"entries of A, n={n}", float(n * n), float(len(directions))))
    return evidence


def check_T6_34(rng: np.random.Generator) -> list[Evidence]:
    n, count = 12, 12_000
    sigma_a, sigma_b = np.exp(-np.arange(n) / 3), 3 * np.exp(-np.arange(n) / 5)
    turn_u, turn_v = haar(rng, count, n), haar(rng, count, n)
    traces = np.einsum("i,cij,j,cji->c", sigma_a, turn_u, sigma_b, turn_v, optimize=True)
    mean, mean_error = mean_and_error(traces)
    variance, error = variance_and_error(traces)
    norms = float(np.linalg.norm(sigma_a)), float(np.linalg.norm(sigma_b))
    unit = alignment_z(1.0, *norms, n, n)  # z of a trace of 1
    return [
        Number("E tr(A'B)", mean, 0.0, 0.0, mean_error),
        Number(
            "Var tr(A'B), exponential spectra, n=12",
            variance,
            float(np.square(sigma_a * sigma_b).sum() / n),
            float((norms[0] * norms[1] / n) ** 2),
            error,
        ),
        Number("Var of alignment_z, which the spectral lens prints", variance * unit**2, None, 1.0, error * unit**2),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "T6.2",
        "Wertich",
        "(6.2), (6.4)-(6.9), (B.1)",
        "The mean of the form for jointly Gaussian x and y: that of the means, and a trace with the cross-covariance.",
        r"\mathbb{E}\langle Ax, By \rangle = \mu_X^T C \mu_Y + \operatorname{tr}(C \Sigma_{XY})",
        check_T6_2,
        r"\mathbb{E}\langle Ax, By \rangle = \mu_X^T C \mu_Y + \operatorname{tr}(C \Sigma_{YX}), \quad "
        r"\Sigma_{YX} = \operatorname{Cov}(y, x) = \Sigma_{XY}^T",
        "The two traces are equal where C or the cross-covariance is symmetric; W_q'W_k of a trained head is not. "
        "(6.4) and (6.7) have the same slip: E[yx'] = mu_Y mu_X' + Cov(y, x).",
    ),
    Entry(
        "T6.3",
        "Wertich",
        "(6.3), (B.2)-(B.13)",
        "The variance of the form for independent Gaussian x and y.",
        r"\operatorname{Var}\langle Ax, By \rangle = \operatorname{tr}(\Sigma_X C \Sigma_Y C^T) "
        r"+ \mu_Y^T C^T \Sigma_X C \mu_Y + \mu_X^T C \Sigma_Y C^T \mu_X",
        check_T6_3,
        remark="For independent x and y only. In general tr(C S_yx C S_yx) + 2 mu_X'C S_yx C mu_Y comes on top; the "
        "check measures that form too, and the lenses use it.",
    ),
    Entry(
        "T6.B7",
        "Wertich",
        "(B.7)",
        "The mean of the squared form is a trace of the two matrices of second moments.",
        r"\mathbb{E}\operatorname{tr}(C y y^T C^T x x^T) = "
        r"\operatorname{tr}(C \, \mathbb{E}[y y^T] \, C^T \, \mathbb{E}[x x^T])",
        check_T6_B7,
        remark="True because x and y are independent there, not by Isserlis' theorem as the text says; for dependent x "
        "and y it fails.",
    ),
    Entry(
        "T6.10",
        "Wertich",
        "(6.10)-(6.11)",
        "The trace of C is the sum of products of equal columns of A and B, its squared norm that of all products.",
        r"\operatorname{tr}(A^T B) = \sum_i \langle a_i, b_i \rangle, \quad "
        r"\operatorname{tr}(C^T C) = \sum_{i,j} \langle a_i, b_j \rangle^2 = \|C\|_F^2",
        check_T6_10,
        remark="The text beside it, that lengths of columns correspond to squared singular values, is not so: only the "
        "sums of squares of both are equal.",
    ),
    Entry(
        "T6.12",
        "Wertich",
        "(6.12)",
        "The largest squared singular value of an n x n matrix of noise has mean near 4 n times the variance.",
        r"\mathbb{E}[\sigma_1^2] \approx 4 n \sigma^2",
        check_T6_12,
        r"\mathbb{E}[\sigma_1^2] \approx \sigma^2 \left( c^2 - 1.2065 \, c \left( \frac{1}{\sqrt{n-1}} "
        r"+ \frac{1}{\sqrt{n}} \right)^{1/3} \right), \quad c = \sqrt{n-1} + \sqrt{n}",
        "The limit is right; at finite n the value is lower by a share of about 0.76 n^(-2/3): 9 % at n = 32. "
        "Johnstone's form is 0.4 % too low there.",
    ),
    Entry(
        "T6.13",
        "Wertich",
        "(6.13)-(6.16)",
        "Mean and variance of the sum of squared singular values of an n x n matrix of noise.",
        r"\mathbb{E}\sum_i \sigma_i^2 = n^2 \sigma^2, \quad \operatorname{Var}\sum_i \sigma_i^2 = 2 n^2 \sigma^4",
        check_T6_13,
        remark="What is summed in (6.15) are squared entries of A, though the text calls them entries of A'A.",
    ),
    Entry(
        "T6.17",
        "Wertich",
        "(6.17)-(6.23)",
        "Mean and variance of the trace of the product of two independent matrices of noise.",
        r"\mathbb{E}\operatorname{tr}(A^T B) = 0, \quad \operatorname{Var}\operatorname{tr}(A^T B) = n^2 \sigma^4",
        check_T6_17,
    ),
    Entry(
        "T6.2.4",
        "Wertich",
        "§6.2.4",
        "The mean of the form of a Gaussian vector with itself.",
        r"\mathbb{E}\langle Ax, Bx \rangle = \operatorname{tr}(C \Sigma_X) + \mu_X^T C \mu_X",
        check_T6_2_4,
        remark="Its variance, which the text lacks, is 2 tr(C_s S C_s S) + 4 mu'C_s S C_s mu with C_s = (C + C')/2. "
        "Bases that are to raise tr(C S) must be aligned, not 'orthogonal to each other'.",
    ),
    Entry(
        "T6.25",
        "Wertich",
        "(6.25), (6.30)",
        "The trace of A'B in terms of the two singular value decompositions.",
        r"\operatorname{tr}(A^T B) = \operatorname{tr}(D_A U_A^T U_B D_B V_B^T V_A)",
        check_T6_25,
        remark="Before (6.30) W_U' is defined as the transpose of U_A'U_B; it has to be U_A'U_B itself.",
    ),
    Entry(
        "T6.29",
        "Wertich",
        "(6.24)-(6.29)",
        "For given right singular vectors of two matrices of noise, left ones exist that make the trace n^2 s^2 on "
        "average.",
        r"U_A^T U_B = V_A^T V_B \quad \text{gives} \quad \mathbb{E}\operatorname{tr}(A^T B) = n^2 \sigma^2",
        check_T6_29,
        r"\mathbb{E}\operatorname{tr}(A^T B) = \frac{1}{n} \mathbb{E}\sum_i \sigma_{ai} \, \mathbb{E}\sum_j "
        r"\sigma_{bj} \to \left( \frac{8}{3\pi} \right)^2 n^2 \sigma^2, \quad \max_U \to \frac{3}{4} n^2 \sigma^2",
        "The mean singular value is 8/(3 pi) s sqrt n, not the root of the mean square, and (6.27) is not the product "
        "D_A W'D_B W. n^2 s^2 needs both bases to coincide.",
    ),
    Entry(
        "T6.dof",
        "Wertich",
        "§6.2.5",
        "The singular value decomposition splits the n^2 dimensions of a matrix into n of the spectrum and n(n-1)/2 of "
        "each basis.",
        r"n^2 = n + 2 \cdot \frac{n(n-1)}{2}",
        check_T6_dof,
    ),
    Entry(
        "T6.34",
        "Wertich",
        "(6.30)-(6.34)",
        "For random singular bases and given spectra the trace has mean 0 and a variance of products of equal ranks.",
        r"\operatorname{Var}\operatorname{tr}(\hat{A}^T \hat{B}) = \frac{1}{n} \sum_i "
        r"\hat{\sigma}_{ai}^2 \hat{\sigma}_{bi}^2",
        check_T6_34,
        r"\operatorname{Var}\operatorname{tr}(\hat{A}^T \hat{B}) = \frac{1}{n^2} \sum_i \hat{\sigma}_{ai}^2 "
        r"\sum_j \hat{\sigma}_{bj}^2 = \frac{\|\hat{A}\|_F^2 \|\hat{B}\|_F^2}{n^2}",
        "The mean is right. The variance depends on the two Frobenius norms alone, so there is no angle between "
        "spectra; the printed one gives 2 n^2 s^4 for two matrices of noise, against (6.17).",
    ),
)
