"""Absurd command lines: exit code 2 and one sentence, or 0 and output; never a traceback, never a hang.

Some arguments have no meaning that could be guessed (an empty corpus, zero workers): to accept those is wrong.
"""

import os
from pathlib import Path

from faults import lines, programs
from faults.confining import own_device
from faults.material import TEXT, copied, sample_folder, training_config
from faults.outcomes import REFUSED, SAME, TRACEBACK, WRONG, Outcome
from faults.serving import Case

COUNT = 300
BOUND = 120.0
JOBS = 2
CONFINED = True
warm = programs.imports


def prepare(place: Path) -> None:
    """A model with words and one without, an atlas, a weights' atlas, parts and a run."""
    import armillary as arm

    copied(Path(arm.bundled("llama")), place / "model")
    sample_folder("llama", place / "sample")
    (place / "file.txt").write_text(TEXT)
    training_config(place)
    config = (place / "run.toml").read_text().replace("steps = 24", "steps = 3")
    (place / "run.toml").write_text(config)
    small = ["--sequences", "4", "--length", "16", "--second-pass", "4", "--shard", "2"]
    for command in (
        ["scan", str(place / "model"), *small, "--out", str(place / "atlas")],
        ["weights", str(place / "sample"), "--out", str(place / "spectra")],
        ["train", str(place / "run.toml")],
        *(
            ["scan", str(place / "model"), *small, "--part", f"{n}/2", "--out", str(place / f"part-{n}")]
            for n in (1, 2)
        ),
    ):
        ran = programs.armillary(command, place / "logs")
        assert ran.code == 0, ran.err


def places(case: Case) -> dict[str, str]:
    """What the names in braces stand for: copies and devices of the case's own, so that nothing else can be harmed."""
    here = case.scratch / "here"
    here.mkdir()
    os.mkfifo(here / "pipe")
    devices = {f"{{{name}}}": str(own_device(here, name)) for name in ("null", "full")}
    copies = {f"{{{name}}}": str(copied(case.place / name, case.scratch / name)) for name in ("atlas", "model")}
    return {**devices, **copies, "{pipe}": str(here / "pipe"), "file.txt": str(case.place / "file.txt")}


def run(case: Case) -> Outcome:
    command, arguments, must_refuse = lines.generated(case.rng, case.number, case.place)
    case.tries(command)
    there = places(case)
    arguments = [there.get(one, one) for one in arguments]
    ran = programs.armillary(arguments, case.scratch / "logs", lambda: os.chdir(case.scratch / "here"))
    return judged(ran, must_refuse, " ".join(map(repr, arguments)).replace(str(case.place), "..."))


def judged(ran: programs.Ran, must_refuse: bool, line: str) -> Outcome:
    """How a command line ended."""
    if ran.raw:
        return Outcome("", TRACEBACK, f"{line}: code {ran.code}: {ran.words}")
    if ran.code == 0:
        if must_refuse:
            return Outcome("", WRONG, f"{line}: accepted: {' '.join(ran.out.split())[:200]}")
        return Outcome("", SAME, line) if ran.out.strip() else Outcome("", WRONG, f"{line}: nothing is said")
    sentences = [row for row in ran.err.splitlines() if row.startswith("armillary: ")]
    usage = "Usage: " in ran.err and "Error" in ran.err
    if ran.code == 2 and (len(sentences) == 1 or usage):
        return Outcome("", REFUSED, f"{line}: {ran.words}")
    return Outcome("", TRACEBACK, f"{line}: code {ran.code} without a sentence: {ran.words}")
