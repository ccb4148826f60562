"""bench/faults.json and docs/faults.md, written from the counts of a campaign; no number is typed by hand."""

import json
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1]
COUNTS = BENCH / "faults.json"
PAGE = BENCH.parent / "docs" / "faults.md"
SUBJECTS = {
    "kills": "killed at a random moment, begun again until done, compared bit for bit with the undisturbed run",
    "folders": "unfinished scans, parts and training runs damaged, then gone on with",
    "atlases": "finished atlases damaged, then read whole; `armillary check` must name the damage",
    "disks": "disks that are full, read-only or limited, then freed again",
    "checkpoints": "model folders mutated, then inspected, weighed, loaded and scanned",
    "commands": "absurd command lines",
    "requests": "requests to the viewer, valid and hostile",
}
COLUMNS = {
    "runs": "runs",
    "same": "right result",
    "refused": "refused in a sentence",
    "different": "values that differ",
    "traceback": "tracebacks",
    "hang": "hangs",
    "wrong": "wrong acceptances",
}
HEAD = """# What hostile hands and bad luck do to it

Written from bench/faults.json (seed {seed}) by `make faults`, which runs all cases, or by
`bench/campaign.py --join` from subjects that ran apart, perhaps with fewer.
The last four columns must be zero, or the command ends with exit code 1
and names the first cases, each with the command that repeats it. Every case runs in a process of its
own, with a bound on its time; everything random in it follows from the seed and the case's number (a kill's moment is a
random share of the time that the undisturbed run took).
"""


def row(name: str, counts: dict[str, Any]) -> str:
    return f"| {name} | " + " | ".join(f"{counts[column]:,}" for column in COLUMNS) + " |"


def head() -> list[str]:
    return ["| | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---:|" * len(COLUMNS)]


def rendered(found: dict[str, Any]) -> str:
    """The page of these counts."""
    machine, subjects = found["machine"], found["subjects"]
    parts = [HEAD.format(seed=found["seed"]), *head()]
    parts += [row(f"**{name}**: {SUBJECTS[name]}", counts) for name, counts in subjects.items()]
    total = {column: sum(counts[column] for counts in subjects.values()) for column in COLUMNS}
    parts += [row("all", total), ""]
    seconds = sum(counts["seconds"] for counts in subjects.values())
    longest = max(counts["longest"] for counts in subjects.values())
    parts.append(
        f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}; {seconds / 60:.0f} minutes of cases, the longest {longest:.0f} s."
    )
    for name, counts in subjects.items():
        parts += ["", f"## {name}", "", *head()]
        parts += [row(kind, of_kind) for kind, of_kind in counts["kinds"].items() if of_kind["runs"]]
        parts += [f"\nNot tried here: {reason}." for reason in counts["skipped_because"]]
        for fault in counts["faults"]:
            parts.append(f"\n- {fault['what']}, {fault['verdict']}: {fault['told']} (`{fault['repeat']}`)")
    return "\n".join(parts) + "\n"


def joined(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of subjects that ran apart, on one machine with one seed, as those of one campaign."""
    if any((each["machine"], each["seed"]) != (counts[0]["machine"], counts[0]["seed"]) for each in counts):
        sys.exit("these counts are of different machines, versions or seeds: run all subjects again on one")
    subjects = {name: of_subject for each in counts for name, of_subject in each["subjects"].items()}
    return {**counts[0], "subjects": {name: subjects[name] for name in SUBJECTS if name in subjects}}


def write(counts: dict[str, Any]) -> None:
    """Keep the counts, and write their page."""
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(rendered(counts), encoding="utf-8")
