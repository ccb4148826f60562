"""Pictures of one head: the panels of its dossier.

A panel is drawn from a few arrays. `arrays` reads them for one head or for all; a trace's `meta` names the array that
each of its fields came from, so that a page can draw any head from one template and the arrays alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Int, Num
from plotly.subplots import make_subplots

from armillary.figures.spectral import unit_spectra
from armillary.figures.style import heat, styled
from armillary.lenses.localization import rho_curves
from armillary.lenses.rotary import frequency_arrays, turns_at_all

if TYPE_CHECKING:
    from armillary.atlas import Atlas

PART_COLOURS = {
    "rotated mean": "#0072B2",
    "positional vectors": "#56B4E9",
    "bias": "#009E73",
    "mixed": "#999999",
    "content": "#E69F00",
}
"""What makes the logits: position in blues and green, content in orange, their mixture in grey."""

PATTERNS = {
    "self_mass": "itself",
    "prev_mass": "previous token",
    "next_mass": "next token",
    "near_mass": "nearby tokens",
    "first_mass": "first token",
    "sink_mass": "sink",
    "induction_score": "induction score",
    "duplicate_score": "duplicate score",
    "focus": "focus",
}
"""What a head looks at, in [0, 1] each, as the pattern panel names it."""

SHARES = {
    "share_mean_mean": ("mean · mean", "rotated mean"),
    "share_mean_pos": ("mean · position", "positional vectors"),
    "share_pos_mean": ("position · mean", "positional vectors"),
    "share_pos_pos": ("position · position", "positional vectors"),
    "share_bias": ("position bias", "bias"),
    "share_mean_cvec": ("mean · content", "mixed"),
    "share_pos_cvec": ("position · content", "mixed"),
    "share_cvec_mean": ("content · mean", "mixed"),
    "share_cvec_pos": ("content · position", "mixed"),
    "share_cvec_cvec": ("content · content", "content"),
}
"""The terms query · key of the logits, and the part that each belongs to."""

MOST_LAGS = 96
"""Distances are shown one by one up to 64, then in growing steps, about so many in all."""

Arrays = dict[str, Num[np.ndarray, "..."]]


# one head: from its row of the table ------------------------------------------------------------------------------


def constituent_bars(row: pd.Series) -> go.Figure | None:
    """The shares of the ten terms of a head's logits, coloured by the part that they belong to; they add to 1."""
    values = share_arrays(row.to_frame().T)
    return None if values is None else draw_shares({name: array[0] for name, array in values.items()})


def share_arrays(heads: pd.DataFrame) -> Arrays | None:
    """shares: (row, term), the columns of SHARES."""
    if not set(SHARES) <= set(heads) or heads[list(SHARES)].isna().all(axis=None):
        return None
    return {"shares": heads[list(SHARES)].to_numpy(float, na_value=np.nan)}


def draw_shares(head: Arrays) -> go.Figure:
    names, parts = zip(*SHARES.values(), strict=True)
    bar = go.Bar(
        x=head["shares"],
        y=names,
        orientation="h",
        marker_color=[PART_COLOURS[part] for part in parts],
        customdata=parts,
        meta=dict(x="shares"),
        hovertemplate="%{y}: %{x:.1%} (%{customdata})<extra></extra>",
    )
    figure = go.Figure(bar)
    figure.update_xaxes(title="share of the logits", tickformat=".0%").update_yaxes(autorange="reversed")
    return _panel(figure, "What makes its logits (query · key)")


def pattern_bars(row: pd.Series, evidence: pd.DataFrame | None = None) -> go.Figure | None:
    """Where attention goes and what the probes say, with what random heads show and the threshold beside each."""
    values = pattern_arrays(row.to_frame().T, evidence)
    return None if values is None else draw_patterns({name: array[0] for name, array in values.items()})


