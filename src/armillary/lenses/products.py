"""Spectra of every head's W_q W_k' and W_v W_o, computed without forming these d x d matrices.

W = A B' of a head has rank e. With A = Q_a R_a and B = Q_b R_b its singular values are those of the e x e
matrix R_a R_b', its nonzero eigenvalues those of B'A, its trace tr(B'A), its squared Frobenius norm tr(A'A B'B).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from armillary.anatomy.description import Layer
from armillary.anatomy.weights import LayerWeights
from armillary.machine.parallel import in_parallel
from armillary.theory.random_matrix import alignment_z

WELL_CONDITIONED = 1e-3
"""Where smallest / largest singular value of a triangular factor is above this, A'A gives the factor to ten digits."""


@dataclass(frozen=True)
class ProductSpectrum:
    """Of W = A B', for every head: singular values and nonzero eigenvalues (largest first), tr W, |W|_F and tr W^2."""

    singular: Float[np.ndarray, "head e"]
    eigenvalues: Complex[np.ndarray, "head e"]
    trace: Float[np.ndarray, "head"]
    frobenius: Float[np.ndarray, "head"]
    square: Float[np.ndarray, "head"]

    @property
    def stable_rank(self) -> Float[np.ndarray, "head"]:
        """|W|_F^2 / |W|_2^2."""
        return over(np.square(self.frobenius), np.square(self.singular[:, 0]))

    @property
    def entropy_rank(self) -> Float[np.ndarray, "head"]:
        """exp of the entropy of the squared singular values, taken as shares."""
        return entropy_rank(np.square(self.singular))

    @property
    def symmetric_share(self) -> Float[np.ndarray, "head"]:
        """(1 + tr(W^2)/|W|_F^2) / 2: the share of |W|_F^2 in the symmetric part of W; 1/2 without structure."""
        return np.asarray((1 + over(self.square, np.square(self.frobenius))) / 2)


@dataclass(frozen=True)
class LayerSpectra:
    """One layer's heads: the spectra of W_q W_k' and W_v W_o, and how W_q and W_k are aligned."""

    qk: ProductSpectrum
    ov: ProductSpectrum
    align_z: Float[np.ndarray, "head"]


def layer_spectra(layer: Layer, weights: LayerWeights) -> LayerSpectra:
    """The spectra of a layer's heads; a key head shared by several query heads is used for each of them."""
    key_head = [layer.kv_head(a) for a in range(layer.heads)]
    qk = _small_products(weights.q, [weights.k[g] for g in key_head])
    ov = _small_products([weights.v[g] for g in key_head], [part.mT for part in weights.o])
    d, e = weights.q[0].shape
    z = [
        alignment_z(float(cross.trace()), sqrt(float(left.trace())), sqrt(float(right.trace())), d, e)
        for cross, left, right in zip(qk.cross, qk.left_gram, qk.right_gram, strict=True)
    ]
    return LayerSpectra(_spectrum(qk), _spectrum(ov), np.array(z))


def product_spectrum(a: Sequence[Float[Tensor, "d e"]], b: Sequence[Float[Tensor, "d e"]]) -> ProductSpectrum:
    """The spectrum of A B' of every head, through e x e matrices, in float64."""
    return _spectrum(_small_products(a, b))


@dataclass(frozen=True)
class _SmallProducts:
    """Of every head's A and B: A'A, B'B and B'A in float64. A matrix that several heads share has one A'A."""

    left: Sequence[Float[Tensor, "d e"]]
    right: Sequence[Float[Tensor, "d e"]]
    left_gram: list[Float[Tensor, "e e"]]
    right_gram: list[Float[Tensor, "e e"]]
    cross: list[Float[Tensor, "e e"]]


def _small_products(a: Sequence[Float[Tensor, "d e"]], b: Sequence[Float[Tensor, "d e"]]) -> _SmallProducts:
    """The products over d, which cost most: each matrix is widened to float64 once a head, in memory that is reused.

    By torch, not numpy: OpenBLAS starts threads of its own inside ours unless the program forbids it.
    """
    scratch = threading.local()
    first_left = {id(matrix): head for head, matrix in reversed(list(enumerate(a)))}
    first_right = {id(matrix): head for head, matrix in reversed(list(enumerate(b)))}

    def of_head(head: int) -> tuple[Tensor | None, Tensor | None, Tensor]:
        left, right = _widened(a[head], scratch, "left"), _widened(b[head], scratch, "right")
        own = (first_left[id(a[head])] == head, first_right[id(b[head])] == head)
        return left.mT @ left if own[0] else None, right.mT @ right if own[1] else None, right.mT @ left

    found = list(in_parallel(of_head, range(len(a))))
    left_grams = {head: gram for head, (gram, _, _) in enumerate(found) if gram is not None}
    right_grams = {head: gram for head, (_, gram, _) in enumerate(found) if gram is not None}
    return _SmallProducts(
        *(a, b),
        [left_grams[first_left[id(matrix)]] for matrix in a],
        [right_grams[first_right[id(matrix)]] for matrix in b],
        [cross for _, _, cross in found],
    )


