"""The user's state is restored: the mode of every module, torch's threads and random numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.modes import evaluating
from armillary.anatomy.samples import sample_model
from armillary.probe.attention_map import attention_map
from armillary.probe.label_checks import check_heads, sampled_heads
from armillary.probe.rotary_tokens import token_frequencies
from armillary.probe.sweep import block_loss
from armillary.probe.terms import text_constituents
from armillary.probe.trial import trial
from armillary.scanning.job import ScanJob
from armillary.training.monitor import snapshot
from armillary.training.regularizers import sigma_reparam

TOKENS = torch.randint(5, 99, (4, 12), generator=torch.Generator().manual_seed(0))
TEXT = "Return the first item of the list, or the default value if the list is empty."


def mixed(model: nn.Module) -> dict[str, bool]:
    """Put a model into training but for one block, as one does to freeze it; the mode of every module."""
    model.train()
    blocks = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    blocks[1].eval()
    return modes(model)


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


class TestEvaluating:
    def test_train_is_called_on_modules_that_override_it(self) -> None:
        class Adapter(nn.Linear):
            merged = False

            def train(self, mode: bool = True) -> "Adapter":
                self.merged = not mode
                super().train(mode)
                return self

        model = nn.Sequential(Adapter(2, 2), nn.Dropout())
        with evaluating(model):
            assert model[0].merged
        assert not model[0].merged
        assert all(modes(model).values())


class TestScan:
    def test_every_module_keeps_its_own_mode(self) -> None:
        model = sample_model("llama")
        before = mixed(model)
        arm.scan(model, TOKENS)
        assert modes(model) == before

    def test_the_numbers_are_those_of_evaluation(self) -> None:
        model = sample_model("gpt2")
        quiet = arm.scan(model, TOKENS, streams=("attention",)).heads["entropy"]
        model.train()  # with dropout
        assert model.config.attn_pdrop > 0
        assert arm.scan(model, TOKENS, streams=("attention",)).heads["entropy"].equals(quiet)

    def test_after_an_exception(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = sample_model("llama")
        before = mixed(model)

        def fails(*given: Any, **named: Any) -> None:
            raise RuntimeError("out of memory")

        monkeypatch.setattr(model.model.layers[1].mlp, "forward", fails)
        with pytest.raises(arm.ArmillaryError, match="out of memory"):
            arm.scan(model, TOKENS)
        assert modes(model) == before

    def test_between_the_tasks_of_a_worker(self) -> None:
        model = sample_model("llama")
        before = mixed(model)
        ScanJob(model).open(0, 1)
        assert modes(model) == before


def _monitored(model: Any, atlas: arm.Atlas, tokenizer: Any) -> None:
    snapshot(model, TOKENS)


def _verified(model: Any, atlas: arm.Atlas, tokenizer: Any) -> None:
    arm.verify(model, TOKENS)


def _checked(model: Any, atlas: arm.Atlas, tokenizer: Any) -> None:
    check_heads(model, atlas, sampled_heads(atlas, 1), sequences=2)


def _tried(model: Any, atlas: arm.Atlas, tokenizer: Any) -> None:
    trial(model, tokenizer, TEXT, lambda m: arm.interventions.scaled(m, 0.5), generate=2)


def _mapped(model: Any, atlas: arm.Atlas, tokenizer: Any) -> None:
    attention_map(model, tokenizer, TEXT)


def _split(model: Any, atlas: arm.Atlas, tokenizer: Any) -> None:
    text_constituents(atlas, model, tokenizer, 1, 0, TEXT)


def _turned(model: Any, atlas: arm.Atlas, tokenizer: Any) -> None:
    token_frequencies(model, tokenizer, 1, 0, TEXT)


def _lost(model: Any, atlas: arm.Atlas, tokenizer: Any) -> None:
    block_loss(model, TOKENS.numpy())


class TestOthers:
    @pytest.mark.parametrize("use", [_monitored, _verified, _checked, _tried, _mapped, _split, _turned, _lost])
    def test_run_it_in_evaluation_and_leave_it_as_it_was(
        self, atlases: Any, use: Callable[[Any, arm.Atlas, Any], None]
    ) -> None:
        folder = arm.bundled("llama")
        atlas = atlases.trained("llama")
        model = arm.load(folder)
        before = mixed(model)
        seen: list[bool] = []
        model.model.layers[0].register_forward_hook(lambda module, inputs, outputs: seen.append(module.training))
        use(model, atlas, load_tokenizer(folder))
        assert seen
        assert not any(seen)
        assert modes(model) == before

    def test_reading_computed_weights_changes_nothing(self) -> None:
        model = sample_model("llama")
        sigma_reparam(model)
        model.train()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        snapshot(model, TOKENS)
        arm.describe(model).weights(0)
        arm.scan(model, TOKENS, streams=("attention",))
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class TestTorch:
    def test_the_random_state_is_restored(self, tmp_path: Path) -> None:
        torch.manual_seed(11)
        expected = torch.rand(3)
        torch.manual_seed(11)
        arm.scan(sample_model("llama"), TOKENS, out=tmp_path / "scan")
        assert torch.equal(torch.rand(3), expected)

    def test_threads_are_restored(self) -> None:
        torch.set_num_threads(2)
        arm.scan(sample_model("llama"), TOKENS)
        assert torch.get_num_threads() == 2

    def test_gradients_and_the_default_dtype_are_restored(self) -> None:
        arm.scan(sample_model("llama"), TOKENS)
        assert torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float32
