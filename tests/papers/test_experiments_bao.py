"""Bao's figures run again: the law and the walks against independent numbers, training runs on a tiny plan."""

import json
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from armillary.papers.experiments import bao, bao_law, bao_locater, bao_models, bao_runs, bao_stripes, bao_walks
from armillary.papers.experiments.bao_runs import LOCALIZING, LOCATER, NONE, SCALE_ONLY
from armillary.papers.experiments.experiment import Outcome, Settings
from armillary.papers.experiments.results import run
from armillary.text.sources import documents
from armillary.theory.localization import head_spectrum


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bao")


@pytest.fixture(scope="module")
def text(work: Path) -> str:
    """Some 60 kB of the built-in prose, so that a run reads it at once."""
    story = "\n".join(document.text for document, _ in zip(documents("builtin:prose"), range(10), strict=False))
    (work / "text.txt").write_text(story[:60_000], encoding="utf-8")
    return str(work / "text.txt")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, work: Path, text: str) -> Settings:
    """One layer of width 32, four steps, two seeds."""
    plan = replace(
        bao_runs.SMALL, shapes=((1, 32),), steps=4, seeds=2, every=2, looks=(2,), fewer={}, batch=2, held_out=0.2
    )
    monkeypatch.setattr(bao_runs, "SMALL", plan)
    monkeypatch.setattr(bao_stripes, "SHAPE", (1, 32))
    monkeypatch.setattr(bao_stripes, "SEQUENCES", 4)
    return Settings(work=work / "work", corpora=(text,))


# The law ----------------------------------------------------------------------------------------------------------


def test_quick_experiments_fill_their_folders(tmp_path: Path) -> None:
    """Every claim says what was printed and found, and why where that differs; figures are drawn."""
    quick = [experiment for experiment in bao.EXPERIMENTS if experiment.quick]
    assert [experiment.name for experiment in quick] == ["bao-propagation", "bao-entropy-bound", "bao-walks"]
    for experiment in quick[:2]:
        result = run(experiment, Settings(work=tmp_path), tmp_path)
        assert all(claim.printed and claim.found for claim in result.claims)
        assert all(claim.why for claim in result.claims if claim.verdict == "differs")
        assert all(len(result.figure(name).data) for name in result.figures)
        assert sum(file.stat().st_size for file in result.folder.glob("*.csv")) < 100_000


def test_the_corrected_law_mirrors_and_describes_the_walks_better(tmp_path: Path) -> None:
    """tr(W) -> -tr(W) reads the text backwards: rho(-xi, theta) = rho(xi, 1 - theta), which print breaks."""
    outcome = bao_law.propagation(Settings(work=tmp_path))
    law, walks = outcome.tables["law"], outcome.tables["walks"]
    one, other = (law[(law["xi"] == xi) & (law["eta"] == 0.5)] for xi in (10.0, -10.0))
    np.testing.assert_allclose(one["corrected"].to_numpy()[::-1], other["corrected"], atol=1e-4)
    assert np.abs(one["printed"].to_numpy()[::-1] - other["printed"].to_numpy()).max() > 0.05
    missed = {name: (walks[name] - walks["simulated"]).abs().mean() for name in ("printed", "corrected")}
    assert missed["corrected"] < missed["printed"] / 3
    last = outcome.claims[-1]
    off = ((walks["printed"] - walks["simulated"]).abs() > 4 * walks["error"]).mean()
    assert (last.verdict, last.found) == ("differs", f"{off:.0%}")


@pytest.mark.parametrize(("xi", "eta"), [(-10.0, 0.5), (0.0, 1.0), (3.0, 0.1)])
def test_walks_have_the_xi_and_eta_of_the_law(xi: float, eta: float) -> None:
    spectrum = head_spectrum(bao_law.weights_at(xi, eta, 128), np.eye(128), None, sqrt(128))
    assert (spectrum.xi, spectrum.eta) == pytest.approx((xi, eta), abs=1e-9)


