"""The two-dimensional chunks of q and k that each rotary frequency rotates: norms, alignment, share of the logits."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.anatomy.description import Rotary
from armillary.machine.compiler import serves
from armillary.machine.parallel import in_spans
from armillary.observe.precision import single, wide
from armillary.observe.rebuild import placed, rotate
from armillary.observe.view import AttentionView
from armillary.streams.declaration import Context, Declaration, Option, Reads
from armillary.streams.stream import Axes, State


class ChunkNorms:
    """Per head and frequency, over kept tokens; `rotary` is each layer's encoding, layers without one are left out.

    q_norm, k_norm, v_norm: mean lengths of the chunks (v, which is not rotated, as control). self_product,
    previous_product: mean scale * q_f.k_f of a query with its own key and the previous one; self_bound,
    previous_bound: mean scale |q_f||k_f| there (Cauchy-Schwarz); self_cosine, previous_cosine: mean cosine of q and k
    over all channels. first_product, other_product: mean scale * q_f.k_f with the text's first key, and with the kept
    keys a row sees. change: sum over pairs of the squared change of the row-centered logit if the frequency is frozen.
    """

    def __init__(self, rotary: tuple[Rotary | None, ...], skip: int, length: int) -> None:
        self.rotary = rotary
        self.plain = tuple(None if layer is None else replace(layer.at(length), factor=1.0) for layer in rotary)
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

    def axes(self) -> Axes:
        """Radians per token of each frequency, in every layer."""
        count = next(len(rotary.frequencies) for rotary in self.rotary if rotary is not None)
        radians = [[np.nan] * count if rotary is None else rotary.frequencies for rotary in self.plain]
        return {"radians_per_token": (("layer", "frequency"), np.array(radians))}

    def measure(self, batch: AttentionView) -> State:
        rotary, plain = self.rotary[batch.layer], self.plain[batch.layer]
        assert rotary is not None
        assert plain is not None
        compiled = self._compiled(batch, rotary, plain) if serves(batch.q) else None
        if compiled is not None:
            return compiled
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

    def _compiled(self, view: AttentionView, rotary: Rotary, plain: Rotary) -> State | None:
        """The same sums from one compiled loop; None if the keys that rows see are not ranges that move forward."""
        # for start-up: they import numba, which may be missing
        from armillary.streams import compiled_chunks as loops
        from armillary.streams.fused import block_of

        block = block_of(view, self.skip, slice(self.skip, view.queries))
        begin = np.maximum(block.begin + block.keys.start, self.skip)
        end = np.maximum(block.end + block.keys.start, begin)
        backward = (np.diff(begin) < 0).any() or (np.diff(end) < 0).any()
        if block.mask.shape[2] or backward or view.queries != view.keys or view.v.shape[-1] < rotary.channels.stop:
            return None
        q, k, v = (single(part).contiguous().numpy() for part in (view.q, view.k, view.v))
        places = placed(plain, torch.arange(view.queries)).numpy()
        angle = places[:, None] * np.array(plain.frequencies)
        heads, kv_heads, count = view.heads, k.shape[1], len(rotary.frequencies)
        sums = np.zeros((heads, len(loops.NAMES) + 1, count))
        keys, values = np.zeros((kv_heads, count)), np.zeros((kv_heads, count))
        cosines, rows = np.zeros((heads, 2)), np.zeros(heads)
        given = (q, k, v, np.cos(angle), np.sin(angle))
        layout = (rotary.start, rotary.layout == "interleaved")
        into = (view.scale, sums, keys, values, cosines, rows)
        in_spans(
            lambda first, last: loops.add_key_heads((first, last), *given, layout, self.skip, begin, end, *into),
            kv_heads,
        )
        tokens = q.shape[0] * (view.queries - self.skip)
        arrays = {
            "tokens": np.array(float(tokens)),
            "pairs": np.array(float(tokens - q.shape[0])),
            **{name: sums[:, index] for index, name in enumerate(loops.NAMES)},
            "k_norm": keys,
            "v_norm": values,
            "self_cosine": cosines[:, 0],
            "previous_cosine": cosines[:, 1],
            "other_rows": rows[:, None],
        }
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    def _by_row(self, view: AttentionView, rotary: Rotary, plain: Rotary, q: Tensor, k: Tensor) -> State:
        """Products with the first and the other visible keys, and the change if each frequency is frozen.

        Computed from means and second moments of the keys that each row sees, without visiting pairs.
        """
        places = placed(plain, torch.arange(view.queries, device=q.device))
        frozen_q, frozen_k = (pairs(rotary, rotate(plain, part, -places)) for part in (q, k))
        rotated_q, rotated_k = pairs(rotary, q), pairs(rotary, k)
        query = torch.cat([rotated_q, frozen_q], -1)  # (batch, head, token, frequency, 4): their product with
        key = torch.cat([rotated_k, -frozen_k], -1)  # this is the change of the logit, up to its sign
        first = view.scale * (rotated_q[:, :, self.skip :] * _grouped(rotated_k[:, :, :1], rotated_q)).sum(-1)
        group = query.shape[1] // key.shape[1]
        sums_by_key_head = []
        for head in range(key.shape[1]):
            own = query[:, head * group : (head + 1) * group, self.skip :]
            number, mean, second = self._seen_keys(view, head * group, key[:, head])
            sums_by_key_head.append(_row_sums(own, number, mean, second, view.scale))
        state = {name: torch.cat([part[name] for part in sums_by_key_head]) for name in sums_by_key_head[0]}
        return {"first_product": first.sum((0, 2)), **state}

    def _seen_keys(
        self, view: AttentionView, head: int, key: Float[Tensor, "batch key frequency 4"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For the kept keys that each kept row of a head sees: their number, sum, and sum of outer products."""
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
        results = {}
        for name in self.dims:
            if name == "change":
                results[name] = state[name]
            elif name == "other_product":
                results[name] = state[name] / state["other_rows"]
            else:
                results[name] = state[name] / state[over.get(name, "tokens")]
        for name in ("self", "previous"):  # zero vectors have no cosine
            empty = (state[f"{name}_bound"].sum(-1) == 0) & (state[f"{name}_cosine"] == 0)
            results[f"{name}_cosine"] = torch.where(empty, torch.nan, results[f"{name}_cosine"])
        return results


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
    rotated = (query[..., :2] * mean[:, None, ..., :2]).sum(-1)
    several = number[:, None].clamp(min=1)
    rows = (number > 0).double()[:, None].expand(*query.shape[:3], 1).sum((0, 2))
    return {
        "other_product": scale * (rotated / several).sum((0, 2)),
        "other_rows": rows,
        "change": scale**2 * (square - along.square() / several).clamp(min=0).sum((0, 2)),
    }


def seen_range(view: AttentionView, skip: int) -> tuple[Int[Tensor, "row"], Int[Tensor, "row"]]:
    """Where the kept keys that each kept row sees begin and end, for views without a mask tensor."""
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
    rotated = vectors[..., rotary.channels]
    frequencies = len(rotary.frequencies)
    if rotary.layout == "interleaved":
        return rotated.reshape(*rotated.shape[:-1], frequencies, 2)
    return rotated.reshape(*rotated.shape[:-1], 2, frequencies).transpose(-1, -2)


def _chunk_norms(context: Context) -> ChunkNorms | None:
    """None for models without a rotary encoding, or with encodings of several widths."""
    widths = {rotary.width for rotary in context.rotary if rotary is not None}
    return ChunkNorms(context.rotary, context.skip, context.length) if len(widths) == 1 else None


ROTARY = Declaration(
    "rotary.chunk",
    Option(
        "chunks",
        "norms of the rotary chunks of q, k and v, their share of the logits and the effect of freezing each",
    ),
    Reads.ATTENTION,
    _chunk_norms,
    lenses=("rotary", "kinds"),
    plain=True,
    rotary_layers=True,
)
