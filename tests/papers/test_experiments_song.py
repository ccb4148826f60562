"""Song's experiments that read models: their own measures against what is known, and each quick one from end to end."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import armillary as arm
from armillary.anatomy.loading import load, load_tokenizer
from armillary.anatomy.source import describe
from armillary.lenses.constituents import means_of
from armillary.lenses.decomposition import decompose
from armillary.observe.rebuild import rebuilt_logits
from armillary.papers.experiments import (
    song,
    song_heads,
    song_norms,
    song_reading,
    song_rotary_mean,
    song_shapes,
    song_smoothness,
    song_spectrum,
    song_tables,
)
from armillary.papers.experiments.experiment import Outcome, Settings
from armillary.papers.experiments.material import small_models
from armillary.papers.experiments.song_printed import RANK, RELATIVE_NORM, STABLE_RANK, TABLE_1
from armillary.probe.terms import text_constituents

MODELS = ("bundled-gpt2", "bundled-llama")
QUICK = {experiment.name: experiment for experiment in song.EXPERIMENTS if experiment.quick}
TOO_LARGE = 150_000


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The two bundled models on a little built-in prose; every block is read twice, so that means are exact."""
    patch = pytest.MonkeyPatch()
    patch.setattr(song_reading, "SMALL", song_reading.Plan(length=64, sequences=24, second_pass=24))
    work = tmp_path_factory.mktemp("song")
    yield Settings(models=MODELS, corpora=("builtin:prose",), work=work)
    patch.undo()


@pytest.fixture(scope="module")
def atlases(settings: Settings) -> dict[str, arm.Atlas]:
    return {name: song_reading.read(settings, small_models()[name], "builtin:prose") for name in MODELS}


@pytest.fixture(scope="module")
def outcomes(settings: Settings, atlases: dict[str, arm.Atlas]) -> dict[str, Outcome]:
    torch.set_num_threads(1)
    return {name: experiment.run(settings) for name, experiment in QUICK.items()}


def test_printed_tables_are_the_papers() -> None:
    """The means that Table 1 prints follow from Table 4; one relative norm does not follow from Table 6."""
    assert RANK["GPT2", "OpenWebText"].mean() == pytest.approx(TABLE_1["GPT2", "OpenWebText"].rank, abs=0.006)
    assert RANK["Llama2", "WikiText"].mean() == pytest.approx(TABLE_1["Llama2", "WikiText"].rank, abs=0.006)
    assert {len(row) for table in (RANK, STABLE_RANK, RELATIVE_NORM) for row in table.values()} == {13}
    claim = song_tables._tables_agree()
    assert claim.verdict == "differs"
    assert "GPT-2, WikiText: 0.76 and 0.86" in claim.found


def test_models_and_texts_find_their_like(atlases: dict[str, arm.Atlas]) -> None:
    assert [song_reading.like(atlases[name]) for name in MODELS] == ["GPT2", "Llama2"]
    texts = ("builtin:prose", "topics/wikitext", "topics/github", "builtin:code")
    assert [song_reading.text_like(text) for text in texts] == ["OpenWebText", "WikiText", "GitHub", "GitHub"]


def test_shapes_of_curves_and_of_scattered_points() -> None:
    t = np.linspace(0, 2, 120)
    circle = np.stack([np.cos(2 * np.pi * t), np.sin(2 * np.pi * t), 0 * t], 1)
    scattered = np.random.default_rng(0).normal(size=(120, 50))
    assert song_shapes.turn(circle) == pytest.approx(2.0, abs=0.2)  # the ends are smoothed away
    assert song_shapes.plane_share(circle) == pytest.approx(1.0)
    steps = 2 * np.sin(np.pi * 2 / 119)
    assert song_shapes.step_ratio(circle) == pytest.approx(steps / (4 / np.pi), rel=0.05)  # a mean chord is 4/pi
    assert song_shapes.step_ratio(scattered) == pytest.approx(1.0, abs=0.03)
    assert song_shapes.plane_share(scattered) < 0.15


