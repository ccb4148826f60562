"""Tables of weight spectra: of every head's products (products.py), and of every matrix against a random one."""

from collections.abc import Mapping
from dataclasses import dataclass
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
    from armillary.atlas.atlas import Atlas

FALSE_POSITIVE = 0.01
"""Probability that a matrix of pure noise with known variance has any outlier.

Fitting the variance by the median raises it for small matrices: measured rates are 5 % at 48 x 48, 3 % at 128 x 128,
2 % at 288 x 288, 2 % at 64 x 32.
"""

FROM_WEIGHTS = (
    *(
        f"{product}_{measure}"
        for product in ("qk", "ov")
        for measure in ("trace", "fro", "spec", "stable_rank", "entropy_rank", "symmetric_share")
    ),
    "qk_align_z",
)
"""Arrays of the group 'spectral' that become columns; with the suffix _random, the same of Gaussian weights."""
EFFECTIVE = (
    *(f"qk_effective_{measure}" for measure in ("trace", "fro", "spec")),
    *(f"qk_effective_{measure}" for measure in ("stable_rank", "entropy_rank", "symmetric_share", "align_z")),
    "qk_norm_scale",
)
"""Columns of models that normalize q and k; the first three and the last are proportional to the norm scale."""
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")

EMPTY = 1e-11
"""Squared singular values below this share of the largest count as zero."""

WIDE = 2048
"""Up to this many rows the Gram matrix of a stored matrix is computed in float64, above it in float32."""


def head_rows(layer: int, spectra: LayerSpectra) -> pd.DataFrame:
    """The columns of the heads table: qk_trace, qk_fro, ..., ov_trace, ..."""
    columns: dict[str, Any] = {"layer": layer, "head": np.arange(len(spectra.align_z))}
    for name, product in (("qk", spectra.qk), ("ov", spectra.ov)):
        columns |= {f"{name}_{measure}": values for measure, values in _measures(product).items()}
    return pd.DataFrame({**columns, "qk_align_z": spectra.align_z})


def effective_rows(product: EffectiveProduct) -> pd.DataFrame:
    """The same for the effective product, for x of unit covariance: qk_effective_trace, ..., qk_norm_scale."""
    columns = {f"qk_effective_{name}": values for name, values in _measures(product.qk).items()}
    return pd.DataFrame({**columns, "qk_effective_align_z": product.align_z, "qk_norm_scale": product.norm_scale})


def _measures(product: ProductSpectrum) -> dict[str, Float[np.ndarray, "head"]]:
    return {
        "trace": product.trace,
        "fro": product.frobenius,
        "spec": product.singular[:, 0],
        "stable_rank": product.stable_rank,
        "entropy_rank": product.entropy_rank,
        "symmetric_share": product.symmetric_share,
    }


# matrices compared with random ones -------------------------------------------------------------------------------


def squared_singular_values(matrix: Float[Tensor, "n m"]) -> Float[np.ndarray, "rank"]:
    """The squared singular values, largest first, from the Gram matrix of the smaller side."""
    thin = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    thin = thin.to(torch.float64 if thin.shape[0] <= WIDE else torch.float32)
    values = torch.linalg.eigvalsh(thin @ thin.mT).flip(0).clamp(min=0)
    return np.asarray(values.double().cpu().numpy())


def against_random(values: Float[np.ndarray, "rank"], shape: tuple[int, int]) -> dict[str, float | int]:
    """Compares a matrix's squared singular values with Marchenko-Pastur of its aspect ratio and a fitted variance.

    mp_distance: largest distance between the two distribution functions. mp_edge: squared singular values above it are
    outliers; FALSE_POSITIVE says how often noise has any. outlier_energy: the outliers' share of |W|_F^2. All are NaN
    where more than half of the directions are empty (a matrix of low rank). xavier_energy, xavier_largest: |W|_F^2 and
    the largest singular value, divided by their averages for a Xavier matrix of this shape.
    """
    small, large = min(shape), max(shape)
    values = np.where(values > EMPTY * values.max(initial=0.0), values, 0.0)  # zero up to rounding
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
    is_outlier = values > edge
    return {
        **row,
        "mp_variance": variance,
        "mp_distance": ks_distance(values / large, law),
        "mp_edge": edge,
        "outliers": int(is_outlier.sum()),
        "outlier_energy": float(values[is_outlier].sum() / energy),
    }