def test_the_band_is_as_wide_as_lemma_2_says() -> None:
    """For eta -> 0 at r = xi eta = 10: rho is 1 in (1/2, 1/2 + 1/10)."""
    assert bao_law.band(bao_law.spectrum_at(1e5, 1e-4)) == pytest.approx((0.55, 0.1), abs=2e-3)


def test_the_least_entropy_is_reached_by_one_logit_above_equal_others(tmp_path: Path) -> None:
    table = bao_law.entropy_bound(Settings(work=tmp_path)).tables["bound"]
    row = table.iloc[len(table) // 4]
    logits = -np.ones(40) / 40
    logits[0] += 1
    p = np.exp(row["norm"] * logits / np.linalg.norm(logits))
    p /= p.sum()
    assert row["least_entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
    assert row["printed"] == pytest.approx(
        log(1 + 40 * exp(-row["norm"])) + row["norm"] * exp(-row["norm"] / 2) / (1 / 40 + exp(-row["norm"])), abs=1e-4
    )


# The walks --------------------------------------------------------------------------------------------------------


def test_simulated_walks_follow_the_exact_law_and_lose_entropy_where_they_localize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bao_walks, "SMALL", replace(bao_walks.SMALL, draws=3, entropy_draws=1, walks=150))
    outcome = bao_walks.walks(Settings(work=tmp_path))
    rho = outcome.tables["rho"]
    errors = {law: (rho[law] - rho["simulated"]).abs().mean() for law in ("printed", "exact")}
    assert errors["exact"] < 0.012 < 0.08 < errors["printed"]
    heat = outcome.tables["entropy"].set_index(["covariance", "mean", "scale"])["entropy"]
    assert heat["isotropic", 0.0, 0.01] == pytest.approx(log(40), abs=0.03)  # logits near 0: uniform
    falling = [heat["isotropic", mean, 0.01] for mean in bao_walks.MEANS]
    assert falling == sorted(falling, reverse=True)
    verdicts = {claim.says: claim.verdict for claim in outcome.claims}
    share = heat["isotropic", 0.5, 0.01] / log(40)
    told = next(verdict for says, verdict in verdicts.items() if "high entropy" in says and "(isotropic)" in says)
    assert told == ("same size" if share >= 0.75 else "differs")
    assert {"rho", "entropy"} == set(outcome.figures)


def test_the_anisotropic_covariance_is_the_papers() -> None:
    """Uniform in [-2.5, 2.5] has variance 25/12, the mean eigenvalue of R'R / d."""
    sigma = bao_walks.anisotropic(128, 0)
    assert np.trace(sigma) / 128 == pytest.approx(25 / 12, rel=0.03)
    np.testing.assert_allclose(sigma, sigma.T)


# LocAteR ----------------------------------------------------------------------------------------------------------


def made_up(gain: float) -> pd.DataFrame:
    """Runs of one shape, three seeds, where LocAteR gains `gain` nats and the seeds differ more than that."""
    rows = []
    for penalty, shift in ((NONE, 0.0), (SCALE_ONLY, -gain), (LOCATER, -gain), (LOCALIZING, 0.1)):
        for seed in range(3):
            numbers = dict(held_out_loss=5.0 + seed + shift + 0.001 * seed * (penalty == LOCATER), entropy=3.0 - shift)
            numbers |= dict(eigen_scale=0.2 + shift, eigen_mean=0.0, r=0.0, rho=0.9 - shift, steps=300.0)
            rows.append({"layers": 1, "width": 32, "penalty": penalty, "seed": seed, **numbers})
    return pd.DataFrame(rows)


def test_penalties_are_compared_seed_by_seed() -> None:
    """The differences 0.05, 0.049, 0.048 have mean 0.049 and error 0.001 / sqrt(3), however far seeds are apart."""
    gaps = bao_locater.differences(made_up(0.05), NONE).set_index("penalty")
    assert gaps.loc[LOCATER, "held_out_loss"] == pytest.approx(-0.049)
    assert gaps.loc[LOCATER, "held_out_loss_error"] == pytest.approx(0.001 / sqrt(3))
    assert NONE not in gaps.index


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, "same direction"), (-0.05, "differs"), (0.001, "undecided")])
def test_verdicts_follow_from_the_runs(gain: float, verdict: str) -> None:
    found = [claim for claim in bao_locater.claims(made_up(gain)) if "improves the held-out loss" in claim.says]
    assert found[0].printed.startswith("Figure 8 D")
    assert found[0].verdict == verdict
    assert bool(found[0].why) == (verdict != "same direction")


