"""What heads read, as tables: tokens, pairs of tokens, classes and relations, and the best examples in the text."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy.stats import norm
from scipy.stats import t as student

from armillary.atlas.texts import texts_of
from armillary.streams.tokens import RELATIONS

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

ERRORS = 4.0
"""A lift is significant if it differs from 1 by more than this many standard errors, taken over many texts; over few,
by as many as have the same probability by Student's t."""

BEST, WORST = 20, 5
"""Rows of the table for every head: tokens with the largest gains, and with the lowest."""

TEN = 10
"""Tokens of token_gain_share."""


def differs(
    lift: Float[np.ndarray, "*dims"], error: Float[np.ndarray, "*dims"], texts: Float[np.ndarray, "*dims"]
) -> Bool[np.ndarray, "*dims"]:
    """Whether a lift differs from 1; never where it was seen in one text, which has no standard error."""
    needed = student.isf(norm.sf(ERRORS), np.maximum(texts - 1, 1))
    with np.errstate(invalid="ignore"):
        return np.asarray((np.abs(lift - 1) > needed * error) & (texts > 1))


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """token_gain_share, and punctuation_mass where tokens have classes."""
    table = pd.DataFrame()
    if atlas.has("tokens") and "token_gain" in atlas.group("tokens"):
        gain = atlas.group("tokens")["token_gain"].to_numpy()
        table["token_gain_share"] = gain_share(gain.reshape(-1, gain.shape[-1]))
    if atlas.has("patterns") and "text_delimiter_mass" in atlas.group("patterns"):
        table["punctuation_mass"] = atlas.group("patterns")["text_delimiter_mass"].to_numpy().reshape(-1)
    return table


def gain_share(gain: Float[np.ndarray, "head token"]) -> Float[np.ndarray, "head"]:
    """The share of all positive gain that the ten best tokens have; missing where no token gains."""
    positive = np.sort(np.maximum(gain, 0), axis=1)[:, ::-1]
    total = positive.sum(1)
    return np.where(total > 0, positive[:, :TEN].sum(1) / np.where(total > 0, total, 1), np.nan)


def _heads(atlas: "Atlas") -> list[tuple[int, int]]:
    return [(layer.index, head) for layer in atlas.anatomy.layers for head in range(layer.heads)]


def token_table(atlas: "Atlas") -> pd.DataFrame:
    """layer, head, token, text, gain, lift, se, count: by gain, those whose lift differs from 1, best and worst."""
    arrays, words = atlas.group("tokens"), texts_of(atlas)
    ids = arrays["read_token"].to_numpy()
    gain, lift, error = (arrays[f"token_{name}"].to_numpy() for name in ("gain", "lift", "se"))
    count, texts = (arrays[f"token_{name}"].to_numpy() for name in ("count", "texts"))
    rows: list[dict[str, Any]] = []
    for layer, head in _heads(atlas):
        own = gain[layer, head]
        chosen = np.flatnonzero(differs(lift[layer, head], error[layer, head], texts[layer]))
        order = chosen[np.argsort(-own[chosen], kind="stable")]
        best = [slot for slot in order[:BEST] if own[slot] > 0]
        worst = [slot for slot in order[max(len(best), len(order) - WORST) :] if own[slot] < 0]
        rows += [
            {
                "layer": layer,
                "head": head,
                "token": int(ids[slot]),
                "text": words.shown(int(ids[slot])),
                "gain": own[slot],
                "lift": lift[layer, head, slot],
                "se": error[layer, head, slot],
                "count": count[layer, slot],
            }
            for slot in (*best, *worst)
        ]
    return pd.DataFrame(rows, columns=["layer", "head", "token", "text", "gain", "lift", "se", "count"])


