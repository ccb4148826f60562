"""Computes q, k and logits from the weights and the attention input alone, to check the tap against.

Every step (project, normalize, rotate) is linear given the token's norm. The constituents lens relies on that.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.anatomy.bias import alibi_bias, distance_index, relative_bias
from armillary.anatomy.description import (
    Alibi,
    Anatomy,
    Disentangled,
    GridRotary,
    Growth,
    Layer,
    QKNorm,
    RelativeBias,
    Rotary,
)
from armillary.anatomy.weights import Latent, LayerWeights, NormWeights, stack
from armillary.errors import ArmillaryError
from armillary.observe.view import grouped_products


def rebuilt_logits(
    anatomy: Anatomy,
    layer: int,
    x: Float[Tensor, "batch token d"],
    positions: Int[Tensor, "*texts token"] | None = None,
) -> Float[Tensor, "batch head token token"]:
    """scale * q.k + position bias of every pair of tokens, before soft-cap and mask."""
    described, weights = anatomy.layers[layer], anatomy.weights(layer)
    if positions is None:
        positions = torch.arange(x.shape[1], device=x.device)
    if described.scale is None:
        raise ArmillaryError(anatomy.missing)
    q, k = queries_and_keys(described, weights, x, positions)
    logits = grouped_products(q, k) * described.scale
    bias = position_bias(described, weights, positions)
    if isinstance(described.position, Disentangled):
        by_query, by_key = distance_terms(described, weights, q, k, positions)
        bias = by_query + by_key
    return logits if bias is None else logits + bias


def queries_and_keys(
    layer: Layer, weights: LayerWeights, x: Float[Tensor, "batch token d"], positions: Int[Tensor, "*texts token"]
) -> tuple[Float[Tensor, "batch head token e"], Float[Tensor, "batch kv_head token e"]]:
    """q and k as they enter the product: projected, clipped, normalized, rotated."""
    q = times_latent(project(x, weights.q, weights.q_bias), weights.q_latent, x)
    k = times_latent(project(x, weights.k, weights.k_bias), weights.k_latent, x)
    if layer.clip_qkv is not None:
        q, k = q.clamp(-layer.clip_qkv, layer.clip_qkv), k.clamp(-layer.clip_qkv, layer.clip_qkv)
    if layer.qk_norm is not None:
        assert weights.q_norm is not None
        assert weights.k_norm is not None
        q, k = normalize(layer.qk_norm, weights.q_norm, q), normalize(layer.qk_norm, weights.k_norm, k)
    q, k = turned(layer, q, positions), turned(layer, k, positions)
    return (q if layer.growth is None else q * growth_of(layer.growth, positions, q)), k


def values(
    layer: Layer, weights: LayerWeights, x: Float[Tensor, "batch token d"]
) -> Float[Tensor, "batch kv_head token ev"]:
    """v as attention mixes it: projected, clipped, normalized."""
    v = project(x, weights.v, weights.v_bias)
    if weights.k_latent is not None:
        v = v * latent_factor(weights.k_latent, x)
    if layer.clip_qkv is not None:
        v = v.clamp(-layer.clip_qkv, layer.clip_qkv)
    if layer.value_norm is not None:
        v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + layer.value_norm)
    return v


def gates(weights: LayerWeights, x: Float[Tensor, "batch token d"]) -> Float[Tensor, "batch token head e"] | None:
    """The factors by which the heads' outputs are multiplied before W_o; None without a gate."""
    if weights.gate is None:
        return None
    return project(x, weights.gate, weights.gate_bias).sigmoid().transpose(1, 2)


def growth_of(
    growth: Growth, positions: Int[Tensor, "*texts token"], q: Float[Tensor, "batch head token e"]
) -> Float[Tensor, "#batch 1 token 1"]:
    """The factor of q at each position."""
    steps = torch.floor((positions.double() + growth.ahead) / growth.every)
    factor = (1 + growth.slope * torch.log1p(steps)).to(q.dtype)
    return factor.reshape(-1, 1, positions.shape[-1], 1)


