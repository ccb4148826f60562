"""What starting the program costs: `armillary --help` against `python -c pass`, and against another tree.

python bench/startup.py [--other TREE] [--repeats 15]     writes bench/startup.json

All are run in turn, each in a process of its own; medians. Wall-clock and processor seconds: the latter tell what other
work on the machine took. A tree is a checkout whose src/ holds the package.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measuring import Row

HERE = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("startup.json")
HELP = "import sys; sys.argv = ['armillary', '--help']; from armillary.cli import main; main()"


def started(code: str, tree: Path) -> tuple[float, float]:
    """Wall-clock and processor seconds of a fresh interpreter that runs the code with a tree's package."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{code!r} ended with {process.returncode} in {tree}")
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime


def measured(other: Path | None, repeats: int) -> dict[str, dict[str, float]]:
    """Median seconds of each start, run in turn after one that does not count."""
    starts = {"python -c pass": ("pass", HERE), "armillary --help": (HELP, HERE)}
    if other is not None:
        starts["armillary --help, other tree"] = (HELP, other)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
    for turn in range(repeats + 1):
        for name, start in starts.items():
            seconds = started(*start)
            if turn:
                times[name].append(seconds)
    return {
        name: {
            "seconds": statistics.median(wall for wall, _ in all_times),
            "processor_seconds": statistics.median(processor for _, processor in all_times),
        }
        for name, all_times in times.items()
    }


def rows(repeats: int = 7) -> list[Row]:
    """The row of `make bench`."""
    times = measured(None, repeats)
    extra = times["armillary --help"]["seconds"] - times["python -c pass"]["seconds"]
    return [Row("armillary --help", "python -c pass", extra, "s more", 0.5)]


def commit(tree: Path) -> str:
    asked = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="another checkout, as of the commit before a change")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    times = measured(given.other, given.repeats)
    result: dict[str, object] = {"repeats": given.repeats, "commit": commit(HERE), "starts": times}
    if given.other is not None:
        ours, theirs = times["armillary --help"], times["armillary --help, other tree"]
        result["other_commit"] = commit(given.other)
        result["ratio_to_other"] = {unit: ours[unit] / theirs[unit] for unit in ours}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
