"""Barbero's experiments: what they print follows from numbers that can be had another way."""

from collections.abc import Iterator
from dataclasses import replace
from math import log, sqrt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from armillary.papers.experiments import barbero_domains, barbero_frequencies, barbero_training
from armillary.papers.experiments.barbero import EXPERIMENTS
from armillary.papers.experiments.barbero_constructions import SMALL as BUILT
from armillary.papers.experiments.barbero_constructions import constructions, least_attention, most_without_positions
from armillary.papers.experiments.barbero_decay import decay, half_distance, near_far
from armillary.papers.experiments.barbero_domains import domains
from armillary.papers.experiments.barbero_frequencies import frequencies
from armillary.papers.experiments.barbero_heads import positional_heads
from armillary.papers.experiments.barbero_training import PRINTED, compared, difference, shapes, trained_losses
from armillary.papers.experiments.barbero_truncation import truncation
from armillary.papers.experiments.experiment import Outcome, Settings
from armillary.theory.rotary import rope
from armillary.theory.rotary_heads import norm_needed, positional_attention
from armillary.training.positions import rotary_change

VERDICTS = {"same size", "same direction", "differs", "undecided"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The bundled model alone, on little text; all tests share its atlas."""
    with pytest.MonkeyPatch.context() as patch:
        fewer = replace(barbero_frequencies.SMALL, length=64, sequences=8, domain_sequences=4)
        patch.setattr(barbero_frequencies, "SMALL", fewer)
        patch.setattr(barbero_domains, "SMALL", replace(fewer, domains=("builtin:code", "additions")))
        yield Settings(models=("bundled-llama",), work=tmp_path_factory.mktemp("work"))


def checked(outcome: Outcome) -> Outcome:
    """What the page needs of every outcome: claims in words, labeled axes, small tables and figures."""
    assert outcome.claims
    assert {claim.verdict for claim in outcome.claims} <= VERDICTS
    assert all(claim.says and claim.printed and claim.found for claim in outcome.claims)
    assert 1 <= len(outcome.figures) <= 3
    for figure in outcome.figures.values():
        assert figure.layout.title.text
        assert figure.layout.xaxis.title.text
        assert len(figure.to_json()) < 150_000
    for table in outcome.tables.values():
        assert len(table.to_csv()) < 100_000
    return outcome


def test_names_are_distinct_and_long_ones_are_not_quick() -> None:
    assert len({one.name for one in EXPERIMENTS}) == len(EXPERIMENTS)
    slow = {one.name for one in EXPERIMENTS if not one.quick}
    assert slow == {"barbero-domains", "barbero-truncation", "barbero-position-schemes"}
    assert sum(one.minutes for one in EXPERIMENTS) <= 20


def test_all_ones_logits_fall_and_gaussian_ones_do_not() -> None:
    outcome = checked(decay(Settings()))
    halves = outcome.tables["halves"].set_index(["vectors", "positions"])
    distances, g = np.arange(512), 10_000.0 ** (-np.arange(128) / 128)
    ones = np.cos(distances[:, None] * g).mean(1)
    assert halves.loc[("all-ones", "RoPE"), "near_mean"] == pytest.approx(ones[:256].mean())
    assert halves.loc[("all-ones", "RoPE"), "far_mean"] == pytest.approx(ones[256:].mean())
    gaussian = halves.loc["Gaussian"]
    assert (np.abs(gaussian["near_mean"] - gaussian["far_mean"]) < 4 * gaussian["difference_error"]).all()
    assert gaussian["standard_deviation"].between(0.98, 1.02).all()
    assert all(claim.verdict == "same direction" for claim in outcome.claims)


def test_near_and_far_are_those_of_a_ramp() -> None:
    ramp = np.linspace(1, 0, 11)
    near, far, _ = near_far(np.stack([ramp, ramp]))
    assert near == pytest.approx(0.8)
    assert far == pytest.approx(0.25)
    assert half_distance(ramp) == 6


def test_constructions_do_what_the_theorems_say() -> None:
    outcome = checked(constructions(Settings()))
    assert most_without_positions(replace(BUILT, random_heads=200)) < 0.5
    g = rope(BUILT.width, BUILT.base)
    for distance in (0, 1):
        needed = norm_needed(0.1, g, 300, distance=distance)
        assert least_attention(needed, g, 300, distance, 1.0) == pytest.approx(0.9, abs=1e-9)
        assert positional_attention(needed, g, 300, distance=distance) == pytest.approx(0.9, abs=1e-9)
    differs = [claim for claim in outcome.claims if claim.verdict == "differs"]
    assert len(differs) == 1  # 500000^(-40/64) is 0.00027, not 0.0001
    assert "B14" in differs[0].why


@pytest.mark.slow
def test_frequencies_heads_and_domains_of_the_bundled_model(settings: Settings) -> None:
    from armillary.lenses.rotary import frequency_arrays
    from armillary.papers.experiments.barbero_frequencies import scanned

    usage = checked(frequencies(settings))
    (atlas,) = scanned(settings).values()
    arrays, heads = frequency_arrays(atlas), usage.tables["heads"]
    fast = np.where(arrays.turns >= 1, arrays.share, 0).sum(-1).ravel()
    np.testing.assert_allclose(heads["fast_logit_share"], fast, atol=1e-4)
    q = atlas.group("rotary")["q_norm"].to_numpy()
    slow = arrays.turns[0, 0] < 1
    np.testing.assert_allclose(usage.tables["layers"]["slow_q"], q[..., slow].mean((1, 2)), atol=1e-4)

    table = checked(positional_heads(settings)).tables["heads"]
    np.testing.assert_allclose(table["self_cosine"], atlas.heads["self_cosine"], atol=1e-4)

    likeness = checked(domains(settings)).tables["likeness"]
    assert len(likeness) == 3
    assert likeness["correlation"].between(-1, 1).all()


def test_stopping_no_frequency_changes_nothing_and_stopping_all_is_one_model(settings: Settings) -> None:
    losses = checked(truncation(settings)).tables["losses"].set_index("p")
    assert losses["loss"][1.0] == losses["reversed_loss"][1.0]
    assert losses["loss"][0.0] == pytest.approx(losses["reversed_loss"][0.0], abs=1e-4)
    assert losses["loss"][0.0] > losses["loss"][1.0]


def test_the_base_turns_the_slowest_frequency_as_far_as_in_the_paper() -> None:
    small = shapes(barbero_training.SMALL)
    length = barbero_training.SMALL.training.length
    assert (small["RoPE 10k"].base or 0) / length == pytest.approx(10_000 / 8192)
    assert (small["RoPE 500k"].base or 0) / length == pytest.approx(500_000 / 8192)
    assert set(small) == set(PRINTED)


def test_schemes_are_compared_within_seeds() -> None:
    random = np.random.default_rng(0)
    noise, seeds = 0.01, 30
    gaps = {name: log(told[0]) for name, told in PRINTED.items()}
    rows = [
        {"scheme": name, "seed": seed, "base": 156.25, "loss": gap + luck + noise * random.standard_normal()}
        for seed, luck in enumerate(random.standard_normal(seeds))  # what a seed does to all schemes alike
        for name, gap in gaps.items()
    ]
    losses = pd.DataFrame(rows).assign(longer_loss=lambda table: table["loss"] + 0.1)
    gap, error = difference(losses, "NoPE", "RoPE 10k")
    assert error == pytest.approx(noise * sqrt(2 / seeds), rel=0.2)
    assert abs(gap - log(4.8594 / 4.4627)) < 4 * error
    outcome = checked(compared(losses, barbero_training.SMALL, "text"))
    clear = [claim for claim in outcome.claims[:-1] if claim.says.startswith(("a model without", "a quarter"))]
    assert [claim.verdict for claim in clear] == ["same direction"] * 2
    assert not any(claim.verdict == "differs" for claim in outcome.claims)
    table = outcome.tables["position_schemes"].set_index("scheme")
    assert table.loc["RoPE 10k", "above_rope"] == 0


@pytest.mark.slow
def test_training_runs_end_to_end_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(
        barbero_training.SMALL,
        shape=replace(barbero_training.SMALL.shape, layers=1, heads=1, width=16),
        training=replace(barbero_training.SMALL.training, steps=2, warmup=1, batch=2, length=32),
        seeds=(0, 1),
        documents=40,
    )
    chosen = {name: shape for name, shape in shapes(tiny).items() if name in ("NoPE", "RoPE 10k")}
    monkeypatch.setattr(barbero_training, "shapes", lambda schemes: chosen)
    settings = Settings(work=tmp_path)
    losses = trained_losses(settings, tiny, "builtin:prose")
    assert len(losses) == 4
    assert losses["loss"].between(6, 9).all()  # two steps from log(2048) = 7.6
    again = trained_losses(settings, tiny, "builtin:prose")
    pd.testing.assert_frame_equal(losses, again)


def test_each_scheme_changes_the_frequencies_that_it_names() -> None:
    from armillary.training.config import RunConfig

    changes = {name: rotary_change(RunConfig(model=shape)) for name, shape in shapes(barbero_training.SMALL).items()}
    assert changes["NoPE"] == {"nope": True}
    assert changes["RoPE 10k"] is None
    assert changes["0.75-RoPE reversed"] == {"p": 0.75, "reversed": True}
    assert changes["0.75-RoPE partial"] == {"partial": 0.75}