def latent_factor(latent: Latent, x: Float[Tensor, "batch token d"]) -> Float[Tensor, "batch 1 token 1"]:
    """1 / rms of the latent vector of every token."""
    c = x @ latent.down.to(x.dtype)
    c = c if latent.bias is None else c + latent.bias.to(x.dtype)
    return torch.rsqrt(c.square().mean(-1) + latent.eps)[:, None, :, None]


def times_latent(
    q: Float[Tensor, "batch head token e"], latent: Latent | None, x: Float[Tensor, "batch token d"]
) -> Float[Tensor, "batch head token e"]:
    """q with the channels that come from a latent vector divided by its norm."""
    if latent is None:
        return q
    return torch.cat([q[..., : latent.channels] * latent_factor(latent, x), q[..., latent.channels :]], -1)


def project(
    x: Float[Tensor, "batch token d"],
    matrices: tuple[Float[Tensor, "d e"], ...],
    biases: tuple[Float[Tensor, "e"], ...] | None,
) -> Float[Tensor, "batch head token e"]:
    """x W + b of every head, in one product for all heads."""
    beside = torch.cat([matrix.to(x.dtype) for matrix in matrices], 1)
    projected = x.reshape(-1, x.shape[-1]) @ beside
    if biases is not None:
        projected += torch.cat([bias.to(x.dtype) for bias in biases])
    return projected.view(*x.shape[:2], len(matrices), -1).transpose(1, 2)


def normalize(
    norm: QKNorm, weights: NormWeights, q: Float[Tensor, "batch head token e"]
) -> Float[Tensor, "batch head token e"]:
    """The q/k norm: root mean square or layer norm, over a head's channels or over all heads' at once."""
    q, factor = _centered(norm, q)
    q = q * factor
    q = q * (stack(weights.weight).to(q.dtype) + norm.offset)[:, None, :]
    return q if weights.bias is None else q + stack(weights.bias).to(q.dtype)[:, None, :]


def _centered(
    norm: QKNorm, q: Float[Tensor, "batch head token e"]
) -> tuple[Float[Tensor, "batch head token e"], Float[Tensor, "batch #head token 1"]]:
    """q minus its mean (for a layer norm), and the factor 1 / rms."""
    over = (-1,) if norm.over == "head" else (1, 3)
    if norm.kind == "layer":
        q = q - q.mean(over, keepdim=True)
    return q, torch.rsqrt(q.square().mean(over, keepdim=True) + norm.eps)


def norm_factors(
    norm: QKNorm, weights: LayerWeights, x: Float[Tensor, "batch token d"]
) -> tuple[Float[Tensor, "batch head token"], Float[Tensor, "batch kv_head token"]]:
    """1 / rms by which the q/k norm multiplies each token's q and k, of every head."""
    q, k = project(x, weights.q, weights.q_bias), project(x, weights.k, weights.k_bias)
    factors = [_centered(norm, part)[1].expand(*part.shape[:-1], 1)[..., 0] for part in (q, k)]
    return factors[0], factors[1]


def turned(
    layer: Layer, q: Float[Tensor, "batch head token e"], positions: Int[Tensor, "*texts token"]
) -> Float[Tensor, "batch head token e"]:
    """q or k, rotated as the layer does; as it is in a layer without rotation."""
    if isinstance(layer.position, GridRotary):
        return rotate_in_grid(layer.position, q)
    if not isinstance(layer.position, Rotary):
        return q
    return rotate(layer.position.at(int(positions.max()) + 1), q, placed(layer.position, positions))


def placed(rotary: Rotary, tokens: Int[Tensor, "*texts token"]) -> Int[Tensor, "*texts token"]:
    """The positions of these tokens, counted from 0: themselves, unless the model has random positions."""
    return torch.tensor(rotary.places, device=tokens.device)[tokens] if rotary.places else tokens


