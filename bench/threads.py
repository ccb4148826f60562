"""Processor time of commands with two threads against one, while other work keeps all cores but one busy.

python bench/threads.py [--model FOLDER] [--repeats 3] [--only gaussian]; exits 1 if two threads cost more than twice.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import armillary as arm
from armillary.machine.threads import POLICIES

MOST = 2.0
DECIDE = {name for decides, _, _ in POLICIES for name in decides}
TEXT = (
    "Once upon a time there was a little girl who lived near a forest. She liked to walk, and she liked to sing. " * 3
)
SHARED = Path(__file__).parents[2] / "shared"


def commands(model: str, atlas: str, folder: str) -> dict[str, list[str]]:
    """The commands of which it was found that threads fight, and what they are given."""
    return {
        "gaussian": ["gaussian", atlas],
        "intervene": ["intervene", model, "--scale", "0.5", "--text", TEXT],
        "verify-heads": ["verify-heads", atlas, "--heads", "6", "--blocks", "4"],
        "rope --sweep": ["rope", model, "--sweep", "p=1,0.75,0.5", "--sequences", "4", "--length", "64"],
        "map": ["map", model, "--text", TEXT, "--html", f"{folder}/map.html"],
    }


def processor_seconds(arguments: list[str], threads: int) -> float:
    """User and system time of the command, its threads and its children."""
    own = {name: value for name, value in os.environ.items() if name not in DECIDE}
    environment = {**own, "OMP_NUM_THREADS": str(threads)}
    program = "from armillary.cli import main; main()"
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"armillary {' '.join(arguments)} ended with {process.returncode}: {said[-2000:]}")
    return used.ru_utime + used.ru_stime


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """So many processes that compute nothing, without end."""
    spinning = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(cores)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = SHARED / "models/stories15M"
    parser.add_argument("--model", default=str(known if known.exists() else arm.bundled("llama")))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        atlas = f"{folder}/atlas"
        streams = "positions,attention,covariance,constituents,patterns,lags"
        text = ["--corpus", "builtin:prose", "--sequences", "16", "--length", "64", "--streams", streams]
        processor_seconds(["scan", asked.model, *text, "--out", atlas], 1)
        print(f"{'command':14} {'1 thread':>10} {'2 threads':>10} {'ratio':>6}   processor seconds, {asked.model}")
        for name, arguments in commands(asked.model, atlas, folder).items():
            if asked.only not in name:
                continue
            times: dict[int, list[float]] = {1: [], 2: []}
            with busy(max(1, (os.cpu_count() or 2) - 1)):
                time.sleep(0.5)
                for _ in range(asked.repeats):
                    for threads, taken in times.items():
                        taken.append(processor_seconds(arguments, threads))
            one, two = (statistics.median(taken) for taken in times.values())
            print(f"{name:14} {one:10.1f} {two:10.1f} {two / one:6.2f}", flush=True)
            if two > MOST * one:
                missed.append(name)
    if missed:
        raise SystemExit(f"two threads take more than {MOST:g} times the processor time of one: {', '.join(missed)}")


if __name__ == "__main__":
    main()
