"""Wertich §2.1 and §2.2: ellipsoids of Gaussians, principal components, entropy, divergence and information.

Tokens and random matrices of §2.3 to §2.5 are in `wertich_matrices`, the Gaussians of tokens of §4 in `wertich_tokens`.
"""

import numpy as np
from jaxtyping import Float
from scipy.integrate import quad
from scipy.spatial.distance import mahalanobis
from scipy.special import gammaln, rel_entr, xlogy
from scipy.stats import multivariate_normal, norm, ortho_group

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, mean_and_error, variance_and_error
from armillary.theory import gaussian

Matrix = Float[np.ndarray, "d d"]
Vector = Float[np.ndarray, "d"]


def turned(spectrum: list[float], rng: np.random.Generator) -> Matrix:
    """A covariance with these eigenvalues and random eigenvectors."""
    axes = ortho_group.rvs(len(spectrum), random_state=rng)
    return np.asarray((axes * np.array(spectrum)) @ axes.T)


def two_laws(rng: np.random.Generator) -> tuple[Vector, Matrix, Vector, Matrix]:
    """Means and covariances of two Gaussians in four dimensions that differ in place, shape and axes."""
    p, q = turned([2.0, 1.2, 0.8, 0.4], rng), turned([1.5, 1.0, 0.7, 0.5], rng)
    return rng.standard_normal(4), p, rng.standard_normal(4), q


def joint_law(rng: np.random.Generator) -> Matrix:
    """The covariance of a pair (X, Y) of two dimensions each, with canonical correlations 0.8 and 0.5."""
    joint = np.eye(4)
    joint[:2, 2:] = joint[2:, :2] = np.diag([0.8, 0.5])
    mixing = np.zeros((4, 4))
    mixing[:2, :2], mixing[2:, 2:] = turned([2.0, 0.7], rng), turned([1.5, 0.5], rng)
    return np.asarray(mixing @ joint @ mixing.T)


def split(joint: Matrix) -> tuple[Float[np.ndarray, "h h"], Float[np.ndarray, "h h"], Float[np.ndarray, "h h"]]:
    """Cov X, Cov Y, Cov(X, Y) of a pair of vectors of the same width."""
    half = len(joint) // 2
    return joint[:half, :half], joint[half:, half:], joint[:half, half:]


def information_by_sampling(joint: Matrix, rng: np.random.Generator, samples: int = 100_000) -> tuple[float, float]:
    """The mean of log p(x, y) / (p(x) p(y)) over draws of the pair, and its standard error."""
    half = len(joint) // 2
    cov_x, cov_y, _ = split(joint)
    z = rng.multivariate_normal(np.zeros(len(joint)), joint, samples, method="cholesky")
    apart = multivariate_normal(cov=cov_x).logpdf(z[:, :half]) + multivariate_normal(cov=cov_y).logpdf(z[:, half:])
    return mean_and_error(multivariate_normal(cov=joint).logpdf(z) - apart)


def relative_volume(cov: Matrix, rng: np.random.Generator, samples: int = 200_000) -> tuple[float, float]:
    """The volume of (x - mu)'S^-1(x - mu) <= 1 over that of the unit ball, by points in the box around it."""
    sides = np.sqrt(np.diag(cov))
    x = rng.uniform(-1, 1, (samples, len(cov))) * sides
    inside = np.einsum("nd,nd->n", x, np.linalg.solve(cov, x.T).T) <= 1
    share, error = mean_and_error(inside.astype(np.float64))
    scale = float(np.prod(2 * sides)) / ball_volume(len(cov))
    return share * scale, error * scale


def ball_volume(d: int) -> float:
    """pi^(d/2) / Gamma(d/2 + 1)."""
    return float(np.exp(d / 2 * np.log(np.pi) - gammaln(d / 2 + 1)))


