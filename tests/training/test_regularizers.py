"""LocAteR equals autograd on the dense W_QK and its closed forms; sigma-Reparam does what its formula says."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import armillary as arm
from armillary.anatomy.description import Layer
from armillary.anatomy.samples import DISTINCT, sample_model
from armillary.anatomy.weights import LayerWeights
from armillary.errors import ArmillaryError
from armillary.theory.localization import head_spectrum, localizing_target, locater_minimizer, spectrum_regime
from armillary.training.loop import Part, TrainSettings, train
from armillary.training.regularizers import (
    LocAteR,
    LocAteRTrainerMixin,
    SigmaReparam,
    head_terms,
    merge_sigma_reparam,
    sigma_reparam,
)

SCALE, MEAN = 0.3, 0.7
DIFFERENT = ["llama", "gpt2", "falcon", "falcon/grouped", "phi3", "gptj", "codegen", "gpt_neox", "t5", "bert", "albert"]


def small_llama(d: int, heads: int, *, kv_heads: int | None = None, layers: int = 1, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=d,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        intermediate_size=16,
        initializer_range=0.3,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def dense_penalty(model: Any, scale: float, mean: float, target: Callable[[Layer], float]) -> Tensor:
    """The penalty as printed, on W = W_q W_k' written out, d x d; blocks that layers share count once."""
    anatomy, total, seen = arm.describe(model, live=True), torch.zeros((), dtype=torch.float64), set()
    for layer in anatomy.layers:
        if layer.block in seen:
            continue
        seen.add(layer.block)
        weights = anatomy.weights(layer.index)
        for head in range(layer.heads):
            dense = weights.q[head] @ weights.k[layer.kv_head(head)].T
            total = total + scale * torch.trace(dense.T @ dense) + mean * (torch.trace(dense) - target(layer)) ** 2
    return total


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


def scale_of(layer: Any) -> float:
    assert layer.scale is not None
    return float(layer.scale)


