"""Tensors as one run of bytes and back, in the safetensors format, without a second copy of them in memory."""

import json
from math import prod
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

Data = bytes | bytearray
"""Bytes of a file: as they were read, or as they were packed here."""

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


def pack(tensors: dict[str, Tensor]) -> bytearray:
    """The bytes of a safetensors file. Takes the tensors out of the dictionary: each is let go once it is copied.

    Wide numbers come first, so that every tensor begins where a number of its kind may.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        kind = NAMES[tensors[name].dtype]
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % 8)
    data = bytearray(8 + len(told) + end)
    data[:8] = len(told).to_bytes(8, "little")
    data[8 : 8 + len(told)] = told
    for name in names:
        tensor = tensors.pop(name)
        place = _view(data, header[name], 8 + len(told))
        if place is not None:
            place.copy_(tensor)
    return data


def unpack(data: Data) -> dict[str, Tensor]:
    """The tensors; of what was packed here they are views, which keep the bytes alive."""
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
