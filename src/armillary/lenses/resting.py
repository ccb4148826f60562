"""The column rests_on: the few positions or tokens that most of a head's focused attention goes to, in words."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

FEW = 4
"""At most this many keys are named."""


def rests_on(atlas: "Atlas") -> list[str]:
    """For every head, the fewest positions, or tokens, whose attention above chance is more than half of its focus.

    Empty where FEW are not enough, and for heads that are not focused. The tokens may include the first token of the
    text. If both positions and tokens are enough, the shorter list is given, and positions if both are as long.
    """
    arrays = atlas.group("patterns")
    focus = arrays["text_focus"].to_numpy().reshape(-1)
    if "key_position_gain" not in arrays:
        return [""] * len(focus)
    positions = _by_head(arrays["key_position_gain"].to_numpy())
    tokens = _by_head(arrays["key_token_gain"].to_numpy())
    names = token_names(atlas)
    descriptions = []
    for head, head_focus in enumerate(focus):
        if not head_focus > 0.5:  # also true for NaN: no attention was observed
            descriptions.append("")
            continue
        chosen_positions = fewest(positions[head], head_focus)
        chosen_tokens = fewest(np.concatenate([positions[head, :1], tokens[head]]), head_focus)
        if chosen_positions is not None and (chosen_tokens is None or len(chosen_positions) <= len(chosen_tokens)):
            descriptions.append(_positions(chosen_positions))
        else:
            descriptions.append("" if chosen_tokens is None else _tokens(chosen_tokens, names))
    return descriptions


def fewest(gain: Float[np.ndarray, "key"], whole: float) -> list[int] | None:
    """The fewest keys whose gains add to more than half of the whole, largest first; None if FEW are not enough."""
    order = np.argsort(-gain, kind="stable")[:FEW]
    enough = np.flatnonzero(np.cumsum(gain[order]) > whole / 2)
    return order[: enough[0] + 1].tolist() if len(enough) else None


def token_names(atlas: "Atlas") -> list[str]:
    """The text of each counted token, in quotes; its number where the scan had no tokenizer."""
    names = atlas.group("corpus").attrs.get("token_names", {})
    numbers = atlas.group("patterns")["key_token"].to_numpy().tolist()
    return [repr(names[str(number)]) if str(number) in names else f"token {number}" for number in numbers]


def _positions(chosen: list[int]) -> str:
    return ("position " if len(chosen) == 1 else "positions ") + listed([str(place) for place in sorted(chosen)])


def _tokens(chosen: list[int], names: list[str]) -> str:
    return listed(["the first token" if place == 0 else names[place - 1] for place in chosen])


def listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _by_head(values: Float[np.ndarray, "layer head key"]) -> Float[np.ndarray, "row key"]:
    return values.reshape(-1, values.shape[-1])
