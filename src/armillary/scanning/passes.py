"""Plans the passes after the first, once the means are known; workers receive the plan."""

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from armillary.anatomy.description import Anatomy
from armillary.streams.attention import AttentionStatistics
from armillary.streams.declaration import Context, Pass
from armillary.streams.patterns import NEAR
from armillary.streams.registry import new_streams
from armillary.streams.resting import most_seen
from armillary.streams.sources import SEQUENCES
from armillary.streams.stream import Stream
from armillary.streams.tokens import READ_TOKENS, TOKENS
from armillary.streams.wanted import Wanted
from armillary.text.vocabulary import Vocabulary

PROBES = 8
"""Number of sequences of repeated random tokens: scores are means over 8 x 64 rows, with standard errors below 0.02."""

LONGEST_PERIOD = 64
"""At most this many tokens are repeated, so that scores of scans with long sequences can be compared."""

FURTHER = (Pass.SAMPLE, Pass.REPEATS, Pass.SOURCES)


@dataclass(frozen=True)
class FurtherPasses:
    """What the passes after the first compute; the driver sends it to every worker, without the tokens."""

    wanted: Wanted
    seed: int
    means: Float[Tensor, "layer position width"] | None
    tracked_tokens: tuple[int, ...]
    period: int
    before: int
    read_tokens: tuple[int, ...] = ()
    by_lag: dict[int, Float[Tensor, "head lag"]] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    tokens: dict[Pass, Int[np.ndarray, "sequence token"]] = field(default_factory=dict)

    def streams(self, when: Pass, anatomy: Anatomy) -> dict[str, Stream]:
        """Empty streams of a pass, by name; none if they do not apply to this model or text."""
        context = Context(
            anatomy,
            self.wanted.skip,
            self.wanted.length,
            seed=self.seed,
            means=self.means,
            tracked_tokens=self.tracked_tokens,
            period=self.period,
            before=self.before,
            read_tokens=self.read_tokens,
            by_lag=self.by_lag,
            vocabulary=self.vocabulary,
        )
        return new_streams(self.wanted.streams, context, when)

    def to_run(self, anatomy: Anatomy) -> list[Pass]:
        """The passes that have anything to compute."""
        return [when for when in FURTHER if self.streams(when, anatomy)]

    def for_workers(self) -> "FurtherPasses":
        """The same without the tokens, which come with each task."""
        return replace(self, tokens={})


def plan_further(
    wanted: Wanted,
    anatomy: Anatomy,
    tokens: Int[np.ndarray, "sequence token"],
    first: dict[str, Stream],
    *,
    sample: int,
    seed: int,
    vocabulary: Vocabulary | None = None,
) -> FurtherPasses:
    """Plan the passes on the sequences that gave finite numbers; `first` are the merged streams of the first pass.

    SAMPLE reads the first `sample` sequences again, REPEATS repeated random tokens, SOURCES a few sequences.
    """
    repeated, period, before = repeated_sequences(tokens, anatomy, seed)
    positions = first.get("input.position")
    causal = all(layer.causal for layer in anatomy.layers)
    reads_tokens = TOKENS.name in wanted.streams
    return FurtherPasses(
        wanted,
        seed,
        None if positions is None or not positions.states else positions.finish()["mean"].cpu(),
        most_seen(tokens[:sample], causal),
        period,
        before,
        most_seen(tokens[:sample], causal, READ_TOKENS) if reads_tokens else (),
        mean_by_lag(first) if reads_tokens else {},
        vocabulary,
        {Pass.SAMPLE: tokens[:sample], Pass.REPEATS: repeated, Pass.SOURCES: tokens[:SEQUENCES]},
    )


def mean_by_lag(first: dict[str, Stream]) -> dict[int, Float[Tensor, "head lag"]]:
    """The mean attention of every layer's heads by lag, in float32."""
    stream = first.get("attention.head")
    states = {} if stream is None else stream.states
    return {layer: AttentionStatistics.attention_by_lag(state).float().cpu() for layer, state in states.items()}


def repeated_sequences(
    tokens: Int[np.ndarray, "sequence token"], anatomy: Anatomy, seed: int
) -> tuple[Int[np.ndarray, "probe position"], int, int]:
    """PROBES sequences of repeated random tokens, the number of tokens repeated, and where the first copy begins.

    No sequences, 0 and 0 if the sequences or windows are too short for two copies that are not near each other. If all
    sequences of the text begin or end with the same token, so do these. The repeated tokens are drawn from those of the
    text (or the whole vocabulary, if there are too few), without replacement within a copy where possible.
    """
    several = len(tokens) > 1
    before = tokens[:1, :1] if several and len(set(tokens[:, 0])) == 1 else tokens[:1, :0]
    after = tokens[:1, -1:] if several and len(set(tokens[:, -1])) == 1 else tokens[:1, :0]
    room = tokens.shape[1] - before.shape[1] - after.shape[1]
    windows = [layer.reach // 2 for layer in anatomy.layers if layer.reach is not None]
    period = min(LONGEST_PERIOD, room // 2, *windows)
    if period - 1 <= NEAR:  # the induction target would be a nearby token
        return tokens[:0], 0, 0
    generator = np.random.default_rng(seed)
    drawn_from = np.setdiff1d(tokens, np.concatenate([before[0], after[0]]))  # no special or untrained tokens
    if len(drawn_from) < 2 * period:
        drawn_from = np.arange(anatomy.vocabulary)
    copies = [generator.choice(drawn_from, period, replace=len(drawn_from) < period) for _ in range(PROBES)]
    rows = [np.concatenate([before[0], copy, copy, after[0]]) for copy in copies]
    return np.array(rows, dtype=np.int64), period, before.shape[1]
