"""Ablation measures what it says: by hand, by autograd, and on a circuit that was put together by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import DISTINCT, sample_model
from armillary.atlas.effects import FILE
from armillary.cli import app
from armillary.errors import ArmillaryError
from armillary.interventions import ablated, mean_outputs
from armillary.interventions.ablation import output_of
from armillary.lenses.causes import _of_effect, label_causes
from armillary.lenses.composition import composition
from armillary.lenses.sources import feeds
from armillary.observe.tap import Tap
from armillary.probe.ablation import Corpus, effects_on, gradient_effects
from armillary.probe.losses import sequence_losses
from armillary.probe.sources import edges_of
from armillary.probe.trial import predicts
from handmade import copies, copying_llama

TOKENS = torch.randint(5, 90, (4, 14), generator=torch.Generator().manual_seed(0)).numpy()
CAUSAL = [name for name in DISTINCT if "/" not in name and hasattr(sample_model(name), "lm_head")]


BENT = ("opt", "gpt_oss", "qwen3_next", "llama4_text", "deepseek_v3")
"""Families with experts, and with a ReLU: their losses have kinks."""


def bits(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "gemma2", "qwen3_next"])
@pytest.mark.parametrize("to", ["mean", "zero", "resampled"])
def test_exact_effects_are_those_of_the_whole_model(name: str, to: Any) -> None:
    """Zero against zeroed columns of W_o; the others against the context manager; nothing changes in the model."""
    model = sample_model(name)
    before, corpus = bits(model), Corpus(TOKENS, TOKENS, 1)
    effects = effects_on(model, corpus, to=to, exact=None, batch=4)
    ids = torch.from_numpy(TOKENS)
    means = mean_outputs(model, TOKENS) if to == "mean" else None
    for head in [(0, 1), (1, 0)]:
        with torch.no_grad():
            whole = sequence_losses(model(input_ids=ids).logits, ids, 1)
            with ablated(model, [head], to=to, means=means):
                without = sequence_losses(model(input_ids=ids).logits, ids, 1)
        assert np.allclose(effects.exact[head], without - whole, atol=1e-6)
        assert np.abs(effects.exact[head]).max() > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any("forward" in vars(module) or module._forward_hooks for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, sample_model(name)(input_ids=ids).logits)


def test_zero_is_the_same_as_a_head_without_output_weights() -> None:
    model, other = sample_model("llama"), sample_model("llama")
    e, ids = arm.describe(model).layers[0].head_width, torch.from_numpy(TOKENS)
    with torch.no_grad():
        other.model.layers[1].self_attn.o_proj.weight[:, 2 * e : 3 * e] = 0.0
        with ablated(model, [(1, 2)]):
            assert torch.allclose(model(input_ids=ids).logits, other(input_ids=ids).logits, atol=1e-6)


FEW = ("llama", "gpt2", "gemma2", "opt", "qwen3_next")
"""One of each norm layout and encoding; the other families are slow tests."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in CAUSAL])
def test_estimates_are_derivatives_for_every_family(name: str) -> None:
    """Against a small step: the head's output moved a little toward its mean."""
    model = sample_model(name)
    ids, means = torch.from_numpy(TOKENS), mean_outputs(model, TOKENS)
    estimate = gradient_effects(model, ids, 1, "mean", means)
    head, step = (1, 0), 1e-2
    outputs: dict[int, torch.Tensor] = {}
    with torch.no_grad(), Tap(model, lambda view: outputs.update({view.layer: output_of(view)})):
        model(input_ids=ids)

    def loss(share: float) -> np.ndarray:
        moved = torch.lerp(outputs[1].double(), means.layers[1].expand_as(outputs[1]), share)[:, :, 0]

        def receive(view: Any) -> None:
            if view.layer == 1:
                view.output[:, :, 0] = moved.to(view.output)

        with torch.no_grad(), Tap(model, receive, own=True):
            return sequence_losses(model(input_ids=ids).logits, ids, 1)

    numeric = (loss(step) - loss(-step)) / (2 * step)
    near = np.isclose(estimate[:, head[0], head[1]], numeric, atol=2e-4 + 0.02 * np.median(np.abs(numeric)))
    assert near.sum() >= (3 if name in BENT else 4)  # a token may change its expert, or cross a ReLU, within the step


