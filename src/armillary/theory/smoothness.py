"""Low frequencies and low rank of smooth Gram matrices: discrete cosine energies and Song's Theorem 1, corrected.

Theorem 1 (theory S7 to S11, S24): for a Gram matrix G of T vectors with G 1 = 0, P_k the projector on the first k
vectors of the orthonormal DCT-II and Delta the mixed difference of the evenly reflected G~ with factor T^2,

    (1/T) |G - P_k G P_k|_2  <=  6 / (4 k)^m  max |Delta^(m,m) G~|.

The paper has 8 k instead of 4 k, a basis that is not the DCT-II, and does not require a centered G.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.fft import dct

Matrix = Float[np.ndarray, "t t"]


def dct_energy(matrix: Float[np.ndarray, "*batch t u"], k: int) -> Float[np.ndarray, "*batch"]:
    """Share of the squared 2-D DCT-II coefficients in the first k x k frequencies; NaN for a matrix of zeros."""
    return dct_energies(matrix, (k,))[..., 0]


def dct_energies(matrix: Float[np.ndarray, "*batch t u"], ks: Sequence[int]) -> Float[np.ndarray, "*batch k"]:
    """dct_energy for several k. Only these coefficients are computed: all together have the energy of the matrix."""
    left, right = (_dct_basis(n)[: max(ks)] for n in matrix.shape[-2:])
    energy = np.square(left @ matrix @ right.T)
    total = np.square(matrix).sum((-2, -1), dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.stack([energy[..., :k, :k].sum((-2, -1)) / total for k in ks], -1)
    return np.asarray(np.minimum(shares, 1))  # rounding


@cache
def _dct_basis(t: int) -> Float[np.ndarray, "t t"]:
    """The orthonormal DCT-II: a row for every frequency."""
    return np.asarray(dct(np.eye(t), axis=0, norm="ortho"))


def gram(vectors: Float[np.ndarray, "*batch t d"]) -> Float[np.ndarray, "*batch t t"]:
    """Cosines between the vectors; a vector of zeros has cosine 0 with all."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return np.asarray(unit @ np.swapaxes(unit, -1, -2))


def centered(matrix: Matrix) -> Matrix:
    """The Gram matrix of the centered vectors: rows and columns sum to zero."""
    columns_centered = matrix - matrix.mean(0, keepdims=True)
    return np.asarray(columns_centered - columns_centered.mean(1, keepdims=True))


def mixed_difference(matrix: Matrix, order: int = 1) -> Float[np.ndarray, "two_t two_t"]:
    """Delta^(m,m) of the even reflection, periodic, with a factor T^2 for each order."""
    t = len(matrix)
    reflected = np.block([[matrix, matrix[:, ::-1]], [matrix[::-1], matrix[::-1, ::-1]]])
    for _ in range(order):
        down = reflected - np.roll(reflected, 1, axis=0)
        reflected = t**2 * (down - np.roll(down, 1, axis=1))
    return np.asarray(reflected)


def smoothness(matrix: Matrix, order: int = 1) -> float:
    """max |Delta^(m,m) G~|: small for a smooth matrix. Orders above 1 are large for most smooth ones (theory S10)."""
    if order == 1:  # zero across the mirror, so the largest is inside the matrix
        return float(len(matrix) ** 2 * np.abs(np.diff(np.diff(matrix, axis=0), axis=1)).max())
    return float(np.abs(mixed_difference(matrix, order)).max())


def low_frequency_residual(matrix: Matrix, k: int) -> float:
    """(1/T) |G - P_k G P_k|_2: the residual of the first k frequencies."""
    t = len(matrix)
    basis = _dct_basis(t)[:k]
    residual = matrix - basis.T @ (basis @ matrix @ basis.T) @ basis
    return float(np.abs(np.linalg.eigvalsh(residual)).max() / t)


def low_frequency_bound(matrix: Matrix, k: int, order: int = 1) -> float:
    """The right-hand side of the corrected theorem."""
    return float(6 / (4 * k) ** order * smoothness(matrix, order))
