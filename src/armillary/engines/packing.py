"""Packs tensors as the bytes of a safetensors file and unpacks them, without a second copy in memory."""

import json
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


class Packed:
    """Tensors that become the bytes of a safetensors file when they are written or pickled.

    Wider types come first, so that every tensor is aligned.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        self.tensors = {name: tensors[name] for name in names}
        header: dict[str, dict[str, Any]] = {}
        end = 0
        for name, tensor in self.tensors.items():
            start, end = end, end + tensor.nbytes
            header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        self._head = len(encoded).to_bytes(8, "little") + encoded
        self._size = len(self._head) + end

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes of the header, then of each tensor."""
        yield self._head
        for tensor in self.tensors.values():
            if tensor.numel():
                yield tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return bytes(self._joined())

    def __reduce__(self) -> Any:
        return _identity, (self._joined(),)

    def _joined(self) -> bytearray:
        data, start = bytearray(self._size), 0
        for piece in self.pieces():
            data[start : start + len(piece)] = piece
            start += len(piece)
        return data


def _identity(data: bytearray) -> bytearray:
    return data


Data = bytes | bytearray | Packed
"""Content of a file: bytes read from disk, a bytearray from another process, or tensors that are not yet packed."""


def pieces(data: Data) -> Iterable[bytes | bytearray | memoryview]:
    """The bytes to write, in order."""
    return data.pieces() if isinstance(data, Packed) else (data,)


def unpack(data: Data) -> dict[str, Tensor]:
    """The tensors: the same objects if `data` is Packed, else views of the bytes, which keep them alive."""
    if isinstance(data, Packed):
        return dict(data.tensors)
    if isinstance(data, bytes):
        return dict(load(data))
    size = int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, Any]] = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    views = {name: _view(data, entry, 8 + size) for name, entry in header.items()}
    return {
        name: torch.empty(header[name]["shape"], dtype=DTYPES[header[name]["dtype"]]) if view is None else view
        for name, view in views.items()
    }


def _view(data: bytearray, entry: dict[str, Any], base: int) -> Tensor | None:
    """The tensor as a view of the bytes, or None if it has no elements."""
    shape, dtype = entry["shape"], DTYPES[entry["dtype"]]
    if not prod(shape):
        return None
    return torch.frombuffer(data, dtype=dtype, count=prod(shape), offset=base + entry["data_offsets"][0]).reshape(shape)
