"""Wertich §4: sentences as one large Gaussian, its information after linear layers, and the law of a token."""

import numpy as np
from jaxtyping import Float
from scipy.stats import lognorm

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, mean_and_error, variance_and_error
from armillary.papers.ledger.wertich_gaussians import information_by_sampling, joint_law, split, turned, two_laws
from armillary.theory import gaussian


def invertible(d: int, rng: np.random.Generator, *, mirrored: bool = False) -> Float[np.ndarray, "d d"]:
    """A matrix with singular values from 0.5 to 3, whose product is above 1; mirrored: with determinant < 0."""
    left, right = turned([1.0] * (d - 1) + [-1.0], rng), turned([1.0] * (d - 1) + [-1.0], rng)
    rotation = left @ right  # a product of two reflections: the determinant is 1
    stretched = rotation @ turned(list(np.geomspace(0.5, 3.0, d)), rng)
    return np.asarray(left @ stretched if mirrored else stretched)


def blocks(cov: Float[np.ndarray, "nd nd"], d: int) -> Float[np.ndarray, "n n d d"]:
    """S_ij = Cov(x_i, x_j) out of the covariance of the stacked tokens."""
    n = len(cov) // d
    return cov.reshape(n, d, n, d).swapaxes(1, 2)


def weighted_tokens(
    shares: Float[np.ndarray, "k"], v: Float[np.ndarray, "k d"], power: float
) -> Float[np.ndarray, "d d"]:
    """sum_i lambda_i^power v_i v_i'."""
    return np.asarray((v.T * shares**power) @ v)


def pair_at(cosine: float) -> Float[np.ndarray, "2 2"]:
    """Two unit vectors, as rows, with this scalar product."""
    return np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]])


def check_T4_1(rng: np.random.Generator) -> list[Evidence]:
    n, d = 3, 2
    mean, cov = rng.standard_normal(n * d), turned([3.0, 2.0, 1.5, 1.0, 0.6, 0.3], rng)
    layer = invertible(d, rng)
    stacked_mean, stacked = gaussian.linear_map(mean, cov, np.kron(np.eye(n), layer))
    by_token = np.einsum("ab,ijbc,dc->ijad", layer, blocks(cov, d), layer)
    x = rng.multivariate_normal(mean, cov, 50_000, method="cholesky").reshape(-1, n, d)
    product = (x[:, 0] @ layer.T)[:, 0] * (x[:, 2] @ layer.T)[:, 1]
    sampled, error = mean_and_error(product)
    expected = float(by_token[0, 2, 0, 1] + (layer @ mean[:d])[0] * (layer @ mean[2 * d :])[1])
    transposed = by_token.swapaxes(0, 1).swapaxes(-1, -2)
    few = np.linalg.matrix_rank(np.cov(rng.standard_normal((n * d, 5))))
    return [
        Number(
            "covariance of the mapped sentence less L S_ij L'", float(np.abs(blocks(stacked, d) - by_token).max()), 0.0
        ),
        Number(
            "its mean less L mu_i", float(np.abs(stacked_mean.reshape(n, d) - mean.reshape(n, d) @ layer.T).max()), 0.0
        ),
        Number("S_ij - S_ji', largest", float(np.abs(by_token - transposed).max()), 0.0),
        Number("E (L x_1)_1 (L x_3)_2 by sampling", sampled, expected, error=error),
        Fact(
            f"from 5 sentences, a covariance of width {n * d} is singular",
            bool(few < n * d),
            "corrected",
            f"rank {few}",
        ),
    ]


def check_T4_2a(rng: np.random.Generator) -> list[Evidence]:
    cov, layer, mirror = turned([2.0, 1.0, 0.5], rng), invertible(3, rng), invertible(3, rng, mirrored=True)
    before = gaussian.entropy(cov)
    after, mirrored = gaussian.entropy(layer @ cov @ layer.T), gaussian.entropy(mirror @ cov @ mirror.T)
    singular = np.linalg.svd(layer, compute_uv=False)
    determinant = float(np.linalg.det(mirror))
    return [
        Number("H(LX), by the determinant", after, before + float(np.log(abs(np.linalg.det(layer))))),
        Number("H(LX), by the singular values", after, before + float(np.log(singular).sum())),
        Number("H(LX), L with a reflection", mirrored, before + float(np.log(abs(determinant)))),
        Fact(
            "entropy grows with |det L| > 1, also where det L < 0",
            mirrored > before and determinant < 0,
            "corrected",
            f"det L = {determinant:.2f}, from {before:.3f} to {mirrored:.3f}",
        ),
    ]


