"""Figures of a timeline: the map of heads at a checkpoint, the loss with the births, curves of a column.

Checkpoints are spaced evenly, because steps are often spaced like 1, 2, 4, 8; the axis names the steps.
"""

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Shaped
from plotly.subplots import make_subplots

from armillary.figures.head_map import LABEL_COLORS, ink_on, map_height
from armillary.figures.style import styled

if TYPE_CHECKING:
    from armillary.atlas.timelines.timeline import Timeline

UNKNOWN = "#d8d8d4"
"""The color of heads without a label."""
MOST_TICKS = 14


def positions(timeline: "Timeline", steps: Any) -> Float[np.ndarray, "n"]:
    """Where steps lie on the axis: checkpoint i at i, others in between."""
    return np.asarray(np.interp(np.asarray(steps, float), timeline.steps, np.arange(len(timeline.steps))))


def _axis(timeline: "Timeline") -> dict[str, Any]:
    count = len(timeline.steps)
    shown = np.arange(0, count, -(-count // MOST_TICKS))
    return dict(
        title=timeline.unit,
        tickvals=shown.tolist(),
        ticktext=[f"{step:,}" for step in timeline.steps[shown]],
        range=[-0.4, count - 0.6],
        zeroline=False,
    )


def _now(at: float) -> dict[str, Any]:
    """The line at the checkpoint that is shown; the page's slider moves it."""
    return dict(type="line", x0=at, x1=at, y0=0, y1=1, xref="x", yref="paper", line=dict(color="black", width=1.5))


def label_map(
    labels: Shaped[np.ndarray, "layer head"], significant: Float[np.ndarray, "layer head"], names: list[str]
) -> go.Figure:
    """Layers downwards, heads across, colored by label; letters where it is significant. `names`: every label."""
    codes = np.array([[names.index(str(word)) if word in names else -1 for word in row] for row in labels])
    colors = [UNKNOWN, *(LABEL_COLORS.get(name, "#444444") for name in names)]
    scale = [
        entry for i, color in enumerate(colors) for entry in ([i / len(colors), color], [(i + 1) / len(colors), color])
    ]
    text = np.where((significant == 1) & (codes >= 0), [[str(word)[:2] for word in row] for row in labels], "")
    words = np.where(significant == 1, labels, np.char.add(labels.astype(str), ", not significant"))
    layers, heads = labels.shape
    figure = go.Figure(
        go.Heatmap(
            z=codes,
            x=np.arange(heads),
            y=np.arange(layers),
            zmin=-1.5,
            zmax=len(names) - 0.5,
            colorscale=scale,
            showscale=False,
            xgap=1,
            ygap=1,
            text=text,
            texttemplate="%{text}" if heads <= 16 else "",
            textfont=dict(size=10, color=ink_on(LABEL_COLORS["mixed"])),
            customdata=words,
            hovertemplate="layer %{y}, head %{x}<br>%{customdata}<extra></extra>",
        )
    )
    figure.update_xaxes(title="head", dtick=max(1, heads // 8), showgrid=False, zeroline=False)
    figure.update_yaxes(title="layer", dtick=max(1, layers // 8), showgrid=False, zeroline=False, autorange="reversed")
    return styled(figure, "Labels of every head", height=max(360, map_height(layers) - 60))


def loss_with_births(timeline: "Timeline", at: int = -1) -> go.Figure:
    """The loss above; below, the births: a row per label, a dot per checkpoint, larger for more heads."""
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=[0.58, 0.42], vertical_spacing=0.06)
    _add_losses(figure, timeline)
    births = timeline.births
    for label in [name for name in LABEL_COLORS if name in set(births["label"])]:
        groups = births[births["label"] == label].groupby("birth")
        steps = [int(part["birth"].iloc[0]) for _, part in groups]
        heads = [[f"L{a}H{b}" for a, b in zip(part["layer"], part["head"], strict=True)] for _, part in groups]
        figure.add_scatter(
            x=positions(timeline, steps),
            y=[label] * len(steps),
            mode="markers",
            marker=dict(
                size=[7 + 4 * np.sqrt(len(names)) for names in heads],
                color=LABEL_COLORS[label],
                line=dict(color="black", width=1),
            ),
            customdata=[
                f"{timeline.unit} {step:,}: {len(names)} {label}<br>{', '.join(names[:12])}"
                + (f" and {len(names) - 12} more" if len(names) > 12 else "")
                for step, names in zip(steps, heads, strict=True)
            ],
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
            row=2,
            col=1,
        )
    axis = _axis(timeline)
    figure.update_xaxes(**{**axis, "title": ""}, showticklabels=False, row=1, col=1)
    figure.update_xaxes(**axis, row=2, col=1)
    figure.update_yaxes(title="loss (nats per token)", row=1, col=1)
    figure.update_yaxes(title="births", row=2, col=1, type="category", autorange="reversed")
    figure.update_layout(
        shapes=[_now(float(np.arange(len(timeline.steps))[at]))],
        legend=dict(orientation="h", y=1.02, yanchor="bottom", x=0),
    )
    return styled(figure, "Loss, and births of heads", height=420)


def _add_losses(figure: go.Figure, timeline: "Timeline") -> None:
    log = timeline.log
    if log is not None:
        for name, words, color in (("loss", "training loss", "#9aa5b1"), ("held_out", "held-out loss", "#D55E00")):
            known = log[log[name].notna()] if name in log else log[:0]
            if len(known):
                figure.add_scatter(
                    x=positions(timeline, known["step"]),
                    y=known[name],
                    customdata=known["step"],
                    mode="lines",
                    name=words,
                    line=dict(color=color, width=1.2),
                    hovertemplate=f"step %{{customdata}}<br>{words} %{{y:.3f}}<extra></extra>",
                    row=1,
                    col=1,
                )
    table = timeline.checkpoints
    if "loss" in table:
        figure.add_scatter(
            x=np.arange(len(table)),
            y=table["loss"],
            customdata=table["checkpoint"],
            mode="lines+markers",
            name="loss on this text",
            line=dict(color="#0072B2", width=1.5),
            marker=dict(size=5),
            hovertemplate=f"{timeline.unit} %{{customdata}}<br>loss %{{y:.3f}}<extra></extra>",
            row=1,
            col=1,
        )


def column_curves(timeline: "Timeline", column: str, at: int = -1) -> go.Figure:
    """A line for every head, colored by its last label; a legend entry per label, which hides its heads."""
    curves = timeline.curve(column)
    figure = go.Figure()
    labels = {f"L{a}H{b}": str(word) for (a, b), word in np.ndenumerate(timeline.labels[-1])}
    groups: dict[str, list[str]] = {}
    for name in curves.columns:
        groups.setdefault(labels.get(str(name), ""), []).append(str(name))
    order = [name for name in LABEL_COLORS if name in groups] + [name for name in groups if name not in LABEL_COLORS]
    for label in order:
        heads = groups[label]
        figure.add_scatter(
            x=np.tile([*range(len(curves)), np.nan], len(heads)),
            y=np.concatenate([[*curves[head].astype(float), np.nan] for head in heads]),
            customdata=np.repeat(heads, len(curves) + 1),
            mode="lines",
            name=escape(label or column),
            line=dict(color=LABEL_COLORS.get(label, "#0072B2"), width=1.4),
            hovertemplate=f"%{{customdata}}<br>{escape(column)} %{{y:.4g}}<extra></extra>",
        )
    figure.update_xaxes(**_axis(timeline))
    figure.update_yaxes(title=escape(column))
    figure.update_layout(
        shapes=[_now(float(np.arange(len(timeline.steps))[at]))],
        legend=dict(orientation="h", y=1.02, yanchor="bottom", x=0),
    )
    return styled(figure, f"{escape(column)} of every head", height=420)
