"""Break every closed form of theory/, one at a time, and see whether the ledger notices. Writes bench/mutations.json.

python bench/mutations.py: some minutes on one core. Forms that are broken unseen, mostly such as no paper states, are
listed; tests/theory/test_theory.py and its neighbors test those.
"""

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from armillary.papers.ledger.entry import Entry
from armillary.papers.ledger.run import SUBJECTS, entries, recorded, run_one

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


def wrong(right: Any, factor: float) -> Any:
    """The same with everything too large or too small, and a little more."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        value = right(*args, **kwargs)
        if isinstance(value, tuple):
            return tuple(factor * np.asarray(part) + 0.01 for part in value)
        if isinstance(value, str):
            return "early"
        return factor * np.asarray(value) + 0.01

    return broken


def users(form: str, name: str) -> list[Entry]:
    """The entries of the modules whose source names this form, or else its module (it may work behind another)."""
    modules = [importlib.import_module(f"armillary.papers.ledger.{subject}") for subject in SUBJECTS]
    sources = {module: inspect.getsource(module) for module in modules}
    named = [module for module, source in sources.items() if name in source]
    near = [module for module, source in sources.items() if re.search(rf"theory(\.| import .*){form}\b", source)]
    return [entry for module in named or near for entry in module.ENTRIES]


def noticed(module: Any, name: str, factor: float) -> str:
    """The id of the first entry whose verdict changes (or whose check fails) with this form broken, or ''."""
    right = getattr(module, name)
    places = [module, *(importlib.import_module(f"armillary.papers.ledger.{subject}") for subject in SUBJECTS)]
    places += [importlib.import_module(f"armillary.theory.{form}") for form in FORMS]
    changed = [(place, key) for place in places for key, value in vars(place).items() if value is right]
    for place, key in changed:
        setattr(place, key, wrong(right, factor))
    try:
        for entry in users(module.__name__.rsplit(".", 1)[1], name):
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
                by = noticed(module, name, 1.1) or noticed(module, name, 0.5)
                row = {"form": f"{form}.{name}", "noticed_by": by}
                rows.append(row)
                print(row, flush=True)
    Path(__file__).with_name("mutations.json").write_text(json.dumps(rows, indent=1) + "\n")
    unseen = [row["form"] for row in rows if not row["noticed_by"]]
    print(f"{len(rows)} forms, {len(unseen)} broken unseen by the ledger (their own tests must see them): {unseen}")


if __name__ == "__main__":
    assert len(entries()) == 187
    main()
