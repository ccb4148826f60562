"""Columns of the tables that have a row for every layer: the attention input as a Gaussian, and where signals pass."""

from dataclasses import replace
from functools import partial

from armillary.atlas.columns.column import Column, Family, Set, Table
from armillary.atlas.columns.heads.attention import ATTENTION
from armillary.atlas.columns.heads.weights import LOCALIZATION as OF_HEADS
from armillary.atlas.columns.layers import LAYERS

_gaussian = partial(Column, table="gaussian", lens="lenses.gaussian", measure=False)
_localization = partial(Column, table="localization", lens="lenses.localization", measure=False)
_OF_STREAM = {column.name: column for column in LAYERS.columns if isinstance(column, Column)}
_OF_HEADS = {column.name: column for column in (*ATTENTION, *OF_HEADS)}

USUAL_LAGS = ("1", "4", "16")


def _information(lag: str) -> Column:
    """mi_1, mi_2, ...: the lags depend on how long the scanned sequences are."""
    apart = "1 token" if lag == "1" else f"{lag} tokens"
    return _gaussian(
        f"mi_{lag}",
        f"Mutual information in nats between attention inputs {apart} apart.",
        f"I(x_t; x_{{t+{lag}}})",
        unit="nats",
        sets=("usual",) if lag in USUAL_LAGS else (),
        explained="T2.2g",
    )


def _of_stream(name: str, table: str, lens: str, *sets: Set) -> Column:
    """A column of the layers table, of the residual stream that the layer reads."""
    return replace(_OF_STREAM[name], table=table, lens=lens, sets=sets, measure=False)


def mean_over(heads: str, column: Column, table: str, lens: str) -> Column:
    """The mean of a column of the heads table."""
    words = f"Mean over {heads}: {column.words}"
    return replace(column, table=table, lens=lens, words=words, kind="number", sets=(), measure=False, contract=False)


GAUSSIAN = Table(
    "gaussian",
    "A row for every layer's attention input x, as a Gaussian process over positions.",
    (
        _gaussian("layer", "The layer, counted from 0.", kind="whole", sets=("usual",)),
        _gaussian("radius", "Mean length of the attention input x.", r"\langle \|x\| \rangle", sets=("usual",)),
        _gaussian("radius_spread", "Standard deviation of that length over its mean: 0 is a sphere."),
        _gaussian(
            "effective_rank",
            "Effective rank of the covariance of x.",
            r"\exp(-\sum_i p_i \log p_i)",
            sets=("usual",),
        ),
        _gaussian(
            "isotropy",
            "How similar the variances of all directions of x are, from the shrunk covariance: 1 if all are equal.",
            sets=("usual",),
        ),
        _gaussian(
            "entropy",
            "Entropy in nats of a Gaussian with the shrunk covariance of x.",
            unit="nats",
            sets=("usual",),
            explained="T2.2b",
        ),
        Family(r"mi_(\d+)", _information),
        _gaussian(
            "mi_floor",
            "Estimated mutual information of independent tokens with as many pairs.",
            r"k^2 / (2n)",
            unit="nats",
            sets=("usual",),
        ),
        _gaussian(
            "variance_fit",
            "Share of the variances of the logits, over heads and distances from 1 on, that Gaussian q and k explain.",
            unit="share",
            sets=("usual",),
            explained="T6.3",
        ),
        _gaussian(
            "variance_fit_independent",
            "variance_fit without the covariance of query and key.",
            unit="share",
            explained="T6.3",
        ),
        _gaussian(
            "self_variance_ratio",
            "Predicted over observed variance of the logit of a token with itself, median over heads.",
            sets=("usual",),
            explained="T6.2.4",
        ),
        _gaussian("skewness", "Skewness of the logits, mean over heads; 0 for a Gaussian."),
        _gaussian(
            "kurtosis",
            "Excess kurtosis of the logits, mean over heads; 0 for a Gaussian.",
            sets=("usual",),
            explained="T6.4",
        ),
        _gaussian(
            "mixed_tokens",
            "Effective number of tokens that attention mixes, mean over heads.",
            r"\exp(H)",
            unit="tokens",
        ),
        _of_stream("token_cosine", "gaussian", "lenses.gaussian", "usual"),
        _of_stream("rank_one_distance", "gaussian", "lenses.gaussian"),
    ),
)

LOCALIZATION = Table(
    "localization",
    "A row for every layer: where its heads can propagate a signal.",
    (
        _localization("layer", "The layer, counted from 0.", kind="whole"),
        *(
            mean_over("the layer's heads", _OF_HEADS[name], "localization", "lenses.localization")
            for name in ("xi", "eta", "rho_fit", "rho_chance", "rho_error")
        ),
        _localization("entropy", "Entropy of attention in nats, mean over the layer's heads.", unit="nats"),
        _localization(
            "least_entropy",
            "The lowest entropy possible with logits of the observed norms, mean over the layer's heads.",
            unit="nats",
            explained="L26",
        ),
        _localization(
            "output_rank_one_distance", "rank_one_distance of the heads' outputs, mean over the layer's heads."
        ),
        *(
            _localization(
                regime, f"How many heads of the layer are in the regime '{regime}'.", kind="whole", unit="heads"
            )
            for regime in ("late", "middle", "early", "uniform", "vanishing")
        ),
        _of_stream("rank_one_distance", "localization", "lenses.localization"),
    ),
)
