"""The data from which the page draws any head's dossier: one template per panel, and arrays with a row per head."""

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float, Num

from armillary.figures.heads import PANELS, draw_patterns, draw_shares
from armillary.lenses.panels import Arrays, pattern_arrays, share_arrays

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

CELLS = 64
"""Mean logits are shown on a grid of at most this many cells a side."""

LEVELS = 254
"""Mean logits are rounded to this many steps, enough for a color scale."""


def plain(figure: go.Figure) -> dict[str, Any]:
    """A figure as JSON without the template, which all figures share and the page holds once."""
    parts: dict[str, Any] = json.loads(figure.to_json())
    parts["layout"].pop("template", None)
    return {"data": parts["data"], "layout": parts["layout"]}


def dossiers(atlas: "Atlas", evidence: pd.DataFrame | None) -> dict[str, Any]:
    """{panels: {name: template}, arrays: {name: packed}}; an array has a row for each row of the heads table."""
    heads = atlas.heads
    panels: dict[str, Any] = {}
    arrays: dict[str, Any] = {}

    def add(name: str, numbers: Arrays | None, draw: Any, shared: tuple[str, ...]) -> None:
        if numbers is None:
            return
        own = {key: values for key, values in numbers.items() if key not in shared}
        rows = np.stack([np.isfinite(v).reshape(len(heads), -1).any(1) for v in own.values()]).any(0)
        if not rows.any():
            return
        first = int(np.argmax(rows))
        template = plain(draw({**numbers, **{key: values[first] for key, values in own.items()}}))
        for trace in template["data"]:
            for field in trace.get("meta", {}):
                trace.pop(field, None)
        panels[name] = template
        arrays.update({key: packed(values) for key, values in own.items() if key != "logits"})
        if "logits" in own:
            arrays["logits"] = packed_logits(own["logits"], own["logits_high"])

    patterns = pattern_arrays(heads, evidence)
    if patterns is not None:
        patterns = {**patterns, "patterns_name": patterns["patterns_name"][0]}
    add("patterns", patterns, draw_patterns, ("patterns_name",))
    add("shares", share_arrays(heads), draw_shares, ())
    for name, panel in PANELS.items():
        numbers = panel.arrays(atlas, None, None)
        if numbers is not None:
            if "logits" in numbers:
                step = -(-len(numbers["token"]) // CELLS)
                numbers["token"] = np.array(
                    [part.mean() for part in np.split(numbers["token"], range(step, len(numbers["token"]), step))]
                )
                numbers["logits"] = coarse(numbers["logits"], step)
            numbers = {key: v if key in panel.shared else by_row(heads, v) for key, v in numbers.items()}
        add(name, numbers, panel.draw, panel.shared)
    return {"panels": panels, "arrays": arrays}


def by_row(heads: pd.DataFrame, values: Num[np.ndarray, "layer head *rest"]) -> Num[np.ndarray, "row *rest"]:
    """The array in the order of the heads table."""
    return np.asarray(values[heads["layer"].to_numpy(int), heads["head"].to_numpy(int)])


def coarse(values: Float[np.ndarray, "*batch q k"], step: int) -> Float[np.ndarray, "*batch a b"]:
    """The mean over blocks of step x step cells, without missing ones."""
    if step == 1:
        return values
    pad = -values.shape[-1] % step
    wide = np.pad(values, [(0, 0)] * (values.ndim - 2) + [(0, pad), (0, pad)], constant_values=np.nan)
    n = wide.shape[-1] // step
    blocks = wide.reshape(*values.shape[:-2], n, step, n, step)
    seen = np.isfinite(blocks).sum((-3, -1))
    total = np.nansum(blocks, axis=(-3, -1))
    return np.asarray(np.divide(total, seen, out=np.full(total.shape, np.nan), where=seen > 0))


def packed(values: Num[np.ndarray, "row *rest"]) -> dict[str, Any]:
    """As float32 in base64."""
    data = np.ascontiguousarray(values, dtype="<f4")
    return {"type": "f4", "shape": list(data.shape[1:]), "data": base64.b64encode(data.tobytes()).decode()}


def packed_logits(values: Float[np.ndarray, "row q k"], limit: Float[np.ndarray, "row"]) -> dict[str, Any]:
    """As bytes: 0 is missing, 1 to 255 go from -limit to limit of each row."""
    scale = np.where(limit > 0, limit, 1.0)[:, None, None]
    steps = 1 + np.rint((np.clip(values / scale, -1, 1) + 1) / 2 * LEVELS)
    data = np.where(np.isfinite(values), steps, 0).astype(np.uint8)
    return {"type": "u1", "shape": list(data.shape[1:]), "data": base64.b64encode(data.tobytes()).decode()}
