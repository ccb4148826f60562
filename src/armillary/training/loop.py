"""A training loop for causal language models: AdamW, schedules, accumulation, checkpoints that resume exactly."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from armillary.anatomy.devices import input_device
from armillary.anatomy.modes import evaluating
from armillary.anatomy.placing import placer_of
from armillary.errors import ArmillaryError
from armillary.files.atomic import read_checked, remove_with_checksum, write_atomically, write_with_checksum, writing
from armillary.training.settings import TrainSettings

__all__ = ["Part", "TrainSettings", "autocast", "draw", "last_checkpoint", "learning_rate", "mean_loss", "train"]


@dataclass(frozen=True)
class Part:
    """One part of the training text and how often batches draw from it."""

    tokens: Integer[np.ndarray, "token"]
    weight: float


OnStep = Callable[[int, float], None]


def train(
    model: Any,
    parts: Sequence[Part],
    settings: TrainSettings,
    folder: Path,
    on_step: OnStep | None = None,
    penalty: Callable[[], Tensor] | None = None,
    logs: Sequence[Path] = (),
    keep: Callable[[int], None] | None = None,
) -> None:
    """Train `model` in place; a killed run resumes from the last checkpoint in `folder`.

    `keep` is called with the number of finished steps: with 0 before the first, and after each step, before the
    checkpoint to resume from is written, so that what it keeps is never missing after a kill.

    `penalty` is added to the loss; `on_step` receives the loss without it. `logs` are the files that `on_step` appends
    to: a checkpoint stores their contents, and a resumed run restores them.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    groups, betas = _parameter_groups(model, settings), (0.9, settings.beta2)
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas)
    start = _resume(model, optimizer, settings, folder, logs)
    model.train()
    placer = placer_of(model)
    if keep is not None and start == 0:
        keep(0)
    for step in range(start, settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        if placer is not None:
            placer.begin(step)
        value = _gradient(model, draw(parts, settings, step).to(input_device(model)), settings, penalty)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not math.isfinite(value):
            raise ArmillaryError(f"the loss became {value} at step {step}", advice="lower the learning rate")
        if on_step is not None:  # before the checkpoint, which stores the logs
            on_step(step, value)
        if keep is not None:
            keep(step + 1)
        if (step + 1) % settings.checkpoint_every == 0 or step + 1 == settings.steps:
            _save(model, optimizer, settings, step + 1, folder, logs)
    model.eval()


def _gradient(
    model: Any, ids: Int[Tensor, "sequence token"], settings: TrainSettings, penalty: Callable[[], Tensor] | None
) -> float:
    """Add the gradient of the mean loss over the sequences, in `accumulate` passes, and of the penalty, once."""
    total = 0.0
    for number, part in enumerate(ids.chunk(settings.accumulate)):
        with autocast(settings, ids.device.type):
            loss = model(input_ids=part, labels=part).loss
        total += float(loss.detach()) / settings.accumulate
        loss = loss if settings.accumulate == 1 else loss / settings.accumulate
        (loss + penalty() if penalty is not None and number == 0 else loss).backward()
    return total


def autocast(settings: TrainSettings, device: str) -> AbstractContextManager[Any]:
    """bfloat16 for matrix products, if the settings ask for it."""
    return torch.autocast(device, torch.bfloat16) if settings.autocast == "bf16" else nullcontext()


def learning_rate(settings: TrainSettings, step: int) -> float:
    """Linear up to learning_rate over `warmup` steps, then by the schedule, down to final_rate.

    cosine: a half cosine. linear: a line. constant: learning_rate. wsd: learning_rate until the last `decay` of all
    steps, then a line.
    """
    high, low = settings.learning_rate, settings.final_rate
    if step < settings.warmup:
        return high * (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return high
    begin = settings.warmup
    if settings.schedule == "wsd":
        begin = max(begin, round(settings.steps * (1 - settings.decay)))
        if step <= begin:
            return high
    done = (step - begin) / max(1, settings.steps - begin)
    share = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
    return low + (high - low) * share


def draw(parts: Sequence[Part], settings: TrainSettings, step: int) -> Int[Tensor, "sequence token"]:
    """The sequences of this step (batch x accumulate): windows at random positions of the parts, by their weights."""
    rng = np.random.default_rng([settings.seed, step])
    weights = np.array([part.weight for part in parts])
    rows = []
    for index in rng.choice(len(parts), settings.batch * settings.accumulate, p=weights / weights.sum()):
        tokens = parts[index].tokens
        if len(tokens) <= settings.length:
            raise ArmillaryError(
                f"a part of the text has {len(tokens)} tokens, fewer than a window of {settings.length}"
            )
        begin = int(rng.integers(0, len(tokens) - settings.length))
        rows.append(tokens[begin : begin + settings.length])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


@torch.no_grad()
def mean_loss(model: Any, tokens: Integer[np.ndarray, "token"], length: int, batch: int = 16) -> float:
    """Mean negative log-likelihood per predicted token, in nats, over consecutive windows."""
    windows = len(tokens) // length
    if windows == 0:
        raise ArmillaryError(f"{len(tokens)} tokens are too few for one window of {length}")
    rows, total = tokens[: windows * length].reshape(windows, length), 0.0
    with evaluating(model):
        for begin in range(0, windows, batch):  # the text may be a file that is larger than memory
            ids = torch.from_numpy(rows[begin : begin + batch].astype(np.int64)).to(input_device(model))
            total += float(model(input_ids=ids, labels=ids).loss) * len(ids)
    return total / windows


def last_checkpoint(folder: Path) -> int:
    """The step at which a run would resume: that of the last intact checkpoint, else 0."""
    intact = (path for path in sorted(folder.glob("checkpoint-????????.pt"), reverse=True) if read_checked(path))
    return next((int(path.stem.removeprefix("checkpoint-")) for path in intact), 0)


def _parameter_groups(model: Any, settings: TrainSettings) -> list[dict[str, Any]]:
    """Parameter groups for AdamW: weight decay on matrices, none on gains and biases."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.dim() >= 2]
    others = [p for p in trainable if p.dim() < 2]
    return [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]


def _save(model: Any, optimizer: Any, settings: TrainSettings, step: int, folder: Path, logs: Sequence[Path]) -> None:
    """Write a checkpoint with everything that resuming needs, then delete the older ones."""
    buffer = BytesIO()
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["logs"] = {log.name: log.read_text(encoding="utf-8") for log in logs if log.is_file()}
    torch.save({**state, "settings": json.dumps(asdict(settings)), "random": torch.get_rng_state()}, buffer)
    path = folder / f"checkpoint-{step:08d}.pt"
    write_with_checksum(path, [buffer.getvalue()])
    for older in folder.glob("checkpoint-????????.pt"):
        if older != path:
            remove_with_checksum(older)


def _resume(model: Any, optimizer: Any, settings: TrainSettings, folder: Path, logs: Sequence[Path]) -> int:
    """Load the last intact checkpoint, if there is one, and return the step to continue with."""
    for path in sorted(folder.glob("checkpoint-????????.pt"), reverse=True):
        data = read_checked(path)
        if data is None:
            continue
        state = torch.load(BytesIO(data), map_location="cpu", weights_only=True)  # also on a machine without the device
        saved_settings = json.loads(state["settings"])
        saved_settings = {**asdict(TrainSettings(steps=settings.steps)), **saved_settings}  # of an earlier Armillary
        different = [key for key, value in asdict(settings).items() if saved_settings.get(key) != value]
        if different:
            raise ArmillaryError(
                f"{folder} holds a run with other settings ({', '.join(different)})", advice="train into another folder"
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        if logs and "logs" not in state:
            raise ArmillaryError(f"{path} was written by an older Armillary", advice="train into another folder")
        for log in logs:
            write_atomically(log, state["logs"].get(log.name, "").encode())
        return int(state["step"])
    for log in logs:
        with writing(log):
            log.unlink(missing_ok=True)
    return 0
