"""Kills at random moments: a command is begun again until it is done; every array is that of an undisturbed run.

Half of the kills come when the work has begun (the folder is there), so that commands that take seconds to start are
also hit in the middle. Signals are SIGKILL mostly, else SIGTERM; sometimes a worker is killed and not the driver.
"""

import json
import os
import random
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from faults import programs, values
from faults.material import SCAN, sample_folder, training_config
from faults.outcomes import DIFFERENT, SAME, SKIPPED, TRACEBACK, WRONG, Outcome
from faults.serving import Case

TURNS: tuple[str, ...] = (
    *("scan, 1 worker", "weights", "merge", "train") * 4,
    *("scan, 2 workers",) * 3,
    "scan, Ray",
)
"""Which command each case kills, in turn: those that start quickly more often."""
COUNT = 5 * len(TURNS)
BOUND = 600.0
JOBS = 2
MOST_KILLS = 3
warm = programs.imports


def commands(place: Path, out: Path) -> dict[str, list[str]]:
    """The commands that are killed; each can be given again and goes on."""
    model = str(place / "model")
    scan = ["scan", model, *SCAN, "--resume", "--out", str(out)]
    return {
        "scan, 1 worker": scan,
        "scan, 2 workers": [*scan, "--workers", "2"],
        "scan, Ray": [*scan, "--workers", "2", "--engine", "ray"],
        "weights": ["weights", model, "--against", "random", "--resume", "--out", str(out)],
        "merge": ["merge", str(place / "part-1"), str(place / "part-2"), "--resume", "--out", str(out)],
        "train": ["train", str(place / "run.toml"), "--out", str(out)],
    }


def read(name: str, out: Path) -> values.Values:
    return values.run_values(out) if name == "train" else values.arrays(out)


def prepare(place: Path) -> None:
    """The model, parts of a scan, a run's settings; and of every command the time and result of an undisturbed run."""
    model = sample_folder("llama", place / "model")
    training_config(place)
    for part in ("1", "2"):
        part_folder = str(place / f"part-{part}")
        ran = programs.armillary(
            ["scan", str(model), *SCAN, "--part", f"{part}/2", "--out", part_folder], place / "logs"
        )
        assert ran.code == 0, ran.err
    known: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(TURNS):
        if name == "scan, Ray" and find_spec("ray") is None:
            continue
        out = place / "out"
        (place / "logs").mkdir(exist_ok=True)
        running = programs.Running(commands(place, out)[name], place / "logs")
        begun = None
        while not running.ended():
            if begun is None and out.exists():
                begun = time.monotonic() - running.began
            time.sleep(0.005)
        seconds = time.monotonic() - running.began
        assert running.wait().code == 0, running.wait().err
        known[name] = {"begun": begun, "seconds": seconds, "values": read(name, out)}
        shutil.rmtree(out)
    plain = known["scan, 1 worker"]["values"]
    for name in known:
        if name.startswith(("scan", "merge")):
            assert not values.differences(plain, known[name]["values"]), name
    (place / "known.json").write_text(json.dumps(known))


def run(case: Case) -> Outcome:
    name = case.tries(TURNS[case.number % len(TURNS)])
    undisturbed = json.loads((case.place / "known.json").read_text()).get(name)
    if undisturbed is None:
        return Outcome(name, SKIPPED, "the package ray is not installed")
    out, kills = case.scratch / "out", []
    command = commands(case.place, out)[name]
    for _ in range(case.rng.randint(1, MOST_KILLS)):
        ran, how = killed(command, case, undisturbed, "worker" in name or "Ray" in name)
        kills.append(how)
        if ran.code in (0, 2) or "Traceback" in ran.err:
            break
    if "Traceback" in ran.err and "SIGKILL" not in kills[-1]:
        return Outcome(name, TRACEBACK, f"{'; '.join(kills)}: {ran.words}")
    ran = programs.armillary(command, case.scratch / "logs")
    if ran.raw:
        return Outcome(name, TRACEBACK, f"{'; '.join(kills)}, then code {ran.code}: {ran.words}")
    if ran.code != 0:
        return Outcome(name, WRONG, f"{'; '.join(kills)}, then it does not go on: {ran.words}")
    different = values.differences(undisturbed["values"], read(name, out))
    if different:
        return Outcome(name, DIFFERENT, f"{'; '.join(kills)}: {len(different)} values, first {different[0]}")
    left = [path.name for path in out.glob("work/*")] if name != "train" else []
    return (
        Outcome(name, WRONG, f"{'; '.join(kills)}: left behind {left}")
        if left
        else Outcome(name, SAME, "; ".join(kills))
    )


def killed(command: list[str], case: Case, undisturbed: dict[str, float], workers: bool) -> tuple[programs.Ran, str]:
    """Start the command and kill it, or one of its workers, at a random moment; how it ended and what was done."""
    rng: random.Random = case.rng
    first = undisturbed["begun"] if rng.random() < 0.5 else 0.0
    moment = rng.uniform(first, 1.05 * undisturbed["seconds"])
    number = signal.SIGKILL if rng.random() < 0.75 else signal.SIGTERM
    hits_worker = workers and rng.random() < 0.3
    (case.scratch / "logs").mkdir(exist_ok=True)
    running = programs.Running(command, case.scratch / "logs")
    while not running.ended() and time.monotonic() - running.began < moment:
        time.sleep(0.002)
    how = f"{number.name} after {moment:.2f} s"
    children = started_by(running.pid) if hits_worker and not running.ended() else []
    if children:
        os.kill(rng.choice(children), number)
        return running.wait(), f"{how} to a worker"
    running.send(number)
    return running.wait(), how


def started_by(pid: int) -> list[int]:
    """The processes that a process started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()] if children.is_file() else []
