"""Wertich's experiments: numbers against independent computation, verdicts that follow, tables that are whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from armillary.errors import ArmillaryError
from armillary.figures.maps import attention_maps
from armillary.papers.experiments import wertich_random
from armillary.papers.experiments.experiment import Claim, Outcome, Settings, ordered, sized
from armillary.papers.experiments.wertich import EXPERIMENTS
from armillary.papers.experiments.wertich_changes import initialized, repeated, strangeness
from armillary.papers.experiments.wertich_claims import below, between, mean_error, over_models
from armillary.papers.experiments.wertich_maps import light, shot_table
from armillary.papers.experiments.wertich_mixture import (
    ALONE,
    SMALL,
    Mixtures,
    by_depth,
    mixture,
    random_stacks,
    without,
)
from armillary.papers.experiments.wertich_prompts import (
    INSTRUCTED,
    PLAIN,
    POOL,
    PRINTED,
    opened,
    pieces_of,
    prompts,
    read_shots,
    written,
)
from armillary.papers.experiments.wertich_weights import (
    alignment,
    noise_rank_share,
    share_above_xavier,
    singular_values,
    xavier_squares,
)
from armillary.probe.attention_map import attention_map
from armillary.training.bundled import bundled


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Any]:
    return opened(Settings(), str(bundled("llama")))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """One bundled model, so that the tests ask for nothing that is not in the package."""
    return Settings(models=("bundled-llama",), work=tmp_path_factory.mktemp("work"))


def row_of(outcome: Outcome, table: str, measure: str) -> dict[str, Any]:
    """The row of a table whose first column says so."""
    rows = outcome.tables[table].to_dict("records")
    return next({str(name): value for name, value in row.items()} for row in rows if row["measure"] == measure)


class TestClaims:
    def test_an_exact_number_is_met_or_missed(self) -> None:
        assert sized("", 2.0, 1.9).verdict == "same size"
        assert sized("", 2.0, 200.0).verdict == "differs"
        assert sized("", 2.0, float("nan")).verdict == "undecided"

    def test_a_range_has_room_of_a_quarter(self) -> None:
        assert [between("", 2.0, 4.0, found, place="").verdict for found in (1.0, 1.6, 3.0, 5.0, 6.0)] == [
            "differs",
            "same size",
            "same size",
            "same size",
            "differs",
        ]

    def test_below_waits_for_two_standard_errors(self) -> None:
        verdicts = [below("", 0.3, found, error=0.05, printed="").verdict for found in (0.1, 0.25, -0.25, 0.5, -0.5)]
        assert verdicts == ["same direction", "undecided", "undecided", "differs", "differs"]

    def test_models_that_disagree_leave_a_claim_undecided_and_are_named(self) -> None:
        one, other = ordered("x", 2.0, 1.0), ordered("x", 1.0, 2.0)
        assert over_models({"a": one, "b": one}).verdict == "same direction"
        both = over_models({"a": one, "b": other})
        assert both.verdict == "undecided"
        assert "b: differs" in both.why
        assert "a 2 against 1" in both.found

    def test_the_error_of_a_mean(self) -> None:
        values = np.random.default_rng(0).normal(size=400)
        assert mean_error(values) == pytest.approx((values.mean(), pd.Series(values).sem()))
        assert np.isnan(mean_error(np.ones(1))[1])


class TestNoise:
    def test_slerp_residual_of_a_sinusoid_is_nothing_and_of_a_step_is_large(self) -> None:
        t = np.linspace(0, 1, 101)
        assert wertich_random.sinusoid_residual(t, 3 * np.cos(np.pi * t / 2 + 0.4) - 1) < 1e-12
        assert wertich_random.sinusoid_residual(t, (t > 0.7).astype(float)) > 0.3

    def test_divergence_is_that_of_the_two_distributions(self) -> None:
        v, w = wertich_random.orthogonal_pair(np.random.default_rng(1), 7, 2.0)
        assert abs(v @ w) < 1e-12
        assert np.linalg.norm(v) == pytest.approx(2)
        p, q = (torch.tensor(one).softmax(-1) for one in (w, v))
        assert wertich_random.divergence(w, v[None])[0] == pytest.approx(float((p * (p / q).log()).sum()))

    def test_the_conjecture_fails_and_the_observation_holds(self) -> None:
        outcome = wertich_random.great_circle(Settings())
        table: Any = outcome.tables["residuals"].set_index(["width", "radius"])
        assert outcome.claims[0].verdict == "differs"
        assert table.loc[(256, 1.0), "residual"] < 0.005 < table.loc[(4, 1.0), "residual"]  # armillary theory T5.17
        assert table.loc[(256, 1.0), "kl_over_small_radius"] == pytest.approx(1, abs=0.01)
        assert table.loc[(256, 1.0), "log_n_minus_entropy"] == pytest.approx(
            1 / 512, rel=0.02
        )  # armillary theory T5.19b

    def test_noise_has_the_quarter_circle_and_not_the_printed_range(self, monkeypatch: pytest.MonkeyPatch) -> None:
        few = wertich_random.Noise(n=256, draws=4, gap_sizes=(16, 32, 64), gap_draws=40)
        monkeypatch.setattr(wertich_random, "NOISE_SMALL", few)
        outcome = wertich_random.spectrum(Settings())
        assert row_of(outcome, "summary", "mean singular value")["found"] == pytest.approx(8 / (3 * np.pi), abs=0.005)
        slope = row_of(outcome, "summary", "slope of log(least gap) in log n")
        assert abs(slope["found"] + 1) < 4 * slope["error"]
        verdicts = [claim.verdict for claim in outcome.claims]
        assert verdicts[:4] == ["same size", "same size", "differs", "differs"]
        spectrum = outcome.tables["spectrum"]
        assert np.abs(spectrum["draw_0"] - spectrum["law"]).max() < 0.08


class TestWeights:
    def test_xavier_noise_stands_half_above_its_own_law(self) -> None:
        rng = np.random.default_rng(0)
        noise = rng.normal(scale=np.sqrt(2 / 300), size=(100, 200))
        values = np.square(np.linalg.svd(noise, compute_uv=False))
        assert values == pytest.approx(xavier_squares((200, 100), 100), rel=0.35)
        assert 0.2 < share_above_xavier(values, (100, 200)) < 0.8
        assert share_above_xavier(4 * values, (100, 200)) == 1

    def test_square_noise_has_entropy_rank_of_exp_minus_half(self) -> None:
        assert noise_rank_share((400, 400)) == pytest.approx(np.exp(-0.5), abs=0.01)

    def test_energies_are_those_of_the_stored_matrices(self, settings: Settings) -> None:
        from safetensors.numpy import load_file

        outcome = singular_values(settings)
        table = outcome.tables["matrices"].set_index(["layer", "matrix"])
        stored = load_file(bundled("llama") / "model.safetensors")
        for layer, part in ((0, "q"), (5, "v")):
            matrix = stored[f"model.layers.{layer}.self_attn.{part}_proj.weight"].astype(np.float64)
            assert table.loc[(layer, part), "xavier_energy"] == pytest.approx(np.square(matrix).sum() / 144, rel=1e-5)
        assert {claim.verdict for claim in outcome.claims} <= {"same size", "same direction", "differs"}
        assert {"model", "matrix", "xavier_energy", "above_xavier"} <= {*outcome.tables["means"].columns}

    def test_random_heads_are_unrelated_and_learned_ones_are_not(self, settings: Settings) -> None:
        outcome = alignment(settings)
        heads = outcome.tables["heads"]
        assert len(heads) == 36
        assert heads["z_random"].std() == pytest.approx(1, abs=4 / np.sqrt(72))
        assert np.sqrt(np.square(heads["z"]).mean()) > 3
        assert heads["cosine"].abs().max() < 1  # Cauchy-Schwarz
        assert outcome.claims[0].verdict == "differs"


class TestPrompts:
    def test_pieces_are_where_they_say(self) -> None:
        for form in (PLAIN, INSTRUCTED):
            prompt = written(PRINTED, "Ant", form)
            said = [prompt.text[slice(*piece.span)] for piece in prompt.pieces]
            assert said == [part for shot in PRINTED for part in shot] + ["Ant"]
            assert [piece.shot for piece in prompt.pieces] == [0, 0, 1, 1, 2, 2, 3]
        assert prompt.text.endswith("[INST] Word: Ant [/INST]")

    def test_prompts_differ_and_the_first_is_the_printed_one(self) -> None:
        made = prompts(Settings())
        assert len({prompt.text for prompt in made}) == len(made)
        assert all(word in made[0].text for word, _ in PRINTED)
        assert made[0].target == "Ant"

    def test_own_clues_come_from_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "clues.tsv"
        file.write_text("".join(f"{word}\t{clue}\n" for word, clue in POOL[3:8]), encoding="utf-8")
        assert read_shots(str(file)) == list(POOL[3:8])
        assert "Parrot" not in prompts(Settings(corpora=(str(file),)))[0].text
        file.write_text("no tab here\n", encoding="utf-8")
        with pytest.raises(ArmillaryError, match="line 1"):
            prompts(Settings(corpora=(str(file),)))

    def test_words_of_a_map_know_their_piece(self, llama: tuple[Any, Any]) -> None:
        model, tokenizer = llama
        prompt = written(POOL[3:6], "Ant", PLAIN)
        for level in ("word", "token"):
            found = attention_map(model, tokenizer, prompt.text, level=level, spans=prompt.spans)
            pieces = pieces_of(found, tokenizer, prompt)
            for number, piece in enumerate(prompt.pieces):
                joined = "".join(word for word, at in zip(found.words, pieces, strict=True) if at == number)
                assert joined.replace(" ", "") == prompt.text[slice(*piece.span)].replace(" ", "")

    def test_equal_attention_gives_the_chance_of_an_own_shot(self, llama: tuple[Any, Any]) -> None:
        from dataclasses import replace

        model, tokenizer = llama
        prompt = written(POOL[3:6], "Ant", PLAIN)
        found = attention_map(model, tokenizer, prompt.text, spans=prompt.spans, layers=[0])
        n = len(found.words)
        equal = replace(found, attention=np.tril(np.ones((1, n, n))) / np.arange(1, n + 1)[:, None])
        row = shot_table(equal, pieces_of(found, tokenizer, prompt), prompt).iloc[0]
        assert row["own_shot"] == pytest.approx(row["own_shot_chance"])
        assert 0 < row["own_shot_chance"] < 1

    def test_light_figures_keep_their_values(self, llama: tuple[Any, Any]) -> None:
        found = attention_map(*llama, written(POOL[3:5], "Ant", PLAIN).text, layers=[0])
        figure = attention_maps(found)
        before = np.array(figure.data[0].z)
        size = len(figure.to_json())
        after = light(figure)
        assert len(after.to_json()) < size
        assert np.allclose(np.array(after.data[0].z), before, atol=1e-6, equal_nan=True)


class TestChanges:
    def test_repeated_counts_triples_of_words(self) -> None:
        assert repeated("a b c d e", "B C D x") == pytest.approx(1 / 2)
        assert np.isnan(repeated("a b c", "a b"))

    def test_strangeness_is_the_loss_of_what_was_added(self, llama: tuple[Any, Any]) -> None:
        model, tokenizer = llama
        prompt, new = "Return the first", " item of the list"
        start = len(tokenizer(prompt)["input_ids"])
        tokens = tokenizer(prompt + new, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logs = model(input_ids=tokens).logits[0].double().log_softmax(-1)
        each = [-float(logs[i - 1, tokens[0, i]]) for i in range(start, tokens.shape[1])]
        assert strangeness(model, tokenizer, prompt, new) == pytest.approx(np.mean(each), rel=1e-6)
        assert strangeness(model, tokenizer, prompt, new) < strangeness(model, tokenizer, prompt, " zq ~~ xk (")
        assert np.isnan(strangeness(model, tokenizer, prompt, ""))

    def test_an_initialized_model_is_another_and_the_seed_tells_which(self, llama: tuple[Any, Any]) -> None:
        name = "model.layers.0.self_attn.q_proj.weight"
        first, again, other = (initialized(llama[0], seed).state_dict()[name] for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert float(first.std()) == pytest.approx(0.02, rel=0.05)  # the configuration's initializer_range


class TestMixture:
    def test_random_attention_collapses_faster_than_with_a_skip(self) -> None:
        few = Mixtures((), tokens=16, width=32, depth=8, runs=4, texts=0, length=0)
        plain, skipping = (random_stacks(few, beta).groupby("layer")["rank_one_distance"].mean() for beta in (1.0, 0.5))
        assert plain[0] == skipping[0] > 0.9  # independent tokens: the mean of 16 has a quarter of their length
        assert plain[8] < 1e-3 < 0.05 < skipping[8] < skipping[0]

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_without_skip_a_block_is_attention_alone(self, family: str, llama: tuple[Any, Any]) -> None:
        model = llama[0] if family == "llama" else opened(Settings(), str(bundled("gpt2")))[0]
        tokens = torch.arange(5, 25)[None]
        block = (model.model.layers if family == "llama" else model.transformer.h)[0]
        seen: dict[str, torch.Tensor] = {}
        attention = block.self_attn if family == "llama" else block.attn
        with torch.no_grad():
            handle = attention.register_forward_hook(lambda m, a, out: seen.update(attention=out[0].clone()))
            before = model(input_ids=tokens).logits
            handle.remove()
            with without(model, skip=False, mlp=False):
                handle = block.register_forward_hook(
                    lambda m, a, out: seen.update(block=(out[0] if isinstance(out, tuple) else out).clone())
                )
                model(input_ids=tokens)
                handle.remove()
            assert torch.allclose(seen["block"], seen["attention"], atol=1e-4)
            assert torch.equal(model(input_ids=tokens).logits, before)

    def test_a_model_without_mlp_modules_is_refused(self) -> None:
        from transformers import BertConfig, BertModel

        shape = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50)
        with (
            pytest.raises(ArmillaryError, match="are not known"),
            without(BertModel(BertConfig(**shape)), skip=False, mlp=True),
        ):
            pass

    def test_equal_tokens_are_one_from_the_start(self, llama: tuple[Any, Any]) -> None:
        table: Any = by_depth(llama[0], torch.full((1, 12), 7)).set_index("layer")  # rotary: embeddings know no place
        assert table.loc[0, "rank_one_distance"] < 1e-6
        assert table.loc[0, "token_cosine"] == pytest.approx(1)

    def test_what_the_experiment_tells(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        from dataclasses import replace

        from armillary.papers.experiments import wertich_mixture

        monkeypatch.setattr(wertich_mixture, "SMALL", replace(SMALL, depth=8, runs=3, texts=3, length=48))
        outcome = mixture(settings)
        table = outcome.tables["models"]
        assert {*table["variant"]} == {*wertich_mixture.VARIANTS}
        assert {*table["weights"]} == {"learned", "initialized"}
        ends = table[table["layer"] == 6].set_index(["weights", "variant"])["rank_one_distance"]
        assert ends["initialized", ALONE] < ends["learned", ALONE] < ends["learned", "as it is"]


def test_every_experiment_is_told_apart_and_within_its_time() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len({*names}) == len(names)
    assert all(name.startswith("wertich-") for name in names)
    assert sum(experiment.minutes for experiment in EXPERIMENTS) <= 10
    assert all(experiment.question.endswith("?") and experiment.needs for experiment in EXPERIMENTS)


def test_the_paper_size_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    by_name = {experiment.name: experiment for experiment in EXPERIMENTS}
    with pytest.raises(ArmillaryError, match=r"Mistral-7B-Instruct-v0\.2"):
        by_name["wertich-alignment"].run(Settings(size="paper", work=tmp_path))


def test_claims_are_claims(settings: Settings) -> None:
    outcome = {experiment.name: experiment for experiment in EXPERIMENTS}["wertich-few-shot"].run(settings)
    assert all(isinstance(claim, Claim) and claim.printed and claim.found for claim in outcome.claims)
    layers = outcome.tables["layers"]
    assert {"own_shot", "own_shot_error", "diagonal", "largest_token_score"} <= {*layers.columns}
    assert ((layers["own_shot"] > 0) & (layers["own_shot"] < 1)).all()
    assert all(len(figure.to_json()) < 150_000 for figure in outcome.figures.values())
