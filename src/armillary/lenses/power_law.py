"""A power law fitted to the tail of a matrix's spectrum, and to those of random and shuffled matrices of its shape.

The density of the squared singular values above xmin is taken as x^-alpha; alpha is the likeliest, and xmin the one
that makes the distance between the tail and its law least (Clauset, Shalizi and Newman, SIAM Review 51 (2009) 661; the
package powerlaw). A fit exists for every spectrum, also for noise: that is why the same is fitted to noise.
"""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.errors import ArmillaryError
from armillary.lenses.spectral import EMPTY, MATRICES, against_random, squared_singular_values

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

FITTED = ("alpha", "distance", "xmin", "tail", "outliers")
"""What a fit gives. tail: how many squared singular values are at least xmin; outliers: beyond the bulk."""

SPECTRA = ("", "_random", "_shuffled")
"""The matrix itself, a Gaussian one of its shape and norm, and its own entries in random order."""

FEWEST = 8
"""A spectrum with fewer squared singular values above zero gets no fit."""


def power_law(values: Float[np.ndarray, "n"]) -> tuple[float, float, float, int]:
    """alpha, distance, xmin and the number of values in the tail; NaN where there are fewer than FEWEST values."""
    positive = values[values > EMPTY * values.max(initial=0.0)]
    if len(positive) < FEWEST:
        return float("nan"), float("nan"), float("nan"), 0
    fitting = require_powerlaw()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package's own calls to what it deprecates
        fit = fitting.Fit(positive, verbose=False)
    xmin = float(fit.xmin)
    return float(fit.alpha), float(fit.D), xmin, int((positive >= xmin).sum())


def power_laws(
    matrix: Float[Tensor, "n m"], values: Float[np.ndarray, "rank"], seed: tuple[int, ...]
) -> Float[np.ndarray, "spectrum fitted"]:
    """FITTED for each of SPECTRA; `values` are the matrix's own squared singular values."""
    rng = np.random.default_rng(seed)
    entries = matrix.detach().to("cpu", torch.float64).numpy()
    gaussian = rng.standard_normal(entries.shape)
    gaussian *= np.linalg.norm(entries) / np.linalg.norm(gaussian)
    shuffled = rng.permutation(entries.reshape(-1)).reshape(entries.shape)
    others = [squared_singular_values(torch.from_numpy(other)) for other in (gaussian, shuffled)]
    rows = []
    for spectrum in (values, *others):
        empty = not spectrum.any()
        outliers = float("nan") if empty else against_random(spectrum, entries.shape)["outliers"]
        rows.append([*power_law(spectrum), outliers])
    return np.array(rows, dtype=np.float64)


def matrix_columns(atlas: "Atlas") -> pd.DataFrame:
    """The columns of the matrices table, a row for every matrix in the order of lenses/spectral.py.

    alpha_outliers: how many values of the tail are beyond the bulk.
    """
    if not atlas.has("power_law"):
        return pd.DataFrame()
    arrays, matrices = atlas.group("power_law"), atlas.group("matrices")
    rows: list[dict[str, Any]] = []
    for layer, shapes in enumerate(matrices.attrs["shapes"]):
        for name in sorted(shapes, key=MATRICES.index):
            fits = arrays[name].sel(layer=layer).to_numpy()
            row: dict[str, Any] = {}
            for suffix, (alpha, distance, xmin, tail, outliers) in zip(SPECTRA, fits, strict=True):
                fit = {"alpha": alpha, "alpha_distance": distance, "alpha_xmin": xmin, "alpha_tail": tail}
                row |= {f"{measure}{suffix}": value for measure, value in fit.items()}
                if suffix:
                    row[f"outliers{suffix}"] = outliers
                else:  # both are the largest values of one spectrum
                    row["alpha_outliers"] = min(tail, outliers)
            rows.append(row)
    return pd.DataFrame(rows)


def require_powerlaw() -> Any:
    """The package powerlaw; raises if it is not installed."""
    try:
        # for start-up: it imports matplotlib, and is an extra
        import powerlaw
    except ImportError as error:
        raise ArmillaryError(
            "fitting power laws needs the package powerlaw: pip install 'armillary[powerlaw]'"
        ) from error
    return powerlaw
