"""What a run's folder holds, read back: result.json, run.json, loss.jsonl, attention.jsonl, each of its shape."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from armillary.records import read_lines, read_record

REMEDY = "train into another folder"


class RunResult(TypedDict):
    """result.json."""

    held_out_loss: float
    perplexity: float
    steps: int
    seconds: float
    monitor_overhead: float
    warnings: list[str]
    versions: NotRequired[dict[str, str]]


class LossRow(TypedDict):
    """A line of loss.jsonl."""

    step: int
    loss: float
    penalty: NotRequired[float]
    held_out: NotRequired[float]


class AttentionRow(TypedDict):
    """A line of attention.jsonl; `heads` and `layers` hold more, which only figures of one's own read."""

    step: int
    warnings: list[str]
    entropy: NotRequired[float | None]
    eigen_mean: NotRequired[float | None]
    eigen_scale: NotRequired[float | None]
    rho: NotRequired[float | None]
    largest_logit: NotRequired[float | None]


SHAPES: dict[str, Any] = {"loss.jsonl": LossRow, "attention.jsonl": AttentionRow}


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run found."""
    return dict(read_record(folder / "result.json", RunResult, REMEDY))


def read_settings(folder: Path) -> dict[str, Any]:
    """What is trained there, as run.json says it."""
    return dict(read_record(folder / "run.json", dict[str, Any], REMEDY))


def read_log(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """The rows of loss.jsonl or attention.jsonl; none where there is no such file yet."""
    path = folder / name
    return read_lines(path, SHAPES[name], REMEDY) if path.is_file() else iter(())
