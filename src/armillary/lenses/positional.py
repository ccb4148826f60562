"""Measures of every layer's positional basis: size, rank, smoothness, incoherence with the contexts."""

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.fft import dctn

from armillary.lenses.decomposition import Decomposition, decompose, decompositions
from armillary.theory.smoothness import (
    centered,
    dct_energies,
    gram,
    low_frequency_bound,
    low_frequency_residual,
    smoothness,
)

if TYPE_CHECKING:
    import xarray as xr

    from armillary.atlas.atlas import Atlas

# Imports inside functions: xarray, screenot and sparse algebra are slow to import.

UPPER_RANK = 20
"""ScreeNOT's upper bound on the number of components."""
FREQUENCIES = (1, 3, 5, 10)
BOUND_AT = 10
"""Theorem 1 (low_frequency_bound) is evaluated with this many frequencies."""

SMALL = 256
"""Up to this width all eigenvalues of a covariance are computed where the largest is needed."""


def layer_columns(atlas: "Atlas", group: str = "residual") -> pd.DataFrame:
    """A row for every layer of the residual stream (or of the attention input), one column per measure."""
    layers = len(atlas.anatomy.layers) + (group == "residual")
    rows: list[dict[str, Any]] = [{"layer": layer} for layer in range(layers)]
    if not atlas.has(group) or "positions" not in atlas.settings["streams"]:
        return pd.DataFrame(rows)
    arrays = atlas.group(group)
    norms = arrays["position_norm"].to_numpy()
    others = {name: arrays[name].to_numpy() for name in ("token_cosine", "rank_one_distance") if name in arrays}
    documents = atlas.group("corpus")["document"].to_numpy()
    for row, parts in zip(rows, decompositions(atlas, group), strict=True):
        row |= layer_measures(parts, documents)
        row["relative_norm"] = relative_norm(atlas, parts, row["layer"], group)
        row["mean_norm"] = norms[row["layer"], atlas.settings["skip"] :].mean()
        row["first_norm"] = norms[row["layer"], 0]
        row |= {name: float(values[row["layer"]]) for name, values in others.items()}
    return pd.DataFrame(rows)


def layer_measures(parts: Decomposition, documents: Int[np.ndarray, "c"]) -> dict[str, float]:
    """The measures of one layer that follow from its decomposition."""
    pos_share, ctx_share, resid_share = parts.shares
    cosines = gram(parts.pos)
    centered_cosines = centered(cosines)
    mean, largest = incoherence(parts.pos, parts.ctx)
    random_mean, random_largest = incoherence_of_random(len(parts.pos), len(parts.ctx), parts.pos.shape[1])
    intra, inter = cluster_similarity(parts.ctx, documents)
    return {
        "pos_share": pos_share,
        "ctx_share": ctx_share,
        "resid_share": resid_share,
        "stable_rank": stable_rank(parts.pos_singular),
        "screenot_rank": screenot_rank(parts.pos, float(parts.pos_singular[0])),
        **{f"dct_energy_{k}": float(e) for k, e in zip(FREQUENCIES, dct_energies(cosines, FREQUENCIES), strict=True)},
        "incoherence_mean": mean,
        "incoherence_max": largest,
        "intra_similarity": intra,
        "inter_similarity": inter,
        "incoherence_random_mean": random_mean,
        "incoherence_random_max": random_largest,
        "smoothness": smoothness(cosines),
        "low_frequency_residual": low_frequency_residual(centered_cosines, min(BOUND_AT, len(centered_cosines))),
        "low_frequency_bound": low_frequency_bound(centered_cosines, min(BOUND_AT, len(centered_cosines))),
        "mu_norm": float(np.linalg.norm(parts.mu)),
        "pos_norm": float(np.linalg.norm(parts.pos, axis=1).mean()),
        "ctx_norm": float(np.linalg.norm(parts.ctx, axis=1).mean()),
    }


def stable_rank(values: Float[np.ndarray, "n"]) -> float:
    """|P|_F^2 / |P|_2^2 of a matrix P with these singular values; NaN for a matrix of zeros."""
    return float(np.square(values).sum() / values[0] ** 2) if values[0] > 0 else np.nan


