"""The ledger's framework: verdicts follow from evidence, the command tells them, broken formulas are noticed."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import armillary as arm
from armillary.cli import app
from armillary.figures.theory import FIGURES
from armillary.papers import ledger
from armillary.papers.ledger import Fact, Number, Trend, verdict_of
from armillary.papers.ledger.page import formula
from armillary.papers.ledger.run import SUBJECTS, run_one
from armillary.papers.ledger.words import sentence


class TestVerdicts:
    @pytest.mark.parametrize(
        ("evidence", "verdict"),
        [
            ([Number("n", 1.0, printed=1.0)], "holds"),
            ([Number("n", 1.0, printed=1.02, error=0.01)], "holds"),
            ([Number("n", 1.0, printed=1.06, error=0.01)], "unresolved"),
            ([Number("n", 1.0, printed=2.0, error=0.01)], "differs"),
            ([Number("n", 1.0, printed=2.0, corrected=1.0)], "differs"),
            ([Number("n", 1.0, printed=2.0, corrected=1.5)], "unresolved"),
            ([Number("n", float("inf"), printed=float("inf"))], "holds"),
            ([Number("n", 1.0, printed=float("nan"))], "differs"),
            ([Fact("f", True)], "holds"),
            ([Fact("f", False)], "differs"),
            ([Fact("f", False, "corrected")], "unresolved"),
            ([Fact("f", False), Fact("g", True, "corrected")], "differs"),
            ([Trend("t", ("n=1", "n=9"), (0.5, 0.01), 0.02)], "approximately"),
            ([Trend("t", ("n=1", "n=9"), (0.5, 0.3), 0.02)], "differs"),
            ([Trend("t", ("n=1", "n=9"), (0.0, 0.0), 0.02)], "holds"),
            ([Trend("t", ("n=1", "n=9"), (0.5, 0.01), 0.02), Fact("f", False)], "differs"),
            ([], "unresolved"),
        ],
    )
    def test_they_follow_from_the_evidence(self, evidence: list[Any], verdict: str) -> None:
        assert verdict_of(evidence) == verdict

    def test_sentences(self) -> None:
        assert sentence(Number("mean", 1.5, 2.0, 1.5, 0.1)) == "mean: measured 1.5 ± 0.1, as printed 2, corrected 1.5"
        assert "not so; counter" in sentence(Fact("bound", False, detail="counter-example"))
        assert "n=9 0.01" in sentence(Trend("t", ("n=1", "n=9"), (0.5, 0.01), 0.02))


class TestEntries:
    def test_all_187_statements_are_there_once(self) -> None:
        ids = [entry.id for entry in ledger.entries()]
        assert len(ids) == len(set(ids)) == 187
        assert sum(entry.check is None for entry in ledger.entries()) == sum(
            verdict == "not tested" for verdict in ledger.recorded().values()
        )

    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_every_entry_says_what_it_is(self, subject: str) -> None:
        for entry in importlib.import_module(f"armillary.papers.ledger.{subject}").ENTRIES:
            assert entry.statement.strip()
            assert entry.printed.strip()
            assert entry.place.strip()
            assert entry.check is not None or entry.command
            assert "<math" in formula(entry.printed), entry.id
            if ledger.recorded()[entry.id] == "differs":
                assert entry.corrected.strip(), entry.id
            if entry.corrected:
                assert "<math" in formula(entry.corrected), entry.id
            if entry.command:
                command = entry.command.split()[1]
                assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0

    def test_figures_belong_to_entries(self) -> None:
        assert set(FIGURES) <= {entry.id for entry in ledger.entries()}

    def test_a_check_depends_on_its_id_and_the_seed_alone(self) -> None:
        first, again = run_one("T6.2", 3), run_one("T6.2", 3)
        assert first.evidence == again.evidence
        assert first.evidence != run_one("T6.2", 4).evidence


class TestCommand:
    def test_one_statement(self, tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        run = CliRunner().invoke(app, ["theory", "l26", "--html", str(page)])
        assert run.exit_code == 0, run.output
        assert "differs from print" in run.stdout
        assert "as printed" in run.stdout
        shown = page.read_text(encoding="utf-8")
        assert "<math" in shown
        assert "The least attention entropy" in shown
        wrong = CliRunner().invoke(app, ["theory", "L99"])
        assert "no statement 'L99'" in str(wrong.exception)

    def test_a_verdict_that_changed_is_exit_code_1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ledger, "recorded", lambda: {"L26": "holds"})
        run = CliRunner().invoke(app, ["theory", "L26", "--json"])
        assert run.exit_code == 1
        assert json.loads(run.stdout)[0]["recorded"] == "holds"
        assert "L26: was holds, now differs" in run.stderr

    def test_one_paper(self) -> None:
        with pytest.raises(arm.ArmillaryError, match="no paper"):
            CliRunner().invoke(app, ["theory", "--paper", "Newton"], catch_exceptions=False)


BREAKABLE = [
    ("gaussian", "cross_entropy", "T2.2c"),
    ("gaussian", "mutual_information", "T2.2g"),
    ("bilinear", "bilinear_mean", "T6.2"),
    ("bilinear", "bilinear_variance", "T6.3"),
    ("random_matrix", "largest_mean", "T6.12"),
    ("softmax", "ratio_mean", "T5.20"),
    ("localization", "minimum_entropy", "L26"),
    ("localization", "locater_minimizer", "L31"),
]


@pytest.mark.parametrize(("module", "name", "entry"), BREAKABLE)
def test_a_broken_formula_is_noticed(module: str, name: str, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One per subject here; bench/mutations.py breaks every closed form."""
    before = run_one(entry).verdict
    break_formula(module, name, monkeypatch.setattr)
    try:
        after = run_one(entry).verdict
    except Exception:
        return  # noticed, loudly
    assert after != before


def break_formula(module: str, name: str, setattr_: Callable[[Any, str, Any], None]) -> None:
    """Make a closed form give 10 % too much and a little more, wherever the ledger has imported it."""
    home = importlib.import_module(f"armillary.theory.{module}")
    right = getattr(home, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        value = right(*args, **kwargs)
        return (
            tuple(1.1 * part + 0.01 for part in value) if isinstance(value, tuple) else 1.1 * np.asarray(value) + 0.01
        )

    places: list[ModuleType] = [home, *(importlib.import_module(f"armillary.papers.ledger.{s}") for s in SUBJECTS)]
    for place in places:
        for attribute, value in list(vars(place).items()):
            if value is right:
                setattr_(place, attribute, wrong)
