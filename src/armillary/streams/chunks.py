"""The two-dimensional chunks of q and k that each rotary frequency turns: how long, how aligned, what they add."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.anatomy.description import Rotary
from armillary.anatomy.rebuild import rotate
from armillary.streams.stream import State, wide
from armillary.view import AttentionView


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
        """Products with the first and the other visible keys, and what standing still would change.

        Per frequency, from means and second moments of the keys that each row sees, so that no pair is visited.
        """
        places = torch.arange(view.queries, device=q.device)
        still_q, still_k = (pairs(rotary, rotate(plain, part, -places)) for part in (q, k))
        turned_q, turned_k = pairs(rotary, q), pairs(rotary, k)
        query = torch.cat([turned_q, still_q], -1)  # (batch, head, token, frequency, 4): their product with
        key = torch.cat([turned_k, -still_k], -1)  # this is the change of the logit, up to its sign
        first = view.scale * (turned_q[:, :, self.skip :] * _grouped(turned_k[:, :, :1], turned_q)).sum(-1)
        group = query.shape[1] // key.shape[1]
        found = []
        for head in range(key.shape[1]):
            own = query[:, head * group : (head + 1) * group, self.skip :]
            number, mean, second = self._seen_keys(view, head * group, key[:, head])
            found.append(_row_sums(own, number, mean, second, view.scale))
        state = {name: torch.cat([part[name] for part in found]) for name in found[0]}
        return {"first_product": first.sum((0, 2)), **state}

    def _seen_keys(
        self, view: AttentionView, head: int, key: Float[Tensor, "batch key frequency 4"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of the kept keys that each kept row of a head sees: how many, their sum, and the sum of their products."""
        outer = (key[..., :, None] * key[..., None, :]).flatten(2)
        if view.mask is None:
            begin, end = seen_range(view, self.skip)
            number = wide(end - begin)[None, :, None]
            sums = [_between(values, begin, end) for values in (key.flatten(2), outer)]
        else:
            seen = view.visible(slice(self.skip, None))
            shown = wide(seen[:, min(head, seen.shape[1] - 1)])
            shown[..., : self.skip] = 0.0
            number = shown.sum(-1)[..., None]
            sums = [shown @ values for values in (key.flatten(2), outer)]
        count = key.shape[2]
        return number, sums[0].unflatten(-1, (count, 4)), sums[1].unflatten(-1, (count, 4, 4))

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
        for name in ("self", "previous"):  # vectors of length zero have no angle
            empty = (state[f"{name}_bound"].sum(-1) == 0) & (state[f"{name}_cosine"] == 0)
            found[f"{name}_cosine"] = torch.where(empty, torch.nan, found[f"{name}_cosine"])
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
    query: Float[Tensor, "batch group row frequency 4"],
    number: Float[Tensor, "#batch row 1"],
    mean: Float[Tensor, "batch row frequency 4"],
    second: Float[Tensor, "batch row frequency 4 4"],
    scale: float,
) -> State:
    """Sums over rows for the heads of one key head, from the sums over the keys that each row sees."""
    along = (query * mean[:, None]).sum(-1)  # sum over visible keys of the change
    square = ((query[..., :, None] * second[:, None]).sum(-2) * query).sum(-1)
    turned = (query[..., :2] * mean[:, None, ..., :2]).sum(-1)
    several = number[:, None].clamp(min=1)
    rows = (number > 0).double()[:, None].expand(*query.shape[:3], 1).sum((0, 2))
    return {
        "other_product": scale * (turned / several).sum((0, 2)),
        "other_rows": rows,
        "change": scale**2 * (square - along.square() / several).clamp(min=0).sum((0, 2)),
    }


def seen_range(view: AttentionView, skip: int) -> tuple[Int[Tensor, "row"], Int[Tensor, "row"]]:
    """Where the kept keys that each kept row sees begin and end, if no mask tensor says otherwise."""
    at = torch.arange(skip, view.queries, device=view.q.device) + view.keys - view.queries
    begin, end = torch.full_like(at, skip), torch.full_like(at, view.keys)
    if view.window is not None:
        begin, end = (at - view.window + 1).clamp(min=skip), (at + view.window).clamp(max=view.keys)
    if view.causal:
        end = torch.minimum(end, at + 1)
    return begin, torch.maximum(begin, end)


def _between(
    values: Float[Tensor, "batch key n"], begin: Int[Tensor, "row"], end: Int[Tensor, "row"]
) -> Float[Tensor, "batch row n"]:
    """The sum of the values from begin to end, for each row."""
    running = torch.nn.functional.pad(values.cumsum(1), (0, 0, 1, 0))
    return running[:, end.to(running.device)] - running[:, begin.to(running.device)]


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