class TestPenalty:
    @pytest.mark.parametrize("family", DIFFERENT)
    def test_it_and_its_gradient_equal_autograd_on_the_dense_matrix(self, family: str) -> None:
        model = sample_model(family).double()
        ours, dense = (
            LocAteR(model, SCALE, MEAN)(),
            dense_penalty(model, SCALE, MEAN, lambda layer: 5 / scale_of(layer)),
        )
        torch.testing.assert_close(ours, dense, rtol=1e-12, atol=0)
        expected = gradients(model, dense)
        found = gradients(model, ours)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= 1e-12 * gradient.norm(), name

    @pytest.mark.parametrize("family", DISTINCT)
    def test_terms_of_every_family_are_those_of_its_anatomy(self, family: str) -> None:
        model = sample_model(family).double()
        if arm.describe(model).layers[0].latent:
            with pytest.raises(arm.ArmillaryError, match="products of stored matrices"):
                LocAteR(model, SCALE, MEAN).terms()
            return
        anatomy, terms = arm.describe(model), LocAteR(model, SCALE, MEAN).terms()
        for number, (trace, frobenius) in terms.items():
            weights, layer = anatomy.weights(number), anatomy.layers[number]
            assert not trace.requires_grad
            dense = [weights.q[a] @ weights.k[layer.kv_head(a)].T for a in range(layer.heads)]
            torch.testing.assert_close(trace, torch.stack([w.trace() for w in dense]))
            torch.testing.assert_close(frobenius, torch.stack([w.square().sum() for w in dense]))
        assert len(terms) == len({layer.block for layer in anatomy.layers})

    def test_in_float32_to_a_millionth(self) -> None:
        model = sample_model("llama")
        exact = gradients(twin := copy.deepcopy(model).double(), LocAteR(twin, SCALE, MEAN)())
        for name, gradient in gradients(model, LocAteR(model, SCALE, MEAN)()).items():
            assert (gradient - exact[name]).norm() <= 1e-6 * exact[name].norm()

    def test_closed_form_gradients(self) -> None:
        """`armillary theory L28`, and L29 as corrected; the printed L29 differs."""
        model = small_llama(12, 3).double()
        attention, target = model.model.layers[0].self_attn, 1.0
        found = gradients(model, LocAteR(model, SCALE, MEAN, target=target)())
        q, k = (getattr(attention, part).weight.detach().view(3, 4, 12).mT for part in ("q_proj", "k_proj"))
        trace = (q * k).sum((1, 2))[:, None, None]
        pull = 2 * MEAN * (trace - target)
        for part, own, other in (("q_proj", q, k), ("k_proj", k, q)):
            gradient = found[f"model.layers.0.self_attn.{part}.weight"].view(3, 4, 12).mT
            torch.testing.assert_close(gradient, 2 * SCALE * own @ other.mT @ other + pull * other)
            printed = 2 * SCALE * own @ other.mT @ other + MEAN * (trace - target) * trace * other
            assert (gradient - printed).norm() > 0.1 * gradient.norm()

    def test_finite_differences(self) -> None:
        torch.manual_seed(0)
        q, k = (torch.randn(heads, 3, 5, dtype=torch.float64, requires_grad=True) for heads in (4, 2))
        assert torch.autograd.gradcheck(lambda q, k: tuple(head_terms(q, k)), (q, k))
        model = sample_model("phi3").double()
        penalty, step = LocAteR(model, SCALE, MEAN), 1e-5
        slopes = gradients(model, penalty())
        moves = {name: torch.randn_like(gradient) for name, gradient in slopes.items()}

        def moved(by: float) -> float:
            with torch.no_grad():
                for name, move in moves.items():
                    model.get_parameter(name).add_(by * move)
                return float(penalty())

        above, below = moved(step), moved(-2 * step)
        predicted = sum(float((slopes[name] * move).sum()) for name, move in moves.items())
        assert (above - below) / (2 * step) == pytest.approx(predicted, rel=1e-7)

    def test_shared_keys_count_each_head_once(self) -> None:
        grouped, whole = small_llama(24, 6, kv_heads=2).double(), small_llama(24, 6).double()
        theirs, ours = whole.model.layers[0].self_attn, grouped.model.layers[0].self_attn
        with torch.no_grad():
            theirs.q_proj.weight.copy_(ours.q_proj.weight)
            theirs.k_proj.weight.copy_(ours.k_proj.weight.view(2, 1, 4, 24).expand(2, 3, 4, 24).reshape(24, 24))
        one, other = LocAteR(grouped, SCALE, MEAN)(), LocAteR(whole, SCALE, MEAN)()
        torch.testing.assert_close(one, other)
        key = "model.layers.0.self_attn.k_proj.weight"
        expanded = gradients(whole, other)[key].view(2, 3, 4, 24).sum(1)
        torch.testing.assert_close(gradients(grouped, one)[key].view(2, 4, 24), expanded)

    def test_layers_that_share_weights_count_once(self) -> None:
        assert list(LocAteR(sample_model("albert"), SCALE, MEAN).terms()) == [0]
        assert list(LocAteR(sample_model("albert/groups"), SCALE, MEAN).terms()) == [0, 1, 4, 5]

    def test_it_reads_the_current_weights(self) -> None:
        """The penalty reads weights that were replaced after it was made."""
        model = sample_model("gpt2")
        penalty = LocAteR(model, SCALE, MEAN)
        other = sample_model("gpt2", seed=1)
        assert float(penalty().detach()) != float(LocAteR(other, SCALE, MEAN)().detach())
        model.load_state_dict(other.state_dict(), assign=True)
        assert float(penalty().detach()) == float(LocAteR(other, SCALE, MEAN)().detach())
        sigma_reparam(model, only="attention")
        weight = model.transformer.h[0].attn.c_attn.weight.detach()
        torch.testing.assert_close(penalty.terms()[0].trace[0], (weight[:, :8] * weight[:, 48:56]).sum())

    def test_half_precision_and_autocast_are_summed_in_float32(self) -> None:
        model = sample_model("llama").bfloat16()
        exact = LocAteR(copy.deepcopy(model).double(), SCALE, MEAN)()
        assert float(LocAteR(model, SCALE, MEAN)().detach()) == pytest.approx(float(exact.detach()), rel=1e-6)
        model = model.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = LocAteR(model, SCALE, MEAN)()
        assert float(inside.detach()) == pytest.approx(float(exact.detach()), rel=1e-6)


