"""Columns of the tables of what heads read and write, in tokens, and of the evidence for labels."""

from functools import partial

from armillary.atlas.columns.column import Column, Table

_token = partial(Column, table="tokens", lens="lenses.reading", measure=False)
_pair = partial(Column, table="pairs", lens="lenses.reading", measure=False)
_relation = partial(Column, table="relations", lens="lenses.reading", measure=False)
_example = partial(Column, table="examples", lens="lenses.reading", measure=False)
_write = partial(Column, table="writes", lens="lenses.writing", measure=False)
_evidence = partial(Column, table="evidence", lens="lenses.labels", measure=False)

LAYER, HEAD = "The layer, counted from 0.", "The head within its layer, counted from 0."
GAIN = r"\sum (a_{ij} - \bar a_{i-j})"
LIFT = r"\sum a_{ij} / \sum \bar a_{i-j}"
ERROR = "Standard error of the lift, over texts."

TOKENS = Table(
    "tokens",
    "The key tokens that a head reads more, or less, than distance explains: by gain, those whose lift differs from 1.",
    (
        _token("layer", LAYER, kind="whole", sets=("usual",)),
        _token("head", HEAD, kind="whole", sets=("usual",)),
        _token("token", "The token's number in the vocabulary.", kind="whole", sets=("usual",)),
        _token("text", "The token, in quotes.", kind="word", sets=("usual",)),
        _token("gain", "Attention on the token beyond the head's mean attention by distance, summed.", GAIN,
               unit="rows", sets=("usual",)),
        _token("lift", "Attention on the token over what distance explains.", LIFT, sets=("usual",)),
        _token("se", ERROR, sets=("usual",)),
        _token("count", "How often the token occurs in the sample.", kind="whole", sets=("usual",)),
    ),
)  # fmt: skip

PAIRS = Table(
    "pairs",
    "The (query token, key token) pairs that a head favors most, with a bound on what may be missed.",
    (
        _pair("layer", LAYER, kind="whole", sets=("usual",)),
        _pair("head", HEAD, kind="whole", sets=("usual",)),
        _pair("query", "The query's token, as a number.", kind="whole"),
        _pair("key", "The key's token, as a number.", kind="whole"),
        _pair("query_text", "The query's token, in quotes.", kind="word", sets=("usual",)),
        _pair("key_text", "The key's token, in quotes.", kind="word", sets=("usual",)),
        _pair("gain", "Attention of the pair beyond what distance explains, over the texts in which the pair is among "
              "the head's strongest.", GAIN, unit="rows", sets=("usual",)),
        _pair("lift", "Attention of the pair over what distance explains, in the same texts.", LIFT, sets=("usual",)),
        _pair("se", ERROR, sets=("usual",)),
        _pair("count", "How often the pair occurs in the same texts, as positions of query and key.", kind="whole",
              sets=("usual",)),
        _pair("missed", "A pair that is not listed gains at most this; a listed one at most this more.", unit="rows",
              sets=("usual",)),
    ),
)  # fmt: skip

RELATIONS = Table(
    "relations",
    "What heads read by class of key token (each token has one, 'capital' is besides) and by relation to the query: "
    "the same token, or the token after it, earlier in the text.",
    (
        _relation("layer", LAYER, kind="whole", sets=("usual",)),
        _relation("head", HEAD, kind="whole", sets=("usual",)),
        _relation("relation", "The class of the key's token, or its relation to the query.", kind="word",
                  sets=("usual",)),
        _relation("gain", "Attention on such keys beyond what distance explains, summed.", GAIN, unit="rows",
                  sets=("usual",)),
        _relation("lift", "Attention on such keys over what distance explains.", LIFT, sets=("usual",)),
        _relation("se", ERROR, sets=("usual",)),
        _relation("share", "The gain over all attention that content moves.",
                  r"\sum (a - \bar a) / \sum \max(a - \bar a, 0)", unit="share", sets=("usual",)),
    ),
)  # fmt: skip

EXAMPLES = Table(
    "examples",
    "The places of the text that show best what a head reads, at most one a sequence.",
    (
        _example("layer", LAYER, kind="whole", sets=("usual",)),
        _example("head", HEAD, kind="whole", sets=("usual",)),
        _example("rank", "0 for the best.", kind="whole", sets=("usual",)),
        _example("sequence", "The sequence, as a row of corpus/tokens.", kind="whole", sets=("usual",)),
        _example("query", "The position of the query.", kind="whole", sets=("usual",)),
        _example("score", "The query's attention above both 1/n and what distance explains, summed.",
                 r"\sum_j \max(a_{ij} - \max(1/n_i, \bar a_{i-j}), 0)", unit="share", sets=("usual",)),
        _example("keys", "The keys with most attention, as position:attention.", kind="word", sets=("usual",)),
    ),
)  # fmt: skip

WRITES = Table(
    "writes",
    "Directions of W_v W_o (writes) and W_q W_k' (matches) with the tokens at both ends, a row for each side.",
    (
        _write("layer", LAYER, kind="whole", sets=("usual",)),
        _write("head", HEAD, kind="whole", sets=("usual",)),
        _write("kind", "writes: from tokens that are read to tokens whose logits rise; matches: from tokens that ask "
               "to tokens that are found, by E in layer 0 and by token means above.", kind="word", sets=("usual",)),
        _write("direction", "0 for the strongest.", kind="whole", sets=("usual",)),
        _write("share", "Share of the product's energy.", r"\sigma_r^2 / \sum \sigma^2", unit="share", sets=("usual",)),
        _write("side", "0: along the direction; 1: against it.", kind="whole"),
        _write("source", "Tokens furthest along at the left end: read, or asking.", kind="word", sets=("usual",)),
        _write("target", "Tokens furthest along at the right end: written, or found.", kind="word", sets=("usual",)),
    ),
)  # fmt: skip

EVIDENCE = Table(
    "evidence",
    "A row for every head, label and measure: what decides the label, and what other lenses say.",
    (
        _evidence("layer", LAYER, kind="whole", sets=("usual",)),
        _evidence("head", HEAD, kind="whole", sets=("usual",)),
        _evidence("label", "The label that the measure is about.", kind="word", sets=("usual",)),
        _evidence("role", "rule: it decides the label; support: another lens, which does not.", kind="word",
                  sets=("usual",)),
        _evidence("measure", "A column of the heads table.", kind="word", sets=("usual",)),
        _evidence("value", "Its value for this head.", sets=("usual",)),
        _evidence("null", "The same of random heads, on average.", sets=("usual",)),
        _evidence("threshold", "What random heads do not reach.", sets=("usual",)),
        _evidence("strength", "The share of the focus (or of the logits) that it explains.", unit="share",
                  sets=("usual",)),
        _evidence("holds", "Whether the rule holds.", kind="yes-no", sets=("usual",)),
    ),
)  # fmt: skip
