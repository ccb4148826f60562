"""The attention input x as a Gaussian process: its covariance, mutual information of tokens, predicted logits."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from armillary.errors import ArmillaryError
from armillary.theory import bilinear
from armillary.theory.gaussian import effective_rank, entropy, isotropy, mutual_information, shrunk

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

SHRINKAGE = 0.05
"""a in S -> (1 - a) S + a (tr S / d) I, applied before determinants: with few tokens S is nearly singular."""

COMPONENTS = 16
"""Mutual information is computed on this many leading principal components."""


def layer_table(atlas: "Atlas", shrinkage: float = SHRINKAGE, components: int = COMPONENTS) -> pd.DataFrame:
    """A row for every layer's attention input x.

    radius, radius_spread: mean of |x|, and its standard deviation over that mean. effective_rank: of Cov(x); isotropy
    and entropy (nats): of the shrunk covariance. mi_1, mi_2, ...: mutual information in nats between tokens at this
    lag; mi_floor: its estimate for independent tokens with as many pairs. variance_fit: R^2 of the Gaussian formula for
    the variances of the logits, over heads and lags >= 1 (below 0: worse than their mean); variance_fit_independent:
    the same without the covariance of query and key. self_variance_ratio: predicted over observed variance at lag 0,
    median over heads (expect more than 1: a norm keeps x near a sphere, a Gaussian is not bounded to one). skewness,
    kurtosis: of the logits, mean over heads; 0 for a Gaussian. mixed_tokens: exp(entropy of attention), mean over
    heads. token_cosine, rank_one_distance: of the residual stream at this layer's input.
    """
    if not 0 <= shrinkage <= 1:
        raise ArmillaryError(
            f"`shrinkage={shrinkage}` is not between 0 (none) and 1 (a multiple of the identity)",
            given=shrinkage,
            expected="0 to 1",
        )
    if components < 1:
        raise ArmillaryError(
            f"`components={components}` is not positive",
            advice="give 1 or more",
            given=components,
            expected="1 or more",
        )
    covariances = atlas.group("input")
    if "covariance" not in covariances or "position_norm" not in covariances:
        raise ArmillaryError(
            "this atlas lacks the covariance or the norms of the attention input: scan with `streams="
            + ",".join(dict.fromkeys([*atlas.settings["streams"], "positions", "covariance"]))
            + "`"
        )
    rows = [_layer_row(atlas, layer, shrinkage, components) for layer in range(len(atlas.anatomy.layers))]
    table = pd.DataFrame(rows)
    if atlas.has("pairs"):
        fits = variance_fits(logit_predictions(atlas))
        table = table.merge(fits, on="layer", how="left")
    return table


def _layer_row(atlas: "Atlas", layer: int, shrinkage: float, components: int) -> dict[str, Any]:
    arrays = atlas.group("input").sel(layer=layer)
    skip = atlas.settings["skip"]
    covariance = arrays["covariance"].to_numpy()
    if not np.isfinite(covariance).all():  # a layer without attention
        return {"layer": layer}
    norm, square = (arrays[f"position_{name}"].to_numpy()[skip:].mean() for name in ("norm", "norm_squared"))
    row: dict[str, Any] = {
        "layer": layer,
        "radius": norm,
        "radius_spread": np.sqrt(max(square - norm**2, 0.0)) / norm,
        "effective_rank": effective_rank(covariance),
        "isotropy": isotropy(shrunk(covariance, shrinkage)),
        "entropy": entropy(shrunk(covariance, shrinkage)),
    }
    if "lag_covariance" in arrays:
        parts = [arrays[f"lag_covariance{part}"].to_numpy() for part in ("_earlier", "_later", "")]
        for lag, *of_pair in zip(arrays["lag"].to_numpy(), *parts, strict=True):
            row[f"mi_{lag}"] = _information(of_pair[0], of_pair[1], of_pair[2], shrinkage, components)
        row["mi_floor"] = min(components, len(covariance)) ** 2 / (2 * float(arrays["lag_pairs"].to_numpy()[0]))
    heads = atlas.heads[atlas.heads["layer"] == layer]
    for name, column in (("skewness", "logit_skewness"), ("kurtosis", "logit_kurtosis"), ("mixed_tokens", None)):
        if column is None and "entropy" in heads:
            row[name] = float(np.exp(heads["entropy"]).mean())
        elif column in heads:
            row[name] = float(heads[column].mean())
    stream = atlas.layers.loc[layer]
    row |= {name: stream[name] for name in ("token_cosine", "rank_one_distance") if name in stream}
    return row


def _information(
    earlier: Float[np.ndarray, "d d"],
    later: Float[np.ndarray, "d d"],
    crossed: Float[np.ndarray, "d d"],
    shrinkage: float,
    components: int,
) -> float:
    """token_information, NaN where there are too few pairs for an estimate."""
    try:
        return token_information(earlier, later, crossed, shrinkage, components)
    except ArmillaryError:
        return float("nan")


def token_information(
    earlier: Float[np.ndarray, "d d"],
    later: Float[np.ndarray, "d d"],
    crossed: Float[np.ndarray, "d d"],
    shrinkage: float,
    components: int,
) -> float:
    """Mutual information of two tokens with these covariances, on the leading components of their sum.

    All three must come from the same pairs. Independent tokens estimate at components^2 / (2 n) nats from n pairs.
    """
    leading = np.linalg.eigh(earlier + later)[1][:, ::-1][:, :components]
    first, second, between = (leading.T @ matrix @ leading for matrix in (earlier, later, crossed))
    joint = shrunk(np.block([[first, between], [between.T, second]]), shrinkage)
    n = len(first)
    return mutual_information(joint[:n, :n], joint[n:, n:], joint[:n, n:])


def logit_predictions(atlas: "Atlas") -> pd.DataFrame:
    """scale * q.k of every head at lags 0, 1, 2, 4, ...: observed moments, and those of jointly Gaussian q and k.

    mean (observed) and predicted_mean agree to rounding for any distribution of q and k: the formula is an identity.
    predicted_variance assumes Gaussianity (`armillary theory T6.3`); independent_variance also sets the covariance of
    query and key to zero.
    """
    if not atlas.has("pairs"):
        missing = atlas.anatomy.missing
        if missing:
            raise ArmillaryError(f"the logits of this model cannot be predicted: {missing}")
        streams = ",".join(dict.fromkeys([*atlas.settings["streams"], "lags"]))
        raise ArmillaryError("this atlas has no moments of q and k by lag", advice=f"scan with `streams={streams}`")
    arrays = atlas.group("pairs")
    group = arrays.sizes["head"] // arrays.sizes["kv_head"]
    mean_q, cov_q = arrays["mean_q"].to_numpy(), arrays["covariance_q"].to_numpy()
    mean_k = np.repeat(arrays["mean_k"].to_numpy(), group, axis=2)
    cov_k = np.repeat(arrays["covariance_k"].to_numpy(), group, axis=2)
    cov_kq = arrays["covariance_kq"].to_numpy()
    scale = arrays["scale"].to_numpy()[:, None, None]
    columns = {
        "mean": arrays["logit_mean"].to_numpy(),
        "predicted_mean": scale * bilinear.product_mean(mean_q, mean_k, cov_kq),
        "variance": arrays["logit_variance"].to_numpy(),
        "predicted_variance": scale**2 * bilinear.product_variance(mean_q, mean_k, cov_q, cov_k, cov_kq),
        "independent_variance": scale**2
        * bilinear.product_variance(mean_q, mean_k, cov_q, cov_k, np.zeros_like(cov_kq)),
        "skewness": arrays["logit_skewness"].to_numpy(),
        "kurtosis": arrays["logit_kurtosis"].to_numpy(),
    }
    layers, lags, heads = np.meshgrid(
        np.arange(arrays.sizes["layer"]), arrays["lag"].to_numpy(), np.arange(arrays.sizes["head"]), indexing="ij"
    )
    table = pd.DataFrame({"layer": layers.ravel(), "head": heads.ravel(), "lag": lags.ravel()})
    table = table.assign(**{name: values.ravel() for name, values in columns.items()})
    return table.sort_values(["layer", "head", "lag"], ignore_index=True)


def variance_fits(predictions: pd.DataFrame) -> pd.DataFrame:
    """Per layer, 1 - sum (observed - predicted)^2 / sum (observed - mean)^2 of the logits' variances at lags >= 1."""
    rows = []
    for layer, all_lags in predictions.groupby("layer"):
        same_token, apart = all_lags[all_lags["lag"] == 0], all_lags[all_lags["lag"] > 0]
        observed = apart["variance"].to_numpy()
        total = np.square(observed - observed.mean()).sum()
        unexplained = {
            name: np.square(observed - apart[column].to_numpy()).sum()
            for name, column in (
                ("variance_fit", "predicted_variance"),
                ("variance_fit_independent", "independent_variance"),
            )
        }
        ratio = float((same_token["predicted_variance"] / same_token["variance"]).median())
        fits = {name: 1 - squares / total if total > 0 else np.nan for name, squares in unexplained.items()}
        rows.append({"layer": layer, **fits, "self_variance_ratio": ratio})
    return pd.DataFrame(rows)


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """gaussian_ratio of every head: variance of the logits for Gaussian q and k over the observed one, lags >= 1."""
    if not atlas.has("pairs"):
        return pd.DataFrame()
    apart = logit_predictions(atlas).query("lag > 0")
    sums = apart.groupby(["layer", "head"], sort=True)[["variance", "predicted_variance"]].sum()
    return pd.DataFrame({"gaussian_ratio": (sums["predicted_variance"] / sums["variance"]).to_numpy()})