class TestTarget:
    @staticmethod
    def descend(model: Any, penalty: LocAteR) -> LayerWeights:
        """The weights of the only layer at the minimum of the penalty."""
        attention = model.model.layers[0].self_attn
        optimizer = torch.optim.LBFGS(
            [attention.q_proj.weight, attention.k_proj.weight],
            max_iter=400,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-8,
            tolerance_change=1e-13,
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = penalty()
            loss.backward()
            return loss

        optimizer.step(closure)
        return arm.describe(model).weights(0)

    @pytest.mark.parametrize(("kappa1", "kappa2", "target"), [(1.0, 1.0, 1.0), (0.5, 2.0, 6.0), (0.1, 0.3, -3.0)])
    def test_descent_ends_at_the_closed_form_minimum(self, kappa1: float, kappa2: float, target: float) -> None:
        """`armillary theory L31`: w I, where one head is as wide as the model."""
        model = small_llama(8, 1).double()
        weights = self.descend(model, LocAteR(model, kappa1, kappa2, target=target))
        expected = locater_minimizer(kappa1, kappa2, 8, target) * torch.eye(8, dtype=torch.float64)
        torch.testing.assert_close(weights.q[0] @ weights.k[0].T, expected, rtol=0, atol=1e-6)

    def test_a_narrow_head_has_as_many_equal_eigenvalues_as_it_is_wide(self) -> None:
        model = small_llama(12, 3).double()
        weights = self.descend(model, LocAteR(model, 0.2, 0.5, target=2.0))
        expected = torch.zeros(12, dtype=torch.float64)
        expected[:4] = locater_minimizer(0.2, 0.5, 4, 2.0)
        for q, k in zip(weights.q, weights.k, strict=True):
            dense = q @ k.T
            torch.testing.assert_close(dense, dense.T, rtol=0, atol=1e-6)
            torch.testing.assert_close(torch.linalg.eigvalsh(dense).flip(0), expected, rtol=0, atol=1e-6)

    def test_the_default_localizes_and_the_printed_one_does_not(self) -> None:
        """By the paper's own criterion (`armillary theory L30`), at the minimum for a small weight on the scale."""
        reached = {}
        for target in ("localize", 1.0):
            model = small_llama(16, 1).double()
            weights = self.descend(model, LocAteR(model, 0.1, 1.0, target=target))
            spectrum = head_spectrum(weights.k[0].numpy(), weights.q[0].numpy(), None, 4.0)
            reached[target] = (spectrum.r, spectrum_regime(spectrum))
        assert reached["localize"][0] == pytest.approx(5, rel=1e-2)
        assert reached["localize"][1] == "middle"
        assert reached[1.0][0] == pytest.approx(1 / 4, rel=1e-2)
        assert reached[1.0][1] != "middle"

    def test_its_unit_is_the_logit_scale_of_each_layer(self) -> None:
        targets = LocAteR(sample_model("gpt2/inverse-layer-scale"), SCALE, MEAN).targets
        assert targets == pytest.approx({i: localizing_target(5.0, 8**0.5 * (i + 1)) for i in range(3)})
        assert LocAteR(sample_model("llama"), SCALE, MEAN, target=1).targets == {0: 1.0, 1: 1.0, 2: 1.0}

    @pytest.mark.parametrize("target", [1.0, -4.0])
    def test_any_number_can_be_given(self, target: float) -> None:
        model = sample_model("bert").double()
        torch.testing.assert_close(
            LocAteR(model, SCALE, MEAN, target=target)(), dense_penalty(model, SCALE, MEAN, lambda layer: target)
        )


class TestBadArguments:
    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            (dict(scale=-1.0, mean=1.0), "scale=-1.0"),
            (dict(scale=1.0, mean=-0.1), "mean=-0.1"),
            (dict(scale=float("nan"), mean=1.0), "scale=nan"),
            (dict(scale=1.0, mean=float("inf")), "mean=inf"),
            (dict(scale=1.0, mean=1.0, target="local"), "'local'.*'localize' or a finite number"),
            (dict(scale=1.0, mean=1.0, target=float("nan")), "target=nan"),
        ],
    )
    def test_weights_and_targets(self, arguments: dict[str, Any], match: str) -> None:
        with pytest.raises(ArmillaryError, match=match):
            LocAteR(sample_model("llama"), **arguments)

    def test_a_module_that_is_not_a_transformers_model(self) -> None:
        with pytest.raises(ArmillaryError, match="reads transformers models"):
            LocAteR(nn.Linear(3, 3), 1.0, 1.0)
        with pytest.raises(ArmillaryError, match="reads transformers models"):
            LocAteR("gpt2", 1.0, 1.0)

    def test_a_family_without_an_adapter(self) -> None:
        from transformers import XGLMConfig

        config = XGLMConfig(vocab_size=20, d_model=16, num_layers=1, attention_heads=2, ffn_dim=16)
        model = AutoModelForCausalLM.from_config(config)
        for make in (lambda: LocAteR(model, 1.0, 1.0), lambda: sigma_reparam(model)):
            with pytest.raises(ArmillaryError, match="no adapter knows the family 'xglm'"):
                make()

    def test_a_weight_that_is_not_there(self) -> None:
        model = sample_model("llama")
        attention = model.model.layers[1].self_attn
        attention.q_proj = nn.Sequential(attention.q_proj)  # as a LoRA wraps it
        with pytest.raises(ArmillaryError, match=r"layer 1.*no weight 'self_attn.q_proj.weight'.*merge it first"):
            LocAteR(model, 1.0, 1.0)

    def test_sigma_reparam(self) -> None:
        model = sample_model("llama")
        with pytest.raises(ArmillaryError, match="only='mlp'"):
            sigma_reparam(model, only="mlp")
        with pytest.raises(ArmillaryError, match="no layer that sigma_reparam changed"):
            merge_sigma_reparam(model)
        sigma_reparam(model)
        with pytest.raises(ArmillaryError, match="already reparametrized"):
            sigma_reparam(model)
        zero = sample_model("llama")
        nn.init.zeros_(zero.model.layers[2].self_attn.o_proj.weight)
        with pytest.raises(ArmillaryError, match=r"layers\.2\.self_attn\.o_proj is zero"):
            sigma_reparam(zero)
        assert not any("parametrizations" in name for name, _ in zero.named_parameters())


