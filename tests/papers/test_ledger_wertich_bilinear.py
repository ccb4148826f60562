"""The statements of Wertich §6 to §8: which there are, and that their checks decide the same at every seed."""

import hashlib
import warnings

import numpy as np
import pytest
from latex2mathml.converter import convert
from scipy.linalg import svdvals

from armillary.papers.ledger import wertich_attention, wertich_bilinear, wertich_spheres
from armillary.papers.ledger.entry import Entry, Verdict, verdict_of

ROWS: dict[str, Verdict] = {
    "T6.2": "differs",
    "T6.3": "holds",
    "T6.B7": "holds",
    "T6.10": "holds",
    "T6.12": "approximately",
    "T6.13": "holds",
    "T6.17": "holds",
    "T6.2.4": "holds",
    "T6.25": "holds",
    "T6.29": "differs",
    "T6.dof": "holds",
    "T6.34": "differs",
    "T6.35": "holds",
    "T6.36": "differs",
    "T6.37": "holds",
    "T6.40": "holds",
    "T6.42": "differs",
    "T6.45": "differs",
    "T6.47": "differs",
    "T6.48b": "holds",
    "T6.48c": "differs",
    "T6.49": "differs",
    "T6.49b": "holds",
    "T6.49c": "differs",
    "T6.4": "differs",
    "T7.1a": "holds",
    "T7.1b": "differs",
    "T7.1c": "approximately",
    "T7.2": "holds",
    "T7.3": "differs",
    "T7.4": "differs",
    "T7.4b": "approximately",
    "T7.5": "differs",
    "T7.6": "differs",
    "T7.7": "approximately",
    "T8.1": "holds",
    "T8.2": "not tested",
}
ENTRIES = (*wertich_bilinear.ENTRIES, *wertich_spheres.ENTRIES, *wertich_attention.ENTRIES)
CHECKED = [entry for entry in ENTRIES if entry.check is not None]


def verdict(entry: Entry, seed: int) -> Verdict:
    """As `run_one` does it, without the modules of other papers."""
    assert entry.check is not None
    digest = hashlib.sha256(f"{entry.id} {seed}".encode()).digest()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return verdict_of(entry.check(np.random.default_rng(int.from_bytes(digest[:8], "big"))))


def test_the_entries_are_the_rows_in_the_order_of_the_thesis() -> None:
    assert [entry.id for entry in ENTRIES] == list(ROWS)
    assert {entry.paper for entry in ENTRIES} == {"Wertich"}


@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_the_verdict_is_the_same_at_three_seeds(entry: Entry) -> None:
    assert [verdict(entry, seed) for seed in range(3)] == [ROWS[entry.id]] * 3


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_what_differs_is_corrected_and_what_is_not_checked_has_a_command(entry: Entry) -> None:
    assert bool(entry.corrected) or ROWS[entry.id] != "differs"
    assert not entry.corrected or ROWS[entry.id] in ("differs", "approximately")
    assert entry.check is not None or entry.command.startswith("armillary ")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_formulas_can_be_set(entry: Entry) -> None:
    for tex in filter(None, (entry.printed, entry.corrected)):
        mathml = convert(tex)
        assert "\\" not in mathml, mathml


def test_the_bidiagonal_matrix_has_the_largest_singular_value_of_a_dense_one() -> None:
    rng = np.random.default_rng(0)
    short = wertich_bilinear.largest_squares(rng, 12, 3000)
    dense = np.array([svdvals(a)[0] ** 2 for a in rng.standard_normal((3000, 12, 12))])
    error = np.hypot(short.std(), dense.std()) / np.sqrt(3000)
    assert abs(short.mean() - dense.mean()) < 4 * error
    assert short.std() == pytest.approx(dense.std(), rel=0.1)


def test_pairs_have_the_cosine_asked_for() -> None:
    v, w = wertich_spheres.at_cosine(np.random.default_rng(0), 100, 7, 0.3)
    assert np.allclose((v * w).sum(1), 0.3)
    assert np.allclose(np.linalg.norm(w, axis=1), 1)


def test_random_rotations_are_orthogonal_and_have_no_preferred_sign() -> None:
    q = wertich_bilinear.haar(np.random.default_rng(0), 4000, 3)
    assert np.allclose(q @ np.swapaxes(q, 1, 2), np.eye(3))
    assert np.abs(q.mean(0)).max() < 4 / np.sqrt(3 * 4000)
