"""Packed tensors are a safetensors file, come back as they were, and are let go while they are packed."""

import pytest
import torch
from safetensors.torch import load, save

from armillary.packing import NAMES, pack, unpack


def some() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = {f"of {name}": (100 * torch.randn(3, 5)).to(dtype) for dtype, name in NAMES.items()}
    return {**found, "one": torch.tensor(2.5), "none": torch.zeros(0, 4), "column": torch.randn(4, 6).T}


def test_they_come_back_and_safetensors_reads_them() -> None:
    tensors = some()
    data = pack(some())
    for found in (unpack(data), load(bytes(data)), unpack(save({k: v.contiguous() for k, v in tensors.items()}))):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor), name


def test_what_is_packed_is_taken_and_what_is_unpacked_is_not_copied() -> None:
    tensors = some()
    data = pack(tensors)
    assert tensors == {}
    found = unpack(data)
    found["one"].fill_(7.0)
    assert float(unpack(data)["one"]) == 7.0


def test_an_unknown_kind_of_number_is_refused() -> None:
    with pytest.raises(KeyError):
        pack({"x": torch.zeros(2, dtype=torch.complex64)})