class PenalisedTrainer(LocAteRTrainerMixin, Trainer):  # type: ignore[misc]
    pass


class TestTrainer:
    ROWS = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(0))
    DATA = tuple(dict(input_ids=row, labels=row) for row in ROWS)
    RATE = 0.05

    def trainer(self, model: Any, folder: Path, *, batch: int = 4, accumulate: int = 1, **settings: Any) -> Trainer:
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=3,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulate,
            max_grad_norm=0.0,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            dataloader_pin_memory=False,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=self.RATE)
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        penalty = settings.pop("penalty", None) or LocAteR(model, SCALE, MEAN, target=1.0)
        return PenalisedTrainer(
            model=model,
            args=arguments,
            train_dataset=self.DATA,
            eval_dataset=self.DATA,
            optimizers=(optimizer, constant),
            penalty=penalty,
            **settings,
        )

    def plain(self, model: Any) -> list[float]:
        """The losses of three steps in a plain loop."""
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=self.RATE), []
        penalty = LocAteR(model, SCALE, MEAN, target=1.0)
        model.train()
        for _ in range(3):
            loss = model(input_ids=self.ROWS, labels=self.ROWS).loss + penalty()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses

    @pytest.mark.parametrize(("batch", "accumulate"), [(4, 1), (2, 2)])
    @pytest.mark.parametrize("counts_items", [True, False])
    def test_it_trains_as_a_plain_loop_does(
        self, tmp_path: Path, batch: int, accumulate: int, counts_items: bool
    ) -> None:
        ours, theirs = small_llama(16, 2, layers=2, seed=3), small_llama(16, 2, layers=2, seed=3)
        losses = self.plain(theirs)
        trainer = self.trainer(ours, tmp_path, batch=batch, accumulate=accumulate)
        trainer.model_accepts_loss_kwargs = counts_items
        trainer.train()
        logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert logged == pytest.approx(losses, rel=1e-4)
        for name, parameter in theirs.named_parameters():
            torch.testing.assert_close(ours.get_parameter(name), parameter, rtol=1e-5, atol=1e-6)

    def test_the_gradient_of_a_step_has_the_penaltys(self, tmp_path: Path) -> None:
        model = small_llama(16, 2, layers=2)
        trainer = self.trainer(model, tmp_path)
        inputs = dict(input_ids=self.ROWS, labels=self.ROWS)
        trainer.current_gradient_accumulation_steps = 1
        trainer.create_optimizer_and_scheduler(3)
        trainer.training_step(model, inputs)
        expected = gradients(model, model(**inputs).loss + LocAteR(model, SCALE, MEAN, target=1.0)())
        without = gradients(model, model(**inputs).loss)
        for name, gradient in expected.items():
            torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-5, atol=1e-7)
        key = "model.layers.1.self_attn.k_proj.weight"
        assert (expected[key] - without[key]).norm() > 0.1 * without[key].norm()

    def test_evaluation_reports_the_loss_alone(self, tmp_path: Path) -> None:
        model = small_llama(16, 2)
        trainer = self.trainer(model, tmp_path)
        with torch.no_grad():
            loss = float(model(input_ids=self.ROWS, labels=self.ROWS).loss)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-4)

    def test_a_wrapped_model_with_outputs(self, tmp_path: Path) -> None:
        model = small_llama(16, 2)
        trainer = self.trainer(model, tmp_path)
        trainer.current_gradient_accumulation_steps = 1

        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module = model

            def forward(self, **inputs: Tensor) -> Any:
                return self.module(**inputs)

        inputs = dict(input_ids=self.ROWS, labels=self.ROWS)
        loss, outputs = trainer.compute_loss(Wrapped().train(), inputs, return_outputs=True)
        torch.testing.assert_close(loss, outputs.loss + trainer.penalty())
        assert outputs.logits.shape == (4, 12, 50)

    def test_the_penalty_of_another_model_is_refused(self, tmp_path: Path) -> None:
        model = small_llama(16, 2)
        trainer = self.trainer(model, tmp_path, penalty=LocAteR(copy.deepcopy(model), SCALE, MEAN))
        with pytest.raises(ArmillaryError, match="another model"):
            trainer.train()

    def test_transformers_is_imported_when_needed(self) -> None:
        code = "import sys, armillary.training.regularizers; sys.exit('transformers' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestSigmaReparam:
    @staticmethod
    def layers(model: nn.Module) -> dict[str, Any]:
        return {name: module for name, module in model.named_modules() if hasattr(module, "parametrizations")}

    @pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "albert", "t5"])
    def test_the_largest_singular_value_is_gamma(self, family: str) -> None:
        model = sample_model(family)
        sigma_reparam(model)
        for module in self.layers(model).values():
            assert float(torch.linalg.matrix_norm(module.weight.detach(), 2)) == pytest.approx(1, abs=1e-5)
            with torch.no_grad():
                module.parametrizations.weight[0].gamma.fill_(2.5)
                module.parametrizations.weight.original.copy_(torch.randn_like(module.weight))
        model.train()
        for module in self.layers(model).values():
            for _ in range(250):
                effective = module.weight.detach()
            assert float(torch.linalg.matrix_norm(effective, 2)) == pytest.approx(2.5, rel=1e-3)

    def test_which_layers(self) -> None:
        model = sample_model("gpt2")
        sigma_reparam(model, only="attention")
        assert {name.split(".", 3)[3] for name in self.layers(model)} == {"attn.c_attn", "attn.c_proj"}
        model = sample_model("gpt2")
        sigma_reparam(model)
        expected = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}
        assert {name.split(".", 3)[3] for name in self.layers(model)} == expected
        model = sample_model("albert")
        sigma_reparam(model, only="attention")
        assert len(self.layers(model)) == 4

    def test_one_power_iteration_per_forward_in_training_and_none_in_evaluation(self) -> None:
        model = sample_model("llama")
        sigma_reparam(model)
        layer = model.model.layers[0].self_attn.q_proj
        reparam = layer.parametrizations.weight[0]
        weight = layer.parametrizations.weight.original
        with torch.no_grad():
            weight.copy_(torch.randn_like(weight))
        before = reparam.v.clone()
        model.eval()(input_ids=torch.arange(5)[None])
        assert torch.equal(reparam.v, before)
        model.train()(input_ids=torch.arange(5)[None])
        turned = weight.detach().T @ (weight.detach() @ before)
        torch.testing.assert_close(reparam.v, turned / turned.norm())

    def test_gradients(self) -> None:
        """d/d gamma = <G, W> / sigma, and d/dW = gamma / sigma (G - <G, W> / sigma u v') for a gradient G of W_hat."""
        torch.manual_seed(0)
        weight = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
        module = SigmaReparam(weight).double().train(False)
        with torch.no_grad():
            left, values, right = torch.linalg.svd(weight)
            module.u.copy_(left[:, 0]), module.v.copy_(right[0]), module.gamma.fill_(1.7)
        upstream = torch.randn(5, 7, dtype=torch.float64)
        (module(weight) * upstream).sum().backward()
        inner = (upstream * weight.detach()).sum() / values[0]
        torch.testing.assert_close(module.gamma.grad, inner)
        expected = 1.7 / values[0] * (upstream - inner * torch.outer(left[:, 0], right[0]))
        torch.testing.assert_close(weight.grad, expected)

    def test_every_gamma_learns(self) -> None:
        model = sample_model("gpt2").train()
        sigma_reparam(model)
        ids = torch.arange(3, 40)[None]
        model(input_ids=ids, labels=ids).loss.backward()
        gains = [parameter for name, parameter in model.named_parameters() if name.endswith("gamma")]
        assert len(gains) == 12
        assert all(gain.grad is not None and float(gain.grad.abs()) > 0 for gain in gains)

    @pytest.mark.parametrize("family", ["llama", "gpt2", "albert"])
    def test_shared_and_repeated_forwards_can_be_differentiated(self, family: str) -> None:
        """A second forward before the first backward updates u and v without changing the first gradient."""
        model = sample_model(family).train()
        sigma_reparam(model)
        ids = torch.arange(3, 20)[None]
        (model(input_ids=ids)[0].sum() + model(input_ids=ids)[0].sum()).backward()

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_merged_weights_are_plain_and_compute_the_same(self, family: str, tmp_path: Path) -> None:
        model = sample_model(family)
        plain = {name: parameter.shape for name, parameter in model.named_parameters()}
        sigma_reparam(model)
        train(model, [Part(np.tile(np.arange(5, 45), 20), 1.0)], TrainSettings(steps=5, length=16), tmp_path / "run")
        ids = torch.arange(3, 40)[None]
        with torch.no_grad():
            expected = model(input_ids=ids).logits
        model.train()
        merge_sigma_reparam(model)
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=0, atol=1e-6)
        assert {name: parameter.shape for name, parameter in model.named_parameters()} == plain
        model.save_pretrained(tmp_path / "plain")
        with torch.no_grad():
            again = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()(input_ids=ids).logits
        torch.testing.assert_close(again, expected, rtol=0, atol=1e-6)
        assert arm.describe(tmp_path / "plain").weights(0).q[0].shape == (48, 8)

    def test_merging_a_copy_leaves_the_model_in_training(self) -> None:
        model = sample_model("llama")
        sigma_reparam(model)
        ids = torch.arange(3, 40)[None]
        merged = copy.deepcopy(model)
        merge_sigma_reparam(merged)
        with torch.no_grad():
            torch.testing.assert_close(merged(input_ids=ids).logits, model(input_ids=ids).logits, rtol=0, atol=1e-6)
        assert self.layers(model)
        assert not self.layers(merged)
        merge_sigma_reparam(model)

    def test_a_killed_run_reaches_the_same_weights(self, tmp_path: Path) -> None:
        parts = [Part(np.tile(np.arange(5, 45), 20), 1.0)]
        settings = TrainSettings(steps=8, batch=2, length=16, warmup=2, checkpoint_every=3)

        def stop(step: int, loss: float) -> None:
            if step == 4:
                raise KeyboardInterrupt

        whole, killed, fresh = (sample_model("llama", seed=seed) for seed in (0, 0, 7))
        for model in (whole, killed, fresh):
            sigma_reparam(model)
        train(whole, parts, settings, tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            train(killed, parts, settings, tmp_path / "killed", stop)
        train(fresh, parts, settings, tmp_path / "killed")
        theirs = whole.state_dict()
        assert any(name.endswith(".u") for name in theirs)
        for name, value in fresh.state_dict().items():
            assert torch.equal(value, theirs[name]), name
