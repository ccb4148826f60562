"""Figures of the report's first screen, and of sections that have no figure in figures/."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from armillary.atlas.compare import typical_changes
from armillary.figures.head_map import measure_map
from armillary.figures.heads import PART_COLORS
from armillary.figures.style import styled
from armillary.lenses.constituents import parts_by_layer
from armillary.lenses.rotary import TruncationCosts
from armillary.lenses.spectral import median_spectrum, typical_spectrum
from armillary.report.sentences import head_names, known

STRIPS = {
    "first_mass": ("first token", "#D55E00"),
    "prev_mass": ("previous token", "#56B4E9"),
    "self_mass": ("itself", "#0072B2"),
    "induction_score": ("induction", "#CC79A7"),
}
"""What the third figure shows of every head, with its color."""

MANY = 400
LOUDEST = 3
"""With more heads than MANY, the third figure shows this many per layer."""

SMALL = 330
"""Height of the first screen's pictures, in pixels, up to MANY_LAYERS layers; they grow with more."""
MANY_LAYERS = 16


def small(heads: pd.DataFrame) -> int:
    """The height of the first screen's pictures: 8 pixels more for every layer beyond MANY_LAYERS, at most 600."""
    layers = int(heads["layer"].nunique())
    return min(600, SMALL + 8 * max(0, layers - MANY_LAYERS))


def kinds(heads: pd.DataFrame) -> tuple[go.Figure, str]:
    """The map of labels; without labels, of how broad attention is, or of the weights' regimes."""
    for measure, caption in (
        ("label", "Every head by its label."),
        ("entropy_norm", "How broadly every head attends: 0 is one key, 1 is uniform attention."),
        ("regime", "Every head by regime: the keys that can propagate a signal, predicted from its weights."),
    ):
        if known(heads, measure):
            return measure_map(heads, measure).update_layout(height=small(heads)), caption
    return go.Figure(), "The atlas has no measures of the heads."