def check_T4_2b(rng: np.random.Generator) -> list[Evidence]:
    joint, layer = joint_law(rng), invertible(2, rng)
    mapped = np.kron(np.eye(2), layer) @ joint @ np.kron(np.eye(2), layer).T
    after, error = information_by_sampling(mapped, rng, 50_000)
    before = gaussian.mutual_information(*split(joint))
    return [
        Number(
            "det of the mapped pair",
            float(np.linalg.det(mapped)),
            float(np.linalg.det(layer) ** 4 * np.linalg.det(joint)),
        ),
        Number("I(LX_i; LX_j)", gaussian.mutual_information(*split(mapped)), before),
        Number("I(LX_i; LX_j) by sampling", after, before, error=error),
    ]


def check_T4_2c(rng: np.random.Generator) -> list[Evidence]:
    joint = np.eye(4)
    joint[:2, 2:] = joint[2:, :2] = np.diag([0.8, 0.5])
    before = gaussian.mutual_information(*split(joint))
    second = joint[np.ix_([1, 3], [1, 3])]  # the part of each token that diag(0, 1) keeps
    projected, error = information_by_sampling(second, rng)
    singular = np.kron(np.eye(2), np.diag([0.0, 1.0]))
    closed = gaussian.mutual_information(*split(singular @ joint @ singular.T))
    # exp is invertible and not linear: the densities of u = exp x and v = exp y, y given x of spread sqrt(1 - rho^2)
    rho = 0.5
    x, noise = rng.standard_normal((2, 50_000))
    u, v = np.exp(x), np.exp(rho * x + np.sqrt(1 - rho**2) * noise)
    ratio = lognorm(np.sqrt(1 - rho**2), scale=u**rho).logpdf(v) - lognorm(1.0).logpdf(v)
    after_exp, exp_error = mean_and_error(ratio)
    alone = gaussian.mutual_information(np.eye(1), np.eye(1), np.full((1, 1), rho))
    return [
        Number("I after the linear map diag(0, 1) of each token", projected, before, closed, error),
        Number("I after exp of each token, one-dimensional", after_exp, corrected=alone, error=exp_error),
    ]


def check_T4_2d(rng: np.random.Generator) -> list[Evidence]:
    p_mean, p_cov, q_mean, q_cov = two_laws(rng)
    layer = invertible(4, rng)
    mapped = *gaussian.linear_map(p_mean, p_cov, layer), *gaussian.linear_map(q_mean, q_cov, layer)
    return [Number("KL after L", gaussian.kl(*mapped), gaussian.kl(p_mean, p_cov, q_mean, q_cov))]


def check_T4_2e(rng: np.random.Generator) -> list[Evidence]:
    unit = np.eye(2)
    strong, weak = np.diag([0.9, 0.0]), np.diag([0.4, 0.4])
    more, less = (gaussian.mutual_information(unit, unit, cross) for cross in (strong, weak))
    determinants = float(np.linalg.det(strong)), float(np.linalg.det(weak))
    joint = joint_law(rng)
    cov_x, cov_y, cov_xy = split(joint)
    shared = np.linalg.solve(cov_x, cov_xy) @ np.linalg.solve(cov_y, cov_xy.T)
    by_blocks = -float(np.log(np.linalg.det(np.eye(2) - shared))) / 2
    sampled, error = information_by_sampling(joint, rng)
    return [
        Fact(
            "the pair with the smaller det S_ij has the smaller information",
            (determinants[0] < determinants[1]) == (more < less),
            detail=f"det {determinants[0]:.2f}: I = {more:.3f}; det {determinants[1]:.2f}: I = {less:.3f}",
        ),
        Number("I(X_i; X_j) by sampling", sampled, corrected=by_blocks, error=error),
    ]


