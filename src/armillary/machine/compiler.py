"""Compiles inner loops with numba; where that is not possible, says why, and callers compute with torch instead.

Compiled code is cached on disk by numba, beside the package or, if that cannot be written, in the user's cache folder.
"""

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function, compiled when it is first called; it must not need the interpreter.

    Sums may be reordered for vector units, numbers are taken to be finite, and the interpreter's lock is released.
    """
    from numba import njit  # takes half a second, and most commands compute nothing

    plain = inspect.unwrap(function)  # tests wrap every function to check shapes; numba needs the function itself
    return njit(nogil=True, fastmath=True, cache=True, error_model="numpy")(plain)  # type: ignore[no-any-return]


@cache
def trouble() -> str:
    """Why nothing can be compiled here, as a sentence; empty if it can."""
    try:
        import_module("numba")
    except ImportError:
        return "numba is not installed, so attention statistics are computed by torch, which takes longer"
    except Exception as error:  # a numba that does not fit its numpy fails in many ways
        return f"numba does not work here ({error}), so attention statistics are computed by torch, which takes longer"
    return ""


def serves(tensor: Tensor) -> bool:
    """Whether compiled loops apply to a computation on this tensor: on the CPU, in float32 or less, where numba works."""
    return tensor.device.type == "cpu" and tensor.dtype != torch.float64 and not trouble()
