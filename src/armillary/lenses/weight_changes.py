"""How weights changed: the spectrum of the change of every head's products and of every matrix, from the weights alone.

A head's W = A B' becomes (A + dA)(B + dB)'. The change dA (B + dB)' + A dB' = [dA, A] [B + dB, dB]' has rank 2e at most
and is computed from these two d x 2e factors, never d x d. Nothing of the size of W is subtracted, so that a change a
billion times smaller than W keeps its digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Layer
from armillary.anatomy.weights import LayerWeights
from armillary.lenses.products import entropy_rank
from armillary.lenses.spectral import EMPTY, MATRICES, WIDE, against_random
from armillary.machine.parallel import in_parallel
from armillary.theory.random_matrix import MarchenkoPastur, largest_mean

if TYPE_CHECKING:
    import xarray as xr

TOP = 4
"""Leading directions of a change and of the weights that are compared."""

PRODUCTS = ("qk", "ov")
OF_HEADS = ("base", "overlap_in", "overlap_out")
"""What is kept of a head's change besides its singular values; base is |W|_F before the change."""
RANDOM = ("stable_rank", "entropy_rank", "overlap_in", "overlap_out")
"""What is also kept for Gaussian changes of the factors, of the same norms."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values, largest first, and the leading directions on both sides that are not empty, at most TOP."""

    singular: Float[np.ndarray, "rank"]
    left: Float[Tensor, "n top"]
    right: Float[Tensor, "m top"]

    @property
    def stable_rank(self) -> float:
        """|W|_F^2 / |W|_2^2; NaN for zero."""
        squared = np.square(self.singular)
        return float(squared.sum() / squared[0]) if squared[0] > 0 else float("nan")

    @property
    def entropy_rank(self) -> float:
        """exp of the entropy of the squared singular values, taken as shares."""
        return float(entropy_rank(np.square(self.singular)))


def low_rank(a: Float[Tensor, "n r"], b: Float[Tensor, "m r"]) -> Spectrum:
    """The spectrum of A B', from triangular factors of A and B."""
    q_a, r_a = torch.linalg.qr(a.detach().cpu().double())
    q_b, r_b = torch.linalg.qr(b.detach().cpu().double())
    u, singular, v = torch.linalg.svd(r_a @ r_b.mT)
    top = _top(singular)
    return Spectrum(singular.numpy(), q_a @ u[:, :top], q_b @ v.mT[:, :top])


def whole(matrix: Float[Tensor, "n m"]) -> Spectrum:
    """The spectrum of a stored matrix, from the Gram matrix of its smaller side."""
    wide = matrix.shape[0] > matrix.shape[1]
    thin = matrix.detach().cpu().mT if wide else matrix.detach().cpu()
    thin = thin.to(torch.float64 if thin.shape[0] <= WIDE else torch.float32)
    squared, vectors = torch.linalg.eigh(thin @ thin.mT)
    singular = squared.flip(0).clamp(min=0).sqrt().double()
    top = _top(singular)
    small = vectors.flip(1)[:, :top].double()
    large = thin.mT.double() @ small / singular[:top]
    return Spectrum(singular.numpy(), *((large, small) if wide else (small, large)))


def _top(singular: Float[Tensor, "rank"]) -> int:
    """How many leading directions there are, at most TOP: those with a share of the energy that is not rounding."""
    return int((singular[:TOP] ** 2 > EMPTY * singular[0] ** 2).sum()) if len(singular) else 0


def overlap(a: Float[Tensor, "n i"], b: Float[Tensor, "n j"]) -> float:
    """How far the span of the smaller set of orthonormal directions lies in that of the larger one, from 0 to 1.

    |A'B|_F^2 / min(i, j); random directions have max(i, j) / n on average. NaN if a set is empty.
    """
    fewer = min(a.shape[1], b.shape[1])
    return float((a.mT @ b).square().sum()) / fewer if fewer else float("nan")


# heads ------------------------------------------------------------------------------------------------------------


def head_changes(
    layer: Layer, base: LayerWeights, delta: LayerWeights, noise: LayerWeights
) -> dict[str, Float[Tensor, "head ..."]]:
    """Of W_q W_k' and W_v W_o of every head: singular values of the change, and the measures OF_HEADS and RANDOM.

    `delta` is what was added to `base`; `noise` are Gaussian matrices of the same norms. in is the side of the query
    (qk) or of the token that is read (ov), out that of the key or of what is written.
    """
    group = [layer.kv_head(head) for head in range(layer.heads)]

    def factors(weights: LayerWeights, product: str, head: int) -> tuple[Tensor, Tensor]:
        pair = (weights.q[head], weights.k[group[head]])
        pair = pair if product == "qk" else (weights.v[group[head]], weights.o[head].mT)
        return pair[0].detach().cpu().double(), pair[1].detach().cpu().double()

    def of_head(place: tuple[str, int]) -> tuple[Tensor, list[float]]:
        a, b = factors(base, *place)
        before = low_rank(a, b)
        after, random = (product_change(a, b, *factors(change, *place)) for change in (delta, noise))
        sides = [(overlap(some.left, before.left), overlap(some.right, before.right)) for some in (after, random)]
        norm = float(np.linalg.norm(before.singular))
        return torch.from_numpy(after.singular), [norm, *sides[0], random.stable_rank, random.entropy_rank, *sides[1]]

    arrays: dict[str, Tensor] = {}
    for product in PRODUCTS:
        rows = list(in_parallel(of_head, [(product, head) for head in range(layer.heads)]))
        arrays[f"{product}_singular"] = torch.stack([singular for singular, _ in rows])
        names = [*OF_HEADS, *(f"{name}_random" for name in RANDOM)]
        for name, values in zip(names, zip(*(facts for _, facts in rows), strict=True), strict=True):
            arrays[f"{product}_{name}"] = torch.tensor(values, dtype=torch.float64)
    return arrays


