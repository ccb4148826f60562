"""A user's mistake is one clear sentence and exit code 2, never a stack trace."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import armillary as arm
from armillary.anatomy.checkpoint import hub_reachable
from armillary.anatomy.loading import not_finite_weights
from armillary.anatomy.samples import SMALL, sample_config, sample_model
from program import complaint, edit_config, process, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    sample_model("llama").save_pretrained(path)
    return path


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no folder" in complaint("inspect", tmp_path / "nowhere", using=process)


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    assert "is a file" in complaint("inspect", folder / "config.json")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "has no config.json" in complaint("inspect", folder)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "\x00\x01"])
def test_a_config_that_is_not_settings(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(arm.ArmillaryError, match=r"config\.json"):
        arm.describe(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_safetensors_file(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    for use in (arm.describe, arm.load):
        with pytest.raises(arm.ArmillaryError, match="truncated or not a safetensors file"):
            use(folder)


def test_a_corrupt_safetensors_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 5000)
    assert "not a safetensors file" in complaint("inspect", folder)


def test_a_missing_shard(tmp_path: Path) -> None:
    sample_model("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(arm.ArmillaryError, match=lost.name):
        arm.describe(tmp_path)


def test_weights_of_another_model(folder: Path) -> None:
    edit_config(folder, num_attention_heads=12, num_key_value_heads=12)
    with pytest.raises(arm.ArmillaryError, match="do not belong together"):
        arm.describe(folder)


def test_weights_of_another_family(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    weights = {name.replace("self_attn", "attention"): tensor for name, tensor in stored.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(arm.ArmillaryError, match="do not belong together"):
        arm.describe(folder)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit('code from a pickle ran')",))


@pytest.mark.parametrize("protocol", ["torch", "plain"])
def test_code_in_a_pickle_never_runs(folder: Path, protocol: str) -> None:
    (folder / "model.safetensors").unlink()
    if protocol == "torch":
        torch.save({"model.embed_tokens.weight": Evil()}, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(arm.ArmillaryError, match="armillary convert"):
        arm.load(folder)
    before = sorted(path.name for path in folder.iterdir())
    assert "cannot be read as plain tensors" in complaint("convert", folder)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_remote_code_is_refused_unless_asked(folder: Path) -> None:
    edit_config(folder, model_type="homemade", auto_map={"AutoConfig": "homemade.Config"})
    (folder / "homemade.py").write_text("raise SystemExit('code from a checkpoint ran')")
    assert "not run by default" in complaint("inspect", folder)


def test_a_family_that_transformers_does_not_know(folder: Path) -> None:
    edit_config(folder, model_type="homemade")
    assert "homemade" in complaint("inspect", folder)


def test_numbers_that_are_not_finite_are_named_and_the_user_decides(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.q_proj.weight"][3 * 8 + 2, 5] = float("nan")  # head 3 of 6, width 8
    weights["model.layers.2.self_attn.v_proj.weight"][8, 0] = float("inf")  # key head 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    said = complaint("inspect", folder, "--weights")
    assert "layer 1: W_q of head 3" in said
    assert "layer 2: W_v of key head 1" in said
    with pytest.raises(arm.ArmillaryError, match="W_q of head 3"):
        arm.load(folder)
    assert arm.load(folder, not_finite="allow") is not None
    allowed = run("inspect", folder, "--weights", "--allow-not-finite")
    assert allowed.returncode == 0
    assert "layer 1: W_q of head 3" in allowed.stdout


@pytest.mark.parametrize("name", ["gpt2", "gptj", "bert", "opt", "gpt_neo", "roberta", "mpt"])
def test_a_sequence_longer_than_the_models_positions(name: str) -> None:
    model = sample_model(name)
    with torch.no_grad(), arm.Tap(model):
        model(torch.full((1, 64), 7))
        with pytest.raises(arm.ArmillaryError, match=r"65 tokens, but .* 64 positions: cut the text to 64"):
            model(torch.full((1, 65), 7))


def test_rotary_models_may_run_beyond_their_context() -> None:
    model = sample_model("llama")
    with torch.no_grad(), arm.Tap(model):
        model(torch.full((1, 80), 7))


def test_quantized_weights_are_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.weight"
    weights[name] = weights[name].to(torch.int8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(arm.ArmillaryError, match="quantized"):
        arm.describe(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": "six"},
        {"num_attention_heads": 0},
        {"hidden_size": None},
        {"num_hidden_layers": 0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
        {"model_type": "homemade", "auto_map": "x.y"},
        {"head_dim": 4},
    ],
    ids=str,
)
def test_configurations_that_make_no_sense(folder: Path, change: dict[str, object]) -> None:
    edit_config(folder, **change)
    with pytest.raises(arm.ArmillaryError):
        arm.describe(folder)


def test_the_command_says_it_too(folder: Path) -> None:
    edit_config(folder, num_attention_heads="six")
    assert "cannot be used" in complaint("inspect", folder)


def test_missing_weights_are_never_filled_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(arm.ArmillaryError, match=r"lacks weights .*layers\.1\.mlp\.up_proj"):
        arm.load(folder)
    edit_config(folder, num_hidden_layers=99)
    with pytest.raises(arm.ArmillaryError, match=r"in layer 3 \(model\.layers\.3\): the model has no weight"):
        arm.load(folder)


def test_an_encoder_loads_as_what_it_is(tmp_path: Path) -> None:
    model = sample_model("t5")
    model.save_pretrained(tmp_path)
    loaded = arm.load(tmp_path)
    assert type(loaded) is type(model)
    assert run("inspect", tmp_path, "--verify").returncode == 0


@pytest.mark.parametrize("tensor", ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"])
def test_numbers_outside_attention_must_be_finite_too(folder: Path, tensor: str) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[tensor][3, 3] = float("inf")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(arm.ArmillaryError, match=tensor):
        arm.load(folder)


def test_sinks_and_norms_must_be_finite_too() -> None:
    for name, parameter, said in (
        ("gpt_oss", "model.layers.1.self_attn.sinks", "layer 1: the sink of head 2"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight", "layer 0: the q norm of head 0"),
    ):
        model = sample_model(name)
        with torch.no_grad():
            model.get_parameter(parameter)[2] = torch.nan
        assert said in not_finite_weights(model)


def test_an_unknown_family_is_checked_too(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("hyperclovax", **{**SMALL, "num_key_value_heads": 2})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    assert "layers.0.self_attn.q_proj" in complaint("inspect", tmp_path, "--weights")


def test_values_that_are_not_choices(folder: Path) -> None:
    with pytest.raises(Exception, match=r"'refuse'.*'allow'"):  # the types are checked first in these tests
        arm.load(folder, not_finite="ignore")  # type: ignore[arg-type]
    with pytest.raises(arm.ArmillaryError, match="no model was given"):
        arm.describe("")
    uses: tuple[tuple[Callable[[Any], object], str], ...] = (
        (arm.Tap, str(folder)),
        (arm.verify, str(folder)),
        (arm.register, "llama"),
    )
    for use, given in uses:
        with pytest.raises((arm.ArmillaryError, Exception), match=r"loaded model|Adapter|type"):
            use(given)


def test_a_path_is_printed_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / "w[red]x[/bold]"
    sample_model("llama").save_pretrained(odd)
    assert "w[red]x[/bold]" in run("inspect", odd).stdout


def test_a_name_that_is_nothing_is_told_at_once() -> None:
    """Neither a folder nor, on a machine that cannot reach the hub or can, a model there."""
    ran = process("inspect", "nobody-at-all/no-such-model-7")
    assert ran.returncode == 2
    assert "neither a folder here nor a model" in ran.stderr
    if not hub_reachable():
        assert len(ran.stderr.splitlines()) == 1


def test_a_gguf_file_needs_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(arm.ArmillaryError, match=r"nothing\.gguf"):
        arm.load(tmp_path, gguf_file="nothing.gguf")


def test_a_model_that_its_configuration_does_not_describe() -> None:
    changes: tuple[Callable[[Any], object], ...] = (
        lambda m: m.model.layers.append(m.model.layers[0]),
        lambda m: m.model.layers.__delitem__(2),
    )
    for change in changes:
        model = sample_model("llama")
        change(model)
        with pytest.raises(arm.ArmillaryError, match="they do not belong together"):
            arm.Tap(model)


def test_layers_and_things_that_do_not_exist() -> None:
    with pytest.raises(arm.ArmillaryError, match="no layer 7: llama has layers 0 to 2"):
        arm.describe(sample_model("llama")).weights(7)
    with pytest.raises(arm.ArmillaryError, match="has no weights"):
        arm.describe(sample_config("llama")).weights(0)
    with pytest.raises(arm.ArmillaryError, match="cannot describe a list"):
        arm.describe([1])
    with pytest.raises(arm.ArmillaryError, match="no transformers configuration"):
        arm.Tap(torch.nn.Linear(2, 2))
