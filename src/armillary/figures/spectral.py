"""Spectra of the weights: heads over layers, singular values beside random ones, matrices against Marchenko-Pastur."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from jaxtyping import Float
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from armillary.figures.style import heat, styled
from armillary.theory.random_matrix import MarchenkoPastur

MAPS = {
    "qk_align_z": ("alignment of W_q and W_k (z)", True),
    "qk_stable_rank": ("stable rank of W_q W_k'", False),
    "qk_symmetric_share": ("symmetric share of W_q W_k'", False),
    "ov_stable_rank": ("stable rank of W_v W_o", False),
}


def head_maps(heads: pd.DataFrame) -> go.Figure:
    """Four measures of every head: layers downwards, heads across."""
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
    colours = sample_colorscale("Viridis", np.linspace(0, 0.9, max(layers, 2)))
    figure = go.Figure()
    at = np.arange(1, components + 1)
    for layer in range(layers):
        for head in range(heads):
            figure.add_scatter(
                x=at,
                y=values[layer, head],
                mode="lines",
                line=dict(color=colours[layer], width=1),
                name=f"layer {layer}",
                legendgroup=f"{layer}",
                showlegend=head == 0,
                hovertemplate=f"head {layer}.{head}, component %{{x}}: %{{y:.3f}}<extra></extra>",
            )
    if f"{product}_singular_random" in arrays:
        noise = median(unit_spectra(arrays[f"{product}_singular_random"].to_numpy()).reshape(-1, components))
        figure.add_scatter(x=at, y=noise, mode="lines", line=dict(color="black", dash="dash", width=2), name="random")
    figure.update_xaxes(title="component").update_yaxes(title="singular value / norm", type="log")
    return styled(figure, f"Singular values of {name}, every head a line")


def unit_spectra(values: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n"]:
    """Singular values over their norm; missing for a product that is zero."""
    norm = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.asarray(np.divide(values, norm, out=np.full_like(values, np.nan), where=norm > 0))


def typical_spectrum(values: Float[np.ndarray, "layer head n"]) -> Float[np.ndarray, "layer n"]:
    """Singular values over their norm, median over the heads of each layer that have any."""
    return np.array([median(layer) for layer in unit_spectra(values)])


def median(spectra: Float[np.ndarray, "head n"]) -> Float[np.ndarray, "n"]:
    """The median over spectra that are not missing; missing where all are."""
    known = spectra[np.isfinite(spectra).all(1)]
    return np.median(known, axis=0) if len(known) else np.full(spectra.shape[1], np.nan)


def matrices_against_random(arrays: xr.Dataset, table: pd.DataFrame, layer: int) -> go.Figure:
    """Singular values of a layer's matrices beside the fitted Marchenko-Pastur law; outliers as marks."""
    rows = table[table["layer"] == layer]
    figure = make_subplots(1, len(rows), subplot_titles=[str(name) for name in rows["matrix"]], horizontal_spacing=0.03)
    for i, row in enumerate(rows.to_dict("records"), start=1):
        values = arrays[row["matrix"]].sel(layer=layer).to_numpy()
        values = values[np.isfinite(values)]
        small, large = sorted((row["rows"], row["columns"]))
        fitted = pd.notna(row["mp_variance"])
        edge = row["mp_edge"] if fitted else float(values.max())
        bulk, out = np.sqrt(values[values <= edge]), np.sqrt(values[values > edge])
        figure.add_histogram(
            x=bulk, histnorm="probability density", nbinsx=40, marker_color="lightsteelblue", row=1, col=i
        )
        if fitted:
            law = MarchenkoPastur(small / large, row["mp_variance"])
            x = np.linspace(law.lower**0.5, law.upper**0.5, 200)[1:-1]
            density = law.density(x**2) * 2 * x / large**0.5  # of the singular value, whose square over `large` is x^2
            figure.add_scatter(x=x * large**0.5, y=density, mode="lines", line_color="firebrick", row=1, col=i)
        figure.add_scatter(
            x=out,
            y=np.zeros(len(out)),
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
    colours = dict(zip(table["matrix"].unique(), sample_colorscale("Turbo", np.linspace(0.05, 0.95, 7)), strict=False))
    for name, part in table.groupby("matrix", sort=False):
        for col, column in enumerate(("outlier_energy", "mp_distance"), start=1):
            figure.add_scatter(
                x=part["layer"],
                y=part[column],
                name=str(name),
                legendgroup=str(name),
                showlegend=col == 1,
                mode="lines+markers",
                line_color=colours[name],
                row=1,
                col=col,
            )
    figure.update_xaxes(title="layer", dtick=max(1, int(table["layer"].max()) // 8)).update_yaxes(rangemode="tozero")
    return styled(figure, "How far training moved the matrices from noise", height=380)