def product_change(
    a: Float[Tensor, "d e"], b: Float[Tensor, "m e"], da: Float[Tensor, "d e"], db: Float[Tensor, "m e"]
) -> Spectrum:
    """The spectrum of (A + dA)(B + dB)' - A B' = [dA, A] [B + dB, dB]'."""
    return low_rank(torch.cat([da, a], 1), torch.cat([b + db, db], 1))


# matrices ---------------------------------------------------------------------------------------------------------


def matrix_change(base: Float[Tensor, "n m"], delta: Float[Tensor, "n m"]) -> dict[str, Float[Tensor, "..."]]:
    """Of a matrix: squared singular values of its change, |W|_F before it, overlaps on the side of its inputs and
    outputs, and the mean overlaps of random directions."""
    before, change = whole(base), whole(delta)
    larger = max(before.left.shape[1], change.left.shape[1])
    known = change.left.shape[1] > 0 and before.left.shape[1] > 0
    facts = {
        "base": float(np.linalg.norm(before.singular)),
        "overlap_in": overlap(change.left, before.left),
        "overlap_out": overlap(change.right, before.right),
        "overlap_in_random": larger / base.shape[0] if known else float("nan"),
        "overlap_out_random": larger / base.shape[1] if known else float("nan"),
    }
    numbers = {name: torch.tensor(value, dtype=torch.float64) for name, value in facts.items()}
    return {"squared": torch.from_numpy(np.square(change.singular)), **numbers}


def noise_ranks(rows: int, columns: int) -> dict[str, float]:
    """Stable rank and entropy rank of a Gaussian matrix of this shape, in closed form from its limit law."""
    small, large = min(rows, columns), max(rows, columns)
    law = MarchenkoPastur(small / large, 1.0)
    squared = law.quantile((np.arange(small) + 0.5) / small)
    return {
        "stable_rank_random": small * large / largest_mean(small, large, 1.0),
        "entropy_rank_random": float(entropy_rank(np.asarray(squared))),
    }


# the table --------------------------------------------------------------------------------------------------------


def change_table(arrays: "xr.Dataset") -> pd.DataFrame:
    """A row for every head's W_q W_k' (part qk) and W_v W_o (ov), and for every matrix, layer by layer."""
    rows: list[dict[str, Any]] = []
    for layer, shapes in enumerate(arrays.attrs["shapes"]):
        values = arrays.sel(layer=layer)
        heads = int(arrays.attrs["heads"][layer])
        rows += [_head_row(values, layer, product, head) for product in PRODUCTS for head in range(heads)]
        rows += [_matrix_row(values, layer, name, shapes[name]) for name in sorted(shapes, key=MATRICES.index)]
    return pd.DataFrame(rows)


def _head_row(values: "xr.Dataset", layer: int, product: str, head: int) -> dict[str, Any]:
    def fact(name: str) -> float:
        return float(values[f"{product}_{name}"].sel(head=head))

    singular = values[f"{product}_singular"].sel(head=head).to_numpy()
    row = {"layer": layer, "part": product, "head": head}
    row |= _spectral_facts(np.square(singular[np.isfinite(singular)]), fact("base"))
    for name in RANDOM:
        row[f"{name}_random"] = fact(f"{name}_random")
    return {**row, "overlap_in": fact("overlap_in"), "overlap_out": fact("overlap_out")}


def _matrix_row(values: "xr.Dataset", layer: int, name: str, shape: Sequence[int]) -> dict[str, Any]:
    def fact(measure: str) -> float:
        return float(values[f"{name}_{measure}"])

    rows, columns = int(shape[0]), int(shape[1])
    squared = values[f"{name}_squared"].to_numpy()
    squared = squared[np.isfinite(squared)]
    row = {"layer": layer, "part": name, "head": np.nan}
    row |= _spectral_facts(squared, fact("base"))
    sides = [f"overlap_{side}{suffix}" for side in ("in", "out") for suffix in ("", "_random")]
    row |= {measure: fact(measure) for measure in sides}
    row |= noise_ranks(rows, columns)
    if squared[0] > 0:
        law = against_random(squared, (rows, columns))
        row |= {measure: law[measure] for measure in ("mp_distance", "outliers", "outlier_energy")}
    return row


def _spectral_facts(squared: Float[np.ndarray, "n"], base: float) -> dict[str, float | int]:
    """norm, relative, stable_rank, entropy_rank, rank, largest; ranks are missing where nothing changed."""
    energy, largest = float(squared.sum()), float(squared[0])
    return {
        "norm": energy**0.5,
        "relative": energy**0.5 / base if base > 0 else float("nan"),
        "stable_rank": energy / largest if largest > 0 else float("nan"),
        "entropy_rank": float(entropy_rank(squared)),
        "rank": int((squared > EMPTY * largest).sum()),
        "largest": largest**0.5,
    }
