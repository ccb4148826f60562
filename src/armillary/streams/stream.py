"""The Stream (one state per layer) and the Statistic (how to measure a batch and combine two states)."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

State = dict[str, Tensor]
"""Tensors (float64 or integer) that summarize all batches so far; their size does not grow with the batches."""


@runtime_checkable
class Statistic(Protocol):
    """What a stream computes. `combine` is associative, up to rounding; `dims` names the axes of each result."""

    dims: dict[str, tuple[str, ...]]

    def measure(self, batch: Any) -> State:
        """The state of one batch."""

    def combine(self, a: State, b: State) -> State:
        """The state of everything in a, then everything in b."""

    def finish(self, state: State) -> dict[str, Tensor]:
        """The results."""


Axes = dict[str, tuple[tuple[str, ...], np.ndarray]]
"""Labels of axes by name, each with its dimensions."""


@runtime_checkable
class HasAxes(Protocol):
    """A statistic with labels for its axes, such as which lags or tokens it counts."""

    def axes(self) -> Axes:
        """The labels, to be written with the results."""


def stacked(rows: list[Tensor], dims: tuple[str, ...]) -> Tensor:
    """The layers' results as one tensor, also where layers differ in their sizes (see `fitted`)."""
    shape = tuple(max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True))
    return torch.stack([fitted(row, dims, shape) for row in rows])


def fitted(row: Tensor, dims: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
    """A layer's result in the shape that it has in the widest layer.

    A layer with fewer key heads repeats each of them, so that head a reads key head a // group in every layer; narrower
    heads are filled up with NaN.
    """
    if tuple(row.shape) == shape:
        return row
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=False)):
        if dim == "kv_head" and size % row.shape[axis] == 0:
            row = row.repeat_interleave(size // row.shape[axis], axis)
    whole = row.new_full(shape, torch.nan)
    whole[tuple(slice(size) for size in row.shape)] = row
    return whole


class Stream:
    """A statistic of every layer, accumulated batch by batch."""

    def __init__(self, statistic: Statistic) -> None:
        self.statistic = statistic
        self.states: dict[int, State] = {}

    def update(self, layer: int, batch: Any) -> None:
        """Add one batch of one layer."""
        self._add(layer, self.statistic.measure(batch))

    def merge(self, other: "Stream") -> None:
        """Add everything in `other`, after what this stream has."""
        for layer, state in other.states.items():
            self._add(layer, state)

    def to_cpu(self) -> None:
        """Move the states to main memory, where shards are merged."""
        self.states = {
            layer: {name: tensor.cpu() for name, tensor in state.items()} for layer, state in self.states.items()
        }

    def _add(self, layer: int, state: State) -> None:
        before = self.states.get(layer)
        self.states[layer] = state if before is None else self.statistic.combine(before, state)

    def finish(self, layers: int | None = None) -> dict[str, Tensor]:
        """Each result with a leading axis of `layers` layers (by default, up to the last one with a state).

        Layers without a state, such as those without attention in a mixed model, are NaN.
        """
        if not self.states:
            return {}
        results = {layer: self.statistic.finish(state) for layer, state in self.states.items()}
        count = max(results) + 1 if layers is None else layers
        first = next(iter(results.values()))
        missing = {name: torch.full_like(tensor, torch.nan) for name, tensor in first.items()}
        rows = [results.get(layer, missing) for layer in range(count)]
        return {name: stacked([row[name] for row in rows], self.statistic.dims.get(name, ())) for name in first}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The states as named tensors, for writing to a file."""
        for layer, state in self.states.items():
            for name, tensor in state.items():
                yield f"{layer}.{name}", tensor

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        for key, tensor in tensors.items():
            layer, _, name = key.partition(".")
            self.states.setdefault(int(layer), {})[name] = tensor
