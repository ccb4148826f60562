"""What one head reads in one text: attention on every key, on pairs of tokens and on relations, and what distance
alone explains of each. All sums are over kept pairs: the query and the key are not among the first `skip`."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from armillary.machine.compiler import trouble


@dataclass(frozen=True)
class Text:
    """A text's tokens: tokens[local[j]] is the token at j; before: local number of the token at j - 1 (-1 for the
    first); following: the next position with the token of j, or a large number."""

    tokens: Int[np.ndarray, "distinct"]
    local: Int[np.ndarray, "position"]
    before: Int[np.ndarray, "position"]
    following: Int[np.ndarray, "position"]

    @classmethod
    def of(cls, ids: Int[np.ndarray, "position"]) -> "Text":
        tokens, local = np.unique(ids, return_inverse=True)
        following = np.full(len(ids), 2 * len(ids))
        last: dict[int, int] = {}
        for place in range(len(ids) - 1, -1, -1):
            following[place] = last.get(int(ids[place]), 2 * len(ids))
            last[int(ids[place])] = place
        return cls(tokens, local.astype(np.int64), np.concatenate([[-1], local[:-1]]).astype(np.int64), following)


@dataclass(frozen=True)
class Look:
    """Sums of one head over one text; pairs of values are the attention and what distance explains of it.

    by_key: of every key, and the same over queries that see no later key with its token; by_relation: keys with the
    query's token, and keys after the query's token, both before the query; by_row: sum of max(a - explained, 0) of
    every query, and of max(a - max(1/n, explained), 0); pairs: by query token and key token (local numbers).
    """

    by_key: Float[np.ndarray, "four key"]
    by_relation: Float[np.ndarray, "two two"]
    by_row: Float[np.ndarray, "two row"]
    pairs: Float[np.ndarray, "two distinct distinct"]


def look(
    attention: Float[np.ndarray, "query key"],
    by_lag: Float[np.ndarray, "lag"],
    seen: Bool[np.ndarray, "query key"],
    skip: int,
    text: Text,
) -> Look:
    """by_lag: the head's mean attention at every lag i - j, from -(length - 1) on."""
    length, distinct = len(text.local), len(text.tokens)
    sums = Look(np.zeros((4, length)), np.zeros((2, 2)), np.zeros((2, length)), np.zeros((2, distinct, distinct)))
    if trouble():
        return _plain(attention, by_lag, seen, skip, text, sums)
    # for start-up: it imports numba, which may be missing
    from armillary.streams import compiled_looks

    compiled_looks.look(
        attention, by_lag, seen, skip, text.local, text.before, text.following, sums.by_key, sums.by_relation,
        sums.by_row, sums.pairs,
    )  # fmt: skip
    return sums


def _plain(
    attention: Float[np.ndarray, "query key"],
    by_lag: Float[np.ndarray, "lag"],
    seen: Bool[np.ndarray, "query key"],
    skip: int,
    text: Text,
    sums: Look,
) -> Look:
    """The same without a compiler."""
    place = np.arange(len(text.local))
    kept = seen & (place[:, None] >= skip) & (place >= skip)
    usual = by_lag[place[:, None] - place + len(place) - 1]
    a, explained = (np.where(kept, part, 0.0).astype(np.float64) for part in (attention, usual))
    latest = text.following > place[:, None]
    sums.by_key[:] = np.stack([part.sum(0) for part in (a, explained, a * latest, explained * latest)])
    earlier = place[:, None] > place
    for row, other in enumerate((text.local, text.before)):
        related = earlier & (text.local[:, None] == other)
        sums.by_relation[row] = (a * related).sum(), (explained * related).sum()
    even = 1 / np.maximum(seen.sum(1, keepdims=True), 1)
    sums.by_row[0] = np.maximum(a - explained, 0).sum(1)
    sums.by_row[1] = (np.maximum(a - np.maximum(even, explained), 0) * kept).sum(1)
    for part, values in zip(sums.pairs, (a, explained), strict=True):
        np.add.at(part, (text.local[:, None], text.local[None]), values)
    return sums


def strongest(pairs: Float[np.ndarray, "two distinct distinct"], most: int) -> tuple[Int[np.ndarray, "pair"], float]:
    """The flat places of at most `most` pairs with the largest positive gains, largest first; the largest gain that was
    left out (0 if none)."""
    if trouble():
        gain = (pairs[0] - pairs[1]).reshape(-1)
        order = np.argsort(-gain, kind="stable")[: most + 1]
        order = order[gain[order] > 0]
        return order[:most], float(gain[order[most]]) if len(order) > most else 0.0
    # for start-up: it imports numba, which may be missing
    from armillary.streams import compiled_looks

    places, gains = np.zeros(most, np.int64), np.zeros(most + 1)
    count = compiled_looks.strongest(pairs, places, gains)
    return places[:count], float(gains[most])
