"""Columns of the tables of rotary bands and of kinds of layers."""

from functools import partial

from armillary.atlas.columns.by_layer import mean_over
from armillary.atlas.columns.column import Column, Table
from armillary.atlas.columns.heads import HEADS

_band = partial(Column, table="bands", lens="lenses.rotary", measure=False)
_kind = partial(Column, table="kinds", lens="lenses.kinds", measure=False)

BANDS = Table(
    "bands",
    "A row for every frequency at which |q||k| is at least three times the head's median.",
    (
        _band("layer", "The layer, counted from 0.", kind="whole"),
        _band("head", "The head within its layer, counted from 0; a head is named LAYER.HEAD.", kind="whole"),
        _band("kind", "Whether the head's layer has a window or sees all tokens (global).", kind="word"),
        _band("base", "The base of the layer's rotary encoding; layers with another base have other frequencies."),
        _band("frequency", "The rotary frequency, 0 is the fastest of its layer.", kind="whole"),
        _band("radians", "Radians that it turns per token.", r"g_f", unit="radians", explained="B16"),
        _band("turns", "Whole circles that it turns within the scanned text.", r"N g_f / 2\pi", unit="circles"),
        _band("times", "Length of q times length of k at this frequency, over the head's median.", r"|q_f||k_f|"),
        _band("share", "Share of the head's logits by this frequency.", r"s_f", unit="share", explained="B1"),
        _band("first_product", "Mean contribution to the logit of the text's first key.", unit="logits"),
        _band("other_product", "Mean contribution to the logits of the other keys.", unit="logits"),
        _band(
            "stable_distance",
            "Distance in tokens within which it turns less than a quarter circle.",
            r"\pi / (2 g_f)",
            unit="tokens",
            explained="B13",
        ),
    ),
)

KINDS = Table(
    "kinds",
    "A row for every kind of layer: those with a window, global ones, and the rotary base of each.",
    (
        _kind("kind", "Layers with a window, or global ones that see all tokens.", kind="word"),
        _kind("window", "How many tokens a query sees at most.", kind="whole", unit="tokens"),
        _kind("base", "The base of the rotary encoding.", r"g_f = \text{base}^{-2f/e}"),
        _kind("layers", "Which layers.", kind="word"),
        _kind("heads", "How many heads they have.", kind="whole", unit="heads"),
        _kind("induction_heads", "How many of these heads are labeled induction.", kind="whole", unit="heads"),
        *(
            mean_over("the heads of these layers", column, "kinds", "lenses.kinds")
            for name in (
                *("positional_share", "content_share", "mixed_share", "high_freq_share", "self_mass", "prev_mass"),
                *("first_mass", "mean_distance", "entropy_norm", "induction_score"),
            )
            for column in HEADS.columns
            if isinstance(column, Column) and column.name == name
        ),
    ),
)
