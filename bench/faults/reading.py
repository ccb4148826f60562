"""An independent reading of a model folder: tensors by a reader of our own, the model built and not loaded.

What Armillary accepts is held against this: same tensors, same shapes, same numbers.
"""

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Unreadable(Exception):
    """The folder is not a checkpoint: whoever accepts it makes something up."""


def tensors_in(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, by the format's own description."""
    data = file.read_bytes()
    if len(data) < 8:
        raise Unreadable(f"{file.name} has {len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    try:
        header = json.loads(data[8 : 8 + length].decode("utf-8")) if length <= len(data) - 8 else None
    except ValueError as error:
        raise Unreadable(f"the header of {file.name} is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise Unreadable(f"{file.name} has no header")
    found, body, reached = {}, data[8 + length :], 0
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    try:
        for name, entry in sorted(entries, key=lambda pair: pair[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            dtype, shape = TYPES[entry["dtype"]], entry["shape"]
            if (
                first != reached
                or last - first != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
                or last > len(body)
            ):
                raise Unreadable(f"{name} lies where it cannot")
            found[name] = torch.frombuffer(bytearray(body[first:last]), dtype=dtype).reshape(shape)
            reached = last
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Unreadable(f"the header of {file.name} makes no sense: {error}") from error
    if reached != len(body):
        raise Unreadable(f"{file.name} has {len(body) - reached} bytes too many")
    return found


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a folder: of the one file, else of those that the index names, which lie in the folder itself."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return tensors_in(single)
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(places.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"there is neither a file nor an index: {error}") from error
    if any(not isinstance(name, str) or Path(name).name != name for name in files):
        raise Unreadable("the index names files outside the folder")
    found: dict[str, torch.Tensor] = {}
    for name in files:
        if not (folder / name).is_file():
            raise Unreadable(f"{name} is not there")
        found |= tensors_in(folder / name)
    return found


def config_of(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"config.json: {error}") from error
    if not isinstance(found, dict):
        raise Unreadable("config.json holds no settings")
    return found


def rebuilt(folder: Path) -> torch.nn.Module:
    """The model that configuration and tensors make: every parameter comes from a tensor of its name and shape."""
    import transformers

    config, stored = config_of(folder), tensors(folder)
    settings = transformers.AutoConfig.for_model(**config)
    _refuse_more_layers(settings, stored)
    if hasattr(settings, "initializer_range"):
        settings.initializer_range = 0.02  # every parameter is replaced, so this may be anything that can be drawn from
    names = [name for name in settings.architectures or () if isinstance(name, str)]
    named = getattr(transformers, names[0], None) if names else None
    maker = named._from_config if named is not None else transformers.AutoModelForCausalLM.from_config
    model: torch.nn.Module = maker(settings, dtype=torch.float32)
    wanted = dict(model.named_parameters())
    for name, parameter in wanted.items():
        tensor = stored.get(name, stored.get(name.partition(".")[2]))
        if tensor is None or tensor.shape != parameter.shape or not tensor.is_floating_point():
            raise Unreadable(f"{name} is missing, of another shape or no floating-point tensor")
        parameter.data.copy_(tensor)
    model.eval()
    return model


def _refuse_more_layers(settings: Any, stored: dict[str, torch.Tensor]) -> None:
    layers = {int(found[1]) for name in stored if (found := re.search(r"\b(?:layers|h|layer)\.(\d+)\.", name))}
    if layers and max(layers) + 1 != settings.num_hidden_layers:
        raise Unreadable(f"{max(layers) + 1} layers are stored, {settings.num_hidden_layers} configured")


def not_finite(folder: Path) -> bool:
    """Whether a stored number is NaN or infinite."""
    return any(t.is_floating_point() and not bool(t.isfinite().all()) for t in tensors(folder).values())
