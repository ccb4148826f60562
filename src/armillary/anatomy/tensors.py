"""What every kind of checkpoint offers: its tensors by name, read on demand, and their shapes without reading them."""

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Tensors(Protocol):
    """The tensors of a checkpoint, as numbers to compute with, by their names in transformers' checkpoints."""

    def names(self) -> list[str]:
        """The names of all tensors."""

    def read(self, name: str) -> Tensor | None:
        """The tensor of that name, or None."""

    def header(self, name: str) -> Tensor | None:
        """An empty (meta) tensor of that name's shape and type, or None."""


def same_tensor(name: str, known: list[str]) -> list[str]:
    """The known names that mean this tensor: the same, or the same but for a prefix of one of them."""
    if name in known:
        return [name]
    return [other for other in known if name.endswith(f".{other}") or other.endswith(f".{name}")]
