"""Encode answers for the page: arrays as base64 bytes, everything else as standard JSON."""

import base64
import math
from typing import Any

import numpy as np
from jaxtyping import Shaped


def packed(values: Shaped[np.ndarray, "..."]) -> dict[str, Any]:
    """An array as float32 bytes in base64 with its shape; NaN stays NaN."""
    flat = np.asarray(values, dtype="<f4")
    return {"shape": list(flat.shape), "f4": base64.b64encode(flat.tobytes()).decode("ascii")}


def plain(value: Any) -> Any:
    """The value with only lists, dicts, numbers and strings; NaN and infinity become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool) or value is None else str(value)