def ks_distance(values: Float[np.ndarray, "n"], law: MarchenkoPastur) -> float:
    """sup |F_empirical - F|."""
    expected = law.cdf(np.sort(values))
    steps = np.arange(len(values) + 1) / len(values)
    return float(max(np.abs(expected - steps[:-1]).max(), np.abs(expected - steps[1:]).max()))


# random models of the same shape ----------------------------------------------------------------------------------


def random_like(weights: LayerWeights, seed: int) -> LayerWeights:
    """Gaussian weights of the same shapes; every matrix has the Frobenius norm of the one it replaces."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(matrices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        random_matrices = []
        for matrix in matrices:
            noise = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
            random_matrices.append(noise * (matrix.double().norm().cpu() / noise.norm()))
        return tuple(random_matrices)

    return LayerWeights(drawn(weights.q), drawn(weights.k), drawn(weights.v), drawn(weights.o))


# from an atlas ----------------------------------------------------------------------------------------------------


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """The spectral columns of the heads table, in the order of its rows; empty where the weights are not known."""
    if not atlas.has("spectral"):
        return pd.DataFrame()
    arrays = atlas.group("spectral")
    names = [name + suffix for suffix in ("", "_random") for name in FROM_WEIGHTS if name + suffix in arrays]
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
    arrays = atlas.group("constituents")
    q, k = arrays["q_inverse_norm"].to_numpy(), arrays["k_inverse_norm"].to_numpy()
    observed = q * np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    return np.where(np.isfinite(observed), observed, otherwise)


def matrix_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every matrix of every layer, with the columns of against_random."""
    arrays = atlas.group("matrices")
    rows = []
    for layer, shapes in enumerate(arrays.attrs["shapes"]):
        for name in sorted(shapes, key=MATRICES.index):
            shape = shapes[name]
            values = arrays[name].sel(layer=layer).to_numpy()
            measures = against_random(values[np.isfinite(values)], (int(shape[0]), int(shape[1])))
            rows.append({"layer": layer, "matrix": name, **measures})
    return pd.DataFrame(rows)


def unit_spectra(values: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n"]:
    """Singular values over their norm; NaN for a product that is zero."""
    norm = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.asarray(np.divide(values, norm, out=np.full_like(values, np.nan), where=norm > 0))


def typical_spectrum(values: Float[np.ndarray, "layer head n"]) -> Float[np.ndarray, "layer n"]:
    """Singular values over their norm; in each layer the median over heads whose product is not zero."""
    return np.array([median_spectrum(layer) for layer in unit_spectra(values)])


def median_spectrum(spectra: Float[np.ndarray, "head n"]) -> Float[np.ndarray, "n"]:
    """The median over spectra without NaN; NaN if there are none."""
    known = spectra[np.isfinite(spectra).all(1)]
    return np.median(known, axis=0) if len(known) else np.full(spectra.shape[1], np.nan)


@dataclass(frozen=True)
class BesideLaw:
    """Singular values of a matrix below and above the edge of its Marchenko-Pastur law, and the law's density."""

    bulk: Float[np.ndarray, "n"]
    outliers: Float[np.ndarray, "m"]
    law: tuple[Float[np.ndarray, "x"], Float[np.ndarray, "x"]] | None


def beside_law(squared: Float[np.ndarray, "n"], row: Mapping[Any, Any]) -> BesideLaw:
    """A matrix's squared singular values, split by the law fitted in its row of the matrices table."""
    values = squared[np.isfinite(squared)]
    small, large = sorted((row["rows"], row["columns"]))
    fitted = pd.notna(row["mp_variance"])
    edge = row["mp_edge"] if fitted else float(values.max())
    bulk, outliers = np.sqrt(values[values <= edge]), np.sqrt(values[values > edge])
    if not fitted:
        return BesideLaw(bulk, outliers, None)
    law = MarchenkoPastur(small / large, row["mp_variance"])
    x = np.linspace(law.lower**0.5, law.upper**0.5, 200)[1:-1]
    density = law.density(x**2) * 2 * x / large**0.5  # of the singular value, whose square over `large` is x^2
    return BesideLaw(bulk, outliers, (x * large**0.5, density))
