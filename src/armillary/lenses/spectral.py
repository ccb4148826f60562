"""Spectra of the weights as tables: every head's products (products.py), and every matrix against a random one."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.weights import LayerWeights
from armillary.lenses.effective import EffectiveProduct
from armillary.lenses.products import LayerSpectra, ProductSpectrum, entropy_rank
from armillary.theory.random_matrix import (
    MarchenkoPastur,
    fit_variance,
    largest_mean,
    outlier_threshold,
    xavier_variance,
)

if TYPE_CHECKING:
    from armillary.atlas import Atlas

FALSE_POSITIVE = 0.01
"""How likely a matrix of pure noise, of known variance, is to show any outlier at all.

The variance is fitted by the median, which adds to that where matrices are small: measured rates are 5 % at 48 x 48,
3 % at 128 x 128, 2 % at 288 x 288, 2 % at 64 x 32.
"""

HEAD_COLUMNS = (
    *(
        f"{product}_{measure}"
        for product in ("qk", "ov")
        for measure in ("trace", "fro", "spec", "stable_rank", "entropy_rank", "symmetric_share")
    ),
    "qk_align_z",
)
EFFECTIVE = (
    *(f"qk_effective_{measure}" for measure in ("trace", "fro", "spec")),
    *(f"qk_effective_{measure}" for measure in ("stable_rank", "entropy_rank", "symmetric_share", "align_z")),
    "qk_norm_scale",
)
"""Columns of models that normalise q and k; the first three and the last follow the scale."""
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")

EMPTY = 1e-11
"""Squared singular values below this share of the largest are taken for zero."""

WIDE = 2048
"""Up to this many rows the Gram matrix of a stored matrix is computed in float64, above it in float32."""


def head_rows(layer: int, found: LayerSpectra) -> pd.DataFrame:
    """The columns of the heads table: qk_trace, qk_fro, ..., ov_trace, ..."""
    columns: dict[str, Any] = {"layer": layer, "head": np.arange(len(found.align_z))}
    for name, product in (("qk", found.qk), ("ov", found.ov)):
        columns |= {f"{name}_{measure}": values for measure, values in _measures(product).items()}
    return pd.DataFrame({**columns, "qk_align_z": found.align_z})


def effective_rows(found: EffectiveProduct) -> pd.DataFrame:
    """The same of the effective product, for x of unit covariance: qk_effective_trace, ..., qk_norm_scale."""
    columns = {f"qk_effective_{name}": values for name, values in _measures(found.qk).items()}
    return pd.DataFrame({**columns, "qk_effective_align_z": found.align_z, "qk_norm_scale": found.norm_scale})


def _measures(product: ProductSpectrum) -> dict[str, Float[np.ndarray, "head"]]:
    return {
        "trace": product.trace,
        "fro": product.frobenius,
        "spec": product.singular[:, 0],
        "stable_rank": product.stable_rank,
        "entropy_rank": product.entropy_rank,
        "symmetric_share": product.symmetric_share,
    }


# matrices against random ones -------------------------------------------------------------------------------------


def squared_singular_values(matrix: Float[Tensor, "n m"]) -> Float[np.ndarray, "rank"]:
    """The squared singular values, largest first, from the Gram matrix of the smaller side."""
    thin = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    thin = thin.to(torch.float64 if thin.shape[0] <= WIDE else torch.float32)
    values = torch.linalg.eigvalsh(thin @ thin.mT).flip(0).clamp(min=0)
    return np.asarray(values.double().cpu().numpy())


def against_random(values: Float[np.ndarray, "rank"], shape: tuple[int, int]) -> dict[str, float | int]:
    """A matrix's squared singular values against Marchenko-Pastur with its own aspect ratio and a fitted variance.

    mp_distance: largest distance between the two distribution functions. mp_edge: the squared singular value above
    which one counts as an outlier; see FALSE_POSITIVE for how often noise has any. outlier_energy: their share of all.
    All are missing where half of the directions are empty (a matrix of low rank). xavier_energy, xavier_largest:
    |W|_F^2 and the largest singular value over what a Xavier matrix of this shape has on average.
    """
    small, large = min(shape), max(shape)
    values = np.where(values > EMPTY * values.max(initial=0.0), values, 0.0)  # rounding is no spectrum
    energy = float(values.sum())
    xavier = xavier_variance(*shape)
    row: dict[str, float | int] = {
        "rows": shape[0],
        "columns": shape[1],
        "energy": energy,
        "largest": float(np.sqrt(values[0])),
        "stable_rank": energy / float(values[0]) if values[0] > 0 else float("nan"),
        "entropy_rank": float(entropy_rank(values)),
        "xavier_energy": energy / (small * large * xavier),
        "xavier_largest": float(np.sqrt(values[0] / largest_mean(small, large, xavier))),
    }
    variance = fit_variance(values / large, small / large)
    if not variance > 0:  # more than half of the directions are empty
        missing = ("mp_variance", "mp_distance", "mp_edge", "outliers", "outlier_energy")
        return {**row, **dict.fromkeys(missing, float("nan"))}
    law = MarchenkoPastur(small / large, variance)
    edge = outlier_threshold(small, large, variance, FALSE_POSITIVE)
    out = values > edge
    return {
        **row,
        "mp_variance": variance,
        "mp_distance": ks_distance(values / large, law),
        "mp_edge": edge,
        "outliers": int(out.sum()),
        "outlier_energy": float(values[out].sum() / energy),
    }


def ks_distance(values: Float[np.ndarray, "n"], law: MarchenkoPastur) -> float:
    """sup |F_empirical - F|."""
    expected = law.cdf(np.sort(values))
    steps = np.arange(len(values) + 1) / len(values)
    return float(max(np.abs(expected - steps[:-1]).max(), np.abs(expected - steps[1:]).max()))


# random models of the same shape ----------------------------------------------------------------------------------


def random_like(weights: LayerWeights, seed: int) -> LayerWeights:
    """Gaussian weights of the same shapes, every head's matrix with the norm of the one it stands for."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(matrices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = []
        for matrix in matrices:
            noise = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
            found.append(noise * (matrix.double().norm().cpu() / noise.norm()))
        return tuple(found)

    return LayerWeights(drawn(weights.q), drawn(weights.k), drawn(weights.v), drawn(weights.o))


