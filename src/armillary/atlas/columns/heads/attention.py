"""Columns of the heads table: layer and head, its label, and statistics of its attention."""

from functools import partial

from armillary.atlas.columns.column import Column

_attention = partial(Column, table="heads", lens="lenses.heads")
_label = partial(Column, table="heads", lens="lenses.labels", kind="word")
_pattern = partial(Column, table="heads", lens="lenses.labels")

NAMES = (
    _attention(
        "layer",
        "The layer, counted from 0.",
        kind="whole",
        sets=("usual", "weights"),
        measure=False,
        contract=True,
    ),
    _attention(
        "head",
        "The head within its layer, counted from 0; a head is named LAYER.HEAD.",
        kind="whole",
        sets=("usual", "weights"),
        measure=False,
        contract=True,
    ),
    _attention(
        "kv_head",
        "The key and value head that this query head reads; several share one in grouped attention.",
        kind="whole",
        measure=False,
        contract=True,
    ),
)

LABELS = (
    _label(
        "label",
        "Where most of the head's focus goes, in one word. A focused head without such a word whose logits depend on "
        "content is 'matching' if most of that is content against content, 'preference' if most is the key's content "
        "alone (the same keys for every query), else 'content'. 'broad' if most attention is spread evenly, 'mixed' if "
        "nothing fits.",
        sets=("usual", "overview", "attention"),
        contract=True,
    ),
    _label(
        "also",
        "A second label: from text, if the label is about repeated random tokens; from those, if the label is about "
        "text.",
        sets=("usual", "overview", "attention"),
        measure=False,
    ),
    _label(
        "significant",
        "Whether the label is significant against random heads of the same size with the same input; "
        "never for 'broad' and 'mixed'.",
        kind="yes-no",
        sets=("usual", "overview"),
    ),
    Column(
        "check",
        "Result of `verify-heads` for the label: holds, fails, or undecided within two standard errors.",
        table="heads",
        lens="atlas.verdicts",
        kind="word",
        sets=("usual", "overview"),
    ),
    _label(
        "rests_on",
        "The fewest positions or tokens, up to four, whose attention above chance is more than half of the focus.",
        r"\textstyle\sum_{j \in K} \langle a_{ij} - 1/n_i \rangle > \tfrac12 \langle \text{focus} \rangle",
        sets=("usual", "attention"),
        measure=False,
    ),
    Column(
        "does",
        "What the head reads and writes, in words, by rules on the evidence; 'no clear pattern' where none holds.",
        table="heads",
        lens="lenses.sentences",
        kind="word",
        sets=("overview", "attention"),
        measure=False,
    ),
    _label(
        "first_label",
        "The head's own label; if it is mixed, the label that explains most of it.",
        sets=("attention",),
    ),
    _label(
        "second_label",
        "The label that explains most of the head besides the first.",
        sets=("attention",),
    ),
)

