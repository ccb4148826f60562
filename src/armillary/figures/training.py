"""Figures of training runs: loss, attention entropy, the eigenspectrum of W_q W_k', and signal propagation."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.figures.style import styled
from armillary.training.runs import RunHistory

PANELS = (
    ("held_out", "held-out loss (nats per token)"),
    ("entropy", "attention entropy (nats), mean over heads"),
    ("eigen_scale", "scale of the eigenspectrum of W_q W_k'"),
    ("eigen_mean", "mean of the eigenspectrum of W_q W_k'"),
    ("rho", "share of keys that propagate a signal"),
    ("largest_logit", "largest logit"),
)
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")


def training_curves(runs: list[RunHistory]) -> go.Figure:
    """Six measures over the steps, a line for every run (Bao's Figures 6 and 7)."""
    figure = make_subplots(3, 2, subplot_titles=[title for _, title in PANELS], vertical_spacing=0.1)
    for number, run in enumerate(runs):
        for i, (measure, _) in enumerate(PANELS):
            table = run.loss if measure == "held_out" else run.attention
            if measure not in table:
                continue
            part = table[["step", measure]].dropna()
            figure.add_scatter(
                x=part["step"],
                y=part[measure],
                mode="lines",
                name=run.name,
                legendgroup=str(number),
                showlegend=i == 0,
                line_color=COLORS[number % len(COLORS)],
                row=i // 2 + 1,
                col=i % 2 + 1,
            )
    figure.update_xaxes(title="step", row=3)
    figure.update_layout(legend=dict(orientation="h", y=-0.08))
    return styled(figure, "Training, step by step", height=860)
