"""Two atlases side by side: what changed, per head and per layer, the largest changes first."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from armillary.atlas import Atlas


@dataclass(frozen=True)
class Comparison:
    """Long tables (layer, [head], measure, a, b, change, size), sorted by size, and what the scans differ in.

    size is |change| in units of the measure's spread over heads (or layers) of both atlases, so that changes of
    different measures can be sorted together; a measure that is the same everywhere and changes has size infinity.
    """

    heads: pd.DataFrame
    layers: pd.DataFrame
    scans: list[str]


def compare(a: "Atlas", b: "Atlas") -> Comparison:
    """What changed from a to b. The two must have the same layers and heads."""
    from armillary.shards import differences

    for name, index in (("layers", ["layer"]), ("heads", ["layer", "head"])):
        left, right = getattr(a, name)[index], getattr(b, name)[index]
        if not left.equals(right):
            raise ArmillaryError(
                f"the two atlases do not have the same {name}: {a.path} has {len(left)} and {b.path} has {len(right)}; "
                "only models of one shape can be compared"
            )
    keys = ("model", "corpus", "settings")
    scans = differences({key: a.attrs[key] for key in keys}, {key: b.attrs[key] for key in keys})
    hashes = {"model weights": "the weights differ", "corpus sha256": "the text differs"}
    scans = [hashes.get(line.split(":")[0], line) for line in scans]
    return Comparison(
        heads=_changes(a.heads, b.heads, ["layer", "head"]), layers=_changes(a.layers, b.layers, ["layer"]), scans=scans
    )


def _changes(a: pd.DataFrame, b: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    numbers = [
        column
        for column in a.columns
        if column not in ("layer", "head", "kv_head")
        and column in b.columns
        and pd.api.types.is_numeric_dtype(a[column])
    ]
    parts = []
    for column in numbers:
        left, right = a[column].astype(float), b[column].astype(float)
        change = right - left
        spread = pd.concat([left, right]).std(ddof=0)
        size = change.abs() / spread if spread > 0 else change.abs().where(change == 0, float("inf"))
        part = a[index].assign(measure=column, a=left, b=right, change=change, size=size)
        parts.append(part[left.notna() & right.notna()])
    found = pd.concat(parts) if parts else a[index].assign(measure="", a=0.0, b=0.0, change=0.0, size=0.0).iloc[:0]
    return found.sort_values(
        ["size", *index, "measure"], ascending=[False, *[True] * len(index), True], ignore_index=True
    )


def side_by_side(atlases: "list[Atlas]") -> pd.DataFrame:
    """A row for every measure of the layers, a column for every atlas: the mean over layers 1 to L (Song's Table 2).

    The embeddings (layer 0) are left out; a measure that none of them has is left out too.
    """
    names = [str(atlas.attrs["corpus"]["name"]).rsplit("/", 1)[-1] for atlas in atlases]
    labels = [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]
    means = {
        label: atlas.layers.iloc[1:].drop(columns="layer").astype(float).mean()
        for label, atlas in zip(labels, atlases, strict=True)
    }
    return pd.DataFrame(means).dropna(how="all").rename_axis("measure").reset_index()
