"""Float64 on devices that have it, and on the CPU for those that have none."""

from torch import Tensor

WITHOUT = {"mps"}
"""Device types without float64 (Apple's GPUs)."""


def measurable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy on the CPU if its device has no float64, in which statistics are summed."""
    return tensor.cpu() if tensor.device.type in WITHOUT else tensor


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, on its device or, if that has no float64 (Apple GPUs), on the CPU."""
    return measurable(tensor).double()
