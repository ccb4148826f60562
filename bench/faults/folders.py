"""Damaged folders of unfinished work: gone on with, the result is that of an undisturbed run, or a sentence refuses."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from faults import programs, values
from faults.damages import damaged
from faults.kills import commands, read
from faults.material import copied, sample_folder, training_config
from faults.outcomes import DIFFERENT, REFUSED, SAME, TRACEBACK, Outcome
from faults.serving import Case

KINDS = ("scan, 1 worker", "weights", "train", "merge")
COUNT = 200
BOUND = 120.0
JOBS = 2
CONFINED = True
warm = programs.imports
STOP = {
    "scan, 1 worker": ("armillary.scanning.folder.ScanFolder", "keep", 16),
    "weights": ("armillary.scanning.folder.ScanFolder", "keep", 2),
}
"""Where a command is interrupted: at the so-manieth call of this method. A run of training: at a step."""


def prepare(place: Path) -> None:
    """For each kind an interrupted folder, one of another model like it, and what an undisturbed run holds."""
    for name, seed in (("a", 0), ("b", 1)):
        _material(place / name, seed)
        for kind in KINDS:
            out = place / name / kind
            if kind != "merge":  # of a merge, the parts are damaged
                ran = programs.armillary(commands(place / name, out)[kind], place / "logs", partial(interrupt, kind))
                assert ran.code not in (0, 2), ran.err
                assert out.is_dir()
    known = {}
    for kind in KINDS:
        out = place / "whole"
        ran = programs.armillary(commands(place / "a", out)[kind], place / "logs")
        assert ran.code == 0, ran.err
        known[kind] = read(kind, out)
        shutil.rmtree(out)
    (place / "known.json").write_text(json.dumps(known))


def _material(place: Path, seed: int) -> None:
    model = sample_folder("llama", place / "model", seed=seed)
    training_config(place)
    if seed:
        config = place / "run.toml"
        config.write_text(config.read_text().replace("warmup = 2", f"warmup = 2\nseed = {seed}"))
    scan = commands(place, place)["scan, 1 worker"][2:-3]
    for part in ("1", "2"):
        out = str(place / f"part-{part}")
        ran = programs.armillary(["scan", str(model), *scan, "--part", f"{part}/2", "--out", out], place / "logs")
        assert ran.code == 0, ran.err


def interrupt(kind: str) -> None:
    """Let the command of this process end in the middle of its work, as if it had been killed there."""
    import os

    from armillary.scanning.folder import ScanFolder
    from armillary.training import run
    from armillary.training.loop import mean_loss

    left = {"scan, 1 worker": 16, "weights": 2, "train": 5}[kind]

    def counted(original: Callable[..., Any]) -> Any:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)
            return original(*args, **kwargs)

        return call

    if kind == "train":
        run.mean_loss = counted(mean_loss)  # type: ignore[attr-defined]
    else:
        ScanFolder.keep = counted(ScanFolder.keep)  # type: ignore[method-assign]


def run(case: Case) -> Outcome:
    kind = KINDS[case.number % len(KINDS)]
    expected = json.loads((case.place / "known.json").read_text())[kind]
    place = case.scratch / "a"
    place.mkdir()
    for name in ("model", "run.toml", "text.txt", "part-1", "part-2"):
        (place / name).symlink_to(case.place / "a" / name)
    out = place / "out"
    if kind == "merge":
        part = case.rng.choice(("part-1", "part-2"))
        (place / part).unlink()
        hurt, other = copied(case.place / "a" / part, place / part), case.place / "b" / part
    else:
        hurt, other = copied(case.place / "a" / kind, out), case.place / "b" / kind
    what, how = damaged(hurt, other, case.rng, case.number // len(KINDS))
    case.tries(f"{kind}: {what}")
    return judged(kind, programs.armillary(commands(place, out)[kind], case.scratch / "logs"), out, expected, how)


def judged(kind: str, ran: programs.Ran, out: Path, expected: values.Values, how: str) -> Outcome:
    """What a command made of a damaged folder."""
    if ran.raw:
        return Outcome("", TRACEBACK, f"{how}: {ran.words}")
    if ran.code != 0:
        return Outcome("", REFUSED, f"{how}: {ran.words}")
    different = values.differences(expected, read(kind, out))
    if different:
        return Outcome("", DIFFERENT, f"{how}: {len(different)} values, first {different[0]}")
    return Outcome("", SAME, how)
