"""Figures of localization: the heads by their eigenspectrum (r, eta), and which keys propagate a signal."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.figures.style import styled
from armillary.lenses.localization import layer_curve

COLORS = {
    "late": "#0072B2",
    "middle": "#009E73",
    "early": "#CC79A7",
    "uniform": "#999999",
    "vanishing": "#D55E00",
}


def regime_map(heads: pd.DataFrame) -> go.Figure:
    """Every head by the mean (r) and the scale (eta) of its spectrum, colored by regime; |r| > 2 localizes."""
    figure = go.Figure()
    for regime, part in heads.groupby("regime"):
        figure.add_scatter(
            x=part["r"],
            y=part["eta"],
            mode="markers",
            name=str(regime),
            marker=dict(color=COLORS.get(str(regime), "#444"), size=8),
            text=[f"head {row.layer}.{row.head}" for row in part.itertuples()],
        )
    for edge in (-2, 2):
        figure.add_vline(edge, line=dict(color="gray", dash="dot"))
    figure.update_xaxes(title="r = tr(W) / lambda").update_yaxes(title="eta", rangemode="tozero")
    return styled(figure, "Heads by their eigenspectrum (Sigma = I)")


def propagation_curves(table: pd.DataFrame) -> go.Figure:
    """rho by the position of the key, mean over the heads of each layer: observed and predicted."""
    known = ("observed", "predicted", "predicted_data")
    names = [name for name in known if name in table and table[name].notna().any()]
    titles = {
        "observed": "observed",
        "predicted": "predicted from the weights",
        "predicted_data": "predicted, measured Sigma",
    }
    figure = make_subplots(1, max(1, len(names)), subplot_titles=[titles[name] for name in names], shared_yaxes=True)
    layers = sorted(map(int, table["layer"].unique()))
    for col, name in enumerate(names, start=1):
        for i, layer in enumerate(layers):
            curve = layer_curve(table, layer, name)
            shade = int(200 * i / max(1, len(layers) - 1))
            figure.add_scatter(
                x=np.asarray(curve.index),
                y=curve,
                name=f"layer {layer}",
                legendgroup=str(layer),
                showlegend=col == 1,
                line_color=f"rgb({shade}, {80 + shade // 2}, {160})",
                row=1,
                col=col,
            )
    figure.update_xaxes(title="position of the key, oldest to newest").update_yaxes(range=[0, 1.02])
    return styled(figure, "Which keys propagate a signal")