@pytest.mark.slow
def test_locater_runs_to_its_end_and_trains_nothing_twice(tiny: Settings) -> None:
    outcome = bao_locater.locater(tiny)
    runs = outcome.tables["runs"]
    assert len(runs) == 4 * 2
    assert set(runs["penalty"]) == set(bao_runs.SMALL.penalties)
    folders = sorted((tiny.work / "runs").glob("bao-1x32-kappa21-0-*"))
    result = json.loads((folders[0] / "result.json").read_text(encoding="utf-8"))
    mine = runs[(runs["penalty"] == LOCATER) & (runs["seed"] == 0)].iloc[0]
    assert mine["held_out_loss"] == pytest.approx(result["held_out_loss"], abs=1e-5)
    assert mine["r"] == pytest.approx(mine["eigen_mean"] * sqrt(32), abs=1e-3)
    told: list[str] = []
    again = bao_locater.locater(replace(tiny, say=told.append))
    assert told == []
    pd.testing.assert_frame_equal(again.tables["runs"], runs)


@pytest.mark.slow
def test_rho_while_training_is_what_the_runs_logged(tiny: Settings) -> None:
    """The table's means are those of attention.jsonl, and the run of two steps is the beginning of that of four."""
    outcome: Outcome = bao_stripes.stripes(tiny)
    places = outcome.tables["rho_by_place"]
    assert sorted(places["step"].unique()) == [2, 4]
    assert places["observed"].between(0, 1).all()
    logs = [
        [json.loads(line) for line in (folder / "attention.jsonl").read_text(encoding="utf-8").splitlines()]
        for folder in (tiny.work / "runs").glob("bao-1x32-none-?-*")
        if json.loads((folder / "run.json").read_text(encoding="utf-8"))["training"]["steps"] == 4
    ]
    logged = outcome.tables["rho_over_steps"]
    first = logged[(logged["penalty"] == NONE) & (logged["step"] == 0)].iloc[0]
    assert first["mean"] == pytest.approx(np.mean([rows[0]["rho"] for rows in logs]), abs=1e-4)
    losses = {}
    for folder in (tiny.work / "runs").glob("bao-1x32-none-0-*"):
        steps = json.loads((folder / "run.json").read_text(encoding="utf-8"))["training"]["steps"]
        lines = (folder / "loss.jsonl").read_text(encoding="utf-8").splitlines()
        losses[steps] = [json.loads(line)["loss"] for line in lines]
    assert losses[2] == losses[4][:2]


# Trained models ---------------------------------------------------------------------------------------------------


def test_heads_of_a_trained_model_are_related_by_rank(work: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bao_models.SMALL, "sequences", 4)
    outcome = bao_models.trained_models(Settings(work=work / "work", models=("bundled-gpt2",), corpora=(text,)))
    heads, related = outcome.tables["heads"], outcome.tables["relations"].set_index("relation")
    expected = heads["r_data"].corr(heads["mean_distance"], method="spearman")
    assert related.loc["r_data and mean distance", "correlation"] == pytest.approx(expected, abs=0.01)
    assert (heads["entropy"] >= heads["least_entropy"] - 1e-4).all()
    claim = outcome.claims[0]
    error = float(related["error"]["r_data and mean distance"])
    verdict = "same direction" if expected < -2 * error else "differs" if expected > 2 * error else "undecided"
    assert claim.verdict == verdict
