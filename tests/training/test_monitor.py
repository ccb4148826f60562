"""The monitor measures attention during training, warns of a collapse in time, and of nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.samples import sample_model
from armillary.training.loop import Part, TrainSettings, train
from armillary.training.monitor import Monitor, callback, snapshot, tensorboard
from armillary.training.timeline import TimelineWriter
from conftest import shared

PATTERN = np.random.default_rng(0)
TOKENS = np.concatenate([np.tile(PATTERN.integers(3, 90, 40), 3) for _ in range(60)]).astype(np.int64)
PROBE = torch.from_numpy(TOKENS[:256].reshape(4, 64))
SHAPE = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)


def small_model() -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SHAPE, num_key_value_heads=4, max_position_embeddings=64, use_cache=False)
    return AutoModelForCausalLM.from_config(config)


def trained(rate: float, folder: Path, steps: int = 40) -> tuple[list[float], list[str], Monitor]:
    model = small_model()
    losses: list[float] = []
    warnings: list[str] = []
    monitor = Monitor(model, PROBE, every=2, on_warning=warnings.append)

    def on_step(step: int, loss: float) -> None:
        losses.append(loss)
        monitor(step)

    settings = TrainSettings(
        steps=steps, batch=8, length=64, learning_rate=rate, warmup=4, clip=1e9, checkpoint_every=1000
    )
    train(model, [Part(TOKENS, 1.0)], settings, folder, on_step)
    return losses, warnings, monitor


def test_far_too_high_a_learning_rate_is_warned_of_before_the_loss_diverges(tmp_path: Path) -> None:
    losses, warnings, _ = trained(1.0, tmp_path)
    diverged = next(step for step, loss in enumerate(losses) if not loss < losses[0] + 1)
    assert warnings
    assert warnings[0].startswith("entropy collapse at step")
    assert int(warnings[0].split("step ")[1].split(":")[0]) <= diverged
    assert "head 0.0" in warnings[0]


def test_a_healthy_run_gets_no_warning(tmp_path: Path) -> None:
    losses, warnings, monitor = trained(3e-3, tmp_path)
    assert warnings == []
    assert losses[-1] < losses[0]
    assert len(monitor.history) == 20
    assert 0 < monitor.overhead < 1


def test_far_too_large_logits_are_warned_of_at_once_and_once() -> None:
    model = small_model()
    warnings: list[str] = []
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(100)
            layer.self_attn.k_proj.weight.mul_(100)
    monitor = Monitor(model, PROBE, every=1, on_warning=warnings.append)
    monitor(0)
    monitor(1)
    assert len(warnings) == 1


def test_modes_of_single_modules_are_restored_and_wrong_tokens_refused() -> None:
    model = small_model().train()
    model.model.layers[0].eval()
    snapshot(model, PROBE)
    assert model.training
    assert not model.model.layers[0].training
    for wrong in (PROBE[0], PROBE[:, :2], PROBE + 99):
        with pytest.raises(arm.ArmillaryError, match="tokens"):
            snapshot(model, wrong)


def test_heads_that_collapse_later_are_warned_of_too() -> None:
    model = small_model()
    warnings: list[str] = []
    monitor = Monitor(model, PROBE, every=1, on_warning=warnings.append)
    with torch.no_grad():
        for step, layer in enumerate(model.model.layers):
            layer.self_attn.q_proj.weight.mul_(300)
            layer.self_attn.k_proj.weight.mul_(300)
            monitor(step)
    assert len(warnings) == 2
    assert "1.0" in warnings[1]


def test_tokens_that_are_all_alike_are_warned_of() -> None:
    model = small_model()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight[:1].expand(99, -1).clone())
    measured = snapshot(model, PROBE, step=7)
    assert any(sentence.startswith("rank collapse at step 7") for sentence in measured.warnings)


@pytest.mark.parametrize("name", ["stories15M", "llama", "gpt2"])
def test_trained_models_are_healthy(name: str) -> None:
    folder = shared("models/stories15M") if name == "stories15M" else arm.bundled(name)
    model, tokenizer = arm.load(folder, dtype=torch.float32), load_tokenizer(folder)
    text = "Once upon a time there was a list of words, and every word was a string. " * 20
    ids = torch.tensor(tokenizer(text)["input_ids"][:256]).view(2, 128)
    assert snapshot(model, ids).warnings == ()


def test_numbers_are_those_of_a_scan_and_the_model_is_left_as_it_was() -> None:
    model = sample_model("llama").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokens = torch.randint(3, 99, (4, 16), generator=torch.Generator().manual_seed(0))
    measured = snapshot(model, tokens)
    assert model.training
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    atlas = arm.scan(model.eval(), tokens)
    heads = atlas.heads
    np.testing.assert_allclose(measured.heads["entropy"].ravel(), heads["entropy"], rtol=1e-6)
    np.testing.assert_allclose(measured.heads["rank_one_distance"].ravel(), heads["rank_one_distance"], rtol=1e-6)
    d = atlas.anatomy.d_model
    np.testing.assert_allclose(measured.heads["eigen_mean"].ravel(), heads["qk_trace"] / d, atol=1e-6)
    spread = np.sqrt(heads["qk_fro"] ** 2 / d - (heads["qk_trace"] / d) ** 2)
    np.testing.assert_allclose(measured.heads["eigen_scale"].ravel(), spread, rtol=1e-4)
    np.testing.assert_allclose(measured.layers, atlas.layers["rank_one_distance"], rtol=1e-6)


def test_the_scale_is_the_spread_of_the_eigenvalues_of_a_symmetric_head() -> None:
    model = sample_model("gpt2")
    with torch.no_grad():
        w = model.transformer.h[0].attn.c_attn.weight
        w[:, 48:96] = w[:, :48]
    measured = snapshot(model, torch.randint(3, 99, (2, 12)))
    q = arm.describe(model).weights(0).q[1].double()
    values = np.linalg.eigvalsh((q @ q.T).numpy())
    assert measured.heads["eigen_mean"][0, 1] == pytest.approx(values.mean(), rel=1e-4)
    assert measured.heads["eigen_scale"][0, 1] == pytest.approx(values.std(), rel=1e-4)


def test_the_log_the_trackers_and_a_trainer(tmp_path: Path) -> None:
    numbers: list[tuple[str, float, int]] = []

    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            numbers.append((name, value, step))

    monitor = Monitor(
        small_model(), PROBE, every=5, log=tmp_path / "log.jsonl", trackers=[tensorboard(Writer())], on_warning=print
    )
    for step in range(6):
        monitor(step)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 5]
    assert ("attention/entropy", rows[1]["entropy"], 5) in numbers
    assert np.array(rows[0]["heads"]["entropy"]).shape == (2, 4)
    state = type("State", (), {"global_step": 10})()
    callback(monitor).on_step_end(None, state, None)
    assert monitor.history[-1].step == 10
    with pytest.raises(arm.ArmillaryError, match="every=0 was given"):
        Monitor(small_model(), PROBE, every=0)


def test_an_open_wandb_run_gets_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    logged: list[dict[str, float]] = []
    fake: Any = type(sys)("wandb")
    fake.run = object()
    fake.log = lambda numbers, step: logged.append(numbers)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    Monitor(small_model(), PROBE, every=1, on_warning=print)(0)
    assert "attention/entropy" in logged[0]


def test_a_family_without_an_adapter_is_monitored_without_spectra() -> None:
    from transformers import PersimmonConfig, PersimmonForCausalLM

    torch.manual_seed(0)
    model = PersimmonForCausalLM(PersimmonConfig(**SHAPE, max_position_embeddings=64, use_cache=False)).eval()
    measured = snapshot(model, PROBE)
    assert "eigen_scale" not in measured.heads
    assert np.isfinite(measured.heads["entropy"]).all()


def test_a_timeline_while_training_is_that_of_the_checkpoints(tmp_path: Path) -> None:
    """The same bits as scans of saved checkpoints, and training is not changed by being looked at."""
    tokens = torch.randint(5, 99, (4, 24), generator=torch.Generator().manual_seed(1))
    settings: dict[str, Any] = dict(streams=("attention", "patterns"), shard=4)

    def run(monitor_too: bool) -> Any:
        torch.manual_seed(0)
        model = sample_model("llama").train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        writer = TimelineWriter(tmp_path / "live", tokens, **settings)
        monitor = Monitor(model, tokens, every=1, timeline=writer)
        for step in range(3):
            if monitor_too:
                model.save_pretrained(tmp_path / "run" / "checkpoints" / f"step-{step:08d}")
                monitor(step)
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
        return model

    watched, alone = run(True), run(False)
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), alone.parameters(), strict=True))
    live = arm.open_timeline(tmp_path / "live")
    kept = arm.timeline(tmp_path / "run", corpus=tokens, **settings)
    assert live.steps.tolist() == [0, 1, 2]
    assert live.heads.identical(kept.heads)
    assert live.births.equals(kept.births)
    run(True)  # a run that begins again measures again
    assert arm.open_timeline(tmp_path / "live").heads.identical(kept.heads)
