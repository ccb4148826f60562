"""Mean entropies of all heads of a view, and the logits that enter the softmax."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.observe.precision import wide
from armillary.observe.softmax import softmax, wide_products
from armillary.observe.view import AttentionView, soft_capped

BLOCK = 400_000
"""Rows are taken so that a block of logits has about this many numbers, which fit the processor's cache."""


def stacked(rows: dict[int, Float[np.ndarray, "head"]]) -> Float[np.ndarray, "layer head"]:
    """Layers in order; NaN where a layer has fewer heads than another."""
    most = max(len(row) for row in rows.values())
    return np.stack([np.pad(rows[i], (0, most - len(rows[i])), constant_values=np.nan) for i in sorted(rows)])


def mean_entropy(view: AttentionView, skip: int) -> Float[np.ndarray, "head"]:
    """Mean attention entropy of every head over rows t >= skip, some rows at a time."""
    rows = max(1, BLOCK // (view.heads * view.keys))
    first = min(skip, view.queries - 1)
    total = torch.zeros(view.heads, dtype=torch.float64, device=view.q.device)
    for start in range(first, view.queries, rows):
        block = slice(start, min(start + rows, view.queries))
        seen = view.visible(block).expand(1, view.heads, -1, -1)
        total += softmax(view, wide(capped(view, block)), seen).entropy.sum((0, 2))
    return np.asarray((total / (view.queries - first)).cpu().numpy())


def capped(view: AttentionView, rows: slice = slice(None)) -> Float[Tensor, "batch head row key"]:
    """The logits that enter the softmax, in float64."""
    bias = view.bias if view.bias is None or view.bias.shape[-2] == 1 else view.bias[..., rows, :]
    products = soft_capped(wide_products(view, rows), view.softcap)
    return products if bias is None else products + wide(bias)
