"""Run a training in a folder: build the model, train with checkpoints and logs, save the finished model.

RUN/run.json         all settings
RUN/start.json       of a run `from` a model: its held-out loss, and that right after the change of positions
RUN/loss.jsonl       {"step", "loss", "penalty"}, and "held_out" in steps that measure it
RUN/attention.jsonl  the snapshots of the monitor
RUN/work/            the state to resume from
RUN/checkpoints/     step-00000100 and so on: the kept models, each a transformers folder
RUN/model/           the finished model and its tokenizer, a transformers folder
RUN/result.json      held-out loss, time, warnings
"""

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer

from armillary.anatomy.modes import own_random_numbers
from armillary.anatomy.options import ModelOptions, complete, refuse_idle
from armillary.atlas.differences import differences
from armillary.errors import ArmillaryError
from armillary.files.atomic import make_folder, remove_leftovers, write_atomically, writing
from armillary.files.lock import FolderLock
from armillary.observe.verified import versions
from armillary.progress import Progress
from armillary.training.checkpoints import Keeper, save_model
from armillary.training.config import RunConfig, from_dict
from armillary.training.data import HELD_OUT_WINDOWS, Text, read_text
from armillary.training.loop import Part, last_checkpoint, mean_loss, train
from armillary.training.models import build, source_model
from armillary.training.monitor import Monitor
from armillary.training.run_files import read_log, read_result, read_settings, read_start

__all__ = ["BUILT", "build", "read_text", "train_run"]

BUILT = ("device", "dtype", "attn_implementation", "revision", "trust_remote_code")
"""The options of `load` that training reads."""

OnStep = Callable[[int, float], None]


