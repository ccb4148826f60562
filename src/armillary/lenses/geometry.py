"""How a head's weights act on the positional basis: argmax ratio, smoothness of P W P', dissection of W_q W_k'."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from armillary.anatomy.description import Anatomy
from armillary.lenses.decomposition import decompose
from armillary.observe.rebuild import parts_of_queries_and_keys
from armillary.observe.view import grouped_products
from armillary.streams.constituents import Means
from armillary.theory.smoothness import dct_energies

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

FREQUENCIES = (1, 3, 5, 10)
POSITIONS_AT_MOST = 512
"""DCT energies use at most this many positions; longer texts are subsampled evenly."""


@dataclass(frozen=True)
class HeadGeometry:
    """Per layer and head: the argmax ratio and the DCT energies of P W P' (and of P P', per layer), K = 1, 3, 5, 10."""

    argmax_ratio: Float[np.ndarray, "layer head"]
    pwp_energy: Float[np.ndarray, "layer head k"]
    pp_energy: Float[np.ndarray, "layer k"]


def head_geometry(anatomy: Anatomy, means: Means, skip: int) -> HeadGeometry:
    """argmax ratio: the fraction of positions t whose largest [(P+m) W (P+m)']_{t,t'}, t' <= t, is at t' = t.

    Queries and keys are rotated as in the model. Kept positions only.
    """
    ratios, pwp, pp = [], [], []
    length = means.pos.shape[1]
    spaced = torch.arange(skip, length)[:: max(1, -(-(length - skip) // POSITIONS_AT_MOST))]
    for layer in anatomy.layers:
        weights = anatomy.weights(layer.index)
        device = weights.q[0].device
        mean, pos = means.mean[layer.index].to(device)[None, None], means.pos[layer.index].to(device)[None]
        q, k = parts_of_queries_and_keys(layer, weights, (mean, pos), torch.arange(length, device=device))
        ratios.append(argmax_ratio((q[0] + q[1])[:, :, skip:], (k[0] + k[1])[:, :, skip:]))
        inner = grouped_products(q[1][:, :, spaced], k[1][:, :, spaced])[0].cpu().numpy()
        p = pos[0, spaced].cpu().numpy()
        pwp.append(dct_energies(inner, FREQUENCIES))
        pp.append(dct_energies(p @ p.T, FREQUENCIES))
    return HeadGeometry(np.stack(ratios), np.stack(pwp), np.stack(pp))


def argmax_ratio(
    q: Float[Tensor, "1 head t e"], k: Float[Tensor, "1 kv_head t e"], rows: int = 256
) -> Float[np.ndarray, "head"]:
    """The fraction of rows t whose largest q_t.k_t', t' <= t, is at t' = t; a block of rows at a time.

    NaN where all logits of every row are equal, as when W_q is zero.
    """
    length, hits = q.shape[2], torch.zeros(q.shape[1], device=q.device)
    varies = torch.zeros(q.shape[1], dtype=torch.bool, device=q.device)
    for start in range(0, length, rows):
        at = torch.arange(start, min(start + rows, length), device=q.device)
        logits = grouped_products(q[:, :, at], k)[0]
        hidden = torch.arange(length, device=q.device)[None, :] > at[:, None]
        largest, place = logits.masked_fill(hidden, -torch.inf).max(-1)
        hits += (place == at).sum(-1)
        varies |= (largest > logits.masked_fill(hidden, torch.inf).amin(-1)).any(-1)
    return torch.where(varies, hits / length, torch.nan).cpu().double().numpy()


@dataclass(frozen=True)
class Dissection:
    """W = V L V' + D + noise of one head, in the basis of the positional vectors.

    rotated: the off-diagonal part of W in the right singular vectors of P, the first 60 of them; survives: entries
    above sigma sqrt(2 log d^2), sigma their standard deviation by the median; corner_share: share of the squared
    entries in the K x K corner; diagonal: D.
    """

    diagonal: Float[np.ndarray, "d"]
    rotated: Float[np.ndarray, "n n"]
    survives: Bool[np.ndarray, "n n"]
    threshold: float
    corner_share: float
    corner_survivors: float


def dissect(atlas: "Atlas", anatomy: Anatomy, layer: int, head: int, k: int = 20, shown: int = 60) -> Dissection:
    """Song's dissection of a head's W_q W_k' / sqrt(d_head). Forms the d x d matrix, since the figure shows it."""
    description, weights = anatomy.layers[layer], anatomy.weights(layer)
    key = weights.k[description.kv_head(head)].double()
    w = (weights.q[head].double() @ key.T).cpu().numpy() * (description.scale or 1.0)
    diagonal = w.diagonal().copy()
    vectors = np.linalg.svd(decompose(atlas, layer, "input").pos, full_matrices=True)[2].T
    rotated = vectors.T @ (w - np.diag(diagonal)) @ vectors
    sigma = float(np.median(np.abs(rotated)) / 0.6745)
    threshold = sigma * np.sqrt(2 * np.log(len(w) ** 2))
    survives = np.abs(rotated) > threshold
    energy = np.square(rotated)
    total = max(int(survives.sum()), 1)
    return Dissection(
        diagonal,
        rotated[:shown, :shown],
        survives[:shown, :shown],
        threshold,
        float(energy[:k, :k].sum() / energy.sum()) if energy.any() else np.nan,
        float(survives[:k, :k].sum() / total),
    )
