"""Interventions have their stated effect, and the model is restored bit for bit afterward."""

import json
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary import interventions
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.samples import DISTINCT, sample_config, sample_model
from armillary.cli import app
from armillary.probe.trial import trial
from conftest import Atlases, shared

TOKENS = torch.randint(3, 99, (3, 12), generator=torch.Generator().manual_seed(0))
FIRST = {name: arm.describe(sample_config(name)).layers[0] for name in DISTINCT}
PLAIN = [n for n, layer in FIRST.items() if layer.qk_norm is None and layer.clip_qkv is None and not layer.latent]


def states(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> bool:
    now = model.state_dict()
    return all(torch.equal(now[name], tensor) for name, tensor in before.items())


def products(model: torch.nn.Module) -> dict[int, torch.Tensor]:
    logits: dict[int, torch.Tensor] = {}
    with torch.no_grad(), arm.Tap(model, lambda view: logits.setdefault(view.layer, view.products().clone())):
        model(input_ids=TOKENS)
    return logits


CHANGES: dict[str, Any] = {
    "scaled": lambda model: interventions.scaled(model, 1.7),
    "cut": lambda model: interventions.cut(model, 2),
    "rest": lambda model: interventions.cut(model, 2, keep="rest", parts=("v", "o")),
    "noise": lambda model: interventions.randomized(model, parts=("q", "k", "v", "o")),
    "spectrum": lambda model: interventions.randomized(model, keep="spectrum"),
}


class TestEveryChange:
    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "falcon", "albert", "t5", "codegen"])
    def test_it_changes_the_output_and_the_weights_come_back_bit_for_bit(self, name: str, change: str) -> None:
        model = sample_model(name)
        before, usual = states(model), output(model)
        with CHANGES[change](model):
            assert not torch.allclose(output(model), usual, atol=1e-4)
        assert same(model, before)
        assert torch.equal(output(model), usual)

    @pytest.mark.parametrize("change", CHANGES)
    def test_also_after_an_exception(self, change: str) -> None:
        model = sample_model("llama")
        before = states(model)
        with pytest.raises(RuntimeError, match="inside"), CHANGES[change](model):
            raise RuntimeError("inside")
        assert same(model, before)

    def test_a_mistake_changes_nothing(self) -> None:
        model, before = sample_model("llama"), states(sample_model("llama"))
        wrong: list[tuple[AbstractContextManager[Any], str]] = [
            (interventions.scaled(model, float("nan")), "finite"),
            (interventions.scaled(model, 2.0, layers=[7]), "no layer 7"),
            (interventions.scaled(model, 2.0, heads=[6]), "no head 0.6"),
            (interventions.cut(model, -1), "0 or more"),
            (interventions.cut(model, 1, parts=("x",)), "there are q, k, v, o"),
            (interventions.randomized(model, parts=("k",), heads=[0]), "share their keys"),
            (interventions.scaled(sample_model("qwen3"), 2.0), "normalizes q and k"),
            (interventions.scaled(sample_model("mpt/clipped"), 2.0), "clips q and k"),
            (interventions.scaled(model, 2.0, layers=[]), "no layer or no head"),
            (interventions.scaled(parametrized(), 2.0), "computed from other parameters"),
            (interventions.scaled(tied(), 2.0), "share W_q"),
            (interventions.scaled(sample_model("albert"), 2.0, layers=[0]), "shares its weights with layer 1"),
        ]
        for manager, message in wrong:
            with pytest.raises(arm.ArmillaryError, match=message), manager:
                pass
        assert same(model, before)


def parametrized() -> Any:
    model = sample_model("llama")
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].self_attn.q_proj)
    return model


def tied() -> Any:
    model = sample_model("llama")
    model.model.layers[1].self_attn.q_proj.weight = model.model.layers[0].self_attn.q_proj.weight
    return model


def output(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=TOKENS)[0]
    return logits


