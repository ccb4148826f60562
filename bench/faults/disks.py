"""Disks that are full, read-only or limited: one sentence; with room again the command goes on to the same result."""

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from faults import kills, programs, values
from faults.confining import READ_ONLY, REMOUNT, mount
from faults.material import TEXT, copied
from faults.outcomes import DIFFERENT, REFUSED, SAME, SKIPPED, TRACEBACK, WRONG, Outcome
from faults.serving import Case

RESUMED = ("scan, 1 worker", "weights", "merge", "train")
PAGES = ("report", "show", "map", "theory", "intervene", "frequencies", "gaussian", "weights --html", "runs")
LIMITS = ("files limited", "disk full", "read-only", "standard output full")
COUNT = 3 * len(LIMITS) * (len(RESUMED) + len(PAGES))
BOUND = 180.0
JOBS = 2
WORDS = " ".join(TEXT.split()[:12])
ROOM = "size=1g"
CONFINED = True
warm = programs.imports


def commands(place: Path, out: Path) -> dict[str, list[str]]:
    """Every command that writes; `out` is where."""
    model, atlas, html = str(place / "words"), str(place / "atlas"), str(out / "page.html")
    pages = {
        "report": ["report", atlas, "--out", html],
        "show": ["show", atlas, "0.1", "--text", WORDS, "--html", html],
        "map": ["map", model, "--text", WORDS, "--html", html],
        "theory": ["theory", "L1", "--html", html],
        "intervene": ["intervene", model, "--scale", "2", "--out", str(out / "changed")],
        "frequencies": ["frequencies", atlas, "--html", html],
        "gaussian": ["gaussian", atlas, "--html", html],
        "weights --html": [
            "weights",
            str(place / "model"),
            "--no-matrices",
            "--out",
            str(out / "w"),
            "--html",
            html,
            "--overwrite",
        ],
        "runs": ["runs", str(place / "run"), "--html", html],
    }
    return {**kills.commands(place, out / "out"), **pages}


def prepare(place: Path) -> None:
    """Besides what kills start from: a model with words, its atlas, a run; and how much each command writes."""
    import armillary as arm

    turns, kills.TURNS = kills.TURNS, RESUMED
    kills.prepare(place)
    kills.TURNS = turns
    copied(Path(arm.bundled("llama")), place / "words")
    streams = "positions,attention,chunks,covariance,constituents,patterns,lags"
    asked = ["--sequences", "4", "--length", "32", "--second-pass", "4", "--streams", streams]
    first = [["scan", str(place / "words"), *asked, "--out", str(place / "atlas")], ["train", str(place / "run.toml")]]
    for command in first:
        ran = programs.armillary(command, place / "logs")
        assert ran.code == 0, ran.err
    written = {}
    for name, command in commands(place, place / "written").items():
        if name not in (*RESUMED, *PAGES):
            continue
        (place / "written").mkdir()
        ran = programs.armillary(command, place / "logs")
        assert ran.code == 0, f"{name}: {ran.err}"
        sizes = [path.stat().st_size for path in (place / "written").rglob("*") if path.is_file()]
        written[name] = {"all": sum(size + 4096 for size in sizes), "largest": max(sizes, default=0)}
        shutil.rmtree(place / "written")
    (place / "written.json").write_text(json.dumps(written))


def full_output() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def run(case: Case) -> Outcome:
    names = (*RESUMED, *PAGES)
    limit, name = LIMITS[case.number % len(LIMITS)], names[case.number // len(LIMITS) % len(names)]
    what = case.tries(f"{limit}: {name}")
    written = json.loads((case.place / "written.json").read_text())[name]
    disk, share = case.scratch / "disk", case.rng.uniform(0.0, 1.05)
    before: Callable[[], None] | None = None
    if limit in ("disk full", "read-only"):
        if case.free:
            return Outcome(what, SKIPPED, case.free)
        disk.mkdir()
        mount("tmpfs", disk, "tmpfs", 0, f"size={max(8192, int(share * written['all']))}")
    else:
        disk.mkdir()
    if limit == "read-only":
        mount("tmpfs", disk, "tmpfs", REMOUNT | READ_ONLY, ROOM)
    if limit == "files limited":
        size = int(share * written["largest"])
        before = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # noqa: E731
        how = f"no file above {size} bytes"
    else:
        how = f"room for {int(share * written['all'])} bytes" if limit == "disk full" else limit
    if limit == "standard output full":
        before = full_output
    command, logs = commands(case.place, disk)[name], case.scratch / "logs"
    ran = programs.armillary(command, logs, before)
    if ran.raw:
        return Outcome(what, TRACEBACK, f"{how}: code {ran.code}: {ran.words}")
    told = f"{how}: {ran.words}"
    if limit in ("disk full", "read-only"):
        mount("tmpfs", disk, "tmpfs", REMOUNT, ROOM)
    return again(case, name, command, disk, ran.code, told) or Outcome(what, REFUSED if ran.code else SAME, told)


def again(case: Case, name: str, command: list[str], disk: Path, code: int, told: str) -> Outcome | None:
    """What is wrong when there is room and the command is given once more, if something is."""
    if code == 0 and name in PAGES:
        return None
    if name == "intervene" and (disk / "changed").exists():  # written whole before the output was full: it loads
        command = ["inspect", str(disk / "changed"), "--weights"]
    ran = programs.armillary(command, case.scratch / "logs")
    if ran.raw:
        return Outcome("", TRACEBACK, f"{told}; then, with room: {ran.words}")
    if ran.code != 0:
        return Outcome("", WRONG, f"{told}; then, with room, it does not go on: {ran.words}")
    if name in RESUMED:
        known = json.loads((case.place / "known.json").read_text())[name]["values"]
        different = values.differences(known, kills.read(name, disk / "out"))
        if different:
            return Outcome("", DIFFERENT, f"{told}: {len(different)} values, first {different[0]}")
    return None
