"""What every head's attention looks like: a row per head."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.atlas.columns import declared

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """Columns that are arrays of the atlas as they are (entropy, masses, distances, logit moments), a row per head."""
    layers = atlas.anatomy.layers
    rows = [(layer.index, head) for layer in layers for head in range(layer.heads)]
    table = pd.DataFrame(rows, columns=["layer", "head"])
    groups = np.array([layers[layer].group for layer, _ in rows])
    table["kv_head"] = table["head"] // groups
    for column in declared("heads"):
        if column.array and _has(atlas, column.array):
            group, _, name = column.array.partition("/")
            table[column.name] = atlas.group(group)[name].to_numpy().reshape(-1)
    if "entropy" in table:
        table["mixed_tokens"] = np.exp(table["entropy"])
    if "sink_mass" in table and not any(layer.sinks for layer in layers):
        table = table.drop(columns="sink_mass")
    return table


def _has(atlas: "Atlas", array: str) -> bool:
    """Whether the atlas has the array GROUP/NAME."""
    group, _, name = array.partition("/")
    return atlas.has(group) and name in atlas.group(group)
