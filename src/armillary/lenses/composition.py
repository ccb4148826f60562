"""Composition: how much of what an earlier head writes a later head's W_q, W_k or W_v can read, from the weights."""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Anatomy
from armillary.anatomy.weights import LayerWeights
from armillary.machine.limits import OPERATIONS, refuse_beyond_patience
from armillary.theory.composition import product_moments

KINDS = ("query", "key", "value")


def composition(anatomy: Anatomy) -> pd.DataFrame:
    """A row for every head, later head and kind: score = |W_OV W|_F / (|W_OV|_F |W|_F) with W = W_q, W_k or W_v, and z.

    All norms come from e x e matrices: with A = W_v'W_v and B = W_o W, |W_v W_o W|_F^2 = tr(A B B'). z compares the
    square of the score with that of random orthogonal bases of the same spectra, whose mean is 1/d. The gains of
    norms between the heads are not part of it. Only heads of later layers are listed.
    """
    layers, d = len(anatomy.layers), anatomy.d_model
    pairs = layers * (layers - 1) / 2
    work = 2.0 * d**3 * pairs * len(KINDS) / OPERATIONS
    refuse_beyond_patience(work, "composing all heads with all later ones", "choose a smaller model")
    readers = [_readers(anatomy.weights(layer), anatomy.layers[layer].heads) for layer in range(layers)]
    tables = [
        _of_layers(anatomy, source, target, readers[target])
        for source in range(layers)
        for target in range(source + 1, layers)
    ]
    columns = ["from_layer", "from_head", "to_layer", "to_head", "kind", "score", "z"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def _readers(weights: LayerWeights, heads: int) -> dict[str, Float[Tensor, "head d e"]]:
    """W_q, W_k and W_v of every head, in float64; shared key heads are repeated."""
    readers = {}
    for kind, part in zip(KINDS, (weights.q, weights.k, weights.v), strict=True):
        stacked = torch.stack([matrix.detach().cpu().double() for matrix in part])
        readers[kind] = stacked.repeat_interleave(heads // len(part), 0)
    return readers


def _of_layers(
    anatomy: Anatomy, source: int, target: int, readers: dict[str, Float[Tensor, "head d e"]]
) -> pd.DataFrame:
    weights, heads = anatomy.weights(source), anatomy.layers[source].heads
    v = torch.stack([matrix.detach().cpu().double() for matrix in weights.v]).repeat_interleave(
        heads // len(weights.v), 0
    )
    o = torch.stack([matrix.detach().cpu().double() for matrix in weights.o])
    a, c = v.mT @ v, o @ o.mT
    ac = a @ c
    own = torch.einsum("hii->h", ac).numpy()[:, None], torch.einsum("hij,hji->h", ac, ac).numpy()[:, None]
    d, parts = anatomy.d_model, []
    for kind, w in readers.items():
        gram = w.mT @ w
        other = torch.einsum("hii->h", gram).numpy()[None], gram.square().sum((1, 2)).numpy()[None]
        b = torch.einsum("hvd,gde->hgve", o, w)
        product = torch.einsum("hgve,hvu,hgue->hg", b, a, b).numpy()
        mean, spread = product_moments(own, other, d)
        with np.errstate(divide="ignore", invalid="ignore"):  # a head whose weights are zero has no score
            score, z = np.sqrt(product / (own[0] * other[0])), (product - mean) / spread
        from_head, to_head = np.meshgrid(np.arange(len(o)), np.arange(len(w)), indexing="ij")
        parts.append(
            pd.DataFrame(
                {
                    "from_layer": source,
                    "from_head": from_head.ravel(),
                    "to_layer": target,
                    "to_head": to_head.ravel(),
                    "kind": kind,
                    "score": score.ravel(),
                    "z": z.ravel(),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)