class TestScaling:
    @pytest.mark.parametrize("name", PLAIN)
    def test_products_are_multiplied_by_alpha_squared(self, name: str) -> None:
        """In the first layer, whose input does not change; biases included."""
        model = sample_model(name)
        usual = products(model)[0]
        with interventions.scaled(model, 1.5):
            torch.testing.assert_close(products(model)[0], 2.25 * usual, rtol=1e-4, atol=1e-4)
        with interventions.scaled(model, 1.0):
            assert torch.equal(products(model)[0], usual)

    def test_only_chosen_layers_and_heads(self) -> None:
        model = sample_model("llama")  # six heads, two key heads
        usual = products(model)
        with interventions.scaled(model, 2.0, layers=[0], heads=[1]):
            scaled = products(model)[0]
        torch.testing.assert_close(scaled[:, 1], 4 * usual[0][:, 1], rtol=1e-4, atol=1e-4)
        assert torch.equal(scaled[:, [0, 2, 3, 4, 5]], usual[0][:, [0, 2, 3, 4, 5]])
        with interventions.scaled(model, 2.0, heads=[(1, 3)]):
            assert torch.equal(products(model)[0], usual[0])
        with interventions.scaled(model, 2.0, layers=[2]):
            assert torch.equal(products(model)[1], usual[1])

    def test_entropy_falls_and_rises_on_a_real_model(self) -> None:
        folder = shared("models/stories15M")
        model, tokenizer = arm.load(folder, dtype=torch.float32), load_tokenizer(folder)
        text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
        trials = {
            alpha: trial(model, tokenizer, text, partial(interventions.scaled, alpha=alpha))
            for alpha in (0.5, 1.0, 2.0)
        }
        usual = trials[1.0].before
        np.testing.assert_array_equal(trials[1.0].after.entropy, usual.entropy)
        assert trials[1.0].after.loss == usual.loss
        assert trials[2.0].after.entropy.mean() < usual.entropy.mean() < trials[0.5].after.entropy.mean()
        losses = [run.loss for run in (usual, trials[2.0].after, trials[0.5].after) if run.loss is not None]
        assert losses[0] < min(losses[1:])
        assert len(losses) == 3
        assert (trials[2.0].layers()["change"] < 0).all()


class TestSpectra:
    def test_the_top_singular_values_are_kept(self) -> None:
        model = sample_model("gpt2")
        before = [torch.linalg.svdvals(q) for q in arm.describe(model).weights(1).q]
        with interventions.cut(model, 3, layers=[1]):
            for q, usual in zip(arm.describe(model).weights(1).q, before, strict=True):
                now = torch.linalg.svdvals(q)
                torch.testing.assert_close(now[:3], usual[:3], rtol=1e-5, atol=1e-6)
                assert float(now[3:].max()) < 1e-5
        with interventions.cut(model, 3, keep="rest", layers=[1]):
            torch.testing.assert_close(
                torch.linalg.svdvals(arm.describe(model).weights(1).q[0])[:5], before[0][3:], rtol=1e-4, atol=1e-5
            )

    @pytest.mark.parametrize("keep", ["shape", "norm", "spectrum"])
    def test_what_randomizing_keeps(self, keep: Any) -> None:
        model = sample_model("llama")
        usual = arm.describe(model).weights(0).q[2].clone()
        with interventions.randomized(model, keep=keep, seed=1):
            noise = arm.describe(model).weights(0).q[2].clone()
        with interventions.randomized(model, keep=keep, seed=1):
            assert torch.equal(arm.describe(model).weights(0).q[2], noise)
        assert not torch.allclose(noise, usual)
        if keep == "shape":
            d, e = usual.shape
            assert float(noise.var()) == pytest.approx(2 / (d + e), rel=0.25)
        else:
            assert float(noise.norm()) == pytest.approx(float(usual.norm()), rel=1e-5)
        if keep == "spectrum":
            torch.testing.assert_close(torch.linalg.svdvals(noise), torch.linalg.svdvals(usual), rtol=1e-4, atol=1e-5)


@pytest.fixture
def learned(atlases: Atlases) -> tuple[Any, arm.Atlas]:
    """A model with learned positions, and the means of what its layers read."""
    tokens = torch.randint(3, 99, (24, 12), generator=torch.Generator().manual_seed(1))
    return sample_model("gpt2"), atlases("gpt2", tokens, streams=("positions",))


