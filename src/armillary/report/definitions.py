"""What every column of the tables means: a sentence, and the formula in TeX where one says more."""

import re
from dataclasses import dataclass

from armillary.report.head_definitions import HEADS


@dataclass(frozen=True)
class Definition:
    """A sentence and a formula (TeX, may be empty)."""

    words: str
    formula: str = ""


LAYERS: dict[str, tuple[str, str]] = {
    "layer": ("The point of the residual stream: 0 is after the embeddings, L after the last block.", ""),
    "pos_share": ("Share of the variance that depends on the position alone.", r"\|pos\|^2 / \|h - \mu\|^2"),
    "ctx_share": ("Share of the variance that depends on the sequence alone.", r"\|ctx\|^2 / \|h - \mu\|^2"),
    "resid_share": ("Share of the variance that is neither position's nor the sequence's alone.", ""),
    "stable_rank": ("Stable rank of the positional vectors.", r"\|P\|_F^2 / \|P\|_2^2"),
    "screenot_rank": ("How many directions of the positional vectors stand above noise (ScreeNOT, at most 20).", ""),
    "relative_norm": (
        "Spectral norm of the positional vectors over that of all centred vectors.",
        r"\sqrt{C}\,\|P\|_2 / \|M\|_2",
    ),
    "incoherence_mean": (
        "Mean cosine, without sign, between positional and context vectors.",
        r"\langle |\cos(pos_t, ctx_c)| \rangle",
    ),
    "incoherence_max": ("Largest cosine, without sign, between positional and context vectors.", ""),
    "incoherence_random_mean": ("incoherence_mean of as many random directions.", ""),
    "incoherence_random_max": ("incoherence_max of as many random directions.", ""),
    "intra_similarity": ("Mean cosine of context vectors of the same document.", ""),
    "inter_similarity": ("Mean cosine of context vectors of different documents.", ""),
    "mean_norm": ("Mean length of the vectors at kept positions.", ""),
    "first_norm": ("Mean length of the vectors at the first position, which often is an attention sink.", ""),
    "mu_norm": ("Length of the mean vector.", r"\|\mu\|"),
    "pos_norm": ("Mean length of the positional vectors.", ""),
    "ctx_norm": ("Mean length of the context vectors.", ""),
    "smoothness": (
        "Largest second difference of the positional Gram matrix: small is smooth.",
        r"\max |\Delta^{(1,1)} \tilde{G}|",
    ),
    "low_frequency_residual": ("What the 10 lowest frequencies leave of the positional Gram matrix.", ""),
    "low_frequency_bound": ("The bound that smoothness puts on that residual (Theorem 1, corrected).", ""),
    "token_cosine": ("Mean cosine between two tokens of a sequence.", ""),
    "rank_one_distance": HEADS["rank_one_distance"],
}
LAYERS |= {
    f"dct_energy_{k}": (
        f"Share of the positional Gram matrix in its {k} lowest frequencies: near 1 is smooth in position."
        if k > 1
        else "Share of the positional Gram matrix in its lowest frequency.",
        rf"r_{{{k}}} = \sum_{{i,j<{k}}} \hat{{G}}_{{ij}}^2 / \sum \hat{{G}}_{{ij}}^2",
    )
    for k in (1, 3, 5, 10)
}
"""Columns of the layers table."""

MATRICES: dict[str, tuple[str, str]] = {
    "layer": HEADS["layer"],
    "matrix": ("Which matrix of the layer: q, k, v, o, gate, up or down.", ""),
    "rows": ("Rows of the matrix as it is stored.", ""),
    "columns": ("Columns of the matrix as it is stored.", ""),
    "energy": ("Sum of the squared singular values.", r"\|W\|_F^2"),
    "largest": ("Largest singular value.", r"\|W\|_2"),
    "stable_rank": ("Stable rank of the matrix.", r"\|W\|_F^2 / \|W\|_2^2"),
    "entropy_rank": ("How many directions carry the matrix.", r"\exp(-\sum_i p_i \log p_i)"),
    "xavier_energy": ("Energy over that of a Xavier matrix of this shape.", ""),
    "xavier_largest": ("Largest singular value over that of a Xavier matrix of this shape.", ""),
    "mp_variance": ("Variance of the noise, fitted to the bulk by Marchenko-Pastur's median.", ""),
    "mp_distance": ("Largest distance between the spectrum's distribution and Marchenko-Pastur's.", r"\sup |F_n - F|"),
    "mp_edge": ("The squared singular value above which one counts as an outlier.", ""),
    "outliers": ("How many squared singular values lie above the edge.", ""),
    "outlier_energy": ("Share of the energy in the outliers.", ""),
}
"""Columns of the matrices table."""

LOCALIZED = ("xi", "eta", "rho_fit", "rho_chance", "rho_error")

LOCALIZATION: dict[str, tuple[str, str]] = {
    "layer": HEADS["layer"],
    **{name: (f"Mean over the layer's heads: {HEADS[name][0]}", HEADS[name][1]) for name in LOCALIZED},
    "entropy": ("Entropy of attention in nats, mean over the layer's heads.", ""),
    "least_entropy": ("The least entropy that the observed logits could have, mean over the layer's heads.", ""),
    "output_rank_one_distance": ("rank_one_distance of the heads' outputs, mean over the layer's heads.", ""),
    **{
        name: (f"How many heads of the layer are in the regime '{name}'.", "")
        for name in ("late", "middle", "early", "uniform", "vanishing")
    },
    "rank_one_distance": HEADS["rank_one_distance"],
}
"""Columns of the localization table."""

