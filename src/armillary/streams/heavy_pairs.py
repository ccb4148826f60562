"""The (query token, key token) pairs that a head favors most, in bounded memory, with a bound on what was missed.

Each text gives its PAIRS strongest pairs; joined lists are cut to PAIRS again. `missed` grows by the largest gain that
is cut each time. So the gain of any pair over all texts is at most its listed gain (0 if it is not listed) plus
`missed`.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.streams.looks import Look, Text, strongest
from armillary.streams.stream import State

PAIRS = 64
"""Pairs that are listed for every head."""

SUMS = 7
"""Attention, what distance explains, their squares and product (A A, A B, B B), pairs of positions, texts."""


def of_text(look: Look, text: Text, visible: Int[np.ndarray, "distinct distinct"]) -> State:
    """The state of one head and text; visible: how many pairs of positions have each pair of tokens."""
    places, cut = strongest(look.pairs, PAIRS)
    distinct = len(text.tokens)
    a, b = (part.reshape(-1)[places] for part in look.pairs)
    tokens = np.full((PAIRS, 2), -1, np.int64)
    tokens[: len(places)] = np.stack([text.tokens[places // distinct], text.tokens[places % distinct]], 1)
    sums = np.zeros((PAIRS, SUMS))
    counts = visible.reshape(-1)[places]
    sums[: len(places)] = np.stack([a, b, a * a, a * b, b * b, counts, np.ones(len(places))], 1)
    return {
        "pair_tokens": torch.from_numpy(tokens),
        "pair_sums": torch.from_numpy(sums),
        "pair_missed": torch.tensor(cut, dtype=torch.float64),
    }


def joined(a: State, b: State) -> State:
    """The lists of every head joined, and cut to PAIRS; ties by order."""
    tokens = torch.cat([a["pair_tokens"], b["pair_tokens"]], 1).numpy()
    sums = torch.cat([a["pair_sums"], b["pair_sums"]], 1).numpy()
    missed = (a["pair_missed"] + b["pair_missed"]).numpy().copy()
    new_tokens = np.full((len(tokens), PAIRS, 2), -1, np.int64)
    new_sums = np.zeros((len(tokens), PAIRS, SUMS))
    for head in range(len(tokens)):
        chosen, added = _together(tokens[head], sums[head])
        gain = added[:, 0] - added[:, 1]
        order = np.argsort(-gain, kind="stable")
        if len(order) > PAIRS:
            missed[head] += max(0.0, float(gain[order[PAIRS]]))
        order = order[:PAIRS]
        new_tokens[head, : len(order)], new_sums[head, : len(order)] = chosen[order], added[order]
    return {
        "pair_tokens": torch.from_numpy(new_tokens),
        "pair_sums": torch.from_numpy(new_sums),
        "pair_missed": torch.from_numpy(missed),
    }


def _together(
    tokens: Int[np.ndarray, "listed two"], sums: Float[np.ndarray, "listed sum"]
) -> tuple[Int[np.ndarray, "pair two"], Float[np.ndarray, "pair sum"]]:
    """Each pair once, in the order of first mention, with its sums added."""
    is_pair = tokens[:, 0] >= 0
    tokens, sums = tokens[is_pair], sums[is_pair]
    code = tokens[:, 0] * (1 << 32) + tokens[:, 1]
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    added = np.zeros((len(first), SUMS))
    np.add.at(added, number, sums)
    order = np.argsort(first, kind="stable")
    return tokens[first[order]], added[order]


def lift_and_error(
    sums: Float[Tensor, "*dims five"], texts: Float[Tensor, "*dims"]
) -> tuple[Float[Tensor, "*dims"], Float[Tensor, "*dims"], Float[Tensor, "*dims"]]:
    """Gain, lift and the lift's standard error over texts, from sums over texts of A, B, AA, AB, BB.

    lift = sum A / sum B, a ratio of means: se^2 = n / (n - 1) sum (A - lift B)^2 / (sum B)^2 over the n texts in which
    it occurs. Missing where nothing was expected; without an error where n < 2.
    """
    a, b, aa, ab, bb = sums.unbind(-1)
    lift = torch.where(b > 0, a / b, torch.nan)
    residual = (aa - 2 * lift * ab + lift.square() * bb).clamp(min=0)
    error = (residual * texts / (texts - 1)).sqrt() / b
    return a - b, lift, torch.where(texts > 1, error, torch.nan)
