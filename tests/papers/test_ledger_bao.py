"""The ledger of Bao, Hataya and Karakida: its rows, verdicts that no draw changes, and what the checks rely on."""

from collections import Counter
from math import sqrt

import numpy as np
import pytest
from latex2mathml.converter import convert
from numpy.testing import assert_allclose

from armillary.papers.ledger import bao_moments, bao_propagation, bao_training
from armillary.papers.ledger.entry import Entry, Number, verdict_of
from armillary.theory.localization import limit_rho
from armillary.theory.random_walk import simulate_walks

ENTRIES: tuple[Entry, ...] = (*bao_moments.ENTRIES, *bao_propagation.ENTRIES, *bao_training.ENTRIES)

VERDICTS = {
    "holds": "L2 L4 L5 L6 L8 L11 L14 L17 L23 L25 L28 L31",
    "approximately": "L3 L16 L18",
    "differs": "L1 L7 L9 L10 L12 L13 L15 L19 L20 L21 L22 L24 L26 L27 L29 L30 L32",
}
EXPECTED = {name: verdict for verdict, names in VERDICTS.items() for name in names.split()}


def generator(entry: Entry, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, int(entry.id[1:])])


def test_every_row_is_there_once() -> None:
    assert Counter(entry.id for entry in ENTRIES) == Counter(f"L{i}" for i in range(1, 33))
    assert {entry.paper for entry in ENTRIES} == {"Bao"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_the_verdict_follows_and_does_not_depend_on_the_draw(entry: Entry) -> None:
    assert entry.check is not None
    for seed in range(3):
        assert verdict_of(entry.check(generator(entry, seed))) == EXPECTED[entry.id], seed


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_says_what_is_corrected(entry: Entry) -> None:
    """A statement that differs has a corrected form; every formula is TeX that the page can show."""
    if EXPECTED[entry.id] == "differs":
        assert entry.corrected
    for tex in filter(None, (entry.printed, entry.corrected)):
        assert convert(tex).startswith("<math")
        assert tex.count("{") == tex.count("}")


def test_what_is_drawn_carries_an_error() -> None:
    """Moments of walks come with a standard error, small beside them, and are within five of the exact ones."""
    for name in ("L12", "L13"):
        entry = next(one for one in ENTRIES if one.id == name)
        assert entry.check is not None
        for item in entry.check(generator(entry, 7)):
            if isinstance(item, Number) and item.error and item.corrected is not None:
                assert 0 < item.error < 0.1 * (1 + abs(item.measured))
                assert abs(item.measured - item.corrected) < 5 * item.error


def test_nodes_give_gaussian_moments_exactly() -> None:
    """E x^2 = 1, E x^4 = 3, E x^2 y^2 = 1; E x^6 = 15 is beyond three nodes, which give 9."""
    z, p = bao_moments.gaussian_nodes(2)
    x, y = z.T
    assert_allclose([p.sum(), p @ x**2, p @ x**4, p @ (x**2 * y**2), p @ (x**3 * y)], [1, 1, 3, 1, 0], atol=1e-12)
    assert p @ x**6 == pytest.approx(9)


def test_nodes_of_a_walk_have_its_covariance() -> None:
    """Cov(x_i, x_j) = min(i, j) Sigma."""
    sigma = bao_moments.anisotropic(np.random.default_rng(0), 2)
    (x, y, z), p = bao_moments.walk_nodes(sigma, (2, 3, 7))
    assert_allclose((p * x.T) @ y, 2 * sigma, atol=1e-12)
    assert_allclose((p * y.T) @ z, 3 * sigma, atol=1e-12)
    assert_allclose((p * z.T) @ z, 7 * sigma, atol=1e-12)


def test_the_inverted_law_is_what_walks_do_in_few_dimensions_too() -> None:
    """No normal approximation: at d = 2, where the normal law misses by up to 0.25."""
    eigenvalues = np.array([1.5, 0.8])
    seen, error = simulate_walks(np.diag(eigenvalues), None, 12, sqrt(2), 40_000, seed=1)
    true = bao_propagation.true_rho(eigenvalues, 12, sqrt(2))
    assert np.all(np.abs(seen - true) < 4.5 * error)


def test_the_printed_law_is_the_librarys_printed_form() -> None:
    theta = np.linspace(0, 1, 11)
    for xi, eta in ((0.0, 1.0), (3.0, 0.4), (-5.0, 2.0)):
        spectrum = bao_propagation.law(xi, eta)
        library = limit_rho(spectrum, theta, printed=True)
        assert_allclose(bao_propagation.printed_rho(xi, eta, theta), library, atol=1e-14)


def test_a_check_notices_a_wrong_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wrong closed form in the library the row of it is unresolved, and not silently as before."""
    monkeypatch.setattr(bao_propagation, "minimum_entropy", lambda norm, t: np.log(t) / (1 + np.asarray(norm)))
    entry = next(one for one in ENTRIES if one.id == "L26")
    assert entry.check is not None
    assert verdict_of(entry.check(generator(entry, 0))) == "unresolved"
