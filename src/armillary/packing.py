"""Tensors as the bytes of a safetensors file and back, without a second copy of them in memory."""

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
KINDS = {name: dtype for dtype, name in NAMES.items()}


class Packed:
    """Tensors that are a file's worth of bytes when they are written, or sent to another process.

    Wide numbers come first, so that every tensor begins where a number of its kind may.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        self.tensors = {name: tensors[name] for name in names}
        header: dict[str, dict[str, Any]] = {}
        end = 0
        for name, tensor in self.tensors.items():
            start, end = end, end + tensor.nbytes
            header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        told = json.dumps(header, separators=(",", ":")).encode()
        told += b" " * (-len(told) % 8)
        self._head = len(told).to_bytes(8, "little") + told
        self._size = len(self._head) + end

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes, one tensor after the other."""
        yield self._head
        for tensor in self.tensors.values():
            if tensor.numel():
                yield tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return bytes(self._joined())

    def __reduce__(self) -> Any:
        return _as_it_is, (self._joined(),)

    def _joined(self) -> bytearray:
        data, start = bytearray(self._size), 0
        for piece in self.pieces():
            data[start : start + len(piece)] = piece
            start += len(piece)
        return data


def _as_it_is(data: bytearray) -> bytearray:
    return data


Data = bytes | bytearray | Packed
"""Bytes of a file: as they were read, as they came from another process, or tensors that will be them."""


def pieces(data: Data) -> Iterable[bytes | bytearray | memoryview]:
    """What is to be written, in order."""
    return data.pieces() if isinstance(data, Packed) else (data,)


def unpack(data: Data) -> dict[str, Tensor]:
    """The tensors; of what was packed here they are the same, or views, which keep the bytes alive."""
    if isinstance(data, Packed):
        return dict(data.tensors)
    if isinstance(data, bytes):
        return dict(load(data))
    size = int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, Any]] = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {name: _view(data, about, 8 + size) for name, about in header.items()}
    return {
        name: torch.empty(header[name]["shape"], dtype=KINDS[header[name]["dtype"]]) if view is None else view
        for name, view in found.items()
    }


def _view(data: bytearray, about: dict[str, Any], base: int) -> Tensor | None:
    """The tensor that lies in the bytes, or None if it has no numbers."""
    shape, dtype = about["shape"], KINDS[about["dtype"]]
    if not prod(shape):
        return None
    return torch.frombuffer(data, dtype=dtype, count=prod(shape), offset=base + about["data_offsets"][0]).reshape(shape)
