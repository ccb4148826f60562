"""Which streams a scan keeps, and how what the tap sees reaches them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from armillary.anatomy.description import Anatomy, Rotary
from armillary.errors import ArmillaryError
from armillary.streams import (
    AttentionStatistics,
    ChunkNorms,
    Covariance,
    LaggedCovariance,
    OutputRank,
    PairMoments,
    PositionMoments,
    Stream,
    TokenSimilarity,
)
from armillary.streams.constituents import ConstituentShares, Means
from armillary.streams.stream import wide
from armillary.view import AttentionView

STREAMS = {
    "positions": "means and scatter by position and by sequence, of the residual stream and the attention input",
    "attention": "entropy, masses, distances and logits of every head",
    "chunks": "lengths of the rotary chunks of q, k and v, what they add to the logits and what turning them changes",
    "covariance": "covariance of the residual stream and the attention input (width x width for every layer)",
    "constituents": "shares of position and content in every head's logits (a second pass over a sample of the blocks)",
    "patterns": "what heads look at in text and in repeated random tokens, and what random heads would (for labels)",
    "lags": "covariance of tokens 1, 2, 4, ... apart (width x width for every layer and lag), and of q with k there",
}
DEFAULT_STREAMS = ("positions", "attention", "chunks", "covariance", "constituents", "patterns")


class NotFinite(Exception):
    """A NaN or an infinity was computed; `layer` is -1 for the embeddings, `rows` are those of the batch."""

    def __init__(self, layer: int, rows: list[int]) -> None:
        super().__init__(layer, rows)
        self.layer = layer
        self.rows = rows

    @property
    def place(self) -> str:
        return "the embeddings" if self.layer < 0 else f"layer {self.layer}"


@dataclass(frozen=True)
class Wanted:
    """What to accumulate: names of STREAMS, the positions left out of means, and the blocks' length."""

    streams: tuple[str, ...]
    skip: int
    length: int

    def __post_init__(self) -> None:
        unknown = [name for name in self.streams if name not in STREAMS]
        if unknown:
            raise ArmillaryError(f"there is no stream {unknown[0]!r}: there are {', '.join(STREAMS)}")
        if not self.streams:
            raise ArmillaryError(f"no stream was chosen: there are {', '.join(STREAMS)}")
        twice = [name for name in self.streams if self.streams.count(name) > 1]
        if twice:
            raise ArmillaryError(f"the stream {twice[0]!r} was named twice: name each once")
        if "constituents" in self.streams and "positions" not in self.streams:
            raise ArmillaryError("constituents need the means by position: --streams positions,constituents,...")
        if self.skip < 0:
            raise ArmillaryError(f"skip {self.skip} is no number of positions: it must be 0 or more")
        if self.skip >= self.length - 1:
            raise ArmillaryError(
                f"skip {self.skip} leaves nothing of blocks of {self.length}: use blocks of {self.skip + 2} tokens or "
                "more, or skip fewer positions"
            )

    @property
    def sampled_positions(self) -> list[int]:
        """Evenly spaced kept positions."""
        count = min(SAMPLED_POSITIONS, self.length - self.skip)
        return [self.skip + i * (self.length - self.skip) // count for i in range(count)]

    @property
    def lags(self) -> tuple[int, ...]:
        """1, 2, 4, ... as long as half of the kept tokens have a partner."""
        kept = self.length - self.skip
        return tuple(2**i for i in range(kept.bit_length()) if 2**i <= kept // 2)


SAMPLED_SEQUENCES = 24
SAMPLED_POSITIONS = 8
"""Of the first sequences, vectors of the residual stream at evenly spaced positions are kept, to be looked at."""


class Collector:
    """The streams of one shard. `streams` are merged across shards; `series` hold a row for every sequence.

    `sampled` is how many of the shard's first sequences give sample vectors.
    """

    def __init__(self, wanted: Wanted, anatomy: Anatomy, sampled: int = 0) -> None:
        self._sampled = sampled
        self._samples: dict[int, list[Tensor]] = {}
        self.wanted = wanted
        self.streams = new_streams(wanted, anatomy)
        self._anatomy = anatomy
        self._layers = len(anatomy.layers)
        self._series: dict[str, dict[int, list[Tensor]]] = {"residual": {}, "input": {}}

    def on_residual(self, layer: int, h: Tensor) -> None:
        refuse_not_finite(h, layer - 1)
        self._vectors("residual", layer, h)
        taken = sum(len(part) for part in self._samples.get(layer, []))
        if "positions" in self.wanted.streams and taken < self._sampled:
            part = h[: self._sampled - taken, self.wanted.sampled_positions].float().cpu()
            self._samples.setdefault(layer, []).append(part)

    def on_attention(self, view: AttentionView) -> None:
        for tensor in (view.q, view.k, view.v):
            refuse_not_finite(tensor, view.layer)
        if view.x is not None:
            self._vectors("input", view.layer, view.x)
            if "input.lag" in self.streams:
                self.streams["input.lag"].update(view.layer, view.x)
        if "attention.head" in self.streams:
            self.streams["attention.head"].update(view.layer, view)
            self.streams["attention.output"].update(view.layer, view)
        if "pairs.head" in self.streams:
            self.streams["pairs.head"].update(view.layer, view)
        if "rotary.chunk" in self.streams and isinstance(self._anatomy.layers[view.layer].position, Rotary):
            self.streams["rotary.chunk"].update(view.layer, view)

    def _vectors(self, group: str, layer: int, h: Tensor) -> None:
        if f"{group}.position" in self.streams:
            self.streams[f"{group}.position"].update(layer, h)
            if group == "residual":
                self.streams["residual.tokens"].update(layer, h)
            means = wide(h[:, self.wanted.skip :]).mean(1).cpu()
            self._series[group].setdefault(layer, []).append(means)
        if f"{group}.covariance" in self.streams:
            self.streams[f"{group}.covariance"].update(layer, h)

    def series(self) -> dict[str, Tensor]:
        """The mean vector of every sequence over its kept positions: (sequence, layer, width) for each group."""
        found = {}
        for group, layers in self._series.items():
            if layers:
                rows = {layer: torch.cat(parts) for layer, parts in layers.items()}
                missing = torch.full_like(next(iter(rows.values())), torch.nan)
                count = self._layers + (group == "residual")
                found[group] = torch.stack([rows.get(layer, missing) for layer in range(count)], 1)
        if self._samples:
            found["sample"] = torch.stack([torch.cat(self._samples[layer]) for layer in sorted(self._samples)], 1)
        return found


def new_streams(wanted: Wanted, anatomy: Anatomy) -> dict[str, Stream]:
    """Empty streams, named group.kind."""
    streams: dict[str, Stream] = {}
    for group in ("residual", "input"):
        if "positions" in wanted.streams:
            streams[f"{group}.position"] = Stream(PositionMoments())
            if group == "residual":
                streams["residual.tokens"] = Stream(TokenSimilarity(wanted.skip))
        if "covariance" in wanted.streams:
            streams[f"{group}.covariance"] = Stream(Covariance(wanted.skip))
    if "lags" in wanted.streams:
        streams["input.lag"] = Stream(LaggedCovariance(wanted.lags, wanted.skip))
    if "attention" in wanted.streams:
        streams["attention.head"] = Stream(AttentionStatistics(wanted.skip, wanted.length))
        streams["attention.output"] = Stream(OutputRank(wanted.skip))
    rotary = tuple(layer.position if isinstance(layer.position, Rotary) else None for layer in anatomy.layers)
    if "chunks" in wanted.streams and len({one.width for one in rotary if one is not None}) == 1:
        streams["rotary.chunk"] = Stream(ChunkNorms(rotary, wanted.skip, wanted.length))
    if "lags" in wanted.streams and not anatomy.missing:
        streams["pairs.head"] = Stream(PairMoments((0, *wanted.lags), rotary, wanted.skip, wanted.length))
    return streams


def has_constituents(wanted: Wanted, anatomy: Anatomy) -> bool:
    """Whether shares were asked for and can be had: an adapter must know the weights, and q and k must be sums."""
    return "constituents" in wanted.streams and not anatomy.missing and anatomy.layers[0].clip_qkv is None


def constituent_shares(wanted: Wanted, anatomy: Anatomy, first: dict[str, Stream]) -> ConstituentShares:
    """The statistic of the second round, given the merged streams of the first."""
    means = Means(first["input.position"].finish()["mean"].cpu(), wanted.skip)
    return ConstituentShares(anatomy, means, wanted.skip)


def refuse_not_finite(tensor: Tensor, layer: int) -> None:
    """Raise NotFinite with the rows of the batch that hold a NaN or an infinity."""
    if not torch.isfinite(tensor.sum()):
        bad = (~torch.isfinite(tensor)).flatten(1).any(1)
        if bad.any():
            raise NotFinite(layer, bad.nonzero()[:, 0].tolist())
