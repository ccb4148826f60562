"""Columns of the tables about causes: edges between heads, composition of weights, labels and what they matter."""

from functools import partial

from armillary.atlas.columns.column import Column, Table

_edge = partial(Column, table="edges", lens="lenses.sources", measure=False)
_composed = partial(Column, table="composition", lens="lenses.composition", measure=False)
_label = partial(Column, table="label_causes", lens="lenses.causes", measure=False)

EDGES = Table(
    "edges",
    "A row for every head, side (query, key, value) and source that wrote a part of it.",
    (
        _edge("layer", "The layer of the head, counted from 0.", kind="whole"),
        _edge("head", "The head within its layer, counted from 0.", kind="whole"),
        _edge(
            "side", "What is split: the query or the key in the head's logits, or the value in its output.", kind="word"
        ),
        _edge(
            "source",
            "What wrote this part of the head's input: embedding, L3H5, MLP3 (of block 3), mixer3 (what a block has "
            "besides attention and MLP), biases, position bias, rounding (what the parts leave).",
            kind="word",
        ),
        _edge(
            "share",
            "Share of the source, row-centered as the constituents are; the shares of a side add to 1, and may be "
            "negative.",
            r"\sum b \, (q_i \cdot k^A_j) / \sum b^2, \quad \sum o \cdot o^A / \sum o \cdot o",
            unit="share",
        ),
    ),
)

COMPOSITION = Table(
    "composition",
    "A row for every head, head of a later layer, and kind of composition, from the weights.",
    (
        _composed("from_layer", "The layer of the head that writes.", kind="whole"),
        _composed("from_head", "The head that writes.", kind="whole"),
        _composed("to_layer", "The layer of the head that reads.", kind="whole"),
        _composed("to_head", "The head that reads.", kind="whole"),
        _composed("kind", "What reads: the query, key or value of the later head.", kind="word"),
        _composed(
            "score",
            "Norm of the product of the writing head's W_OV and the reading head's W_q, W_k or W_v, over the product "
            "of their norms.",
            r"|W_{OV} W|_F / (|W_{OV}|_F |W|_F)",
        ),
        _composed(
            "z",
            "The squared score against random orthogonal bases of the same spectra, in standard deviations.",
            unit="standard deviations",
        ),
    ),
)

BY_LABEL = Table(
    "label_causes",
    "A row for every label and effect: whether heads with the label matter more than others of their layers.",
    (
        _label("label", "The label.", kind="word"),
        _label("effect", "Which effect: ablation_loss or another column of `ablate`.", kind="word"),
        _label("heads", "Number of heads with the label that have this effect.", kind="whole", unit="heads"),
        _label("mean", "Their mean effect.", unit="nats per token"),
        _label("others", "The mean effect of the other heads of the same layers.", unit="nats per token"),
        _label(
            "z",
            "Their mean against that of random heads: labels are permuted within layers.",
            unit="standard deviations",
        ),
        _label(
            "p", "Share of permutations whose mean is as far from that of all, or farther (two-sided).", unit="share"
        ),
        _label("verdict", "more, less, or no difference at p < 0.05, divided by the number of labels.", kind="word"),
    ),
)
