"""Columns of the heads table from the weights: spectra of W_q W_k' and W_v W_o, and signal propagation."""

from dataclasses import replace
from functools import partial

from armillary.atlas.columns.column import Column

_spectral = partial(Column, table="heads", lens="lenses.spectral")
_localization = partial(Column, table="heads", lens="lenses.localization")


def with_random(*columns: Column) -> tuple[Column, ...]:
    """Each column, and after it the same for Gaussian weights; of these, only stable ranks are in the same sets."""
    return tuple(column for trained in columns for column in (trained, _random(trained)))


def _random(column: Column) -> Column:
    shown = column.sets if column.name.endswith("_stable_rank") else ()
    words = f"The same for Gaussian weights of the same shape and norm. {column.words}"
    return replace(column, name=f"{column.name}_random", words=words, sets=shown, contract=False)


_SYMMETRIC = r"(1 + \operatorname{tr}(W^2) / \|W\|_F^2) / 2"

QUERY_KEY = with_random(
    _spectral(
        "qk_trace",
        "Trace of the head's query-key matrix, from the raw weights; q/k norms, where a model has them, are left out.",
        r"\operatorname{tr} W_q W_k^\top",
        sets=("weights", "spectra"),
        contract=True,
        explained="T6.17",
    ),
    _spectral(
        "qk_fro",
        "Frobenius norm of the query-key matrix.",
        r"\|W_q W_k^\top\|_F",
        sets=("weights", "spectra"),
        contract=True,
    ),
    _spectral(
        "qk_spec",
        "Largest singular value of the query-key matrix.",
        r"\|W_q W_k^\top\|_2",
        sets=("weights", "spectra"),
        contract=True,
    ),
    _spectral(
        "qk_stable_rank",
        "Stable rank of the query-key matrix.",
        r"\|W\|_F^2 / \|W\|_2^2",
        sets=("weights", "spectra"),
        contract=True,
    ),
    _spectral(
        "qk_entropy_rank",
        "Effective number of directions of the query-key matrix: exp of the entropy of its squared singular values.",
        r"\exp(-\sum_i p_i \log p_i),\; p_i = \sigma_i^2 / \|W\|_F^2",
        sets=("spectra",),
    ),
    _spectral(
        "qk_symmetric_share",
        "Share of the query-key matrix in its symmetric part; 1/2 without structure.",
        _SYMMETRIC,
        unit="share",
        sets=("weights", "spectra"),
    ),
    _spectral(
        "qk_align_z",
        "How far queries and keys use the same directions; standard normal when their weights are unrelated.",
        r"\operatorname{tr}(W_q^\top W_k) \sqrt{d e} / (\|W_q\|_F \|W_k\|_F)",
        unit="standard deviations",
        sets=("weights", "spectra"),
        contract=True,
        explained="T6.34",
    ),
)

_EFFECTIVE = (
    "gains of the q/k norms folded into the weights, times qk_norm_scale. Only where q and k are normalized; raw qk_ "
    "columns leave the norms out."
)

EFFECTIVE = (
    *(
        _spectral(
            f"qk_effective_{name}",
            f"{words} of the effective query-key matrix: {_EFFECTIVE}",
            formula,
            unit=unit,
            sets=() if name == "entropy_rank" else ("spectra",),
        )
        for name, words, formula, unit in (
            ("trace", "Trace", r"\operatorname{tr} W", ""),
            ("fro", "Frobenius norm", r"\|W\|_F,\; W = s_q s_k\, W_q g_q (W_k g_k)^\top", ""),
            ("spec", "Largest singular value", r"\|W\|_2", ""),
            ("stable_rank", "Stable rank", r"\|W\|_F^2 / \|W\|_2^2", ""),
            ("entropy_rank", "Entropy rank", r"\exp(-\sum_i p_i \log p_i)", ""),
            ("symmetric_share", "Symmetric share", _SYMMETRIC, "share"),
            (
                "align_z",
                "Alignment",
                r"\operatorname{tr}(W_q^\top W_k) \sqrt{d e} / (\|W_q\|_F \|W_k\|_F)",
                "standard deviations",
            ),
        )
    ),
    _spectral(
        "qk_norm_scale",
        "Factor by which the norms of q and k scale the product, besides the gains: mean of 1/rms of q times that of k "
        "over the text, or for an input of unit covariance if no text was read.",
        r"s_q s_k",
        sets=("spectra",),
    ),
)

