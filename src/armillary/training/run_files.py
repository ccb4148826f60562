"""Read the files of a run's folder: result.json, run.json, loss.jsonl, attention.jsonl."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from armillary.files.records import read_lines, read_record

REMEDY = "train into another folder"


class StartLosses(TypedDict):
    """start.json: the held-out loss of the model that a run continues from, and that after the change of positions."""

    held_out_before: float
    held_out_changed: float


class RunResult(TypedDict):
    """result.json."""

    held_out_loss: float
    perplexity: float
    steps: int
    seconds: float
    monitor_overhead: float
    warnings: list[str]
    versions: NotRequired[dict[str, str]]
    start: NotRequired[StartLosses]


class LossRow(TypedDict):
    """A line of loss.jsonl."""

    step: int
    loss: float
    penalty: NotRequired[float]
    held_out: NotRequired[float]


class AttentionRow(TypedDict):
    """A line of attention.jsonl. It also has `heads` and `layers`, which Armillary does not read back."""

    step: int
    warnings: list[str]
    entropy: NotRequired[float | None]
    eigen_mean: NotRequired[float | None]
    eigen_scale: NotRequired[float | None]
    rho: NotRequired[float | None]
    largest_logit: NotRequired[float | None]


SHAPES: dict[str, Any] = {"loss.jsonl": LossRow, "attention.jsonl": AttentionRow}


def read_result(folder: Path) -> dict[str, Any]:
    """The result of a finished run."""
    return dict(read_record(folder / "result.json", RunResult, REMEDY))


def read_start(folder: Path) -> dict[str, Any]:
    """The losses of the model that the run in `folder` continues from."""
    return dict(read_record(folder / "start.json", StartLosses, REMEDY))


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run in `folder`, from run.json."""
    return dict(read_record(folder / "run.json", dict[str, Any], REMEDY))


def read_log(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """The rows of loss.jsonl or attention.jsonl; empty if the file does not exist yet."""
    path = folder / name
    return read_lines(path, SHAPES[name], REMEDY) if path.is_file() else iter(())