def check_T4_3a(rng: np.random.Generator) -> list[Evidence]:
    shares, d = np.array([0.5, 0.3, 0.2]), 6
    v = rng.standard_normal((3, d))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    drawn = v[rng.choice(3, 50_000, p=shares)]
    second, squared = weighted_tokens(shares, v, 1.0), weighted_tokens(shares, v, 2.0)
    direction = v[0]
    along, along_error = mean_and_error((drawn @ direction) ** 2)
    spread, spread_error = variance_and_error(drawn @ direction)
    mean = shares @ v
    covariance = second - np.outer(mean, mean)
    lengths = float((drawn**2).sum(1).mean())
    rank = int(np.linalg.matrix_rank(covariance, tol=1e-9))
    return [
        Number(
            "E (v_1'x)^2",
            along,
            float(direction @ squared @ direction),
            float(direction @ second @ direction),
            along_error,
        ),
        Number("E |x|^2, the trace", lengths, float(np.trace(squared)), float(np.trace(second))),
        Number("Var v_1'x", spread, corrected=float(direction @ covariance @ direction), error=spread_error),
        Fact("sum lambda_i^2 v_i v_i' has at most rank k", bool(np.linalg.matrix_rank(squared, tol=1e-9) <= 3)),
        Fact("the covariance has at most rank k - 1", rank <= 2, "corrected", f"rank {rank}, k = 3"),
    ]