VALUE_OUTPUT = with_random(
    _spectral(
        "ov_trace",
        "Trace of the head's value-output matrix: positive where it copies what it reads.",
        r"\operatorname{tr} W_v W_o",
        sets=("spectra",),
    ),
    _spectral("ov_fro", "Frobenius norm of the value-output matrix.", r"\|W_v W_o\|_F", sets=("weights", "spectra")),
    _spectral(
        "ov_spec",
        "Largest singular value of the value-output matrix.",
        r"\|W_v W_o\|_2",
        sets=("weights", "spectra"),
    ),
    _spectral(
        "ov_stable_rank",
        "Stable rank of the value-output matrix.",
        r"\|W\|_F^2 / \|W\|_2^2",
        sets=("weights", "spectra"),
    ),
    _spectral(
        "ov_entropy_rank",
        "Effective number of directions of the value-output matrix.",
        r"\exp(-\sum_i p_i \log p_i)",
        sets=("spectra",),
    ),
    _spectral(
        "ov_symmetric_share",
        "Share of the value-output matrix in its symmetric part; 1/2 without structure.",
        _SYMMETRIC,
        unit="share",
        sets=("spectra",),
    ),
)

_STEPS = "the measured covariance of the steps from token to token"


def _fits(suffix: str, source: str) -> tuple[Column, ...]:
    """How well the observed rho is predicted."""
    return (
        _localization(
            f"rho_fit{suffix}",
            f"Correlation over positions of the observed rho (which keys propagate a signal) with the predicted one"
            f"{source}.",
            unit="correlation",
            sets=("localization",),
            explained="L15",
        ),
        _localization(
            f"rho_chance{suffix}",
            "Mean correlation of the observed rho with the predictions for other heads: what rho_fit is by "
            f"chance{source}.",
            unit="correlation",
            sets=("localization",),
        ),
        _localization(
            f"rho_error{suffix}",
            f"Root mean square of observed minus predicted rho over places{source}.",
            sets=("localization",),
        ),
    )


LOCALIZATION = (
    _localization(
        "xi",
        "Mean over scale of the eigenvalues of the query-key matrix (the effective one, for inputs of unit covariance, "
        "where q and k are normalized); missing where tr(W²) is not positive.",
        r"\xi = \operatorname{tr} W / \sqrt{\operatorname{tr} W^2}",
        sets=("localization",),
        contract=True,
        explained="L13",
    ),
    _localization(
        "eta",
        "Scale of the eigenvalues of the query-key matrix in units of the logits; of the effective one as for xi.",
        r"\eta = \sqrt{\operatorname{tr} W^2} / \lambda",
        unit="logits",
        sets=("localization",),
        contract=True,
        explained="L19",
    ),
    _localization(
        "r",
        "Mean of the eigenvalues in units of the logits; attention localizes beyond 2 either way.",
        r"r = \operatorname{tr} W / \lambda",
        unit="logits",
        sets=("localization",),
        explained="L21",
    ),
    _localization(
        "regime",
        "Which keys can propagate a signal, from xi and eta: late, middle, early, uniform, or vanishing; missing where "
        "they are.",
        kind="word",
        sets=("usual", "overview", "localization"),
        contract=True,
        explained="L21",
    ),
    *_fits("", ""),
    _localization(
        "xi_data",
        f"xi with {_STEPS} in place of the identity.",
        r"W = W_{QK} \Sigma",
        sets=("localization",),
        explained="L17",
    ),
    _localization(
        "eta_data", f"eta with {_STEPS}.", r"W = W_{QK} \Sigma", unit="logits", sets=("localization",), explained="L17"
    ),
    _localization(
        "r_data", f"r with {_STEPS}.", r"W = W_{QK} \Sigma", unit="logits", sets=("localization",), explained="L17"
    ),
    _localization("regime_data", f"The regime with {_STEPS}.", kind="word", sets=("localization",), explained="L17"),
    *_fits("_data", f", with {_STEPS}"),
    _localization(
        "least_entropy",
        "The lowest entropy possible with logits of the observed norms.",
        unit="nats",
        sets=("localization",),
        explained="L26",
    ),
)