@own_random_numbers()
def train_run(
    config: RunConfig,
    folder: Path,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train, or resume the run in `folder`; returns the contents of result.json.

    Of the options of `load`, device, dtype and attn_implementation are the model's; revision and trust_remote_code are
    those of the model that the run continues from, or of the tokenizer.
    """
    chosen: ModelOptions = complete(options, ModelOptions, "train")
    refuse_idle(chosen, BUILT, "training builds its model")
    if config.training.seeds is not None:
        raise ArmillaryError("this configuration has several seeds", advice="train them with train_seeds")
    _refuse_other(config, folder)
    if (folder / "result.json").is_file():  # nothing to write, so no lock is needed
        return read_result(folder)
    with FolderLock(folder, "training run"):
        _refuse_other(config, folder)
        if (folder / "result.json").is_file():
            return read_result(folder)
        return _train(config, folder, on_step, progress or Progress(), chosen)


def _train(
    config: RunConfig, folder: Path, on_step: OnStep | None, progress: Progress, options: ModelOptions
) -> dict[str, Any]:
    """Train in the folder, which the caller has locked."""
    text = read_text(config, options, folder / "work")
    model, penalty = build(config, text, options)
    keeper = Keeper(model, text.tokenizer, config.checkpoints, config.training.steps, folder)
    progress.note(keeper.check_disk())
    _write_settings(config, folder)  # only when it is clear that the run can start
    remove_leftovers(folder)
    _write_start(config, model, text, folder, options)
    length = config.training.length
    probe = text.held_out[: config.monitor.sequences * length].reshape(-1, length)
    monitor = Monitor(
        model,
        torch.from_numpy(probe.astype(np.int64)),
        config.monitor.every,
        log=folder / "attention.jsonl",
        on_warning=progress.note,
    )
    start = time.perf_counter()
    report = _Report(config, model, text, penalty, monitor, folder, on_step, progress)
    logs = [folder / name for name in ("loss.jsonl", "attention.jsonl")]
    train(model, [Part(text.training, 1.0)], config.training, folder / "work", report, penalty, logs, keeper)
    save_model(model, text.tokenizer, folder / "model")
    loss = _held_out(model, text.held_out, length, None)
    result = {
        "held_out_loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        "steps": config.training.steps,
        "seconds": time.perf_counter() - start,
        "monitor_overhead": monitor.overhead,
        "warnings": _warnings(folder),
        "versions": versions(),
        **({} if config.model.from_ is None else {"start": read_start(folder)}),
    }
    write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


class _Report:
    """What is written and shown after every step."""

    def __init__(
        self,
        config: RunConfig,
        model: Any,
        text: Text,
        penalty: Any,
        monitor: Monitor,
        folder: Path,
        on_step: OnStep | None,
        progress: Progress,
    ) -> None:
        self.config, self.model, self.text, self.penalty = config, model, text, penalty
        self.monitor, self.folder, self.on_step, self.progress = monitor, folder, on_step, progress
        self.begun = False

    def __call__(self, step: int, loss: float) -> None:
        steps = self.config.training.steps
        if not self.begun:
            self.progress.begin("training", steps, "steps", done=step)
            self.begun = True
        self.progress.advance()
        self.progress.status(f"loss {loss:.3f}")
        last = step + 1 == steps
        row: dict[str, float | int] = {"step": step, "loss": loss}
        if self.penalty is not None:
            row["penalty"] = float(self.penalty().detach())
        if step % self.config.monitor.every == 0 or last:
            self.monitor.take(step) if last and step % self.config.monitor.every else self.monitor(step)
        if step % (self.config.training.evaluate_every or self.config.monitor.every) == 0 or last:
            row["held_out"] = _held_out(self.model, self.text.held_out, self.config.training.length, HELD_OUT_WINDOWS)
        with writing(self.folder / "loss.jsonl"), (self.folder / "loss.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if self.on_step is not None:
            self.on_step(step, loss)


def _write_start(config: RunConfig, model: Any, text: Text, folder: Path, options: ModelOptions) -> None:
    """Measure a model that a run continues from, before and right after its change; once, when the run begins."""
    if config.model.from_ is None or (folder / "start.json").is_file():
        return
    length = config.training.length
    changed = _held_out(model, text.held_out, length, None)
    if config.model.position is None:
        before = changed
    else:
        before = _held_out(source_model(config, options), text.held_out, length, None)
    losses = {"held_out_before": before, "held_out_changed": changed}
    write_atomically(folder / "start.json", json.dumps(losses, indent=1).encode())


def _held_out(model: Any, tokens: Integer[np.ndarray, "token"], length: int, windows: int | None) -> float:
    return mean_loss(model, tokens if windows is None else tokens[: windows * length], length)


def _warnings(folder: Path) -> list[str]:
    """Every warning of the run, also from before it was resumed, each once."""
    rows = read_log(folder, "attention.jsonl")
    warnings = {re.sub(r" at step \d+", "", text): text for row in rows for text in reversed(row["warnings"])}
    return list(warnings.values())


def _refuse_other(config: RunConfig, folder: Path) -> None:
    """Raise if the folder holds another run or other files; settings may change until the first checkpoint."""
    if folder.exists() and not folder.is_dir():
        raise ArmillaryError(f"{folder} is a file, but a run needs a folder", advice="give another `out`")
    record = folder / "run.json"
    if record.is_file() and (last_checkpoint(folder / "work") or (folder / "result.json").is_file()):
        different = differences(_completed(folder), json.loads(json.dumps(config.as_dict())))
        if different:
            raise ArmillaryError(
                f"{folder} holds a run with other settings ({'; '.join(different[:3])})",
                advice="train into another folder",
            )
    elif not record.is_file() and folder.exists() and any(not _is_empty_work(path) for path in folder.iterdir()):
        raise ArmillaryError(f"{folder} holds other files", advice="choose a new or empty folder")


def _completed(folder: Path) -> dict[str, Any]:
    """The settings of the run in a folder, with the defaults of those that an earlier Armillary did not have."""
    written = read_settings(folder)
    try:
        defaults = json.loads(json.dumps(from_dict(written).as_dict()))
    except ArmillaryError:  # what it has is compared as it is
        return written
    return dict(defaults)


def _is_empty_work(path: Path) -> bool:
    """Whether this is the work folder with nothing but a lock and the packed text in it."""
    known = re.compile(r"lock|text\.json|\.?tokens-.*")
    return path.name == "work" and path.is_dir() and all(known.fullmatch(inside.name) for inside in path.iterdir())


def _write_settings(config: RunConfig, folder: Path) -> None:
    """Write run.json."""
    make_folder(folder)
    write_atomically(folder / "run.json", json.dumps(config.as_dict(), indent=1).encode())
