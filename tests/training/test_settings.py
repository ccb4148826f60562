"""Schedules, accumulation, bf16, held-out evaluation, seeds, presets, packed text, and the table of keys."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_runs import TEXT, config
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.cli import app
from armillary.training import data
from armillary.training.config import SECTIONS, from_dict
from armillary.training.loop import Part, TrainSettings, learning_rate, train
from armillary.training.reference import rendered
from armillary.training.run import read_text, train_run
from armillary.training.runs import read_run, side_by_side, spread
from armillary.training.seeds import runs_in, train_seeds
from armillary.training.settings import key_of

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = TrainSettings(steps=20, batch=4, length=16, warmup=4, learning_rate=1e-2, final_rate=1e-3)
PARTS = [Part(np.tile(np.arange(5, 45), 20).astype(np.uint16), 1.0)]


class TestSchedules:
    def test_each_ends_where_it_says(self) -> None:
        for schedule, last in (("cosine", 1e-3), ("linear", 1e-3), ("wsd", 1e-3), ("constant", 1e-2)):
            chosen = replace(SETTINGS, schedule=schedule)
            rates = [learning_rate(chosen, step) for step in range(21)]
            assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
            assert rates[20] == pytest.approx(last)
            assert rates[4:] == sorted(rates[4:], reverse=True)

    def test_linear_and_wsd(self) -> None:
        linear = replace(SETTINGS, schedule="linear")
        assert learning_rate(linear, 12) == pytest.approx((1e-2 + 1e-3) / 2)
        late = replace(SETTINGS, schedule="wsd", decay=0.2)
        assert [learning_rate(late, step) for step in (4, 16)] == [1e-2, 1e-2]
        assert learning_rate(late, 18) == pytest.approx((1e-2 + 1e-3) / 2)


class TestSteps:
    def test_accumulated_batches_are_one_large_batch(self, tmp_path: Path) -> None:
        models = []
        for batch, accumulate in ((8, 1), (2, 4)):
            model = sample_model("llama")
            settings = replace(SETTINGS, steps=3, warmup=1, batch=batch, accumulate=accumulate)
            penalty_calls: list[int] = []

            def penalty(model: Any = model, calls: list[int] = penalty_calls) -> torch.Tensor:
                calls.append(1)
                weight: torch.Tensor = model.lm_head.weight
                return 0.1 * weight.square().sum()

            train(model, PARTS, settings, tmp_path / str(accumulate), penalty=penalty)
            assert len(penalty_calls) == 3  # once a step
            models.append(model)
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    def test_autocast_computes_in_bfloat16_and_keeps_float32_weights(self, tmp_path: Path) -> None:
        model = sample_model("llama")
        seen: list[torch.dtype] = []
        model.model.layers[0].mlp.down_proj.register_forward_hook(
            lambda module, args, output: seen.append(output.dtype)
        )
        train(model, PARTS, replace(SETTINGS, steps=2, warmup=1, autocast="bf16"), tmp_path)
        assert set(seen) == {torch.bfloat16}
        assert {p.dtype for p in model.parameters()} == {torch.float32}

    def test_held_out_loss_when_asked(self, tmp_path: Path) -> None:
        train_run(config(tmp_path, training=dict(evaluate_every=3), monitor=dict(every=100)), tmp_path / "run")
        rows = [json.loads(line) for line in (tmp_path / "run" / "loss.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "held_out" in row] == [0, 3, 6, 7]


class TestSeeds:
    def test_runs_of_several_seeds_and_their_spread(self, tmp_path: Path) -> None:
        chosen = config(tmp_path, training=dict(steps=3, warmup=1, seeds=3))
        results = train_seeds(chosen, tmp_path / "runs")
        alone = train_run(config(tmp_path, training=dict(steps=3, warmup=1, seed=1)), tmp_path / "alone")
        assert results[1]["held_out_loss"] == alone["held_out_loss"]
        assert train_seeds(chosen, tmp_path / "runs") == results  # read, not trained again
        assert [path.name for path in runs_in(tmp_path / "runs")] == ["seed-0", "seed-1", "seed-2"]
        table = spread(side_by_side([read_run(path) for path in runs_in(tmp_path / "runs")]))
        losses = np.array([results[seed]["held_out_loss"] for seed in range(3)])
        expected = [losses.mean(), losses.std(ddof=1), losses.std(ddof=1) / np.sqrt(3)]
        assert table["held_out_loss"].to_list() == pytest.approx(expected)
        shown = CliRunner().invoke(app, ["runs", str(tmp_path / "runs")])
        assert shown.exit_code == 0, shown.output
        for words in ("runs/seed-2", "standard error", "standard deviation", "mean"):
            assert words in shown.output
        with pytest.raises(arm.ArmillaryError, match="one seed"):
            train_seeds(config(tmp_path), tmp_path / "other")
        with pytest.raises(arm.ArmillaryError, match="several seeds"):
            train_run(chosen, tmp_path / "other")

    def test_a_file_with_seeds(self, tmp_path: Path) -> None:
        (tmp_path / "text.txt").write_text(TEXT)
        (tmp_path / "several.toml").write_text(
            f"[model]\nlayers = 1\nheads = 2\nwidth = 16\nposition = 'none'\n"
            f"[data]\ncorpus = '{tmp_path / 'text.txt'}'\n"
            "[training]\nseeds = [4, 2]\nsteps = 2\nbatch = 2\nlength = 32\nwarmup = 1\n[checkpoints]\nkeep = 'log'\n"
        )
        run = CliRunner().invoke(app, ["train", str(tmp_path / "several.toml")])
        assert run.exit_code == 0, run.output
        assert "standard error" in run.output
        assert "plain transformers would rotate with all frequencies" in run.output
        assert (tmp_path / "several" / "seed-4" / "checkpoints" / "step-00000002" / "config.json").is_file()


class TestPreset:
    def test_the_papers_penalty_and_a_sweep(self) -> None:
        paper = from_dict({"regularizer": {"preset": "paper"}}).regularizer
        assert (paper.kind, paper.scale, paper.mean, paper.target) == ("locater", 100.0, 1.0, 1.0)
        assert from_dict({"regularizer": {"preset": "paper", "mean": 0.01}}).regularizer.mean == 0.01
        with pytest.raises(arm.ArmillaryError, match="there is paper"):
            from_dict({"regularizer": {"preset": "book"}})

    def test_settings_survive_their_record(self) -> None:
        for sections in ({"regularizer": {"preset": "paper", "mean": 0.0}}, {"model": {"from": "x"}}, {}):
            chosen = from_dict(sections)
            assert from_dict(json.loads(json.dumps(chosen.as_dict()))) == chosen


class TestPackedText:
    def test_it_is_mapped_and_packed_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ARMILLARY_CACHE", str(tmp_path / "cache"))
        chosen = config(tmp_path)
        first = read_text(chosen)
        assert isinstance(first.training, np.memmap)
        assert first.training.dtype == np.uint16
        (packed,) = (tmp_path / "cache" / "tokens").glob("tokens-*.uint16")
        tokenizer = first.tokenizer
        expected = [tokenizer.eos_token_id, *tokenizer(TEXT)["input_ids"]]
        assert [*first.training, *first.held_out] == expected
        monkeypatch.setattr(data, "_encoded", None)  # not called again
        assert (read_text(chosen).training == first.training).all()
        monkeypatch.undo()
        monkeypatch.setenv("ARMILLARY_CACHE", str(tmp_path / "cache"))
        packed.write_bytes(b"\1\0" * 9)  # damaged
        assert len(read_text(chosen).training) == len(first.training)
        (tmp_path / "text.txt").write_text(TEXT + "more")
        read_text(chosen)
        assert len(list((tmp_path / "cache" / "tokens").glob("tokens-*.uint16"))) == 2

    def test_a_resumed_run_reads_its_packed_text(self, tmp_path: Path) -> None:
        chosen = config(tmp_path)

        def stop(step: int, loss: float) -> None:
            if step == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_run(chosen, tmp_path / "run", stop)
        (tmp_path / "text.txt").unlink()  # the corpus is not read again
        train_run(chosen, tmp_path / "run")
        whole = train_run(config(tmp_path), tmp_path / "whole")
        assert whole["held_out_loss"] == read_run(tmp_path / "run").result["held_out_loss"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (dict(model=dict(kv_heads=3)), "cannot share"),
        (dict(model=dict(family="gpt2", kv_heads=1)), "does not go with family"),
        (dict(model=dict(norm="sandwich")), "there are pre, post"),
        (dict(model=dict(range=500)), "have no effect"),
        (dict(training=dict(schedule="step")), "there are cosine, linear, constant, wsd"),
        (dict(training=dict(autocast="fp8")), "there are none, bf16"),
        (dict(training=dict(train="mlp")), "there are all, attention"),
        (dict(training=dict(accumulate=0)), "1 or more"),
        (dict(training=dict(evaluate_every=0)), "1 or more"),
        (dict(training=dict(seeds=0)), "1 or more, or a list"),
        (dict(training=dict(seeds=[1, 1])), "different seeds"),
        (dict(training=dict(beta2=1.0)), "between 0 and 1"),
    ],
)
def test_mistakes(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(arm.ArmillaryError, match=message):
        from_dict(sections)


def test_the_page_lists_every_key() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert rendered(page) == page, "run python -m armillary.training.reference"
    for section in SECTIONS.values():
        for name in section.__dataclass_fields__:
            assert f"| `{key_of(name)}` |" in page


def test_the_runs_on_the_page_are_runs() -> None:
    import re
    import tomllib

    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    written = re.findall(r"```toml\n(.*?)```", page, re.S)
    assert len(written) >= 3
    for text in written:
        from_dict(tomllib.loads(text))
