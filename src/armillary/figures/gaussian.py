"""Figures of the Gaussian lens: mutual information of tokens, and predicted and observed variances of the logits."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from armillary.figures.style import styled


def information_by_lag(table: pd.DataFrame) -> go.Figure:
    """Mutual information of two tokens over their distance, a line per layer."""
    lags = [column for column in table.columns if column.removeprefix("mi_").isdecimal()]
    colors = sample_colorscale("Viridis", np.linspace(0, 0.9, max(len(table), 2)))
    figure = go.Figure()
    for color, row in zip(colors, table.to_dict("records"), strict=False):
        figure.add_scatter(
            x=[int(lag.removeprefix("mi_")) for lag in lags],
            y=[row[lag] for lag in lags],
            name=f"layer {row['layer']}",
            mode="lines+markers",
            line_color=color,
        )
    if "mi_floor" in table:
        floor = float(table["mi_floor"].iloc[0])
        figure.add_hline(floor, line=dict(color="gray", dash="dot"))
        # on a logarithmic axis an annotation's height is a power of ten
        figure.add_annotation(
            text="unrelated tokens", x=1, xref="paper", y=np.log10(floor), yanchor="bottom", showarrow=False
        )
    figure.update_xaxes(title="distance in tokens", type="log", dtick=np.log10(2))
    figure.update_yaxes(title="mutual information (nats)", type="log")
    return styled(figure, "Mutual information of two tokens by distance")


def predicted_variances(predictions: pd.DataFrame) -> go.Figure:
    """Variance of every head's logits at every lag: predicted from Gaussian q and k, against observed."""
    figure = go.Figure()
    layers = sorted(predictions["layer"].unique())
    colors = sample_colorscale("Viridis", np.linspace(0, 0.9, max(len(layers), 2)))
    for color, layer in zip(colors, layers, strict=False):
        part = predictions[predictions["layer"] == layer]
        figure.add_scatter(
            x=part["variance"],
            y=part["predicted_variance"],
            mode="markers",
            marker=dict(color=color, size=6),
            name=f"layer {layer}",
            text=[f"head {r.layer}.{r.head}, lag {r.lag}" for r in part.itertuples()],
        )
    ends = [float(predictions["variance"].min()), float(predictions["variance"].max())]
    figure.add_scatter(x=ends, y=ends, mode="lines", line=dict(color="gray", dash="dash"), name="equal")
    figure.update_xaxes(title="observed variance", type="log").update_yaxes(title="predicted variance", type="log")
    return styled(figure, "Variance of the logits, predicted for Gaussian queries and keys", height=560)
