"""The floating-point precision of computations."""

import torch
from torch import Tensor

from armillary.machine.float64 import measurable, wide

__all__ = ["measurable", "single", "wide"]


def single(tensor: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it is: for large tensors, whose sums are taken in float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
