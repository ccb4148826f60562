"""A head's attention when a part of its logits is removed: position, content, frequencies, a key."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.anatomy.description import Anatomy, Rotary
from armillary.observe.precision import wide
from armillary.observe.softmax import softmax, wide_products
from armillary.observe.view import AttentionView, soft_capped
from armillary.streams.constituents import TERMS, LogitParts, Means

CONTENT = tuple(term for term in TERMS if "cvec" in term)
REMOVED_TERMS = {
    "content": CONTENT,
    "position": tuple(term for term in TERMS if term not in CONTENT),
    "matching": ("cvec_cvec",),
    "all but matching": tuple(term for term in TERMS if term != "cvec_cvec"),
    "preference": ("mean_cvec", "pos_cvec"),
    "all but preference": tuple(term for term in TERMS if term not in ("mean_cvec", "pos_cvec")),
}
"""The terms of the logits that each removal removes."""

REMOVALS = (*REMOVED_TERMS, "fast", "slow", "first", "others")
"""Besides the terms: 'fast' removes the rotary frequencies that complete a turn within the text, 'slow' all other
channels; 'first' gives the first key the mean logit of the others, 'others' gives all others their mean."""


@dataclass
class Removal:
    """One layer on one batch of sequences: the attention of its heads after a removal."""

    anatomy: Anatomy
    means: Means
    view: AttentionView
    _parts: LogitParts | None = field(default=None, repr=False)
    _terms: dict[int, list[Tensor]] = field(default_factory=dict, repr=False)

    def attention(self, head: int, removal: str) -> Float[Tensor, "batch query key"] | None:
        """The head's attention after a removal; None if it does not apply (frequencies without rotary encoding)."""
        view = self.view.of_head(head)
        seen = view.visible().expand(view.q.shape[0], -1, -1, -1)
        products = wide_products(view, slice(None))
        bias = wide(view.bias) if view.bias is not None else torch.zeros((), dtype=torch.float64)
        if removal in REMOVED_TERMS:
            terms = self._of_head(head)
            if "bias" in REMOVED_TERMS[removal]:  # few terms are left: add those
                left = [term for name, term in zip(TERMS, terms, strict=True) if name not in REMOVED_TERMS[removal]]
                products, bias = torch.stack(left).sum(0), torch.zeros_like(bias)
            else:
                products = products - torch.stack([terms[TERMS.index(term)] for term in REMOVED_TERMS[removal]]).sum(0)
        elif removal in ("fast", "slow"):
            fast = fast_channels(self.anatomy, self.view)
            if fast is None:
                return None
            quick = (wide(view.q[..., fast]) @ wide(view.k[..., fast]).transpose(-1, -2)) * view.scale
            products = products - quick if removal == "fast" else quick
        else:
            others = seen.clone()
            others[..., 0] = False
            mean = (products * others).sum(-1, keepdim=True) / others.sum(-1, keepdim=True).clamp(min=1)
            is_first = torch.arange(products.shape[-1], device=products.device) == 0
            products = torch.where(is_first if removal == "first" else ~is_first, mean, products)
        return softmax(view, soft_capped(products, view.softcap) + bias, seen).attention[:, 0]

    def _of_head(self, head: int) -> list[Tensor]:
        """The ten terms of one head; q and k are split once per layer, their products computed once per head."""
        if self._parts is None:
            self._parts = LogitParts(self.anatomy, self.means, self.view)
        if head not in self._terms:
            self._terms = {head: self._parts.of_head(head)}  # only the last head's: they are large
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
    return torch.tensor(
        [rotary.start + channel for pair in pairs for channel in pair], dtype=torch.long, device=view.q.device
    )
