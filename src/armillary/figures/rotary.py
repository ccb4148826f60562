"""Figures of rotary frequencies: use by layer, head and token; decay with distance; the sweep."""

from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from armillary.figures.style import heat, styled
from armillary.lenses.kinds import shown_base
from armillary.lenses.rotary import frequency_grid


def frequencies_by_kind(table: pd.DataFrame) -> list[go.Figure]:
    """frequencies_by_layer for every kind of layer: with another base, an index is another frequency."""
    table = table[table["frequency"].notna()]
    groups = [part for _, part in table.groupby(["kind", "base"], sort=False)]
    return [frequencies_by_layer(part, "" if len(groups) == 1 else _kind(part)) for part in groups]


def frequencies_by_layer(table: pd.DataFrame, kind: str = "") -> go.Figure:
    """Mean norms of the chunks of q, k and v, and shares of the logits: frequency (fastest left) by layer."""
    panels = {"q_norm": "q", "k_norm": "k", "v_norm": "v (not rotated)", "share": "share of the logits"}
    figure = _by_frequency(table, "layer", panels)
    return styled(figure, f"Which frequencies the {kind or 'layers'} use", height=640)


def frequencies_by_head(table: pd.DataFrame, layer: int) -> go.Figure:
    """The same for the heads of one layer: norms of q and k, share, and change if the frequency is frozen."""
    part = table[(table["layer"] == layer) & table["frequency"].notna()]
    panels = {"q_norm": "q", "k_norm": "k", "share": "share of the logits", "change": "change if frozen"}
    figure = _by_frequency(part, "head", panels)
    of = f" ({part['kind'].iloc[0]}, base {shown_base(part['base'].iloc[0])})" if len(part) else ""
    return styled(figure, f"Which frequencies the heads of layer {layer}{of} use", height=640)


def _kind(part: pd.DataFrame) -> str:
    return f"{part['kind'].iloc[0]} layers (base {shown_base(part['base'].iloc[0])})"


def _by_frequency(table: pd.DataFrame, rows: str, panels: dict[str, str]) -> go.Figure:
    """Four maps of layers or heads by frequency; layers that are missing in the table leave no gap."""
    figure = make_subplots(2, 2, subplot_titles=list(panels.values()), vertical_spacing=0.16)
    for i, column in enumerate(panels):
        grid = frequency_grid(table, rows, column)
        at = dict(row=i // 2 + 1, col=i % 2 + 1)
        bar = dict(x=0.455 if i % 2 == 0 else 1.0, y=0.79 if i < 2 else 0.21, len=0.42, thickness=10, outlinewidth=0)
        hover = f"{rows} %{{y}}, frequency %{{x}}: %{{z:.3f}}<extra></extra>"
        named = dict(x=grid.columns.to_numpy(int), y=[str(row) for row in grid.index])
        values = grid.to_numpy(float)
        figure.add_trace(heat(values, signed=column == "share", **named, colorbar=bar, hovertemplate=hover), **at)
    figure.update_yaxes(autorange="reversed", title=rows, type="category")
    return figure.update_xaxes(title="frequency, fastest first")


def token_usage(norms: dict[str, Float[np.ndarray, "token frequency"]], tokens: list[str], title: str) -> go.Figure:
    """Norms of the chunks of q and k of one head, token by token (Barbero's Figures 5 and 6)."""
    figure = make_subplots(1, len(norms), subplot_titles=list(norms), horizontal_spacing=0.16)
    for i, values in enumerate(norms.values(), start=1):
        right = figure.layout[f"xaxis{i if i > 1 else ''}"].domain[1]
        bar = dict(x=right, thickness=10, outlinewidth=0)
        hover = "token %{y}, frequency %{x}: %{z:.3f}<extra></extra>"
        figure.add_trace(heat(values, signed=False, colorbar=bar, hovertemplate=hover), 1, i)
    tokens = [escape(token, quote=False) for token in tokens]
    step = max(1, len(tokens) // 40)
    figure.update_yaxes(
        autorange="reversed", tickvals=list(range(0, len(tokens), step)), ticktext=tokens[::step], tickfont_size=9
    )
    figure.update_xaxes(title="frequency, fastest first")
    return styled(figure, title, height=max(420, 12 * len(tokens) + 140))


def decay(curves: dict[str, Float[np.ndarray, "distance"]], title: str = "q.k over distance") -> go.Figure:
    """Products over the distance, a line for each kind of vectors."""
    figure = go.Figure()
    for name, values in curves.items():
        figure.add_scatter(x=np.arange(len(values)), y=values, name=name, mode="lines")
    figure.update_xaxes(title="distance in tokens").update_yaxes(title="q.k")
    return styled(figure, title)


def sweep_curves(what: str, table: pd.DataFrame) -> go.Figure:
    """Loss over the swept setting; for p also with the slowest frequencies, and the predicted changes of the logits."""
    if what != "p":
        figure = go.Figure(go.Scatter(x=table[what], y=table["loss"], mode="lines+markers"))
        figure.update_xaxes(title=what).update_yaxes(title="loss (nats per token)")
        return styled(figure, f"Loss over {what}")
    figure = make_subplots(1, 2, subplot_titles=("loss (nats per token)", "predicted change of the logits"))
    colors = sample_colorscale("Viridis", [0.1, 0.7])
    for col, names in ((1, ("loss", "reversed_loss")), (2, ("predicted_cost", "reversed_cost"))):
        for color, name, label in zip(colors, names, ("fastest rotate", "slowest rotate"), strict=True):
            figure.add_scatter(
                x=table["p"],
                y=table[name],
                mode="lines+markers",
                name=label,
                legendgroup=label,
                showlegend=col == 1,
                line_color=color,
                row=1,
                col=col,
            )
    figure.update_xaxes(title="p: fraction of frequencies that rotate", autorange="reversed")
    return styled(figure, "p-RoPE with the fastest or the slowest frequencies")
