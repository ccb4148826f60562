"""Writes a timeline: the rows of all checkpoints as arrays (checkpoint, layer, head) in a Zarr store.

timeline.zarr/heads        every column of the heads table; words are arrays of strings; birth (layer, head)
timeline.zarr/layers       every column of the layers table, (checkpoint, point): point 0 is after the embeddings
timeline.zarr/checkpoints  loss, logged_loss, held_out_loss, tokens
timeline.zarr/log          the training log of the run, if there is one

Every group has the coordinate `checkpoint`: the step, or the place in the series. The same rows give the same bytes.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from armillary.atlas.arrays import Arrays, codecs, write_group
from armillary.atlas.manifest import write_manifest
from armillary.atlas.timelines.births import birth_indices
from armillary.atlas.timelines.rows import CheckpointRows
from armillary.atlas.timelines.timeline import FORMAT, FORMAT_VERSION, STORE
from armillary.files.atomic import whole_folder

# Imports inside functions: zarr takes half a second to import.

LOG_ROWS = 2000
"""A longer training log is thinned to means over this many stretches of equal length."""

PER_CHECKPOINT = ("loss", "logged_loss", "held_out_loss", "tokens")


def write_timeline(
    folder: Path,
    rows: Sequence[CheckpointRows],
    about: dict[str, Any],
    log: dict[str, Shaped[np.ndarray, "row"]] | None = None,
) -> Path:
    """Write the store into a folder, in place of one that is there, and return its path.

    The rows are in order and of one shape; `about` is what the attributes say besides the facts of the checkpoints.
    """
    import zarr

    steps = [row.facts["step"] for row in rows]
    has_steps = None not in steps
    numbers = np.array(steps if has_steps else range(len(rows)), dtype=np.int64)
    attributes = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **about,
        "unit": "step" if has_steps else "checkpoint",
        "checkpoints": [dict(sorted(row.facts.items())) for row in rows],
    }
    with whole_folder(folder / STORE) as part:
        zarr.create_group(part, attributes=attributes)
        _write_heads(part, rows, numbers)
        layers: Arrays = {
            name: (("checkpoint", "point"), _stacked([row.layers.get(name) for row in rows]))
            for name in _names(rows, "layers")
        }
        write_group(part, "layers", {"checkpoint": (("checkpoint",), numbers), **layers})
        series: Arrays = {
            name: (("checkpoint",), np.array([_number(row.facts.get(name)) for row in rows], np.float64))
            for name in PER_CHECKPOINT
            if any(row.facts.get(name) is not None for row in rows)
        }
        write_group(part, "checkpoints", {"checkpoint": (("checkpoint",), numbers), **series})
        if log:
            write_group(part, "log", {name: (("row",), values) for name, values in thinned(log).items()})
        write_manifest(part)
    return folder / STORE


def _write_heads(store: Path, rows: Sequence[CheckpointRows], numbers: Int[np.ndarray, "checkpoint"]) -> None:
    dims = ("checkpoint", "layer", "head")
    columns: Arrays = {name: (dims, _stacked([row.heads.get(name) for row in rows])) for name in _names(rows, "heads")}
    words = {name: _stacked([row.words.get(name) for row in rows]) for name in _names(rows, "words")}
    if "label" in words and "significant" in columns:
        index = birth_indices(words["label"], columns["significant"][1])
        birth = np.where(index >= 0, numbers[index], np.nan)
        columns["birth"] = (("layer", "head"), birth.astype(np.float64))
    write_group(store, "heads", {"checkpoint": (("checkpoint",), numbers), **columns})
    _write_words(store, dims, words)


def _write_words(store: Path, dims: tuple[str, ...], words: dict[str, Shaped[np.ndarray, "..."]]) -> None:
    """Words as Zarr's strings, which xarray reads as they are."""
    import zarr

    group = zarr.open_group(store, mode="a").require_group("heads")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # before 3.1, Zarr said that strings might be specified otherwise
        for name, values in words.items():
            array = group.create_array(
                name,
                shape=values.shape,
                dtype=str,
                chunks=tuple(max(1, n) for n in values.shape),
                dimension_names=list(dims),
                compressors=codecs(),
            )
            array[...] = values


def _names(rows: Sequence[CheckpointRows], part: str) -> list[str]:
    """The columns that any checkpoint has, in the order of the first that has them."""
    return list(dict.fromkeys(name for row in rows for name in getattr(row, part)))


def _stacked(values: list[Any]) -> Any:
    """The arrays of all checkpoints; where one lacks the column, missing values."""
    like = next(value for value in values if value is not None)
    missing = np.full(like.shape, "" if like.dtype == object else np.nan, like.dtype)
    return np.stack([missing if value is None else value for value in values])


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def thinned(log: dict[str, Shaped[np.ndarray, "row"]], most: int = LOG_ROWS) -> dict[str, Shaped[np.ndarray, "row_"]]:
    """The log as it is, or means over stretches of equal length if it has more rows; steps are the first of each."""
    count = len(log["step"])
    if count <= most:
        return dict(log)
    edges = np.linspace(0, count, most + 1).astype(int)[:-1]
    short: dict[str, Any] = {"step": log["step"][edges]}
    for name in log:
        if name != "step":
            known = np.isfinite(log[name])
            sums = np.add.reduceat(np.where(known, log[name], 0.0), edges)
            counts = np.add.reduceat(known.astype(float), edges)
            short[name] = np.divide(sums, counts, out=np.full(len(edges), np.nan), where=counts > 0).astype(np.float32)
    return short
