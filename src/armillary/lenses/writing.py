"""What heads write and match, as a table: directions of their weights with the tokens at both ends."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from armillary.atlas.texts import texts_of

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

SHOWN = 6
"""Tokens at each end."""


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """copying_score, where the model has an unembedding."""
    if not _has_writes(atlas):
        return pd.DataFrame()
    return pd.DataFrame({"copying_score": atlas.group("vocabulary")["copying_score"].to_numpy().reshape(-1)})


def _has_writes(atlas: "Atlas") -> bool:
    return atlas.has("vocabulary") and "copying_score" in atlas.group("vocabulary")


def copying_words(atlas: "Atlas") -> list[str]:
    """For every head: 'copies what it reads' if its copying score is above 1/2 and above all random heads, 'suppresses
    what it reads' if it is below -1/2 and below all of them, else ''."""
    if not _has_writes(atlas):
        return [""] * len([head for layer in atlas.anatomy.layers for head in range(layer.heads)])
    scores = atlas.group("vocabulary")["copying_score"].to_numpy()
    draws = atlas.group("vocabulary")["copying_random"].to_numpy()
    words = []
    for score, random in zip(scores, draws, strict=True):
        for value in score:
            copies, suppresses = value > max(0.5, random.max()), value < min(-0.5, random.min())
            words.append("copies what it reads" if copies else "suppresses what it reads" if suppresses else "")
    return words


def write_table(atlas: "Atlas") -> pd.DataFrame:
    """layer, head, kind, direction, share, side, source, target: a row for each side of each direction.

    kind 'writes': W_v W_o, from tokens that it reads (through E) to tokens whose logits it raises (through U). kind
    'matches': W_q W_k', from tokens that ask to tokens that are found; by E in layer 0, by token means above.
    """
    columns = ["layer", "head", "kind", "direction", "share", "side", "source", "target"]
    if not _has_writes(atlas):
        return pd.DataFrame(columns=columns)
    arrays, words = atlas.group("vocabulary"), texts_of(atlas)
    rows: list[dict[str, Any]] = []
    kinds = {"writes": ("write_share", "read_end", "write_end"), "matches": ("match_share", "query_end", "key_end")}
    for kind, names in kinds.items():
        if names[0] not in arrays:
            continue
        share, source, target = (arrays[name].to_numpy() for name in names)
        for layer in atlas.anatomy.layers:
            for head in range(layer.heads):
                for place in np.flatnonzero(share[layer.index, head] > 0):
                    for side in range(2):
                        here = (layer.index, head, place, side)
                        row = {"layer": layer.index, "head": head, "kind": kind, "direction": int(place), "side": side}
                        row |= {"share": share[layer.index, head, place]}
                        ends = {"source": source[here], "target": target[here]}
                        shown = {
                            name: " ".join(words.shown(int(t)) for t in ids if t >= 0) for name, ids in ends.items()
                        }
                        rows.append(row | shown)
    return pd.DataFrame(rows, columns=columns)
