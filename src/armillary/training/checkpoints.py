"""Keeps checkpoints of a run: which steps, how much disk they need, and complete model folders written atomically.

RUN/checkpoints/step-00000100/ is the model after 100 optimizer steps (step-00000000: before the first), a transformers
folder with its tokenizer.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.errors import ArmillaryError
from armillary.files.atomic import remove_leftovers, whole_folder
from armillary.machine.limits import readable_bytes, refuse_beyond_disk
from armillary.training.regularizers import is_reparametrized, merge_sigma_reparam
from armillary.training.settings import setting

FOLDER = "checkpoints"


@dataclass(frozen=True)
class CheckpointConfig:
    """Which steps are kept in RUN/checkpoints; RUN/model is always the finished model."""

    keep: str | list[int] = setting(  # noqa: RUF009
        "last: none besides RUN/model; log: the steps 0, 1, 2, 4, 8, ... and the last; or a list of steps.", "last"
    )
    every: int | None = setting("Keep also step 0, every so many steps, and the last.", None)


def check_checkpoints(config: CheckpointConfig, steps: int) -> None:
    """Raise an error for settings that name no step of the run."""
    if isinstance(config.keep, str) and config.keep not in ("last", "log"):
        raise ArmillaryError(
            f"checkpoints.keep = {config.keep!r} is not known", advice="it can be 'last', 'log' or a list of steps"
        )
    outside = [] if isinstance(config.keep, str) else [step for step in config.keep if not 0 <= step <= steps]
    if outside:
        raise ArmillaryError(
            f"checkpoints.keep has the step {outside[0]}", advice=f"the run has the steps 0 to {steps}"
        )
    if config.every is not None and config.every < 1:
        raise ArmillaryError(f"checkpoints.every = {config.every}", advice="it must be 1 or more")


def kept_steps(config: CheckpointConfig, steps: int) -> list[int]:
    """The steps whose model is kept, in order; step n is the model after n optimizer steps."""
    wanted = set() if isinstance(config.keep, str) else set(config.keep)
    if config.keep == "log":
        wanted |= {0, steps} | {2**k for k in range(steps.bit_length()) if 2**k <= steps}
    if config.every is not None:
        wanted |= {*range(0, steps + 1, config.every), steps}
    return sorted(wanted)


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where a run keeps the model after `step` optimizer steps."""
    return run / FOLDER / f"step-{step:08d}"


def kept_checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints that a run's folder holds, by step, in order."""
    folders = sorted((run / FOLDER).glob("step-????????"))
    return {int(folder.name.removeprefix("step-")): folder for folder in folders if folder.name[5:].isdigit()}


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a complete model folder, replacing an older one at once; the model in training is not changed."""
    if is_reparametrized(model):
        model = copy.deepcopy(model)
        merge_sigma_reparam(model)
    with whole_folder(folder) as place:
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)


def model_bytes(model: Any, *, trained: bool = False) -> float:
    """The bytes of a model's weights, or of those that are trained; tied ones count once."""
    return float(sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad or not trained))


class Keeper:
    """Keeps the steps that were asked for. Call it with the number of finished steps, before the run's own checkpoint.

    A run that was killed repeats its last steps and replaces what it had kept after its last checkpoint, so that all
    kept models are of one course of training.
    """

    def __init__(self, model: Any, tokenizer: Any, config: CheckpointConfig, steps: int, run: Path) -> None:
        self.model, self.tokenizer, self.run = model, tokenizer, run
        self.steps = kept_steps(config, steps)
        if (run / FOLDER).is_dir():
            remove_leftovers(run / FOLDER)

    def __call__(self, step: int) -> None:
        if step in self.steps:
            save_model(self.model, self.tokenizer, checkpoint_folder(self.run, step))

    def check_disk(self) -> str:
        """A sentence with the disk that the run needs; raises if there is less.

        The run's own checkpoint has the weights and two moments of AdamW, and is written beside the last one.
        """
        each, count = model_bytes(self.model), len(self.steps)
        state = 2 * (each + 2 * model_bytes(self.model, trained=True))
        present = sum(checkpoint_folder(self.run, step).is_dir() for step in self.steps)
        refuse_beyond_disk(
            (count - present + 1) * each + state,
            self.run,
            f"{count} kept checkpoints of {readable_bytes(each)} each, the finished model and the state to resume from",
            "keep fewer steps ([checkpoints] keep and every), or train into a folder on another disk",
        )
        kept = f", {readable_bytes(count * each)} of it for {count} kept checkpoints" if count else ""
        return f"The run needs {readable_bytes((count + 1) * each + state)} of disk{kept}."
