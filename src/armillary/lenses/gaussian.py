"""The attention input as a Gaussian process: its shape, what tokens tell of each other, and the logits it predicts."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from armillary.errors import ArmillaryError
from armillary.theory import bilinear
from armillary.theory.gaussian import effective_rank, entropy, isotropy, mutual_information, shrunk

if TYPE_CHECKING:
    from armillary.atlas import Atlas

SHRINKAGE = 0.05
"""S -> (1 - a) S + a (tr S / d) I before determinants are taken: with few tokens S is nearly singular."""

COMPONENTS = 16
"""Mutual information is that of the projections on so many leading principal components."""


def layer_table(atlas: "Atlas", shrinkage: float = SHRINKAGE, components: int = COMPONENTS) -> pd.DataFrame:
    """A row for every layer's attention input x.

    radius, radius_spread: mean length of x and its standard deviation over it. effective_rank: of Cov(x); isotropy and
    entropy (nats): of the shrunk covariance. mi_1, mi_2, ...: mutual information in nats between tokens that far apart;
    mi_floor: what unrelated tokens would show with as many pairs. variance_fit: what share of the variances of the
    logits, over heads and lags from 1 on, the Gaussian formula explains (1 is all; below 0 it is worse than their
    mean); variance_fit_independent: the same without the covariance of query and key. self_variance_ratio: predicted
    over observed where a token meets itself, median over heads (a norm keeps x near a sphere, which a Gaussian does not
    know: expect more than 1). skewness, kurtosis: of the logits, mean over heads; 0 for a Gaussian. mixed_tokens:
    exp(entropy of attention), mean over heads. token_cosine, rank_one_distance: of the residual stream that it reads.
    """
    if not 0 <= shrinkage <= 1:
        raise ArmillaryError(f"shrinkage {shrinkage} is not known: it lies between 0 (none) and 1 (only the radius)")
    if components < 1:
        raise ArmillaryError(f"{components} components tell nothing: give 1 or more")
    covariances = atlas.group("input")
    if "covariance" not in covariances or "position_norm" not in covariances:
        raise ArmillaryError(
            "this atlas lacks the covariance or the norms of the attention input: scan with --streams "
            + ",".join(dict.fromkeys([*atlas.settings["streams"], "positions", "covariance"]))
        )
    rows = [_layer_row(atlas, layer, shrinkage, components) for layer in range(len(atlas.attrs["anatomy"]["layers"]))]
    table = pd.DataFrame(rows)
    if atlas.has("pairs"):
        fits = variance_fits(logit_predictions(atlas))
        table = table.merge(fits, on="layer", how="left")
    return table


def _layer_row(atlas: "Atlas", layer: int, shrinkage: float, components: int) -> dict[str, Any]:
    found = atlas.group("input").sel(layer=layer)
    skip = atlas.settings["skip"]
    covariance = found["covariance"].to_numpy()
    if not np.isfinite(covariance).all():  # a layer of another kind, without attention
        return {"layer": layer}
    norm, square = (found[f"position_{name}"].to_numpy()[skip:].mean() for name in ("norm", "norm_squared"))
    row: dict[str, Any] = {
        "layer": layer,
        "radius": norm,
        "radius_spread": np.sqrt(max(square - norm**2, 0.0)) / norm,
        "effective_rank": effective_rank(covariance),
        "isotropy": isotropy(shrunk(covariance, shrinkage)),
        "entropy": entropy(shrunk(covariance, shrinkage)),
    }
    if "lag_covariance" in found:
        parts = [found[f"lag_covariance{part}"].to_numpy() for part in ("_earlier", "_later", "")]
        for lag, *of_pair in zip(found["lag"].to_numpy(), *parts, strict=True):
            row[f"mi_{lag}"] = _information(of_pair[0], of_pair[1], of_pair[2], shrinkage, components)
        row["mi_floor"] = min(components, len(covariance)) ** 2 / (2 * float(found["lag_pairs"].to_numpy()[0]))
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
    """token_information, missing where too few pairs leave no estimate."""
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
    """Mutual information of two tokens with these covariances, on the leading components of both together.

    All three must come from the same pairs. Estimated from n pairs, unrelated tokens have components^2 / (2 n) nats.
    """
    leading = np.linalg.eigh(earlier + later)[1][:, ::-1][:, :components]
    first, second, between = (leading.T @ matrix @ leading for matrix in (earlier, later, crossed))
    joint = shrunk(np.block([[first, between], [between.T, second]]), shrinkage)
    n = len(first)
    return mutual_information(joint[:n, :n], joint[n:, n:], joint[:n, n:])


def logit_predictions(atlas: "Atlas") -> pd.DataFrame:
    """scale * q.k of every head at lags 0, 1, 2, 4, ...: observed moments beside those of jointly Gaussian q and k.

    mean (observed) and predicted_mean agree to rounding whatever the law of q and k: the formula is an identity.
    variance needs Gaussianity (LEDGER T6.3); independent_variance leaves out the covariance of query and key.
    """
    if not atlas.has("pairs"):
        missing = atlas.attrs["anatomy"]["missing"]
        if missing:
            raise ArmillaryError(f"the logits of this model cannot be predicted: {missing}")
        streams = ",".join(dict.fromkeys([*atlas.settings["streams"], "lags"]))
        raise ArmillaryError(f"this atlas has no moments of q and k by lag: scan with --streams {streams}")
    found = atlas.group("pairs")
    group = found.sizes["head"] // found.sizes["kv_head"]
    mean_q, cov_q = found["mean_q"].to_numpy(), found["covariance_q"].to_numpy()
    mean_k = np.repeat(found["mean_k"].to_numpy(), group, axis=2)
    cov_k = np.repeat(found["covariance_k"].to_numpy(), group, axis=2)
    cov_kq = found["covariance_kq"].to_numpy()
    scale = found["scale"].to_numpy()[:, None, None]
    columns = {
        "mean": found["logit_mean"].to_numpy(),
        "predicted_mean": scale * bilinear.product_mean(mean_q, mean_k, cov_kq),
        "variance": found["logit_variance"].to_numpy(),
        "predicted_variance": scale**2 * bilinear.product_variance(mean_q, mean_k, cov_q, cov_k, cov_kq),
        "independent_variance": scale**2
        * bilinear.product_variance(mean_q, mean_k, cov_q, cov_k, np.zeros_like(cov_kq)),
        "skewness": found["logit_skewness"].to_numpy(),
        "kurtosis": found["logit_kurtosis"].to_numpy(),
    }
    layers, lags, heads = np.meshgrid(
        np.arange(found.sizes["layer"]), found["lag"].to_numpy(), np.arange(found.sizes["head"]), indexing="ij"
    )
    table = pd.DataFrame({"layer": layers.ravel(), "head": heads.ravel(), "lag": lags.ravel()})
    table = table.assign(**{name: values.ravel() for name, values in columns.items()})
    return table.sort_values(["layer", "head", "lag"], ignore_index=True)


def variance_fits(predictions: pd.DataFrame) -> pd.DataFrame:
    """Per layer, 1 - sum (observed - predicted)^2 / sum (observed - mean)^2 of the logits' variances at lags >= 1."""
    rows = []
    for layer, all_lags in predictions.groupby("layer"):
        own, part = all_lags[all_lags["lag"] == 0], all_lags[all_lags["lag"] > 0]
        observed = part["variance"].to_numpy()
        total = np.square(observed - observed.mean()).sum()
        missed = {
            name: np.square(observed - part[column].to_numpy()).sum()
            for name, column in (
                ("variance_fit", "predicted_variance"),
                ("variance_fit_independent", "independent_variance"),
            )
        }
        ratio = float((own["predicted_variance"] / own["variance"]).median())
        fits = {name: 1 - left / total if total > 0 else np.nan for name, left in missed.items()}
        rows.append({"layer": layer, **fits, "self_variance_ratio": ratio})
    return pd.DataFrame(rows)


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """gaussian_ratio of every head: variance of the logits that Gaussian q and k would have, over the observed one.

    Sums over lags from 1 on.
    """
    if not atlas.has("pairs"):
        return pd.DataFrame()
    apart = logit_predictions(atlas).query("lag > 0")
    sums = apart.groupby(["layer", "head"], sort=True)[["variance", "predicted_variance"]].sum()
    return pd.DataFrame({"gaussian_ratio": (sums["predicted_variance"] / sums["variance"]).to_numpy()})