ATTENTION = (
    _pattern(
        "focus",
        "Distance of the attention from uniform: the attention above 1/n, summed; 0 if it is uniform.",
        r"\sum_j \max(a_{ij} - 1/n_i, 0)",
        unit="share",
        sets=("usual", "attention"),
    ),
    _attention(
        "entropy",
        "Entropy of the attention in nats, mean over rows; a sink counts as one more outcome.",
        r"-\sum_j a_{ij} \log a_{ij}",
        unit="nats",
        sets=("usual", "attention", "localization"),
        contract=True,
        array="attention/entropy",
    ),
    _attention(
        "entropy_norm",
        "Entropy over the largest possible one: 0 if only one key has attention, 1 if all visible keys have the same.",
        r"H_i / \log n_i",
        sets=("overview", "attention"),
        contract=True,
        array="attention/entropy_norm",
    ),
    _attention(
        "mixed_tokens",
        "Effective number of tokens that attention mixes.",
        r"\exp(H)",
        unit="tokens",
        sets=("attention",),
    ),
    _attention(
        "self_mass",
        "Mean attention on the token itself.",
        r"\langle a_{ii} \rangle",
        unit="share",
        sets=("usual", "overview", "attention"),
        contract=True,
        array="attention/self_mass",
    ),
    _attention(
        "prev_mass",
        "Mean attention on the previous token.",
        r"\langle a_{i,i-1} \rangle",
        unit="share",
        sets=("usual", "overview", "attention"),
        contract=True,
        array="attention/prev_mass",
    ),
    _pattern(
        "next_mass",
        "Mean attention on the next token, in models that are not causal.",
        unit="share",
        sets=("attention",),
    ),
    _pattern(
        "near_mass",
        "Mean attention on keys 0 to 8 tokens away, without the first of the text.",
        unit="share",
        sets=("usual", "attention"),
    ),
    _attention(
        "first_mass",
        "Mean attention on the first token of the text, where attention often rests.",
        r"\langle a_{i0} \rangle",
        unit="share",
        sets=("usual", "overview", "attention"),
        contract=True,
        array="attention/first_mass",
    ),
    _attention(
        "sink_mass",
        "Mean attention on the model's learned sink, which is not a token.",
        unit="share",
        sets=("attention",),
        array="attention/sink_mass",
    ),
    _attention(
        "mean_distance",
        "Mean distance in tokens from query to key, weighted by attention.",
        r"\sum_j a_{ij}\,|i-j|",
        unit="tokens",
        sets=("usual", "overview", "attention"),
        contract=True,
        array="attention/mean_distance",
    ),
)

_reading = partial(Column, table="heads", lens="lenses.reading")

TOKENS = (
    _reading(
        "token_gain_share",
        "Share of all positive gain that the ten best key tokens have; near 1 for a head that reads few tokens.",
        r"\sum_{10} \max(g_w, 0) / \sum_w \max(g_w, 0)",
        unit="share",
        sets=("attention",),
    ),
    _reading(
        "punctuation_mass",
        "Mean attention on punctuation, newlines and special tokens; the first key is left out.",
        unit="share",
        sets=("attention",),
    ),
    Column(
        "copying_score",
        "Does the head raise the logit of what it reads? Eigenvalues of E W_v W_o U: 1 if all are positive (copies), "
        "-1 if all are negative (suppresses).",
        r"\textstyle\sum \operatorname{Re} \lambda / \sum |\lambda|",
        table="heads",
        lens="lenses.writing",
        sets=("attention", "weights", "spectra"),
    ),
)

REPEATS = (
    _pattern(
        "induction_score",
        "On repeated random tokens, mean attention on the token after the other copy of the current one.",
        unit="share",
        sets=("usual", "overview", "attention"),
        contract=True,
    ),
    _pattern(
        "duplicate_score",
        "On repeated random tokens, mean attention on the other copy of the current token.",
        unit="share",
        sets=("attention",),
    ),
)

LOGITS = (
    _attention(
        "logit_mean",
        "Mean logit over pairs of kept tokens.",
        r"\langle b_{ij} \rangle",
        unit="logits",
        sets=("logits",),
        array="attention/logit_mean",
    ),
    _attention(
        "logit_variance",
        "Variance of the logits over pairs of kept tokens.",
        unit="logits squared",
        sets=("logits",),
        array="attention/logit_variance",
    ),
    _attention(
        "logit_skewness",
        "Skewness of the logits; 0 for a Gaussian.",
        sets=("logits",),
        array="attention/logit_skewness",
    ),
    _attention(
        "logit_kurtosis",
        "Excess kurtosis of the logits; 0 for a Gaussian.",
        sets=("logits",),
        array="attention/logit_kurtosis",
    ),
    _attention(
        "rank_one_distance",
        "Relative distance of the output's tokens from their mean: 0 if all are the same vector.",
        r"\|X - \mathbf{1}\bar{x}^\top\|_F / \|X\|_F",
        sets=("attention",),
        array="attention/rank_one_distance",
    ),
    Column(
        "gaussian_ratio",
        "Variance of the logits that jointly Gaussian queries and keys would have, over the observed one.",
        table="heads",
        lens="lenses.gaussian",
        sets=("logits",),
        explained="T6.3",
    ),
)
