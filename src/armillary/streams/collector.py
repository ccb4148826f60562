"""Passes what the tap observes to the streams of the first pass."""

import torch
from torch import Tensor

from armillary.anatomy.description import Anatomy, Rotary
from armillary.observe.precision import wide
from armillary.observe.view import AttentionView
from armillary.streams.declaration import Declaration, Reads
from armillary.streams.registry import declared
from armillary.streams.stream import Stream
from armillary.streams.wanted import Wanted


class NotFinite(Exception):
    """A NaN or an infinity was computed; `layer` is -1 for the embeddings, `rows` are those of the batch."""

    def __init__(self, layer: int, rows: list[int]) -> None:
        super().__init__(layer, rows)
        self.layer = layer
        self.rows = rows

    @property
    def place(self) -> str:
        return "the embeddings" if self.layer < 0 else f"layer {self.layer}"


class Collector:
    """The streams of one shard. `streams` are merged across shards; `series` hold a row for every sequence.

    `sampled`: the number of the shard's first sequences whose sample vectors are stored.
    """

    def __init__(self, wanted: Wanted, anatomy: Anatomy, sampled: int = 0) -> None:
        self._sampled = sampled
        self._samples: dict[int, list[Tensor]] = {}
        self.wanted = wanted
        self.streams = wanted.first_streams(anatomy)
        self._readers = {
            reads: [
                (stream, self.streams[stream.name]) for stream in map(declared, self.streams) if stream.reads is reads
            ]
            for reads in Reads
        }
        self._has_rotary = [isinstance(layer.position, Rotary) for layer in anatomy.layers]
        self._layers = len(anatomy.layers)
        self._series: dict[str, dict[int, list[Tensor]]] = {"residual": {}, "input": {}}

    def on_residual(self, layer: int, h: Tensor) -> None:
        refuse_not_finite(h, layer - 1)
        self._vectors("residual", Reads.RESIDUAL, layer, h)
        taken = sum(len(part) for part in self._samples.get(layer, []))
        if "positions" in self.wanted.streams and taken < self._sampled:
            part = h[: self._sampled - taken, self.wanted.sampled_positions].float().cpu()
            self._samples.setdefault(layer, []).append(part)

    def on_attention(self, view: AttentionView) -> None:
        for tensor in (view.q, view.k, view.v):
            refuse_not_finite(tensor, view.layer)
        if view.x is not None:
            self._vectors("input", Reads.INPUT, view.layer, view.x)
        for declaration, stream in self._readers[Reads.ATTENTION]:
            if self._has_rotary[view.layer] or not declaration.rotary_layers:
                stream.update(view.layer, view)

    def _vectors(self, group: str, reads: Reads, layer: int, vectors: Tensor) -> None:
        """Update the streams that read these vectors, and store the mean vector of every sequence."""
        readers: list[tuple[Declaration, Stream]] = self._readers[reads]
        for _, stream in readers:
            stream.update(layer, vectors)
        if "positions" in self.wanted.streams:
            means = wide(vectors[:, self.wanted.skip :]).mean(1).cpu()
            self._series[group].setdefault(layer, []).append(means)

    def series(self) -> dict[str, Tensor]:
        """The mean vector of every sequence over its kept positions: (sequence, layer, width) for each group."""
        series = {}
        for group, layers in self._series.items():
            if layers:
                rows = {layer: torch.cat(parts) for layer, parts in layers.items()}
                missing = torch.full_like(next(iter(rows.values())), torch.nan)
                count = self._layers + (group == "residual")
                series[group] = torch.stack([rows.get(layer, missing) for layer in range(count)], 1)
        if self._samples:
            series["sample"] = torch.stack([torch.cat(self._samples[layer]) for layer in sorted(self._samples)], 1)
        return series


def refuse_not_finite(tensor: Tensor, layer: int) -> None:
    """Raise NotFinite with the rows of the batch that hold a NaN or an infinity."""
    if not torch.isfinite(tensor.sum()):
        bad = (~torch.isfinite(tensor)).flatten(1).any(1)
        if bad.any():
            raise NotFinite(layer, bad.nonzero()[:, 0].tolist())