def _widened(matrix: Float[Tensor, "d e"], scratch: threading.local, name: str) -> Float[Tensor, "d e"]:
    """The matrix in float64 in main memory, laid out as it is stored; valid until the next call with this name."""
    transposed = matrix.stride(0) == 1
    stored = matrix.detach().mT if transposed else matrix.detach()
    buffer = getattr(scratch, name, None)
    if buffer is None or buffer.shape != stored.shape:
        buffer = torch.empty(stored.shape, dtype=torch.float64)
        setattr(scratch, name, buffer)
    wide: Tensor = buffer.copy_(stored)
    return wide.mT if transposed else wide


def _spectrum(products: _SmallProducts) -> ProductSpectrum:
    """A B' has the singular values of R_A R_B' and the nonzero eigenvalues of B'A; heads in batches on every core."""
    heads = range(len(products.cross))
    factor = _triangular_factors([*products.left_gram, *products.right_gram], [*products.left, *products.right])

    def of_heads(some: Sequence[int]) -> tuple[Tensor, Tensor]:
        small = torch.stack([factor[head] @ factor[len(heads) + head].mT for head in some])
        eigenvalues = torch.linalg.eigvals(torch.stack([products.cross[head] for head in some]))
        order = eigenvalues.abs().argsort(-1, descending=True)
        return torch.linalg.svdvals(small), eigenvalues.gather(-1, order)

    found = list(in_parallel(of_heads, _batches(heads)))
    singular, eigenvalues = (torch.cat(field) for field in zip(*found, strict=True))
    cross = torch.stack(products.cross)
    results = (
        torch.nn.functional.pad(singular, (0, cross.shape[-1] - singular.shape[-1])),  # for heads wider than the model
        eigenvalues,
        cross.diagonal(dim1=-2, dim2=-1).sum(-1),
        singular.square().sum(-1).sqrt(),
        (cross * cross.mT).sum((-2, -1)),
    )
    return ProductSpectrum(*(result.numpy() for result in results))


def _batches(items: Sequence[int]) -> list[Sequence[int]]:
    """All in one batch on one core, a few batches for every core on several."""
    threads = torch.get_num_threads()
    size = len(items) if threads == 1 else -(-len(items) // (4 * threads))
    return [items[start : start + size] for start in range(0, len(items), size)]


def _triangular_factors(grams: list[Tensor], matrices: Sequence[Float[Tensor, "d e"]]) -> list[Float[Tensor, "r e"]]:
    """R of A = QR for every matrix A, given A'A: its Cholesky factor where A is well conditioned, else by QR.

    A matrix that occurs several times is factored once.
    """
    first = {id(matrix): place for place, matrix in reversed(list(enumerate(matrices)))}
    distinct = sorted(first.values())

    def of_some(places: Sequence[int]) -> list[Tensor]:
        upper, failed = torch.linalg.cholesky_ex(torch.stack([grams[place] for place in places]), upper=True)
        tall = [matrices[place].shape[0] > matrices[place].shape[1] for place in places]
        good = _well_conditioned(upper) & (failed == 0) & torch.tensor(tall)
        return [
            factor if fine else _by_qr(matrices[place])
            for place, factor, fine in zip(places, upper, good.tolist(), strict=True)
        ]

    factors = [factor for batch in in_parallel(of_some, _batches(distinct)) for factor in batch]
    at = {place: number for number, place in enumerate(distinct)}
    return [factors[at[first[id(matrix)]]] for matrix in matrices]


def _by_qr(matrix: Float[Tensor, "d e"]) -> Float[Tensor, "r e"]:
    upper: Tensor = torch.linalg.qr(matrix.detach().to("cpu", torch.float64), mode="r").R
    return upper


def _well_conditioned(factors: Float[Tensor, "n e e"]) -> Bool[Tensor, "n"]:
    """By |R|_F |R^-1|_F, an upper bound of the condition number; by the number itself where the bound is too large."""
    identity = torch.eye(factors.shape[-1], dtype=factors.dtype).expand_as(factors)
    inverse = torch.linalg.solve_triangular(factors, identity, upper=True)
    good: Tensor = WELL_CONDITIONED * factors.norm(dim=(-2, -1)) * inverse.norm(dim=(-2, -1)) < 1
    for place in (~good & factors.isfinite().all(-1).all(-1)).nonzero()[:, 0].tolist():
        singular = torch.linalg.svdvals(factors[place])
        good[place] = singular[-1] > WELL_CONDITIONED * singular[0]
    return good


def entropy_rank(energies: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch"]:
    """exp(-sum p log p) with p the energies as shares: the effective number of directions; NaN if all are zero."""
    total = energies.sum(-1, keepdims=True)
    p = np.divide(energies, total, out=np.zeros_like(energies), where=total > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p), 0.0)
    return np.where(total[..., 0] > 0, np.exp(-terms.sum(-1)), np.nan)


def over(a: Float[np.ndarray, "*n"], b: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """a / b, NaN where b is zero."""
    return np.asarray(np.divide(a, b, out=np.full_like(a, np.nan), where=b > 0))