def rotate_in_grid(scheme: GridRotary, q: Float[Tensor, "batch head token e"]) -> Float[Tensor, "batch head token e"]:
    """Channel i paired with i + e/2: half of the pairs rotated by the patch's row, the others by its column."""
    down, across = scheme.grid
    if q.shape[2] != scheme.special_first + down * across:
        raise ArmillaryError(
            f"there are {q.shape[2] - scheme.special_first} patches, not the {down} x {across} of the configuration",
            advice="resize the image to the model's own size",
        )
    row, column = (2 * (torch.arange(n, dtype=torch.float64, device=q.device) + 0.5) / n - 1 for n in scheme.grid)
    place = torch.stack(torch.meshgrid(row, column, indexing="ij"), -1).flatten(0, 1)
    frequencies = 2 * torch.pi * torch.tensor(scheme.frequencies, dtype=torch.float64, device=q.device)
    angle = (place[:, :, None] * frequencies).flatten(1)
    angle = torch.nn.functional.pad(angle, (0, 0, scheme.special_first, 0))
    cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
    a, b = q.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotate(
    rotary: Rotary, q: Float[Tensor, "batch head token e"], positions: Int[Tensor, "*texts token"]
) -> Float[Tensor, "batch head token e"]:
    """Pair f rotated by position * frequency f; the other channels stay."""
    rotated = q[..., rotary.channels]
    angle = positions[..., None].double() * torch.tensor(rotary.frequencies, dtype=torch.float64, device=q.device)
    angle = angle if positions.dim() == 1 else angle[:, None]  # (batch, head, token, frequency)
    cos, sin = ((f(angle) * rotary.factor).to(q.dtype) for f in (torch.cos, torch.sin))
    pairs = rotated.unflatten(-1, (2, -1) if rotary.layout == "half" else (-1, 2))
    axis = -2 if rotary.layout == "half" else -1
    a, b = pairs.unbind(axis)
    pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], axis)
    return torch.cat([q[..., : rotary.start], pairs.flatten(-2), q[..., rotary.channels.stop :]], -1)


def parts_of_queries_and_keys(
    layer: Layer,
    weights: LayerWeights,
    parts: tuple[Float[Tensor, "_ _ d"], ...],
    positions: Int[Tensor, "token"],
) -> tuple[list[Float[Tensor, "batch head token e"]], list[Float[Tensor, "batch kv_head token e"]]]:
    """q and k of every part of x, where x is the sum of the parts: they sum to q and k of x, exactly.

    Biases belong to the first part. A norm of q, of k or of their latent divides each part by the norm of the whole.
    """
    if layer.clip_qkv is not None:
        raise ArmillaryError("this model clips q, k and v, so they are not a sum of parts: it has no constituents")
    batch = max(len(part) for part in parts)
    per_projection: list[list[Tensor]] = []
    whole = sum(parts[1:], parts[0])  # its norm is that of every part
    for matrices, biases, norm, latent in (
        (weights.q, weights.q_bias, weights.q_norm, weights.q_latent),
        (weights.k, weights.k_bias, weights.k_norm, weights.k_latent),
    ):
        raw = [project(part, matrices, biases if i == 0 else None) for i, part in enumerate(parts)]
        raw = [times_latent(part.expand(batch, -1, len(positions), -1), latent, whole) for part in raw]
        if layer.qk_norm is not None:
            assert norm is not None
            raw = normalized_parts(layer.qk_norm, norm, raw)
        raw = [turned(layer, part, positions) for part in raw]
        if layer.growth is not None and not per_projection:
            raw = [part * growth_of(layer.growth, positions, part) for part in raw]
        per_projection.append(raw)
    return per_projection[0], per_projection[1]


