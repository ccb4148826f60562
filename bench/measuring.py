"""How ratios are measured: two things in turn, medians of many times; peaks of memory in a process of its own."""

import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAR = 1.15
"""`make bench` fails if a target is missed by more than this factor; every miss is printed."""


@dataclass(frozen=True)
class Row:
    """A line of the table. Without a target the value is only reported; `least` says that more is better."""

    what: str
    against: str
    value: float | None
    unit: str = "x"
    target: float | None = None
    least: bool = False
    note: str = ""

    @property
    def missed(self) -> bool:
        return self._beyond(1.0)

    @property
    def far_off(self) -> bool:
        return self._beyond(FAR)

    def _beyond(self, factor: float) -> bool:
        if self.target is None or self.value is None:
            return False
        return self.value < self.target / factor if self.least else self.value > self.target * factor


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(a: Callable[[], object], b: Callable[[], object], repeats: int = 7) -> tuple[float, float]:
    """Median seconds of a and of b, run in turn after one run each that does not count; who is first alternates."""
    a(), b()
    times = []
    for number in range(repeats):
        if number % 2:
            other = seconds(b)
            times.append((seconds(a), other))
        else:
            times.append((seconds(a), seconds(b)))
    return statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module in bench/ returns (JSON) when a fresh process calls it."""
    code = (
        f"import sys, json; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {function.__module__} as m; "
        f"print(json.dumps(m.{function.__name__}(*json.loads(sys.argv[1]))))"
    )
    run = subprocess.run([sys.executable, "-c", code, json.dumps(arguments)], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def resident(peak: bool = True) -> float:
    """Megabytes that this process has in memory: now, or at most."""
    name = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def peak_of(work: Callable[[], object]) -> float:
    """Megabytes that a piece of work needs at most, beyond what the process holds when it rests (Linux).

    Before, everything that is free goes back to the system, and the peak begins anew.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident(peak=False)
    work()
    return resident() - before
