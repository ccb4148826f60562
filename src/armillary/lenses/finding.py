"""Which heads read or write a token, or a class of tokens, most."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.atlas.texts import texts_of
from armillary.errors import ArmillaryError
from armillary.lenses.reading import differs, moved_sums
from armillary.streams.tokens import RELATIONS
from armillary.text.vocabulary import CLASSES

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

NAMES = {name: name for name in RELATIONS} | {
    "newlines": "newline",
    "names": "capital",
    "words": "start of a word",
    "delimiters": "punctuation",
}
"""What a class or relation may be called."""


def find(atlas: "Atlas", what: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Heads by what they gain on the token or class, and directions whose written end has such tokens."""
    if not atlas.has("tokens") and not atlas.has("vocabulary"):
        raise ArmillaryError("this atlas does not say what heads read", advice="scan with the stream tokens")
    words = texts_of(atlas)
    relation = NAMES.get(what.strip().lower())
    tokens = _tokens(words.texts, what)
    if relation is None and not tokens:
        advice = f"classes are {', '.join(CLASSES)}; a token is written as it is, as in ' the'"
        raise ArmillaryError(f"no token of this vocabulary is {what!r}", advice=advice, given=what)
    if relation in CLASSES:
        tokens = np.flatnonzero(words.kinds == CLASSES.index(relation)).tolist()
    return _reads(atlas, relation, tokens), _writes(atlas, set(tokens))


def _tokens(texts: tuple[str, ...], what: str) -> list[int]:
    """The tokens with this text: as it is, or, if there are none, without white space around it."""
    meant = what.encode().decode("unicode_escape") if "\\" in what else what
    exact = [token for token, text in enumerate(texts) if text == meant]
    return exact or [token for token, text in enumerate(texts) if meant.strip() and text.strip() == meant.strip()]


def _reads(atlas: "Atlas", relation: str | None, tokens: list[int]) -> pd.DataFrame:
    """layer, head, label, gain, lift, se, share: heads that gain, and whose lift differs from 1."""
    columns = ["layer", "head", "label", "does", "gain", "lift", "se", "share"]
    if not atlas.has("tokens"):
        return pd.DataFrame(columns=columns)
    arrays = atlas.group("tokens")
    texts = float(min(atlas.settings["second_pass"], atlas.group("corpus").sizes["sequence"]))
    if relation is not None:
        gain, lift, error = (
            arrays[f"relation_{n}"].to_numpy()[..., RELATIONS.index(relation)] for n in ("gain", "lift", "se")
        )
        seen = np.full(gain.shape, texts)
    else:
        counted = arrays["read_token"].to_numpy()
        slots = np.flatnonzero(np.isin(counted, tokens))
        if not len(slots):
            raise ArmillaryError(
                "this token is not among those counted in the sample, which most queries see",
                advice="scan text that has it more often",
            )
        slot = slots[0]
        gain, lift, error = (arrays[f"token_{name}"].to_numpy()[..., slot] for name in ("gain", "lift", "se"))
        seen = np.repeat(arrays["token_texts"].to_numpy()[:, slot][:, None], gain.shape[1], 1)
    heads = atlas.heads
    at = heads["layer"].to_numpy(int), heads["head"].to_numpy(int)
    moved = moved_sums(atlas)
    table = heads[[name for name in ("layer", "head", "label", "does") if name in heads]].assign(
        gain=gain[at],
        lift=lift[at],
        se=error[at],
        share=np.where(moved[at] > 0, gain[at] / np.maximum(moved[at], 1e-12), np.nan),
    )
    chosen: pd.DataFrame = table.loc[differs(lift[at], error[at], seen[at]) & (gain[at] > 0)]
    return chosen.sort_values("gain", ascending=False, kind="stable").reset_index(drop=True)


def _writes(atlas: "Atlas", tokens: set[int]) -> pd.DataFrame:
    """layer, head, direction, share, source, target: written ends that have one of the tokens."""
    table = atlas.table("writes")
    columns = ["layer", "head", "direction", "share", "source", "target"]
    if table.empty:
        return pd.DataFrame(columns=columns)
    ends = atlas.group("vocabulary")["write_end"].to_numpy()
    own = table[table["kind"] == "writes"]
    at = (own[name].to_numpy(int) for name in ("layer", "head", "direction", "side"))
    hit = np.asarray(np.isin(ends[tuple(at)], list(tokens)).any(-1))
    chosen: pd.DataFrame = own.loc[hit][columns]
    return chosen.sort_values("share", ascending=False, kind="stable").reset_index(drop=True)