def check_T4_3b(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for _ in range(3):
        first, second, cosine = rng.uniform(0.05, 0.5), rng.uniform(0.05, 0.5), rng.uniform(-0.9, 0.9)
        y = pair_at(float(cosine)).T * np.array([first, second])
        values = np.linalg.eigvalsh(y.T @ y)
        total = first**2 + second**2
        root = np.sqrt(total**2 - 4 * first**2 * second**2 * (1 - cosine**2))
        where = f"lambda = {first:.2f}, {second:.2f}, alpha = {cosine:.2f}"
        evidence.append(Number(f"larger eigenvalue, {where}", float(values[1]), float((total + root) / 2)))
        evidence.append(Number(f"smaller eigenvalue, {where}", float(values[0]), float((total - root) / 2)))
    return evidence


def check_T4_3c(rng: np.random.Generator) -> list[Evidence]:
    share, cosine = float(rng.uniform(0.2, 0.5)), float(rng.uniform(0.2, 0.8))
    v = pair_at(cosine)
    small, large = np.linalg.eigvalsh(share**2 * v @ v.T)
    root_weighted = np.linalg.eigvalsh(share * v @ v.T)
    where = f"lambda = {share:.2f}, alpha = {cosine:.2f}"
    up, down = 1 + cosine, 1 - cosine
    return [
        Number(f"larger eigenvalue, {where}", float(large), share * up, share**2 * up),
        Number(f"smaller eigenvalue, {where}", float(small), share * down, share**2 * down),
        Number("larger, weights sqrt(lambda)", float(root_weighted[1]), corrected=share * up),
        Number("smaller, weights sqrt(lambda)", float(root_weighted[0]), corrected=share * down),
    ]


def check_T4_3d(rng: np.random.Generator) -> list[Evidence]:
    shares = rng.dirichlet(np.ones(5))
    v = rng.standard_normal((5, 8))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    y, rooted = v.T * shares, v.T * np.sqrt(shares)
    return [
        Number("tr Y'Y, Y = [lambda_i v_i]", float(np.trace(y.T @ y)), float((shares**2).sum())),
        Number("tr Y'Y, Y = [sqrt(lambda_i) v_i]", float(np.trace(rooted.T @ rooted)), corrected=1.0),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="T4.1",
        paper="Wertich",
        place="(4.1), (4.2)",
        statement="A sentence is one Gaussian of blocks S_ij = S_ji^T; a map L of each token makes them L S_ij L^T.",
        printed=r"\Sigma_{LX} = \left[ L \Sigma_{ij} L^T \right]_{ij}, \quad \Sigma_{ij} = \Sigma_{ji}^T",
        remark="It is called positive definite; estimated from no more than n d sentences it is singular.",
        check=check_T4_1,
    ),
    Entry(
        id="T4.2a",
        paper="Wertich",
        place="§4.2.2",
        statement="An invertible map adds the logarithm of its determinant's modulus to the entropy.",
        printed=r"H(L X_i) = H(X_i) + \log |\det L| = H(X_i) + \sum_i \log \sigma_i(L)",
        remark="The text says that entropy grows where det L > 1; it does where |det L| > 1, reflections included.",
        check=check_T4_2a,
    ),
    Entry(
        id="T4.2b",
        paper="Wertich",
        place="§4.2.2",
        statement="The information of two tokens is the same after an invertible map of both.",
        printed=r"\det \Sigma_L = (\det L)^4 \det \Sigma, \quad I(L X_i; L X_j) = I(X_i; X_j)",
        check=check_T4_2b,
    ),
    Entry(
        id="T4.2c",
        paper="Wertich",
        place="§4.2.2",
        statement="Linear layers keep the information of tokens; only non-linear maps alter it.",
        printed=r"I(L X_i; L X_j) = I(X_i; X_j) \text{ for linear layers}",
        corrected=r"I(f(X_i); f(X_j)) \le I(X_i; X_j), \quad \text{equal for invertible } f \text{, linear or not}",
        remark="The projection diag(0, 1) loses what the first coordinates share; exp, not linear, loses nothing. "
        "Heads' projections from d to d_k dimensions are of the first kind.",
        check=check_T4_2c,
    ),
    Entry(
        id="T4.2d",
        paper="Wertich",
        place="§4.2.2",
        statement="The KL divergence of two Gaussians is the same after an invertible map of both.",
        printed=r"D_{KL}(L p \| L q) = D_{KL}(p \| q)",
        check=check_T4_2d,
    ),
    Entry(
        id="T4.2e",
        paper="Wertich",
        place="§4.2",
        statement="Where the determinant of S_ij is smaller, so is the information of the two tokens.",
        printed=r"\det \Sigma_{ij} \text{ smaller} \Leftrightarrow I(X_i; X_j) \text{ smaller}",
        corrected=r"I(X_i; X_j) = -\frac{1}{2} \log \det\left( 1"
        r" - \Sigma_{ii}^{-1} \Sigma_{ij} \Sigma_{jj}^{-1} \Sigma_{ji} \right)",
        remark="One strong direction beside none has determinant 0 and more information than two weak ones: canonical "
        "correlations decide.",
        check=check_T4_2e,
    ),
    Entry(
        id="T4.3a",
        paper="Wertich",
        place="§4.3.1",
        statement="The second moment of a token that is v_i with probability lambda_i, by vectors lambda_i v_i.",
        printed=r"Y Y^T = \sum_i \lambda_i^2 v_i v_i^T = \sum_i \lambda_i v_i v_i^T",
        corrected=r"E[x x^T] = \sum_i \lambda_i v_i v_i^T, \quad \operatorname{Cov}(x) = E[x x^T] - \mu \mu^T",
        remark="Two forms are printed; the second is right, with columns sqrt(lambda_i) v_i. The covariance, about the "
        "mean, has rank k - 1 at most.",
        check=check_T4_3a,
    ),
    Entry(
        id="T4.3b",
        paper="Wertich",
        place="§4.3.2",
        statement="The eigenvalues of the Gram matrix of two scaled unit vectors.",
        printed=r"\frac{\lambda_1^2 + \lambda_2^2 \pm \sqrt{(\lambda_1^2 + \lambda_2^2)^2 - 4 \lambda_1^2 \lambda_2^2"
        r" (1 - \alpha_{12}^2)}}{2}",
        check=check_T4_3b,
    ),
    Entry(
        id="T4.3c",
        paper="Wertich",
        place="§4.3.2",
        statement="For equal probabilities these eigenvalues are lambda (1 +- alpha).",
        printed=r"\lambda_1 \approx \lambda_2 = \lambda \Rightarrow \lambda (1 \pm \alpha_{12})",
        corrected=r"\lambda^2 (1 \pm \alpha_{12})",
        remark="With the weights sqrt(lambda_i) that the second moment needs (T4.3a) the printed form is right.",
        check=check_T4_3c,
    ),
    Entry(
        id="T4.3d",
        paper="Wertich",
        place="§4.3.1",
        statement="The trace of the Gram matrix of vectors scaled with lambda_i.",
        printed=r"\operatorname{tr}(Y^T Y) = \sum_i \lambda_i^2",
        remark="With weights sqrt(lambda_i) it is 1.",
        check=check_T4_3d,
    ),
)
