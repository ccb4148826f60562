"""The style of all figures."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

SIGNED = "RdBu_r"
"""Colors for values around zero: blue below, red above."""
POSITIVE = "Viridis"
"""Colors for values from zero up."""


def styled(figure: go.Figure, title: str, *, height: int = 480, width: int | None = None) -> go.Figure:
    """The figure with the common fonts and margins, and a title."""
    return figure.update_layout(
        title=dict(text=title, x=0.01, font_size=16),
        template="plotly_white",
        font=dict(family="system-ui, sans-serif", size=12),
        height=height,
        width=width,
        margin=dict(l=60, r=20, t=60, b=50),
    )


def heat(values: Any, *, signed: bool = True, **options: Any) -> go.Heatmap:
    """A heat map; the colors of signed values are centered on zero and end at the 99th percentile."""
    values = np.asarray(values, dtype=float)
    finite = np.abs(values[np.isfinite(values)])
    limit = float(np.percentile(finite, 99)) if finite.size and finite.max() > 0 else 1.0
    limit = limit or float(finite.max())
    scale = dict(zmin=-limit, zmax=limit, colorscale=SIGNED) if signed else dict(zmin=0, colorscale=POSITIVE)
    return go.Heatmap(z=values, **{**scale, **options})
