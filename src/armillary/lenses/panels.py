"""The arrays behind the panels of a head's dossier, for one head or for all."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Int, Num

from armillary.lenses.localization import places, rho_curves
from armillary.lenses.rotary import frequency_arrays, has_rotation
from armillary.lenses.spectral import unit_spectra

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

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
"""Columns of the pattern panel, each in [0, 1], and their names there."""

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
"""The terms query · key of the logits, and the group that each belongs to."""

MOST_LAGS = 96
"""About this many distances are shown: all up to 64, then growing steps."""

Arrays = dict[str, Num[np.ndarray, "..."]]


def share_arrays(heads: pd.DataFrame) -> Arrays | None:
    """shares: (row, term), the columns of SHARES."""
    if not set(SHARES) <= set(heads) or heads[list(SHARES)].isna().all(axis=None):
        return None
    return {"shares": heads[list(SHARES)].to_numpy(float, na_value=np.nan)}


def pattern_arrays(heads: pd.DataFrame, evidence: pd.DataFrame | None = None) -> Arrays | None:
    """patterns, patterns_null, patterns_threshold: (row, pattern), for the columns of PATTERNS that the table has."""
    measures = [name for name in PATTERNS if name in heads and heads[name].notna().any()]
    if not measures:
        return None
    columns = {"patterns": heads[measures].to_numpy(float, na_value=np.nan)}
    for name in ("null", "threshold"):
        compared = np.full(columns["patterns"].shape, np.nan)
        if evidence is not None and not evidence.empty:
            grid = evidence.drop_duplicates(["layer", "head", "measure"]).pivot(
                index=["layer", "head"], columns="measure", values=name
            )
            grid = grid.reindex(index=pd.MultiIndex.from_frame(heads[["layer", "head"]].astype(int)), columns=measures)
            compared = grid.to_numpy(float, na_value=np.nan)
        columns[f"patterns_{name}"] = compared
    return {**columns, "patterns_name": np.array([PATTERNS[name] for name in measures])[None].repeat(len(heads), 0)}


def _at(layer: int | None, head: int | None) -> dict[str, Any]:
    everything = slice(None)
    return dict(layer=everything if layer is None else layer, head=everything if head is None else head)


def lag_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """lag; lag_mean and lag_low, lag_high (one standard deviation below and above): (layer, head, lag)."""
    if not atlas.has("attention") or "logit_mean_by_lag" not in atlas.group("attention"):
        return None
    attention = atlas.group("attention").isel(**_at(layer, head))
    lags = shown_lags(attention.sizes["lag"])
    mean, variance = (attention[f"logit_{name}_by_lag"].to_numpy()[..., lags] for name in ("mean", "variance"))
    spread = np.sqrt(variance)
    return {"lag": lags, "lag_mean": mean, "lag_low": mean - spread, "lag_high": mean + spread}


def shown_lags(count: int) -> Int[np.ndarray, "n"]:
    """0, 1, 2, ... 64, then geometrically growing steps up to count - 1."""
    near = np.arange(min(count, 65))
    far = np.geomspace(65, max(count - 1, 65), MOST_LAGS - 64).round().astype(near.dtype)
    return np.unique(np.concatenate([near, far[far < count]]))


def frequency_panel_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """frequency; frequency_share, _change, _q, _k: (layer, head, frequency), NaN where a layer does not rotate."""
    if not has_rotation(atlas):
        return None
    frequencies, rotary, at = frequency_arrays(atlas), atlas.group("rotary"), _at(layer, head)
    group = rotary.sizes["head"] // rotary.sizes["kv_head"]
    panels = {
        "frequency_share": frequencies.share,
        "frequency_change": frequencies.change,
        "frequency_q": rotary["q_norm"].to_numpy(),
        "frequency_k": np.repeat(rotary["k_norm"].to_numpy(), group, axis=1),
    }
    rotates = np.isfinite(frequencies.radians)[:, None]
    selected = {name: np.where(rotates, values, np.nan)[at["layer"], at["head"]] for name, values in panels.items()}
    return {"frequency": np.arange(frequencies.share.shape[-1]), **selected}


def spectrum_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """component; qk_singular, ov_singular over their Frobenius norm, and *_random where known: (layer, head, e)."""
    if not atlas.has("spectral"):
        return None
    spectral = atlas.group("spectral").isel(**_at(layer, head))
    names = [f"{product}_singular{end}" for product in ("qk", "ov") for end in ("", "_random")]
    spectra = {name: unit_spectra(spectral[name].to_numpy()) for name in names if name in spectral}
    return {"component": np.arange(1, spectral.sizes["component"] + 1), **spectra}


def rho_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """place (oldest key 0, newest 1); rho_observed, rho_predicted, rho_predicted_data: (layer, head, place)."""
    if not atlas.has("attention") or "rho" not in atlas.group("attention"):
        return None
    curves = rho_curves(atlas)
    at = _at(layer, head)
    selected = {f"rho_{name}": values[at["layer"], at["head"]] for name, values in curves.items()}
    return {"place": places(curves["observed"].shape[-1]), **selected}


def logit_arrays(atlas: "Atlas", layer: int | None = None, head: int | None = None) -> Arrays | None:
    """token; logits: (layer, head, query, key), each row minus its mean; logits_low, _high: range of the colors."""
    if not atlas.has("attention") or "logit_matrix" not in atlas.group("attention"):
        return None
    values = atlas.group("attention")["logit_matrix"].isel(**_at(layer, head)).to_numpy()
    seen = np.isfinite(values)
    mean = np.where(seen, values, 0.0).sum(-1, keepdims=True) / np.maximum(seen.sum(-1, keepdims=True), 1)
    centered = values - mean
    flat = np.where(seen, np.abs(centered), np.nan).reshape(*values.shape[:-2], -1)
    limit = np.nanpercentile(np.where(np.isfinite(flat).any(-1, keepdims=True), flat, 1.0), 99, axis=-1)
    cells = values.shape[-1]
    token = (np.arange(cells) + 0.5) * atlas.settings["length"] / cells - 0.5
    return {"token": token, "logits": centered, "logits_low": -np.asarray(limit), "logits_high": np.asarray(limit)}
