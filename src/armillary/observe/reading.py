"""What a head's logits and output are, as linear functions of its input: one vector per head, side and position.

With b the row-centered logits, sum_ij b_ij q_i.k_j = sum_j (sum_i b_ij q_i).k_j, and k_j is affine in x_j once the
observed norm of k is kept. So the product of b with the part of the logits that any part of x makes on the key side is
sum_j r_j.x_j, with r_j = W_k (sum_i b_ij q_i), rotated back. Nothing of size tokens x tokens is made per part.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Anatomy, Disentangled, Layer
from armillary.anatomy.weights import Latent, LayerWeights, NormWeights, stack
from armillary.errors import ArmillaryError
from armillary.observe.precision import wide
from armillary.observe.rebuild import distance_terms, growth_of, latent_factor, project, times_latent, turned
from armillary.observe.softmax import softmax
from armillary.observe.view import AttentionView, row_centered, soft_capped


@dataclass(frozen=True)
class Reading:
    """One layer on one sequence. For each side: vectors u in head space, with r = u W'; products and sums.

    total: sum(b b) for query and key, sum(o o) for value; biases: the product with what does not come from x;
    position: the product with the position bias; matrices: W_q, W_k, W_v of every head.
    """

    vectors: tuple[Float[Tensor, "head token _"], ...]
    matrices: tuple[Float[Tensor, "head d _"], ...]
    biases: Float[Tensor, "side head"]
    position: Float[Tensor, "side head"]
    total: Float[Tensor, "side head"]

    def directions(self, side: int, rows: slice) -> Float[Tensor, "head token d"]:
        """r at these positions: its product with a part of x, summed, is the part's product with b (or o)."""
        return torch.einsum("htv,hdv->htd", self.vectors[side][:, rows], self.matrices[side])


def reading(anatomy: Anatomy, view: AttentionView, skip: int) -> Reading:
    """The reading of a layer's view of one sequence; the first `skip` positions are left out as in constituents."""
    layer, weights = anatomy.layers[view.layer], anatomy.weights(view.layer)
    if layer.clip_qkv is not None:
        raise ArmillaryError("this model clips q, k and v, so they are not sums over what wrote its stream")
    assert view.x is not None
    x = wide(view.x)
    positions = torch.arange(view.queries, device=x.device)
    group = view.heads // view.k.shape[1]
    q, k, v = wide(view.q), wide(view.k).repeat_interleave(group, 1), wide(view.v).repeat_interleave(group, 1)
    b, kept_bias, by_query, by_key = _logits(layer, weights, view, q, k, skip)
    total = b.square().sum((0, 2, 3))
    plain = (b * kept_bias).sum((0, 2, 3))
    to_q, to_k = view.scale * b @ k, view.scale * b.mT @ q
    position = [plain, plain]
    if by_query is not None and by_key is not None:
        more_q, more_k = _of_distances(layer, weights, b, q, k)
        to_q, to_k = to_q + more_q, to_k + more_k
        position = [plain + (b * by_key).sum((0, 2, 3)), plain + (b * by_query).sum((0, 2, 3))]
    attention = _attention(view)
    output = attention @ v
    output[:, :, :skip] = 0.0
    to_v = attention.mT @ output
    scaled = (layer.scale or view.scale) / view.scale
    sides = (
        (to_q * scaled, weights.q, weights.q_bias, _after_q(layer, weights, x, positions)),
        (to_k, weights.k, weights.k_bias, _after_k(layer, weights, x, positions)),
        (to_v, weights.v, weights.v_bias, _after_v(layer, weights, x)),
    )
    vectors, matrices, biases = [], [], []
    for cotangent, own, bias, after in sides:
        repeats = view.heads // len(own)
        back, constant = _pulled_back(after, cotangent, len(own))
        vectors.append(back[0])
        matrices.append(torch.stack([matrix.detach().to(x) for matrix in own]).repeat_interleave(repeats, 0))
        if bias is not None:
            added = stack(bias).detach().to(x).repeat_interleave(repeats, 0)
            constant = constant + (back * added[None, :, None]).sum((0, 2, 3))
        biases.append(constant)
    nothing = torch.zeros_like(plain)
    return Reading(
        tuple(vectors),
        tuple(matrices),
        torch.stack(biases),
        torch.stack([*position, nothing]),
        torch.stack([total, total, output.square().sum((0, 2, 3))]),
    )


