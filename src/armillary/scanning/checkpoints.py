"""Finds the checkpoints of a timeline (a run's, revisions of a hub id, several folders), and reads a run's log."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
from jaxtyping import Shaped

from armillary.anatomy.hub import is_hub_id
from armillary.errors import ArmillaryError
from armillary.files.records import read_lines, read_record

STEP = re.compile(r"(?:step|checkpoint|ckpt|iter(?:ation)?)[-_=]?0*(\d+)", re.IGNORECASE)
"""How a step is written in the name of a folder or a revision: step-00000100, checkpoint-500, step1000."""

REMEDY = "train the run again"


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint: its name in the timeline, where it is, and its step if that is known."""

    name: str
    source: str
    step: int | None
    revision: str | None = None


@dataclass(frozen=True)
class Series:
    """The checkpoints of a timeline in order, and the run's folder if they are of a training run."""

    checkpoints: tuple[Checkpoint, ...]
    run: Path | None = None
    title: str = ""


def find_checkpoints(sources: Sequence[str | Path], revisions: Sequence[str] | None = None) -> Series:
    """The checkpoints of a run's folder, of revisions of a hub id, or these folders and hub ids themselves."""
    if not sources:
        raise ArmillaryError("a timeline needs a run's folder, a hub id with revisions, or several models")
    if revisions is not None:
        return _of_revisions(sources, revisions)
    if len(sources) > 1:
        return Series(_ordered([(Path(str(source)).name, str(source), None) for source in sources]))
    folder = Path(str(sources[0])).expanduser()
    inside = checkpoint_folders(folder)
    if not inside:
        what = "no folder here" if is_hub_id(str(sources[0])) and not folder.exists() else "without checkpoints"
        raise ArmillaryError(
            f"{sources[0]} is {what}",
            advice="give a run that kept checkpoints (RUN/checkpoints/step-00000100, ...), several folders, or a hub "
            "id with `revisions`",
            given=str(sources[0]),
        )
    return Series(_with_final(folder, inside), folder, folder.resolve().name)


def checkpoint_folders(folder: Path) -> list[Path]:
    """RUN/checkpoints/step-..., or what a transformers Trainer writes: RUN/checkpoint-500."""
    return sorted(
        path
        for pattern in ("checkpoints/step-*", "checkpoint-*")
        for path in folder.glob(pattern)
        if (path / "config.json").is_file() and STEP.fullmatch(path.name)
    )


def _with_final(folder: Path, inside: list[Path]) -> tuple[Checkpoint, ...]:
    """The checkpoints of a run by step, and its finished model if that is later than the last of them."""
    checkpoints = list(_ordered([(path.name, str(path), None) for path in inside]))
    last = checkpoints[-1].step
    if (folder / "result.json").is_file() and (folder / "model" / "config.json").is_file() and last is not None:
        steps = int(read_record(folder / "result.json", _Result, REMEDY)["steps"])
        if steps > last:
            checkpoints.append(Checkpoint(f"step-{steps:08d}", str(folder / "model"), steps))
    return tuple(checkpoints)


def _of_revisions(sources: Sequence[str | Path], revisions: Sequence[str]) -> Series:
    if len(sources) != 1:
        raise ArmillaryError("`revisions` are of one hub id", advice="give one model with them")
    source = str(sources[0])
    if not is_hub_id(source):
        raise ArmillaryError(f"{source} is on this machine and has no revisions", advice="leave `revisions` out")
    if not revisions:
        raise ArmillaryError("`revisions` is empty", advice="name them, as in step0,step1000")
    return Series(_ordered([(revision, source, revision) for revision in revisions]), title=source)


def _ordered(named: list[tuple[str, str, str | None]]) -> tuple[Checkpoint, ...]:
    """By step, if every name has one of its own; else as they are given."""
    steps = [int(match[1]) if (match := STEP.search(name)) else None for name, _, _ in named]
    if None in steps or len(set(steps)) < len(steps):
        steps = [None] * len(named)
    names = [re.sub(r"[^\w.+-]", "_", name) or "model" for name, _, _ in named]
    if len(set(names)) < len(names):
        names = [f"{place}-{name}" for place, name in enumerate(names)]
    checkpoints = [
        Checkpoint(name, source, step, revision)
        for name, step, (_, source, revision) in zip(names, steps, named, strict=True)
    ]
    return tuple(checkpoints if None in steps else sorted(checkpoints, key=lambda checkpoint: checkpoint.step or 0))


# a run's own files ----------------------------------------------------------------------------------------------


class _Result(TypedDict):
    steps: int


class _LossRow(TypedDict):
    step: int
    loss: float
    held_out: NotRequired[float | None]


class _Settings(TypedDict):
    training: NotRequired[dict[str, Any]]


def read_loss(run: Path | None) -> dict[str, Shaped[np.ndarray, "row"]] | None:
    """The log of a run: step, loss, and held_out where it was measured; None if there is none."""
    if run is None or not (run / "loss.jsonl").is_file():
        return None
    rows: list[Any] = list(read_lines(run / "loss.jsonl", _LossRow, REMEDY))
    if not rows:
        return None
    log: dict[str, Shaped[np.ndarray, "row"]] = {
        "step": np.array([row["step"] for row in rows], np.int64),
        "loss": np.array([row["loss"] for row in rows], np.float32),
    }
    held_out = np.array([np.nan if row.get("held_out") is None else row["held_out"] for row in rows], np.float32)
    return log | ({"held_out": held_out} if np.isfinite(held_out).any() else {})


def logged(log: dict[str, Shaped[np.ndarray, "row"]] | None, name: str, step: int | None) -> float | None:
    """The value in the log at this step, or the last one before it."""
    if log is None or step is None or name not in log:
        return None
    known = np.flatnonzero(np.isfinite(log[name]) & (log["step"] <= step))
    return float(log[name][known[-1]]) if len(known) else None


def tokens_per_step(run: Path | None) -> int | None:
    """Tokens that a step of the run trains on, from run.json; None if it does not say."""
    if run is None or not (run / "run.json").is_file():
        return None
    training = read_record(run / "run.json", _Settings, REMEDY).get("training", {})
    sizes = [training.get("batch"), training.get("length")]  # accumulated gradients share one batch
    if not all(isinstance(size, int) for size in sizes):
        return None
    return int(np.prod(sizes))
