"""A map of any measure over all heads: layers downwards, heads across."""

from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from armillary.figures.localization import COLORS as REGIME_COLORS
from armillary.figures.style import heat, styled

LABEL_COLORS = {
    "self": "#0072B2",
    "previous": "#56B4E9",
    "next": "#332288",
    "local": "#009E73",
    "first-token": "#D55E00",
    "delimiter": "#44AA99",
    "induction": "#CC79A7",
    "duplicate": "#882255",
    "matching": "#E69F00",
    "preference": "#AA4499",
    "content": "#DDCC77",
    "broad": "#F0E442",
    "mixed": "#999999",
}
"""One color per label everywhere (after Okabe and Ito: distinguishable for color-blind readers)."""


def measure_map(heads: pd.DataFrame, measure: str) -> go.Figure:
    """Layers downwards, heads across, colored by a measure: a number, or a word with a legend; blank where missing."""
    grid = heads.pivot(index="layer", columns="head", values=measure)
    x, y = grid.columns.to_numpy(int), grid.index.to_numpy(int)
    figure = go.Figure()
    if pd.api.types.is_numeric_dtype(heads[measure]):
        values = grid.to_numpy(float, na_value=np.nan)
        signed = bool(np.nanmin(values, initial=0.0) < 0)
        hover = f"layer %{{y}}, head %{{x}}<br>{escape(measure)} %{{z:.4g}}<extra></extra>"
        bar = dict(thickness=10, outlinewidth=0)
        figure.add_trace(heat(values, signed=signed, x=x, y=y, xgap=1, ygap=1, colorbar=bar, hovertemplate=hover))
    else:
        _add_words(figure, grid, measure)
    figure.update_xaxes(title="head", dtick=max(1, len(x) // 8), showgrid=False, zeroline=False)
    figure.update_yaxes(title="layer", dtick=max(1, len(y) // 8), showgrid=False, zeroline=False, autorange="reversed")
    return styled(figure, f"{escape(measure)} of every head", height=map_height(len(y)))


AROUND = 160
"""Pixels of a map outside the cells: axes, legend, margins."""
LETTER = 12
"""The least height of a cell with letters, in pixels; a page that draws a map smaller leaves them out."""


def map_height(layers: int) -> int:
    """The height of a map in pixels: 26 per layer, 16 with many layers, at most 1600."""
    return max(300, min(26 * layers + AROUND, max(620, min(1600, 16 * layers + AROUND))))


def _add_words(figure: go.Figure, grid: pd.DataFrame, measure: str) -> None:
    """A trace per word, so that the legend names the colors and can hide a word; initials where cells is room.

    Hovering shows the word whether or not its letters are shown.
    """
    room = grid.shape[1] <= 16 and (map_height(len(grid)) - AROUND) / max(1, len(grid)) >= LETTER
    colors = {**LABEL_COLORS, **REGIME_COLORS}
    present = [str(word) for word in pd.unique(grid.to_numpy().ravel()) if pd.notna(word)]
    known = [word for word in colors if word in present]
    for word in [*known, *sorted(set(present) - set(known))]:
        cells = (grid == word).to_numpy(bool, na_value=False)
        color = colors.get(word, "#444444")
        written = dict(text=np.where(cells, escape(word[:2]), ""), texttemplate="%{text}") if room else {}
        figure.add_heatmap(
            z=np.where(cells, 1.0, np.nan),
            x=grid.columns.to_numpy(int),
            y=grid.index.to_numpy(int),
            xgap=1,
            ygap=1,
            colorscale=[[0, color], [1, color]],
            showscale=False,
            showlegend=True,
            name=escape(word),
            hovertemplate=f"layer %{{y}}, head %{{x}}<br>{escape(measure)}: {escape(word)}<extra></extra>",
            textfont=dict(color=ink_on(color), size=10),
            **written,
        )
    figure.update_layout(legend=dict(orientation="h", y=1.02, yanchor="bottom", x=0))


def ink_on(color: str) -> str:
    """Black or white, whichever is read better on a color written as #rrggbb."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return "#000000" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.18 else "#ffffff"
