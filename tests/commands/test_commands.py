"""The commands, as a person or a script meets them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import SAMPLES, sample_model
from armillary.cli import app
from armillary.observe import verified

ROOT = Path(__file__).resolve().parents[2]
runner = CliRunner()


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


SLOW = {
    "torch",
    "transformers",
    "numpy",
    "scipy",
    "pandas",
    "xarray",
    "zarr",
    "plotly",
    "sympy",
    "starlette",
    "uvicorn",
}
"""Packages that take long to import."""


def test_the_help_page_imports_nothing_that_takes_long() -> None:
    """What it takes in seconds is measured by bench/startup.py."""
    help_page = "import atexit, sys; sys.argv = ['armillary', '--help']; from armillary.cli import main; "
    said = python(f"{help_page} atexit.register(lambda: print('modules:', *sys.modules)); main()")
    page, _, modules = said.partition("modules:")
    assert "scan" in page
    assert not SLOW & set(modules.split())


def test_public_names_exist_and_are_listed() -> None:
    assert sorted(arm.__all__) == sorted({*arm._HOMES, "interventions"})
    assert all(getattr(arm, name) is not None for name in arm.__all__)
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = arm.nothing_here


def test_inspect_prints_the_anatomy(tmp_path: Path) -> None:
    sample_model("gpt_oss").save_pretrained(tmp_path)
    shown = runner.invoke(app, ["inspect", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for words in ("family gpt_oss", "3 layers", "yarn", "window 5", "a sink per head"):
        assert words in " ".join(shown.output.split())


def test_inspect_json_is_the_description(tmp_path: Path) -> None:
    sample_model("llama").save_pretrained(tmp_path)
    found = json.loads(runner.invoke(app, ["inspect", str(tmp_path), "--json", "--weights"]).output)
    assert [layer["kv_heads"] for layer in found["layers"]] == [2, 2, 2]
    assert found["layers"][0]["position"]["kind"] == "Rotary"
    assert found["notes"] == ["all weights are finite"]


def test_inspect_verifies_a_folder(tmp_path: Path) -> None:
    sample_model("qwen3").save_pretrained(tmp_path)
    shown = runner.invoke(app, ["inspect", str(tmp_path), "--verify"])
    assert shown.exit_code == 0, shown.output
    assert "the same, bit for bit" in shown.output
    assert "3 of 3" in shown.output
    found = json.loads(runner.invoke(app, ["inspect", str(tmp_path), "--verify", "--json"]).stdout)["verified"]
    assert found["passed"]
    assert found["worst"]["logits"] < 1e-5


def test_inspect_tells_what_is_missing_of_an_unknown_family(tmp_path: Path) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model("hyperclovax", num_hidden_layers=2).save_pretrained(tmp_path)
    shown = runner.invoke(app, ["inspect", str(tmp_path)])
    assert shown.exit_code == 0
    assert "no adapter knows the family 'hyperclovax'" in shown.output


def test_doctor_lists_every_family_as_verified() -> None:
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == 0
    for family in arm.known_families():
        assert family in shown.output
    assert "not verified" not in shown.output


def test_the_shipped_record_is_complete_and_made_with_the_tested_versions() -> None:
    record = verified.shipped()
    assert list(record.samples) == list(SAMPLES)
    assert all(check.passed and check.identical for check in record.samples.values())
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    for name in ("torch", "transformers", "safetensors", "numpy"):
        assert record.versions[name].split("+")[0] == pinned[name]


def test_the_page_of_families_is_what_the_command_prints() -> None:
    shown = runner.invoke(app, ["doctor", "--markdown"])
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert shown.stdout == page, "armillary doctor --markdown > docs/families.md"
    assert f"{len(arm.known_families())} families" in page


def test_doctor_verifies_here_and_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: SAMPLES[name] for name in ("llama", "bloom")}
    monkeypatch.setattr("armillary.anatomy.samples.SAMPLES", few)
    shown = runner.invoke(app, ["doctor", "--verify", "--record", str(tmp_path / "record.json"), "--json"])
    assert shown.exit_code == 0
    assert list(json.loads((tmp_path / "record.json").read_text())["samples"]) == ["llama", "bloom"]


def test_doctor_refuses_to_record_nothing(tmp_path: Path) -> None:
    refused = runner.invoke(app, ["doctor", "--record", str(tmp_path / "record.json")])
    assert isinstance(refused.exception, arm.ArmillaryError)
