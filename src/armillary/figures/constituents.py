"""Figures of a head's constituents on a text, of argmax ratios, and of a dissected W_q W_k'."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.figures.style import heat, styled
from armillary.lenses.geometry import Dissection
from armillary.probe.terms import TextConstituents


def constituents(parts: TextConstituents, *, with_mean: bool = True) -> go.Figure:
    """Six panels with the tokens on the axes: constituents of the logits, the logits, the attention.

    With the mean: positional, mixed, content, and the term that makes most of the positional part; without: the four
    terms that have no mean.
    """
    panels = parts.folded(with_mean=with_mean)
    if with_mean:
        panels = {**panels, f"main positional term: {parts.main_positional}": parts.terms[parts.main_positional]}
    labels = [f"{i} {token!r}" for i, token in enumerate(parts.tokens)]
    shown = {**panels, "logits": parts.logits, "attention": parts.attention}
    figure = make_subplots(
        2, 3, subplot_titles=[name.replace("_", "-") for name in shown], horizontal_spacing=0.05, vertical_spacing=0.12
    )
    for i, (name, values) in enumerate(shown.items()):
        trace = heat(
            parts.seen(values) if name == "attention" else parts.centered(values),
            signed=name != "attention",
            showscale=False,
            x=labels,
            y=labels,
            hovertemplate="query %{y}<br>key %{x}<br>%{z:.4g}<extra>" + name.replace("_", "-") + "</extra>",
        )
        figure.add_trace(trace, i // 3 + 1, i % 3 + 1)
    figure.update_yaxes(autorange="reversed", showticklabels=False).update_xaxes(showticklabels=False)
    if len(labels) <= 48:
        figure.update_yaxes(showticklabels=True, tickfont_size=8, col=1)
        figure.update_xaxes(showticklabels=True, tickfont_size=8, tickangle=60, row=2)
    title = f"Head {parts.layer}.{parts.head}: constituents of its logits (each row minus its mean)"
    return styled(figure, title, height=820)


def argmax_map(ratio: Float[np.ndarray, "layer head"]) -> go.Figure:
    """The fraction of positions whose positional logits are largest at the position itself."""
    figure = go.Figure(heat(ratio, signed=False, zmax=1, colorbar=dict(title="ratio")))
    figure.update_xaxes(title="head", dtick=1).update_yaxes(title="layer", dtick=1, autorange="reversed")
    return styled(figure, "Argmax ratio of every head")


def dissection(split: Dissection, layer: int, head: int) -> go.Figure:
    """The diagonal of W, and the off-diagonal entries above the threshold in the basis of positions."""
    figure = make_subplots(
        1, 2, horizontal_spacing=0.18, subplot_titles=("Off-diagonal, rotated, above the threshold", "Diagonal of W")
    )
    survivors = np.where(split.survives, split.rotated, np.nan)
    figure.add_trace(heat(survivors, colorbar=dict(title="entry", x=0.42)), 1, 1)
    figure.add_trace(go.Scatter(y=split.diagonal, mode="markers", marker=dict(size=3), showlegend=False), 1, 2)
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    title = f"Head {layer}.{head}: W = V L V' + D + noise; {split.corner_share:.0%} of the energy in the 20 x 20 corner"
    return styled(figure, title)
