"""Who attends to whom in a text: a heat map per layer, and the cosines of the embeddings."""

from html import escape
from math import ceil
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.attention_map import AttentionMap
from armillary.errors import ArmillaryError
from armillary.figures.style import heat, styled

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1160, 80, 55, 90, 80
"""The figure and its margins, in pixels."""
GAP = 125
"""Pixels between two maps, for words and colour bars."""
LABEL = 7
"""Pixels that a word on an axis needs; where there are fewer, only some words are written."""
LONGEST = 14
"""Characters of a word on an axis."""
MOST_CELLS = 4_000_000
"""More than a browser draws."""


def attention_maps(found: AttentionMap) -> go.Figure:
    """A map per layer, the words that attend downwards, those attended to across, and the map of cosines last.

    Every map has its own colours, up to the 99th percentile of its cells outside the sinks' columns, which would
    swallow them. Blank cells see nothing.
    """
    cells = found.attention.size + found.cosine.size
    if cells > MOST_CELLS:
        raise ArmillaryError(
            f"maps of {len(found.words)} {found.level}s in {len(found.layers)} layers have {cells:,} cells, more than "
            f"a browser draws ({MOST_CELLS:,}): choose fewer layers, spans of the text, or a shorter text"
        )
    panels = [*titles(found), "cosine of the embeddings"]
    plot = WIDTH - LEFT - RIGHT
    columns = 2 if len(found.words) * LABEL <= (plot - GAP) / 2 else 1
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
    words = [f"{place} {shown(word)}" for place, word in zip(found.place, found.words, strict=True)]
    ticks = word_ticks(found, side)
    for i, values in enumerate([*found.attention, found.cosine]):
        at = dict(row=i // columns + 1, col=i % columns + 1)
        signed = i == len(found.layers)
        trace = heat(
            values if signed else np.where(values > 0, values, np.nan),
            signed=signed,
            x=words,
            y=words,
            hovertemplate=("%{y}<br>%{x}<br>" if signed else "%{y}<br>attends to %{x}<br>") + "%{z:.5f}<extra></extra>",
            **(dict(zmin=-1.0, zmax=1.0) if signed else dict(zmax=colour_limit(values, found))),
        )
        figure.add_trace(trace, **at)
        figure.update_xaxes(tickangle=-90, **ticks, **at)
        figure.update_yaxes(autorange="reversed", scaleanchor=figure.data[-1].xaxis, **ticks, **at)
        (_, right), (low, high) = (figure.layout[f"{axis}axis{i + 1 if i else ''}"].domain for axis in "xy")
        figure.data[-1].colorbar = dict(
            x=right, xpad=6, y=(low + high) / 2, len=high - low, thickness=9, outlinewidth=0, tickfont_size=9
        )
    styled(figure, title_of(found), height=round(plot_height) + TOP + BOTTOM, width=WIDTH)
    return figure.update_layout(margin=dict(l=LEFT, r=RIGHT, t=TOP, b=BOTTOM))


def word_ticks(found: AttentionMap, side: float) -> dict[str, Any]:
    """Settings of an axis that carries the words, or as many of them as `side` pixels have room for.

    Cells are told by their number, so that a word which stands twice has two.
    """
    step = max(1, ceil(len(found.words) * LABEL / side))
    numbers = range(0, len(found.words), step)
    return dict(
        type="category",
        tickvals=list(numbers),
        ticktext=[shown(found.words[i], LONGEST) for i in numbers],
        tickfont_size=min(11, max(8, round(0.9 * step * side / len(found.words)))),
        showgrid=False,
        constrain="domain",
    )


def titles(found: AttentionMap) -> list[str]:
    """The layers, with how much of the attention is on the words shown where that is not all of it."""
    inside = found.inside.mean(-1)
    return [
        f"layer {layer}" + ("" if mass > 0.9995 else f": {mass:.0%} of the attention is on these {found.level}s")
        for layer, mass in zip(found.layers, inside, strict=True)
    ]


def colour_limit(values: Float[np.ndarray, "word word"], found: AttentionMap) -> float:
    """The 99th percentile of the cells that see anything, sinks left out; where nothing is left, the largest."""
    rest = values[:, ~found.sinks]
    rest = rest[rest > 0]
    return float(np.percentile(rest, 99)) if rest.size else float(values.max() or 1.0)


def title_of(found: AttentionMap) -> str:
    """What the maps show, in one line."""
    heads = "all heads" if found.heads is None else "heads " + ", ".join(map(str, found.heads))
    mean = f"mean over {heads}" + (", weighted by |W_o|" if found.weights == "output" else "")
    return f"Attention from {found.level} to {found.level}: {mean}"


def shown(word: str, at_most: int | None = None) -> str:
    """A word as a label: white space made visible, long ones cut, nothing of it read as HTML or TeX."""
    for given, visible in ((" ", "␣"), ("\t", "⇥"), ("\r\n", "⏎"), ("\n", "⏎"), ("\r", "⏎")):
        word = word.replace(given, visible)
    if at_most is not None and len(word) > at_most:
        word = word[: at_most - 1] + "…"
    return escape(word, quote=False).replace("$", "&#36;")
