"""The README is true: its Python runs, its commands exist, its numbers are the program's."""

import re
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.registry import _ADAPTERS
from armillary.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_python_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm, "scan", partial(arm.scan, sequences=16))  # as it stands there, on less text
    scan, change, watch, tap, own_family = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict[str, object] = {"input_ids": torch.arange(5, 15)[None]}
    exec(scan, names)
    assert "prev_mass" in capsys.readouterr().out
    exec(change, names)
    exec(watch, names)
    assert float(names["loss"].detach()) > 0  # type: ignore[attr-defined]
    exec(tap, names)
    assert "0 torch.Size([1, 6, 10, 10])" in capsys.readouterr().out
    try:
        exec(own_family, {})
        assert "hyperclovax" in arm.known_families()
    finally:
        _ADAPTERS.pop("hyperclovax", None)


def test_its_run_is_one() -> None:
    from armillary.training.config import from_dict

    (written,) = re.findall(r"```toml\n(.*?)```", README, re.S)
    assert from_dict(tomllib.loads(written)).model.position == "p-rope"


def test_its_commands_exist() -> None:
    for command in set(re.findall(r"`armillary ([a-z-]+)", README)):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    for target in re.findall(r"^    make (\w+)", README, re.M):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_its_number_of_families() -> None:
    assert f"{len(arm.known_families())} families" in README


def test_its_table_of_ratios_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import run

    assert run.rendered(README) == README