def _logits(
    layer: Layer, weights: LayerWeights, view: AttentionView, q: Tensor, k: Tensor, skip: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The row-centered logits of kept queries and keys, the position bias, and DeBERTa's two terms."""
    kept = view.visible().expand(len(q), view.heads, -1, -1).clone()
    kept[..., :skip] = False
    kept[..., :skip, :] = False
    bias = torch.zeros((), dtype=torch.float64) if view.bias is None else wide(view.bias)
    by_query = by_key = None
    if isinstance(layer.position, Disentangled):
        positions = torch.arange(view.queries, device=q.device)
        by_query, by_key = distance_terms(layer, weights, q, k, positions)
        logits, bias = view.scale * q @ k.mT + by_query + by_key, torch.zeros((), dtype=torch.float64)
    else:
        logits = view.scale * q @ k.mT + bias
    return row_centered(logits, kept), bias, by_query, by_key


def _of_distances(
    layer: Layer, weights: LayerWeights, b: Tensor, q: Tensor, k: Tensor
) -> tuple[Float[Tensor, "batch head token e"], Float[Tensor, "batch head token e"]]:
    """The derivatives of sum(b (q.K + k.Q)), DeBERTa's position terms, for q and k."""
    with torch.enable_grad():
        q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
        by_query, by_key = distance_terms(layer, weights, q, k, torch.arange(q.shape[2], device=q.device))
        terms = (b * (by_query + by_key)).sum()
        if not terms.requires_grad:
            return torch.zeros_like(q), torch.zeros_like(k)
        back = torch.autograd.grad(terms, (q, k), allow_unused=True)
    return tuple(torch.zeros_like(q) if part is None else part for part in back)  # type: ignore[return-value]


def _attention(view: AttentionView) -> Float[Tensor, "batch head query key"]:
    """The attention in float64."""
    group = view.heads // view.k.shape[1]
    products = view.scale * wide(view.q) @ wide(view.k).repeat_interleave(group, 1).mT
    bias = 0.0 if view.bias is None else wide(view.bias)
    seen = view.visible().expand(len(view.q), -1, -1, -1)
    return softmax(view, soft_capped(products, view.softcap) + bias, seen).attention


Affine = Callable[[Float[Tensor, "batch head token e"]], Float[Tensor, "batch head token e"]]


def _pulled_back(
    after: Affine, cotangent: Float[Tensor, "batch head token e"], own: int
) -> tuple[Float[Tensor, "batch head token e"], Float[Tensor, "head"]]:
    """The cotangent before an affine map of each head's projection, and its product with the map's constant.

    Key heads (`own` of them) are shared by several heads: each head has its own copy.
    """
    batch, heads, tokens, _ = cotangent.shape
    group = heads // own
    back, constants = [], []
    for member in range(group):  # the map is one per key head; a cotangent per head
        part = cotangent[:, member::group]
        with torch.enable_grad():
            zero = part.new_zeros(batch, own, tokens, part.shape[-1]).requires_grad_()
            constant = after(zero)
            products = (constant * part).sum((0, 2, 3))
            back.append(torch.autograd.grad(products.sum(), zero)[0])
        constants.append(products.detach())
    order = [own_head * group + member for member in range(group) for own_head in range(own)]
    place = torch.tensor(order).argsort()
    return torch.cat(back, 1)[:, place], torch.cat(constants)[place]


def _after_q(layer: Layer, weights: LayerWeights, x: Tensor, positions: Tensor) -> Affine:
    normed = _normed(layer, weights, x, weights.q, weights.q_bias, weights.q_norm, weights.q_latent)

    def after(raw: Tensor) -> Tensor:
        q = turned(layer, normed(raw), positions)
        return q if layer.growth is None else q * growth_of(layer.growth, positions, q)

    return after


def _after_k(layer: Layer, weights: LayerWeights, x: Tensor, positions: Tensor) -> Affine:
    normed = _normed(layer, weights, x, weights.k, weights.k_bias, weights.k_norm, weights.k_latent)
    return lambda raw: turned(layer, normed(raw), positions)


def _after_v(layer: Layer, weights: LayerWeights, x: Tensor) -> Affine:
    factor = torch.ones(1, dtype=x.dtype) if weights.k_latent is None else latent_factor(weights.k_latent, x)
    if layer.value_norm is not None:
        v = project(x, weights.v, weights.v_bias).detach() * factor
        factor = factor * torch.rsqrt(v.square().mean(-1, keepdim=True) + layer.value_norm)
    return lambda raw: raw * factor.detach()


def _normed(
    layer: Layer,
    weights: LayerWeights,
    x: Tensor,
    matrices: tuple[Tensor, ...],
    bias: tuple[Tensor, ...] | None,
    norm: NormWeights | None,
    latent: Latent | None,
) -> Affine:
    """The norms of q or k with their observed scales, after the projection."""
    scheme = layer.qk_norm
    if scheme is None:
        return lambda raw: times_latent(raw, latent, x)
    if scheme.kind == "layer" and scheme.over == "all":
        raise ArmillaryError("a layer norm over the queries of all heads mixes heads: their logits are not split")
    assert norm is not None
    over = (-1,) if scheme.over == "head" else (1, 3)
    whole = times_latent(project(x, matrices, bias).detach(), latent, x)
    if scheme.kind == "layer":
        whole = whole - whole.mean(over, keepdim=True)
    factor = torch.rsqrt(whole.square().mean(over, keepdim=True) + scheme.eps)
    gain = (stack(norm.weight).detach().to(x) + scheme.offset)[:, None, :]
    added = None if norm.bias is None else stack(norm.bias).detach().to(x)[:, None, :]

    def normed(raw: Tensor) -> Tensor:
        q = times_latent(raw, latent, x)
        q = q - q.mean(over, keepdim=True) if scheme.kind == "layer" else q
        q = q * factor * gain
        return q if added is None else q + added

    return normed