def test_sinusoidal_gram_depends_on_distance_only_if_the_exponents_are_right() -> None:
    right, printed = (song_spectrum.sinusoidal_positions(40, 16, printed=printed) for printed in (False, True))
    spread = [
        max(float(np.ptp(np.diagonal(vectors @ vectors.T, lag))) for lag in range(40)) for vectors in (right, printed)
    ]
    assert spread[0] < 1e-10
    assert spread[1] > 0.5


def test_relations_of_a_passage() -> None:
    tokens = tuple("abcab")
    pairs = {
        name: set(zip(*np.nonzero(song_heads.relation(tokens, name)), strict=True)) for name in song_heads.PATTERNS
    }
    assert pairs["identical"] == {(3, 0), (4, 1)}
    assert pairs["shifted"] == {(3, 1), (4, 2)}
    assert pairs["neighbor"] == {(1, 0), (2, 1), (3, 2), (4, 3)}


def test_boosts_add_to_that_of_the_logits(atlases: dict[str, arm.Atlas]) -> None:
    where = small_models()["bundled-llama"]
    model, tokenizer = load(where), load_tokenizer(where)
    text = song_heads.passages(atlases["bundled-llama"], tokenizer, count=1)[0]
    found = text_constituents(atlases["bundled-llama"], model, tokenizer, 2, 1, text)
    pairs = song_heads.relation(found.tokens, "identical")
    assert pairs.sum() > 15  # the passage is said twice
    parts = song_heads.boosts(found, pairs)
    assert parts["positional"] + parts["mixed"] + parts["content"] == pytest.approx(parts["logits"], abs=1e-4)


def test_mean_and_positions_give_the_logits_of_their_sum(atlases: dict[str, arm.Atlas]) -> None:
    for name in MODELS:
        atlas, anatomy = atlases[name], describe(load(small_models()[name]))
        found, means = song_rotary_mean.mean_logits(atlas, anatomy, 1), means_of(atlas)
        x = (means.mean[1] + means.pos[1])[None]
        whole = rebuilt_logits(anatomy, 1, x)[0, :, 1:, 1:].numpy()
        np.testing.assert_allclose(found.mean + found.pos, whole, atol=1e-5 * np.abs(whole).max())


def test_the_mean_says_nothing_unless_it_is_rotated(atlases: dict[str, arm.Atlas]) -> None:
    maps = {
        name: song_rotary_mean.mean_logits(atlases[name], describe(load(small_models()[name])), 2) for name in MODELS
    }
    still, turned = (song_rotary_mean.row_centered(found.mean, found.visible) for found in maps.values())
    assert np.abs(still).max() < 1e-9
    assert np.abs(turned).max() > 0.1
    lag_7 = np.diagonal(maps["bundled-llama"].mean, -7, axis1=1, axis2=2)
    np.testing.assert_allclose(lag_7, np.broadcast_to(lag_7[:, :1], lag_7.shape), atol=1e-5)  # distance alone


def test_shares_of_the_positional_variation_add_to_one(atlases: dict[str, arm.Atlas]) -> None:
    found = song_rotary_mean.mean_logits(atlases["bundled-llama"], describe(load(small_models()["bundled-llama"])), 3)
    shares = song_rotary_mean.positional_shares(found)
    np.testing.assert_allclose(shares["mean"] + shares["pos"] + shares["content"], 1.0)


def test_distance_of_uniform_attention_and_cells() -> None:
    visible = np.tril(np.ones((9, 9), dtype=bool))
    flat = song_rotary_mean.mean_distance(np.zeros((1, 9, 9)), visible)
    assert flat[0] == pytest.approx(np.arange(9).mean() / 2)
    assert (song_rotary_mean.cell_means(5, 5) == np.eye(5)).all()
    np.testing.assert_allclose(song_rotary_mean.cell_means(300, 128) @ np.ones(300), 1.0)


