"""Compares two atlases (or two timelines): what changed, per head and per layer, the largest changes first."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np
import pandas as pd

from armillary.atlas.columns import is_measure
from armillary.atlas.differences import differences
from armillary.atlas.timelines.compare import TimelineComparison, compare_timelines
from armillary.atlas.timelines.timeline import Timeline
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


@dataclass(frozen=True)
class Comparison:
    """Long tables (layer, [head], measure, a, b, change, size), sorted by size, and how the scans differ.

    size is |change| over the measure's standard deviation over heads (or layers) of both atlases, so that changes of
    different measures can be sorted together; infinite if that deviation is 0.
    """

    heads: pd.DataFrame
    layers: pd.DataFrame
    scans: list[str]


@overload
def compare(a: "Atlas", b: "Atlas") -> Comparison: ...
@overload
def compare(a: Timeline, b: Timeline) -> TimelineComparison: ...
def compare(a: "Atlas | Timeline", b: "Atlas | Timeline") -> Comparison | TimelineComparison:
    """What changed from a to b, two atlases with the same layers and heads, or how two timelines differ."""
    if isinstance(a, Timeline) and isinstance(b, Timeline):
        return compare_timelines(a, b)
    if isinstance(a, Timeline) or isinstance(b, Timeline):
        raise ArmillaryError("a timeline and an atlas cannot be compared", advice="give two of one kind")
    return _compare_atlases(a, b)


def _compare_atlases(a: "Atlas", b: "Atlas") -> Comparison:
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
        if is_measure("heads" if "head" in index else "layers", column)
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
    changes = pd.concat(parts) if parts else a[index].assign(measure="", a=0.0, b=0.0, change=0.0, size=0.0).iloc[:0]
    return changes.sort_values(
        ["size", *index, "measure"], ascending=[False, *[True] * len(index), True], ignore_index=True
    )


def typical_changes(changes: pd.DataFrame) -> dict[str, float]:
    """The median size of each measure's change over heads (or layers), where it is finite; the largest first."""
    sizes = changes[np.isfinite(changes["size"])].groupby("measure")["size"].median().sort_values(ascending=False)
    return {str(measure): float(size) for measure, size in sizes.items()}


def side_by_side(atlases: "list[Atlas]") -> pd.DataFrame:
    """A row for every measure of the layers, a column for every atlas: the mean over layers 1 to L (Song's Table 2).

    The embeddings (layer 0) and measures that no atlas has are left out.
    """
    names = [str(atlas.attrs["corpus"]["name"]).rsplit("/", 1)[-1] for atlas in atlases]
    labels = [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]
    means = {
        label: atlas.layers.iloc[1:].drop(columns="layer").astype(float).mean()
        for label, atlas in zip(labels, atlases, strict=True)
    }
    return pd.DataFrame(means).dropna(how="all").rename_axis("measure").reset_index()
