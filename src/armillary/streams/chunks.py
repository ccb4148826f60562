"""The two-dimensional chunks of q and k that each rotary frequency turns: how long, how aligned, what they add."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from armillary.anatomy.description import Rotary
from armillary.anatomy.rebuild import rotate
from armillary.streams.stream import State, wide
from armillary.view import AttentionView

ROWS = 512
"""Queries are taken so many at a time where a row of visible keys is needed for each."""


class ChunkNorms:
    """Per head and frequency, over kept tokens; `rotary` is each layer's encoding, a layer without is not measured.

    q_norm, k_norm, v_norm: mean lengths of the chunks (v, which is not rotated, as control). self_product,
    previous_product: mean scale * q_f.k_f of a query with its own key and the one before; self_bound, previous_bound:
    mean scale |q_f||k_f| there (Cauchy-Schwarz), and over all channels as self_cosine, previous_cosine.
    first_product, other_product: mean scale * q_f.k_f with the text's first key, and with the kept keys a row sees.
    change: sum over pairs of the squared change of the logit, less its row's mean, if the frequency stood still.
    """

    def __init__(self, rotary: tuple[Rotary | None, ...], skip: int, length: int) -> None:
        self.rotary = rotary
        self.plain = tuple(None if one is None else replace(one.at(length), factor=1.0) for one in rotary)
        self.skip = skip
        by_head = ("self", "previous", "first", "other")
        self.dims: dict[str, tuple[str, ...]] = {
            "q_norm": ("head", "frequency"),
            "k_norm": ("kv_head", "frequency"),
            "v_norm": ("kv_head", "frequency"),
            **{f"{name}_product": ("head", "frequency") for name in by_head},
            **{f"{name}_bound": ("head", "frequency") for name in ("self", "previous")},
            **{f"{name}_cosine": ("head",) for name in ("self", "previous")},
            "change": ("head", "frequency"),
        }

    def measure(self, batch: AttentionView) -> State:
        rotary, plain = self.rotary[batch.layer], self.plain[batch.layer]
        assert rotary is not None
        assert plain is not None
        q, k, v = (wide(part) for part in (batch.q, batch.k, batch.v))
        group = batch.heads // k.shape[1]
        kept = slice(self.skip, None)
        tokens = q.shape[0] * (batch.queries - self.skip)
        state: State = {
            "tokens": torch.tensor(float(tokens), dtype=torch.float64, device=q.device),
            "pairs": torch.tensor(float(tokens - q.shape[0]), dtype=torch.float64, device=q.device),
        }
        for name, part in (("q", q), ("k", k), ("v", v)):
            state[f"{name}_norm"] = _length(pairs(rotary, part[:, :, kept])).sum((0, 2))
        wide_k = k.repeat_interleave(group, 1)
        for name, query, key in (
            ("self", q[:, :, kept], wide_k[:, :, kept]),
            ("previous", q[:, :, self.skip + 1 :], wide_k[:, :, self.skip : -1]),
        ):
            state |= _alignment(name, rotary, query, key, batch.scale)
        state |= self._by_row(batch, rotary, plain, q, k)
        return state

    def _by_row(self, view: AttentionView, rotary: Rotary, plain: Rotary, q: Tensor, k: Tensor) -> State:
        """Products with the first and the other visible keys, and what standing still would change."""
        places = torch.arange(view.queries, device=q.device)
        still_q, still_k = (pairs(rotary, rotate(plain, part, -places)) for part in (q, k))
        turned_q, turned_k = pairs(rotary, q), pairs(rotary, k)
        query = torch.cat([turned_q, still_q], -1)  # (batch, head, token, frequency, 4): their product with
        key = torch.cat([turned_k, -still_k], -1)  # this is the change of the logit, up to its sign
        first = view.scale * (turned_q[:, :, self.skip :] * _grouped(turned_k[:, :, :1], turned_q)).sum(-1)
        state: State = {"first_product": first.sum((0, 2))}
        for start in range(self.skip, view.queries, ROWS):
            rows = slice(start, min(start + ROWS, view.queries))
            seen = view.visible(rows).clone()
            seen[..., : self.skip] = False
            found = _row_sums(seen, query[:, :, rows], key, view.scale)
            state = {**state, **{name: state[name] + found[name] if name in state else found[name] for name in found}}
        return state

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        over = {"previous_product": "pairs", "previous_bound": "pairs", "previous_cosine": "pairs"}
        found = {}
        for name in self.dims:
            if name == "change":
                found[name] = state[name]
            elif name == "other_product":
                found[name] = state[name] / state["other_rows"]
            else:
                found[name] = state[name] / state[over.get(name, "tokens")]
        return found


def _alignment(
    name: str, rotary: Rotary, q: Float[Tensor, "batch head n e"], k: Float[Tensor, "batch head n e"], scale: float
) -> State:
    """Sums of q_f.k_f, of |q_f||k_f| and of the cosine of q and k over pairs of tokens."""
    a, b = pairs(rotary, q), pairs(rotary, k)
    lengths = _length(q) * _length(k)
    cosine = (q * k).sum(-1) / lengths.clamp(min=torch.finfo(q.dtype).tiny)
    return {
        f"{name}_product": scale * (a * b).sum(-1).sum((0, 2)),
        f"{name}_bound": scale * (_length(a) * _length(b)).sum((0, 2)),
        f"{name}_cosine": cosine.sum((0, 2)),
    }


def _row_sums(
    seen: Bool[Tensor, "#batch #head row key"],
    query: Float[Tensor, "batch head row frequency 4"],
    key: Float[Tensor, "batch kv_head key frequency 4"],
    scale: float,
) -> State:
    """Per frequency, from means and second moments of the keys that each row sees, so that no pair is visited."""
    batch, heads, rows, count, _ = query.shape
    groups = key.shape[1]
    shown = seen.double().expand(batch, heads if seen.shape[1] > 1 else 1, rows, -1)
    per_group = shown if shown.shape[1] == 1 else shown[:, :: heads // groups]  # masks do not split a group
    number = shown.sum(-1)[..., None].clamp(min=1)  # (batch, head or 1, row, 1)
    mean = (per_group @ key.flatten(3)).unflatten(-1, (count, 4))
    outer = (key[..., :, None] * key[..., None, :]).flatten(3)
    second = (per_group @ outer).unflatten(-1, (count, 4, 4))
    wide_mean, wide_second = _grouped(mean, query), _grouped(second, query)
    along = (query * wide_mean).sum(-1)  # sum over visible keys of the change
    square = torch.einsum("bhrfi,bhrfij,bhrfj->bhrf", query, wide_second, query)
    turned = (query[..., :2] * wide_mean[..., :2]).sum(-1)
    visible = (shown.sum(-1) > 0).double()
    return {
        "other_product": scale * (turned / number).sum((0, 2)),
        "other_rows": (visible.expand(batch, heads, rows).sum((0, 2)))[:, None],
        "change": scale**2 * (square - along.square() / number).clamp(min=0).sum((0, 2)),
    }


def _length(vectors: Float[Tensor, "*dims e"]) -> Float[Tensor, "*dims"]:
    """The lengths of the vectors; torch's own norm is several times slower on short ones."""
    return vectors.square().sum(-1).sqrt()


def _grouped(keys: Float[Tensor, "batch kv_head ..."], queries: Float[Tensor, "batch head ..."]) -> Tensor:
    """The key heads repeated for the queries that read them."""
    return keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)


def pairs(rotary: Rotary, vectors: Float[Tensor, "*dims e"]) -> Float[Tensor, "*dims frequency 2"]:
    """The rotated channels as pairs, one for each frequency."""
    turned = vectors[..., : rotary.width]
    frequencies = len(rotary.frequencies)
    if rotary.layout == "interleaved":
        return turned.reshape(*turned.shape[:-1], frequencies, 2)
    return turned.reshape(*turned.shape[:-1], 2, frequencies).transpose(-1, -2)
