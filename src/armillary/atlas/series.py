"""Several atlases of one shape side by side: labels, and what changes most over the series."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.atlas.columns import is_measure
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

MOST = 1000
"""How many of the largest changes are listed."""


def refuse_other_shapes(atlases: "Sequence[Atlas]") -> None:
    """Raise if the atlases do not all have the same layers and heads."""
    first = atlases[0].heads[["layer", "head"]]
    for atlas in atlases[1:]:
        if not atlas.heads[["layer", "head"]].equals(first):
            sizes = [
                f"{one.path} has {len(one.anatomy.layers)} layers, {len(one.heads)} heads"
                for one in (atlases[0], atlas)
            ]
            raise ArmillaryError(
                f"the atlases do not have the same heads: {'; '.join(sizes)}; only models of one shape can be compared",
                advice="make a report of each",
            )


def series_changes(atlases: "Sequence[Atlas]", most: int = MOST) -> pd.DataFrame:
    """A row for every measure of every head: its value in each atlas, their range, and its size, the largest first.

    size is the range over the measure's standard deviation over the heads of all atlases.
    """
    refuse_other_shapes(atlases)
    first = atlases[0].heads
    names = [
        str(name)
        for name in first.columns
        if is_measure("heads", str(name))
        and all(name in atlas.heads and pd.api.types.is_numeric_dtype(atlas.heads[name]) for atlas in atlases)
    ]
    columns = atlas_columns(len(atlases))
    parts = []
    for name in names:
        values = np.stack([atlas.heads[name].to_numpy(float, na_value=np.nan) for atlas in atlases], axis=1)
        known = np.isfinite(values).all(1)
        spread = float(values[known].std()) if known.any() else 0.0
        if spread == 0:
            continue
        part = first.loc[known, ["layer", "head"]].assign(measure=name)
        part[columns] = values[known]
        moved = values[known].max(1) - values[known].min(1)
        part = part.assign(range=moved, size=moved / spread)
        parts.append(part[moved > 0].nlargest(most, "size"))
    empty = pd.DataFrame(columns=["layer", "head", "measure", *columns, "range", "size"])
    table = pd.concat([part for part in parts if len(part)] or [empty])
    order = ["size", "layer", "head", "measure"]
    largest: pd.DataFrame = table.sort_values(order, ascending=[False, True, True, True], ignore_index=True).head(most)
    return largest


def atlas_columns(count: int) -> list[str]:
    """atlas_1, atlas_2, ..."""
    return [f"atlas_{number}" for number in range(1, count + 1)]


def series_labels(atlases: "Sequence[Atlas]") -> pd.DataFrame:
    """A row for every label: how many heads have it in each atlas, and last minus first."""
    counts = [atlas.heads["label"].dropna().value_counts() for atlas in atlases if "label" in atlas.heads]
    if len(counts) < len(atlases) or any(count.empty for count in counts):
        raise ArmillaryError("not all of these atlases have labels", advice="scan with the stream patterns")
    table = pd.concat(counts, axis=1, keys=atlas_columns(len(atlases))).fillna(0).astype(int)
    table = table.assign(change=table.iloc[:, -1] - table.iloc[:, 0]).rename_axis("label").reset_index()
    return table.sort_values(["atlas_1", "label"], ascending=[False, True], ignore_index=True)


def series_layers(atlases: "Sequence[Atlas]") -> pd.DataFrame:
    """A row for every measure of the layers: its mean over layers 1 to L in each atlas."""
    means = [atlas.layers.iloc[1:].drop(columns="layer").astype(float).mean() for atlas in atlases]
    table = pd.concat(means, axis=1, keys=atlas_columns(len(atlases))).dropna(how="any")
    return table.rename_axis("measure").reset_index()
