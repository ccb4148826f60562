"""Power laws of spectra: planted exponents are found again, and noise gets a fit of its own to compare with."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.lenses.power_law import FITTED, SPECTRA, power_law, power_laws
from armillary.lenses.spectral import squared_singular_values
from program import complaint


def of_matrix(matrix: np.ndarray, seed: int = 0) -> dict[str, dict[str, float]]:
    """The fits by spectrum and measure."""
    tensor = torch.from_numpy(matrix)
    fits = power_laws(tensor, squared_singular_values(tensor), (seed,))
    return {name: dict(zip(FITTED, row, strict=True)) for name, row in zip(SPECTRA, fits, strict=True)}


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_a_planted_exponent_is_found_again(exponent: float) -> None:
    rng = np.random.default_rng(0)
    values = (1 - rng.random(2000)) ** (-1 / (exponent - 1))  # density x^-exponent from 1 on
    alpha, distance, xmin, tail = power_law(values)
    assert alpha == pytest.approx(exponent, abs=4 * (exponent - 1) / tail**0.5)  # the likelihood's standard error
    assert distance < 1.63 / tail**0.5  # the 1 % point of Kolmogorov's distribution
    by_hand = 1 + tail / np.log(values[values >= xmin] / xmin).sum()  # Clauset, Shalizi and Newman, equation 3.1
    assert alpha == pytest.approx(by_hand, rel=1e-6)


def test_heavy_tails_differ_from_noise_and_shuffling_removes_what_is_not_in_the_entries() -> None:
    rng = np.random.default_rng(1)
    left, _ = np.linalg.qr(rng.standard_normal((120, 120)))
    right, _ = np.linalg.qr(rng.standard_normal((120, 120)))
    fits = of_matrix(left @ np.diag((1 - rng.random(120)) ** -0.5) @ right.T)  # squared: density x^-2
    assert fits[""]["alpha"] == pytest.approx(2, abs=0.5)
    assert fits[""]["outliers"] > 3
    for other in ("_random", "_shuffled"):
        assert fits[other]["outliers"] <= 1  # the entries of such a matrix are nearly Gaussian
        assert fits[other]["distance"] > fits[""]["distance"]
    heavy = of_matrix(rng.standard_t(1.5, (100, 100)))  # heavy entries keep their outliers in any order
    assert heavy["_shuffled"]["outliers"] > 3
    assert heavy["_random"]["outliers"] <= 1


def test_too_few_directions_get_no_fit() -> None:
    fits = of_matrix(np.outer(np.arange(1.0, 13), np.ones(20)))
    assert np.isnan(fits[""]["alpha"])
    assert fits[""]["tail"] == 0
    assert fits["_random"]["alpha"] > 1
    assert all(np.isnan(row["alpha"]) for row in of_matrix(np.zeros((12, 12))).values())


def test_the_matrices_table_has_the_fits_only_if_they_are_asked_for(tmp_path: Path) -> None:
    model = sample_model("llama")
    plain, fitted = arm.weigh(model).matrices, arm.weigh(model, power_law=True, out=tmp_path / "fits").matrices
    added = [name for name in fitted.columns if name not in plain.columns]
    assert {"alpha", "alpha_random", "alpha_shuffled", "alpha_outliers", "outliers_shuffled"} <= set(added)
    np.testing.assert_allclose(fitted[plain.columns[2:]].astype(float), plain[plain.columns[2:]].astype(float))
    assert (fitted["alpha_outliers"] <= fitted[["alpha_tail", "outliers"]].min(axis=1)).all()
    row = fitted[(fitted["layer"] == 1) & (fitted["matrix"] == "up")].iloc[0]
    values = squared_singular_values(dict(arm.describe(model).matrices(1))["up"])
    assert row["alpha"] == pytest.approx(power_law(values)[0])
    again = arm.weigh(model, power_law=True).matrices
    assert (again["alpha_shuffled"] == fitted["alpha_shuffled"]).all()  # the seed decides
    with pytest.raises(arm.ArmillaryError, match="whole matrices"):
        arm.weigh(model, power_law=True, matrices=False)


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "powerlaw":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    said = complaint("weights", str(arm.bundled("llama")), "--power-law", "--out", str(tmp_path / "w"))
    assert "pip install 'armillary[powerlaw]'" in said
