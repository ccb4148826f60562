"""Figures of the positional basis: spiral, singular values, frequencies, Gram matrices, layers."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from jaxtyping import Float, Int
from plotly.subplots import make_subplots

from armillary.figures.style import SIGNED, heat, styled
from armillary.lenses.decomposition import Decomposition
from armillary.lenses.positional import context_cosines


def spiral(arrays: xr.Dataset, layer: int) -> go.Figure:
    """pos_t in its first three principal coordinates, colored by position."""
    x, y, z = arrays["coordinates"].sel(layer=layer).to_numpy().T
    t = arrays["position"].to_numpy()
    figure = go.Figure(
        go.Scatter3d(
            x=x,
            y=y,
            z=z,
            mode="lines+markers",
            marker=dict(size=3, color=t, colorscale="Plasma", colorbar=dict(title="position")),
            line=dict(color="lightgray"),
            text=[f"position {i}" for i in t],
        )
    )
    figure.update_scenes(xaxis_title="first", yaxis_title="second", zaxis_title="third")
    return styled(figure, f"The positional basis of layer {layer}", height=560)


def contexts(sampled: xr.Dataset, layer: int) -> go.Figure:
    """Sampled context vectors in their first three principal coordinates, colored by document."""
    x, y, z = sampled["coordinates"].to_numpy().T
    document, position = sampled["document"].to_numpy(), sampled["position"].to_numpy()
    figure = go.Figure(
        go.Scatter3d(
            x=x,
            y=y,
            z=z,
            mode="markers",
            marker=dict(size=4, color=document, colorscale="Turbo"),
            text=[f"document {d}, position {t}" for d, t in zip(document, position, strict=True)],
        )
    )
    figure.update_scenes(xaxis_title="first", yaxis_title="second", zaxis_title="third")
    return styled(figure, f"Context vectors of layer {layer}, colored by document", height=560)


def singular_values(arrays: xr.Dataset, at_most: int = 60) -> go.Figure:
    """The singular values of P, every layer a line."""
    figure = go.Figure()
    for layer in arrays["layer"].to_numpy():
        values = arrays["singular_values"].sel(layer=layer).to_numpy()[:at_most]
        figure.add_scatter(x=np.arange(1, len(values) + 1), y=values, name=f"layer {layer}", mode="lines+markers")
    figure.update_xaxes(title="component").update_yaxes(title="singular value", type="log")
    return styled(figure, "Singular values of the positional basis")


def dct_map(arrays: xr.Dataset, layer: int, at_most: int = 10) -> go.Figure:
    """The first frequencies of the Gram matrix."""
    values = np.abs(arrays["dct"].sel(layer=layer).to_numpy()[:at_most, :at_most])
    figure = go.Figure(heat(values, signed=False, colorbar=dict(title="|coefficient|")))
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain", title="frequency")
    figure.update_xaxes(constrain="domain", title="frequency")
    return styled(figure, f"Discrete cosine transform of the Gram matrix, layer {layer}")


def gram_map(arrays: xr.Dataset, layer: int) -> go.Figure:
    """Cosines between the positional vectors."""
    t = arrays["position"].to_numpy()
    values = arrays["gram"].sel(layer=layer).to_numpy()
    figure = go.Figure(
        go.Heatmap(z=values, x=t, y=t, zmin=-1, zmax=1, colorscale=SIGNED, colorbar=dict(title="cosine"))
    )
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain", title="position")
    figure.update_xaxes(constrain="domain", title="position")
    return styled(figure, f"Cosines between positions, layer {layer}")


def context_gram(parts: Decomposition, documents: Int[np.ndarray, "c"], layer: int) -> go.Figure:
    """Cosines between all pos_t and ctx_c, contexts sorted by document: [P C]'[P C], normalized."""
    order, cosines = context_cosines(parts, documents)
    names = [f"position {t}" for t in range(len(parts.pos))] + [f"document {documents[c]}, sequence {c}" for c in order]
    figure = go.Figure(
        go.Heatmap(
            z=cosines,
            zmin=-1,
            zmax=1,
            colorscale=SIGNED,
            colorbar=dict(title="cosine"),
            customdata=np.array([[(a, b) for b in names] for a in names]),
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<br>%{z:.3f}<extra></extra>",
        )
    )
    figure.add_hline(len(parts.pos) - 0.5, line_color="gray").add_vline(len(parts.pos) - 0.5, line_color="gray")
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain").update_xaxes(constrain="domain")
    return styled(figure, f"Positions, then contexts by document, layer {layer}", height=620)


def layer_maps(arrays: xr.Dataset, norms: dict[str, Float[np.ndarray, "layer"]]) -> go.Figure:
    """Norms of the parts by layer, and the cosine between the positional bases of two layers."""
    figure = make_subplots(1, 2, subplot_titles=("Norms of the parts", "Cosine of pos between layers"))
    for name, values in norms.items():
        figure.add_scatter(x=np.arange(len(values)), y=values, name=name, mode="lines+markers", row=1, col=1)
    cosines = arrays["layer_cosine"].to_numpy()
    figure.add_trace(go.Heatmap(z=cosines, zmin=-1, zmax=1, colorscale=SIGNED, colorbar=dict(title="cosine")), 1, 2)
    figure.update_xaxes(title="layer").update_yaxes(autorange="reversed", row=1, col=2)
    figure.update_layout(legend=dict(orientation="h", x=0, y=-0.2))
    return styled(figure, "The residual stream by layer")