def pair_table(atlas: "Atlas") -> pd.DataFrame:
    """layer, head, query, key, their texts, gain, lift, se, count, missed: listed pairs whose lift differs from 1."""
    arrays, words = atlas.group("tokens"), texts_of(atlas)
    names = ("query", "key", "gain", "lift", "se", "count", "texts")
    values = {name: arrays[f"pair_{name}"].to_numpy() for name in names}
    missed = arrays["pair_missed"].to_numpy()
    rows: list[dict[str, Any]] = []
    for layer, head in _heads(atlas):
        own = {name: array[layer, head] for name, array in values.items()}
        listed = differs(own["lift"], own["se"], own["texts"]) & (own["query"] >= 0) & (own["gain"] > 0)
        rows += [
            {
                "layer": layer,
                "head": head,
                "query": int(own["query"][slot]),
                "key": int(own["key"][slot]),
                "query_text": words.shown(int(own["query"][slot])),
                "key_text": words.shown(int(own["key"][slot])),
                **{name: own[name][slot] for name in ("gain", "lift", "se", "count")},
                "missed": missed[layer, head],
            }
            for slot in np.flatnonzero(listed)[:TEN]
        ]
    columns = ["layer", "head", "query", "key", "query_text", "key_text", "gain", "lift", "se", "count", "missed"]
    return pd.DataFrame(rows, columns=columns)


def relation_table(atlas: "Atlas") -> pd.DataFrame:
    """layer, head, relation, gain, lift, se, share: classes of keys and relations; share is of what content moves."""
    arrays = atlas.group("tokens")
    gain, lift, error = (arrays[f"relation_{name}"].to_numpy() for name in ("gain", "lift", "se"))
    moved = moved_sums(atlas)
    rows = [
        {
            "layer": layer,
            "head": head,
            "relation": name,
            "gain": gain[layer, head, place],
            "lift": lift[layer, head, place],
            "se": error[layer, head, place],
            "share": gain[layer, head, place] / moved[layer, head] if moved[layer, head] > 0 else np.nan,
        }
        for layer, head in _heads(atlas)
        for place, name in enumerate(RELATIONS)
        if np.isfinite(lift[layer, head, place])
    ]
    return pd.DataFrame(rows, columns=["layer", "head", "relation", "gain", "lift", "se", "share"])


def moved_sums(atlas: "Atlas") -> Float[np.ndarray, "layer head"]:
    """sum of max(a - abar, 0) over all pairs: what content moves; no set of pairs gains more."""
    texts = min(atlas.settings["second_pass"], atlas.group("corpus").sizes["sequence"])
    rows = texts * (atlas.settings["length"] - atlas.settings["skip"])
    return np.asarray(atlas.group("tokens")["moved"].to_numpy() * rows)


def example_table(atlas: "Atlas") -> pd.DataFrame:
    """layer, head, rank, sequence, query, score, keys (as 'position:attention', strongest first): the best examples."""
    arrays = atlas.group("tokens")
    score, text, query = (arrays[f"example_{name}"].to_numpy() for name in ("score", "text", "query"))
    key, weight = (arrays[f"example_{name}"].to_numpy() for name in ("key", "weight"))
    rows = [
        {
            "layer": layer,
            "head": head,
            "rank": place,
            "sequence": int(text[layer, head, place]),
            "query": int(query[layer, head, place]),
            "score": score[layer, head, place],
            "keys": " ".join(
                f"{j}:{a:.4f}"
                for j, a in zip(key[layer, head, place], weight[layer, head, place], strict=True)
                if j >= 0
            ),
        }
        for layer, head in _heads(atlas)
        for place in range(score.shape[-1])
        if text[layer, head, place] >= 0 and score[layer, head, place] > 0
    ]
    return pd.DataFrame(rows, columns=["layer", "head", "rank", "sequence", "query", "score", "keys"])


def tables(atlas: "Atlas") -> dict[str, pd.DataFrame]:
    """The tables of what heads read: tokens, pairs, relations, examples."""
    return {
        "tokens": token_table(atlas),
        "pairs": pair_table(atlas),
        "relations": relation_table(atlas),
        "examples": example_table(atlas),
    }
