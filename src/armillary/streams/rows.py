"""What the rows of a tile say: their softmax, their logits less the row's mean, and sums of both; in float64 by row.

A tile is float32 (float64 if the model is); every row is summed in that, and rows are summed in float64.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from armillary.streams.power_sums import of_rows
from armillary.streams.stream import State, wide
from armillary.streams.tiles import Rows, Tile
from armillary.view import exact_arithmetic

HIDDEN = -1e30
"""Added to the logits of keys that a row does not see."""

FARTHEST = -80.0
"""Logits so far below the row's largest count as this far: exp of it is nothing beside 1, and exp of less is slow."""


def row_statistics(
    logits: Float[Tensor, "batch head row key"],
    hidden: Float[Tensor, "#batch #head row key"],
    visible: Float[Tensor, "#batch #head row"],
    distance: Float[Tensor, "row key"],
    block: Rows,
    sinks: Float[Tensor, "head"] | None,
) -> State:
    """Sums over sequences and rows of what the attention probabilities say, from capped logits.

    hidden: 0 where a row sees a key, HIDDEN elsewhere; visible: how many it sees; distance: how far they are. With
    weights w = exp(logit - top), a = w / sum w, the entropy is log sum w minus the mean of (logit - top).
    """
    gap = logits + hidden
    top = gap.amax(-1, keepdim=True)
    sink_gap = None
    if sinks is not None:
        sink = sinks.to(gap.dtype)[None, :, None, None].expand_as(top)
        top = torch.maximum(top, sink)
        sink_gap = wide((sink - top)[..., 0])
    weight = gap.sub_(top).clamp_(min=FARTHEST).exp()
    if not bool((visible > 0).all()):
        weight = weight * (visible > 0).to(weight.device)[..., None]
    total = wide(weight.sum(-1))
    mean_gap = wide(gap.mul_(weight).sum(-1))
    sink_weight = torch.zeros_like(total)
    if sink_gap is not None:
        sink_weight = sink_gap.exp()
        total = total + sink_weight
        mean_gap = mean_gap + sink_weight * sink_gap
    total = total.clamp(min=torch.finfo(torch.float64).tiny)
    entropy = torch.where(visible > 0, total.log() - mean_gap / total, 0.0).clamp(min=0)
    several = visible > 1
    share = torch.where(several, entropy / visible.clamp(min=2).log(), 0.0)

    def mass(key: Tensor) -> Tensor:
        """The attention on one key of each row, zero where it is not in the block."""
        there = (key >= block.keys.start) & (key < block.keys.stop)
        at = (key - block.keys.start).clamp(0, weight.shape[-1] - 1)[:, None].expand(*weight.shape[:3], 1)
        return (wide(weight.gather(-1, at)[..., 0] * there) / total).sum((0, 2))

    return {
        "entropy": entropy.sum((0, 2)),
        "entropy_norm": share.sum((0, 2)),
        "entropy_rows": wide(several.expand(*weight.shape[:3]).sum((0, 2))),
        "self_mass": mass(block.query),
        "prev_mass": mass(block.query - 1),
        "first_mass": mass(torch.zeros_like(block.query)),
        "sink_mass": (sink_weight / total).sum((0, 2)),
        "mean_distance": (wide(torch.mul(weight, distance, out=gap).sum(-1)) / total).sum((0, 2)),
    }


@dataclass(frozen=True)
class CentredRows:
    """Logits less their row's mean over some keys, zero elsewhere; by row: how many keys, the mean, the sum of squares.

    masked are the logits themselves, zero elsewhere.
    """

    masked: Float[Tensor, "batch head row key"]
    off: Float[Tensor, "batch head row key"]
    count: Float[Tensor, "#batch #head row"]
    mean: Float[Tensor, "batch head row"]
    square: Float[Tensor, "batch head row"]
    squares: Float[Tensor, "batch head row key"]


def centred_rows(
    logits: Float[Tensor, "batch head row key"],
    kept: Float[Tensor, "#batch #head row key"],
    count: Float[Tensor, "#batch #head row"],
) -> CentredRows:
    """Each row less its mean over the keys where `kept` is 1, which are `count`."""
    masked = logits * kept
    near = (wide(masked.sum(-1)) / count.clamp(min=1)).to(masked)
    off = torch.addcmul(masked, near[..., None], kept, value=-1)
    more = wide(off.sum(-1)) / count.clamp(min=1)  # what rounding left: channel_sums needs rows that sum to zero
    off.addcmul_(more.to(off)[..., None], kept, value=-1)
    squares = off.square()
    return CentredRows(masked, off, count, wide(near) + more, wide(squares.sum(-1)), squares)


def logit_moments(rows: CentredRows) -> State:
    """Number, mean and central power sums of the logits of kept pairs, per head. Overwrites rows.squares."""
    third = wide((rows.squares * rows.off).sum(-1))
    fourth = wide(rows.squares.square_().sum(-1))
    return of_rows(rows.count, rows.mean, rows.square, third, fourth, (0, 2))


def square_with(
    rows: CentredRows, others: Float[Tensor, "batch head row other"], seen: Bool[Tensor, "#batch #head row other"]
) -> Float[Tensor, "batch head row"]:
    """The sum of squares about the row's mean once the other logits that it sees count too."""
    more = wide(seen.sum(-1))
    chosen, counted = wide(others * seen), wide(seen)
    mean = chosen.sum(-1) / more.clamp(min=1)
    own = ((chosen - mean[..., None]) * counted).square().sum(-1)
    together = (rows.count + more).clamp(min=1)
    return rows.square + own + (mean - rows.mean).square() * rows.count * more / together


def channel_sums(tile: Tile, rows: CentredRows) -> State:
    """What every channel of q and k, and the bias, add to the sum of squares of the row-centred logits b.

    The part of channel c is sum_ij b_ij scale q_ic k_jc; since b is centred it need not be. All parts sum to sum b^2.
    """
    off, k = rows.off, tile.k
    with exact_arithmetic(off):
        read = (off.reshape(off.shape[0], k.shape[1], -1, off.shape[-1]) @ k).reshape(tile.q.shape)
    biased = torch.zeros_like(rows.square) if tile.bias is None else wide((off * tile.bias).sum(-1))
    return {
        "channel_sum": wide(tile.q * read).sum((0, 2)),
        "bias_sum": biased.sum((0, 2)),
        "logit_square": rows.square.sum((0, 2)),
    }
