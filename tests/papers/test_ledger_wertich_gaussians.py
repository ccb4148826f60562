"""The ledger's entries of Wertich §2 and §4: they are all there, and their checks decide, whatever the seed."""

import hashlib
import warnings

import numpy as np
import pytest

from armillary.papers.ledger import wertich_gaussians, wertich_matrices, wertich_tokens
from armillary.papers.ledger.entry import Evidence, Trend, verdict_of

ENTRIES = {one.id: one for part in (wertich_gaussians, wertich_matrices, wertich_tokens) for one in part.ENTRIES}
HOLD = [
    *("T2.1f", "T2.2a", "T2.2b", "T2.2e", "T2.2f", "T2.2g", "T2.4b"),
    *("T4.1", "T4.2a", "T4.2b", "T4.2d", "T4.3b", "T4.3d"),
]
DIFFER = [
    *("T2.1a", "T2.1b", "T2.1c", "T2.1d", "T2.1e", "T2.2i", "T2.2c", "T2.2d", "T2.2h", "T2.3a", "T2.4a", "T2.4c"),
    *("T2.5a", "T2.5b", "T2.5c", "T2.5d", "T2.5e", "T4.2c", "T4.2e", "T4.3a", "T4.3c"),
]
APPROXIMATE = ["T2.5f"]
EXPECTED = dict.fromkeys(HOLD, "holds") | dict.fromkeys(DIFFER, "differs") | dict.fromkeys(APPROXIMATE, "approximately")


def evidence_of(name: str, seed: int) -> tuple[Evidence, ...]:
    """What the check finds with the generator that a run with this seed would give it; warnings are errors."""
    check = ENTRIES[name].check
    assert check is not None
    digest = hashlib.sha256(f"{name} {seed}".encode()).digest()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return tuple(check(np.random.default_rng(int.from_bytes(digest[:8], "big"))))


def test_the_modules_hold_exactly_the_rows_of_sections_2_and_4() -> None:
    parts = (wertich_gaussians, wertich_matrices, wertich_tokens)
    assert sum(len(part.ENTRIES) for part in parts) == len(ENTRIES) == 35
    assert set(ENTRIES) == set(EXPECTED)
    assert {one.paper for one in ENTRIES.values()} == {"Wertich"}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_verdict_is_the_same_for_every_seed(name: str) -> None:
    assert [verdict_of(evidence_of(name, seed)) for seed in range(3)] == [EXPECTED[name]] * 3


@pytest.mark.parametrize("name", [*DIFFER, *APPROXIMATE])
def test_what_does_not_hold_is_corrected(name: str) -> None:
    one = ENTRIES[name]
    assert one.corrected
    assert one.corrected != one.printed
    assert one.remark


def test_the_least_gap_is_far_off_in_small_matrices_only() -> None:
    (trend,) = [item for item in evidence_of("T2.5f", 0) if isinstance(item, Trend)]
    assert trend.errors[0] > 0.3
    assert max(trend.errors[1:]) < 0.06
