"""Columns of the heads table: shares of the logits by position and content, and by rotary frequency."""

from functools import partial

from armillary.atlas.columns.column import Column

_constituent = partial(Column, table="heads", lens="lenses.constituents")
_rotary = partial(Column, table="heads", lens="lenses.rotary")
_kind = partial(Column, table="heads", lens="lenses.kinds")

_PARTS = {"mean": ("the mean", "m"), "pos": ("the positional part", "p"), "cvec": ("the content", "v")}

CONSTITUENTS = (
    *(
        _constituent(
            f"share_{a}_{b}",
            f"Share of the logits' variation along a row by {_PARTS[a][0]} of the query against {_PARTS[b][0]} of the "
            "key.",
            rf"\sum b^{{{_PARTS[a][1]}{_PARTS[b][1]}}} b / \sum b^2",
            unit="share",
            sets=("constituents",),
            contract=True,
            explained="S13",
        )
        for a in _PARTS
        for b in _PARTS
    ),
    _constituent(
        "share_bias",
        "Share of the logits' variation by a position bias (ALiBi, T5).",
        unit="share",
        sets=("constituents",),
        contract=True,
    ),
    _constituent(
        "positional_share",
        "Share of the logits' variation along a row by terms without content: mean, positional vectors and bias. Terms "
        "that cancel others have a share below 0, and others may exceed 1; all add to 1.",
        r"\sum_{\text{terms without } v} s_{ab} + s_{\text{bias}}",
        unit="share",
        sets=("usual", "overview", "constituents"),
        contract=True,
    ),
    _constituent(
        "content_share",
        "Share of the logits' variation by content of the query against content of the key.",
        r"s_{vv}",
        unit="share",
        sets=("usual", "overview", "constituents"),
        contract=True,
    ),
    _constituent(
        "mixed_share",
        "Share of the logits' variation by content on one side against mean or position on the other.",
        unit="share",
        sets=("constituents",),
        contract=True,
    ),
    _constituent(
        "preference_share",
        "Share of the logits' variation by content of the key against a query's mean or position: all queries prefer "
        "the same keys.",
        r"s_{mv} + s_{pv}",
        unit="share",
        sets=("constituents",),
    ),
    _constituent(
        "argmax_ratio",
        "Fraction of positions whose positional logits are largest at the position itself.",
        r"\arg\max_{t' \le t} [(P+m)\,W\,(P+m)^\top]_{tt'} = t",
        unit="share",
        sets=("constituents",),
        explained="S21",
    ),
    _constituent(
        "pwp_energy_10",
        "Share of the energy of the positional logits in the 10 lowest frequencies: 1 is smooth in position.",
        r"r_{10}(P W P^\top)",
        unit="share",
        sets=("constituents",),
        explained="S5",
    ),
    _constituent(
        "qk_energy_10",
        "The same for the mean logits over positions.",
        r"r_{10}(\langle b \rangle)",
        unit="share",
        sets=("constituents",),
        explained="S5",
    ),
    _constituent(
        "constituent_error",
        "Relative error of the sum of all terms against the model's logits.",
        sets=("constituents",),
    ),
)

ROTARY = (
    _kind(
        "layer_kind",
        "Whether the head's layer has a window or sees all tokens (global).",
        kind="word",
    ),
    _kind("rotary_base", "The base of the layer's rotary encoding.", r"g_f = \text{base}^{-2f/e}"),
    _rotary(
        "high_freq_share",
        "Share of the logits by rotary frequencies that turn once or more within the scanned text.",
        r"\sum_{f:\, N g_f \ge 2\pi} s_f",
        unit="share",
        sets=("usual", "overview", "rotary"),
        contract=True,
        explained="B1",
    ),
    _rotary(
        "still_share",
        "Share of the logits by channels that are not rotated (partly rotary models).",
        unit="share",
        sets=("rotary",),
    ),
    _rotary(
        "self_cosine",
        "Mean cosine of query and key of the same token, after rotation.",
        r"b_{ii} / (s\,|q_i||k_i|)",
        unit="cosine",
        sets=("rotary",),
        explained="B18",
    ),
    _rotary(
        "previous_cosine",
        "Mean cosine of a query and the previous token's key.",
        r"b_{i,i-1} / (s\,|q_i||k_{i-1}|)",
        unit="cosine",
        sets=("rotary",),
        explained="B18",
    ),
    _rotary(
        "rotation_change",
        "Squared change of the logits if all frequencies were frozen, over their sum of squares.",
        sets=("rotary",),
    ),
)
