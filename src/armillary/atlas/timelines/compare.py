"""Compares two timelines: births side by side, and where the curves of the same measure differ."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from armillary.atlas.differences import differences
from armillary.atlas.timelines.births import MOST, first_births
from armillary.atlas.timelines.timeline import Timeline
from armillary.errors import ArmillaryError

INDEX = ["layer", "head"]


@dataclass(frozen=True)
class TimelineComparison:
    """Two timelines side by side.

    first_births: by label, whichever head has it (heads of two runs need not correspond); births: head by head;
    curves: the largest differences over common checkpoints. births and curves are empty for models of other shapes,
    and `scans` says so; it also lists how the two timelines were made differently.
    """

    first_births: pd.DataFrame
    births: pd.DataFrame
    curves: pd.DataFrame
    scans: list[str]


def compare_timelines(a: Timeline, b: Timeline, most: int = MOST) -> TimelineComparison:
    """Births of both, and the largest differences of any column at the checkpoints (steps) that both have."""
    if a.unit != b.unit:
        raise ArmillaryError(
            f"{a.path} counts {a.unit}s and {b.path} counts {b.unit}s", advice="compare timelines of the same kind"
        )
    keys = ("corpus", "settings")
    scans = differences({key: a.attrs.get(key, {}) for key in keys}, {key: b.attrs.get(key, {}) for key in keys})
    scans = ["the text differs" if line.startswith("corpus sha256") else line for line in scans]
    shapes = [tuple(timeline.heads.sizes[name] for name in INDEX) for timeline in (a, b)]
    common = np.intersect1d(a.steps, b.steps)
    same_shape = shapes[0] == shapes[1]
    if not same_shape:
        scans.append(
            f"the models have other shapes ({shapes[0][0]} layers of {shapes[0][1]} heads, {shapes[1][0]} of "
            f"{shapes[1][1]}), so only first births are compared"
        )
    elif not len(common):
        scans.append(f"the two have no {a.unit} in common, so no curves are compared")
    return TimelineComparison(
        first_births=_first_births(a.births, b.births),
        births=_births(a.births, b.births) if same_shape else _births(a.births[:0], b.births[:0]),
        curves=_curves(a, b, common if same_shape else common[:0], most),
        scans=scans,
    )


def _births(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Head by head, the earliest birth of either first."""
    both = a[[*INDEX, "label", "birth"]].merge(
        b[[*INDEX, "label", "birth"]], on=INDEX, how="outer", suffixes=("_a", "_b")
    )
    later = (both["birth_b"] - both["birth_a"]).where(both["label_a"] == both["label_b"])
    both = both.assign(later=later)[[*INDEX, "label_a", "birth_a", "label_b", "birth_b", "later"]]
    earliest = both[["birth_a", "birth_b"]].min(axis=1)
    return both.assign(earliest=earliest).sort_values(["earliest", *INDEX], ignore_index=True).drop(columns="earliest")


def _first_births(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """By label, the earliest first birth of either first."""
    parts = []
    for births, end in ((a, "a"), (b, "b")):
        first = first_births(births)[["label", "birth", "heads"]]
        parts.append(first.rename(columns={"birth": f"first_{end}", "heads": f"heads_{end}"}))
    both = parts[0].merge(parts[1], on="label", how="outer")
    counts = {name: both[name].fillna(0).astype("Int64") for name in ("heads_a", "heads_b")}
    both = both.assign(**counts, later=both["first_b"] - both["first_a"])
    earliest = both[["first_a", "first_b"]].min(axis=1)
    both = both.assign(earliest=earliest).sort_values(["earliest", "label"], ignore_index=True)
    return both[["label", "first_a", "heads_a", "first_b", "heads_b", "later"]]


def _curves(a: Timeline, b: Timeline, common: Int[np.ndarray, "checkpoint"], most: int) -> pd.DataFrame:
    names = ["layer", "head", "measure", "at", "a", "b", "difference", "final", "mean_difference", "size"]
    parts = [pd.DataFrame(columns=names)]
    if len(common):
        of_a, of_b = (timeline.heads.sel(checkpoint=common) for timeline in (a, b))
        for name in a.measures:
            if name in of_b and name in b.measures:
                left, right = (part[name].to_numpy().astype(np.float64) for part in (of_a, of_b))
                parts.append(_curve(name, left, right, common, most))
    table = pd.concat([part for part in parts if len(part)] or parts)
    order = ["size", "layer", "head", "measure"]
    return table.sort_values(order, ascending=[False, True, True, True], ignore_index=True).head(most)


def _curve(
    name: str,
    left: Float[np.ndarray, "checkpoint layer head"],
    right: Float[np.ndarray, "checkpoint layer head"],
    common: Int[np.ndarray, "checkpoint"],
    most: int,
) -> pd.DataFrame:
    """A row for every head: where its two curves of this measure differ most."""
    difference = right - left
    known = np.isfinite(difference)
    spread = float(np.nanstd(np.stack([left, right]))) if known.any() else 0.0
    at = np.where(known, np.abs(difference), -1.0).argmax(0)
    layer, head = np.nonzero(known.any(0) & (spread > 0))
    where = at[layer, head]
    counts = known.sum(0)[layer, head]
    table = pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "measure": name,
            "at": common[where],
            "a": left[where, layer, head],
            "b": right[where, layer, head],
            "difference": difference[where, layer, head],
            "final": difference[-1, layer, head],
            "mean_difference": np.where(known, np.abs(difference), 0.0).sum(0)[layer, head] / counts,
        }
    )
    table["size"] = table["difference"].abs() / spread if spread > 0 else 0.0
    return table[table["size"] > 0].nlargest(most, "size")
