"""The verdicts on Wertich's §5 come out of their checks, for every seed."""

import hashlib
import warnings

import numpy as np
import pytest

from armillary.papers.ledger.entry import Entry, Verdict, verdict_of
from armillary.papers.ledger.wertich_exponentials import ENTRIES as EXPONENTIALS
from armillary.papers.ledger.wertich_slerp import ENTRIES as SLERP
from armillary.papers.ledger.wertich_softmax import ENTRIES as SOFTMAX

ENTRIES = SOFTMAX + SLERP + EXPONENTIALS
HOLDS = "1b 1c 1d 2a 2c 3 2g 7 15 21 3.1b 3.2a 3.2c"
DIFFERS = "1a 1e 2b 2d 2e 2f 2h 2i 5 13 17 18 20 3.1a 3.1c 3.2b 3.2d 3.2e"
APPROXIMATELY = "19b 3.2f"
EXPECTED: dict[str, Verdict] = {
    **{f"T5.{row}": "holds" for row in HOLDS.split()},
    **{f"T5.{row}": "differs" for row in DIFFERS.split()},
    **{f"T5.{row}": "approximately" for row in APPROXIMATELY.split()},
}


def test_the_rows_are_those_of_the_chapter() -> None:
    names = [one.id for one in ENTRIES]
    assert len(names) == len(set(names)) == 33
    assert set(names) == set(EXPECTED)
    assert {one.paper for one in ENTRIES} == {"Wertich"}


def test_a_correction_is_given_where_the_printed_form_is_off_and_only_there() -> None:
    assert {one.id for one in ENTRIES if one.corrected} == {name for name in EXPECTED if EXPECTED[name] != "holds"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("one", ENTRIES, ids=lambda one: one.id)
def test_verdict(one: Entry, seed: int) -> None:
    assert one.check is not None
    digest = hashlib.sha256(f"{one.id} {seed}".encode()).digest()  # the same numbers as `armillary theory` draws
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evidence = one.check(rng)
    assert verdict_of(evidence) == EXPECTED[one.id], evidence
