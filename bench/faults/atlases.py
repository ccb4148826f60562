"""Damaged atlases: every value reads as it was written, or a sentence says what is damaged; `check` names it."""

import json
from pathlib import Path

from faults import programs, values
from faults.damages import contents, damaged
from faults.material import SCAN, copied, sample_folder
from faults.outcomes import DIFFERENT, REFUSED, SAME, TRACEBACK, WRONG, Outcome
from faults.serving import Case

COUNT = 1000
BOUND = 120.0
JOBS = 2
CONFINED = True
warm = programs.imports


def prepare(place: Path) -> None:
    """Two atlases of scans and two of weights, and what they hold."""
    for seed, name in enumerate(("a", "b")):
        model = sample_folder("llama", place / f"model-{name}", seed=seed)
        made = {"scan": ["scan", str(model), *SCAN], "weights": ["weights", str(model)]}
        for kind, command in made.items():
            ran = programs.armillary([*command, "--out", str(place / f"{kind}-{name}")], place / "logs")
            assert ran.code == 0, ran.err
    for kind in ("scan", "weights"):
        assert programs.armillary(["check", str(place / f"{kind}-a")], place / "logs").code == 0
        (place / f"{kind}.json").write_text(json.dumps(read(place / f"{kind}-a")))


def read(folder: Path) -> values.Values:
    return values.arrays(folder) | values.attributes(folder)


def run(case: Case) -> Outcome:
    kind = "weights" if case.rng.random() < 0.25 else "scan"
    whole = case.place / f"{kind}-a"
    folder = copied(whole, case.scratch / "atlas")
    what, how = damaged(folder, case.place / f"{kind}-b", case.rng, case.number, "atlas.zarr")
    case.tries(what)
    before, after = contents(whole), contents(folder)
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    outcome = judged(folder, json.loads((case.place / f"{kind}.json").read_text()))
    if outcome.verdict in (SAME, REFUSED):
        outcome = checked(folder, changed, case.scratch / "logs") or outcome
    return Outcome(what, outcome.verdict, f"{how}: {outcome.told}")


def judged(folder: Path, expected: values.Values) -> Outcome:
    """Whether all that can be read of an atlas is as expected."""
    from armillary.errors import ArmillaryError

    try:
        different = values.differences(expected, read(folder))
    except ArmillaryError as error:
        return Outcome("", REFUSED, str(error))
    if different:
        return Outcome("", DIFFERENT, f"{len(different)} values, first {different[0]}")
    return Outcome("", SAME)


def checked(folder: Path, changed: list[str], logs: Path) -> Outcome | None:
    """What is wrong with the answer of `armillary check`, which has to name a file that was changed, or its array."""
    ran = programs.armillary(["check", str(folder)], logs)
    said = " ".join((ran.out + ran.err).split())
    if ran.raw:
        return Outcome("", TRACEBACK, f"check: {ran.words}")
    if ran.code == 0:
        return Outcome("", WRONG, f"check finds nothing wrong with {', '.join(changed)}: {said[-200:]}")
    named = [name for name in changed if _named(name, said)]
    if changed == ["atlas.zarr/checksums/zarr.json"]:  # a whole list of another atlas: it cannot be told which is wrong
        named = changed
    return None if named else Outcome("", WRONG, f"check does not name {', '.join(changed)}: {said[-300:]}")


def _named(file: str, said: str) -> bool:
    """Whether a sentence names a file of the store, or the array that it belongs to."""
    inside = file.removeprefix("atlas.zarr/")
    array = inside.removesuffix("/zarr.json").partition("/c/")[0]
    return inside in said or array in said
