"""Mean and variance of q.k for jointly Gaussian vectors, and over random weights.

x'Cy with C = A B' is the product of q = A'x and k = B'y, so a head needs only moments of its e-wide queries and keys,
no d x d matrix. Cov(k, q) is E[(k - E k)(q - E q)'], with q and k at the two positions of one pair.
"""

import numpy as np
from jaxtyping import Float

Vectors = Float[np.ndarray, "*#batch e"]
Covariances = Float[np.ndarray, "*#batch e e"]
Numbers = Float[np.ndarray, "*batch"]


def product_mean(mean_q: Vectors, mean_k: Vectors, cov_kq: Covariances) -> Numbers:
    """E[q.k] = E q . E k + tr Cov(k, q), over any leading dimensions.

    For x'Cy that is tr(C S_yx); the paper has S_xy (theory T6.2).
    """
    return np.asarray((mean_q * mean_k).sum(-1) + np.trace(cov_kq, axis1=-2, axis2=-1))


def product_variance(
    mean_q: Vectors, mean_k: Vectors, cov_q: Covariances, cov_k: Covariances, cov_kq: Covariances
) -> Numbers:
    """Var(q.k) = tr(S_q S_k) + tr(S_kq S_kq) + m_q'S_k m_q + m_k'S_q m_k + 2 m_q'S_kq m_k, over leading dimensions.

    By Isserlis' theorem; the paper has independent q and k only, where the terms with S_kq vanish (theory T6.3).
    """
    spread = (cov_q * cov_k).sum((-2, -1)) + (cov_kq * np.swapaxes(cov_kq, -1, -2)).sum((-2, -1))
    of_means = _form(mean_q, cov_k, mean_q) + _form(mean_k, cov_q, mean_k) + 2 * _form(mean_q, cov_kq, mean_k)
    return np.asarray(spread + of_means)


def bilinear_mean(
    c: Float[np.ndarray, "d f"],
    mean_x: Float[np.ndarray, "*#batch d"],
    mean_y: Float[np.ndarray, "*#batch f"],
    cov_yx: Float[np.ndarray, "*#batch f d"],
) -> Numbers:
    """E[x'Cy] for any C, symmetric or not: m_x'C m_y + tr(C Cov(y, x)) (theory T6.2)."""
    return product_mean(mean_x @ c, mean_y, cov_yx @ c)


def bilinear_variance(
    c: Float[np.ndarray, "d f"],
    mean_x: Float[np.ndarray, "*#batch d"],
    mean_y: Float[np.ndarray, "*#batch f"],
    cov_x: Float[np.ndarray, "*#batch d d"],
    cov_y: Float[np.ndarray, "*#batch f f"],
    cov_yx: Float[np.ndarray, "*#batch f d"],
) -> Numbers:
    """Var(x'Cy) for any C: the product of q = C'x and k = y (theory T6.3)."""
    return product_variance(mean_x @ c, mean_y, c.T @ cov_x @ c, cov_y, cov_yx @ c)


def self_pair_mean(c: Float[np.ndarray, "d d"], mean: Float[np.ndarray, "d"], cov: Float[np.ndarray, "d d"]) -> float:
    """E[x'Cx] = tr(C S) + m'C m: a token that attends to itself (theory T6.2.4)."""
    return float(bilinear_mean(c, mean, mean, cov))


def self_pair_variance(
    c: Float[np.ndarray, "d d"], mean: Float[np.ndarray, "d"], cov: Float[np.ndarray, "d d"]
) -> float:
    """Var(x'Cx) = 2 tr(C_s S C_s S) + 4 m'C_s S C_s m with C_s = (C + C')/2; not in the paper (theory T6.2.4)."""
    return float(bilinear_variance(c, mean, mean, cov, cov, cov))


def independent_weights_variance(
    x: Float[np.ndarray, "*#batch d"], y: Float[np.ndarray, "*#batch d"], n: int, variance: float | int | None = None
) -> Numbers:
    """Var <Ax, By> = n s^4 |x|^2 |y|^2 over independent n x d matrices of variance s^2 (1/n if not given); mean 0.

    The same at every angle between x and y, as for one matrix C of variance n s^4 (the paper has a term in the cosine:
    theory T6.47, T6.48b). Where A and B differ in variance, s^4 is the product of the two.
    """
    return np.asarray(n * _entry(n, variance) ** 2 * _squares(x, y))


def tied_weights_mean(
    x: Float[np.ndarray, "*#batch d"], y: Float[np.ndarray, "*#batch d"], n: int, variance: float | int | None = None
) -> Numbers:
    """E <Ax, Ay> = n s^2 <x, y> over an n x d matrix of variance s^2 (1/n if not given) (theory T6.48b)."""
    return np.asarray(n * _entry(n, variance) * (x * y).sum(-1))


def tied_weights_variance(
    x: Float[np.ndarray, "*#batch d"], y: Float[np.ndarray, "*#batch d"], n: int, variance: float | int | None = None
) -> Numbers:
    """Var <Ax, Ay> = n s^4 (|x|^2 |y|^2 + <x, y>^2), Gaussian entries of variance s^2 (1/n if not given) (T6.48b)."""
    return np.asarray(n * _entry(n, variance) ** 2 * (_squares(x, y) + np.square((x * y).sum(-1))))


def symmetric_weights_variance(
    x: Float[np.ndarray, "*#batch d"], y: Float[np.ndarray, "*#batch d"], n: int, variance: float | int | None = None
) -> Numbers:
    """Var x'Cy = s^2 (|x|^2 |y|^2 + <x, y>^2) over C = (G + G')/sqrt 2, G of variance s^2 (1/n if not given); mean 0.

    Independent weights do not depend on the angle; symmetric and tied weights do (theory T6.48b).
    """
    return np.asarray(_entry(n, variance) * (_squares(x, y) + np.square((x * y).sum(-1))))


def excess_kurtosis_of_product(singular_values: Float[np.ndarray, "*batch r"]) -> Float[np.ndarray, "*batch"]:
    """6 sum s^4 / (sum s^2)^2: of x'Cy for independent standard normal x, y and the singular values s of C.

    0 for a normal law, 6 for rank one (theory T6.4; the paper says chi-squared); NaN if all values are zero.
    """
    squares = np.square(singular_values)
    with np.errstate(invalid="ignore"):
        return np.asarray(6 * np.square(squares).sum(-1) / np.square(squares.sum(-1)))


def _form(left: Vectors, matrix: Covariances, right: Vectors) -> Numbers:
    """l'M r, as a matrix product over all heads and lags of a model."""
    return np.asarray((left * (matrix @ right[..., None])[..., 0]).sum(-1))


def _squares(x: Vectors, y: Vectors) -> Numbers:
    return np.asarray(np.square(x).sum(-1) * np.square(y).sum(-1))


def _entry(n: int, variance: float | int | None) -> float:
    return float(1 / n if variance is None else variance)
