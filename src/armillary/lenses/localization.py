"""Where a head's attention can pass a signal: the spectrum's mean and scale, its regime, rho predicted and observed."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from armillary.errors import ArmillaryError
from armillary.theory.localization import Spectrum, exact_rho, spectrum_regime

if TYPE_CHECKING:
    from armillary.atlas import Atlas


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """xi, eta, r and regime of every head from its weights (Sigma = I), and with the measured Sigma as *_data.

    xi = tr(W)/sqrt(tr(W^2)), eta = scale sqrt(tr(W^2)) with W = W_QK Sigma; missing where tr(W^2) < 0, which a W that
    is not symmetric can have. Sigma is the covariance of x_{t+1} - x_t (an atlas with the stream 'lags'). Rotary heads
    are taken at distance 0. least_entropy: what logits of the observed norms could have at least.
    """
    if not atlas.has("spectral"):
        return pd.DataFrame()
    columns: dict[str, Any] = {}
    measured = {"": weight_spectra(atlas), **({"_data": data_spectra(atlas)} if atlas.has("pairs") else {})}
    for suffix, spectra in measured.items():
        columns |= {
            f"xi{suffix}": [spectrum.xi for spectrum in spectra],
            f"eta{suffix}": [spectrum.eta for spectrum in spectra],
            f"r{suffix}": [spectrum.r for spectrum in spectra],
            f"regime{suffix}": [spectrum_regime(spectrum) for spectrum in spectra],
        }
    table = pd.DataFrame(columns)
    if "attention" in atlas.settings["streams"] and "least_entropy" in atlas.group("attention"):
        least = atlas.group("attention")["least_entropy"].to_numpy().reshape(-1)
        sinks = [layer["sinks"] for layer in atlas.attrs["anatomy"]["layers"] for _ in range(layer["heads"])]
        table["least_entropy"] = np.where(sinks, np.nan, least)
    return table


def scales(atlas: "Atlas") -> Float[np.ndarray, "layer head"]:
    """1 / lambda of every head: the scale of its logits."""
    layers = atlas.attrs["anatomy"]["layers"]
    return np.array([[layer["scale"]] * layer["heads"] for layer in layers], dtype=np.float64)


def weight_spectra(atlas: "Atlas") -> list[Spectrum]:
    """The spectrum of every head with Sigma = I, in the order of the heads table."""
    found = atlas.group("spectral")
    trace, frobenius, share = (found[f"qk_{name}"].to_numpy() for name in ("trace", "fro", "symmetric_share"))
    square = (2 * share - 1) * frobenius**2
    return _spectra(trace, square, frobenius**2, scales(atlas))


def data_spectra(atlas: "Atlas") -> list[Spectrum]:
    """The same with Sigma = Cov(x_{t+1} - x_t): tr(W Sigma) is the mean product of a query's step with a key's step."""
    found = atlas.group("pairs")
    group = found.sizes["head"] // found.sizes["kv_head"]
    crossed, queries = found["step_kq"].to_numpy(), found["step_q"].to_numpy()
    keys = np.repeat(found["step_k"].to_numpy(), group, axis=1)
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

    `predicted` uses the weights alone, `predicted_data` the measured Sigma; both the exact law of a text of as many
    keys as the rows had. Causal heads only: the law asks about the last token.
    """
    if not atlas.has("attention") or "rho" not in atlas.group("attention"):
        raise ArmillaryError("this atlas has no observed propagation: scan with the stream 'attention'")
    if not atlas.has("spectral"):
        raise ArmillaryError(f"propagation cannot be predicted: {atlas.attrs['anatomy']['missing']}")
    found = atlas.group("attention")
    observed, keys = found["rho"].to_numpy(), found["rho_keys"].to_numpy()
    places = (np.arange(observed.shape[-1]) + 0.5) / observed.shape[-1]
    spectra = {"predicted": weight_spectra(atlas)}
    if atlas.has("pairs"):
        spectra["predicted_data"] = data_spectra(atlas)
    rows = []
    for i, (layer, head) in enumerate(np.ndindex(observed.shape[:2])):
        causal = atlas.attrs["anatomy"]["layers"][layer]["causal"]
        count = max(2, round(float(keys[layer, head])))
        curves = {name: _at_places(exact_rho(each[i], count), places) for name, each in spectra.items()}
        for at, place in enumerate(places):
            seen = observed[layer, head, at] if causal else np.nan
            predicted = {name: float(curve[at]) for name, curve in curves.items()}
            rows.append({"layer": layer, "head": head, "place": place, "observed": seen, **predicted})
    return pd.DataFrame(rows)


def _at_places(rho: Float[np.ndarray, "t"], places: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    return np.asarray(np.interp(places, (np.arange(len(rho)) + 0.5) / len(rho), rho))


def layer_table(atlas: "Atlas") -> pd.DataFrame:
    """Per layer: entropy, its minimum, rank-one distances of the stream and of the heads' outputs, regimes counted."""
    heads = atlas.heads
    rows = []
    for layer, part in heads.groupby("layer"):
        row: dict[str, Any] = {"layer": int(str(layer))}
        row |= {name: part[name].mean() for name in ("xi", "eta", "entropy", "least_entropy") if name in part}
        if "rank_one_distance" in part:
            row["output_rank_one_distance"] = part["rank_one_distance"].mean()
        counts = part["regime"].value_counts()
        row |= {regime: int(counts.get(regime, 0)) for regime in ("late", "middle", "early", "uniform", "vanishing")}
        stream = atlas.layers.loc[row["layer"]]
        row |= {"rank_one_distance": stream["rank_one_distance"]} if "rank_one_distance" in stream else {}
        rows.append(row)
    return pd.DataFrame(rows)