def screenot_rank(matrix: Float[np.ndarray, "t d"], largest: float | None = None) -> float:
    """The number of singular values above the noise, by ScreeNOT with imputation (the screenot package).

    `largest` is the largest singular value, if it is known.
    The upper bound is 20, or less where the matrix is too small. The matrix is first scaled to a largest singular value
    of 1000, because the package searches its threshold to an absolute precision.
    """
    from screenot.ScreeNOT import adaptiveHardThresholding

    upper = min(UPPER_RANK, (min(matrix.shape) - 2) // 2)
    largest = float(np.linalg.norm(matrix, 2)) if largest is None else largest
    if upper < 1 or largest == 0:
        return np.nan
    return float(adaptiveHardThresholding(matrix * (1000 / largest), upper, strategy="i")[2])


def relative_norm(atlas: "Atlas", parts: Decomposition, layer: int, group: str) -> float:
    """sqrt(C) |P|_2 / |M|_2, M the centered vectors of all sequences and kept positions; needs their covariance."""
    if "covariance" not in atlas.settings["streams"]:
        return np.nan
    covariance = atlas.group(group)["covariance"][layer].to_numpy()
    largest = largest_eigenvalue(covariance) * len(parts.pos) * len(parts.ctx)
    return float(np.sqrt(len(parts.ctx) / largest) * parts.pos_singular[0]) if largest > 0 else np.nan


def largest_eigenvalue(covariance: Float[np.ndarray, "d d"]) -> float:
    """By Lanczos iterations, to the last digits, where the matrix is large: at d = 4,096 a hundredth of all of them."""
    from scipy.sparse.linalg import ArpackError, eigsh

    if len(covariance) >= SMALL and covariance.any():
        start = np.random.default_rng(0).normal(size=len(covariance))  # the same digits every time
        with suppress(ArpackError):
            return float(eigsh(covariance, 1, v0=start, return_eigenvectors=False)[0])
    return float(np.linalg.eigvalsh(covariance)[-1])


def incoherence(pos: Float[np.ndarray, "t d"], ctx: Float[np.ndarray, "c d"]) -> tuple[float, float]:
    """Mean and largest |cos(pos_t, ctx_c)| over all pairs of nonzero vectors."""
    total, count, largest = 0.0, 0, 0.0
    pos = pos[np.linalg.norm(pos, axis=1) > 0]
    for start in range(0, len(ctx), 256):
        part = ctx[start : start + 256]  # a few contexts at a time, to bound memory
        part = part[np.linalg.norm(part, axis=1) > 0]
        cosines = np.abs(pos @ part.T) / np.outer(np.linalg.norm(pos, axis=1), np.linalg.norm(part, axis=1))
        total, count = total + float(cosines.sum()), count + cosines.size
        largest = max(largest, float(cosines.max(initial=0.0)))
    return (total / count, largest) if count else (np.nan, np.nan)


@cache
def incoherence_of_random(t: int, c: int, d: int, seed: int = 0) -> tuple[float, float]:
    """The baseline: incoherence of equally many random directions."""
    rng = np.random.default_rng(seed)
    return incoherence(rng.normal(size=(t, d)), rng.normal(size=(c, d)))


def cluster_similarity(ctx: Float[np.ndarray, "c d"], documents: Int[np.ndarray, "c"]) -> tuple[float, float]:
    """Mean cos(ctx_c, ctx_c') over pairs of the same and of different documents; NaN without such pairs."""
    norms = np.linalg.norm(ctx, axis=1, keepdims=True)
    unit = np.divide(ctx, norms, out=np.zeros_like(ctx), where=norms > 0)
    _, owner, sizes = np.unique(documents, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), ctx.shape[1]))
    np.add.at(sums, owner, unit)  # the sum of cosines over pairs is a squared length: no C x C matrix is needed
    within = np.square(sums).sum()
    pairs = (float(within - np.square(unit).sum()), float(np.square(unit.sum(0)).sum() - within))
    counts = (int((sizes * (sizes - 1)).sum()), int(len(ctx) ** 2 - np.square(sizes).sum()))
    intra, inter = (total / count if count else np.nan for total, count in zip(pairs, counts, strict=True))
    return intra, inter


def positional_arrays(atlas: "Atlas", group: str = "residual") -> "xr.Dataset":
    """Arrays for the figures: singular values, Gram matrix, DCT coefficients, principal coordinates, layer cosines."""
    import xarray as xr

    pos = np.stack([parts.pos for parts in decompositions(atlas, group)])
    left, values, _ = np.linalg.svd(pos, full_matrices=False)
    norms = np.linalg.norm(pos, axis=2, keepdims=True)
    unit = np.divide(pos, norms, out=np.zeros_like(pos), where=norms > 0)
    grams = unit @ unit.transpose(0, 2, 1)
    positions = np.arange(atlas.settings["skip"], atlas.settings["length"])
    return xr.Dataset(
        {
            "singular_values": (("layer", "component"), values),
            "gram": (("layer", "position", "position_"), grams),
            "dct": (("layer", "frequency", "frequency_"), dctn(grams, axes=(1, 2), norm="ortho")),
            "coordinates": (("layer", "position", "axis"), (left * values[:, None, :])[..., :3]),
            "layer_cosine": (("layer", "layer_"), np.einsum("atd,btd->ab", unit, unit) / pos.shape[1]),
        },
        coords={"position": positions, "layer": np.arange(len(pos))},
    )


def context_cosines(
    parts: Decomposition, documents: Int[np.ndarray, "c"]
) -> tuple[Int[np.ndarray, "c"], Float[np.ndarray, "n n"]]:
    """The order of the contexts by document, and the cosines among all pos_t followed by all ctx_c in that order."""
    order = np.argsort(documents, kind="stable")
    both: Float[np.ndarray, "n d"] = np.concatenate([parts.pos, parts.ctx[order]])
    return order, gram(both)


def context_coordinates(atlas: "Atlas", layer: int) -> "xr.Dataset":
    """Sampled context vectors cvec = h - mu - pos_t in their first three principal coordinates, with their sequence."""
    import xarray as xr

    sample = atlas.group("sample").sel(layer=layer)
    parts, skip = decompose(atlas, layer), atlas.settings["skip"]
    at = sample["position"].to_numpy()
    cvec = sample["vector"].to_numpy().astype(np.float64) - parts.mu - parts.pos[at - skip]
    flat = cvec.reshape(-1, cvec.shape[-1])
    left, values, _ = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    sequences = np.repeat(np.arange(cvec.shape[0]), cvec.shape[1])
    return xr.Dataset(
        {
            "coordinates": (("token", "axis"), (left * values)[:, :3]),
            "sequence": (("token",), sequences),
            "document": (("token",), atlas.group("corpus")["document"].to_numpy()[sequences]),
            "position": (("token",), np.tile(at, cvec.shape[0])),
        }
    )