def position(heads: pd.DataFrame, layers: pd.DataFrame) -> tuple[go.Figure, str] | None:
    """Shares of the logits by layer; without constituents, the positional share of the residual stream."""
    if known(heads, "positional_share", "content_share"):
        parts = parts_by_layer(heads)
        caption = "Shares of the logits of each layer, mean over its heads."
    elif known(layers, "pos_share"):
        parts = layers.set_index("layer")[["pos_share"]].rename(columns={"pos_share": "positional vectors"})
        caption = "How much of the residual stream depends on position alone."
    else:
        return None
    figure = go.Figure()
    for name in parts.columns:
        if parts[name].abs().max() >= 0.005:
            figure.add_bar(
                x=parts.index.to_numpy(int),
                y=parts[name].to_numpy(float),
                name=name,
                marker_color=PART_COLORS[name],
                hovertemplate="layer %{x}: %{y:.1%}<extra>" + name + "</extra>",
            )
    figure.update_layout(barmode="relative", bargap=0.15, legend=above())
    figure.update_xaxes(title="layer", dtick=max(1, len(parts) // 8), zeroline=False)
    figure.update_yaxes(title="share", tickformat=".0%")
    if (parts < -0.005).to_numpy().any():
        for level, dash in ((0, "solid"), (1, "dot")):
            figure.add_hline(level, line=dict(color="black", width=1.2, dash=dash))
        caption += f" {AGAINST}"
    return styled(figure, "", height=small(heads)), caption


AGAINST = "A part below 0 % opposes the others, which then exceed 100 %; all parts add to 100 %."
"""Why a share can be negative: it is sum(term * b) / sum(b * b), which is below 0 where a term opposes the whole."""


def from_weights(heads: pd.DataFrame) -> tuple[go.Figure, str] | None:
    """The figure in place of `position` for an atlas made from weights."""
    if not known(heads, "qk_stable_rank"):
        return None
    figure = measure_map(heads, "qk_stable_rank").update_layout(height=small(heads))
    return figure, "The stable rank of every head's W_q W_k': in how many directions queries match keys."


def outstanding(heads: pd.DataFrame) -> tuple[go.Figure, str] | None:
    """Every head's masses and scores by layer, the largest of each labeled; of many heads, each layer's largest."""
    strips = {name: STRIPS[name] for name in STRIPS if known(heads, name)}
    if not strips:
        if not known(heads, "qk_align_z"):
            return None
        strips = {"qk_align_z": ("alignment of queries and keys (z)", "#0072B2")}
    figure = go.Figure()
    for i, (column, (meaning, color)) in enumerate(strips.items()):
        shown = heads[heads[column].notna()].sort_values(column, ascending=False, kind="stable")
        if len(heads) > MANY:
            shown = shown.groupby("layer").head(LOUDEST)
        aside = (i - (len(strips) - 1) / 2) * 0.18
        figure.add_scatter(
            x=shown["layer"].astype(float) + aside,
            y=shown[column].astype(float),
            mode="markers",
            marker=dict(color=color, size=6, opacity=0.75),
            customdata=head_names(shown),
            name=meaning,
            hovertemplate="head %{customdata}: %{y:.3f}<extra>" + meaning + "</extra>",
        )
        where = dict(x=float(shown["layer"].iloc[0]) + aside, y=float(shown[column].iloc[0]))
        figure.add_annotation(**where, text=head_names(shown)[0], showarrow=False, yshift=11, font_size=11)
    figure.update_layout(legend=above())
    figure.update_xaxes(title="layer", dtick=max(1, int(heads["layer"].max()) // 8), zeroline=False)
    styled(figure, "", height=small(heads))
    who = f"the {LOUDEST} largest heads of each layer" if len(heads) > MANY else "each head"
    if "qk_align_z" in strips:
        return figure, f"How far queries and keys of {who} use the same directions; the largest is labeled."
    figure.update_yaxes(range=[-0.03, 1.08])
    scores = ", and the induction score" if "induction_score" in strips else ""
    return figure, f"The attention of {who} to three positions{scores}; the largest of each is labeled."


def above() -> dict[str, object]:
    """A legend in one line above the picture."""
    return dict(orientation="h", y=1.02, yanchor="bottom", x=0)


def layer_shares(layers: pd.DataFrame) -> go.Figure:
    """The residual stream: variance by position, sequence and the rest; norms; smoothness of the positional part."""
    panels = ("share of the variance", "mean norm", "positional energy in the lowest frequencies")
    figure = make_subplots(1, 3, subplot_titles=panels, horizontal_spacing=0.07)
    at = layers["layer"].to_numpy(int)
    names = {
        "pos_share": ("position", "#0072B2"),
        "ctx_share": ("sequence", "#E69F00"),
        "resid_share": ("rest", "#999"),
    }
    for column, (meaning, color) in names.items():
        figure.add_bar(x=at, y=layers[column], name=meaning, marker_color=color, legendgroup=meaning, row=1, col=1)
    lengths = {"mu_norm": ("mean", "#009E73"), "pos_norm": ("position", "#0072B2"), "ctx_norm": ("sequence", "#E69F00")}
    for column, (meaning, color) in lengths.items():
        line = dict(line_color=color, legendgroup=meaning, showlegend=meaning == "mean", mode="lines+markers")
        figure.add_scatter(x=at, y=layers[column], name=meaning, **line, row=1, col=2)
    for i, k in enumerate((1, 3, 5, 10)):
        line = dict(line_color=sample_colorscale("Viridis", [i / 4])[0], mode="lines+markers")
        figure.add_scatter(x=at, y=layers[f"dct_energy_{k}"], name=f"lowest {k}", **line, row=1, col=3)
    figure.update_layout(barmode="stack", legend=dict(orientation="h", y=-0.25, x=0))
    figure.update_annotations(font_size=13)
    figure.update_xaxes(title="layer", dtick=max(1, len(at) // 8)).update_yaxes(rangemode="tozero")
    return styled(figure, "The residual stream, layer by layer", height=400)


def median_spectra(arrays: xr.Dataset) -> go.Figure:
    """Singular values of W_q W_k' and W_v W_o over their norm, median over each layer's heads."""
    figure = make_subplots(1, 2, subplot_titles=("W_q W_k'", "W_v W_o"), shared_yaxes=True)
    layers = arrays.sizes["layer"]
    colors = sample_colorscale("Viridis", np.linspace(0, 0.9, max(layers, 2)))
    for col, product in enumerate(("qk", "ov"), start=1):
        for end in ("", "_random"):
            if f"{product}_singular{end}" not in arrays:
                continue
            values = arrays[f"{product}_singular{end}"].to_numpy()
            values = typical_spectrum(values)
            at = np.arange(1, values.shape[1] + 1)
            if end:
                line = dict(color="black", dash="dash", width=2)
                random = median_spectrum(values)
                figure.add_scatter(x=at, y=random, line=line, name="random", showlegend=col == 1, row=1, col=col)
                continue
            for layer in range(layers):
                figure.add_scatter(
                    x=at,
                    y=values[layer],
                    mode="lines",
                    line_color=colors[layer],
                    name=f"layer {layer}",
                    legendgroup=str(layer),
                    showlegend=col == 1,
                    row=1,
                    col=col,
                )
    figure.update_xaxes(title="component").update_yaxes(type="log").update_yaxes(title="singular value / norm", col=1)
    return styled(figure, "Singular values of the heads' products, median over each layer", height=420)


KIND_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def truncation(costs: Sequence[TruncationCosts]) -> go.Figure:
    """Change of the logits if only the n fastest frequencies rotate, by kind of layer: mean over heads, and largest."""
    figure = go.Figure()
    for i, cost in enumerate(costs):
        of = "" if len(costs) == 1 else f", {cost.kind.name}"
        for words, values, dash in (("mean over heads", cost.mean, "solid"), ("most affected head", cost.most, "dash")):
            shown = values[:-1]  # with all of them the change is 0, which has no logarithm
            line = dict(color=KIND_COLORS[i % len(KIND_COLORS)], dash=dash)
            figure.add_scatter(
                x=np.arange(len(shown)), y=shown, mode="lines+markers", marker_size=4, line=line, name=words + of
            )
    figure.add_hline(0.01, line=dict(color="gray", dash="dot"))
    figure.update_xaxes(title="frequencies that rotate, fastest first")
    figure.update_yaxes(title="squared change of the logits", type="log", tickformat="~g")
    figure.update_layout(legend=above())
    return styled(figure, "Cost of freezing rotary frequencies", height=380)


def agreement(table: pd.DataFrame) -> go.Figure:
    """Rank correlations with their intervals, marked by whether the interval has the expected sign or excludes it."""
    names = [f"{a} · {b}" for a, b in zip(table["a"], table["b"], strict=True)]
    center = table["correlation"].to_numpy(float)
    marks = [VERDICT_MARKS[verdict] for verdict in table["verdict"]]
    figure = go.Figure(
        go.Scatter(
            x=center,
            y=names,
            mode="markers",
            marker=dict(size=10, color=[mark[0] for mark in marks], symbol=[mark[1] for mark in marks]),
            error_x=dict(
                type="data",
                symmetric=False,
                array=table["high"].to_numpy(float) - center,
                arrayminus=center - table["low"].to_numpy(float),
                color="#999",
            ),
            customdata=table["verdict"].to_list(),
            hovertemplate="%{y}: %{x:.2f} (%{customdata})<extra></extra>",
        )
    )
    figure.add_vline(0, line_color="gray")
    figure.update_xaxes(title="rank correlation over heads", range=[-1.05, 1.05])
    figure.update_yaxes(autorange="reversed", automargin=True)
    return styled(figure, "Agreement of the lenses", height=max(260, 34 * len(table) + 130))


VERDICT_MARKS = {
    "agrees": ("#0072B2", "circle"),
    "open": ("#0072B2", "circle-open"),
    "contradicts": ("#D55E00", "x"),
}


def change_bars(changes: pd.DataFrame) -> go.Figure:
    """The measures that changed most, median size over heads."""
    sizes = dict(list(typical_changes(changes).items())[:14])
    figure = go.Figure(
        go.Bar(
            x=list(sizes.values()),
            y=list(sizes),
            orientation="h",
            marker_color="#0072B2",
            hovertemplate="%{y}: %{x:.2f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="median change (spreads)")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return styled(figure, "", height=SMALL)
