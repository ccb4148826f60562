"""Figures of one head: the panels of its dossier.

A panel is drawn from a few arrays, which lenses/panels.py reads for one head or for all; a trace's `meta` names the
array that each of its fields came from, so that a page can draw any head from one template and the arrays alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.figures.style import heat, styled
from armillary.lenses.panels import (
    SHARES,
    Arrays,
    frequency_panel_arrays,
    lag_arrays,
    logit_arrays,
    pattern_arrays,
    rho_arrays,
    share_arrays,
    spectrum_arrays,
)

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

PART_COLORS = {
    "rotated mean": "#0072B2",
    "positional vectors": "#56B4E9",
    "bias": "#009E73",
    "mixed": "#999999",
    "content": "#E69F00",
}
"""Colors of the parts of the logits: position in blues and green, content in orange, mixed in gray."""

# one head: from its row of the table ------------------------------------------------------------------------------


def constituent_bars(row: pd.Series) -> go.Figure | None:
    """The shares of the ten terms of a head's logits, colored by the part that they belong to; they add to 1."""
    values = share_arrays(row.to_frame().T)
    return None if values is None else draw_shares({name: array[0] for name, array in values.items()})


def draw_shares(head: Arrays) -> go.Figure:
    names, parts = zip(*SHARES.values(), strict=True)
    bar = go.Bar(
        x=head["shares"],
        y=names,
        orientation="h",
        marker_color=[PART_COLORS[part] for part in parts],
        customdata=parts,
        meta=dict(x="shares"),
        hovertemplate="%{y}: %{x:.1%} (%{customdata})<extra></extra>",
    )
    figure = go.Figure(bar)
    figure.update_xaxes(title="share of the logits", tickformat=".0%").update_yaxes(autorange="reversed")
    return _panel(figure, "Constituents of its logits (query · key)")


def pattern_bars(row: pd.Series, evidence: pd.DataFrame | None = None) -> go.Figure | None:
    """Attention masses and scores, with the value of random heads and the threshold of each."""
    values = pattern_arrays(row.to_frame().T, evidence)
    return None if values is None else draw_patterns({name: array[0] for name, array in values.items()})


def draw_patterns(head: Arrays) -> go.Figure:
    names = list(head["patterns_name"])
    figure = go.Figure()
    figure.add_bar(
        x=head["patterns"],
        y=names,
        orientation="h",
        marker_color="#0072B2",
        name="this head",
        meta=dict(x="patterns"),
        hovertemplate="%{y}: %{x:.3f}<extra>this head</extra>",
    )
    marks = {
        "null": ("random heads", "circle-open", "#D55E00"),
        "threshold": ("threshold", "line-ns-open", "black"),
    }
    for name, (meaning, symbol, color) in marks.items():
        figure.add_scatter(
            x=head[f"patterns_{name}"],
            y=names,
            mode="markers",
            marker=dict(symbol=symbol, size=11, color=color, line_width=2),
            name=meaning,
            meta=dict(x=f"patterns_{name}"),
            hovertemplate=f"%{{y}}: %{{x:.3f}}<extra>{meaning}</extra>",
        )
    figure.update_xaxes(title="mean attention, or score", range=[0, 1.02]).update_yaxes(autorange="reversed")
    return _panel(figure, "Where it attends", legend=True)


# one head: from the atlas -----------------------------------------------------------------------------------------


