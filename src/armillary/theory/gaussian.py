"""Gaussian laws: entropy, divergence, mutual information, and their images under linear maps and attention weights.

Natural logarithms. Covariances are about the mean (theory T2.2h; the paper's are not centered). A covariance estimated
from few samples is singular up to rounding: use `shrunk` before a determinant or an inverse.
"""

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import entr

from armillary.errors import ArmillaryError

Vector = Float[np.ndarray, "d"]
Covariance = Float[np.ndarray, "d d"]

CHUNK = 4096
"""Samples that `jensen_shannon` draws at a time."""
DETERMINISTIC = 1e-12
"""A canonical correlation that is this close to 1 is a deterministic relation."""


def entropy(covariance: Covariance) -> float:
    """1/2 log((2 pi e)^d |S|); -inf if |S| is not positive (theory T2.2b)."""
    sign, log_determinant = np.linalg.slogdet(covariance.astype(np.float64))
    return float((len(covariance) * np.log(2 * np.pi * np.e) + log_determinant) / 2) if sign > 0 else -np.inf


def cross_entropy(mean_p: Vector, cov_p: Covariance, mean_q: Vector, cov_q: Covariance) -> float:
    """H(p, q) = 1/2 [d log(2 pi) + log|S_q| + tr(S_q^-1 S_p) + squared Mahalanobis distance of the means by S_q].

    The paper has (2 pi e)^d, which is d/2 too much (theory T2.2c, T2.2d).
    """
    factor = _factor(cov_q, "q")
    distance, relative = _standardized(factor, mean_p - mean_q, cov_p)
    log_determinant = 2 * np.log(np.diag(factor)).sum()
    return float((len(mean_p) * np.log(2 * np.pi) + log_determinant + np.trace(relative) + distance) / 2)


def kl(mean_p: Vector, cov_p: Covariance, mean_q: Vector, cov_q: Covariance) -> float:
    """KL(p || q) = 1/2 [tr(S_q^-1 S_p) - d - log|S_q^-1 S_p| + squared Mahalanobis distance] (theory T2.2e).

    A sum of nonnegative terms over the eigenvalues of S_q^-1 S_p; +inf if p has no density.
    """
    distance, relative = _standardized(_factor(cov_q, "q"), mean_p - mean_q, cov_p)
    excess = np.linalg.eigvalsh(relative) - 1
    with np.errstate(divide="ignore"):
        return float((np.sum(excess - np.log1p(np.maximum(excess, -1))) + distance) / 2)


def jensen_shannon(
    mean_p: Vector, cov_p: Covariance, mean_q: Vector, cov_q: Covariance, *, samples: int = 100_000, seed: int = 0
) -> tuple[float, float]:
    """JSD(p || q) against the true mixture m = (p + q)/2, and its standard error; at most log 2 (theory T2.2f).

    m is not Gaussian and there is no closed form: the mean of log(p/m) over `samples` draws of p is averaged with the
    same for q.
    """
    if samples < 2:
        raise ArmillaryError(f"samples={samples}: a standard error needs at least 2 draws of each law.")
    laws = (mean_p, _factor(cov_p, "p")), (mean_q, _factor(cov_q, "q"))
    rng = np.random.default_rng(seed)
    gains = [_log_against_mixture(*own, *other, samples, rng) for own, other in (laws, laws[::-1])]
    error = np.sqrt(sum(gain.var(ddof=1) for gain in gains) / samples) / 2
    return float(sum(gain.mean() for gain in gains) / 2), float(error)


def mutual_information(
    cov_x: Float[np.ndarray, "d d"], cov_y: Float[np.ndarray, "f f"], cov_xy: Float[np.ndarray, "d f"]
) -> float:
    """I(X; Y) = 1/2 log(|S_x||S_y|/|S|) = -1/2 sum log(1 - rho_i^2), rho_i the canonical correlations (theory T2.2g).

    Never negative; +inf for a deterministic relation. Directions without variance are left out.
    """
    rho = np.linalg.svd(_whitening(cov_x) @ cov_xy @ _whitening(cov_y).T, compute_uv=False)
    if rho.max(initial=0.0) > 1 + 1e-6:
        raise ArmillaryError(
            f"These covariances have a canonical correlation of {rho.max():.6g}, above 1, which is impossible: "
            "estimate cov_x, cov_y and cov_xy from the same samples about the same means."
        )
    if rho.max(initial=0.0) > 1 - DETERMINISTIC:
        return np.inf
    return float(-np.log1p(-np.square(rho)).sum() / 2)


def linear_map(
    mean: Vector, cov: Covariance, a: Float[np.ndarray, "m d"]
) -> tuple[Float[np.ndarray, "m"], Float[np.ndarray, "m m"]]:
    """The law of A x: mean A mu, covariance A S A' (theory T2.1f)."""
    return np.asarray(a @ mean), np.asarray(a @ cov @ a.T)


