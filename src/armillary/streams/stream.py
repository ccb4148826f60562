"""A stream keeps one state per layer; a statistic says how to measure a batch and how to combine two states."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

State = dict[str, Tensor]
"""Float64 (or whole) numbers that sum up all the batches seen so far; memory does not depend on how many."""


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


class Stream:
    """A statistic of every layer, accumulated batch by batch."""

    def __init__(self, statistic: Statistic) -> None:
        self.statistic = statistic
        self.states: dict[int, State] = {}

    def update(self, layer: int, batch: Any) -> None:
        """Take in one batch of one layer."""
        self._add(layer, self.statistic.measure(batch))

    def merge(self, other: "Stream") -> None:
        """Take in everything that `other` saw, as coming after what this stream saw."""
        for layer, state in other.states.items():
            self._add(layer, state)

    def to_cpu(self) -> None:
        """Move the states to main memory, where shards are merged whatever they were computed on."""
        self.states = {
            layer: {name: tensor.cpu() for name, tensor in state.items()} for layer, state in self.states.items()
        }

    def _add(self, layer: int, state: State) -> None:
        before = self.states.get(layer)
        self.states[layer] = state if before is None else self.statistic.combine(before, state)

    def finish(self, layers: int | None = None) -> dict[str, Tensor]:
        """Each result with a leading axis of so many layers (all that were seen, if not said).

        A layer that was never seen (one without attention, in a mixed model) is missing: NaN.
        """
        if not self.states:
            return {}
        results = {layer: self.statistic.finish(state) for layer, state in self.states.items()}
        count = max(results) + 1 if layers is None else layers
        first = next(iter(results.values()))
        missing = {name: torch.full_like(tensor, torch.nan) for name, tensor in first.items()}
        rows = [results.get(layer, missing) for layer in range(count)]
        return {name: torch.stack([row[name] for row in rows]) for name in first}

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


def single(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it has that: large ones are computed in this, their sums in float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, on its own device or, where that has no float64 (Apple GPUs), on the CPU."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
