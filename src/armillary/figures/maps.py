"""Attention between the words of a text: a heat map per layer, and the cosines of the embeddings."""

from html import escape
from math import ceil
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.errors import ArmillaryError
from armillary.figures.style import heat, styled
from armillary.probe.attention_map import AttentionMap

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1160, 80, 55, 90, 80
"""The figure and its margins, in pixels."""
GAP = 125
"""Pixels between two maps, for words and color bars."""
LABEL = 7
"""Pixels that a word on an axis needs; where there are fewer, only some words are written."""
LONGEST = 14
"""Characters of a word on an axis."""
MOST_CELLS = 4_000_000
"""More than a browser draws."""


def attention_maps(mapped: AttentionMap) -> go.Figure:
    """A map per layer, queries down and keys across, and the map of cosines last.

    Every map has its own color scale, up to the 99th percentile of its cells without the columns of sinks. Cells
    without attention are blank.
    """
    cells = mapped.attention.size + mapped.cosine.size
    if cells > MOST_CELLS:
        raise ArmillaryError(
            f"maps of {len(mapped.words)} {mapped.level}s in {len(mapped.layers)} layers have {cells:,} cells, "
            f"more than a browser draws ({MOST_CELLS:,})",
            advice="choose fewer layers, spans of the text, or a shorter text",
        )
    panels = [*titles(mapped), "cosine of the embeddings"]
    plot = WIDTH - LEFT - RIGHT
    columns = 2 if len(mapped.words) * LABEL <= (plot - GAP) / 2 else 1
    rows = ceil(len(panels) / columns)
    side = (plot - (columns - 1) * GAP) / columns
    plot_height = rows * side + (rows - 1) * GAP
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=panels,
        horizontal_spacing=GAP / plot,
        vertical_spacing=GAP / plot_height,
    )
    words = [f"{place} {shown(word)}" for place, word in zip(mapped.place, mapped.words, strict=True)]
    ticks = word_ticks(mapped, side)
    for i, values in enumerate([*mapped.attention, mapped.cosine]):
        at = dict(row=i // columns + 1, col=i % columns + 1)
        signed = i == len(mapped.layers)
        trace = heat(
            values if signed else np.where(values > 0, values, np.nan),
            signed=signed,
            x=words,
            y=words,
            hovertemplate=("%{y}<br>%{x}<br>" if signed else "%{y}<br>attends to %{x}<br>") + "%{z:.5f}<extra></extra>",
            **(dict(zmin=-1.0, zmax=1.0) if signed else dict(zmax=color_limit(values, mapped))),
        )
        figure.add_trace(trace, **at)
        figure.update_xaxes(tickangle=-90, **ticks, **at)
        figure.update_yaxes(autorange="reversed", scaleanchor=figure.data[-1].xaxis, **ticks, **at)
        (_, right), (low, high) = (figure.layout[f"{axis}axis{i + 1 if i else ''}"].domain for axis in "xy")
        figure.data[-1].colorbar = dict(
            x=right, xpad=6, y=(low + high) / 2, len=high - low, thickness=9, outlinewidth=0, tickfont_size=9
        )
    styled(figure, title_of(mapped), height=round(plot_height) + TOP + BOTTOM, width=WIDTH)
    return figure.update_layout(margin=dict(l=LEFT, r=RIGHT, t=TOP, b=BOTTOM))


def word_ticks(mapped: AttentionMap, side: float) -> dict[str, Any]:
    """Settings of an axis of words, or of as many as fit into `side` pixels.

    Cells are identified by their index, since a word may occur twice.
    """
    step = max(1, ceil(len(mapped.words) * LABEL / side))
    numbers = range(0, len(mapped.words), step)
    return dict(
        type="category",
        tickvals=list(numbers),
        ticktext=[shown(mapped.words[i], LONGEST) for i in numbers],
        tickfont_size=min(11, max(8, round(0.9 * step * side / len(mapped.words)))),
        showgrid=False,
        constrain="domain",
    )


def titles(mapped: AttentionMap) -> list[str]:
    """The layers, with the share of attention on the shown words if it is less than 1."""
    inside = mapped.inside.mean(-1)
    return [
        f"layer {layer}" + ("" if mass > 0.9995 else f": {mass:.0%} of the attention is on these {mapped.level}s")
        for layer, mass in zip(mapped.layers, inside, strict=True)
    ]


def color_limit(values: Float[np.ndarray, "word word"], mapped: AttentionMap) -> float:
    """The 99th percentile of the nonzero cells without sinks; if there are none, the largest cell."""
    rest = values[:, ~mapped.sinks]
    rest = rest[rest > 0]
    return float(np.percentile(rest, 99)) if rest.size else float(values.max() or 1.0)


def title_of(mapped: AttentionMap) -> str:
    """What the maps show, in one line."""
    heads = "all heads" if mapped.heads is None else "heads " + ", ".join(map(str, mapped.heads))
    mean = f"mean over {heads}" + (", weighted by |W_o|" if mapped.weights == "output" else "")
    return f"Attention from {mapped.level} to {mapped.level}: {mean}"


def shown(word: str, at_most: int | None = None) -> str:
    """A word as a label: white space made visible, long words cut, HTML and TeX escaped."""
    for given, visible in ((" ", "␣"), ("\t", "⇥"), ("\r\n", "⏎"), ("\n", "⏎"), ("\r", "⏎")):
        word = word.replace(given, visible)
    if at_most is not None and len(word) > at_most:
        word = word[: at_most - 1] + "…"
    return escape(word, quote=False).replace("$", "&#36;")
