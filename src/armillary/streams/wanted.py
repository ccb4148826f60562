"""The settings of a scan that its streams need: their names, the positions left out, the length of sequences."""

from dataclasses import dataclass

from armillary.anatomy.description import Anatomy
from armillary.errors import ArmillaryError, unknown
from armillary.streams.declaration import Context, Pass
from armillary.streams.registry import OPTIONS, new_streams
from armillary.streams.stream import Stream

SAMPLED_SEQUENCES = 24
SAMPLED_POSITIONS = 8
"""Vectors of the residual stream are stored for figures: of the first sequences, at evenly spaced positions."""


@dataclass(frozen=True)
class Wanted:
    """Names of streams (registry.OPTIONS), the positions left out of means, and the length of sequences."""

    streams: tuple[str, ...]
    skip: int
    length: int

    def __post_init__(self) -> None:
        if not self.streams:
            raise ArmillaryError("no stream was chosen", advice=f"there are {', '.join(OPTIONS)}", expected=[*OPTIONS])
        for name in self.streams:
            if name not in OPTIONS:
                raise unknown("stream", name, OPTIONS)
            if self.streams.count(name) > 1:
                raise ArmillaryError(f"the stream {name!r} was named twice", advice="name each once", given=name)
            needed = OPTIONS[name].needs
            if needed is not None and needed.name not in self.streams:
                raise ArmillaryError(
                    f"the stream {name!r} is computed from {needed.name!r}",
                    advice=f"`streams={needed.name},{name},...`",
                    given=self.streams,
                )
        if self.skip < 0:
            raise ArmillaryError(f"`skip={self.skip}` is negative", advice="it must be 0 or more")
        if self.skip >= self.length - 1:
            raise ArmillaryError(
                f"`skip={self.skip}` leaves too little of sequences of {self.length} tokens",
                advice=f"use sequences of {self.skip + 2} tokens or more, or skip fewer positions",
            )

    @property
    def sampled_positions(self) -> list[int]:
        """Evenly spaced kept positions."""
        count = min(SAMPLED_POSITIONS, self.length - self.skip)
        return [self.skip + i * (self.length - self.skip) // count for i in range(count)]

    def context(self, anatomy: Anatomy) -> Context:
        """The context for statistics of the first pass."""
        return Context(anatomy, self.skip, self.length)

    def first_streams(self, anatomy: Anatomy) -> dict[str, Stream]:
        """Empty streams of the first pass, by name."""
        return new_streams(self.streams, self.context(anatomy), Pass.FIRST)
