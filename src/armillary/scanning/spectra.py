"""Computes the arrays that need only the weights: spectra of heads and matrices, and the heads' geometry."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from armillary.anatomy.description import Anatomy
from armillary.atlas.arrays import Arrays
from armillary.errors import ArmillaryError
from armillary.lenses import products, spectral
from armillary.lenses.effective import effective_product
from armillary.lenses.geometry import FREQUENCIES, head_geometry
from armillary.lenses.power_law import power_laws
from armillary.streams.constituents import Means
from armillary.streams.stream import Stream, stacked

Against = Literal["random", "model"]
"""What a model's weights were compared with: Gaussian weights, or another model."""


def groups_from_weights(anatomy: Anatomy, streams: dict[str, Stream]) -> tuple[dict[str, Arrays], list[str]]:
    """The atlas's groups that need the weights, and a note if the weights cannot be read."""
    groups: dict[str, Arrays] = {}
    if "constituents.share" in streams:
        statistic: Any = streams["constituents.share"].statistic
        groups["geometry"] = geometry_arrays(anatomy, statistic.means, statistic.skip)
    if anatomy.missing:
        return groups, []
    try:
        groups["spectral"] = head_spectra(anatomy)
    except ArmillaryError as error:  # wrapped or quantized weights: the rest of the scan is still valid
        return groups, [f"no spectra: {error}"]
    return groups, []


def layer_arrays(
    anatomy: Anatomy, layer: int, matrices: bool = True, random: bool = False, seed: int = 0, power_law: bool = False
) -> dict[str, Tensor]:
    """All spectral arrays of one layer; its weights are freed when this returns."""
    description, weights = anatomy.layers[layer], anatomy.weights(layer)
    bad = weights.not_finite()
    if bad:
        raise ArmillaryError(
            f"layer {layer} holds NaN or infinite numbers in {', '.join(bad[:3])}, so it has no spectrum",
            advice="repair the checkpoint",
        )
    arrays = _head_arrays(products.layer_spectra(description, weights), "")
    if any(layer.qk_norm is not None or layer.latent for layer in anatomy.layers):
        rows = spectral.effective_rows(effective_product(description, weights))
        arrays |= {str(name): torch.tensor(column.to_numpy(np.float64)) for name, column in rows.items()}
    if random:
        noise = spectral.random_like(weights, (seed * 1_000_003 + layer) % 2**63)
        arrays |= _head_arrays(products.layer_spectra(description, noise), "_random")
    del weights
    for name, matrix in anatomy.matrices(layer) if matrices else ():
        if not bool(matrix.isfinite().all()):
            raise ArmillaryError(
                f"the matrix {name!r} of layer {layer} holds NaN or infinite numbers", advice="repair the checkpoint"
            )
        arrays[f"matrix.{name}"] = torch.from_numpy(spectral.squared_singular_values(matrix))
        arrays[f"shape.{name}"] = torch.tensor(matrix.shape)
        if power_law:
            fits = power_laws(matrix, arrays[f"matrix.{name}"].numpy(), (seed, layer, spectral.MATRICES.index(name)))
            arrays[f"power_law.{name}"] = torch.from_numpy(fits)
    return arrays


def _head_arrays(spectra: products.LayerSpectra, suffix: str) -> dict[str, Tensor]:
    columns = spectral.head_rows(0, spectra).drop(columns=["layer", "head"])
    arrays = {f"{name}{suffix}": torch.tensor(column.to_numpy(np.float64)) for name, column in columns.items()}
    for name, product in (("qk", spectra.qk), ("ov", spectra.ov)):
        arrays[f"{name}_singular{suffix}"] = torch.from_numpy(product.singular)
        arrays[f"{name}_eigenvalue{suffix}"] = torch.view_as_real(torch.from_numpy(product.eigenvalues)).clone()
    return arrays


def spectral_arrays(layers: list[dict[str, Tensor]]) -> Arrays:
    """The heads' spectra of all layers: (layer, head), (layer, head, component), eigenvalues with (real, imaginary)."""
    dims = {2: ("layer", "head"), 3: ("layer", "head", "component"), 4: ("layer", "head", "component", "complex")}
    names = [name for name in layers[0] if "." not in name]
    whole = {name: stacked([layer[name] for layer in layers], ()).numpy() for name in names}
    return {name: (dims[values.ndim], values) for name, values in whole.items()}


def head_spectra(anatomy: Anatomy) -> Arrays:
    """The spectra of all heads; layers that share their weights are computed once."""
    by_block: dict[str, dict[str, Tensor]] = {}
    for layer in anatomy.layers:
        if layer.block not in by_block:
            by_block[layer.block] = layer_arrays(anatomy, layer.index, matrices=False)
    return spectral_arrays([by_block[layer.block] for layer in anatomy.layers])


def geometry_arrays(anatomy: Anatomy, means: Means, skip: int) -> Arrays:
    """The arrays of lenses/geometry.py: how the heads' weights act on the positional basis."""
    geometry = head_geometry(anatomy, means, skip)
    return {
        "argmax_ratio": (("layer", "head"), geometry.argmax_ratio),
        "pwp_energy": (("layer", "head", "frequencies"), geometry.pwp_energy),
        "pp_energy": (("layer", "frequencies"), geometry.pp_energy),
        "frequencies": (("frequencies",), np.array(FREQUENCIES)),
    }
