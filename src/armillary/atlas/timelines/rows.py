"""What was measured of one checkpoint: its heads and layers as arrays, and where the numbers come from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
from jaxtyping import Float, Shaped
from safetensors.numpy import load, save

from armillary.atlas.columns import kind_of
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    import pandas as pd

    from armillary.atlas.atlas import Atlas

INDEX = ("layer", "head")
ALWAYS = ("label", "significant")
"""Columns of the heads table that every timeline has, because births follow from them."""


class CheckpointFacts(TypedDict):
    """Where the numbers of one checkpoint come from.

    identity: a hash of its files, or its hub id and revision, by which a later run recognizes it; weights, config: the
    hashes that its scan recorded; same_as: the earlier checkpoint that has the same weights, which was scanned instead.
    """

    name: str
    step: int | None
    source: str
    identity: str
    weights: str
    config: str
    dtype: str
    text: str
    loss: NotRequired[float | None]
    logged_loss: NotRequired[float | None]
    held_out_loss: NotRequired[float | None]
    tokens: NotRequired[int | None]
    same_as: NotRequired[str | None]
    revision: NotRequired[str | None]


@dataclass(frozen=True)
class CheckpointRows:
    """The heads and layers tables of one checkpoint as arrays, in single precision; missing values are NaN or ''."""

    facts: CheckpointFacts
    heads: dict[str, Float[np.ndarray, "layer head"]]
    words: dict[str, Shaped[np.ndarray, "layer head"]]
    layers: dict[str, Float[np.ndarray, "point"]]

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and heads."""
        first = next(iter(self.words.values() or self.heads.values()))
        return int(first.shape[0]), int(first.shape[1])

    def under(self, **facts: Any) -> "CheckpointRows":
        """The same numbers with other facts: of a checkpoint that has the same weights."""
        changed: Any = {**self.facts, **facts}
        return replace(self, facts=changed)


def rows_of(atlas: "Atlas", facts: CheckpointFacts, columns: Sequence[str] | None) -> CheckpointRows:
    """The tables of an atlas as arrays: all columns, or the chosen ones with the label and its significance."""
    heads = atlas.heads
    wanted = None if columns is None else {*columns, *ALWAYS}
    if wanted is not None:
        refuse_unknown(wanted, {*heads.columns, *atlas.layers.columns})
    names = [str(name) for name in heads.columns if name not in INDEX and (wanted is None or name in wanted)]
    numbers = {name: _grid(heads, name) for name in names if kind_of("heads", name) != "word"}
    words = {name: _word_grid(heads, name) for name in names if kind_of("heads", name) == "word"}
    layers = {
        str(name): atlas.layers[name].to_numpy(np.float32, na_value=np.nan)
        for name in atlas.layers.columns
        if name != "layer" and (wanted is None or name in wanted)
    }
    return CheckpointRows(
        facts,
        {name: values for name, values in numbers.items() if np.isfinite(values).any()},
        {name: values for name, values in words.items() if (values != "").any()} or {"label": _blank(heads)},
        {name: values for name, values in layers.items() if np.isfinite(values).any()},
    )


def refuse_unknown(columns: set[str], known: set[str]) -> None:
    """Raise if a chosen column is in neither table."""
    unknown = sorted(columns - known - set(ALWAYS))
    if unknown:
        raise ArmillaryError(
            f"there is no column {unknown[0]!r} in the tables of heads and layers",
            advice="`armillary columns` lists them",
            given=unknown[0],
        )


def _size(heads: "pd.DataFrame") -> tuple[int, int]:
    return int(heads["layer"].max()) + 1, int(heads["head"].max()) + 1


def _grid(heads: "pd.DataFrame", name: str) -> Float[np.ndarray, "layer head"]:
    grid = np.full(_size(heads), np.nan, np.float32)
    grid[heads["layer"].to_numpy(int), heads["head"].to_numpy(int)] = heads[name].to_numpy(np.float32, na_value=np.nan)
    return grid


def _word_grid(heads: "pd.DataFrame", name: str) -> Shaped[np.ndarray, "layer head"]:
    grid = np.full(_size(heads), "", object)
    words = heads[name].fillna("").astype(str).to_numpy(object)
    grid[heads["layer"].to_numpy(int), heads["head"].to_numpy(int)] = words
    return grid


def _blank(heads: "pd.DataFrame") -> Shaped[np.ndarray, "layer head"]:
    return np.full(_size(heads), "", object)


# as bytes ---------------------------------------------------------------------------------------------------------


def to_bytes(rows: CheckpointRows) -> bytes:
    """The rows as the bytes of a safetensors file; facts and words are its metadata."""
    arrays = {f"heads/{name}": np.ascontiguousarray(values) for name, values in rows.heads.items()}
    arrays |= {f"layers/{name}": np.ascontiguousarray(values) for name, values in rows.layers.items()}
    words = {name: values.tolist() for name, values in rows.words.items()}
    metadata = {"facts": json.dumps(rows.facts, sort_keys=True), "words": json.dumps(words, sort_keys=True)}
    return bytes(save(arrays, metadata))


def from_bytes(data: bytes) -> CheckpointRows:
    """The reverse of to_bytes."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    arrays = load(data)
    words = {name: np.array(values, object) for name, values in json.loads(header["words"]).items()}
    return CheckpointRows(
        json.loads(header["facts"]),
        {name.removeprefix("heads/"): values for name, values in arrays.items() if name.startswith("heads/")},
        words,
        {name.removeprefix("layers/"): values for name, values in arrays.items() if name.startswith("layers/")},
    )
