"""A user's mistake is one clear sentence and exit code 2, never a stack trace."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import armillary as arm
from armillary.anatomy.samples import sample_config, sample_model


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from armillary.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=None, check=False)


def complaint(*arguments: str | Path) -> str:
    """What the command says; it must be one sentence and exit code 2."""
    ran = run(*arguments)
    assert ran.returncode == 2, ran
    assert "Traceback" not in ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith("armillary: ")]
    assert len(lines) == 1
    assert not ran.stdout
    return lines[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    sample_model("llama").save_pretrained(path)
    return path


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no folder" in complaint("inspect", tmp_path / "nowhere")


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


def test_a_pickle_is_loaded_as_weights_only(folder: Path) -> None:
    model = sample_model("llama")
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    assert "only as pickle" in complaint("inspect", folder)
    assert torch.equal(arm.load(folder).lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("protocol", ["torch", "plain"])
def test_code_in_a_pickle_never_runs(folder: Path, protocol: str) -> None:
    (folder / "model.safetensors").unlink()
    if protocol == "torch":
        torch.save({"model.embed_tokens.weight": Evil()}, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(arm.ArmillaryError, match="cannot be loaded"):
        arm.load(folder)


def test_remote_code_is_refused_unless_asked(folder: Path) -> None:
    edit_config(folder, model_type="homemade", auto_map={"AutoConfig": "homemade.Config"})
    (folder / "homemade.py").write_text("raise SystemExit('code from a checkpoint ran')")
    assert "not run unless you ask" in complaint("inspect", folder)


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


@pytest.mark.parametrize("name", ["gpt2", "gptj", "bert", "opt", "gpt_neo", "roberta"])
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


def test_quantised_weights_are_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.weight"
    weights[name] = weights[name].to(torch.int8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(arm.ArmillaryError, match="quantised"):
        arm.describe(folder)


def test_layers_and_things_that_do_not_exist() -> None:
    with pytest.raises(arm.ArmillaryError, match="no layer 7: llama has layers 0 to 2"):
        arm.describe(sample_model("llama")).weights(7)
    with pytest.raises(arm.ArmillaryError, match="holds no weights"):
        arm.describe(sample_config("llama")).weights(0)
    with pytest.raises(arm.ArmillaryError, match="cannot describe a list"):
        arm.describe([1])
    with pytest.raises(arm.ArmillaryError, match="no transformers configuration"):
        arm.Tap(torch.nn.Linear(2, 2))
