"""Several atlases side by side: maps of labels, counts of labels, and the heads that change most."""

from collections.abc import Sequence
from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float, Shaped
from plotly.subplots import make_subplots

from armillary.figures.head_map import LABEL_COLORS, map_height
from armillary.figures.style import styled
from armillary.figures.timeline import label_map

ACROSS = 4
"""Maps in a row."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def label_maps(
    labels: Sequence[Shaped[np.ndarray, "layer head"]],
    significant: Sequence[Float[np.ndarray, "layer head"]],
    titles: list[str],
) -> go.Figure:
    """A map of labels for each atlas, with one legend."""
    columns = min(ACROSS, len(labels))
    rows = -(-len(labels) // columns)
    present = {str(word) for grid in labels for word in grid.ravel()}
    names = [name for name in LABEL_COLORS if name in present]
    shown = [escape(title if len(title) <= 40 else f"{title[:38]}..") for title in titles]
    figure = make_subplots(rows, columns, subplot_titles=shown, horizontal_spacing=0.04, vertical_spacing=0.16 / rows)
    for at, (grid, sure) in enumerate(zip(labels, significant, strict=True)):
        figure.add_trace(label_map(grid, sure, names).data[0], row=at // columns + 1, col=at % columns + 1)
    for name in names:  # the legend: heat maps have none
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=name,
            marker=dict(color=LABEL_COLORS[name], size=10, symbol="square"),
        )
    layers, heads = labels[0].shape
    figure.update_xaxes(dtick=max(1, heads // 8), showgrid=False, zeroline=False)
    figure.update_yaxes(dtick=max(1, layers // 8), showgrid=False, zeroline=False, autorange="reversed")
    figure.update_layout(legend=dict(orientation="h", y=-0.08, x=0), showlegend=True)
    return styled(figure, "Labels of every head", height=max(320, rows * (map_height(layers) - 60)))


def label_bars(counts: pd.DataFrame, titles: list[str]) -> go.Figure:
    """Heads by label, a bar for every atlas."""
    figure = go.Figure()
    columns = [name for name in counts.columns if str(name).startswith("atlas_")]
    for label in [name for name in LABEL_COLORS if name in set(counts["label"])]:
        row = counts[counts["label"] == label].iloc[0]
        figure.add_bar(
            x=[title.partition(":")[0] for title in titles],
            y=[int(row[name]) for name in columns],
            name=label,
            marker_color=LABEL_COLORS[label],
            customdata=[escape(title) for title in titles],
            hovertemplate=f"%{{customdata}}<br>{label}: %{{y}}<extra></extra>",
        )
    legend = dict(orientation="h", y=1.02, yanchor="bottom", x=0)
    figure.update_layout(barmode="stack", legend=legend, showlegend=True)
    figure.update_xaxes(title="atlas", type="category")
    figure.update_yaxes(title="heads")
    return styled(figure, "Heads by label", height=320)


def series_lines(changes: pd.DataFrame, titles: list[str]) -> go.Figure | None:
    """The five measures of heads that change most, each minus its first value, in units of its spread."""
    if changes.empty:
        return None
    figure = go.Figure()
    columns = [name for name in changes.columns if str(name).startswith("atlas_")]
    for at, (_, row) in enumerate(changes.head(5).iterrows()):
        values = row[columns].to_numpy(float)
        spread = float(row["range"]) / float(row["size"])
        figure.add_scatter(
            x=[title.partition(":")[0] for title in titles],
            y=(values - values[0]) / spread,
            customdata=values,
            mode="lines+markers",
            name=f"{row['measure']} {row['layer']}.{row['head']}",
            line_color=COLORS[at],
            hovertemplate="%{fullData.name}<br>%{customdata:.4g}<extra></extra>",
        )
    figure.update_layout(legend=dict(orientation="h", y=1.02, yanchor="bottom", x=0))
    figure.update_xaxes(title="atlas", type="category")
    figure.update_yaxes(title="change in units of its spread")
    return styled(figure, "What changes most", height=320)