def pattern_arrays(heads: pd.DataFrame, evidence: pd.DataFrame | None = None) -> Arrays | None:
    """patterns, patterns_null, patterns_threshold: (row, pattern), the columns of PATTERNS that the table has."""
    known = [name for name in PATTERNS if name in heads and heads[name].notna().any()]
    if not known:
        return None
    columns = {"patterns": heads[known].to_numpy(float, na_value=np.nan)}
    for name in ("null", "threshold"):
        beside = np.full(columns["patterns"].shape, np.nan)
        if evidence is not None and not evidence.empty:
            grid = evidence.drop_duplicates(["layer", "head", "measure"]).pivot(
                index=["layer", "head"], columns="measure", values=name
            )
            grid = grid.reindex(index=pd.MultiIndex.from_frame(heads[["layer", "head"]].astype(int)), columns=known)
            beside = grid.to_numpy(float, na_value=np.nan)
        columns[f"patterns_{name}"] = beside
    return {**columns, "patterns_name": np.array([PATTERNS[name] for name in known])[None].repeat(len(heads), 0)}


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
    for name, (said, symbol, colour) in marks.items():
        figure.add_scatter(
            x=head[f"patterns_{name}"],
            y=names,
            mode="markers",
            marker=dict(symbol=symbol, size=11, color=colour, line_width=2),
            name=said,
            meta=dict(x=f"patterns_{name}"),
            hovertemplate=f"%{{y}}: %{{x:.3f}}<extra>{said}</extra>",
        )
    figure.update_xaxes(title="mean attention, or score", range=[0, 1.02]).update_yaxes(autorange="reversed")
    return _panel(figure, "Where it looks", legend=True)


# one head: from the atlas -----------------------------------------------------------------------------------------


