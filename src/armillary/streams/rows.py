"""Sums over the rows of a tile: of their softmax, and of their logits minus the row's mean.

A tile is float32 (float64 if the model is). Sums along a row have that precision, sums over rows are float64. Sums of a
row over two sets of its keys can be joined.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from armillary.observe.precision import wide
from armillary.observe.view import exact_arithmetic
from armillary.streams.power_sums import of_rows
from armillary.streams.stream import State
from armillary.streams.tiles import Rows

HIDDEN = -1e30
"""Added to the logits of keys that a row does not see."""

FARTHEST = -80.0
"""Logits further below the row's largest are clamped to this: exp of it is negligible, and exp of less is slow."""


@dataclass(frozen=True)
class SoftRows:
    """Weights w = exp(logit - top) of a row's keys: sums of w, of w (logit - top), of w distance; and w of three keys.

    near: w of the row's own key, of the previous one, and of the text's first; zero if they are not among the keys.
    """

    top: Float[Tensor, "batch head row"]
    total: Float[Tensor, "batch head row"]
    gap: Float[Tensor, "batch head row"]
    distance: Float[Tensor, "batch head row"]
    near: Float[Tensor, "three batch head row"]


def soft_rows(
    logits: Float[Tensor, "batch head row key"],
    hidden: Float[Tensor, "#batch #head row key"],
    visible: Float[Tensor, "#batch #head row"],
    distance: Float[Tensor, "row key"],
    block: Rows,
) -> tuple[SoftRows, Float[Tensor, "batch head row key"]]:
    """The sums, and w itself, from soft-capped logits.

    hidden: 0 where a row sees a key, HIDDEN elsewhere; visible: number of keys it sees.
    """
    gap = logits + hidden
    top = gap.amax(-1, keepdim=True)
    weight = gap.sub_(top).clamp_(min=FARTHEST).exp()
    if not bool((visible > 0).all()):
        weight = weight * (visible > 0).to(weight.device)[..., None]
    mean_gap = wide(gap.mul_(weight).sum(-1))

    def of_key(place: Tensor) -> Tensor:
        """The weight of one key of each row."""
        present = (place >= block.keys.start) & (place < block.keys.stop)
        at = (place - block.keys.start).clamp(0, weight.shape[-1] - 1)[:, None].expand(*weight.shape[:3], 1)
        return wide(weight.gather(-1, at)[..., 0] * present)

    near = torch.stack([of_key(place) for place in (block.query, block.query - 1, torch.zeros_like(block.query))])
    total = wide(weight.sum(-1))
    far = wide(torch.mul(weight, distance, out=gap).sum(-1))
    return SoftRows(wide(top[..., 0]), total, mean_gap, far, near), weight


def joined(a: SoftRows, b: SoftRows) -> SoftRows:
    """The sums over the keys of both."""
    top = torch.maximum(a.top, b.top)
    down, off = a.top - top, b.top - top
    less, lower = down.exp(), off.exp()
    return SoftRows(
        top,
        less * a.total + lower * b.total,
        less * (a.gap + down * a.total) + lower * (b.gap + off * b.total),
        less * a.distance + lower * b.distance,
        less * a.near + lower * b.near,
    )


def attention_sums(soft: SoftRows, visible: Float[Tensor, "#batch #head row"], sinks: Tensor | None) -> State:
    """Sums over sequences and rows of entropy, masses and distance of the attention a = w / sum w.

    visible: how many keys a row sees. A sink is one more outcome. The entropy is log sum w - mean (logit - top).
    """
    sink_mass = torch.zeros_like(soft.total)
    if sinks is not None:
        soft = with_sinks(soft, sinks)
        sink_mass = (wide(sinks)[None, :, None] - soft.top).exp() / soft.total
    total = soft.total.clamp(min=torch.finfo(torch.float64).tiny)
    entropy = torch.where(visible > 0, total.log() - soft.gap / total, 0.0).clamp(min=0)
    several = visible > 1
    share = torch.where(several, entropy / visible.clamp(min=2).log(), 0.0)
    own, before, first = (soft.near / total).sum((1, 3))
    return {
        "entropy": entropy.sum((0, 2)),
        "entropy_norm": share.sum((0, 2)),
        "entropy_rows": wide(several.expand_as(total).sum((0, 2))),
        "self_mass": own,
        "prev_mass": before,
        "first_mass": first,
        "sink_mass": sink_mass.sum((0, 2)),
        "mean_distance": (soft.distance / total).sum((0, 2)),
    }


def with_sinks(soft: SoftRows, sinks: Float[Tensor, "head"]) -> SoftRows:
    """The sums with a learned sink as one more key, at no distance."""
    none = torch.zeros_like(soft.total)
    sink = wide(sinks)[None, :, None].expand_as(none)
    return joined(soft, SoftRows(sink, none + 1, none, none, torch.zeros_like(soft.near)))


