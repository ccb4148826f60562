"""Break every closed form of theory/, one at a time, and see whether the ledger notices. Writes bench/mutations.json.

python bench/mutations.py: some minutes on one core. Forms that no check uses, or that are broken unseen, are listed.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from armillary.theory.ledger.entry import Entry
from armillary.theory.ledger.run import SUBJECTS, entries, recorded, run_one

FORMS = (
    "gaussian",
    "bilinear",
    "random_matrix",
    "softmax",
    "smoothness",
    "localization",
    "random_walk",
    "rotary",
    "rotary_heads",
)


def wrong(right: Any) -> Any:
    """The same with everything 10 % too large, and a little more."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        value = right(*args, **kwargs)
        if isinstance(value, tuple):
            return tuple(1.1 * np.asarray(part) + 0.01 for part in value)
        if isinstance(value, str):
            return value + "!"
        return 1.1 * np.asarray(value) + 0.01

    return broken


def users(name: str) -> list[Entry]:
    """The entries of the modules whose source names this form."""
    found = []
    for subject in SUBJECTS:
        module = importlib.import_module(f"armillary.theory.ledger.{subject}")
        if name in inspect.getsource(module):
            found += list(module.ENTRIES)
    return found


def noticed(module: Any, name: str) -> str:
    """The id of the first entry whose verdict changes (or whose check fails) with this form broken, or ''."""
    right = getattr(module, name)
    places = [module, *(importlib.import_module(f"armillary.theory.ledger.{subject}") for subject in SUBJECTS)]
    places += [importlib.import_module(f"armillary.theory.{form}") for form in FORMS]
    changed = [(place, key) for place in places for key, value in vars(place).items() if value is right]
    for place, key in changed:
        setattr(place, key, wrong(right))
    try:
        for entry in users(name):
            try:
                if run_one(entry.id).verdict != recorded()[entry.id]:
                    return entry.id
            except Exception:
                return entry.id
    finally:
        for place, key in changed:
            setattr(place, key, right)
    return ""


def main() -> None:
    rows = []
    for form in FORMS:
        module = importlib.import_module(f"armillary.theory.{form}")
        for name, value in inspect.getmembers(module, inspect.isfunction):
            if value.__module__ == module.__name__ and not name.startswith("_"):
                used = bool(users(name))
                row = {"form": f"{form}.{name}", "used": used, "noticed_by": noticed(module, name) if used else ""}
                rows.append(row)
                print(row, flush=True)
    Path(__file__).with_name("mutations.json").write_text(json.dumps(rows, indent=1) + "\n")
    unseen = [row["form"] for row in rows if row["used"] and not row["noticed_by"]]
    unused = [row["form"] for row in rows if not row["used"]]
    print(f"{len(rows)} forms, {len(unseen)} broken unseen: {unseen}; not used by the ledger: {unused}")
    sys.exit(1 if unseen else 0)


if __name__ == "__main__":
    assert len(entries()) == 187
    main()
