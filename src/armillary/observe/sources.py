"""Shares of what wrote the stream in every head's logits (query and key side) and output (value side), exactly."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.sources import OTHERS, SIDES, places, source_names
from armillary.errors import ArmillaryError
from armillary.machine.float64 import WITHOUT
from armillary.observe.reading import Reading, reading
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView
from armillary.observe.writers import BIASES, Recording, Stream

AT_ONCE = 8_000_000
"""Positions are taken so that the parts of the stream have about this many numbers (64 MB) at a time."""

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}
"""A larger rest is no rounding: the family is not understood. (Half precision: a tenth.)"""


class Sources:
    """Splits the logits and outputs of all heads by source, one sequence at a time.

    Memory: the recorded run (a few times the stream) and 64 MB of its parts, whatever the number of sequences.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy, skip: int) -> None:
        device = next(model.parameters()).device.type
        if device in WITHOUT:
            raise ArmillaryError(
                f"sources are split in float64, which the device {device!r} does not have", advice="scan on the CPU"
            )
        self.model, self.anatomy, self.skip = model, anatomy, skip
        self.stream = Stream(model, anatomy)
        self.names = source_names(anatomy)
        self._index = {place: len(OTHERS) + i for i, (place, _) in enumerate(places(anatomy))}

    @torch.no_grad()
    def products(self, run: Callable[[], Any]) -> dict[int, dict[str, Tensor]]:
        """For each layer, `products` (side, head, source) with b or o, and their `total` (side, head), of one sequence.

        `run` runs the model on that sequence.
        """
        readings, dtype = self._read(run)
        recording = self._recording
        rows_at_once = self.rows_at_once(recording)
        sums: dict[int, Tensor] = {}
        for start in range(0, recording.length, rows_at_once):
            rows = slice(start, min(start + rows_at_once, recording.length))

            def receive(layer: int, parts: Float[Tensor, "part token d"], rows: slice = rows) -> None:
                products = _products(readings[layer], parts, rows)
                sums[layer] = sums[layer] + products if layer in sums else products

            with self.stream.replaying(recording, rows, _until_last(receive, max(readings))), suppress(Enough):
                run()
        return {layer: self._state(readings[layer], sums[layer], recording, dtype, layer) for layer in readings}

    def _read(self, run: Callable[[], Any]) -> tuple[dict[int, Reading], torch.dtype]:
        readings: dict[int, Reading] = {}
        dtypes: list[torch.dtype] = []

        def receive(view: AttentionView) -> None:
            if len(view.q) != 1:
                raise ArmillaryError("sources are split for one sequence at a time")
            dtypes.append(view.q.dtype)
            readings[view.layer] = reading(self.anatomy, view, self.skip)

        with Tap(self.model, receive, part=self.anatomy.part):
            self._recording = self.stream.record(run)
        return readings, dtypes[0]

    def rows_at_once(self, recording: Recording) -> int:
        """How many positions are split at a time."""
        return max(1, AT_ONCE // (len(self.names) * recording.width))

    def indices(self, recording: Recording) -> list[int]:
        """The place in `names` of every part of the recorded stream."""
        return [
            part if part <= BIASES else self._index[str(kind), block, head]
            for part, (kind, block, head) in enumerate(recording.sources())
        ]

    def _state(
        self, read: Reading, sums: Float[Tensor, "side head part"], recording: Recording, dtype: torch.dtype, layer: int
    ) -> dict[str, Tensor]:
        products = sums.new_zeros(*sums.shape[:2], len(self.names))
        for part, index in enumerate(self.indices(recording)[: sums.shape[2]]):
            products[:, :, index] += sums[:, :, part]
        products[:, :, BIASES] += read.biases
        products[:, :, OTHERS.index("position bias")] = read.position
        rest = read.total - products.sum(-1)
        worst = float((rest / read.total.clamp(min=1e-300)).abs().max())
        if not worst <= TOLERANCE.get(dtype, 0.1):
            raise ArmillaryError(
                f"what wrote the stream does not add up to what layer {layer} reads (a share of {worst:.2g} is left): "
                f"the sources of {self.anatomy.family} models are not known"
            )
        products[:, :, OTHERS.index("rounding")] = rest
        return {"products": products, "total": read.total}


def _products(read: Reading, parts: Float[Tensor, "part token d"], rows: slice) -> Float[Tensor, "side head part"]:
    """The sum over these positions of r.x for every side, head and part of x."""
    directions = torch.cat([read.directions(side, rows) for side in range(len(SIDES))])  # (side head, token, d)
    by_token = parts.transpose(0, 1) @ directions.permute(1, 2, 0)  # (token, part, side head)
    summed = by_token.sum(0).T
    return summed.reshape(len(SIDES), -1, summed.shape[1])


class Enough(Exception):
    """The last layer has been read: the rest of the model need not run."""


def _until_last(
    receive: Callable[[int, Float[Tensor, "part token d"]], None], last: int
) -> Callable[[int, Float[Tensor, "part token d"]], None]:
    def receiving(layer: int, parts: Float[Tensor, "part token d"]) -> None:
        receive(layer, parts)
        if layer == last:
            raise Enough

    return receiving
