"""Figures of the weights' spectra: maps of heads, singular values and random ones, matrices and Marchenko-Pastur."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from armillary.figures.style import heat, styled
from armillary.lenses.spectral import beside_law, median_spectrum, unit_spectra

MAPS = {
    "qk_align_z": ("alignment of W_q and W_k (z)", True),
    "qk_stable_rank": ("stable rank of W_q W_k'", False),
    "qk_symmetric_share": ("symmetric share of W_q W_k'", False),
    "ov_stable_rank": ("stable rank of W_v W_o", False),
}


def head_maps(heads: pd.DataFrame) -> go.Figure:
    """Four measures of every head: layers down, heads across."""
    figure = make_subplots(2, 2, subplot_titles=[title for title, _ in MAPS.values()], vertical_spacing=0.16)
    for i, (column, (_, signed)) in enumerate(MAPS.items()):
        row, col = i // 2 + 1, i % 2 + 1
        values = heads.pivot(index="layer", columns="head", values=column).to_numpy(float)
        bar = dict(x=0.455 if col == 1 else 1.0, y=0.79 if row == 1 else 0.21, len=0.42, thickness=10, outlinewidth=0)
        limits = dict(zmin=0.0, zmax=1.0) if column == "qk_symmetric_share" else {}
        hover = "layer %{y}, head %{x}: %{z:.3f}<extra></extra>"
        figure.add_trace(heat(values, signed=signed, colorbar=bar, hovertemplate=hover, **limits), row, col)
    figure.update_yaxes(autorange="reversed", title="layer", dtick=max(1, len(values) // 8))
    figure.update_xaxes(title="head", dtick=max(1, values.shape[1] // 8))
    return styled(figure, "Heads from their weights alone", height=640)


def head_singular_values(arrays: xr.Dataset, product: str = "qk") -> go.Figure:
    """The singular values of every head's product over its Frobenius norm, and the median of random heads if known."""
    name = {"qk": "W_q W_k'", "ov": "W_v W_o"}[product]
    values = unit_spectra(arrays[f"{product}_singular"].to_numpy())
    layers, heads, components = values.shape
    colors = sample_colorscale("Viridis", np.linspace(0, 0.9, max(layers, 2)))
    figure = go.Figure()
    at = np.arange(1, components + 1)
    for layer in range(layers):
        for head in range(heads):
            figure.add_scatter(
                x=at,
                y=values[layer, head],
                mode="lines",
                line=dict(color=colors[layer], width=1),
                name=f"layer {layer}",
                legendgroup=f"{layer}",
                showlegend=head == 0,
                hovertemplate=f"head {layer}.{head}, component %{{x}}: %{{y:.3f}}<extra></extra>",
            )
    if f"{product}_singular_random" in arrays:
        noise = median_spectrum(unit_spectra(arrays[f"{product}_singular_random"].to_numpy()).reshape(-1, components))
        figure.add_scatter(x=at, y=noise, mode="lines", line=dict(color="black", dash="dash", width=2), name="random")
    figure.update_xaxes(title="component").update_yaxes(title="singular value / norm", type="log")
    return styled(figure, f"Singular values of {name}, every head a line")


def matrices_against_random(arrays: xr.Dataset, table: pd.DataFrame, layer: int) -> go.Figure:
    """Singular values of a layer's matrices with the fitted Marchenko-Pastur law; outliers as marks."""
    rows = table[table["layer"] == layer]
    figure = make_subplots(1, len(rows), subplot_titles=[str(name) for name in rows["matrix"]], horizontal_spacing=0.03)
    for i, row in enumerate(rows.to_dict("records"), start=1):
        spectrum = beside_law(arrays[row["matrix"]].sel(layer=layer).to_numpy(), row)
        figure.add_histogram(
            x=spectrum.bulk, histnorm="probability density", nbinsx=40, marker_color="lightsteelblue", row=1, col=i
        )
        if spectrum.law is not None:
            figure.add_scatter(x=spectrum.law[0], y=spectrum.law[1], mode="lines", line_color="firebrick", row=1, col=i)
        figure.add_scatter(
            x=spectrum.outliers,
            y=np.zeros(len(spectrum.outliers)),
            mode="markers",
            marker=dict(symbol="line-ns-open", size=12, color="black"),
            row=1,
            col=i,
        )
    figure.update_layout(showlegend=False)
    figure.update_yaxes(rangemode="tozero", showticklabels=False)
    return styled(figure, f"Matrices of layer {layer} against random ones: law (red), outliers (black)", height=300)


def outliers_by_layer(table: pd.DataFrame) -> go.Figure:
    """Share of each matrix's energy in its outliers, and its distance from Marchenko-Pastur, layer by layer."""
    figure = make_subplots(1, 2, subplot_titles=("share of energy in outliers", "distance from Marchenko-Pastur"))
    colors = dict(zip(table["matrix"].unique(), sample_colorscale("Turbo", np.linspace(0.05, 0.95, 7)), strict=False))
    for name, part in table.groupby("matrix", sort=False):
        for col, column in enumerate(("outlier_energy", "mp_distance"), start=1):
            figure.add_scatter(
                x=part["layer"],
                y=part[column],
                name=str(name),
                legendgroup=str(name),
                showlegend=col == 1,
                mode="lines+markers",
                line_color=colors[name],
                row=1,
                col=col,
            )
    figure.update_xaxes(title="layer", dtick=max(1, int(table["layer"].max()) // 8)).update_yaxes(rangemode="tozero")
    return styled(figure, "Distance of the matrices from random ones", height=380)


def change_maps(table: pd.DataFrame) -> go.Figure:
    """How far every head's products and every matrix changed, relative to what they were: layers down."""
    panels = {
        "W_q W_k', by head": table[table["part"] == "qk"].pivot(index="layer", columns="head", values="relative"),
        "W_v W_o, by head": table[table["part"] == "ov"].pivot(index="layer", columns="head", values="relative"),
    }
    matrices = table[table["head"].isna()]
    if len(matrices):
        order = list(dict.fromkeys(matrices["part"]))
        panels["matrices"] = matrices.pivot(index="layer", columns="part", values="relative")[order]
    figure = make_subplots(1, len(panels), subplot_titles=list(panels), horizontal_spacing=0.09)
    width = (1 - 0.09 * (len(panels) - 1)) / len(panels)
    for i, values in enumerate(panels.values()):
        bar = dict(x=i * (width + 0.09) + width, xanchor="left", thickness=10, outlinewidth=0, tickformat=".2g")
        across = [str(name) for name in values.columns]
        hover = "layer %{y}, %{x}: %{z:.3g}<extra></extra>"
        trace = heat(values.to_numpy(float), signed=False, x=across, colorbar=bar, hovertemplate=hover)
        figure.add_trace(trace, 1, i + 1)
    figure.update_yaxes(autorange="reversed", dtick=max(1, table["layer"].nunique() // 8))
    figure.update_yaxes(title="layer", col=1)
    return styled(figure, "Relative change of the weights |dW| / |W|", height=420)
