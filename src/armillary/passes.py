"""The rounds that a scan makes after its first: the means are then known, and random heads can be asked too."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from armillary.anatomy.description import Anatomy
from armillary.collector import Wanted, constituent_shares, has_constituents
from armillary.streams import Stream
from armillary.streams.null import OfRandomHeads
from armillary.streams.patterns import NEAR, TEXT, Masses, repeats
from armillary.streams.resting import KeyMasses, most_seen
from armillary.streams.stream import Statistic

PROBES = 16
"""Blocks of repeated random tokens, and blocks of text on which random heads are asked."""

DRAWS = 4
"""Random heads in the place of every head."""

LONGEST_PERIOD = 64
"""Tokens that are said twice, at most, so that the scores of scans with long blocks can be compared."""


@dataclass(frozen=True)
class Pass:
    """One round: which blocks go through the model, and which statistics see every layer's attention.

    Its shards are computed and merged like those of the first round, so they may run anywhere.
    """

    name: str
    tokens: Int[np.ndarray, "block token"]
    statistics: dict[str, Statistic]

    def streams(self) -> dict[str, Stream]:
        """Empty streams, named group.kind."""
        return {name: Stream(statistic) for name, statistic in self.statistics.items()}


def further_passes(
    wanted: Wanted,
    anatomy: Anatomy,
    tokens: Int[np.ndarray, "block token"],
    first: dict[str, Stream],
    *,
    sample: int,
    seed: int,
) -> list[Pass]:
    """The rounds that these streams ask for, on the blocks that are good; `first` is what the first round merged to.

    sample: the first `sample` blocks again, for the constituents and the patterns; null: random heads on a few blocks
    of text; repeats: real and random heads on random tokens said twice.
    """
    again: dict[str, Statistic] = {}
    if has_constituents(wanted, anatomy):
        again["constituents.share"] = constituent_shares(wanted, anatomy, first)
    found = []
    if "patterns" in wanted.streams:
        again["patterns.text"] = Masses(TEXT, wanted.skip)
        tracked = most_seen(tokens[:sample], all(layer.causal for layer in anatomy.layers))
        again["patterns.key"] = KeyMasses(tracked, wanted.skip, wanted.length)
        if not anatomy.missing:
            random = OfRandomHeads(Masses(TEXT, wanted.skip), anatomy, DRAWS, seed)
            found.append(Pass("null", tokens[:PROBES], {"null.text": random}))
        twice, period, before = repeated_blocks(tokens, anatomy, seed)
        if period:
            scores = Masses(repeats(period, before), 0, among="duplicate")
            asked: dict[str, Statistic] = {"patterns.repeat": scores}
            if not anatomy.missing:
                asked["null.repeat"] = OfRandomHeads(scores, anatomy, DRAWS, seed)
            found.append(Pass("repeats", twice, asked))
    return [Pass("sample", tokens[:sample], again), *found] if again else found


def repeated_blocks(
    tokens: Int[np.ndarray, "block token"], anatomy: Anatomy, seed: int
) -> tuple[Int[np.ndarray, "probe said"], int, int]:
    """PROBES blocks that say random tokens twice, how many tokens that is, and where they begin.

    No blocks and 0 where blocks or windows have no room for two copies that are not near each other. They begin and end
    with the token that all blocks of the text begin or end with, if there is one. The others are drawn from the text's
    own (from the whole vocabulary where it has few); none stands twice in a copy where there are enough.
    """
    several = len(tokens) > 1
    before = tokens[:1, :1] if several and len(set(tokens[:, 0])) == 1 else tokens[:1, :0]
    after = tokens[:1, -1:] if several and len(set(tokens[:, -1])) == 1 else tokens[:1, :0]
    room = tokens.shape[1] - before.shape[1] - after.shape[1]
    windows = [layer.window // 2 for layer in anatomy.layers if layer.window is not None]
    period = min(LONGEST_PERIOD, room // 2, *windows)
    if period - 1 <= NEAR:  # what followed the other copy would be near, where heads look for other reasons
        return tokens[:0], 0, 0
    generator = np.random.default_rng(seed)
    known = np.setdiff1d(tokens, np.concatenate([before[0], after[0]]))  # no special or untrained tokens
    if len(known) < 2 * period:
        known = np.arange(anatomy.vocabulary)
    copies = [generator.choice(known, period, replace=len(known) < period) for _ in range(PROBES)]
    rows = [np.concatenate([before[0], copy, copy, after[0]]) for copy in copies]
    return np.array(rows, dtype=np.int64), period, before.shape[1]
