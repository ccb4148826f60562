"""The floating-point precision of computations."""

import torch
from torch import Tensor


def single(tensor: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it is: for large tensors, whose sums are taken in float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, on its device or, if that has no float64 (Apple GPUs), on the CPU."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
