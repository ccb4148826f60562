"""A head's attention when something is taken out of its logits: position, content, frequencies, a key."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.anatomy.description import Anatomy, Rotary
from armillary.softmax import softmax, wide_products
from armillary.streams.constituents import TERMS, LogitParts, Means
from armillary.streams.stream import wide
from armillary.view import AttentionView, soft_capped

CONTENT = tuple(term for term in TERMS if "cvec" in term)
TAKEN = {
    "content": CONTENT,
    "position": tuple(term for term in TERMS if term not in CONTENT),
    "matching": ("cvec_cvec",),
    "all but matching": tuple(term for term in TERMS if term != "cvec_cvec"),
    "preference": ("mean_cvec", "pos_cvec"),
    "all but preference": tuple(term for term in TERMS if term not in ("mean_cvec", "pos_cvec")),
}
"""Which terms of the logits each removal takes out."""

REMOVALS = (*TAKEN, "fast", "slow", "first", "others")
"""Beside the terms: fast, slow: rotary frequencies that turn at least once within the text, and the others with all
that does not turn; first: what tells the first key from the mean of the others; others: what tells the others from
their mean."""


@dataclass
class Removal:
    """One layer on one batch of texts: the attention of its heads without what is named."""

    anatomy: Anatomy
    means: Means
    view: AttentionView
    _parts: LogitParts | None = field(default=None, repr=False)
    _terms: dict[int, list[Tensor]] = field(default_factory=dict, repr=False)

    def attention(self, head: int, removal: str) -> Float[Tensor, "batch query key"] | None:
        """The head's attention when this is taken out of its logits; None where there is no such thing."""
        one = self.view.of_head(head)
        seen = one.visible().expand(one.q.shape[0], -1, -1, -1)
        products = wide_products(one, slice(None))
        bias = wide(one.bias) if one.bias is not None else torch.zeros((), dtype=torch.float64)
        if removal in TAKEN:
            terms = self._of_head(head)
            if "bias" in TAKEN[removal]:  # position and all that goes with it: what is left is made of few terms
                left = [terms[i] for i in range(9) if TERMS[i] not in TAKEN[removal]]
                products, bias = torch.stack(left).sum(0), torch.zeros_like(bias)
            else:
                products = products - torch.stack([terms[TERMS.index(term)] for term in TAKEN[removal]]).sum(0)
        elif removal in ("fast", "slow"):
            fast = fast_channels(self.anatomy, self.view)
            if fast is None:
                return None
            quick = (wide(one.q[..., fast]) @ wide(one.k[..., fast]).transpose(-1, -2)) * one.scale
            products = products - quick if removal == "fast" else quick
        else:
            others = seen.clone()
            others[..., 0] = False
            mean = (products * others).sum(-1, keepdim=True) / others.sum(-1, keepdim=True).clamp(min=1)
            here = torch.arange(products.shape[-1], device=products.device) == 0
            products = torch.where(here if removal == "first" else ~here, mean, products)
        return softmax(one, soft_capped(products, one.softcap) + bias, seen).attention[:, 0]

    def _of_head(self, head: int) -> list[Tensor]:
        """The nine products of one head; q and k are split once for the layer, their products made once for a head."""
        if self._parts is None:
            self._parts = LogitParts(self.anatomy, self.means, self.view)
        if head not in self._terms:
            self._terms = {head: self._parts.of_head(head)}  # of the last head alone: they are large
        return self._terms[head]


def fast_channels(anatomy: Anatomy, view: AttentionView) -> Int[Tensor, "channel"] | None:
    """The channels of q and k whose frequency turns at least once within the text; None without rotary encoding."""
    rotary = anatomy.layers[view.layer].position
    if not isinstance(rotary, Rotary):
        return None
    turning = [
        f for f, radians in enumerate(rotary.at(view.queries).frequencies) if abs(radians) * view.queries >= 2 * np.pi
    ]
    half = rotary.width // 2
    pairs = [(f, f + half) if rotary.layout == "half" else (2 * f, 2 * f + 1) for f in turning]
    return torch.tensor([channel for pair in pairs for channel in pair], dtype=torch.long, device=view.q.device)
