"""How much each constituent makes of a head's logits: x = m + p_t + v split before q and k, nine terms plus bias."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Anatomy, Disentangled
from armillary.errors import ArmillaryError
from armillary.observe.precision import single, wide
from armillary.observe.rebuild import DistanceParts, norm_factors, parts_of_queries_and_keys, queries_and_keys
from armillary.observe.view import AttentionView, exact_arithmetic, grouped_products, row_centered
from armillary.streams.by_place import to_cells
from armillary.streams.declaration import Context, Declaration, Option, Pass, Reads
from armillary.streams.moments import POSITIONS
from armillary.streams.stream import State

PARTS = ("mean", "pos", "cvec")
TERMS = (*(f"{a}_{b}" for a in PARTS for b in PARTS), "bias")
"""What the query contributes, then what the key contributes; and the position bias (ALiBi, T5)."""

POS_CVEC, CVEC_POS = TERMS.index("pos_cvec"), TERMS.index("cvec_pos")

BLOCK = 8_000_000
"""Rows are taken so that a block of logits has about this many numbers."""


class Means:
    """Mean and positional part of the attention input of every layer: x = mean + pos_t + the rest."""

    def __init__(self, position_mean: Float[Tensor, "layer position d"], skip: int) -> None:
        self.skip = skip
        self.mean = position_mean[:, skip:].mean(1)
        self.pos = position_mean - self.mean[:, None]

    def of_layer(self, layer: int, x: Float[Tensor, "batch token d"]) -> tuple[Tensor, Tensor]:
        """mean (1, 1, d) and pos (1, token, d), on the device and in the precision of x."""
        return self.mean[layer].to(x)[None, None], self.pos[layer, : x.shape[1]].to(x)[None]

    def split(self, layer: int, x: Float[Tensor, "batch token d"]) -> tuple[Tensor, Tensor, Tensor]:
        """mean (1, 1, d), pos (1, token, d) and cvec (batch, token, d), in float64."""
        device = x.device if x.device.type != "mps" else torch.device("cpu")
        mean, pos = self.mean[layer].to(device)[None, None], self.pos[layer, : x.shape[1]].to(device)[None]
        return mean, pos, wide(x) - mean - pos


class ConstituentShares:
    """share of a term = sum(term * b) / sum(b * b), row-centered over each row's visible kept keys; they add to 1.

    b is the logit that the model computed. No map of a term is made: sum_ij b_ij q^a_i.k^c_j = sum_i q^a_i.(sum_j b_ij
    k^c_j), one product of b with the parts of k. The parts of mean and position are projected with the weights; content
    is what they leave of the observed q and k. Large tensors are float32, their sums float64.

    `error` says whether the weights explain the logits: on the first sequence of every batch, the root mean square of
    the logits rebuilt from x less the observed ones, over that of b. mean_logits is the mean logit over texts for all
    pairs of kept positions, those that a causal mask hides too, on a grid of at most 128 x 128 cells. Where q and k are
    normalized, q_inverse_norm and k_inverse_norm are the mean factors 1 / rms of kept tokens.
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
        parts = ObservedParts(self.anatomy, self.means, batch)
        rebuilt = self._rebuilt(batch)
        rows = max(1, BLOCK // (batch.q.shape[0] * batch.heads * batch.keys))
        state: State | None = None
        for start in range(self.skip, batch.queries, rows):
            block = self._measure_rows(parts, rebuilt, batch, slice(start, min(start + rows, batch.queries)))
            state = block if state is None else self.combine(state, block)
        assert state is not None
        return state | self._norms(parts)

    def _norms(self, parts: "ObservedParts") -> State:
        """Sums over kept tokens of the factors by which the q/k norm multiplies; nothing where there is none."""
        if parts.factors is None:
            return {}
        q, k = (wide(factor[:, :, self.skip :]) for factor in parts.factors)
        tokens = torch.tensor(float(q.shape[0] * q.shape[2]), dtype=torch.float64, device=q.device)
        return {"q_inverse": q.sum((0, 2)), "k_inverse": k.sum((0, 2)), "tokens": tokens}

    def _rebuilt(self, view: AttentionView) -> AttentionView:
        """The first sequence of the batch with q and k from the weights."""
        assert view.x is not None
        layer, weights = self.anatomy.layers[view.layer], self.anatomy.weights(view.layer)
        positions = torch.arange(view.queries, device=view.x.device)
        q, k = queries_and_keys(layer, weights, wide(view.x[:1]), positions)
        return replace(view.first_sequences(1), q=q, k=k, scale=layer.scale or 1.0)

    def _measure_rows(self, parts: "ObservedParts", rebuilt: AttentionView, view: AttentionView, rows: slice) -> State:
        kept = view.visible(rows).clone()
        kept[..., : self.skip] = False
        logits = view.logits(rows)
        b = row_centered(logits, kept)
        products = parts.products(b, rows)
        if parts.distances is not None:
            distances = parts.distances
            for term, own in ((CVEC_POS, distances.of_query), (POS_CVEC, distances.of_key)):
                products[term] += (b * own[:, :, rows]).sum((0, 2, 3), dtype=torch.float64)
            bias = distances.without_content[:, :, rows]
            products = torch.cat([products, (b * bias).sum((0, 2, 3), dtype=torch.float64)[None]])
        elif view.bias is not None:
            bias = view.bias if view.bias.shape[-2] == 1 else view.bias[..., rows, :]
            products = torch.cat([products, (b * bias).sum((0, 2, 3), dtype=torch.float64)[None]])
        else:
            products = torch.cat([products, torch.zeros_like(products[:1])])
        query = torch.arange(view.queries, device=b.device)[rows]
        keys = torch.arange(view.queries - self.skip, device=b.device)
        once = logits.sum(0, dtype=torch.float64)[..., self.skip :]
        counted = torch.full_like(once[:1], float(view.q.shape[0]))
        first = row_centered(rebuilt.logits(rows), kept[:1]) - b[:1]
        return {
            "products": products,
            "difference": first.square().sum((0, 2, 3), dtype=torch.float64),
            "compared": b[:1].square().sum((0, 2, 3), dtype=torch.float64),
            "cell_sum": to_cells(once, query - self.skip, keys, view.queries - self.skip),
            "cell_count": to_cells(counted, query - self.skip, keys, view.queries - self.skip),
        }

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        shares = state["products"] / state["products"].sum(0)
        named = {f"share_{term}": shares[i] for i, term in enumerate(TERMS)}
        error = (state["difference"] / state["compared"]).sqrt()
        norms = {
            f"{part}_inverse_norm": state[f"{part}_inverse"] / state["tokens"] for part in "qk" if "tokens" in state
        }
        return {**named, "error": error, "mean_logits": state["cell_sum"] / state["cell_count"], **norms}


class ObservedParts:
    """q and k of a batch as mean + position + content, where content is what the first two leave of the observed ones.

    Without a q/k norm the parts of mean and position are the same in every sequence, and are projected once.
    """

    def __init__(self, anatomy: Anatomy, means: Means, view: AttentionView) -> None:
        assert view.x is not None
        layer, weights = anatomy.layers[view.layer], anatomy.weights(view.layer)
        x, norm = single(view.x), layer.qk_norm
        positions = torch.arange(view.queries, device=x.device)
        given = means.of_layer(view.layer, x)
        self.factors: tuple[Tensor, Tensor] | None = None
        if norm is None and not layer.latent:
            self._q, self._k = parts_of_queries_and_keys(layer, weights, given, positions)
        else:  # the token's own norm divides every part, so content is projected too
            content = x - given[0] - given[1]
            self._q, self._k = parts_of_queries_and_keys(layer, weights, (*given, content), positions)
            self._q, self._k = self._q[:2], self._k[:2]
            self.factors = None if norm is None else norm_factors(norm, weights, x)
        scaled = (layer.scale or view.scale) / view.scale  # some models scale q before the attention function sees it
        self._q = [*(q * scaled for q in self._q), single(view.q)]
        self._k = [*self._k, single(view.k)]
        self._scale = view.scale
        apart = isinstance(layer.position, Disentangled)
        self.distances = DistanceParts(layer, weights, self._q, self._k) if apart else None

    def products(self, b: Float[Tensor, "batch head row key"], rows: slice) -> Float[Tensor, "9 head"]:
        """sum(b * term) for the nine terms: mean-mean, mean-pos, mean-cvec, pos-mean, ..., cvec-cvec."""
        batch, heads = b.shape[:2]
        # a vector added to all keys of a head cancels, since b is row-centered: without their mean rounding is smaller
        keys = torch.cat([(k - k.mean(2, keepdim=True)).expand(batch, -1, -1, -1) for k in self._k], -1)
        grouped = b.reshape(batch, keys.shape[1], -1, b.shape[-1])
        with exact_arithmetic(b):
            mixed = (grouped @ keys).reshape(batch, heads, b.shape[2], 3, -1)
        sums = torch.stack(
            [
                torch.stack([(q[:, :, rows] * mixed[..., c, :]).sum((0, 2, 3), dtype=torch.float64) for c in range(3)])
                for q in self._q
            ]
        )  # (mean, pos, whole) of the query x (mean, pos, whole) of the key
        sums[2] -= sums[0] + sums[1]
        sums[:, 2] -= sums[:, 0] + sums[:, 1]
        return sums.flatten(0, 1) * self._scale


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
        self._distances: DistanceParts | None = None
        if isinstance(layer.position, Disentangled):
            q, k = ([part[0], part[1], part[0] + part[1] + part[2]] for part in (self._q, self._k))
            self._distances = DistanceParts(layer, weights, q, k)

    def terms(self, rows: slice) -> list[Float[Tensor, "batch head row key"]]:
        """mean-mean, mean-pos, mean-cvec, pos-mean, ..., cvec-cvec, bias."""
        return self._terms([q[:, :, rows] for q in self._q], self._k, self._view, rows, slice(None))

    def of_head(self, head: int) -> list[Float[Tensor, "batch 1 query key"]]:
        """The ten terms of one head, in the same order, for all rows."""
        key_head = head // (self._q[0].shape[1] // self._k[0].shape[1])
        queries = [q[:, head : head + 1] for q in self._q]
        keys = [k[:, key_head : key_head + 1] for k in self._k]
        return self._terms(queries, keys, self._view.of_head(head), slice(None), slice(head, head + 1))

    def _terms(
        self, queries: list[Tensor], keys: list[Tensor], view: AttentionView, rows: slice, heads: slice
    ) -> list[Tensor]:
        products = [grouped_products(q, k) * self._scale for q in queries for k in keys]
        if self._distances is not None:
            products[CVEC_POS] = products[CVEC_POS] + self._distances.of_query[:, heads, rows]
            products[POS_CVEC] = products[POS_CVEC] + self._distances.of_key[:, heads, rows]
            return [*products, self._distances.without_content[:, heads, rows].expand(products[0].shape)]
        if view.bias is None:
            return [*products, torch.zeros_like(products[0])]
        bias = view.bias if view.bias.shape[-2] == 1 else view.bias[..., rows, :]
        return [*products, wide(bias).expand(products[0].shape)]


def _shares(context: Context) -> ConstituentShares | None:
    """None where the weights are not known, or q and k are clipped and so are no sums."""
    if context.anatomy.missing or context.anatomy.layers[0].clip_qkv is not None:
        return None
    if context.means is None:
        raise ArmillaryError("constituents are split by the means of the first pass", advice="run that pass first")
    return ConstituentShares(context.anatomy, Means(context.means, context.skip), context.skip)


SHARES = Declaration(
    "constituents.share",
    Option(
        "constituents",
        "shares of position and content in every head's logits (a second pass over a sample of the text)",
        needs=POSITIONS,
    ),
    Reads.ATTENTION,
    _shares,
    lenses=("constituents", "labels"),
    when=Pass.SAMPLE,
    plain=True,
)