GAUSSIAN: dict[str, tuple[str, str]] = {
    "layer": HEADS["layer"],
    "radius": ("Mean length of the attention input x.", r"\langle \|x\| \rangle"),
    "radius_spread": ("Standard deviation of that length over its mean: 0 is a sphere.", ""),
    "effective_rank": ("Effective rank of the covariance of x.", r"\exp(-\sum_i p_i \log p_i)"),
    "isotropy": ("How alike all directions of x are, from the shrunk covariance: 1 is alike.", ""),
    "entropy": ("Entropy in nats of a Gaussian with the shrunk covariance of x.", ""),
    "mi_floor": ("Mutual information that unrelated tokens would show with as many pairs.", r"k^2 / (2n)"),
    "variance_fit": (
        "Share of the variances of the logits, over heads and distances from 1 on, that Gaussian q and k explain.",
        "",
    ),
    "variance_fit_independent": ("variance_fit without the covariance of query and key.", ""),
    "self_variance_ratio": ("Predicted over observed variance where a token meets itself, median over heads.", ""),
    "skewness": ("Skewness of the logits, mean over heads; 0 for a Gaussian.", ""),
    "kurtosis": ("Excess kurtosis of the logits, mean over heads; 0 for a Gaussian.", ""),
    "mixed_tokens": ("How many tokens attention effectively mixes, mean over heads.", r"\exp(H)"),
    "token_cosine": LAYERS["token_cosine"],
    "rank_one_distance": HEADS["rank_one_distance"],
}
"""Columns of the Gaussian table."""

BANDS: dict[str, tuple[str, str]] = {
    "layer": HEADS["layer"],
    "head": HEADS["head"],
    "kind": ("Whether the head's layer has a window or sees all tokens (global).", ""),
    "base": ("The base of the layer's rotary encoding; layers with another base have other frequencies.", ""),
    "frequency": ("The rotary frequency, 0 is the fastest of its layer.", ""),
    "radians": ("Radians that it turns per token.", r"g_f"),
    "turns": ("Whole circles that it turns within the scanned text.", r"N g_f / 2\pi"),
    "times": ("Length of q times length of k at this frequency, over the head's median.", r"|q_f||k_f|"),
    "share": ("Share of the head's logits by this frequency.", r"s_f"),
    "first_product": ("Mean contribution to the logit of the text's first key.", ""),
    "other_product": ("Mean contribution to the logits of the other keys.", ""),
    "stable_distance": ("Distance in tokens within which it turns less than a quarter circle.", r"\pi / (2 g_f)"),
}
"""Columns of the table of rotary bands."""

KINDS: dict[str, tuple[str, str]] = {
    "kind": ("Layers with a window, or global ones that see all tokens.", ""),
    "window": ("How many tokens a query sees at most.", ""),
    "base": ("The base of the rotary encoding.", r"g_f = \text{base}^{-2f/e}"),
    "layers": ("Which layers.", ""),
    "heads": ("How many heads they have.", ""),
    "induction_heads": ("How many of these heads are labelled induction.", ""),
    **{
        name: (f"Mean over the heads of these layers: {HEADS[name][0]}", HEADS[name][1])
        for name in (
            *("positional_share", "content_share", "mixed_share", "high_freq_share", "self_mass", "prev_mass"),
            *("first_mass", "mean_distance", "entropy_norm", "induction_score"),
        )
    },
}
"""Columns of the table of kinds of layers."""

AGREEMENT: dict[str, tuple[str, str]] = {
    "a": ("One measure.", ""),
    "b": ("The other measure.", ""),
    "expected": ("Whether the two should rise together (+) or one fall as the other rises (-).", ""),
    "heads": ("How many heads have both.", ""),
    "correlation": ("Spearman's rank correlation over heads.", r"\rho_S"),
    "low": ("Lower end of the 95 % interval of the correlation.", ""),
    "high": ("Upper end of the 95 % interval of the correlation, as if heads were independent.", ""),
    "verdict": (
        "agrees: the whole interval has the expected sign; contradicts: the interval excludes it; open: neither.",
        "",
    ),
    "why": ("Why the two should agree.", ""),
}
"""Columns of the table of agreement between lenses."""

CHANGES: dict[str, tuple[str, str]] = {
    "layer": HEADS["layer"],
    "head": HEADS["head"],
    "measure": ("Which measure changed.", ""),
    "a": ("Its value in the first atlas.", ""),
    "b": ("Its value in the second atlas.", ""),
    "change": ("Second less first.", r"b - a"),
    "size": (
        "The change without sign, in units of the measure's spread over both atlases.",
        r"|b - a| / \operatorname{sd}",
    ),
    "before": ("The label in the first atlas.", ""),
    "after": ("The label in the second atlas.", ""),
}
"""Columns of a comparison."""

TABLES = {
    "heads": HEADS,
    "layers": LAYERS,
    "matrices": MATRICES,
    "localization": LOCALIZATION,
    "gaussian": GAUSSIAN,
    "bands": BANDS,
    "kinds": KINDS,
    "agreement": AGREEMENT,
    "changes": CHANGES,
}


def definition(table: str, column: str) -> Definition | None:
    """What a column of a table means; None where nobody has written it down."""
    known = TABLES[table]
    if column in known:
        return Definition(*known[column])
    plain = column.removesuffix("_random")
    if plain != column and plain in known:
        return Definition(
            f"The same for Gaussian weights of the same shape and norm. {known[plain][0]}", known[plain][1]
        )
    lag = re.fullmatch(r"mi_(\d+)", column)
    if table == "gaussian" and lag:
        apart = "1 token" if lag[1] == "1" else f"{lag[1]} tokens"
        return Definition(
            f"Mutual information in nats between attention inputs {apart} apart.", f"I(x_t; x_{{t+{lag[1]}}})"
        )
    return None
