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


def rows_of(tensors: Tensors, name: str, start: int, stop: int) -> Tensor | None:
    """Rows start .. stop - 1 of a tensor, alone where the checkpoint can read them alone."""
    if isinstance(tensors, HasRows):
        return tensors.read_rows(name, start, stop)
    whole = tensors.read(name)
    return None if whole is None else whole[start:stop]


@runtime_checkable
class HasRows(Protocol):
    """A checkpoint that reads some rows of a tensor."""

    def read_rows(self, name: str, start: int, stop: int) -> Tensor | None:
        """Rows start .. stop - 1, or None."""


def same_tensor(name: str, known: list[str]) -> list[str]:
    """The known names that mean this tensor: the same, or the same but for a prefix of one of them."""
    if name in known:
        return [name]
    return [other for other in known if name.endswith(f".{other}") or other.endswith(f".{name}")]
