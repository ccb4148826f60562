"""Columns of the table of heads on inputs that a scan does not read."""

from functools import partial

from armillary.atlas.columns.column import Column, Table

_observed = partial(Column, table="observed", lens="probe.observed", measure=False)
_mass = partial(_observed, unit="share")

OBSERVED = Table(
    "observed",
    "A row for every head on images, sound, or a text and what the decoder writes (`armillary observe`).",
    (
        _observed("layer", "The layer, counted from 0.", kind="whole"),
        _observed("head", "The head within its layer, counted from 0.", kind="whole"),
        _observed("kind", "self, or cross for the decoder's attention to the encoder's output.", kind="word"),
        _observed(
            "positions", "What keys are: tokens, patches, frames, or in cross-attention the encoder's.", kind="word"
        ),
        _observed(
            "label",
            "What gains more than half of the head's focus; broad if the focus is less than half; monotone for "
            "cross-attention that walks along the encoder's positions; else mixed. Not compared with random heads.",
            kind="word",
        ),
        _observed("entropy", "Mean entropy of a query's attention.", r"E_i -\sum_j a_{ij} \log a_{ij}", unit="nats"),
        _observed("entropy_norm", "Entropy over that of uniform attention to the visible keys.", r"H_i / \log n_i"),
        _mass("focus", "Attention that is moved from some keys to others.", r"E_i \sum_j \max(a_{ij} - 1/n_i, 0)"),
        _mass("first_mass", "Attention to the first position (in cross-attention the encoder's first)."),
        _mass("last_mass", "Of cross-attention: attention to the encoder's last visible position."),
        _mass("special_mass", "Of images: attention to positions that are no patches (class token, registers)."),
        _mass("self_mass", "Attention to the query's own position."),
        _mass("previous_mass", "Attention to the position before."),
        _mass("next_mass", "Attention to the position after, where it is visible."),
        _mass("neighbor_mass", "Of images: attention of patches to the up to eight patches around them."),
        _observed(
            "mean_distance",
            "Mean distance to the attended position; between patches, in the grid.",
            r"E_i \sum_j a_{ij} |i - j|",
            unit="positions",
        ),
        _observed(
            "mean_place", "Of cross-attention: the mean attended position, 0 for the first and 1 for the last key."
        ),
        _observed(
            "monotone",
            "Of cross-attention: Kendall's tau between queries and their mean attended positions; 1 if each later "
            "query attends farther on.",
        ),
    ),
)