def normalized_parts(
    norm: QKNorm, weights: NormWeights, parts: list[Float[Tensor, "batch head token e"]]
) -> list[Float[Tensor, "batch head token e"]]:
    """The q/k norm of a sum, part by part, with the norm of the whole; its bias goes to the first part."""
    over = (-1,) if norm.over == "head" else (1, 3)
    if norm.kind == "layer":
        parts = [part - part.mean(over, keepdim=True) for part in parts]
    whole = torch.stack(parts).sum(0)
    factor = torch.rsqrt(whole.square().mean(over, keepdim=True) + norm.eps)
    gain = (stack(weights.weight).to(whole.dtype) + norm.offset)[:, None, :]
    parts = [part * factor * gain for part in parts]
    if weights.bias is not None:
        parts[0] = parts[0] + stack(weights.bias).to(whole.dtype)[:, None, :]
    return parts


def position_bias(
    layer: Layer, weights: LayerWeights, positions: Int[Tensor, "*texts token"]
) -> Float[Tensor, "*texts head token token"] | None:
    """The position bias added to the logits (ALiBi, T5), or None."""
    if positions.dim() == 2:
        biases = [position_bias(layer, weights, row) for row in positions]
        return None if biases[0] is None else torch.stack([bias for bias in biases if bias is not None])
    if isinstance(layer.position, Alibi):
        return alibi_bias(layer.position, positions, positions)
    if isinstance(layer.position, RelativeBias):
        assert weights.relative_bias is not None
        return relative_bias(layer.position, weights.relative_bias, positions, positions)
    return None


def distance_terms(
    layer: Layer,
    weights: LayerWeights,
    q: Float[Tensor, "batch head token e"],
    k: Float[Tensor, "batch head token e"],
    positions: Int[Tensor, "token"],
) -> tuple[Float[Tensor, "batch head token token"], Float[Tensor, "batch head token token"]]:
    """DeBERTa's two terms of the logits: queries with the distances' keys, and keys with the distances' queries."""
    assert isinstance(layer.position, Disentangled)
    index = distance_index(layer.position, positions, positions).expand(*q.shape[:2], -1, -1)
    by_query = by_key = torch.zeros((), dtype=q.dtype, device=q.device).expand(index.shape)
    if weights.relative_keys is not None:
        by_query = (q @ weights.relative_keys.to(q.dtype).mT).gather(-1, index) * (layer.scale or 1.0)
    if weights.relative_queries is not None:
        by_key = (k @ weights.relative_queries.to(k.dtype).mT).gather(-1, index.mT).mT * (layer.scale or 1.0)
    return by_query, by_key


class DistanceParts:
    """DeBERTa's position terms, split as q and k are: what needs no content, and what content adds.

    The query's content with the distance is a term of content and position, like that with the key's position; so is
    the key's content with the distance.
    """

    def __init__(self, layer: Layer, weights: LayerWeights, q: list[Tensor], k: list[Tensor]) -> None:
        """q and k: mean, position and the whole."""
        positions = torch.arange(q[2].shape[2], device=q[2].device)
        plain = distance_terms(layer, weights, q[0] + q[1], k[0] + k[1], positions)
        whole = distance_terms(layer, weights, q[2], k[2], positions)
        self.without_content = plain[0] + plain[1]
        self.of_query, self.of_key = whole[0] - plain[0], whole[1] - plain[1]


def cross_terms(
    layer: Layer, weights: LayerWeights, x: Float[Tensor, "batch query d"], y: Float[Tensor, "batch key d"]
) -> list[Float[Tensor, "batch head query key"]]:
    """The nine terms of cross-attention's logits: mean, position and content of the decoder's x and the encoder's y.

    The positional parts are means over this batch. No family known so far rotates or normalizes q and k there.
    """

    def parts(z: Tensor, matrices: tuple[Tensor, ...], biases: tuple[Tensor, ...] | None) -> list[Tensor]:
        mean = z.mean((0, 1), keepdim=True)
        position = z.mean(0, keepdim=True) - mean
        split = ((mean, biases), (position, None), (z - mean - position, None))
        return [project(part.expand_as(z), matrices, bias) for part, bias in split]

    queries, keys = parts(x, weights.q, weights.q_bias), parts(y, weights.k, weights.k_bias)
    return [grouped_products(q, k) * (layer.scale or 1.0) for q in queries for k in keys]
