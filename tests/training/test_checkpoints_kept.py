"""Checkpoints kept by a run: the steps asked for, complete, none lost or doubled by a kill, their disk said before."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_runs import config
from transformers import AutoModelForCausalLM, AutoTokenizer

import armillary as arm
from armillary.progress import Progress
from armillary.training.checkpoints import CheckpointConfig, checkpoint_folder, kept_checkpoints, kept_steps
from armillary.training.config import from_dict
from armillary.training.run import build, read_text, train_run


class Notes(Progress):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def note(self, sentence: str) -> None:
        self.sentences.append(sentence)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (dict(), []),
        (dict(keep="log"), [0, 1, 2, 4, 8, 16, 20]),
        (dict(every=8), [0, 8, 16, 20]),
        (dict(keep="log", every=8), [0, 1, 2, 4, 8, 16, 20]),
        (dict(keep=[7, 3, 3]), [3, 7]),
    ],
)
def test_which_steps(settings: dict[str, Any], expected: list[int]) -> None:
    assert kept_steps(CheckpointConfig(**settings), 20) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(keep="all"), "can be 'last', 'log' or a list"),
        (dict(keep=[501]), "the steps 0 to 500"),
        (dict(every=0), "1 or more"),
        (dict(keep=["1"]), "is not"),
    ],
)
def test_mistakes(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(arm.ArmillaryError, match=message):
        from_dict({"checkpoints": settings})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict())


@pytest.mark.parametrize("kind", ["none", "sigma-reparam"])
def test_kept_models_load_and_are_those_of_their_steps(tmp_path: Path, kind: str) -> None:
    chosen = config(tmp_path, checkpoints=dict(keep="log"), regularizer=dict(kind=kind))
    notes = Notes()
    train_run(chosen, tmp_path / "run", progress=notes)
    assert list(kept_checkpoints(tmp_path / "run")) == [0, 1, 2, 4, 8]
    assert "of it for 5 kept checkpoints" in notes.sentences[0]
    last = checkpoint_folder(tmp_path / "run", 8)
    finished = weights(tmp_path / "run" / "model")
    assert all(torch.equal(tensor, finished[name]) for name, tensor in weights(last).items())
    assert AutoTokenizer.from_pretrained(last)("a fox")["input_ids"]
    assert arm.describe(last).family == "llama"
    if kind == "none":
        initial, _ = build(chosen, read_text(chosen))
        first = weights(checkpoint_folder(tmp_path / "run", 0))
        assert all(torch.equal(tensor, first[name]) for name, tensor in initial.state_dict().items())


def test_a_kill_loses_none_and_doubles_none(tmp_path: Path) -> None:
    chosen = config(tmp_path, checkpoints=dict(keep="log", every=3))
    train_run(chosen, tmp_path / "whole")

    def stop(step: int, loss: float) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(chosen, tmp_path / "killed", stop)
    assert list(kept_checkpoints(tmp_path / "killed")) == [0, 1, 2, 3, 4]
    unfinished = tmp_path / "killed" / "checkpoints" / ".step-00000006.0123abcd.part"
    unfinished.mkdir()
    shutil.rmtree(checkpoint_folder(tmp_path / "killed", 4))  # killed before it was in place
    train_run(chosen, tmp_path / "killed")
    whole, killed = (kept_checkpoints(tmp_path / name) for name in ("whole", "killed"))
    assert list(whole) == list(killed) == [0, 1, 2, 3, 4, 6, 8]
    assert sorted(path.name for path in (tmp_path / "killed" / "checkpoints").iterdir()) == [
        folder.name for folder in whole.values()
    ]
    for step, folder in whole.items():
        ours = weights(killed[step])
        assert all(torch.equal(tensor, ours[name]) for name, tensor in weights(folder).items())


def test_a_disk_too_small_is_refused_before_the_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(tmp_path, checkpoints=dict(keep="log"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=100_000))
    with pytest.raises(arm.ArmillaryError, match=r"5 kept checkpoints of .* keep fewer steps"):
        train_run(chosen, tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()
