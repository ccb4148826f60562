"""Compiles inner loops with numba; where that is not possible, says why, and callers compute with torch instead.

Compiled code is cached on disk by numba, beside the package or, if that cannot be written, in the user's cache folder.
"""

import inspect
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

SOON = 1.0
"""Loading compiled loops takes a second at most; after this many seconds they are being compiled."""

FUNCTIONS = 100
"""There are fewer compiled functions than this."""

SLOWER = "so attention statistics are computed by torch, which takes several times as long"


def compiled(function: Callable[..., Any]) -> Any:
    """The function, compiled when it is first called; it must not need the interpreter.

    Sums may be reordered for vector units, numbers are taken to be finite, and the interpreter's lock is released.
    """
    # for start-up: numba takes half a second, and most commands compute nothing
    from numba import njit

    plain = inspect.unwrap(function)  # tests wrap every function to check shapes; numba needs the function itself
    options = dict(nogil=True, fastmath=True, error_model="numpy")
    try:
        return njit(**options, cache=True)(plain)
    except RuntimeError:  # nowhere to write: compile in every process
        return njit(**options)(plain)


_failures: list[str] = []


@cache
def _missing() -> str:
    try:
        import_module("numba")
    except ImportError:
        return f"numba is not installed, {SLOWER} (pip install numba)"
    except Exception as error:  # a numba that does not fit its numpy fails in many ways
        return f"numba does not work here ({error}), {SLOWER}"
    return ""


def trouble() -> str:
    """Why nothing can be compiled here, as a sentence; empty if it can."""
    return _failures[0] if _failures else _missing()


def serves(tensor: Tensor) -> bool:
    """Whether compiled loops apply to work on this tensor: on the CPU, in float32 or less, where numba works."""
    return tensor.device.type == "cpu" and tensor.dtype != torch.float64 and not trouble()


def _persistently(work: Callable[[], object]) -> None:
    """Run `work` again when a compiled function could not be written to the cache: by then it is in memory."""
    for _ in range(FUNCTIONS):
        try:
            work()
            return
        except OSError:
            continue
    work()


def warm_up(work: Callable[[], object], note: Callable[[str], None]) -> None:
    """Run `work`, which calls compiled loops, so that they are compiled or loaded; with a note if that takes a while.

    If it fails, loops are not used in this process, and the note says so.
    """
    if not trouble():
        soon = threading.Timer(SOON, note, ["compiling the inner loops (once, for about ten seconds)"])
        soon.daemon = True
        soon.start()
        try:
            _persistently(work)
        except Exception as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            _failures.append(f"numba cannot compile the inner loops here ({words[0][:120]}), {SLOWER}")
        finally:
            soon.cancel()
    if trouble():
        note(trouble())
