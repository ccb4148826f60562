"""Figures for the statements whose correction matters most: printed, corrected, simulated."""

from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.figures.style import styled
from armillary.theory import corrections

PRINTED = dict(color="#c0392b", dash="dash")
CORRECTED = dict(color="#2a9d5c")
SIMULATED = dict(color="black", size=5)
LEAST = 1e-17
"""Zero on a logarithmic axis."""


def propagation_variance() -> go.Figure:
    """Variance and rho over the position of a token: the paper omits -2 theta (`armillary theory L12`, L15)."""
    variance, rho = corrections.propagation()
    figure = make_subplots(1, 2, subplot_titles=("variance", "rho"))
    for col, curves in ((1, variance), (2, rho)):
        for (name, values), line in zip(curves.values.items(), (PRINTED, CORRECTED), strict=True):
            figure.add_scatter(
                x=curves.x, y=values, name=name, line=line, legendgroup=name, showlegend=col == 1, row=1, col=col
            )
    assert rho.points is not None
    at = dict(x=rho.at, row=1, col=2)
    figure.add_scatter(y=rho.points["simulated"], mode="markers", marker=SIMULATED, name="simulated walks", **at)
    figure.add_scatter(y=rho.points["exact"], name="exact at T = 60", line_color="#888", **at)
    figure.update_xaxes(title="position of the token, i / T")
    return styled(figure, "Which tokens propagate a signal", height=380)


def bilinear_variance() -> go.Figure:
    """Var(x'Cy) over the correlation of x and y, which the printed form omits (`armillary theory T6.3`)."""
    curves = corrections.bilinear_forms()
    figure = go.Figure()
    figure.add_scatter(x=curves.x, y=curves.values["as printed"], name="as printed (independent x, y)", line=PRINTED)
    figure.add_scatter(x=curves.x, y=curves.values["corrected"], name="with the cross-covariance", line=CORRECTED)
    figure.add_scatter(x=curves.x, y=curves.values["simulated"], mode="markers", marker=SIMULATED, name="simulated")
    figure.update_xaxes(title="correlation of x and y").update_yaxes(title="variance of x'Cy")
    return styled(figure, "The variance of a bilinear form", height=380)


def slerp_error() -> go.Figure:
    """KL along a great circle, and the best sinusoid: the conjectured form is not exact (`armillary theory T5.17`)."""
    figure = make_subplots(1, 2, subplot_titles=("radius 1", "radius 10"))
    lines = {
        "exact": ("KL", dict(color="black")),
        "as printed": ("best sinusoid, as conjectured", PRINTED),
        "corrected": ("half the variance of w - v", CORRECTED),
    }
    for col, curves in enumerate(corrections.divergence_along_slerp((1.0, 10.0)), start=1):
        for kind, (name, line) in lines.items():
            y = curves.values[kind]
            figure.add_scatter(
                x=curves.x, y=y, name=name, line=line, legendgroup=name, showlegend=col == 1, row=1, col=col
            )
    figure.update_xaxes(title="t along the great circle")
    return styled(figure, "KL divergence along SLERP", height=380)


def entropy_minimum() -> go.Figure:
    """The least entropy for logits of a given norm: the printed one exceeds log T (`armillary theory L26`)."""
    tokens = 40
    curves = corrections.least_entropy(tokens)
    figure = go.Figure()
    for (name, values), line in zip(curves.values.items(), (PRINTED, CORRECTED), strict=True):
        figure.add_scatter(x=curves.x, y=values, name=name, line=line)
    figure.add_hline(np.log(tokens), line_color="#888", annotation_text="log T: no entropy is larger")
    figure.update_xaxes(title="norm of the logits").update_yaxes(title="least entropy (nats)")
    return styled(figure, f"The least attention entropy, T = {tokens}", height=380)


def angular_information() -> go.Figure:
    """Var(v'Cw) over the angle: constant for a random C, not for a tied one (`armillary theory T6.47`, T6.48b)."""
    curves = corrections.angles()
    tied = dict(color="#1f77b4")
    figure = go.Figure()
    for kind, name, line in (
        ("as printed", "as printed", PRINTED),
        ("independent", "independent weights", CORRECTED),
        ("tied", "tied weights", tied),
    ):
        figure.add_scatter(x=curves.x, y=curves.values[kind], name=name, line=line)
    for kind, name, marker in (
        ("independent, simulated", "simulated, independent", SIMULATED),
        ("tied, simulated", "simulated, tied", dict(**tied, size=6, symbol="x")),
    ):
        figure.add_scatter(x=curves.x, y=curves.values[kind], mode="markers", marker=marker, name=name)
    figure.update_xaxes(title="cosine of the two vectors").update_yaxes(
        title="variance of the logit", rangemode="tozero"
    )
    return styled(figure, "Do the logits of a random head depend on the angle?", height=380)


def collapse() -> go.Figure:
    """Distance to one common token over depth, with and without skip (`armillary theory T7.7`)."""
    curves = corrections.collapse_of_tokens()
    figure = go.Figure()
    for name, values in curves.values.items():
        figure.add_scatter(x=curves.x, y=np.maximum(values, LEAST), name=name, mode="lines+markers")
    figure.update_xaxes(title="layer").update_yaxes(title="distance to one common token", type="log")
    return styled(figure, "Random attention layers make tokens alike", height=380)


def theorem_one() -> go.Figure:
    """Residual of a smooth Gram matrix after k basis vectors: printed basis and DCT-II (`armillary theory S8`, S9)."""
    curves = corrections.smooth_gram_residuals()
    figure = go.Figure()
    for kind, name, line in (("as printed", "as printed", PRINTED), ("corrected", "corrected (DCT-II)", CORRECTED)):
        y = np.maximum(curves.values[kind], LEAST)
        figure.add_scatter(x=curves.x, y=y, name=name, line=line, mode="lines+markers")
    figure.update_xaxes(title="vectors in the basis").update_yaxes(title="residual", type="log")
    return styled(figure, "Theorem 1: the basis matters", height=380)


FIGURES: dict[str, Callable[[], go.Figure]] = {
    "S8": theorem_one,
    "L12": propagation_variance,
    "T6.3": bilinear_variance,
    "T5.17": slerp_error,
    "L26": entropy_minimum,
    "T6.47": angular_information,
    "T7.7": collapse,
}
"""By the id of the entry that each figure belongs to."""
