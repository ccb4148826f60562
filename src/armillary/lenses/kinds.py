"""Kinds of layers: those with a window and those that see everything, and the rotary base that each turns with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from armillary.atlas import Atlas

MEASURES = (
    *("positional_share", "content_share", "mixed_share", "high_freq_share", "self_mass", "prev_mass", "first_mass"),
    *("mean_distance", "entropy_norm", "induction_score"),
)
"""What the table of kinds compares, mean over heads."""


@dataclass(frozen=True)
class LayerKind:
    """Layers that see the same keys and turn q and k by the same frequencies.

    window: tokens that a query sees, itself among them, or None for all; base: that of the rotary encoding, None for a
    layer that does not turn.
    """

    window: int | None
    base: float | None
    scaling: str
    layers: tuple[int, ...]
    alone: bool = True
    """Whether the model has no other kind."""

    @property
    def kind(self) -> Literal["window", "global"]:
        """window, or global where every key is seen."""
        return "global" if self.window is None else "window"

    @property
    def name(self) -> str:
        """'window layers (base 10,000)', or 'all layers' where there is one kind only."""
        if self.alone:
            return "all layers"
        turned = "no rotary encoding" if self.base is None else f"base {shown_base(self.base)}"
        scaled = "" if self.scaling in ("", "default") else f", {self.scaling}"
        return f"{self.kind} layers ({turned}{scaled})"

    def binds(self, length: int) -> bool:
        """Whether the window hides anything in texts of so many tokens."""
        return self.window is not None and self.window < length


def shown_base(base: float) -> str:
    """10000.0 as '10,000'."""
    return f"{base:,.0f}" if float(base).is_integer() else f"{base:,g}"


def spans(layers: Sequence[int]) -> str:
    """0, 1, 2, 5 as '0-2, 5'."""
    found: list[list[int]] = []
    for layer in layers:
        if found and layer == found[-1][1] + 1:
            found[-1][1] = layer
        else:
            found.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def kinds_of(layers: Sequence[dict[str, Any]]) -> list[LayerKind]:
    """The kinds of an anatomy's layers (as an atlas keeps them), in the order of their first layers."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, layer in enumerate(layers):
        groups.setdefault((layer["window"], *_turning(layer)), []).append(index)
    return [
        LayerKind(key[0], key[1], key[2], tuple(members), alone=len(groups) == 1) for key, members in groups.items()
    ]


def layer_kinds(atlas: "Atlas") -> list[LayerKind]:
    """The kinds of layers of an atlas's model."""
    return kinds_of(atlas.attrs["anatomy"]["layers"])


def _turning(layer: dict[str, Any]) -> tuple[float | None, str, tuple[float, ...]]:
    position = layer["position"]
    if not position or position["kind"] != "Rotary":
        return None, "", ()
    return float(position["base"]), str(position["scaling"]), tuple(position["frequencies"])


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """layer_kind (window or global) and rotary_base of every head; nothing where no adapter knows the model."""
    anatomy = atlas.attrs["anatomy"]
    if anatomy["missing"]:
        return pd.DataFrame()
    rows = []
    for layer in anatomy["layers"]:
        base, _, _ = _turning(layer)
        kind = "global" if layer["window"] is None else "window"
        rows += [{"layer_kind": kind, "rotary_base": np.nan if base is None else base}] * layer["heads"]
    table = pd.DataFrame(rows)
    return table if table["rotary_base"].notna().any() else table[["layer_kind"]]


def kind_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every kind of layer: kind, window, base, layers, heads, induction heads, and means over its heads."""
    heads = atlas.heads
    known = [name for name in MEASURES if name in heads and heads[name].notna().any()]
    rows: list[dict[str, Any]] = []
    for kind in layer_kinds(atlas):
        part = heads[heads["layer"].isin(kind.layers)]
        row: dict[str, Any] = {"kind": kind.kind, "window": kind.window, "base": kind.base}
        row |= {"layers": spans(kind.layers), "heads": len(part)}
        if heads["label"].notna().any():
            row["induction_heads"] = int((part["label"] == "induction").sum())
        rows.append({**row, **{name: float(part[name].astype(float).mean()) for name in known}})
    return pd.DataFrame(rows).astype({"window": "Int64", "base": "float64"})
