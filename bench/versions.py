"""Which versions were run: docs/versions.md is made from bench/versions.json, which this writes, a row per environment.

python bench/versions.py run NAME --python PYTHON     the demo from the wheel, and every family
python bench/versions.py tests NAME --python PYTHON   the core tests, after `run`
python bench/versions.py render                       docs/versions.md from bench/versions.json

`make versions` makes the environments and runs all of them. PYTHON is an interpreter whose environment has Armillary's
dependencies; the package comes from a wheel that is built here, so that what people install is what ran.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

from versions_page import SHOWN, rendered

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("versions.json")
PAGE = ROOT / "docs" / "versions.md"
CORE = ("observe", "anatomy", "scanning", "atlas", "report")
"""Folders of the tests that run everywhere: tap, anatomy, scan, atlas, report."""
LISTED = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
HEADS = """
import json, sys
import armillary as arm
heads = arm.open_atlas(sys.argv[1]).heads
print(arm.__file__)
print(json.dumps([heads["label"].to_list(), heads["entropy"].to_list()]))
"""


def wheel(folder: Path) -> Path:
    """The wheel of this tree, unpacked where an interpreter finds it before anything that is installed."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (built,) = folder.glob("*.whl")
    place = folder / "unpacked"
    unpack = ["install", "--quiet", "--no-deps", "--no-compile", "--target", str(place), str(built)]
    subprocess.run([sys.executable, "-m", "pip", *unpack], check=True)
    return place


def environment(place: Path | None) -> dict[str, str]:
    own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARMILLARY_CACHE": ""}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **own, **({} if place is None else {"PYTHONPATH": str(place)})}


def demo(python: str, place: Path, folder: Path) -> dict[str, Any]:
    """What the demo finds: the label and the entropy of every head; or its last words."""
    options: dict[str, Any] = dict(cwd=folder, env=environment(place), capture_output=True, text=True)
    ran = subprocess.run([python, "-m", "armillary", "demo", "--out", "demo"], **options)
    if ran.returncode:
        return {"said": ran.stderr.strip().splitlines()[-1]}
    read = subprocess.run([python, "-c", HEADS, "demo"], **options)
    if read.returncode:
        raise SystemExit(read.stderr)
    came_from, found = read.stdout.splitlines()
    assert came_from.startswith(str(place)), came_from
    labels, entropy = json.loads(found)
    return {"labels": labels, "entropy": entropy}


def families(python: str, place: Path, folder: Path) -> dict[str, Any]:
    """`armillary doctor --verify`: how many samples of families passed, and what it says of those that cannot run."""
    options: dict[str, Any] = dict(cwd=folder, env=environment(place), capture_output=True, text=True)
    ran = subprocess.run([python, "-m", "armillary", "doctor", "--verify", "--record", "record.json"], **options)
    if not (folder / "record.json").is_file():
        return {"said": ran.stderr.strip().splitlines()[-1]}
    checks = json.loads((folder / "record.json").read_text())["samples"]
    left_out = re.findall(r"^(\S+: .* (?:since transformers|has no) .*)$", ran.stdout, re.MULTILINE)
    failed = [name for name, check in checks.items() if not (check["passed"] and check["identical"])]
    return {"verified": len(checks) - len(failed), "failed": failed, "left_out": left_out}


def core_tests(python: str, processes: int) -> dict[str, Any]:
    """The core of the suite, but for what is marked slow, on the sources of this tree."""
    chosen = [f"tests/{name}" for name in CORE]
    command = [python, "-m", "pytest", "-q", "-m", "not slow", *chosen]
    command += ["-n", str(processes), "--dist", "loadfile"] if processes > 1 else []
    ran = subprocess.run(command, cwd=ROOT, env=environment(ROOT / "src"), capture_output=True, text=True)
    last = ran.stdout.strip().splitlines()[-1]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}
    if "passed" not in counts:
        raise SystemExit(ran.stdout[-2000:] + ran.stderr[-2000:])
    return {**counts, "failures": re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)}


def run(name: str, python: str) -> None:
    """Run the demo and every family in one environment, and put its row into bench/versions.json."""
    listed = json.loads(subprocess.run([python, "-c", LISTED], capture_output=True, text=True, check=True).stdout)
    installed = {key.lower().replace("_", "-"): version for key, version in listed.items()}
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    declared = {re.split(r"[^\w-]", line)[0] for line in project()["dependencies"]}
    row: dict[str, Any] = {"date": date.today().isoformat(), "python": version}
    row["installed"] = {key: installed[key] for key in sorted(declared | {*SHOWN})}
    with tempfile.TemporaryDirectory() as temporary:
        place = wheel(Path(temporary))
        row["demo"] = demo(python, place, Path(temporary))
        row["families"] = families(python, place, Path(temporary))
    keep(name, row)
    print({key: value for key, value in row.items() if key != "demo"})


def keep(name: str, found: dict[str, Any]) -> None:
    """Add what was found to the row of an environment, beside what is known of it with the same versions."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known = rows.get(name, {})
    if "installed" in found and known.get("installed") != found["installed"]:
        known = {}
    RESULTS.write_text(json.dumps({**rows, name: {**known, **found}}, indent=1) + "\n")


def project() -> dict[str, Any]:
    written: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("run", "tests"):
        one = verbs.add_parser(verb)
        one.add_argument("name")
        one.add_argument("--python", required=True)
        one.add_argument("--processes", type=int, default=2)
    verbs.add_parser("render")
    given = parser.parse_args()
    if given.verb == "run":
        run(given.name, str(Path(given.python).absolute()))
    elif given.verb == "tests":
        keep(given.name, {"tests": core_tests(str(Path(given.python).absolute()), given.processes)})
    if {"floor", "pinned"} <= set(json.loads(RESULTS.read_text())):
        PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
