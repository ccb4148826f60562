"""The effective W_q W_k' of models that normalize q and k: gains folded in, divided by the norms.

Such a model computes q = N(x W_q) g / rms(N(x W_q)) with N the identity (RMS norm) or the subtraction of the channels'
mean (layer norm), and k alike. N and the gain g are linear, so they are folded into the weights; 1 / rms differs from
token to token and is replaced by its mean. The logits are then about scale x_i' W x_j with

    W = s_q s_k (W_q N g_q) (W_k N g_k)',     s = mean of 1 / rms.

Without a text, s is 1 / rms for x of unit covariance, where the mean square of q is |W_q N|_F^2 / channels. So the
scale of W_q and W_k does not matter, as in the model. Where q or k come from a normalized latent vector, the channels
that do are divided by its rms in the same way, for x of unit covariance.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Layer, QKNorm
from armillary.anatomy.weights import Latent, LayerWeights, NormWeights
from armillary.lenses.products import ProductSpectrum, product_spectrum
from armillary.theory.random_matrix import alignment_z


@dataclass(frozen=True)
class EffectiveProduct:
    """For every head: the spectrum of the effective W for x of unit covariance, its s_q s_k, and the alignment z."""

    qk: ProductSpectrum
    norm_scale: Float[np.ndarray, "head"]
    align_z: Float[np.ndarray, "head"]


def effective_product(layer: Layer, weights: LayerWeights) -> EffectiveProduct:
    """The effective W_q W_k' of a layer's heads; W_q W_k' itself where nothing is normalized after a projection."""
    q, q_scale = folded(layer.qk_norm, divided(weights.q, weights.q_latent), weights.q_norm)
    k, k_scale = folded(layer.qk_norm, divided(weights.k, weights.k_latent), weights.k_norm)
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


def divided(matrices: tuple[Float[Tensor, "d e"], ...], latent: Latent | None) -> tuple[Float[Tensor, "d e"], ...]:
    """The heads' matrices, with channels that come from a latent vector divided by its rms for x of unit covariance."""
    if latent is None:
        return matrices
    square = float(latent.down.double().square().sum())
    square += 0.0 if latent.bias is None else float(latent.bias.double().square().sum())
    factor = (square / latent.down.shape[1] + latent.eps) ** -0.5
    return tuple(
        torch.cat([matrix[:, : latent.channels] * factor, matrix[:, latent.channels :]], 1) for matrix in matrices
    )


def folded(
    norm: QKNorm | None, matrices: tuple[Float[Tensor, "d e"], ...], weights: NormWeights | None
) -> tuple[list[Float[Tensor, "d e"]], list[float]]:
    """The heads' matrices with N and the gain folded in, and 1 / rms for x of unit covariance.

    Layer norm subtracts the mean over the head's channels, or over all heads' channels if `norm.over` is 'all'.
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