def check_T2_1a(rng: np.random.Generator) -> list[Evidence]:
    cov, mean = turned([2.0, 0.9, 0.3], rng), rng.standard_normal(3)
    values, axes = np.linalg.eigh(cov)
    directions = rng.standard_normal((1000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    surface = mean + (directions * np.sqrt(values)) @ axes.T
    q = np.einsum("nd,de,ne->n", surface - mean, np.linalg.inv(cov), surface - mean)
    least = float(np.linalg.eigvalsh(np.linalg.inv(cov)).min())
    return [
        Number("Q on the ellipsoid with semi-axes sqrt(lambda_i) v_i, mean", float(q.mean()), 0.0, 1.0),
        Number("the same, spread", float(np.ptp(q)), corrected=0.0),
        Fact("Q = 0 somewhere but at mu", least <= 0, detail=f"Q is at least {least:.3f} |x - mu|^2"),
    ]


def check_T2_1b(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for spectrum in ([0.9, 0.5, 0.3], [3.0, 2.0, 1.2]):
        cov = turned(spectrum, rng)
        volume, error = relative_volume(cov, rng)
        root = float(np.sqrt(np.linalg.det(cov)))
        what = f"volume of Q <= 1 over that of the unit ball, eigenvalues {spectrum}"
        evidence.append(Number(what, volume, 1 / root, root, error))
    return evidence


def check_T2_1c(rng: np.random.Generator) -> list[Evidence]:
    n = 500
    x = np.diag([3.0, 1.5, 0.5]) @ rng.standard_normal((3, n)) + 1.0
    values, axes = np.linalg.eigh(np.cov(x))
    raw = np.linalg.svd(x, compute_uv=False)
    scaled = np.linalg.svd(x - x.mean(1, keepdims=True), compute_uv=False) / np.sqrt(n - 1)
    spread = float(np.std(axes[:, -1] @ x, ddof=1))
    return [
        Number("largest eigenvalue of the covariance", float(values[-1]), float(raw[0] ** 2), float(scaled[0] ** 2)),
        Number("least eigenvalue of the covariance", float(values[0]), float(raw[-1] ** 2), float(scaled[-1] ** 2)),
        Number("spread of the data along the first axis", spread, float(raw[0]), float(scaled[0])),
    ]


def check_T2_1d(rng: np.random.Generator) -> list[Evidence]:
    basis = np.eye(4) + np.triu(rng.uniform(0.2, 1, (4, 4)), 1)
    x = basis @ np.diag([3.0, 1.0, -0.5, -2.0]) @ np.linalg.inv(basis)
    eigenvalues, vectors = np.linalg.eig(x)
    rebuilt = vectors @ np.diag(eigenvalues) @ np.linalg.inv(vectors)
    # Symmetric, so of the form Q L Q', and with columns that sum to 0, so that X and -X have the same mean.
    centering = np.eye(5) - 1 / 5
    even = centering @ turned([3.0, 2.0, 1.0, -1.0, -2.0], rng) @ centering
    same = np.abs(np.cov(even) - np.cov(-even)).max() + np.abs(even.mean(1) - (-even).mean(1)).max()
    singular = float(np.linalg.svd(even, compute_uv=False)[0])
    absolute = float(np.abs(np.linalg.eigvalsh(even)).max())
    return [
        Number("distance of a diagonalizable X from every Q L Q'", float(np.linalg.norm(x - x.T) / 2), 0.0),
        Number("distance of it from P L P^-1", float(np.linalg.norm(x - rebuilt)), corrected=0.0),
        Fact(
            "different X = Q L Q' have different Gaussians",
            bool(same > 1e-9),
            detail=f"mean and covariance of X and -X differ by {same:.0e}",
        ),
        Number("largest squared singular value", singular**2, absolute, absolute**2),
    ]


def check_T2_1e(rng: np.random.Generator) -> list[Evidence]:
    x = rng.standard_normal((20, 4))
    left, values, right = np.linalg.svd(x, full_matrices=False)
    square = rng.standard_normal((6, 6))
    u, d, vt = np.linalg.svd(square)

    def residual(matrix: Matrix, vectors: Float[np.ndarray, "d k"], singular: Float[np.ndarray, "k"]) -> float:
        return float(np.linalg.norm(matrix @ vectors - vectors * singular**2) / np.linalg.norm(matrix))

    return [
        Fact("20 x 4 data: a column of V is as long as XX' is wide", right.shape[1] == len(x), detail="4 against 20"),
        Number("6 x 6 data: |XX'V - V D^2| / |XX'|", residual(square @ square.T, vt.T, d), 0.0),
        Number("6 x 6 data: |X'XU - U D^2| / |X'X|", residual(square.T @ square, u, d), 0.0),
        Number("20 x 4 data: |X'XV - V D^2| / |X'X|", residual(x.T @ x, right.T, values), corrected=0.0),
        Number("20 x 4 data: |XX'U - U D^2| / |XX'|", residual(x @ x.T, left, values), corrected=0.0),
    ]


def check_T2_1f(rng: np.random.Generator) -> list[Evidence]:
    mean, cov, a = rng.standard_normal(4), turned([2.0, 1.0, 0.5, 0.2], rng), rng.standard_normal((3, 4))
    mapped_mean, mapped_cov = gaussian.linear_map(mean, cov, a)
    x = rng.multivariate_normal(mean, cov, 100_000, method="cholesky")
    t = rng.standard_normal(3)
    t /= np.sqrt(t @ mapped_cov @ t)
    along = (x @ a.T) @ t
    center, center_error = mean_and_error(along)
    variance, variance_error = variance_and_error(along)
    wave, wave_error = mean_and_error(np.cos(along))
    refitted = float(np.abs(np.cov(a @ x.T) - a @ np.cov(x.T) @ a.T).max())
    law = float(np.exp(-t @ mapped_cov @ t / 2) * np.cos(t @ mapped_mean))
    return [
        Number("mean of t'Ax", center, float(t @ mapped_mean), error=center_error),
        Number("variance of t'Ax", variance, float(t @ mapped_cov @ t), error=variance_error),
        Number("E cos(t'Ax), the characteristic function", wave, law, error=wave_error),
        Number("covariance fitted to AX less A S A'", refitted, 0.0),
    ]


def check_T2_2a(rng: np.random.Generator) -> list[Evidence]:
    p, q = rng.dirichlet(np.ones(6), 2)
    joint = rng.dirichlet(np.ones(20)).reshape(4, 5)
    rows, columns = joint.sum(1), joint.sum(0)

    def entropy(law: Float[np.ndarray, "*states"]) -> float:
        return float(-xlogy(law, law).sum())

    information = float(rel_entr(joint, np.outer(rows, columns)).sum())
    return [
        Number("sum p log(p/q)", float(rel_entr(p, q).sum()), float(-xlogy(p, q).sum()) - entropy(p)),
        Number("joint entropy", entropy(joint), entropy(rows) + entropy(columns) - information),
    ]


def check_T2_2i(rng: np.random.Generator) -> list[Evidence]:
    cov = turned([0.9, 0.5, 0.3], rng)
    determinant = float(np.linalg.det(cov))
    volume, error = relative_volume(cov, rng)
    return [
        Number("determinant", determinant, float(np.prod(np.linalg.svd(cov, compute_uv=False)))),
        Number("volume of Q <= 1 over that of the unit ball", volume, determinant, float(np.sqrt(determinant)), error),
    ]


def check_T2_2b(rng: np.random.Generator) -> list[Evidence]:
    mean, cov, _, _ = two_laws(rng)
    x = rng.multivariate_normal(mean, cov, 100_000, method="cholesky")
    measured, error = mean_and_error(-multivariate_normal(mean, cov).logpdf(x))
    return [Number("-E log p", measured, gaussian.entropy(cov), error=error)]


def sampled_cross_entropy(
    mean_p: Vector, cov_p: Matrix, mean_q: Vector, cov_q: Matrix, rng: np.random.Generator
) -> tuple[float, float]:
    """-E_p log q over 200,000 draws, and its standard error."""
    x = rng.multivariate_normal(mean_p, cov_p, 200_000, method="cholesky")
    return mean_and_error(-multivariate_normal(mean_q, cov_q).logpdf(x))


def check_T2_2c(rng: np.random.Generator) -> list[Evidence]:
    p_mean, p_cov, q_mean, q_cov = two_laws(rng)
    difference, inverse = q_mean - p_mean, np.linalg.inv(q_cov)
    terms = float(np.trace(inverse @ p_cov) + difference @ inverse @ difference) / 2
    measured, error = sampled_cross_entropy(p_mean, p_cov, q_mean, q_cov, rng)
    printed = 0.5 * float(4 * np.log(2 * np.pi * np.e) + np.linalg.slogdet(q_cov)[1]) + terms
    corrected = gaussian.cross_entropy(p_mean, p_cov, q_mean, q_cov)
    return [Number("-E_p log q, d = 4", measured, printed, corrected, error)]


def check_T2_2d(rng: np.random.Generator) -> list[Evidence]:
    p_mean, p_cov, q_mean, q_cov = two_laws(rng)
    inverse = np.linalg.inv(q_cov)
    distance = float(mahalanobis(q_mean, p_mean, inverse))
    third = float((q_mean - p_mean) @ inverse @ (q_mean - p_mean)) / 2
    measured, error = sampled_cross_entropy(p_mean, p_cov, q_mean, q_cov, rng)
    first = measured - float(np.trace(inverse @ p_cov)) / 2 - third
    entropy = gaussian.entropy(q_cov)
    return [
        Number("what the trace and the means leave of -E_p log q, d = 4", first, entropy, entropy - 2, error),
        Number("the third term", third, distance, distance**2 / 2),
    ]


def check_T2_2e(rng: np.random.Generator) -> list[Evidence]:
    p_mean, p_cov, q_mean, q_cov = two_laws(rng)
    x = rng.multivariate_normal(p_mean, p_cov, 100_000, method="cholesky")
    ratio = multivariate_normal(p_mean, p_cov).logpdf(x) - multivariate_normal(q_mean, q_cov).logpdf(x)
    measured, error = mean_and_error(ratio)
    difference = gaussian.cross_entropy(p_mean, p_cov, q_mean, q_cov) - gaussian.entropy(p_cov)
    others = [gaussian.kl(*two_laws(rng)) for _ in range(200)]
    return [
        Number("E_p log(p/q)", measured, difference, gaussian.kl(p_mean, p_cov, q_mean, q_cov), error),
        Number("KL(p || p)", gaussian.kl(p_mean, p_cov, p_mean, p_cov), 0.0),
        Fact("KL > 0 for 200 pairs of different laws", min(others) > 0, detail=f"least {min(others):.2f}"),
    ]


def jensen(p: Float[np.ndarray, "n states"], q: Float[np.ndarray, "n states"]) -> Float[np.ndarray, "n"]:
    """The Jensen-Shannon divergence of rows of probabilities."""
    m = (p + q) / 2
    return np.asarray((rel_entr(p, m) + rel_entr(q, m)).sum(-1) / 2)


def check_T2_2f(rng: np.random.Generator) -> list[Evidence]:
    p, q, r = (rng.dirichlet(np.full(4, 0.4), 20_000) for _ in range(3))
    r[:10_000] = p[:10_000] + rng.uniform(0, 1, (10_000, 1)) * (q - p)[:10_000]  # between p and q: the narrowest case
    longer = np.sqrt(jensen(p, q)) - np.sqrt(jensen(p, r)) - np.sqrt(jensen(r, q))

    def density(x: float) -> float:
        a, b = float(norm.pdf(x, 0, 1)), float(norm.pdf(x, 2.5, 0.5))
        return float(rel_entr(a, (a + b) / 2) + rel_entr(b, (a + b) / 2)) / 2

    true = float(quad(density, -12, 12, points=[0.0, 2.5], limit=200)[0])
    laws = np.zeros(1), np.eye(1), np.full(1, 2.5), np.full((1, 1), 0.25)
    sampled, error = gaussian.jensen_shannon(*laws, seed=int(rng.integers(2**31)))
    middle = np.full(1, 1.25), np.full((1, 1), 0.625)
    as_gaussian = (gaussian.kl(*laws[:2], *middle) + gaussian.kl(*laws[2:], *middle)) / 2
    return [
        Fact(
            "sqrt(JSD) obeys the triangle inequality, 20,000 triples",
            bool(longer.max() < 1e-12),
            detail=f"one side less the two others, at most {longer.max():.1e}",
        ),
        Number("JSD(p || q) - JSD(q || p), largest", float(np.abs(jensen(p, q) - jensen(q, p)).max()), 0.0),
        Number("JSD(p || p), largest", float(jensen(p, p).max()), 0.0),
        Number("JSD of two Gaussians, m their mixture, sampled (and by quadrature)", sampled, true, error=error),
        Fact(
            "with m a Gaussian of averaged parameters it is something else",
            abs(as_gaussian - true) > 0.05,
            "corrected",
            f"{as_gaussian:.3f} against {true:.3f}",
        ),
    ]


def check_T2_2g(rng: np.random.Generator) -> list[Evidence]:
    joint = joint_law(rng)
    cov_x, cov_y, cov_xy = split(joint)
    measured, error = information_by_sampling(joint, rng)
    determinants = np.linalg.det(cov_x) * np.linalg.det(cov_y) / np.linalg.det(joint)
    closed = gaussian.mutual_information(cov_x, cov_y, cov_xy)
    return [Number("E log p(x, y)/(p(x) p(y))", measured, float(np.log(determinants) / 2), closed, error)]


def check_T2_2h(rng: np.random.Generator) -> list[Evidence]:
    joint, n, repeats = joint_law(rng), 5000, 40
    true = gaussian.mutual_information(*split(joint))
    uncentered, centered = [], []
    for _ in range(repeats):
        z = 3 + rng.multivariate_normal(np.zeros(4), joint, n, method="cholesky")
        uncentered.append(gaussian.mutual_information(*split(z.T @ z / (n - 1))))
        centered.append(gaussian.mutual_information(*split(np.cov(z.T))))
    error = float(np.std(centered, ddof=1) / np.sqrt(repeats))
    bias = 2 * 2 / (2 * n)  # of an estimate from n samples, to first order: d_x d_y / 2n
    what = f"I(X; Y) of a law with means 3, estimated from {n} samples"
    return [Number(what, true, float(np.mean(uncentered)), float(np.mean(centered)), error, tolerance=2 * bias)]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="T2.1a",
        paper="Wertich",
        place="§2.1",
        statement="The ellipsoid of a Gaussian is the solution set of Q(x) = 0.",
        printed=r"\{x : Q(x) = 0\}, \quad Q(x) = (x-\mu)^T \Sigma^{-1} (x-\mu)",
        corrected=r"\{x : Q(x) = 1\}, \quad \text{semi-axes } \sqrt{\lambda_i(\Sigma)}\, v_i",
        remark="Q is positive definite, so Q = 0 is the point mu alone; any c > 0 gives an ellipsoid.",
        check=check_T2_1a,
    ),
    Entry(
        id="T2.1b",
        paper="Wertich",
        place="§2.1",
        statement="The ellipsoid's volume is the product of the inverse singular values, so it falls as |Sigma| grows.",
        printed=r"V = \prod_i \sigma_i^{-1} \propto \frac{1}{\sqrt{|\Sigma|}}",
        corrected=r"V = \frac{\pi^{d/2}}{\Gamma(d/2+1)} \sqrt{|\Sigma|}",
        remark="The peak of the density is proportional to 1/sqrt|Sigma|; the volume is to its inverse. Volumes are "
        "compared with the unit ball's, so that the constant does not matter.",
        check=check_T2_1b,
    ),
    Entry(
        id="T2.1c",
        paper="Wertich",
        place="§2.1",
        statement="Axes are as long as the singular values of X; eigenvalues of the covariance are their squares.",
        printed=r"\lambda_i(\Sigma) = \sigma_i(X)^2",
        corrected=r"\lambda_i(\Sigma) = \frac{\sigma_i(\bar X)^2}{n-1}",
        remark="The semi-axis is sigma_i/sqrt(n - 1), with the data centered.",
        check=check_T2_1c,
    ),
    Entry(
        id="T2.1d",
        paper="Wertich",
        place="§2.1",
        statement="A diagonalizable X is Q L Q^T, corresponds one-to-one to its Gaussian, and its squared singular "
        "values are the absolute eigenvalues.",
        printed=r"X = Q \Lambda Q^T, \quad \sigma_i^2 = |\lambda_i|",
        corrected=r"X = P \Lambda P^{-1}; \quad X = X^T \Rightarrow X = Q \Lambda Q^T, \; \sigma_i = |\lambda_i|",
        remark="X and -X have the same Gaussian where the columns of a symmetric X sum to 0.",
        check=check_T2_1d,
    ),
    Entry(
        id="T2.1e",
        paper="Wertich",
        place="§2.1",
        statement="For X of n rows, one per sample, V holds the eigenvectors of XX^T and U those of X^T X.",
        printed=r"X = U D V^T \in R^{n \times d}: \quad X X^T V = V D^2, \quad X^T X U = U D^2",
        corrected=r"X^T X V = V D^2, \quad X X^T U = U D^2",
        remark="The sentence is right for samples in columns and X = V D U^T, the convention of the paragraph before.",
        check=check_T2_1e,
    ),
    Entry(
        id="T2.1f",
        paper="Wertich",
        place="§2.1",
        statement="A linear map takes a Gaussian to the Gaussian with mapped mean and covariance.",
        printed=r"x \sim N(\mu, \Sigma) \Rightarrow A x \sim N(A \mu, A \Sigma A^T)",
        remark="A must be m x d; it is printed n x m.",
        check=check_T2_1f,
    ),
    Entry(
        id="T2.2a",
        paper="Wertich",
        place="§2.2",
        statement="KL is cross-entropy less entropy; joint entropy is the sum of entropies less the information.",
        printed=r"D_{KL}(p\|q) = H(p,q) - H(p), \quad H(X,Y) = H(X) + H(Y) - I(X;Y)",
        check=check_T2_2a,
    ),
    Entry(
        id="T2.2i",
        paper="Wertich",
        place="§2.2",
        statement="|Sigma| is the product of its singular values and thus the volume of the ellipsoid.",
        printed=r"|\Sigma| = \prod_i \sigma_i = V",
        corrected=r"|\Sigma| = \prod_i \sigma_i, \quad V = \frac{\pi^{d/2}}{\Gamma(d/2+1)} \sqrt{|\Sigma|}",
        remark="The first half holds; §2.1 prints the volume as 1/sqrt|Sigma| (T2.1b).",
        check=check_T2_2i,
    ),
    Entry(
        id="T2.2b",
        paper="Wertich",
        place="§2.2",
        statement="The entropy of a Gaussian.",
        printed=r"H(p) = \frac{1}{2} \log\left((2\pi e)^d |\Sigma|\right)",
        check=check_T2_2b,
    ),
    Entry(
        id="T2.2c",
        paper="Wertich",
        place="§2.2",
        statement="The cross-entropy of two Gaussians.",
        printed=r"H(p,q) = \frac{1}{2} \log\left((2\pi e)^d |\Sigma_2|\right)"
        r" + \frac{1}{2} \operatorname{tr}(\Sigma_2^{-1} \Sigma_1) "
        r" + \frac{1}{2} (\mu_2-\mu_1)^T \Sigma_2^{-1} (\mu_2-\mu_1)",
        corrected=r"H(p,q) = \frac{1}{2} \left( d \log 2\pi + \log|\Sigma_2|"
        r" + \operatorname{tr}(\Sigma_2^{-1} \Sigma_1) + (\mu_2-\mu_1)^T \Sigma_2^{-1} (\mu_2-\mu_1) \right)",
        remark="Printed d/2 too large: with it KL(p || p) would be d/2.",
        check=check_T2_2c,
    ),
    Entry(
        id="T2.2d",
        paper="Wertich",
        place="§2.2",
        statement="The first term of the cross-entropy is H(q); the third is the Mahalanobis distance of the means.",
        printed=r"\text{first term} = H(q), \quad \text{third term} = d_M(\mu_1, \mu_2)",
        corrected=r"\text{first term} = H(q) - \frac{d}{2}, \quad \text{third term} = \frac{1}{2} d_M(\mu_1, \mu_2)^2",
        remark="The first term is what the other two leave of the true cross-entropy; as printed in T2.2c it is H(q), "
        "which is that formula's error.",
        check=check_T2_2d,
    ),
    Entry(
        id="T2.2e",
        paper="Wertich",
        place="§2.2",
        statement="The KL divergence of Gaussians is H(p, q) - H(p), and zero where p = q.",
        printed=r"D_{KL}(p\|q) = H(p,q) - H(p)",
        remark="With the true cross-entropy; with the one printed (T2.2c) it is d/2 too large.",
        check=check_T2_2e,
    ),
    Entry(
        id="T2.2f",
        paper="Wertich",
        place="§2.2",
        statement="The Jensen-Shannon divergence is symmetric, and its square root is a metric.",
        printed=r"JSD(p\|q) = \frac{1}{2} \left( D_{KL}(p\|m) + D_{KL}(q\|m) \right), \quad m = \frac{p+q}{2}",
        remark="m is a mixture of two Gaussians, not a Gaussian: there is no closed form, and the Gaussian KL "
        "must not be used for it.",
        check=check_T2_2f,
    ),
    Entry(
        id="T2.2g",
        paper="Wertich",
        place="§2.2",
        statement="The mutual information of jointly Gaussian vectors.",
        printed=r"I(X;Y) = \frac{1}{2} \log \frac{|\Sigma_X| |\Sigma_Y|}{|\Sigma|}",
        check=check_T2_2g,
    ),
    Entry(
        id="T2.2h",
        paper="Wertich",
        place="§2.2",
        statement="The covariances in it are estimated by products of the data, not centered.",
        printed=r"\Sigma_X = \frac{1}{n-1} X^T X, \quad \Sigma_{XY} = \frac{1}{n-1} X^T Y",
        corrected=r"\Sigma_X = \frac{1}{n-1} \bar X^T \bar X, \quad \Sigma_{XY} = \frac{1}{n-1} \bar X^T \bar Y",
        remark="The means enter as shared variance: the information comes out too large unless they are 0.",
        check=check_T2_2h,
    ),
)
