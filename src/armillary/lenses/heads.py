"""What every head's attention looks like: a row per head."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from armillary.atlas import Atlas

FROM_ATTENTION = (
    *("entropy", "entropy_norm", "self_mass", "prev_mass", "first_mass", "sink_mass", "mean_distance"),
    *("logit_mean", "logit_variance", "logit_skewness", "logit_kurtosis", "rank_one_distance"),
)


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """Entropy, masses, distance and logit moments of every head, from the scan's attention statistics."""
    layers = atlas.attrs["anatomy"]["layers"]
    rows = [(layer["index"], head) for layer in layers for head in range(layer["heads"])]
    table = pd.DataFrame(rows, columns=["layer", "head"])
    groups = np.array([layers[layer]["heads"] // layers[layer]["kv_heads"] for layer, _ in rows])
    table["kv_head"] = table["head"] // groups
    if "attention" not in atlas.settings["streams"]:
        return table
    found = atlas.group("attention")
    for name in FROM_ATTENTION:
        table[name] = found[name].to_numpy().reshape(-1)
    table["mixed_tokens"] = np.exp(table["entropy"])
    if not any(layer["sinks"] for layer in layers):
        table = table.drop(columns="sink_mass")
    return table