class TestParts:
    def test_without_content_all_texts_have_the_same_logits(self, learned: tuple[Any, arm.Atlas]) -> None:
        model, atlas = learned
        with interventions.without(model, "content", atlas):
            logits_by_layer = products(model)
        for logits in logits_by_layer.values():  # except for the first token, which does not change
            torch.testing.assert_close(logits[0, :, 1:, 1:], logits[1, :, 1:, 1:])
        usual = products(model)
        with interventions.without(model, "content", atlas, layers=[1]):
            assert torch.equal(products(model)[0], usual[0])
            assert not torch.allclose(products(model)[1], usual[1], atol=1e-3)

    def test_without_position_a_layer_reads_x_less_p(self, learned: tuple[Any, arm.Atlas]) -> None:
        from armillary.lenses.constituents import means_of

        model, atlas = learned
        seen: dict[int, Any] = {}
        with torch.no_grad(), arm.Tap(model, lambda view: seen.setdefault(view.layer, view.x)):
            model(input_ids=TOKENS)
        with torch.no_grad(), interventions.without(model, "position", atlas, layers=[0]):
            changed: dict[int, Any] = {}
            with arm.Tap(model, lambda view: changed.setdefault(view.layer, view.x)):
                model(input_ids=TOKENS)
        expected = seen[0] - means_of(atlas).pos[0].float()
        expected[:, 0] = seen[0][:, 0]
        torch.testing.assert_close(changed[0], expected, rtol=1e-5, atol=1e-5)

    def test_mistakes(self, learned: tuple[Any, arm.Atlas]) -> None:
        model, atlas = learned
        beyond = interventions.without(model, "content", atlas, layers=[9])
        with pytest.raises(arm.ArmillaryError, match="no layer 9"), beyond:
            pass
        longer = torch.randint(3, 99, (1, 20))
        with interventions.without(model, "content", atlas), pytest.raises(arm.ArmillaryError, match="`length=20`"):
            model(input_ids=longer)
        with torch.no_grad():
            cache = model(input_ids=TOKENS[:1, :5], use_cache=True).past_key_values
        with (
            interventions.without(model, "content", atlas),
            pytest.raises(arm.ArmillaryError, match="use_cache=False"),
        ):
            model(input_ids=TOKENS[:1, 5:6], past_key_values=cache)


class TestCommand:
    def test_scale_try_and_write(self, tmp_path: Path) -> None:
        folder, out, page = arm.bundled("llama"), tmp_path / "hot", tmp_path / "page.html"
        arguments = [
            "intervene",
            str(folder),
            "--scale",
            "2.0",
            "--layers",
            "0-2",
            "--text",
            "Return the value of the key.",
        ]
        run = CliRunner().invoke(app, [*arguments, "--generate", "5", "--out", str(out), "--html", str(page), "--json"])
        assert run.exit_code == 0, run.output
        printed = json.loads(run.stdout)
        assert printed["after"]["loss"] != printed["before"]["loss"]
        assert printed["before"]["written"].startswith("Return the value of the key.")
        assert all(row["change"] < 0 for row in printed["entropy"][:1])
        assert "Before: attention" in page.read_text(encoding="utf-8")
        ours, theirs = arm.describe(out).weights(1).q[0], arm.describe(folder).weights(1).q[0]
        torch.testing.assert_close(ours.float(), 2 * theirs.float())
        assert torch.equal(arm.describe(out).weights(3).q[0], arm.describe(folder).weights(3).q[0])
        table = CliRunner().invoke(app, arguments)
        assert "loss per token" in table.stdout

    def test_remove_a_part(self, tmp_path: Path) -> None:
        atlas = tmp_path / "atlas"
        arm.scan(arm.bundled("gpt2"), out=atlas, streams=("positions",), length=32, sequences=16)
        call = ["intervene", str(arm.bundled("gpt2")), "--remove", "content", "--text", "Return the value of the key."]
        run = CliRunner().invoke(app, [*call, "--atlas", str(atlas), "--json"])
        printed = json.loads(run.stdout)
        assert printed["after"]["loss"] > printed["before"]["loss"]
        assert "--atlas" in str(CliRunner().invoke(app, call).exception)
        other = ["intervene", str(arm.bundled("llama")), "--remove", "content", "--text", "Return the value of it."]
        wrong = CliRunner().invoke(app, [*other, "--atlas", str(atlas)])
        assert "another model" in str(wrong.exception)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "one of --scale, --cut"),
            (["--scale", "2", "--cut", "1"], "one of --scale, --cut"),
            (["--scale", "2"], "to try the change on"),
            (["--scale", "2", "--text", "a b c d", "--layers", "3-1"], "0,5,11 or 0-3"),
            (["--remove", "content", "--out", "x"], "nothing to write"),
            (["--scale", "2", "--out", "x", "--generate", "3"], "need a text"),
            (["--scale", "2", "--parts", "q", "--text", "a b c d"], "--parts has no effect"),
            (["--cut", "2", "--seed", "1", "--text", "a b c d"], "--seed has no effect"),
            (["--scale", "2", "--layers", "0-99999999999", "--text", "a b c d"], "beyond any model"),
        ],
    )
    def test_mistakes(self, arguments: list[str], message: str) -> None:
        run = CliRunner().invoke(app, ["intervene", str(arm.bundled("llama")), *arguments])
        assert message in str(run.exception)