def head_lags(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """Mean of the head's logits at each distance, with one standard deviation to either side."""
    return _drawn("lags", atlas, layer, head)


def head_frequencies(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """Share of the logits, norms of q and k, and change if it stood still, of each rotary frequency."""
    return _drawn("frequencies", atlas, layer, head)


def head_spectrum(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """Singular values of W_q W_k' and W_v W_o over their norm, beside random weights where the atlas has them."""
    return _drawn("spectrum", atlas, layer, head)


def head_rho(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """How often keys at each place pass a signal: observed, and predicted for a random walk."""
    return _drawn("rho", atlas, layer, head)


def mean_logits(atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    """The head's mean logit from query to key, each row less its mean."""
    return _drawn("logits", atlas, layer, head)


@dataclass(frozen=True)
class Panel:
    """How a panel's arrays are read from an atlas (of all heads, or of one) and how it is drawn from one head's."""

    arrays: Callable[["Atlas", int | None, int | None], Arrays | None]
    draw: Callable[[Arrays], go.Figure]
    shared: tuple[str, ...] = ()
    """Arrays that are the same for all heads."""


def _drawn(panel: str, atlas: "Atlas", layer: int, head: int) -> go.Figure | None:
    found = PANELS[panel].arrays(atlas, layer, head)
    own = [values for name, values in (found or {}).items() if name not in PANELS[panel].shared]
    return PANELS[panel].draw(found) if found and any(np.isfinite(values).any() for values in own) else None


def _at(layer: int | None, head: int | None) -> dict[str, Any]:
    every = slice(None)
    return dict(layer=every if layer is None else layer, head=every if head is None else head)


def lag_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """lag; lag_mean and lag_low, lag_high (one standard deviation below and above): (layer, head, lag)."""
    if not atlas.has("attention") or "logit_mean_by_lag" not in atlas.group("attention"):
        return None
    found = atlas.group("attention").isel(**_at(layer, head))
    lags = shown_lags(found.sizes["lag"])
    mean, variance = (found[f"logit_{name}_by_lag"].to_numpy()[..., lags] for name in ("mean", "variance"))
    spread = np.sqrt(variance)
    return {"lag": lags, "lag_mean": mean, "lag_low": mean - spread, "lag_high": mean + spread}


def shown_lags(count: int) -> Int[np.ndarray, "n"]:
    """0, 1, 2, ... 64, then ever wider steps up to count - 1."""
    near = np.arange(min(count, 65))
    far = np.geomspace(65, max(count - 1, 65), MOST_LAGS - 64).round().astype(near.dtype)
    return np.unique(np.concatenate([near, far[far < count]]))


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


def frequency_panel_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """frequency; frequency_share, _change, _q, _k: (layer, head, frequency), missing where a layer does not rotate."""
    if not turns_at_all(atlas):
        return None
    found, rotary, at = frequency_arrays(atlas), atlas.group("rotary"), _at(layer, head)
    group = rotary.sizes["head"] // rotary.sizes["kv_head"]
    every = {
        "frequency_share": found.share,
        "frequency_change": found.change,
        "frequency_q": rotary["q_norm"].to_numpy(),
        "frequency_k": np.repeat(rotary["k_norm"].to_numpy(), group, axis=1),
    }
    rotates = np.isfinite(found.radians)[:, None]
    kept = {name: np.where(rotates, values, np.nan)[at["layer"], at["head"]] for name, values in every.items()}
    return {"frequency": np.arange(found.share.shape[-1]), **kept}


def _draw_frequencies(head: Arrays) -> go.Figure:
    figure = make_subplots(
        1, 3, subplot_titles=("share of the logits", "mean length of q and k", "change if it stood still")
    )
    panels = (
        ("share", 1, "share", "#0072B2"),
        ("q", 2, "|q|", "#0072B2"),
        ("k", 2, "|k|", "#E69F00"),
        ("change", 3, "change", "#D55E00"),
    )
    for name, col, said, colour in panels:
        figure.add_scatter(
            x=head["frequency"],
            y=head[f"frequency_{name}"],
            mode="lines+markers",
            line_color=colour,
            marker_size=4,
            name=said,
            showlegend=col == 2,
            meta=dict(y=f"frequency_{name}"),
            hovertemplate=f"frequency %{{x}}: %{{y:.4g}}<extra>{said}</extra>",
            row=1,
            col=col,
        )
    figure.update_xaxes(title="frequency, fastest first")
    figure.update_annotations(font_size=12)
    return _panel(figure, "Rotary frequencies", legend=True)


def spectrum_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """component; qk_singular, ov_singular over their Frobenius norm, and *_random where known: (layer, head, e)."""
    if not atlas.has("spectral"):
        return None
    found = atlas.group("spectral").isel(**_at(layer, head))
    names = [f"{product}_singular{end}" for product in ("qk", "ov") for end in ("", "_random")]
    kept = {name: unit_spectra(found[name].to_numpy()) for name in names if name in found}
    return {"component": np.arange(1, found.sizes["component"] + 1), **kept}


def _draw_spectrum(head: Arrays) -> go.Figure:
    figure = go.Figure()
    for product, said, colour in (("qk", "W_q W_k'", "#0072B2"), ("ov", "W_v W_o", "#D55E00")):
        for end, dash in (("", "solid"), ("_random", "dot")):
            if f"{product}_singular{end}" in head:
                figure.add_scatter(
                    x=head["component"],
                    y=head[f"{product}_singular{end}"],
                    mode="lines",
                    line=dict(color=colour, dash=dash),
                    name=said + (", random weights" if end else ""),
                    meta=dict(y=f"{product}_singular{end}"),
                )
    figure.update_xaxes(title="component").update_yaxes(title="singular value / norm", rangemode="tozero")
    return _panel(figure, "Singular values of its weights", legend=True)


def rho_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """place (oldest key 0, newest 1); rho_observed, rho_predicted, rho_predicted_data: (layer, head, place)."""
    if not atlas.has("attention") or "rho" not in atlas.group("attention"):
        return None
    curves = rho_curves(atlas)
    at = _at(layer, head)
    count = curves["observed"].shape[-1]
    found = {f"rho_{name}": values[at["layer"], at["head"]] for name, values in curves.items()}
    return {"place": (np.arange(count) + 0.5) / count, **found}


def _draw_rho(head: Arrays) -> go.Figure:
    figure = go.Figure()
    lines = {
        "rho_observed": ("observed", dict(color="#0072B2", width=2)),
        "rho_predicted": ("predicted from the weights", dict(color="#D55E00", dash="dash")),
        "rho_predicted_data": ("predicted, measured Sigma", dict(color="#009E73", dash="dot")),
    }
    for name, (said, line) in lines.items():
        if name in head:
            figure.add_scatter(x=head["place"], y=head[name], mode="lines", line=line, name=said, meta=dict(y=name))
    figure.update_xaxes(title="place of the key, oldest to newest").update_yaxes(title="rho", range=[0, 1.02])
    return _panel(figure, "Which keys pass a signal", legend=True)


def logit_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """token; logits: (layer, head, query, key), each row less its mean; logits_low, _high: where the colours end."""
    if not atlas.has("attention") or "logit_matrix" not in atlas.group("attention"):
        return None
    values = atlas.group("attention")["logit_matrix"].isel(**_at(layer, head)).to_numpy()
    seen = np.isfinite(values)
    mean = np.where(seen, values, 0.0).sum(-1, keepdims=True) / np.maximum(seen.sum(-1, keepdims=True), 1)
    centred = values - mean
    flat = np.where(seen, np.abs(centred), np.nan).reshape(*values.shape[:-2], -1)
    limit = np.nanpercentile(np.where(np.isfinite(flat).any(-1, keepdims=True), flat, 1.0), 99, axis=-1)
    cells = values.shape[-1]
    token = (np.arange(cells) + 0.5) * atlas.settings["length"] / cells - 0.5
    return {"token": token, "logits": centred, "logits_low": -np.asarray(limit), "logits_high": np.asarray(limit)}


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
    return _panel(figure, "Mean logits, each row less its mean")


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
