"""W_q W_k' as the logits see it in models that normalise q and k: gains folded in, divided by the norms.

Such a model computes q = N(x W_q) g / rms(N(x W_q)) with N the identity (RMS norm) or the subtraction of the channels'
mean (layer norm), and k alike. N and the gain g are linear, so they belong to the weights; 1 / rms differs from token
to token and is taken at its mean. The logits are then about scale x_i' W x_j with

    W = s_q s_k (W_q N g_q) (W_k N g_k)',     s = mean of 1 / rms.

Without a text, s is 1 / rms of an x of unit covariance, where the mean square of q is |W_q N|_F^2 over its channels. So
the scale of W_q and W_k does not matter, as in the model.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Layer, QKNorm
from armillary.anatomy.weights import LayerWeights, NormWeights
from armillary.lenses.products import ProductSpectrum, product_spectrum
from armillary.theory.random_matrix import alignment_z


@dataclass(frozen=True)
class EffectiveProduct:
    """Of every head: the spectrum of the effective W for x of unit covariance, s_q s_k there, and the alignment."""

    qk: ProductSpectrum
    norm_scale: Float[np.ndarray, "head"]
    align_z: Float[np.ndarray, "head"]


def effective_product(layer: Layer, weights: LayerWeights) -> EffectiveProduct:
    """The effective W_q W_k' of a layer's heads; that of the weights themselves where q and k are not normalised."""
    q, q_scale = folded(layer.qk_norm, weights.q, weights.q_norm)
    k, k_scale = folded(layer.qk_norm, weights.k, weights.k_norm)
    key_head = [layer.kv_head(a) for a in range(layer.heads)]
    keys = [k[g] for g in key_head]
    scale = np.array([q_scale[a] * k_scale[g] for a, g in enumerate(key_head)])
    spectrum = product_spectrum([matrix * s for matrix, s in zip(q, scale, strict=True)], keys)
    d, e = q[0].shape
    z = [
        alignment_z(float(trace / s), float(a.norm()), float(b.norm()), d, e)
        for trace, s, a, b in zip(spectrum.trace, scale, q, keys, strict=True)
    ]
    return EffectiveProduct(spectrum, scale, np.array(z))


def folded(
    norm: QKNorm | None, matrices: tuple[Float[Tensor, "d e"], ...], weights: NormWeights | None
) -> tuple[list[Float[Tensor, "d e"]], list[float]]:
    """The heads' matrices with the norm's mean taken out and its gain folded in, and 1 / rms for x of unit covariance.

    Layer norm takes from every channel the mean of the head's channels, or of all heads' where it is over all.
    """
    wide = [matrix.double() for matrix in matrices]
    if norm is None:
        return wide, [1.0] * len(wide)
    assert weights is not None
    if norm.kind == "layer":
        means = [matrix.mean(1, keepdim=True) for matrix in wide]
        if norm.over == "all":
            means = [torch.stack(means).mean(0)] * len(wide)
        wide = [matrix - mean for matrix, mean in zip(wide, means, strict=True)]
    squares = [float(matrix.square().sum()) / matrix.shape[1] for matrix in wide]
    if norm.over == "all":
        squares = [sum(squares) / len(squares)] * len(squares)
    scales = [(square + norm.eps) ** -0.5 for square in squares]
    gains = [gain.double() + norm.offset for gain in weights.weight]
    return [matrix * gain for matrix, gain in zip(wide, gains, strict=True)], scales
