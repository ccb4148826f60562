"""`make bench`: ratios measured side by side in one run. Prints a table, writes bench/results.json and the README's.

python bench/run.py                 all of it, in half an hour; exit code 1 if a target is missed by over 15 %
python bench/run.py scan spectra    only these (of: whole, commands, scan, memory, long, spectra, ablation,
                                    training, pair)
python bench/run.py --render        the README's table from bench/results.json
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import ablation
import scaling
import scans
import spectra
import startup
import torch
import whole
from measuring import Row
from rich.console import Console
from rich.table import Table

import commands
import training

RESULTS = Path(__file__).with_name("results.json")
README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- bench: written by bench/run.py -->", "<!-- /bench -->"


def pair() -> list[Row]:
    found = scaling.pair()
    whole = found["whole_scan_ratio"]
    return [
        Row("two single-threaded processes: tokens a second", "one", found["ratio"], target=1.7, least=True),
        Row("two single-threaded processes: a whole small scan, with what one process does alone", "one", whole),
    ]


PARTS: dict[str, Callable[[], list[Row]]] = {
    "whole": whole.rows,
    "commands": lambda: [*startup.rows(), *commands.open_atlas()],
    "scan": scans.first_pass,
    "memory": scans.memory,
    "long": scans.long_text,
    "spectra": spectra.rows,
    "ablation": ablation.rows,
    "training": training.training_step,
    "pair": pair,
}


def main(asked: list[str]) -> int:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"parts": {}}
    if asked != ["--render"]:
        torch.set_num_threads(os.cpu_count() or 1)
        for name in asked or PARTS:
            kept["parts"][name] = [asdict(row) for row in PARTS[name]()]
            kept["machine"] = scaling.machine()
            show(Table(title=name), [Row(**row) for row in kept["parts"][name]])
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
    rows = every(kept)
    show(Table(title="all"), rows)
    return 1 if any(row.far_off for row in rows) else 0


def every(kept: dict[str, dict[str, list[dict[str, object]]]]) -> list[Row]:
    return [Row(**row) for name in PARTS for row in kept["parts"].get(name, [])]  # type: ignore[arg-type]


def show(table: Table, rows: list[Row]) -> None:
    for column in ("what", "against", "measured", "target"):
        table.add_column(column)
    for row in rows:
        table.add_row(row.what, row.against, measured(row), target(row), style="red" if row.missed else None)
    Console(width=150).print(table)


def measured(row: Row) -> str:
    if row.value is None:
        return row.note
    shown = f"{row.value:.0f}" if abs(row.value) >= 100 else f"{row.value:.3g}"
    return f"{shown} {row.unit}" + (f" ({row.note})" if row.note else "")


def target(row: Row) -> str:
    if row.target is None:
        return "reported"
    return f"at {'least' if row.least else 'most'} {row.target:g} {row.unit}" + (": missed" if row.missed else "")


def rendered(page: str) -> str:
    """The page with its table written anew."""
    kept = json.loads(RESULTS.read_text())
    machine = kept["machine"]
    lines = [
        "| what | against | measured | target |",
        "|---|---|---|---|",
        *(f"| {row.what} | {row.against} | {measured(row)} | {target(row)} |" for row in every(kept)),
        "",
        f"Measured by `make bench` on {machine['cores']} cores ({machine['processor']}), torch {machine['torch']}; "
        "medians of interleaved repeats.",
    ]
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"README.md has no place for the table: it stands between {BEGIN} and {END}")
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
