"""Which few fixed keys a head rests on, in words: positions that are the same in every text, or tokens."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from armillary.atlas import Atlas

FEW = 4
"""More keys than this are not few."""


def rests_on(atlas: "Atlas") -> list[str]:
    """Of every head, the fewest positions, or tokens, whose attention above chance is more than half of its focus.

    Empty where FEW are not enough, and for heads that are not focused. Tokens stand beside the first token of the text,
    which is told as such; where positions and tokens both do, the fewer are told, and positions if they are as many.
    """
    found = atlas.group("patterns")
    focus = found["text_focus"].to_numpy().reshape(-1)
    if "key_position_gain" not in found:
        return [""] * len(focus)
    positions = _by_head(found["key_position_gain"].to_numpy())
    tokens = _by_head(found["key_token_gain"].to_numpy())
    names = token_names(atlas)
    told = []
    for head, whole in enumerate(focus):
        if not whole > 0.5:  # also of a head whose attention was never seen
            told.append("")
            continue
        places = fewest(positions[head], whole)
        words = fewest(np.concatenate([positions[head, :1], tokens[head]]), whole)
        if places is not None and (words is None or len(places) <= len(words)):
            told.append(_positions(places))
        else:
            told.append("" if words is None else _tokens(words, names))
    return told


def fewest(gain: Float[np.ndarray, "key"], whole: float) -> list[int] | None:
    """The fewest of these keys that have more than half of the whole, the largest first; None if FEW do not."""
    order = np.argsort(-gain, kind="stable")[:FEW]
    enough = np.flatnonzero(np.cumsum(gain[order]) > whole / 2)
    return order[: enough[0] + 1].tolist() if len(enough) else None


def token_names(atlas: "Atlas") -> list[str]:
    """How each token that was counted is written, in quotes; its number where the scan had no tokenizer."""
    names = atlas.group("corpus").attrs.get("token_names", {})
    numbers = atlas.group("patterns")["key_token"].to_numpy().tolist()
    return [repr(names[str(number)]) if str(number) in names else f"token {number}" for number in numbers]


def _positions(chosen: list[int]) -> str:
    return ("position " if len(chosen) == 1 else "positions ") + _listed([str(place) for place in sorted(chosen)])


def _tokens(chosen: list[int], names: list[str]) -> str:
    return _listed(["the first token" if place == 0 else names[place - 1] for place in chosen])


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _by_head(values: Float[np.ndarray, "layer head key"]) -> Float[np.ndarray, "row key"]:
    return values.reshape(-1, values.shape[-1])
