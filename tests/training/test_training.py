"""The training loop resumes exactly, and the bundled models match their records."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.text.sources import Document, documents
from armillary.training.bundled import CONTEXT, FAMILIES, bundled, held_out, held_out_loss, text
from armillary.training.loop import Part, TrainSettings, draw, learning_rate, mean_loss, train

SETTINGS = TrainSettings(steps=12, batch=4, length=16, warmup=3, checkpoint_every=5, learning_rate=3e-3)
PARTS = [Part(np.tile(np.arange(5, 45), 20).astype(np.uint16), 0.7), Part(np.arange(5, 95).astype(np.uint16), 0.3)]


class TestLoop:
    def test_a_killed_run_reaches_the_same_weights(self, tmp_path: Path) -> None:
        whole, killed = sample_model("llama"), sample_model("llama")
        train(whole, PARTS, SETTINGS, tmp_path / "whole")

        def stop(step: int, loss: float) -> None:
            if step == 7:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(killed, PARTS, SETTINGS, tmp_path / "killed", stop)
        fresh, steps = sample_model("llama", seed=5), []
        train(fresh, PARTS, SETTINGS, tmp_path / "killed", lambda step, loss: steps.append(step))
        assert steps == list(range(5, 12))
        for ours, theirs in zip(fresh.parameters(), whole.parameters(), strict=True):
            assert torch.equal(ours, theirs)

    def test_it_learns(self, tmp_path: Path) -> None:
        model, losses = sample_model("gpt2"), []
        train(model, PARTS[:1], replace(SETTINGS, steps=60), tmp_path, lambda step, loss: losses.append(loss))
        assert losses[-1] < losses[0] - 1

    def test_other_settings_are_refused(self, tmp_path: Path) -> None:
        train(sample_model("llama"), PARTS, SETTINGS, tmp_path)
        with pytest.raises(arm.ArmillaryError, match="other settings \\(batch\\)"):
            train(sample_model("llama"), PARTS, replace(SETTINGS, batch=2), tmp_path)

    def test_a_damaged_checkpoint_is_not_used(self, tmp_path: Path) -> None:
        train(sample_model("llama"), PARTS, SETTINGS, tmp_path)
        next(tmp_path.glob("checkpoint-*.pt")).write_bytes(b"broken")
        steps: list[int] = []
        train(sample_model("llama"), PARTS, SETTINGS, tmp_path, lambda step, loss: steps.append(step))
        assert steps[0] == 0

    def test_warm_up_and_cosine(self) -> None:
        rates = [learning_rate(SETTINGS, step) for step in range(SETTINGS.steps)]
        assert rates[:3] == pytest.approx([1e-3, 2e-3, 3e-3])
        assert rates[3:] == sorted(rates[3:], reverse=True)
        assert learning_rate(SETTINGS, SETTINGS.steps) == pytest.approx(SETTINGS.final_rate)

    def test_batches_depend_on_seed_and_step_alone(self) -> None:
        assert torch.equal(draw(PARTS, SETTINGS, 3), draw(PARTS, SETTINGS, 3))
        assert not torch.equal(draw(PARTS, SETTINGS, 3), draw(PARTS, SETTINGS, 4))
        with pytest.raises(arm.ArmillaryError, match="fewer than a window"):
            draw([Part(np.arange(9), 1.0)], SETTINGS, 0)

    def test_a_loss_that_is_not_finite_raises(self, tmp_path: Path) -> None:
        model = sample_model("llama")
        with torch.no_grad():
            model.lm_head.weight.fill_(torch.nan)
        with pytest.raises(arm.ArmillaryError, match="became nan at step 0"):
            train(model, PARTS, SETTINGS, tmp_path)

    def test_mean_loss_by_hand(self) -> None:
        model = sample_model("gpt2")
        ids = torch.arange(5, 37)
        with torch.no_grad():
            expected = np.mean([float(model(input_ids=row[None], labels=row[None]).loss) for row in ids.view(2, 16)])
        assert mean_loss(model, ids.numpy(), 16) == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def prose() -> list[Document]:
    return list(documents("builtin:prose"))


@pytest.fixture
def _read_once(prose: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in prose is parsed from the standard library, which takes seconds."""
    monkeypatch.setattr("armillary.training.bundled.documents", {"builtin:prose": prose}.__getitem__)


@pytest.mark.parametrize("family", FAMILIES)
class TestBundledModels:
    def test_small_plain_and_half_precision(self, family: str) -> None:
        folder = bundled(family)
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 5_000_000
        assert arm.describe(folder).weights(0).q[0].dtype == torch.float16
        assert arm.describe(folder).family == family

    def test_it_verifies(self, family: str) -> None:
        assert arm.verify(arm.load(bundled(family), dtype=torch.float32)).passed


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("_read_once")
def test_the_held_out_loss_is_the_one_stated(family: str) -> None:
    folder = bundled(family)
    stated = json.loads((folder / "training.json").read_text())["held_out_loss"]
    model = arm.load(folder, dtype=torch.float32)
    measured = held_out_loss(model, AutoTokenizer.from_pretrained(folder))
    assert measured == pytest.approx(stated, abs=0.05)  # another Python has another documentation
    assert measured < 4.0


@pytest.mark.usefixtures("_read_once")
def test_held_out_documents_are_not_trained_on() -> None:
    assert not set(text("prose", testing=True)) & set(text("prose", testing=False))
    assert held_out("json") == held_out("json")


def test_the_context_is_that_of_the_models() -> None:
    assert all(arm.describe(bundled(family)).max_positions == CONTEXT for family in FAMILIES)
