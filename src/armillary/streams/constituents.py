"""How much each constituent makes of a head's logits: x = m + p_t + v split before q and k, nine terms plus bias."""

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Anatomy
from armillary.anatomy.rebuild import norm_factors, parts_of_queries_and_keys
from armillary.streams.by_place import to_cells
from armillary.streams.stream import State, wide
from armillary.view import AttentionView, grouped_products, row_centred

PARTS = ("mean", "pos", "cvec")
TERMS = (*(f"{a}_{b}" for a in PARTS for b in PARTS), "bias")
"""What the query contributes, then what the key contributes; and the position bias (ALiBi, T5)."""

BLOCK = 8_000_000
"""Rows are taken so that a block of logits has about this many numbers."""


class Means:
    """Mean and positional part of the attention input of every layer: x = mean + pos_t + the rest."""

    def __init__(self, position_mean: Float[Tensor, "layer position d"], skip: int) -> None:
        self.skip = skip
        self.mean = position_mean[:, skip:].mean(1)
        self.pos = position_mean - self.mean[:, None]

    def split(self, layer: int, x: Float[Tensor, "batch token d"]) -> tuple[Tensor, Tensor, Tensor]:
        """mean (1, 1, d), pos (1, token, d) and cvec (batch, token, d), in float64."""
        device = x.device if x.device.type != "mps" else torch.device("cpu")
        mean, pos = self.mean[layer].to(device)[None, None], self.pos[layer, : x.shape[1]].to(device)[None]
        return mean, pos, wide(x) - mean - pos


class ConstituentShares:
    """share of a term = sum(term * b) / sum(b * b), row-centred over each row's visible kept keys; they add to 1.

    b is the sum of the terms, which is the logit that the model computed up to rounding; `error` says how far apart
    the two are: the root mean square of their difference over that of b. mean_logits is the mean of b over texts for
    all pairs of kept positions, those that a causal mask hides too, on a grid of at most 128 x 128 cells. Where q and k
    are normalised, q_inverse_norm and k_inverse_norm are the mean factors 1 / rms of kept tokens.
    """

    def __init__(self, anatomy: Anatomy, means: Means, skip: int) -> None:
        self.anatomy = anatomy
        self.means = means
        self.skip = skip
        self.dims: dict[str, tuple[str, ...]] = {
            **{f"share_{term}": ("head",) for term in TERMS},
            "error": ("head",),
            "mean_logits": ("head", "query_cell", "key_cell"),
            "q_inverse_norm": ("head",),
            "k_inverse_norm": ("kv_head",),
        }

    def measure(self, batch: AttentionView) -> State:
        split = LogitParts(self.anatomy, self.means, batch)
        rows = max(1, BLOCK // (len(TERMS) * batch.q.shape[0] * batch.heads * batch.keys))
        state: State | None = None
        for start in range(self.skip, batch.queries, rows):
            block = self._measure_rows(split, batch, slice(start, min(start + rows, batch.queries)))
            state = block if state is None else self.combine(state, block)
        assert state is not None
        return state | self._norms(batch)

    def _norms(self, view: AttentionView) -> State:
        """Sums over kept tokens of the factors by which the q/k norm multiplies; nothing where there is none."""
        norm = self.anatomy.layers[view.layer].qk_norm
        if norm is None:
            return {}
        assert view.x is not None
        q, k = norm_factors(norm, self.anatomy.weights(view.layer), wide(view.x[:, self.skip :]))
        tokens = torch.tensor(float(q.shape[0] * q.shape[2]), dtype=torch.float64, device=q.device)
        return {"q_inverse": q.sum((0, 2)), "k_inverse": k.sum((0, 2)), "tokens": tokens}

    def _measure_rows(self, split: "LogitParts", view: AttentionView, rows: slice) -> State:
        kept = view.visible(rows).expand(view.q.shape[0], -1, -1, -1).clone()
        kept[..., : self.skip] = False
        every = split.terms(rows)
        terms = [row_centred(term, kept) for term in every]
        whole = torch.stack(terms).sum(0)
        query = torch.arange(view.queries, device=whole.device)[rows]
        keys = torch.arange(view.queries - self.skip, device=whole.device)
        once = torch.stack(every).sum(0).sum(0)[..., self.skip :]
        counted = torch.full_like(once[:1], float(view.q.shape[0]))
        seen = row_centred(wide(view.logits(rows)), kept)
        return {
            "products": torch.stack([(term * whole).sum((0, 2, 3)) for term in terms]),
            "square": whole.square().sum((0, 2, 3)),
            "difference": (seen - whole).square().sum((0, 2, 3)),
            "cell_sum": to_cells(once, query - self.skip, keys, view.queries - self.skip),
            "cell_count": to_cells(counted, query - self.skip, keys, view.queries - self.skip),
        }

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        shares = state["products"] / state["square"]
        named = {f"share_{term}": shares[i] for i, term in enumerate(TERMS)}
        error = (state["difference"] / state["square"]).sqrt()
        norms = {
            f"{part}_inverse_norm": state[f"{part}_inverse"] / state["tokens"] for part in "qk" if "tokens" in state
        }
        return {**named, "error": error, "mean_logits": state["cell_sum"] / state["cell_count"], **norms}


class LogitParts:
    """The ten terms of one layer's logits on one batch, for any rows."""

    def __init__(self, anatomy: Anatomy, means: Means, view: AttentionView) -> None:
        assert view.x is not None
        layer, weights = anatomy.layers[view.layer], anatomy.weights(view.layer)
        positions = torch.arange(view.queries, device=view.x.device)
        parts = means.split(view.layer, view.x)
        self._q, self._k = parts_of_queries_and_keys(layer, weights, parts, positions)
        self._scale = layer.scale or 1.0
        self._view = view

    def terms(self, rows: slice) -> list[Float[Tensor, "batch head row key"]]:
        """mean-mean, mean-pos, mean-cvec, pos-mean, ..., cvec-cvec, bias."""
        found = [grouped_products(q[:, :, rows], k) * self._scale for q in self._q for k in self._k]
        bias = self._view.bias
        if bias is None:
            return [*found, torch.zeros_like(found[0])]
        chosen = bias if bias.shape[-2] == 1 else bias[..., rows, :]
        return [*found, wide(chosen).expand(found[0].shape)]

    def of_head(self, head: int) -> list[Float[Tensor, "batch 1 query key"]]:
        """The nine products of one head, in the same order, for all rows."""
        key_head = head // (self._q[0].shape[1] // self._k[0].shape[1])
        queries = [q[:, head : head + 1] for q in self._q]
        keys = [k[:, key_head : key_head + 1] for k in self._k]
        return [grouped_products(q, k) * self._scale for q in queries for k in keys]
