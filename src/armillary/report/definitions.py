"""What every column of the tables means: a sentence, and the formula in TeX where one says more."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """A sentence and a formula (TeX, may be empty)."""

    words: str
    formula: str = ""


EFFECTIVE = (
    "gains of the q/k norms folded into the weights, times qk_norm_scale. Only where q and k are normalised; raw qk_ "
    "columns leave the norms out."
)

HEADS: dict[str, tuple[str, str]] = {
    "layer": ("The layer, counted from 0.", ""),
    "head": ("The head within its layer, counted from 0; a head is named LAYER.HEAD.", ""),
    "kv_head": ("The key and value head that this query head reads; several share one in grouped attention.", ""),
    "label": (
        "What most of the head's focus does, in one word. A focused head that has no such word and needs content is "
        "'matching' if most of that is content against content, 'preference' if most is the key's content alone (the "
        "same keys for every query), else 'content'. 'broad' where most attention is spread evenly, 'mixed' where "
        "nothing fits.",
        "",
    ),
    "also": (
        "What else the head does: in text, where the label is about random tokens said twice; on those, where the "
        "label is about text.",
        "",
    ),
    "significant": (
        "Whether random heads of the same size, reading the same input, do not show the label; "
        "never so for 'broad' and 'mixed'.",
        "",
    ),
    "check": (
        "What `verify-heads` found of the label: it holds, fails, or is undecided within two standard errors.",
        "",
    ),
    "rests_on": (
        "The fewest positions or tokens, up to four, whose attention above chance is more than half of the focus.",
        r"\textstyle\sum_{j \in K} \langle a_{ij} - 1/n_i \rangle > \tfrac12 \langle \text{focus} \rangle",
    ),
    "first_label": ("The head's own label; where it is mixed, the kind that explains most of it.", ""),
    "second_label": ("The kind that explains most of the head besides the first.", ""),
    "focus": (
        "Attention that is taken from some keys and given to others; 0 for uniform attention.",
        r"\sum_j \max(a_{ij} - 1/n_i, 0)",
    ),
    "entropy": (
        "Entropy of the attention in nats, mean over rows; a sink counts as one more outcome.",
        r"-\sum_j a_{ij} \log a_{ij}",
    ),
    "entropy_norm": (
        "Entropy over the largest possible one: 0 is one key only, 1 is all visible keys alike.",
        r"H_i / \log n_i",
    ),
    "least_entropy": ("The least entropy that logits of the observed norms could have.", ""),
    "mixed_tokens": ("How many tokens attention effectively mixes.", r"\exp(H)"),
    "self_mass": ("Mean attention on the token itself.", r"\langle a_{ii} \rangle"),
    "prev_mass": ("Mean attention on the previous token.", r"\langle a_{i,i-1} \rangle"),
    "near_mass": ("Mean attention on keys 0 to 8 tokens away, the first of the text left out.", ""),
    "next_mass": ("Mean attention on the next token, in models that see both sides.", ""),
    "first_mass": (
        "Mean attention on the first token of the text, where attention often rests.",
        r"\langle a_{i0} \rangle",
    ),
    "sink_mass": ("Mean attention on the model's learned sink, which is no token.", ""),
    "mean_distance": ("Mean distance in tokens from query to key, weighted by attention.", r"\sum_j a_{ij}\,|i-j|"),
    "induction_score": (
        "On random tokens said twice, mean attention on the token after the other copy of the current one.",
        "",
    ),
    "duplicate_score": ("On random tokens said twice, mean attention on the other copy of the current token.", ""),
    "positional_share": (
        "Share of the logits' variation along a row by terms without content: mean, positional vectors and bias. Terms "
        "that work against the whole have a share below 0, and others then pass 1; all add to 1.",
        r"\sum_{\text{terms without } v} s_{ab} + s_{\text{bias}}",
    ),
    "content_share": ("Share of the logits' variation by content of the query against content of the key.", r"s_{vv}"),
    "mixed_share": (
        "Share of the logits' variation by content on one side against mean or position on the other.",
        "",
    ),
    "preference_share": (
        "Share of the logits' variation by content of the key against a query's mean or position: the same keys are "
        "preferred whatever the query is.",
        r"s_{mv} + s_{pv}",
    ),
    "share_bias": ("Share of the logits' variation by a position bias (ALiBi, T5).", ""),
    "constituent_error": ("How far the sum of all terms is from the logit that the model computed, relative.", ""),
    "argmax_ratio": (
        "Fraction of positions whose positional logits are largest at the position itself.",
        r"\arg\max_{t' \le t} [(P+m)\,W\,(P+m)^\top]_{tt'} = t",
    ),
    "pwp_energy_10": (
        "Share of the energy of the positional logits in the 10 lowest frequencies: 1 is smooth in position.",
        r"r_{10}(P W P^\top)",
    ),
    "qk_energy_10": ("The same for the mean logits over positions.", r"r_{10}(\langle b \rangle)"),
    "logit_mean": ("Mean logit over pairs of kept tokens.", r"\langle b_{ij} \rangle"),
    "logit_variance": ("Variance of the logits over pairs of kept tokens.", ""),
    "logit_skewness": ("Skewness of the logits; 0 for a Gaussian.", ""),
    "logit_kurtosis": ("Excess kurtosis of the logits; 0 for a Gaussian.", ""),
    "rank_one_distance": (
        "Relative distance of the output's tokens from being all alike: 0 is one common vector.",
        r"\|X - \mathbf{1}\bar{x}^\top\|_F / \|X\|_F",
    ),
    "qk_trace": (
        "Trace of the head's query-key matrix, from the raw weights; q/k norms, where a model has them, are left out.",
        r"\operatorname{tr} W_q W_k^\top",
    ),
    "qk_fro": ("Frobenius norm of the query-key matrix.", r"\|W_q W_k^\top\|_F"),
    "qk_spec": ("Largest singular value of the query-key matrix.", r"\|W_q W_k^\top\|_2"),
    "qk_stable_rank": ("Stable rank of the query-key matrix.", r"\|W\|_F^2 / \|W\|_2^2"),
    "qk_entropy_rank": (
        "How many directions carry the query-key matrix: exp of the entropy of its squared singular values as shares.",
        r"\exp(-\sum_i p_i \log p_i),\; p_i = \sigma_i^2 / \|W\|_F^2",
    ),
    "qk_symmetric_share": (
        "Share of the query-key matrix in its symmetric part; 1/2 without structure.",
        r"(1 + \operatorname{tr}(W^2) / \|W\|_F^2) / 2",
    ),
    "qk_align_z": (
        "How far queries and keys use the same directions; standard normal when their weights are unrelated.",
        r"\operatorname{tr}(W_q^\top W_k) \sqrt{d e} / (\|W_q\|_F \|W_k\|_F)",
    ),
    **{
        f"qk_effective_{name}": (f"{said} of the effective query-key matrix: {EFFECTIVE}", formula)
        for name, said, formula in (
            ("trace", "Trace", r"\operatorname{tr} W"),
            ("fro", "Frobenius norm", r"\|W\|_F,\; W = s_q s_k\, W_q g_q (W_k g_k)^\top"),
            ("spec", "Largest singular value", r"\|W\|_2"),
            ("stable_rank", "Stable rank", r"\|W\|_F^2 / \|W\|_2^2"),
            ("entropy_rank", "How many directions carry it", r"\exp(-\sum_i p_i \log p_i)"),
            ("symmetric_share", "Symmetric share", r"(1 + \operatorname{tr}(W^2) / \|W\|_F^2) / 2"),
            ("align_z", "Alignment", r"\operatorname{tr}(W_q^\top W_k) \sqrt{d e} / (\|W_q\|_F \|W_k\|_F)"),
        )
    },
    "qk_norm_scale": (
        "What the norms of q and k multiply the product by, beside the gains: mean of 1/rms of q times that of k "
        "over the text, or for an input of unit covariance where no text was read.",
        r"s_q s_k",
    ),
    "ov_trace": (
        "Trace of the head's value-output matrix: positive where it copies what it reads.",
        r"\operatorname{tr} W_v W_o",
    ),
    "ov_fro": ("Frobenius norm of the value-output matrix.", r"\|W_v W_o\|_F"),
    "ov_spec": ("Largest singular value of the value-output matrix.", r"\|W_v W_o\|_2"),
    "ov_stable_rank": ("Stable rank of the value-output matrix.", r"\|W\|_F^2 / \|W\|_2^2"),
    "ov_entropy_rank": ("How many directions carry the value-output matrix.", r"\exp(-\sum_i p_i \log p_i)"),
    "ov_symmetric_share": (
        "Share of the value-output matrix in its symmetric part; 1/2 without structure.",
        r"(1 + \operatorname{tr}(W^2) / \|W\|_F^2) / 2",
    ),
    "xi": (
        "Mean over scale of the eigenvalues of the query-key matrix (the effective one, for inputs of unit covariance, "
        "where q and k are normalised); missing where tr(W²) is not positive.",
        r"\xi = \operatorname{tr} W / \sqrt{\operatorname{tr} W^2}",
    ),
    "eta": (
        "Scale of the eigenvalues of the query-key matrix in units of the logits; of the effective one as for xi.",
        r"\eta = \sqrt{\operatorname{tr} W^2} / \lambda",
    ),
    "r": (
        "Mean of the eigenvalues in units of the logits; attention localises beyond 2 either way.",
        r"r = \operatorname{tr} W / \lambda",
    ),
    "regime": (
        "Which keys can pass a signal, from xi and eta: late, middle, early, uniform, or vanishing; missing where they "
        "are.",
        "",
    ),
    **{
        f"rho_{name}{suffix}": (said + of, "")
        for suffix, of in (("", "."), ("_data", ", with the measured covariance of the steps from token to token."))
        for name, said in (
            ("fit", "Correlation over places of the observed rho (which keys pass a signal) with the predicted one"),
            (
                "chance",
                "Mean correlation of the observed rho with the predictions for other heads: what rho_fit is by chance",
            ),
            ("error", "Root mean square of observed less predicted rho over places"),
        )
    },
    "xi_data": (
        "xi with the measured covariance of the steps from token to token in place of the identity.",
        r"W = W_{QK} \Sigma",
    ),
    "eta_data": ("eta with the measured covariance of the steps from token to token.", r"W = W_{QK} \Sigma"),
    "r_data": ("r with the measured covariance of the steps from token to token.", r"W = W_{QK} \Sigma"),
    "regime_data": ("The regime with the measured covariance of the steps from token to token.", ""),
    "layer_kind": ("Whether the head's layer has a window or sees all tokens (global).", ""),
    "rotary_base": ("The base of the layer's rotary encoding.", r"g_f = \text{base}^{-2f/e}"),
    "high_freq_share": (
        "Share of the logits by rotary frequencies that turn once or more within the scanned text.",
        r"\sum_{f:\, N g_f \ge 2\pi} s_f",
    ),
    "still_share": ("Share of the logits by channels that no frequency turns (partly rotary models).", ""),
    "self_cosine": (
        "Mean cosine of query and key of the same token, as the logit sees it.",
        r"b_{ii} / (s\,|q_i||k_i|)",
    ),
    "previous_cosine": ("Mean cosine of a query and the previous token's key.", r"b_{i,i-1} / (s\,|q_i||k_{i-1}|)"),
    "rotation_change": (
        "What the logits would lose if no frequency turned: squared change over their own squares.",
        "",
    ),
    "gaussian_ratio": (
        "Variance of the logits that jointly Gaussian queries and keys would have, over the observed one.",
        "",
    ),
}
"""Columns of the heads table: (sentence, TeX). The nine share_*_* follow below."""

_PARTS = {"mean": ("the mean", "m"), "pos": ("the positional part", "p"), "cvec": ("the content", "v")}
HEADS |= {
    f"share_{a}_{b}": (
        f"Share of the logits' variation along a row by {_PARTS[a][0]} of the query against {_PARTS[b][0]} of the key.",
        rf"\sum b^{{{_PARTS[a][1]}{_PARTS[b][1]}}} b / \sum b^2",
    )
    for a in _PARTS
    for b in _PARTS
}

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
