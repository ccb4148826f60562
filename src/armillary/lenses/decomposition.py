"""h = mu + pos_t + ctx_c + resid_ct: the two-way decomposition of hidden states, from the scan's means."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from armillary.errors import ArmillaryError

if TYPE_CHECKING:
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


def decompose(atlas: "Atlas", layer: int, group: str = "residual") -> Decomposition:
    """The parts of the residual stream (or of the attention input, group 'input') at a layer."""
    if "positions" not in atlas.settings["streams"]:
        raise ArmillaryError(
            "this atlas was scanned without means by position", advice="scan with `streams=positions,...`"
        )
    arrays, skip = atlas.group(group).isel(layer=layer), atlas.settings["skip"]
    mean = arrays["position_mean"].to_numpy()[skip:]
    mu = mean.mean(0)
    pos = mean - mu
    ctx = arrays["sequence_mean"].to_numpy() - mu
    total = arrays["position_scatter"].to_numpy()[skip:].sum() + len(ctx) * np.square(pos).sum()
    return Decomposition(mu, pos, ctx, float(total))
