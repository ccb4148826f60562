"""What every column of the heads table means: a sentence, and the formula in TeX where one says more."""

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
