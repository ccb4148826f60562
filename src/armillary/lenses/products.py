"""Spectra of every head's W_q W_k' and W_v W_o, computed without forming these d x d matrices.

W = A B' of a head has rank e. With A = Q_a R_a and B = Q_b R_b its singular values are those of the e x e
matrix R_a R_b', its nonzero eigenvalues those of B'A, its trace tr(B'A), its squared Frobenius norm tr(A'A B'B).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Complex, Float
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
    q, k = (list(in_parallel(triangular, part)) for part in (weights.q, weights.k))
    qk = _spectrum(weights.q, [weights.k[g] for g in key_head], q, [k[g] for g in key_head])
    d, e = weights.q[0].shape
    z = [
        alignment_z(float(trace), float(q[a].norm()), float(k[g].norm()), d, e)
        for a, (g, trace) in enumerate(zip(key_head, qk.trace, strict=True))
    ]
    v, o = list(in_parallel(triangular, weights.v)), [part.mT for part in weights.o]
    ov = _spectrum([weights.v[g] for g in key_head], o, [v[g] for g in key_head], list(in_parallel(triangular, o)))
    return LayerSpectra(qk, ov, np.array(z))


def product_spectrum(a: Sequence[Float[Tensor, "d e"]], b: Sequence[Float[Tensor, "d e"]]) -> ProductSpectrum:
    """The spectrum of A B' of every head, through e x e matrices, in float64."""
    return _spectrum(a, b, list(in_parallel(triangular, a)), list(in_parallel(triangular, b)))


def _spectrum(a: Sequence[Tensor], b: Sequence[Tensor], left: list[Tensor], right: list[Tensor]) -> ProductSpectrum:
    """The same, given the triangular factors R_A and R_B: A B' has the singular values of R_A R_B'."""

    def of_head(head: int) -> tuple[Tensor, ...]:
        small = b[head].double().mT @ a[head].double()
        singular = torch.linalg.svdvals(left[head] @ right[head].mT)
        eigenvalues = torch.linalg.eigvals(small)
        results = (
            torch.nn.functional.pad(singular, (0, small.shape[0] - len(singular))),  # for heads wider than the model
            eigenvalues[eigenvalues.abs().argsort(descending=True)],
            small.trace(),
            singular.square().sum().sqrt(),
            (small * small.mT).sum(),
        )
        return tuple(result.cpu() for result in results)

    heads = list(in_parallel(of_head, range(len(a))))
    return ProductSpectrum(*(torch.stack(field).numpy() for field in zip(*heads, strict=True)))


def triangular(a: Float[Tensor, "d e"]) -> Float[Tensor, "r e"]:
    """R of A = QR in float64; the Cholesky factor of A'A (three times faster) where A is well conditioned."""
    a = a.double()
    if a.shape[0] > a.shape[1]:
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(a.mT @ a, upper=True)
        if not failed and _well_conditioned(factor):
            return factor
    upper: Tensor = torch.linalg.qr(a, mode="r").R
    return upper


def _well_conditioned(factor: Float[Tensor, "e e"]) -> bool:
    """By |R|_F |R^-1|_F, an upper bound of the condition number; by the number itself where the bound is too large."""
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=True)
    if WELL_CONDITIONED * factor.norm() * inverse.norm() < 1:
        return True
    singular = torch.linalg.svdvals(factor)
    return bool(singular[-1] > WELL_CONDITIONED * singular[0])


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
