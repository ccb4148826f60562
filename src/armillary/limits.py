"""What would take more memory or time than there is: estimated before it starts, and refused with the estimate.

The estimates are lower bounds of what is held at once (arrays, not what libraries add), so that nothing is refused that
would fit. `no_limits()`, or `armillary --no-limits ...`, tries it nonetheless.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from armillary.errors import ArmillaryError

SWITCH = "ARMILLARY_LIMITS"
"""The environment variable that lifts the limits where it is 'off'; workers inherit it."""

LONGEST = 3600.0
"""Seconds that one piece of work may take which shows no progress, or which Ctrl-C must wait for."""

OPERATIONS = 1e11
"""Estimates of time rest on so many multiplications and additions a second: what a few cores do in float32."""


@contextmanager
def no_limits() -> Iterator[None]:
    """Inside, nothing is refused for its size."""
    before = os.environ.get(SWITCH)
    lift()
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def lift() -> None:
    """Refuse nothing for its size from now on."""
    os.environ[SWITCH] = "off"


def lifted() -> bool:
    """Whether sizes are not limited."""
    return os.environ.get(SWITCH) == "off"


def refuse_beyond_memory(needed: float, what: str, instead: str) -> None:
    """Raise where `needed` bytes are more than there are."""
    there = free_memory()
    if needed > there and not lifted():
        raise ArmillaryError(
            f"{what} would need about {_bytes(needed)} of memory, and {_bytes(there)} are free here: {instead} "
            "(`armillary --no-limits ...` tries it nonetheless)"
        )


def refuse_beyond_patience(seconds: float, what: str, instead: str) -> None:
    """Raise where one piece of work would take longer than LONGEST."""
    if seconds > LONGEST and not lifted():
        raise ArmillaryError(
            f"{what} would take about {_hours(seconds)}, at {OPERATIONS:.0e} operations a second: {instead} "
            "(`armillary --no-limits ...` tries it nonetheless)"
        )


def free_memory() -> float:
    """Bytes that this process can still get: of the machine, its container and its own limit the least."""
    found = [float("inf")]
    with suppress(AttributeError, ValueError):  # not on Windows
        found.append(float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        found.append(float(limit) - float(used))
    with suppress(ImportError):  # not on Windows
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        found += [] if most == resource.RLIM_INFINITY else [float(most)]
    return min(found)


def attention_seconds(layer_heads: int, width: int, texts: int, length: int) -> float:
    """Least time of one layer's attention on these texts, two products of length x length by width for every head."""
    return 4.0 * layer_heads * width * texts * length**2 / OPERATIONS


def _bytes(count: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.0f} {unit}" if count >= 10 * size else f"{count / size:.1f} {unit}"
    return f"{count:,.0f} bytes"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.0f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"
