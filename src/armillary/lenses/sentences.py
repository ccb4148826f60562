"""What a head does in a few words, by rules on the evidence; no language model, no tuned number.

What it reads, said only of heads that no positional label explains: of the attention that content moves (beyond what
distance explains), more than half must go to
  1  keys with the token of the query        'attends to earlier mentions of the same token'
  2  keys after an earlier such mention      'attends to what followed earlier mentions of the same token'
  3  at most four tokens                     'attends to X and Y', or 'to the last X' if more than half of the moved
                                             attention goes to the latest X before the query
  4  a class of tokens                       'attends to punctuation', newlines, special tokens, digits, words with a
                                             capital letter, starts of words, rests of words
and the lift of that set must differ from 1 (lenses/reading.py). The first rule that holds is said.
What it writes: 'copies what it reads' or 'suppresses what it reads' (lenses/writing.py).
If neither holds, 'no clear pattern'; nothing where the label has said it, or where no text was read.
"""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.atlas.texts import texts_of
from armillary.lenses.reading import differs, moved_sums
from armillary.lenses.resting import FEW, listed
from armillary.lenses.writing import copying_words
from armillary.streams.tokens import RELATIONS

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

SAID_BY_POSITION = ("self", "previous", "next", "local", "first-token", "broad")
"""Labels that say already where the head attends."""

NOTHING = "no clear pattern"
SAME, AFTER = "earlier mentions of the same token", "what followed earlier mentions of the same token"
CLASS_WORDS = {
    "special": "special tokens",
    "newline": "newlines",
    "punctuation": "punctuation",
    "digits": "digits",
    "capital": "words with a capital letter",
    "start of a word": "starts of words",
    "rest of a word": "rests of words",
}
"""In the order in which they are tried: the narrower ones first."""


def head_columns(atlas: "Atlas", table: pd.DataFrame) -> pd.DataFrame:
    """does: what every head reads and writes, in words; `table` holds the labels, if there are any."""
    if not atlas.has("tokens") and not atlas.has("vocabulary"):
        return pd.DataFrame()
    labels = table["label"] if "label" in table else pd.Series([""] * len(table))
    return pd.DataFrame({"does": does(atlas, labels)})


def does(atlas: "Atlas", labels: pd.Series) -> list[str]:
    """What every head does, in words; `labels` are those of the heads, in the order of the table."""
    reads, writes = reading_words(atlas), copying_words(atlas)
    sentences = []
    for label, read, written in zip(labels, reads, writes, strict=True):
        said = [] if label in SAID_BY_POSITION or not read else [f"attends to {read}"]
        silent = "" if label in SAID_BY_POSITION or not atlas.has("tokens") else NOTHING
        sentences.append(", ".join([*said, *([written] if written else [])]) or silent)
    return sentences


def reading_words(atlas: "Atlas") -> list[str]:
    """For every head, what most of the attention that content moves goes to, by the first rule that holds; else ''."""
    heads = [(layer.index, head) for layer in atlas.anatomy.layers for head in range(layer.heads)]
    if not atlas.has("tokens") or "token_gain" not in atlas.group("tokens"):
        return [""] * len(heads)
    arrays, words, moved = atlas.group("tokens"), texts_of(atlas), moved_sums(atlas)
    relation = {name: arrays[f"relation_{name}"].to_numpy() for name in ("gain", "lift", "se")}
    token = {name: arrays[f"token_{name}"].to_numpy() for name in ("gain", "lift", "se", "latest_gain")}
    seen_in, ids = arrays["token_texts"].to_numpy(), arrays["read_token"].to_numpy()
    texts = float(min(atlas.settings["second_pass"], atlas.group("corpus").sizes["sequence"]))
    sure = differs(relation["lift"], relation["se"], np.full(relation["lift"].shape, texts))
    said = []
    for layer, head in heads:
        whole = moved[layer, head]

        def most(name: str, whole: float = whole, at: tuple[int, int] = (layer, head)) -> bool:
            here = (*at, RELATIONS.index(name))
            return bool(relation["gain"][here] > whole / 2 and sure[here])

        own = {name: values[layer, head] for name, values in token.items()}
        significant = differs(own["lift"], own["se"], seen_in[layer])
        few = _fewest(np.where(significant, own["gain"], -np.inf), whole)
        if most("same"):
            said.append(SAME)
        elif most("after same"):
            said.append(AFTER)
        elif few:
            latest = own["latest_gain"][few].sum() > whole / 2
            said.append(("the last " if latest else "") + listed([words.shown(int(ids[slot])) for slot in few]))
        else:
            said.append(next((text for name, text in CLASS_WORDS.items() if most(name)), ""))
    return said


def _fewest(gain: np.ndarray, whole: float) -> list[int]:
    """The fewest tokens, at most FEW, whose gains add to more than half of the whole; none if they are not enough."""
    order = np.argsort(-gain, kind="stable")[:FEW]
    enough = np.flatnonzero(np.cumsum(gain[order]) > whole / 2)
    return order[: enough[0] + 1].tolist() if len(enough) and whole > 0 else []
