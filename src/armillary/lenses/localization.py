"""Signal propagation through a head: xi and eta of its spectrum, its regime, rho predicted and observed."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from armillary.errors import ArmillaryError
from armillary.theory.localization import Regime, Spectrum, exact_rho, spectrum_regime

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """xi, eta, r and regime of every head from its weights (Sigma = I), and with the measured Sigma as *_data.

    xi = tr(W)/sqrt(tr(W^2)), eta = scale sqrt(tr(W^2)) with W = W_QK Sigma; missing, and the regime with them, where
    tr(W^2) <= 0, which a W that is not symmetric can have. Where q and k are normalized, W_QK is the effective product
    (lenses/effective.py). Sigma is the covariance of x_{t+1} - x_t (an atlas with the stream 'lags'). Rotary heads are
    evaluated at distance 0. least_entropy: the lowest entropy possible with logits of the observed norms. rho_fit,
    rho_error: how well rho is predicted (fit_columns).
    """
    if not atlas.has("spectral"):
        return pd.DataFrame()
    columns: dict[str, Any] = {}
    spectra_by_suffix = {"": weight_spectra(atlas), **({"_data": data_spectra(atlas)} if atlas.has("pairs") else {})}
    for suffix, spectra in spectra_by_suffix.items():
        columns |= {
            f"xi{suffix}": [spectrum.xi for spectrum in spectra],
            f"eta{suffix}": [spectrum.eta for spectrum in spectra],
            f"r{suffix}": [spectrum.r for spectrum in spectra],
            f"regime{suffix}": [head_regime(spectrum) for spectrum in spectra],
        }
    table = pd.concat([pd.DataFrame(columns), fit_columns(atlas)], axis=1)
    if "attention" in atlas.settings["streams"] and "least_entropy" in atlas.group("attention"):
        least = atlas.group("attention")["least_entropy"].to_numpy().reshape(-1)
        sinks = [layer.sinks for layer in atlas.anatomy.layers for _ in range(layer.heads)]
        table["least_entropy"] = np.where(sinks, np.nan, least)
    return table


def scales(atlas: "Atlas") -> Float[np.ndarray, "layer head"]:
    """1 / lambda of every head: the scale of its logits."""
    layers = atlas.anatomy.layers
    return np.array([[layer.scale] * layer.heads for layer in layers], dtype=np.float64)


def head_regime(spectrum: Spectrum) -> Regime:
    """The regime of a head; '' where xi or eta do not exist."""
    return spectrum_regime(spectrum) if np.isfinite([spectrum.xi, spectrum.eta]).all() else ""


def is_effective(atlas: "Atlas") -> bool:
    """Whether q and k are normalized, so that xi, eta and the regime are those of the effective product."""
    return "qk_effective_trace" in atlas.group("spectral")


EFFECTIVE = (
    "q and k of this model are normalized: xi, eta and the regime are those of the effective W_q W_k', with the norm's "
    "gains folded in and divided by the norms that an input of unit covariance has."
)


def weight_spectra(atlas: "Atlas") -> list[Spectrum]:
    """The spectrum of every head with Sigma = I, in the order of the heads table; of the effective product if any."""
    arrays = atlas.group("spectral")
    product = "qk_effective" if is_effective(atlas) else "qk"
    trace, frobenius, share = (arrays[f"{product}_{name}"].to_numpy() for name in ("trace", "fro", "symmetric_share"))
    square = np.where(frobenius > 0, (2 * share - 1) * frobenius**2, 0.0 * frobenius)  # the share of W = 0 is NaN
    return _spectra(trace, square, frobenius**2, scales(atlas))


def data_spectra(atlas: "Atlas") -> list[Spectrum]:
    """The same with Sigma = Cov(x_{t+1} - x_t): tr(W Sigma) is the mean product of the steps of query and key."""
    arrays = atlas.group("pairs")
    group = arrays.sizes["head"] // arrays.sizes["kv_head"]
    crossed, queries = arrays["step_kq"].to_numpy(), arrays["step_q"].to_numpy()
    keys = np.repeat(arrays["step_k"].to_numpy(), group, axis=1)
    trace = np.trace(crossed, axis1=-2, axis2=-1)
    square = (crossed * crossed.swapaxes(-1, -2)).sum((-2, -1))
    return _spectra(trace, square, (queries * keys).sum((-2, -1)), scales(atlas))


def _spectra(
    trace: Float[np.ndarray, "layer head"],
    square: Float[np.ndarray, "layer head"],
    frobenius: Float[np.ndarray, "layer head"],
    scale: Float[np.ndarray, "layer head"],
) -> list[Spectrum]:
    numbers = (values.reshape(-1).tolist() for values in (trace, square, frobenius, 1 / scale))
    return [Spectrum(t, s, f, lam) for t, s, f, lam in zip(*numbers, strict=True)]


def propagation_table(atlas: "Atlas") -> pd.DataFrame:
    """rho by place (oldest key 0 to newest 1) of every head: observed, and predicted for a random walk.

    `predicted` uses the weights alone, `predicted_data` the measured Sigma; both use the exact formula for as many keys
    as the observed rows had. Causal heads only: the formula is about the last token.
    """
    if not atlas.has("attention") or "rho" not in atlas.group("attention"):
        raise ArmillaryError("this atlas has no observed propagation", advice="scan with the stream 'attention'")
    if not atlas.has("spectral"):
        raise ArmillaryError(f"propagation cannot be predicted: {atlas.anatomy.missing}")
    curves = rho_curves(atlas)
    layers, heads, count = curves["observed"].shape
    layer, head, place = np.meshgrid(np.arange(layers), np.arange(heads), places(count), indexing="ij")
    columns = {"layer": layer, "head": head, "place": place, **curves}
    return pd.DataFrame({name: values.ravel() for name, values in columns.items()})


def rho_curves(atlas: "Atlas") -> dict[str, Float[np.ndarray, "layer head place"]]:
    """rho by place: observed (NaN in heads that are not causal), predicted and predicted_data where available."""
    attention = atlas.group("attention")
    rho, keys = attention["rho"].to_numpy(), attention["rho_keys"].to_numpy().reshape(-1)
    causal = np.array([bool(layer.causal) for layer in atlas.anatomy.layers])
    curves = {"observed": np.where(causal[:, None, None], rho, np.nan)}
    spectra = {"predicted": weight_spectra(atlas)} if atlas.has("spectral") else {}
    if atlas.has("pairs"):
        spectra["predicted_data"] = data_spectra(atlas)
    middles = places(rho.shape[-1])
    for name, by_head in spectra.items():
        rows = [
            _at_places(exact_rho(spectrum, max(2, round(count))), middles) if np.isfinite(count) else middles * np.nan
            for spectrum, count in zip(by_head, keys.tolist(), strict=True)
        ]
        curves[name] = np.array(rows).reshape(rho.shape)
    return curves


def layer_curve(table: pd.DataFrame, layer: int, name: str) -> pd.Series:
    """A column of propagation_table by place, mean over the heads of a layer."""
    return table[table["layer"] == layer].groupby("place")[name].mean()


def fit_columns(atlas: "Atlas") -> pd.DataFrame:
    """rho_fit: correlation over places of the observed rho with the predicted one; rho_error: root mean square of their
    difference; rho_chance: mean correlation with the predictions for the other heads, a baseline for rho_fit. The same
    with the measured Sigma as *_data.

    A correlation is missing where either curve is flat.
    """
    if not atlas.has("spectral") or not atlas.has("attention") or "rho" not in atlas.group("attention"):
        return pd.DataFrame()
    curves = {name: values.reshape(-1, values.shape[-1]) for name, values in rho_curves(atlas).items()}
    observed = curves.pop("observed")
    if not np.isfinite(observed).any():
        return pd.DataFrame()
    columns: dict[str, Any] = {}
    for name, predicted in curves.items():
        suffix = name.removeprefix("predicted")
        correlations = _standard(observed) @ _standard(predicted).T / observed.shape[-1]
        own = np.diagonal(correlations)
        others = np.where(np.eye(len(correlations), dtype=bool), np.nan, correlations)
        known = np.isfinite(others)
        total, count = np.where(known, others, 0.0).sum(1), known.sum(1)
        columns |= {
            f"rho_fit{suffix}": own,
            f"rho_chance{suffix}": np.divide(total, count, out=np.full(len(own), np.nan), where=count > 0),
            f"rho_error{suffix}": np.sqrt(np.square(observed - predicted).mean(1)),
        }
    return pd.DataFrame(columns)


FLAT = 1e-6
"""Curves with a standard deviation below this are flat: their correlation is NaN."""


def _standard(curves: Float[np.ndarray, "head place"]) -> Float[np.ndarray, "head place"]:
    """Curves minus their mean, over their standard deviation; NaN for flat curves."""
    centered = curves - curves.mean(1, keepdims=True)
    spread = np.sqrt(np.square(centered).mean(1, keepdims=True))
    return np.asarray(np.divide(centered, spread, out=np.full_like(centered, np.nan), where=spread > FLAT))


def fit_sentence(atlas: "Atlas") -> str:
    """How well rho is predicted, in a sentence; '' where nothing was observed."""
    fits = fit_columns(atlas)
    if fits.empty:
        return ""
    curves = rho_curves(atlas)
    known = np.isfinite(curves["observed"])
    observed = curves["observed"][known]
    total = np.square(observed - observed.mean()).sum()
    clauses = []
    for name, source in (("predicted", "from the weights"), ("predicted_data", "with the measured steps of x")):
        if name not in curves:
            continue
        suffix = name.removeprefix("predicted")
        fit, chance = (fits[f"rho_{part}{suffix}"].mean() for part in ("fit", "chance"))
        explained = 1 - np.square(observed - curves[name][known]).sum() / total if total > 0 else np.nan
        number = "not defined" if np.isnan(fit) else f"{fit:.2f} ({chance:.2f} with the predictions for other heads)"
        clauses.append(
            f"{source} the correlation over places is {number}, R² over all heads and places {explained:.2f}"
        )
    verdict = "; ".join(clauses)
    return f"How well rho is predicted, mean over heads: {verdict}. An R² below 0 is worse than their common mean."


def places(count: int) -> Float[np.ndarray, "n"]:
    """The centers of `count` equal parts of a text, with the oldest key at 0 and the newest at 1."""
    return np.asarray((np.arange(count) + 0.5) / count)


def _at_places(rho: Float[np.ndarray, "t"], places: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    return np.asarray(np.interp(places, (np.arange(len(rho)) + 0.5) / len(rho), rho))


def layer_table(atlas: "Atlas") -> pd.DataFrame:
    """Per layer: entropy, its minimum, rank-one distances of the stream and of the heads' outputs, number of heads in
    each regime."""
    heads = atlas.heads
    rows = []
    for layer, part in heads.groupby("layer"):
        row: dict[str, Any] = {"layer": int(str(layer))}
        means = ("xi", "eta", "rho_fit", "rho_chance", "rho_error", "entropy", "least_entropy")
        row |= {name: part[name].astype(float).mean() for name in means if name in part}
        if "rank_one_distance" in part:
            row["output_rank_one_distance"] = part["rank_one_distance"].mean()
        counts = part["regime"].value_counts()
        row |= {regime: int(counts.get(regime, 0)) for regime in ("late", "middle", "early", "uniform", "vanishing")}
        stream = atlas.layers.loc[row["layer"]]
        row |= {"rank_one_distance": stream["rank_one_distance"]} if "rank_one_distance" in stream else {}
        rows.append(row)
    return pd.DataFrame(rows)
