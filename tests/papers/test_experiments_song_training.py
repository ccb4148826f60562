"""Song's experiments that train: the problems, what is learned of them, and what the claims say of given numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from armillary.anatomy.loading import load
from armillary.papers.experiments import song_addition, song_discontinuity, song_lengths, song_nanogpt
from armillary.papers.experiments.experiment import Settings
from armillary.papers.experiments.song_addition import (
    CHARACTERS,
    HELD_OUT,
    MEASURED,
    PAPER,
    SMALL,
    TRAINING,
    Answers,
    as_text,
    character_tokenizer,
    draw_problems,
    exactly_right,
    trained_adder,
    untrained,
)
from armillary.papers.experiments.song_training import EXPERIMENTS

TINY = replace(
    SMALL, shortest=2, longest=2, tested=(1, 2, 3), layers=1, heads=2, width=16, steps=6, batch=8, problems=300, seeds=2
)
TINY_LANGUAGE = replace(
    song_nanogpt.SMALL, layers=1, heads=2, width=16, length=32, steps=4, warmup=1, batch=4, sequences=24
)
TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 120


def numbers(row: np.ndarray, units_first: bool) -> tuple[int, int, int]:
    """a, b and c as they are written in a row."""
    left, right = as_text(row).split("=")
    written = [*left.split("+"), right.split(";")[0]]
    a, b, c = (int(digits[::-1] if units_first else digits) for digits in written)
    return a, b, c


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("song")
    (folder / "play.txt").write_text(TEXT)
    return Settings(corpora=(str(folder / "play.txt"),), work=folder / "work")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (song_lengths, song_discontinuity):
        monkeypatch.setattr(module, "SMALL", TINY)
    monkeypatch.setattr(song_discontinuity, "SMALL_LANGUAGE", TINY_LANGUAGE)
    monkeypatch.setattr(song_nanogpt, "SMALL", TINY_LANGUAGE)
    monkeypatch.setattr(song_nanogpt, "other_text", lambda: ("builtin:prose", "builtin:prose"))
    monkeypatch.setattr(song_lengths, "TESTS", 50)


class TestProblems:
    @pytest.mark.parametrize("task", [SMALL, PAPER])
    def test_every_row_is_a_true_sum_and_the_answer_is_marked_with_its_end(self, task: song_addition.Task) -> None:
        problems = draw_problems(task, MEASURED, (1, task.shortest, task.longest), 200, seed=3)
        for row, answer in zip(problems.tokens, problems.answer, strict=True):
            a, b, c = numbers(row, task.units_first)
            assert a + b == c
            asked = as_text(row[answer])
            assert asked == (str(c)[::-1] if task.units_first else str(c)) + ";"

    def test_operands_have_the_same_number_of_digits_and_lengths_are_uniform(self) -> None:
        rows = [as_text(row) for row in draw_problems(SMALL, TRAINING, (2, 3, 4), 3000, seed=0).tokens]
        lengths = np.array([[len(n) for n in row.split("=")[0].split("+")] for row in rows])
        assert (lengths[:, 0] == lengths[:, 1]).all()
        counts = np.bincount(lengths[:, 0])[2:]
        assert np.abs(counts - 1000).max() < 4 * np.sqrt(3000 * 2 / 9)

    def test_what_is_held_out_is_never_trained_on(self) -> None:
        drawn = {
            use: {numbers(row, True)[:2] for row in draw_problems(SMALL, use, (2,), count, seed=0).tokens}
            for use, count in ((TRAINING, 5000), (HELD_OUT, 5000))
        }
        assert not drawn[TRAINING] & drawn[HELD_OUT]
        assert len(drawn[HELD_OUT]) / 90**2 == pytest.approx(10 / 101, abs=0.01)  # of all pairs of two digits
        units = {(a % 10, b % 10) for a, b in drawn[TRAINING]}
        assert len(units) == 100  # no pair of digits is missing from training

    def test_the_window_of_the_paper_has_33_positions(self) -> None:
        assert PAPER.window == 33
        longest = draw_problems(PAPER, MEASURED, (PAPER.longest,), 100, seed=0)
        assert max(as_text(row).index(";") for row in longest.tokens) == PAPER.window


class TestAnswers:
    def test_the_loss_is_that_of_the_answers_alone(self) -> None:
        problems = draw_problems(TINY, TRAINING, (2,), 20, seed=0)
        model = untrained(TINY, "rotary", seed=1)
        chosen = torch.tensor([[3], [7], [11]])
        rows, answer = torch.from_numpy(problems.tokens[[3, 7, 11]]), torch.from_numpy(problems.answer[[3, 7, 11]])
        with torch.no_grad():
            loss = Answers(model, problems)(chosen, chosen).loss
            logs = model(input_ids=rows).logits.log_softmax(-1)[:, :-1]
        each = -logs.gather(-1, rows[:, 1:, None])[..., 0]
        assert float(loss) == pytest.approx(float(each[answer[:, 1:]].mean()), rel=1e-5)

    def test_an_answer_counts_only_if_every_digit_and_the_end_are_right(self) -> None:
        class Calculator(nn.Module):
            """Knows what follows every token, but forgets the carry at the front when the first digit of a is 9."""

            def __init__(self, problems: song_addition.Problems) -> None:
                super().__init__()
                self.next = {tuple(row[:-1]): torch.from_numpy(row[1:].copy()) for row in problems.tokens}

            def forward(self, input_ids: torch.Tensor) -> Any:
                rows = [self.next[tuple(row)].clone() for row in input_ids.numpy()]
                for given, row in zip(input_ids, rows, strict=True):
                    if given[1] == 9:  # units first: the second digit of two is the front one
                        end = int((row == song_addition.END).nonzero()[0])
                        row[end - 1 :] = song_addition.END
                return type("Output", (), {"logits": nn.functional.one_hot(torch.stack(rows), len(CHARACTERS))})

        problems = draw_problems(TINY, MEASURED, (2,), 300, seed=0)
        right = exactly_right(Calculator(problems), problems, batch=64)
        assert (right == (problems.tokens[:, 1] != 9)).all()
        assert 0 < right.mean() < 1


class TestTraining:
    def test_a_killed_run_reaches_the_same_weights_and_a_finished_one_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = trained_adder(Settings(work=tmp_path / "whole"), TINY, "learned", seed=0)
        forward, calls = Answers.forward, []

        def stops(self: Answers, *args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return forward(self, *args, **options)

        again = Settings(work=tmp_path / "killed")
        with monkeypatch.context() as patched:
            patched.setattr(Answers, "forward", stops)
            with pytest.raises(KeyboardInterrupt):
                trained_adder(again, TINY, "learned", seed=0)
        killed = trained_adder(again, TINY, "learned", seed=0)
        assert whole.name == killed.name
        one, other = load(whole / "model").state_dict(), load(killed / "model").state_dict()
        assert all(torch.equal(one[name], other[name]) for name in one)
        begun = untrained(TINY, "learned", 0).state_dict()
        assert not torch.equal(one["transformer.wpe.weight"], begun["transformer.wpe.weight"])
        monkeypatch.setattr(song_addition, "train", None)  # a finished run needs no training
        assert trained_adder(again, TINY, "learned", seed=0) == killed

    def test_other_settings_and_seeds_have_folders_of_their_own(self, tmp_path: Path) -> None:
        settings = Settings(work=tmp_path)
        short = replace(TINY, steps=1)
        folders = [trained_adder(settings, short, "learned", 0), trained_adder(settings, short, "learned", 1)]
        folders.append(trained_adder(settings, replace(short, width=8), "learned", 0))
        assert len(set(folders)) == 3

    def test_the_character_tokenizer_has_a_token_for_each_character(self) -> None:
        tokenizer = character_tokenizer("ab \n;")
        assert tokenizer("a b\nxb", add_special_tokens=False)["input_ids"] == [0, 2, 1, 3, 4, 1]
        assert tokenizer.eos_token_id == 4


class TestExperiments:
    @pytest.mark.slow
    def test_accuracy_has_a_row_for_every_length_and_model(self, settings: Settings, tiny: None) -> None:
        found = song_lengths.addition(settings)
        table = found.tables["accuracy"]
        assert len(table) == 2 * TINY.seeds * len(TINY.tested)
        assert set(table.loc[table["trained"], "digits"]) == {2}
        assert table["accuracy"].between(0, 1).all()

    @pytest.mark.slow
    def test_shares_grow_with_the_frequencies_and_the_untrained_table_is_that_of_the_weights(
        self, settings: Settings, tiny: None
    ) -> None:
        found = song_discontinuity.discontinuity(settings)
        table = found.tables["shares"]
        assert set(table["model"]) == {"addition", "untrained", "language", "bundled-gpt2"}
        for part in ("gram", "pwp", "qk"):
            shares = table[[f"{part}_{k}" for k in song_discontinuity.FREQUENCIES]].to_numpy(dtype=float)
            assert (np.diff(shares, axis=1) >= -1e-12).all()
            assert ((shares > 0) & (shares <= 1 + 1e-12)).all()
        fresh = table[(table["model"] == "untrained") & (table["position"] == "learned")].iloc[0]
        rows = untrained(TINY, "learned", 0).transformer.wpe.weight.detach().double().numpy()[1 : TINY.window]
        rows = rows - rows.mean(0)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        t = np.arange(len(rows))
        basis = np.cos(np.pi * (t[None] + 0.5) * t[:, None] / len(rows))  # the DCT-II by its definition
        basis /= np.linalg.norm(basis, axis=1, keepdims=True)
        energy = np.square(basis @ rows @ rows.T @ basis.T)
        assert fresh["table_3"] == pytest.approx(energy[:3, :3].sum() / energy.sum())
        assert table.loc[table["position"] == "rotary", "table_3"].isna().all()

    @pytest.mark.slow
    def test_nanogpt_is_measured_at_every_layer_on_both_texts(self, settings: Settings, tiny: None) -> None:
        found = song_nanogpt.nanogpt(settings)
        layers = found.tables["layers"]
        assert len(layers) == 2 * 2 * (TINY_LANGUAGE.layers + 1)
        assert layers["relative_norm"].between(0, 1.0001).all()
        assert layers["dct_energy_10"].between(0, 1).all()
        assert all(figure.to_json() for figure in found.figures.values())

    def test_the_experiments_have_their_own_names(self) -> None:
        assert [e.name for e in EXPERIMENTS] == ["song-nanogpt", "song-addition", "song-addition-smoothness"]


class TestClaims:
    def verdicts(self, inside: float, shorter: float) -> dict[str, str]:
        task = replace(TINY, seeds=2)
        rows = [
            {"position": position, "seed": seed, "digits": n, "trained": n == 2, "standard_error": 0.0}
            | {"accuracy": {1: shorter, 2: inside, 3: 0.0}[n] - 0.01 * seed}
            for position in song_lengths.POSITIONS
            for seed in range(2)
            for n in task.tested
        ]
        return {claim.says: claim.verdict for claim in song_lengths.outcome(task, pd.DataFrame(rows)).claims}

    def test_a_model_that_fails_on_shorter_numbers_agrees_with_the_paper(self) -> None:
        found = self.verdicts(0.99, 0.15)
        assert found["accuracy on numbers of the trained lengths (2 to 2 digits), learned positions"] == "same size"
        assert found["accuracy on shorter numbers, learned positions"] == "same size"  # 0.145 beside 0.154
        assert found["accuracy on shorter numbers, rotary positions"] == "differs"  # beside 0.269
        fails = "a model that adds numbers of the trained lengths fails on shorter ones, learned positions"
        assert found[fails] == "same direction"

    def test_a_model_that_adds_shorter_numbers_contradicts_it(self) -> None:
        fails = "a model that adds numbers of the trained lengths fails on shorter ones, rotary positions"
        assert self.verdicts(0.6, 0.99)[fails] == "differs"