def test_mistakes_are_named() -> None:
    model = sample_model("llama")
    with pytest.raises(ArmillaryError, match="there is no head L7H0"), ablated(model, [(7, 0)]):
        pass
    with (
        pytest.raises(ArmillaryError, match="mean outputs of the heads are not known"),
        ablated(model, [(0, 0)], to="mean"),
    ):
        pass
    assert not predicts(sample_model("bert"))


# an induction circuit that was put together by hand ---------------------------------------------------------------


@pytest.fixture(scope="module")
def circuit() -> Any:
    return copying_llama()


def second_copy(model: Any, tokens: torch.Tensor) -> float:
    with torch.no_grad():
        return float(sequence_losses(model(input_ids=tokens).logits, tokens, 21).mean())


def test_the_key_of_the_induction_head_comes_from_the_previous_token_head(circuit: Any) -> None:
    own = feeds(edges_of(circuit, copies(4).numpy()), 1, 0).set_index(["side", "source"])["share"]
    assert own["key", "L0H0"] > 0.9
    assert own["query", "embedding"] > 0.9


def test_ablating_either_head_kills_copying(circuit: Any) -> None:
    tokens = copies()
    whole, chance = second_copy(circuit, tokens), np.log(42)
    assert whole < 0.1
    for head in ((0, 0), (1, 0)):
        with ablated(circuit, [head], to="mean", means=mean_outputs(circuit, copies(64, seed=1).numpy())):
            assert second_copy(circuit, tokens) > 0.8 * chance
    with ablated(circuit, [(1, 1)]):  # another head does not
        assert second_copy(circuit, tokens) < 0.1


def test_composition_finds_the_pair(circuit: Any) -> None:
    table = composition(arm.describe(circuit)).dropna()
    pair = table[(table["from_head"] == 0) & (table["to_head"] == 0) & (table["kind"] == "key")].iloc[0]
    others = table.drop(pair.name)
    assert pair["z"] > 10
    assert pair["z"] > others[others["kind"] == "key"]["z"].max()


# kept beside the atlas ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("ablated")
    model = copying_llama()
    model.save_pretrained(folder / "model")
    arm.scan(
        str(folder / "model"),
        copies(16),
        streams=("positions", "attention", "constituents", "patterns", "sources"),
        out=folder / "atlas",
    )
    return folder / "model", folder / "atlas"


def test_effects_are_columns_of_heads_and_name_the_circuit(scanned: tuple[Path, Path]) -> None:
    model, folder = scanned
    ran = CliRunner().invoke(app, ["ablate", str(model), str(folder), "--exact"])
    assert ran.exit_code == 0, ran.output
    assert "Without each head" in ran.output
    assert (folder / FILE).is_file()
    heads = arm.open_atlas(folder).heads.set_index(["layer", "head"])
    effects = heads["repeat_ablation_loss"]
    assert set(effects.sort_values().index[-2:]) == {(0, 0), (1, 0)}
    assert effects.loc[(1, 0)] > 1
    assert heads["ablation_se"].notna().all()
    assert heads["direct_logit"].idxmax() == (1, 0)
    causes = label_causes(arm.open_atlas(folder))
    assert {"induction", "broad"} <= set(causes["label"])


def test_edges_are_printed(scanned: tuple[Path, Path]) -> None:
    _, folder = scanned
    ran = CliRunner().invoke(app, ["edges", str(folder), "L1H0"])
    assert ran.exit_code == 0, ran.output
    assert "What wrote the key of L1H0" in ran.output
    key = ran.output.split("What wrote the key")[1].splitlines()
    assert "L0H0" in "".join(key[:5])
    assert CliRunner().invoke(app, ["edges", str(folder), "L9H0"]).exit_code != 0


def test_permuted_labels_decide_whether_a_label_matters(scanned: tuple[Path, Path]) -> None:
    """A label that was given at random makes no difference; one given to the heads that matter does."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"layer": np.repeat(np.arange(6), 12), "head": np.tile(np.arange(12), 6)})
    table["ablation_loss"] = generator.normal(size=len(table))
    table["label"] = generator.permutation(["local", "broad", "self"] * 24)
    assert {row["verdict"] for row in _of_effect(table, "ablation_loss", 0)} == {"no difference"}
    table["label"] = np.where(table["ablation_loss"] > 1, "induction", "broad")
    assert {row["label"]: row["verdict"] for row in _of_effect(table, "ablation_loss", 0)} == {
        "induction": "more",
        "broad": "less",
    }