def combination(
    weights: Float[np.ndarray, "row token"],
    means: Float[np.ndarray, "token d"],
    covariances: Float[np.ndarray, "token token d d"],
) -> tuple[Float[np.ndarray, "row d"], Float[np.ndarray, "row row d d"]]:
    """The joint law of z_k = sum_i w_ki x_i: means sum_i w_ki mu_i, Cov(z_k, z_l) = sum_ij w_ki w_lj S_ij.

    S_ij = Cov(x_i, x_j) (theory T7.1a). The sum is Gaussian, not a mixture (T7.1b). The weights are fixed: softmax
    weights that depend on x add variance, 11 to 29 % for independent tokens of spread 0.3, more than 100 % at spread 1
    (T7.1c).
    """
    over_first = np.tensordot(weights, covariances, axes=(1, 0))  # row token d d
    both = np.tensordot(weights, over_first, axes=(1, 1))  # the second row comes first
    return np.asarray(weights @ means), np.asarray(both.swapaxes(0, 1))


def shrunk(covariance: Covariance, amount: float | int) -> Covariance:
    """(1 - amount) S + amount (tr S / d) I: the same trace, eigenvalues shrunk to their mean."""
    if not 0 <= amount <= 1:
        raise ArmillaryError(
            f"amount={amount}",
            advice="expected the share of the identity, from 0 (none) to 1.",
            given=amount,
            expected="0 to 1",
        )
    d = len(covariance)
    return np.asarray((1 - amount) * covariance + amount * np.trace(covariance) / d * np.eye(d))


def effective_rank(covariance: Covariance) -> float:
    """exp of the entropy of the eigenvalues as shares of their sum: 1 to d; NaN for a matrix of zeros."""
    values = _eigenvalues(covariance)
    return float(np.exp(entr(values / values.sum()).sum())) if values.any() else np.nan


def isotropy(covariance: Covariance) -> float:
    """Geometric over arithmetic mean of the eigenvalues: 1 for a sphere, 0 if singular; NaN if all are zero."""
    values = _eigenvalues(covariance)
    if not values.all():
        return 0.0 if values.any() else np.nan
    return float(np.exp(np.log(values).mean()) / values.mean())


def _eigenvalues(covariance: Covariance) -> Vector:
    """Eigenvalues; those that are zero up to rounding are set to zero."""
    values = np.linalg.eigvalsh(covariance.astype(np.float64))
    return np.where(values > _rounding(values), values, 0.0)


def _rounding(eigenvalues: Vector) -> float:
    return float(len(eigenvalues) * np.finfo(np.float64).eps * np.abs(eigenvalues).max(initial=0.0))


def _factor(covariance: Covariance, name: str) -> Covariance:
    """The lower Cholesky factor."""
    try:
        return np.linalg.cholesky(covariance.astype(np.float64))
    except np.linalg.LinAlgError:
        raise ArmillaryError(
            f"The covariance of {name} ({len(covariance)} x {len(covariance)}) is not positive definite, so "
            f"{name} has no density",
            advice="use more samples than dimensions, leading components, or `shrunk(covariance, amount)`.",
        ) from None


def _standardized(factor: Covariance, difference: Vector, cov: Covariance) -> tuple[float, Covariance]:
    """In coordinates where the factored law is standard: squared length of the difference, and the covariance."""
    half = solve_triangular(factor, cov, lower=True)
    relative = solve_triangular(factor, half.T, lower=True)
    return float(np.square(solve_triangular(factor, difference, lower=True)).sum()), (relative + relative.T) / 2


def _log_against_mixture(
    mean: Vector, factor: Covariance, other_mean: Vector, other_factor: Covariance, count: int, rng: np.random.Generator
) -> Float[np.ndarray, "count"]:
    """log(p/m) = log 2 - log(1 + q/p) at draws of p."""
    offset = np.log(np.diag(factor)).sum() - np.log(np.diag(other_factor)).sum()
    gains = []
    for start in range(0, count, CHUNK):
        noise = rng.standard_normal((len(mean), min(CHUNK, count - start)))
        x = mean[:, None] + factor @ noise
        from_other = solve_triangular(other_factor, x - other_mean[:, None], lower=True)
        log_ratio = offset + (np.square(noise).sum(0) - np.square(from_other).sum(0)) / 2
        gains.append(np.log(2) - np.logaddexp(0, log_ratio))
    return np.concatenate(gains)


def _whitening(covariance: Covariance) -> Float[np.ndarray, "r d"]:
    """A with A S A' = I on the r directions that have variance; coordinates are first divided by their spread."""
    spread = np.sqrt(np.maximum(np.diag(covariance).astype(np.float64), 0))
    unit = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 0)
    values, vectors = np.linalg.eigh(covariance * np.outer(unit, unit))
    kept = values > _rounding(values)
    return np.asarray((vectors[:, kept] / np.sqrt(values[kept])).T * unit)
