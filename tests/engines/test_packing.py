"""Packed tensors are a safetensors file, unpack to the same tensors, and are not copied before that is necessary."""

import pickle

import pytest
import torch
from safetensors.torch import load, save

from armillary.engines.packing import NAMES, Packed, unpack


def some() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = {f"of {name}": (100 * torch.randn(3, 5)).to(dtype) for dtype, name in NAMES.items()}
    return {**found, "one": torch.tensor(2.5), "none": torch.zeros(0, 4), "column": torch.randn(4, 6).T}


def test_unpacking_gives_the_same_tensors_and_safetensors_reads_them() -> None:
    tensors = some()
    data = Packed(some())
    assert len(data) == len(bytes(data)) == sum(map(len, data.pieces()))
    sent = pickle.loads(pickle.dumps(data))
    assert isinstance(sent, bytearray)
    assert sent == bytes(data)
    whole = save({k: v.contiguous() for k, v in tensors.items()})
    for found in (unpack(data), unpack(sent), load(bytes(data)), unpack(whole)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor), name


def test_neither_packing_nor_unpacking_copies() -> None:
    data = Packed(some())
    for packed in (data, bytearray(bytes(data))):
        unpack(packed)["one"].fill_(7.0)
        assert float(unpack(packed)["one"]) == 7.0


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(KeyError):
        Packed({"x": torch.zeros(2, dtype=torch.complex64)})