def attention_rows(
    soft: SoftRows, weight: Float[Tensor, "batch head row key"], sinks: Tensor | None
) -> Float[Tensor, "batch head row key"]:
    """The attention from the weights w of a row and their sums."""
    whole = soft if sinks is None else with_sinks(soft, sinks)
    scale = (soft.top - whole.top).exp() / whole.total.clamp(min=torch.finfo(torch.float64).tiny)
    return weight * scale[..., None].to(weight)


@dataclass(frozen=True)
class CenteredRows:
    """off: logits minus their row's mean over the kept keys; masked: the logits themselves; both 0 at other keys.

    count, mean, square: by row, the number of kept keys, their mean and their sum of squares about it.
    """

    masked: Float[Tensor, "batch head row key"]
    off: Float[Tensor, "batch head row key"]
    count: Float[Tensor, "#batch #head row"]
    mean: Float[Tensor, "batch head row"]
    square: Float[Tensor, "batch head row"]
    squares: Float[Tensor, "batch head row key"]


def centered_rows(
    logits: Float[Tensor, "batch head row key"],
    kept: Float[Tensor, "#batch #head row key"],
    count: Float[Tensor, "#batch #head row"],
) -> CenteredRows:
    """Each row minus its mean over the `count` keys where `kept` is 1."""
    masked = logits * kept
    near = (wide(masked.sum(-1)) / count.clamp(min=1)).to(masked)
    off = torch.addcmul(masked, near[..., None], kept, value=-1)
    more = wide(off.sum(-1)) / count.clamp(min=1)  # the rounding error: `read` needs rows that sum to zero
    off.addcmul_(more.to(off)[..., None], kept, value=-1)
    squares = off.square()
    return CenteredRows(masked, off, count, wide(near) + more, wide(squares.sum(-1)), squares)


@dataclass(frozen=True)
class Spread:
    """For some of a row's logits: their number, mean, and sum of squares about the mean."""

    count: Float[Tensor, "#batch #head row"]
    mean: Float[Tensor, "batch head row"]
    square: Float[Tensor, "batch head row"]


@dataclass(frozen=True)
class RowPowers(Spread):
    """With the sums of third and fourth powers about the mean."""

    third: Float[Tensor, "batch head row"]
    fourth: Float[Tensor, "batch head row"]


def row_powers(rows: CenteredRows) -> RowPowers:
    """Overwrites rows.squares."""
    third = wide((rows.squares * rows.off).sum(-1))
    fourth = wide(rows.squares.square_().sum(-1))
    return RowPowers(rows.count, rows.mean, rows.square, third, fourth)


def logit_moments(rows: RowPowers) -> State:
    """Number, mean and central power sums of the logits of kept pairs, per head."""
    return of_rows(rows.count, rows.mean, rows.square, rows.third, rows.fourth, (0, 2))


def together(a: Spread, b: Spread) -> Spread:
    """The Spread of both sets together."""
    share = b.count / (a.count + b.count).clamp(min=1)
    apart = b.mean - a.mean
    return Spread(a.count + b.count, a.mean + apart * share, a.square + b.square + apart.square() * a.count * share)


def spread_of(logits: Float[Tensor, "batch head row key"], seen: Bool[Tensor, "#batch #head row key"]) -> Spread:
    """The Spread of the logits that a row sees."""
    counted, chosen = wide(seen), wide(logits * seen)
    count = counted.sum(-1)
    mean = chosen.sum(-1) / count.clamp(min=1)
    return Spread(count, mean, ((chosen - mean[..., None]) * counted).square().sum(-1))


def read(
    weights: Float[Tensor, "batch head row key"], k: Float[Tensor, "batch kv_head key e"]
) -> Float[Tensor, "batch head row e"]:
    """Weighted sums of keys; every head uses its key head."""
    batch, heads, rows, keys = weights.shape
    with exact_arithmetic(weights):
        return (weights.reshape(batch, k.shape[1], -1, keys) @ k).reshape(batch, heads, rows, k.shape[-1])


def channel_sums(
    q: Float[Tensor, "batch head row e"],
    read_keys: Float[Tensor, "batch head row e"],
    biased: Float[Tensor, "batch head row"],
    square: Float[Tensor, "batch head row"],
) -> State:
    """What every channel of q and k, and the bias, add to the sum of squares of the row-centered logits b.

    read_keys: sum_j b_ij k_j; biased: sum_j b_ij bias_ij. The part of channel c is sum_ij b_ij scale q_ic k_jc (q
    includes the scale); it need not be centered, since b is. All parts sum to sum b^2.
    """
    return {
        "channel_sum": wide(q * read_keys).sum((0, 2)),
        "bias_sum": biased.sum((0, 2)),
        "logit_square": square.sum((0, 2)),
    }
