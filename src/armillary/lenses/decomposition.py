"""h = mu + pos_t + ctx_c + resid_ct: the two-way decomposition of hidden states, from the scan's means."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    import xarray as xr

    from armillary.atlas.atlas import Atlas


@dataclass(frozen=True)
class Decomposition:
    """The parts of one layer's vectors, over the kept positions; pos sums to zero over t, ctx over c.

    total is the sum of |h - mu|^2 over all sequences and kept positions.
    """

    mu: Float[np.ndarray, "d"]
    pos: Float[np.ndarray, "t d"]
    ctx: Float[np.ndarray, "c d"]
    total: float

    @cached_property
    def pos_singular(self) -> Float[np.ndarray, "n"]:
        """The singular values of pos, largest first."""
        return np.linalg.svd(self.pos, compute_uv=False)

    @property
    def shares(self) -> tuple[float, float, float]:
        """Shares of pos, ctx and resid in the total sum of squares; they add to 1."""
        positions, sequences = len(self.pos), len(self.ctx)
        if self.total == 0 or sequences < 2:  # one sequence cannot separate position from content
            return (np.nan, np.nan, np.nan)
        pos = sequences * np.square(self.pos).sum() / self.total
        ctx = positions * np.square(self.ctx).sum() / self.total
        return float(pos), float(ctx), float(1 - pos - ctx)


ARRAYS = ("position_mean", "position_scatter", "sequence_mean")
"""What a decomposition is made of, in the atlas's groups 'residual' and 'input'."""
IN_MEMORY = 1 << 26
"""Up to this many bytes these arrays are read at once where every layer is decomposed: a chunk may hold many layers."""


def decompositions(atlas: "Atlas", group: str = "residual") -> Iterator[Decomposition]:
    """`decompose` for one layer after the other."""
    _check(atlas)
    arrays = atlas.group(group)[list(ARRAYS)]
    arrays = arrays.load() if arrays.nbytes <= IN_MEMORY else arrays
    for layer in range(arrays.sizes["layer"]):
        yield _parts(arrays.isel(layer=layer), atlas.settings["skip"])


def decompose(atlas: "Atlas", layer: int, group: str = "residual") -> Decomposition:
    """The parts of the residual stream (or of the attention input, group 'input') at a layer."""
    _check(atlas)
    return _parts(atlas.group(group).isel(layer=layer), atlas.settings["skip"])


def _check(atlas: "Atlas") -> None:
    if "positions" not in atlas.settings["streams"]:
        raise ArmillaryError(
            "this atlas was scanned without means by position", advice="scan with `streams=positions,...`"
        )


def _parts(arrays: "xr.Dataset", skip: int) -> Decomposition:
    mean = arrays["position_mean"].to_numpy()[skip:]
    mu = mean.mean(0)
    pos = mean - mu
    ctx = arrays["sequence_mean"].to_numpy() - mu
    total = arrays["position_scatter"].to_numpy()[skip:].sum() + len(ctx) * np.square(pos).sum()
    return Decomposition(mu, pos, ctx, float(total))
