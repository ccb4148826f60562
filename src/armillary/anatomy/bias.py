"""Position biases added to the logits: ALiBi's slopes and T5's distance buckets."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.anatomy.description import Alibi, Disentangled, RelativeBias


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """ALiBi's slopes: 2^(-8/n), 2^(-16/n), ... for n heads a power of two; else filled up from the next power."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (a + 1) / power) for a in range(power)]
    between = [2 ** (-8 * (a + 1) / (2 * power)) for a in range(0, 2 * power, 2)]
    return tuple(slopes + between[: heads - power])


def alibi_slopes_mpt(heads: int, bias_max: float) -> tuple[float, ...]:
    """MPT's slopes: those of the next power of two, every other one first."""
    power = 2 ** math.ceil(math.log2(heads))
    slopes = [2 ** (-bias_max * (a + 1) / power) for a in range(power)]
    return tuple(slopes) if power == heads else tuple((slopes[1::2] + slopes[::2])[:heads])


def alibi_bias(alibi: Alibi, query: Int[Tensor, "query"], key: Int[Tensor, "key"]) -> Float[Tensor, "head query key"]:
    """-slope * (i - j) for query position i and key position j."""
    distance = (query[:, None] - key[None, :]).double()
    return -torch.tensor(alibi.slopes, dtype=torch.float64, device=query.device)[:, None, None] * distance


def relative_bias(
    scheme: RelativeBias,
    table: Float[Tensor, "bucket head"],
    query: Int[Tensor, "query"],
    key: Int[Tensor, "key"],
) -> Float[Tensor, "head query key"]:
    """The table's entry for the bucket of each distance."""
    return table[bucket_of(scheme, key[None, :] - query[:, None])].permute(2, 0, 1)


def bucket_of(scheme: RelativeBias, offset: Int[Tensor, "query key"]) -> Int[Tensor, "query key"]:
    """T5's bucket of j - i: near distances one bucket each, farther ones logarithmically, the last open-ended.

    A bidirectional scheme uses the first half of the buckets for keys behind and the second for keys ahead.
    """
    side = scheme.buckets // 2 if scheme.bidirectional else scheme.buckets
    start = torch.where(offset > 0, side, 0) if scheme.bidirectional else torch.zeros_like(offset)
    distance = offset.abs() if scheme.bidirectional else (-offset).clamp(min=0)
    near = side // 2
    ratio = torch.log(distance.clamp(min=1).float() / near) / math.log(scheme.max_distance / near)
    far = (near + (ratio * (side - near)).long()).clamp(max=side - 1)
    return start + torch.where(distance < near, distance, far)


def distance_index(
    scheme: Disentangled, query: Int[Tensor, "query"], key: Int[Tensor, "key"]
) -> Int[Tensor, "query key"]:
    """DeBERTa's row of the table of distances for i - j: near ones one each, farther ones logarithmically."""
    distance = query[:, None] - key[None, :]
    if scheme.buckets:
        near = scheme.buckets // 2
        longest = torch.log(torch.tensor((scheme.max_distance - 1) / near, device=query.device))  # rounded as there
        far = torch.log(distance.abs().clamp(min=near) / near) / longest
        counted = (torch.ceil(far * (near - 1)) + near).long() * distance.sign()
        distance = torch.where(distance.abs() <= near, distance, counted)
    return (distance + scheme.span).clamp(0, 2 * scheme.span - 1)
