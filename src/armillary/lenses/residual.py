"""How long the vectors of the residual stream are, layer by layer."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from armillary.atlas import Atlas


def layer_columns(atlas: "Atlas") -> pd.DataFrame:
    """mean_norm: mean length |h| of a token's vector over kept positions; first_norm: that of the first token."""
    skip = atlas.settings["skip"]
    layers = len(atlas.attrs["anatomy"]["layers"]) + 1
    table = pd.DataFrame({"layer": np.arange(layers)})
    if not atlas.has("residual") or "positions" not in atlas.settings["streams"]:
        return table
    norm = atlas.group("residual")["position_norm"].to_numpy()
    return table.assign(mean_norm=norm[:, skip:].mean(1), first_norm=norm[:, 0])
