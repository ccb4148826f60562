"""Every command that loads a model takes the same options, and passes them on; heads and aliases are as people type."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

import armillary as arm
from armillary.anatomy.options import ModelOptions, SourceOptions, parameters
from armillary.anatomy.samples import sample_model
from armillary.cli import PANELS, app
from armillary.commands.parameters import model_args
from armillary.probe.dossier import parse_head
from program import complaint, run

LOADS = {
    *("scan", "demo", "merge", "map", "observe", "inspect", "doctor", "show", "view", "verify-heads", "frequencies"),
    *("intervene", "rope", "train", "timeline", "experiment run"),
}
"""Commands that load a model (train builds one), from a folder, a hub id, or for an atlas."""
READS = {"weights", "convert"}
"""Commands that read a model's files and load none."""
OPTIONS = {
    *("--device", "--dtype", "--revision", "--attn-implementation", "--device-map", "--trust-remote-code"),
    *("--model-arg", "--adapter"),
}


def commands(group: Any = None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of the program by its name."""
    group = group or get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_that_loads_a_model_takes_them_all_and_no_other_does(name: str) -> None:
    given = {flag: option for option in COMMANDS[name].params for flag in option.opts}
    if name in LOADS:
        assert set(given) >= OPTIONS
        words = {f"--{key.replace('_', '-').replace('args', 'arg')}": p.words for key, (_, p) in facts().items()}
        assert {flag: given[flag].help for flag in OPTIONS} == words
    else:
        assert not {"--device", "--dtype", "--device-map", "--model-arg"} & set(given)
        assert name in READS or not {"model", "source"} & {option.name for option in COMMANDS[name].params}


def facts() -> dict[str, Any]:
    return parameters(ModelOptions)


def test_the_source_of_a_command_that_loads_names_no_option_itself() -> None:
    """Options are declared once: a command's own code does not mention --device and the like."""
    for name in LOADS - {"experiment run"}:
        callback = COMMANDS[name].callback
        own = inspect.getclosurevars(inspect.unwrap(callback)).nonlocals.get("function", callback)
        assert not set(parameters(ModelOptions)) & set(inspect.signature(own).parameters)


def test_weights_takes_those_that_choose_files() -> None:
    given = {flag for option in COMMANDS["weights"].params for flag in option.opts}
    assert {f"--{name.replace('_', '-')}" for name in parameters(SourceOptions)} <= given


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("small") / "model"
    sample_model("llama").save_pretrained(place)
    return place


class TestTheyArrive:
    def test_dtype_attention_and_arguments_of_from_pretrained(self, folder: Path) -> None:
        options: dict[str, Any] = {
            "dtype": "bfloat16",
            "attn_implementation": "eager",
            "model_args": {"rms_norm_eps": 0.5},
        }
        model = arm.load(folder, **options)
        assert model.dtype == torch.bfloat16
        assert model.config._attn_implementation == "eager"
        assert model.model.norm.variance_epsilon == 0.5  # as from_pretrained does with names of the configuration
        with pytest.raises(arm.ArmillaryError, match="unexpected keyword argument 'nonsense'"):
            arm.load(folder, model_args={"nonsense": 1})

    def test_on_the_command_line(self, folder: Path) -> None:
        assert "there is no device 'nowhere' here" in complaint("rope", folder, "--device", "nowhere")
        assert "there is no dtype 'float8'" in complaint("inspect", folder, "--verify", "--dtype", "float8")
        assert "contradict each other" in complaint(
            "inspect", folder, "--verify", "--device", "cpu", "--device-map", "auto"
        )
        said = complaint("inspect", folder, "--verify", "--attn-implementation", "psychic")
        assert "psychic" in said
        said = complaint("inspect", folder, "--verify", "--model-arg", "device=cpu")
        assert "device is an option of its own: give --device cpu" in said
        assert "is not NAME=VALUE" in complaint("inspect", folder, "--model-arg", "=3")
        ran = run("inspect", folder, "--verify", "--dtype", "bfloat16", "--attn-implementation", "eager")
        assert ran.returncode == 0, ran.stderr

    def test_options_without_effect_are_refused(self, folder: Path, tmp_path: Path) -> None:
        assert "--revision main has no effect here: without --verify no model runs" in complaint(
            "doctor", "--revision", "main"
        )
        (tmp_path / "run.toml").write_text("[training]\nsteps = 1\n")
        said = complaint("train", tmp_path / "run.toml", "--adapter", folder)
        assert "has no effect here: training builds its model" in said
        tokens = torch.zeros(1, 8, dtype=torch.int64)
        with pytest.raises(arm.ArmillaryError, match="`device=cuda` has no effect here: the model is already loaded"):
            arm.scan(sample_model("llama"), tokens, device="cuda")

    def test_values_of_model_arguments(self) -> None:
        given = ["a=3", "b=0.5", "c=true", "d=None", "e=text", 'f={"x": [1]}', "g=a=b"]
        assert model_args(given) == {
            **dict(a=3, b=0.5, c=True, d=None, e="text", f={"x": [1]}, g="a=b"),
        }
        assert model_args([]) is None


class TestHabits:
    @pytest.mark.parametrize("written", ["L3H5", "l3h5", "3.5", "3 5", "3:5", " 3.5 "])
    def test_a_head_as_people_write_it(self, written: str) -> None:
        assert parse_head(written) == (3, 5)

    @pytest.mark.parametrize("written", ["35", "L3", "L3.5", "3H5", "3.", ".5", "L-1H2", "3.5.1", "", "L3H5H6"])
    def test_what_is_no_head(self, written: str) -> None:
        with pytest.raises(arm.ArmillaryError, match=r"is not a head: write LAYER.HEAD, as in 3.5, or L3H5"):
            parse_head(written)

    def test_every_panel_of_the_help_in_order(self) -> None:
        panels = ["Look at a model", "Look at an atlas", "Change and train", "The papers"]
        assert list(PANELS) == panels
        shown = run("--help").stdout
        assert sorted(shown.index(panel) for panel in panels) == [shown.index(panel) for panel in panels]
        program: Any = get_command(app)
        assert {command.rich_help_panel for command in program.commands.values()} == set(panels)
        assert next(iter(COMMANDS)) == "scan"

    def test_short_names(self, folder: Path, tmp_path: Path) -> None:
        line = ("scan", folder, "--corpus", "builtin:random", "--limit", "3", "--batch-size", "2", "--length", "12")
        ran = run(*line, "--streams", "attention", "-o", tmp_path / "atlas")
        assert ran.returncode == 0, ran.stderr
        settings = arm.open_atlas(tmp_path / "atlas").settings
        assert (settings["sequences"], settings["batch"]) == (3, 2)
        shown = [run("show", tmp_path / "atlas", *head).stdout for head in (["L1H2"], ["1.2"], ["1", "2"])]
        assert shown[0]
        assert shown[0] == shown[1] == shown[2]
        assert "--limit 0 cannot be used: it should be at least 1" in complaint(*line[:4], "--limit", "0", "-o", "x")

    def test_heads_of_their_own_layers_are_changed(self, folder: Path, tmp_path: Path) -> None:
        line = ("intervene", folder, "--scale", "2", "-o", tmp_path / "changed", "--heads")
        assert run(*line, "L0H1,2.3").returncode == 0
        before, after = arm.describe(folder), arm.describe(tmp_path / "changed")
        changed = {
            (layer, head)
            for layer in range(3)
            for head in range(6)
            if not torch.equal(before.weights(layer).q[head], after.weights(layer).q[head])
        }
        assert changed == {(0, 1), (2, 3)}
        line = ("intervene", folder, "--scale", "2", "-o", tmp_path / "other", "--heads")
        assert "names some heads with their layers and some without" in complaint(*line, "L0H1,2")
        assert "already names the layers" in complaint(*line, "L0H1", "--layers", "0")
