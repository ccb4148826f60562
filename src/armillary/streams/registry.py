"""The list of all streams; each is declared in the file of its statistic."""

from armillary.errors import unknown
from armillary.streams import (
    attention,
    chunks,
    constituents,
    moments,
    null,
    pairs,
    patterns,
    resting,
    similarity,
    sources,
    token_means,
    tokens,
)
from armillary.streams.declaration import Context, Declaration, Option, Pass
from armillary.streams.stream import Stream

DECLARATIONS: tuple[Declaration, ...] = (
    moments.RESIDUAL_POSITIONS,
    moments.INPUT_POSITIONS,
    similarity.TOKENS,
    attention.HEADS,
    similarity.OUTPUTS,
    chunks.ROTARY,
    moments.RESIDUAL_COVARIANCE,
    moments.INPUT_COVARIANCE,
    constituents.SHARES,
    patterns.IN_TEXT,
    resting.KEYS,
    null.IN_TEXT,
    patterns.IN_REPEATS,
    null.IN_REPEATS,
    moments.LAGS,
    pairs.HEADS,
    tokens.READ,
    token_means.MEANS,
    sources.SHARES,
)

OPTIONS: dict[str, Option] = {stream.option.name: stream.option for stream in DECLARATIONS}
"""The names that `scan(streams=...)` accepts."""

DEFAULT_STREAMS: tuple[str, ...] = tuple(option.name for option in OPTIONS.values() if option.default)


def declared(name: str) -> Declaration:
    """The declaration of the stream GROUP.KIND."""
    for stream in DECLARATIONS:
        if stream.name == name:
            return stream
    raise unknown("stream", name, [stream.name for stream in DECLARATIONS])


def option_of_group(group: str) -> str:
    """The name for `scan(streams=...)` that writes this group of the atlas; '' if none does."""
    return next((stream.option.name for stream in DECLARATIONS if stream.group == group), "")


def new_streams(options: tuple[str, ...], context: Context, when: Pass = Pass.FIRST) -> dict[str, Stream]:
    """Empty streams of a pass, by name: those of these options that apply to the model and the text."""
    chosen = [stream for stream in DECLARATIONS if stream.option.name in options and stream.when is when]
    statistics = {stream.name: stream.make(context) for stream in chosen}
    return {name: Stream(statistic) for name, statistic in statistics.items() if statistic is not None}
