"""When heads are born, and what changes most between neighboring checkpoints."""

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped

MOST = 1000
"""The table of changes lists this many, the largest."""


def birth_indices(
    labels: Shaped[np.ndarray, "checkpoint layer head"], significant: Float[np.ndarray, "checkpoint layer head"]
) -> Int[np.ndarray, "layer head"]:
    """The first checkpoint from which on a head's label is the final one and significant; -1 if there is none."""
    is_final = (labels == labels[-1]) & (labels != "") & (significant == 1)
    lasting = np.logical_and.accumulate(is_final[::-1], axis=0)[::-1]
    return np.where(lasting.any(0), lasting.argmax(0), -1)


def births_table(
    labels: Shaped[np.ndarray, "checkpoint layer head"],
    significant: Float[np.ndarray, "checkpoint layer head"],
    checkpoints: Int[np.ndarray, "checkpoint"],
) -> pd.DataFrame:
    """A row for every head that is born, in the order of birth: layer, head, label, birth, before, label_before."""
    index = birth_indices(labels, significant)
    rows = []
    for layer, head in np.argwhere(index >= 0):
        at = int(index[layer, head])
        rows.append(
            {
                "layer": int(layer),
                "head": int(head),
                "label": str(labels[-1, layer, head]),
                "birth": int(checkpoints[at]),
                "before": int(checkpoints[at - 1]) if at else pd.NA,
                "label_before": (str(labels[at - 1, layer, head]) or None) if at else None,
            }
        )
    table = pd.DataFrame(rows, columns=["layer", "head", "label", "birth", "before", "label_before"])
    table = table.astype({"layer": "Int64", "head": "Int64", "birth": "Int64", "before": "Int64"})
    return table.sort_values(["birth", "layer", "head"], ignore_index=True)


def first_births(births: pd.DataFrame) -> pd.DataFrame:
    """A row for every label: its first birth, the head, and how many heads have it in the end, first births first."""
    first = births.drop_duplicates("label")
    counts = births["label"].value_counts()
    return first.assign(heads=first["label"].map(counts))[["label", "birth", "layer", "head", "heads"]].reset_index(
        drop=True
    )


def largest_changes(
    columns: dict[str, Float[np.ndarray, "checkpoint layer head"]],
    checkpoints: Int[np.ndarray, "checkpoint"],
    most: int = MOST,
) -> pd.DataFrame:
    """The largest changes of any column of any head from one checkpoint to the next, the largest first.

    size is |change| over the column's standard deviation over all heads and checkpoints, so that changes of different
    columns can be sorted together. Of each column, only the `most` largest are looked at.
    """
    parts = []
    for name, values in columns.items():
        change = np.diff(values.astype(np.float64), axis=0)
        spread = float(np.nanstd(values.astype(np.float64))) if np.isfinite(values).any() else 0.0
        size = np.abs(change) / spread if spread > 0 else np.zeros_like(change)
        size[~np.isfinite(size)] = -1.0
        flat = np.argsort(-size, axis=None, kind="stable")[:most]
        flat = flat[size.ravel()[flat] > 0]
        at, layer, head = np.unravel_index(flat, size.shape)
        parts.append(
            pd.DataFrame(
                {
                    "layer": layer,
                    "head": head,
                    "measure": name,
                    "before": checkpoints[at],
                    "after": checkpoints[at + 1],
                    "a": values[at, layer, head].astype(float),
                    "b": values[at + 1, layer, head].astype(float),
                    "change": change[at, layer, head],
                    "size": size[at, layer, head],
                }
            )
        )
    names = ["layer", "head", "measure", "before", "after", "a", "b", "change", "size"]
    table = pd.concat(parts) if parts else pd.DataFrame(columns=names)
    order = ["size", "after", "layer", "head", "measure"]
    return table.sort_values(order, ascending=[False, True, True, True, True], ignore_index=True).head(most)
