"""A run killed by SIGKILL goes on to the same bits on one thread: accumulation, kept checkpoints, fine-tuning."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_runs import TEXT, config

import armillary as arm
from armillary.anatomy.modes import one_thread
from armillary.training.checkpoints import kept_checkpoints
from armillary.training.config import RunConfig, from_dict
from armillary.training.run import train_run

KILLED = """
import json, os, signal, sys, torch
from pathlib import Path
from armillary.training.config import from_dict
from armillary.training.run import train_run

torch.set_num_threads(1)
settings, folder, at = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
train_run(from_dict(settings), folder, lambda step, loss: os.kill(os.getpid(), signal.SIGKILL) if step == at else None)
"""


def killed_at(chosen: RunConfig, folder: Path, step: int) -> None:
    arguments = [sys.executable, "-c", KILLED, json.dumps(chosen.as_dict()), str(folder), str(step)]
    assert subprocess.run(arguments, capture_output=True, check=False).returncode == -signal.SIGKILL


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


def assert_same(whole: Path, killed: Path) -> None:
    ours, theirs = tensors(whole / "model"), tensors(killed / "model")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (whole / "loss.jsonl").read_bytes() == (killed / "loss.jsonl").read_bytes()
    kept, again = kept_checkpoints(whole), kept_checkpoints(killed)
    assert list(kept) == list(again)
    for step in kept:
        a, b = tensors(kept[step]), tensors(again[step])
        assert all(torch.equal(a[name], b[name]) for name in a)


CASES: dict[str, dict[str, dict[str, Any]]] = {
    "new": dict(
        model=dict(position="random", norm="post", kv_heads=1),
        training=dict(accumulate=2, autocast="bf16", schedule="wsd", evaluate_every=2),
        regularizer=dict(kind="locater", preset="paper", scale=0.01),
    ),
    "fine-tuned": dict(model={"position": "p-rope", "fraction": 0.5}, training=dict(accumulate=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_killed_twice_reaches_the_same_bits(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    sections = {**CASES[name], "checkpoints": dict(keep="log", every=3)}
    if name == "fine-tuned":
        sections["model"] = {**sections["model"], "from": str(arm.bundled("llama"))}
        sections["data"] = dict(corpus=str(tmp_path / "text.txt"))
        sections["training"] = dict(steps=8, batch=2, length=32, warmup=2, checkpoint_every=3, accumulate=2)
        sections["monitor"] = dict(every=4, sequences=2)
        chosen = from_dict(sections)
    else:
        chosen = config(tmp_path, **sections)
    with one_thread():
        train_run(chosen, tmp_path / "whole")
    killed_at(chosen, tmp_path / "killed", 4)
    killed_at(chosen, tmp_path / "killed", 6)
    with one_thread():
        train_run(chosen, tmp_path / "killed")
    assert_same(tmp_path / "whole", tmp_path / "killed")
