"""AttentionView: q, k, v, scale, mask and bias of one attention layer, and its logits and attention, row by row."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NEVER = -1e8
"""An additive mask below this means 'not visible'; no position bias is that low."""


@dataclass(frozen=True)
class AttentionView:
    """One layer's attention while the model runs; tensors are the model's own, detached: do not write to them.

    q and k are rotated and normalized. With grouped keys there are fewer key heads than heads, and head a reads key
    head a // group. The logit of key j for query i is scale * q_i.k_j + bias; a soft-cap is applied to scale * q.k
    before the bias is added. The softmax runs over the keys that `visible` allows, and the sink logit if there is
    one. x is the input of the layer's projections; `valid` is False for padding; tokens are the token ids of the keys,
    if the caller of the model gives them. keys_from: what k and v are computed from, in cross-attention.
    """

    q: Float[Tensor, "batch head query e"]
    k: Float[Tensor, "batch kv_head key e"]
    v: Float[Tensor, "batch kv_head key ev"]
    scale: float
    mask: Bool[Tensor, "#batch #head #query key"] | None = None
    causal: bool = False
    window: int | None = None
    bias: Float[Tensor, "#batch #head #query key"] | None = None
    softcap: float | None = None
    sinks: Float[Tensor, "head"] | None = None
    output: Float[Tensor, "batch query head ev"] | None = None
    layer: int = 0
    module: str = ""
    x: Float[Tensor, "batch query d"] | None = None
    valid: Bool[Tensor, "batch query"] | None = None
    tokens: Int[Tensor, "batch key"] | None = None
    keys_from: Float[Tensor, "batch key d"] | None = None

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    @property
    def valid_queries(self) -> Bool[Tensor, "batch query"]:
        """False for rows of padding."""
        if self.valid is not None:
            return self.valid
        return torch.ones(self.q.shape[0], self.queries, dtype=torch.bool, device=self.q.device)

    def of_head(self, head: int) -> "AttentionView":
        """The view of one head, so that the others are not computed."""
        key_head = head // (self.heads // self.k.shape[1])

        def own(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or tensor.shape[1] == 1 else tensor[:, head : head + 1]

        return replace(
            self,
            q=self.q[:, head : head + 1],
            k=self.k[:, key_head : key_head + 1],
            v=self.v[:, key_head : key_head + 1],
            mask=own(self.mask),
            bias=own(self.bias),
            sinks=None if self.sinks is None else self.sinks[head : head + 1],
            output=None,
        )

    def first_sequences(self, count: int) -> "AttentionView":
        """The view of the batch's first sequences alone."""

        def own(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[:count]

        return replace(
            self,
            q=self.q[:count],
            k=self.k[:count],
            v=self.v[:count],
            mask=own(self.mask),
            bias=own(self.bias),
            output=own(self.output),
            x=own(self.x),
            valid=own(self.valid),
            tokens=own(self.tokens),
            keys_from=own(self.keys_from),
        )

    def products(self, rows: slice = slice(None)) -> Float[Tensor, "batch head row key"]:
        """scale * q.k for these queries, in float32 or better."""
        return grouped_products(self.q[:, :, rows], self.k).mul_(self.scale)

    def logits(self, rows: slice = slice(None)) -> Float[Tensor, "batch head row key"]:
        """scale * q.k + bias for these queries, without the soft-cap and the mask."""
        return self._with_bias(self.products(rows), rows)

    def _with_bias(self, products: Tensor, rows: slice) -> Tensor:
        return products if self.bias is None else products + _rows_of(self.bias, rows)

    def visible(self, rows: slice = slice(None)) -> Bool[Tensor, "#batch #head row key"]:
        """Which keys each query may see."""
        query = torch.arange(self.queries, device=self.q.device)[rows, None] + self.keys - self.queries
        key = torch.arange(self.keys, device=self.q.device)[None, :]
        seen = torch.ones(query.shape[0], self.keys, dtype=torch.bool, device=self.q.device)
        if self.causal:
            seen = seen & (key <= query)
        if self.window is not None:
            seen = seen & ((query - key).abs() < self.window)
        return seen[None, None] if self.mask is None else seen & _rows_of(self.mask, rows)

    def attention(self, rows: slice = slice(None)) -> Float[Tensor, "batch head row key"]:
        """The attention probabilities of these queries; rows that see nothing are zero."""
        seen = self.visible(rows)
        logits = self._with_bias(soft_capped(self.products(rows), self.softcap), rows)
        logits.masked_fill_(~seen, -torch.inf)
        if self.sinks is not None:
            sink = self.sinks.to(logits.dtype)[None, :, None, None].expand(*logits.shape[:-1], 1)
            return torch.cat([logits, sink], -1).softmax(-1)[..., :-1]
        attention = logits.softmax(-1)
        empty = ~seen.any(-1, keepdim=True)
        return attention.masked_fill(empty, 0.0) if bool(empty.any()) else attention

    def mixed_values(self, rows: slice = slice(None)) -> Float[Tensor, "batch row head ev"]:
        """attention times v: the input of the output projection."""
        a = self.attention(rows)
        with exact_arithmetic(a):
            grouped = a.reshape(a.shape[0], self.v.shape[1], -1, a.shape[-1])
            mixed = grouped @ self.v.to(a.dtype)
        return mixed.reshape(*a.shape[:3], self.v.shape[-1]).transpose(1, 2)


def grouped_products(
    q: Float[Tensor, "batch head row e"], k: Float[Tensor, "batch kv_head key e"]
) -> Float[Tensor, "batch head row key"]:
    """q.k of every head with its key head, in float32 or better, without a copy of k per head."""
    wide = torch.promote_types(q.dtype, torch.float32)
    batch, heads, rows, e = q.shape
    with exact_arithmetic(q):
        merged = q.reshape(batch, k.shape[1], -1, e).to(wide) @ k.to(wide).transpose(-1, -2)
    return merged.reshape(batch, heads, rows, k.shape[2])


def exact_arithmetic(tensor: Tensor) -> torch.autocast:
    """Turns off autocast, under which the model may be running."""
    return torch.autocast(tensor.device.type, enabled=False)


def soft_capped(products: Float[Tensor, "*dims"], cap: float | None) -> Float[Tensor, "*dims"]:
    """cap * tanh(products / cap), or the products if there is no cap."""
    return products if cap is None else cap * torch.tanh(products / cap)


def row_centered(
    logits: Float[Tensor, "batch head row key"], kept: Bool[Tensor, "#batch #head row key"]
) -> Float[Tensor, "batch head row key"]:
    """Logits minus their mean over the row's kept keys, zero elsewhere: a constant per row cancels in the softmax."""
    mean = (logits * kept).sum(-1, keepdim=True) / kept.sum(-1, keepdim=True).clamp(min=1)
    return (logits - mean) * kept


def split_mask(
    mask: Tensor, keys: int
) -> tuple[Bool[Tensor, "batch head query key"], Float[Tensor, "batch head query key"] | None]:
    """A mask of transformers (boolean or additive) as the visible keys, and the bias it adds to them, if any."""
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return mask, None
    seen = mask > max(torch.finfo(mask.dtype).min / 2, NEVER)
    added = mask.masked_fill(~seen, 0.0)
    return seen, added if added.any() else None


def _rows_of(tensor: Tensor, rows: slice) -> Tensor:
    """The rows of a (batch, head, query, key) tensor whose query axis may be broadcast."""
    return tensor if tensor.shape[-2] == 1 else tensor[..., rows, :]