def head_lags(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """Mean of the head's logits at each distance, with one standard deviation to either side."""
    return _drawn("lags", atlas, layer, head)


def head_frequencies(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """Of each rotary frequency: share of the logits, norms of q and k, and change of the logits if frozen."""
    return _drawn("frequencies", atlas, layer, head)


def head_spectrum(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """Singular values of W_q W_k' and W_v W_o over their norm, beside random weights where the atlas has them."""
    return _drawn("spectrum", atlas, layer, head)


def head_rho(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """How often keys at each position propagate a signal: observed, and predicted for a random walk."""
    return _drawn("rho", atlas, layer, head)


def mean_logits(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """The head's mean logit from query to key, each row minus its mean."""
    return _drawn("logits", atlas, layer, head)


@dataclass(frozen=True)
class Panel:
    """How a panel's arrays are read from an atlas (of all heads, or of one) and how it is drawn from one head's."""

    arrays: Callable[["Atlas", int | None, int | None], Arrays | None]
    draw: Callable[[Arrays], go.Figure]
    shared: tuple[str, ...] = ()
    """Arrays that are the same for all heads."""


def _drawn(panel: str, atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    arrays = PANELS[panel].arrays(atlas, layer, head)
    own = [values for name, values in (arrays or {}).items() if name not in PANELS[panel].shared]
    return PANELS[panel].draw(arrays) if arrays and any(np.isfinite(values).any() for values in own) else None


def _draw_lags(head: Arrays) -> go.Figure:
    figure = go.Figure()
    hidden = dict(mode="lines", line_width=0, hoverinfo="skip", showlegend=False)
    figure.add_scatter(x=head["lag"], y=head["lag_low"], meta=dict(y="lag_low"), **hidden)
    band = dict(fill="tonexty", fillcolor="rgba(86, 180, 233, 0.3)")
    figure.add_scatter(x=head["lag"], y=head["lag_high"], meta=dict(y="lag_high"), **band, **hidden)
    figure.add_scatter(
        x=head["lag"],
        y=head["lag_mean"],
        mode="lines",
        line=dict(color="#0072B2", width=2),
        showlegend=False,
        meta=dict(y="lag_mean"),
        hovertemplate="%{x} tokens back: %{y:.3f}<extra></extra>",
    )
    figure.update_xaxes(title="tokens from query back to key").update_yaxes(title="logit")
    return _panel(figure, "Logits by distance: mean, and one standard deviation")


def _draw_frequencies(head: Arrays) -> go.Figure:
    figure = make_subplots(1, 3, subplot_titles=("share of the logits", "mean norm of q and k", "change if frozen"))
    panels = (
        ("share", 1, "share", "#0072B2"),
        ("q", 2, "|q|", "#0072B2"),
        ("k", 2, "|k|", "#E69F00"),
        ("change", 3, "change", "#D55E00"),
    )
    for name, col, title, color in panels:
        figure.add_scatter(
            x=head["frequency"],
            y=head[f"frequency_{name}"],
            mode="lines+markers",
            line_color=color,
            marker_size=4,
            name=title,
            showlegend=col == 2,
            meta=dict(y=f"frequency_{name}"),
            hovertemplate=f"frequency %{{x}}: %{{y:.4g}}<extra>{title}</extra>",
            row=1,
            col=col,
        )
    figure.update_xaxes(title="frequency, fastest first")
    figure.update_annotations(font_size=12)
    return _panel(figure, "Rotary frequencies", legend=True)


def _draw_spectrum(head: Arrays) -> go.Figure:
    figure = go.Figure()
    for product, title, color in (("qk", "W_q W_k'", "#0072B2"), ("ov", "W_v W_o", "#D55E00")):
        for end, dash in (("", "solid"), ("_random", "dot")):
            if f"{product}_singular{end}" in head:
                figure.add_scatter(
                    x=head["component"],
                    y=head[f"{product}_singular{end}"],
                    mode="lines",
                    line=dict(color=color, dash=dash),
                    name=title + (", random weights" if end else ""),
                    meta=dict(y=f"{product}_singular{end}"),
                )
    figure.update_xaxes(title="component").update_yaxes(title="singular value / norm", rangemode="tozero")
    return _panel(figure, "Singular values of its weights", legend=True)


def _draw_rho(head: Arrays) -> go.Figure:
    figure = go.Figure()
    lines = {
        "rho_observed": ("observed", dict(color="#0072B2", width=2)),
        "rho_predicted": ("predicted from the weights", dict(color="#D55E00", dash="dash")),
        "rho_predicted_data": ("predicted, measured Sigma", dict(color="#009E73", dash="dot")),
    }
    for name, (title, line) in lines.items():
        if name in head:
            figure.add_scatter(x=head["place"], y=head[name], mode="lines", line=line, name=title, meta=dict(y=name))
    figure.update_xaxes(title="position of the key, oldest to newest").update_yaxes(title="rho", range=[0, 1.02])
    return _panel(figure, "Which keys propagate a signal", legend=True)


def _draw_logits(head: Arrays) -> go.Figure:
    trace = heat(
        head["logits"],
        x=head["token"],
        y=head["token"],
        zmin=float(head["logits_low"]),
        zmax=float(head["logits_high"]),
        colorbar=dict(thickness=10, outlinewidth=0),
        meta=dict(z="logits", zmin="logits_low", zmax="logits_high"),
        hovertemplate="query %{y}, key %{x}: %{z:.3f}<extra></extra>",
    )
    figure = go.Figure(trace)
    figure.update_xaxes(title="key", constrain="domain", showgrid=False, zeroline=False)
    figure.update_yaxes(
        title="query", autorange="reversed", scaleanchor="x", constrain="domain", showgrid=False, zeroline=False
    )
    return _panel(figure, "Mean logits, each row minus its mean")


def _panel(figure: go.Figure, title: str, *, legend: bool = False) -> go.Figure:
    styled(figure, title, height=310)
    top = dict(orientation="h", y=1.02, yanchor="bottom", x=0)
    return figure.update_layout(showlegend=legend, legend=top, margin=dict(t=80 if legend else 60))


PANELS = {
    "lags": Panel(lag_arrays, _draw_lags, ("lag",)),
    "logits": Panel(logit_arrays, _draw_logits, ("token",)),
    "frequencies": Panel(frequency_panel_arrays, _draw_frequencies, ("frequency",)),
    "spectrum": Panel(spectrum_arrays, _draw_spectrum, ("component",)),
    "rho": Panel(rho_arrays, _draw_rho, ("place",)),
}
"""The panels of a dossier that come from the atlas, in order."""
