"""Estimates memory and time before work starts, and refuses work that needs too much.

The estimates are lower bounds (arrays only, without what libraries add), so that nothing is refused that would fit.
`no_limits()`, or `armillary --no-limits ...`, turns the limits off.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from armillary.errors import ArmillaryError

# Imports inside functions: Windows has no module resource.

SWITCH = "ARMILLARY_LIMITS"
"""The environment variable that lifts the limits if it is 'off'; workers inherit it."""

LONGEST = 3600.0
"""At most this many seconds for work that shows no progress or cannot be interrupted."""

OPERATIONS = 1e11
"""Floating-point operations per second for estimates of time: a few cores in float32."""


@contextmanager
def no_limits() -> Iterator[None]:
    """No limits inside the context."""
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
    """Turn the limits off from now on."""
    os.environ[SWITCH] = "off"


def lifted() -> bool:
    """Whether the limits are off."""
    return os.environ.get(SWITCH) == "off"


def refuse_beyond_memory(needed: float, what: str, instead: str) -> None:
    """Raise if `needed` bytes are more than the free memory."""
    free = free_memory()
    if needed > free and not lifted():
        raise ArmillaryError(
            f"{what} would need about {readable_bytes(needed)} of memory, and {readable_bytes(free)} are free here: "
            f"{instead} (`no_limits=True` tries it nonetheless)"
        )


def refuse_beyond_disk(needed: float, place: Path, what: str, instead: str) -> None:
    """Raise if `needed` bytes are more than what is free on the disk of a folder, which need not exist yet."""
    place = place.absolute()
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    free = float(shutil.disk_usage(existing).free)
    if needed > free and not lifted():
        raise ArmillaryError(
            f"{what} would need about {readable_bytes(needed)} of disk, and {readable_bytes(free)} are free in "
            f"{existing}: {instead} (`no_limits=True` tries it nonetheless)"
        )


def refuse_beyond_patience(seconds: float, what: str, instead: str) -> None:
    """Raise if one piece of work would take longer than LONGEST."""
    if seconds > LONGEST and not lifted():
        raise ArmillaryError(
            f"{what} would take about {_hours(seconds)}, at {OPERATIONS:.0e} operations a second: {instead} "
            "(`no_limits=True` tries it nonetheless)"
        )


def free_memory() -> float:
    """Bytes that this process can still allocate: the least of the machine's, the container's and its own limit."""
    limits = [float("inf")]
    with suppress(AttributeError, ValueError):  # not on Windows
        limits.append(float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        limits.append(float(limit) - float(used))
    with suppress(ImportError):  # not on Windows
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [] if most == resource.RLIM_INFINITY else [float(most)]
    return min(limits)


def attention_seconds(layer_heads: int, width: int, texts: int, length: int) -> float:
    """A lower bound for one layer's attention on these texts: q.k and attention times v of every head."""
    return 4.0 * layer_heads * width * texts * length**2 / OPERATIONS


def readable_bytes(count: float) -> str:
    """A number of bytes in words: 3.4 MB."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.0f} {unit}" if count >= 10 * size else f"{count / size:.1f} {unit}"
    return f"{count:,.0f} bytes"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.0f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"
