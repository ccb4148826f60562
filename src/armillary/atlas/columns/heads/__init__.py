"""Columns of the heads table, grouped by subject; those of the contract keep its order."""

from armillary.atlas.columns.column import Table
from armillary.atlas.columns.heads.attention import ATTENTION, LABELS, LOGITS, NAMES, REPEATS, TOKENS
from armillary.atlas.columns.heads.causes import CAUSES
from armillary.atlas.columns.heads.constituents import CONSTITUENTS, ROTARY
from armillary.atlas.columns.heads.weights import EFFECTIVE, LOCALIZATION, QUERY_KEY, VALUE_OUTPUT

HEADS = Table(
    "heads",
    "A row for every head of every layer.",
    (
        *(*NAMES, *LABELS, *CAUSES, *ATTENTION, *CONSTITUENTS, *QUERY_KEY, *EFFECTIVE, *VALUE_OUTPUT),
        *(*LOCALIZATION, *ROTARY, *REPEATS, *TOKENS, *LOGITS),
    ),
)