def test_shared_span_with_itself_is_the_energy_of_ten_directions(atlases: dict[str, arm.Atlas]) -> None:
    atlas = atlases["bundled-gpt2"]
    values = np.square(np.linalg.svd(decompose(atlas, 2).pos, compute_uv=False))
    assert song_smoothness.shared_span(atlas, atlas, 2) == pytest.approx(values[:10].sum() / values.sum())


def test_layer_cosines(atlases: dict[str, arm.Atlas]) -> None:
    plain = song_norms.layer_cosines(atlases["bundled-gpt2"])
    np.testing.assert_allclose(np.diag(plain), 1.0)
    np.testing.assert_allclose(plain, plain.T)
    assert plain[4, 5] > plain[0, 5]  # neighbors are more alike than first and last


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quick_experiments_run(outcomes: dict[str, Outcome], name: str) -> None:
    outcome: Outcome = outcomes[name]
    assert outcome.claims
    assert 1 <= len(outcome.figures) <= 3
    for claim in outcome.claims:
        assert claim.verdict != "undecided" or "nan" in claim.found or "±" in claim.found, claim
        assert claim.why or claim.verdict != "differs", claim
    for figure in outcome.figures.values():
        assert len(figure.to_json()) < TOO_LARGE
        assert figure.layout.title.text
    for table in outcome.tables.values():
        assert {"model", "basis"} & set(table.columns)
        assert len(table.to_csv(index=False)) < 100_000
        assert table.select_dtypes("number").notna().any(axis=None)
    for sentence in outcome.learned:
        assert "nan" not in sentence


@pytest.mark.slow
def test_rotary_models_carry_position_in_the_mean(outcomes: dict[str, Outcome]) -> None:
    """The claim of EXPERIMENTS.md, from its own table: the rotated mean above positional vectors, and only there."""
    table = outcomes["rotary-mean"].tables["models"].set_index("model")
    assert table["positional_mean"]["bundled-llama"] > table["positional_pos"]["bundled-llama"]
    assert table["positional_mean"]["bundled-gpt2"] == pytest.approx(0, abs=1e-6)
    verdicts = {claim.says.rpartition(", ")[2]: claim.verdict for claim in outcomes["rotary-mean"].claims[1::2]}
    assert verdicts == {"bundled-gpt2": "same direction", "bundled-llama": "differs"}
    heads = outcomes["rotary-mean"].tables["heads"]
    parts = heads["positional_mean"] + heads["positional_pos"] + heads["positional_content"]
    np.testing.assert_allclose(parts, 1.0)


@pytest.mark.slow
def test_low_frequency_shares_grow_with_the_number_of_frequencies(outcomes: dict[str, Outcome]) -> None:
    table = outcomes["song-smoothness"].tables["table_3"]
    shares = table[["K=1", "K=3", "K=5", "K=10"]].to_numpy()
    assert (np.diff(shares, axis=1) >= -1e-9).all()
    assert ((shares >= 0) & (shares <= 1)).all()
    assert list(table["matrix"]) == ["Gram", "PP'", "PWP'", "QK"] * 2
    zero_sum = table[(table["model"] == "bundled-gpt2") & table["matrix"].isin(["PP'", "PWP'"])]
    assert (zero_sum["K=1"] < 1e-20).all()  # Table 3 prints 39.4 % and 45.9 %


@pytest.mark.slow
def test_dissected_corners_are_judged_by_their_area(outcomes: dict[str, Outcome]) -> None:
    table = outcomes["song-dissection"].tables["heads"]
    assert table["corner_by_chance"].unique() == pytest.approx((20 / 144) ** 2)
    assert table["corner_share"].between(0, 1).all()
    assert table["diagonal_share"].between(0, 1).all()
    assert len(table) == 2 * 36
