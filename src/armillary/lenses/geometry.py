"""What a head's weights do to the positional basis: its argmax, its smoothness, and the dissection of W_q W_k'."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float

from armillary.anatomy.description import Anatomy
from armillary.anatomy.rebuild import parts_of_queries_and_keys
from armillary.streams.constituents import Means
from armillary.theory.smoothness import dct_energy
from armillary.view import grouped_products

if TYPE_CHECKING:
    from armillary.atlas import Atlas

FREQUENCIES = (1, 3, 5, 10)
POSITIONS_AT_MOST = 512
"""Matrices of positions are computed for at most this many (evenly spaced beyond)."""


@dataclass(frozen=True)
class HeadGeometry:
    """Per layer and head: the argmax ratio and the DCT energies of P W P' (and of P P', per layer), K = 1, 3, 5, 10."""

    argmax_ratio: Float[np.ndarray, "layer head"]
    pwp_energy: Float[np.ndarray, "layer head k"]
    pp_energy: Float[np.ndarray, "layer k"]


def head_geometry(anatomy: Anatomy, means: Means, skip: int) -> HeadGeometry:
    """argmax ratio: the fraction of positions t whose largest [(P+m) W (P+m)']_{t,t'}, t' <= t, is at t' = t.

    With rotary encodings the matrices are rotated, as the model does. Kept positions only.
    """
    ratios, pwp, pp = [], [], []
    length = means.pos.shape[1]
    kept = torch.arange(skip, length)[:: max(1, -(-(length - skip) // POSITIONS_AT_MOST))]
    for layer in anatomy.layers:
        weights = anatomy.weights(layer.index)
        device = weights.q[0].device
        mean, pos = means.mean[layer.index].to(device)[None, None], means.pos[layer.index].to(device)[None]
        everywhere = torch.arange(length, device=device)
        q, k = parts_of_queries_and_keys(layer, weights, (mean, pos), everywhere)
        scale = layer.scale or 1.0
        whole = (
            grouped_products(q[0][:, :, kept] + q[1][:, :, kept], k[0][:, :, kept] + k[1][:, :, kept])[0].cpu() * scale
        )
        hidden = torch.ones(len(kept), len(kept), dtype=torch.bool).triu(1)
        best = whole.masked_fill(hidden, -torch.inf).argmax(-1)
        ratios.append((best == torch.arange(len(kept))).double().mean(-1).numpy())
        inner = grouped_products(q[1][:, :, kept], k[1][:, :, kept])[0].cpu().numpy()
        p = pos[0, kept].cpu().numpy()
        pwp.append(np.stack([dct_energy(inner, f) for f in FREQUENCIES], -1))
        pp.append(np.array([float(dct_energy(p @ p.T, f)) for f in FREQUENCIES]))
    return HeadGeometry(np.stack(ratios), np.stack(pwp), np.stack(pp))


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
    """Song's dissection of a head's W_q W_k' / sqrt(d_head). Builds the d x d matrix, for the picture."""
    from armillary.lenses.decomposition import decompose

    here, weights = anatomy.layers[layer], anatomy.weights(layer)
    w = (weights.q[head].double() @ weights.k[here.kv_head(head)].double().T).cpu().numpy() * (here.scale or 1.0)
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
        float(energy[:k, :k].sum() / energy.sum()),
        float(survives[:k, :k].sum() / total),
    )
