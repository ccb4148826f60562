"""The ledger of Barbero et al.: every row is there, and its verdict follows from what is measured."""

import hashlib
from decimal import Decimal
from functools import cache

import numpy as np
import pytest
from latex2mathml.converter import convert

from armillary.papers.ledger import Evidence, Fact, Number, Verdict, verdict_of
from armillary.papers.ledger.barbero_numbers import ENTRIES as NUMBERS
from armillary.papers.ledger.barbero_numbers import printed_count
from armillary.papers.ledger.barbero_rotary import ENTRIES as PROPOSITIONS
from armillary.papers.ledger.barbero_rotary import best_lead, closest_return, needed_gap

ENTRIES = {entry.id: entry for entry in PROPOSITIONS + NUMBERS}
VERDICTS: dict[str, Verdict] = {
    **dict.fromkeys((f"B{n}" for n in range(1, 25)), "holds"),
    "B2": "differs",  # radians, not rotations
    "B14": "differs",  # 0.0003
    "B10": "approximately",
    "B11": "approximately",
    "B12": "approximately",
    "B16": "approximately",
    "B19": "approximately",
    "B21": "approximately",
}


@cache
def evidence(name: str, seed: int) -> tuple[Evidence, ...]:
    """What the row's check finds, with the random numbers that `armillary theory` gives it."""
    check = ENTRIES[name].check
    assert check is not None
    digest = hashlib.sha256(f"{name} {seed}".encode()).digest()
    return tuple(check(np.random.default_rng(int.from_bytes(digest[:8], "big"))))


def test_every_row_is_there_once_and_in_order() -> None:
    assert [entry.id for entry in PROPOSITIONS + NUMBERS] == [f"B{n}" for n in range(1, 26)]
    assert {entry.paper for entry in ENTRIES.values()} == {"Barbero"}


def test_only_what_needs_trained_weights_is_not_checked() -> None:
    assert [name for name, entry in ENTRIES.items() if entry.check is None] == ["B25"]
    assert ENTRIES["B25"].command.startswith("armillary ")


@pytest.mark.parametrize("name", VERDICTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_verdict_does_not_depend_on_the_draws(name: str, seed: int) -> None:
    assert verdict_of(evidence(name, seed)) == VERDICTS[name]


@pytest.mark.parametrize("name", ENTRIES)
def test_a_correction_is_given_exactly_where_the_printed_form_does_not_simply_hold(name: str) -> None:
    entry = ENTRIES[name]
    assert bool(entry.corrected) == (VERDICTS.get(name, "holds") != "holds")
    for tex in filter(None, (entry.printed, entry.corrected)):
        assert convert(tex).startswith("<math")


def test_a_wrong_closed_form_would_be_noticed() -> None:
    """What is said of corrected forms is tested too: a number off by a per cent makes the row unresolved."""
    for name in ("B2", "B10", "B12", "B17"):
        found = list(evidence(name, 0))
        i = next(i for i, item in enumerate(found) if isinstance(item, Number) and item.corrected is not None)
        item = found[i]
        assert isinstance(item, Number)
        assert item.corrected is not None
        found[i] = Number(item.what, item.measured, item.printed, 1.01 * item.corrected, item.error, item.tolerance)
        assert verdict_of(found) == "unresolved"


def test_every_form_is_spoken_of() -> None:
    """A row that holds says so of the printed form; a row that does not says something of the corrected one."""
    for name, verdict in VERDICTS.items():
        found = evidence(name, 0)
        corrected = any(
            item.corrected is not None if isinstance(item, Number) else item.form == "corrected"
            for item in found
            if isinstance(item, Number | Fact)
        )
        printed = any(
            item.printed is not None if isinstance(item, Number) else getattr(item, "form", "printed") == "printed"
            for item in found
        )
        assert printed
        assert corrected or verdict == "holds"


def test_a_single_frequency_has_no_head_from_the_first_length_with_half_a_turn() -> None:
    assert best_lead(0.1, 32) > 0.01  # 3.1 radians
    assert best_lead(0.1, 33) < 1e-9  # 3.2 radians, and 3.1 to the token before


def test_the_helpers_give_what_is_known() -> None:
    assert closest_return(Decimal(1), 100)[0] == 44  # 44/7 is near 2 pi
    assert closest_return(Decimal(1), 10_000)[0] == 710
    assert needed_gap(2, 0.5) == pytest.approx(0, abs=1e-9)
    assert [printed_count(0.58, 100), printed_count(0.75, 256)] == [28, 96]
