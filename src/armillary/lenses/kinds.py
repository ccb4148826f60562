"""Groups layers by kind: sliding-window or global attention, and rotary base."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from armillary.anatomy.description import Layer, Rotary
from armillary.atlas.columns import declared, definition

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

MEASURES = tuple(column.name for column in declared("kinds") if definition("heads", column.name) is not None)
"""Columns of the kinds table that are means of the heads table's column of the same name."""


@dataclass(frozen=True)
class LayerKind:
    """Layers with the same window and the same rotary frequencies.

    window: number of tokens that a query sees, itself included, or None for all; base: the rotary base, None without
    rotary encoding.
    """

    window: int | None
    base: float | None
    scaling: str
    layers: tuple[int, ...]
    alone: bool = True
    """True if all layers of the model are of this kind."""

    @property
    def kind(self) -> Literal["window", "global"]:
        """'window', or 'global' where a query sees every key."""
        return "global" if self.window is None else "window"

    @property
    def name(self) -> str:
        """'window layers (base 10,000)', or 'all layers' if the model has only this kind."""
        if self.alone:
            return "all layers"
        base = "no rotary encoding" if self.base is None else f"base {shown_base(self.base)}"
        scaling = "" if self.scaling in ("", "default") else f", {self.scaling}"
        return f"{self.kind} layers ({base}{scaling})"

    def binds(self, length: int) -> bool:
        """Whether the window hides any key in texts of `length` tokens."""
        return self.window is not None and self.window < length


def shown_base(base: float) -> str:
    """10000.0 as '10,000'."""
    return f"{base:,.0f}" if float(base).is_integer() else f"{base:,g}"


def spans(layers: Sequence[int]) -> str:
    """0, 1, 2, 5 as '0-2, 5'."""
    ranges: list[list[int]] = []
    for layer in layers:
        if ranges and layer == ranges[-1][1] + 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def kinds_of(layers: Sequence[Layer]) -> list[LayerKind]:
    """The kinds of an anatomy's layers, in the order of their first layers."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, layer in enumerate(layers):
        groups.setdefault((layer.reach, *_rotation(layer)), []).append(index)
    return [
        LayerKind(key[0], key[1], key[2], tuple(members), alone=len(groups) == 1) for key, members in groups.items()
    ]


def layer_kinds(atlas: "Atlas") -> list[LayerKind]:
    """The kinds of layers of an atlas's model."""
    return kinds_of(atlas.anatomy.layers)


def _rotation(layer: Layer) -> tuple[float | None, str, tuple[float, ...]]:
    position = layer.position
    if not isinstance(position, Rotary):
        return None, "", ()
    return float(position.base), position.scaling, position.frequencies


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """layer_kind (window or global) and rotary_base of every head; no columns for models without an adapter."""
    anatomy = atlas.anatomy
    if anatomy.missing:
        return pd.DataFrame()
    rows = []
    for layer in anatomy.layers:
        base, _, _ = _rotation(layer)
        kind = "global" if layer.reach is None else "window"
        rows += [{"layer_kind": kind, "rotary_base": np.nan if base is None else base}] * layer.heads
    table = pd.DataFrame(rows)
    return table if table["rotary_base"].notna().any() else table[["layer_kind"]]


def kind_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every kind of layer: kind, window, base, layers, heads, induction heads, and means over its heads."""
    heads = atlas.heads
    measures = [name for name in MEASURES if name in heads and heads[name].notna().any()]
    rows: list[dict[str, Any]] = []
    for kind in layer_kinds(atlas):
        part = heads[heads["layer"].isin(kind.layers)]
        row: dict[str, Any] = {"kind": kind.kind, "window": kind.window, "base": kind.base}
        row |= {"layers": spans(kind.layers), "heads": len(part)}
        if heads["label"].notna().any():
            row["induction_heads"] = int((part["label"] == "induction").sum())
        rows.append({**row, **{name: float(part[name].astype(float).mean()) for name in measures}})
    return pd.DataFrame(rows).astype({"window": "Int64", "base": "float64"})