# from an atlas ----------------------------------------------------------------------------------------------------


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """The spectral columns of the heads table, in the order of its rows; empty where the weights are not known."""
    if not atlas.has("spectral"):
        return pd.DataFrame()
    arrays = atlas.group("spectral")
    names = [name + suffix for suffix in ("", "_random") for name in HEAD_COLUMNS if name + suffix in arrays]
    table = pd.DataFrame({name: arrays[name].to_numpy().reshape(-1) for name in names})
    if "qk_norm_scale" not in arrays:
        return table
    effective = {name: arrays[name].to_numpy() for name in EFFECTIVE}
    ratio = observed_norm_scale(atlas, effective["qk_norm_scale"]) / effective["qk_norm_scale"]
    for name in ("qk_effective_trace", "qk_effective_fro", "qk_effective_spec", "qk_norm_scale"):
        effective[name] = effective[name] * ratio
    return table.assign(**{name: values.reshape(-1) for name, values in effective.items()})


def observed_norm_scale(atlas: "Atlas", otherwise: Float[np.ndarray, "layer head"]) -> Float[np.ndarray, "layer head"]:
    """Mean of 1 / rms of q times that of k over the scanned text; `otherwise` where it was not observed."""
    if not atlas.has("constituents") or "q_inverse_norm" not in atlas.group("constituents"):
        return otherwise
    found = atlas.group("constituents")
    q, k = found["q_inverse_norm"].to_numpy(), found["k_inverse_norm"].to_numpy()
    observed = q * np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    return np.where(np.isfinite(observed), observed, otherwise)


def matrix_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every matrix of every layer: against_random."""
    arrays = atlas.group("matrices")
    rows = []
    for layer, shapes in enumerate(arrays.attrs["shapes"]):
        for name in sorted(shapes, key=MATRICES.index):
            shape = shapes[name]
            values = arrays[name].sel(layer=layer).to_numpy()
            found = against_random(values[np.isfinite(values)], (int(shape[0]), int(shape[1])))
            rows.append({"layer": layer, "matrix": name, **found})
    return pd.DataFrame(rows)
