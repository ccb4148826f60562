"""Chooses the device and the precision of a model, and says which is not there."""

from typing import Any

import torch
from torch import nn

from armillary.anatomy.whole import in_one_line
from armillary.errors import ArmillaryError
from armillary.machine.float64 import WITHOUT

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


def pick_device(device: str) -> str:
    """The given device, or the best one for 'auto'; raises if it is not available."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        tensor = torch.empty(0, device=device)
    except Exception as error:  # each missing backend raises its own error
        raise ArmillaryError(f"there is no device {device!r} here: {in_one_line(error, 200)}") from error
    if tensor.is_meta:
        raise ArmillaryError(
            "the device 'meta' has no numbers to compute with", advice="give auto, cpu, cuda, cuda:1 or mps"
        )
    return str(device)


def pick_dtype(dtype: str | torch.dtype, device: str) -> torch.dtype | str:
    """'auto' is float32 on a CPU and as stored elsewhere."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device == "cpu" else "auto"
    if dtype not in DTYPES:
        raise ArmillaryError(f"there is no dtype {dtype!r}", advice=f"there are auto, {', '.join(DTYPES)}")
    if dtype == "float64" and device.partition(":")[0] in WITHOUT:
        raise ArmillaryError(f"the device {device} has no float64", advice="give float32, or the device cpu")
    return DTYPES[dtype]


def input_device(model: nn.Module) -> torch.device:
    """The device for token ids: that of the model's first weights."""
    first = next(model.parameters(), None)
    if first is None or first.device.type == "meta":  # offloaded: accelerate moves what is passed
        return torch.device("cpu")
    return first.device


def moved(model: Any, device: str) -> Any:
    """The model on this device; a quantized one is loaded there and stays."""
    if getattr(model, "is_quantized", False):
        return model
    model = model.to(device)
    model.tie_weights()  # a device may have copied a tied weight twice
    return model
