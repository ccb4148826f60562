"""How much each rotary frequency contributes to the logits of one head on one text."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from armillary.anatomy.description import Layer, Rotary
from armillary.observe.precision import wide
from armillary.observe.softmax import wide_products
from armillary.observe.view import AttentionView, row_centered
from armillary.streams.chunks import pairs


@dataclass(frozen=True)
class FrequencyUse:
    """How one head uses each rotary frequency on one text.

    products[i, f] is the part of frequency f in the sum of squares of row i's centered logits, squares[i] that sum
    itself, over the keys that a scan counts: products.sum(0) / squares.sum() are the shares of docs/reference.md.
    q, k: norms of the chunks of every token.
    """

    radians: Float[np.ndarray, "frequency"]
    products: Float[np.ndarray, "query frequency"]
    squares: Float[np.ndarray, "query"]
    q: Float[np.ndarray, "token frequency"]
    k: Float[np.ndarray, "token frequency"]


@torch.no_grad()
def frequency_use(layer: Layer, view: AttentionView, skip: int) -> FrequencyUse | None:
    """How the one head of this view uses its frequencies after the first `skip` tokens; None if it does not rotate."""
    if not isinstance(layer.position, Rotary):
        return None
    rotary = layer.position.at(view.keys)
    q, k = wide(view.q), wide(view.k)
    counted = view.visible().expand(1, 1, -1, -1).clone()
    counted[..., :skip] = False
    counted[:, :, :skip] = False
    logits = wide_products(view, slice(None))
    logits = logits if view.bias is None else logits + wide(view.bias)
    centered = row_centered(logits, counted)
    products = pairs(rotary, view.scale * q * (centered @ k)).sum(-1)
    lengths = (pairs(rotary, part).square().sum(-1).sqrt()[0, 0].cpu().numpy() for part in (q, k))
    return FrequencyUse(
        np.array(rotary.frequencies),
        products[0, 0].cpu().numpy(),
        centered.square().sum(-1)[0, 0].cpu().numpy(),
        *lengths,
    )
