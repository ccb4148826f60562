"""Run a training in a folder: build the model, train with checkpoints and logs, save the finished model.

RUN/run.json         all settings
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer

from armillary.anatomy.devices import moved, pick_device, pick_dtype
from armillary.anatomy.loading import tokenizer_of
from armillary.anatomy.modes import own_random_numbers
from armillary.anatomy.options import ModelOptions, complete, refuse_idle
from armillary.anatomy.rotary_buffers import apply
from armillary.anatomy.versions import PROPORTIONAL, below, installed
from armillary.atlas.differences import differences
from armillary.errors import ArmillaryError
from armillary.files.atomic import make_folder, remove_leftovers, write_atomically, writing
from armillary.files.lock import FolderLock
from armillary.machine.limits import refuse_beyond_memory
from armillary.observe.verified import versions
from armillary.progress import Progress
from armillary.text.names import split_sources
from armillary.text.sources import documents
from armillary.theory.rotary import kept_count
from armillary.training.bundled import bundled
from armillary.training.checkpoints import Keeper, save_model
from armillary.training.config import RunConfig, from_dict, position_of
from armillary.training.loop import Part, last_checkpoint, mean_loss, train
from armillary.training.monitor import Monitor
from armillary.training.regularizers import LocAteR, sigma_reparam
from armillary.training.run_files import read_log, read_result, read_settings

# Imports inside functions: transformers takes seconds to import.

HELD_OUT_WINDOWS = 8
"""During training the held-out loss is measured on this many windows; at the end on all."""

BUILT = ("device", "dtype", "attn_implementation", "revision", "trust_remote_code")
"""The options of `load` that training reads."""

OnStep = Callable[[int, float], None]


@dataclass(frozen=True)
class Text:
    """Training tokens, held-out tokens, and the tokenizer."""

    training: Integer[np.ndarray, "token"]
    held_out: Integer[np.ndarray, "token_"]
    tokenizer: Any


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
    the tokenizer's.
    """
    chosen: ModelOptions = complete(options, ModelOptions, "train")
    refuse_idle(chosen, BUILT, "training builds its model")
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
    text = read_text(config, options)
    model, penalty = build(config, text, options)
    keeper = Keeper(model, text.tokenizer, config.checkpoints, config.training.steps, folder)
    progress.note(keeper.check_disk())
    _write_settings(config, folder)  # only when it is clear that the run can start
    remove_leftovers(folder)
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
    progress_begun = False

    def after_step(step: int, loss: float) -> None:
        nonlocal progress_begun
        if not progress_begun:
            progress.begin("training", config.training.steps, "steps", done=step)
            progress_begun = True
        progress.advance()
        progress.status(f"loss {loss:.3f}")
        last = step + 1 == config.training.steps
        row: dict[str, float | int] = {"step": step, "loss": loss}
        if penalty is not None:
            row["penalty"] = float(penalty().detach())
        if step % config.monitor.every == 0 or last:
            monitor.take(step) if last and step % config.monitor.every else monitor(step)
            row["held_out"] = _held_out(model, text.held_out, length, HELD_OUT_WINDOWS)
        with writing(folder / "loss.jsonl"), (folder / "loss.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if on_step is not None:
            on_step(step, loss)

    logs = [folder / name for name in ("loss.jsonl", "attention.jsonl")]
    train(model, [Part(text.training, 1.0)], config.training, folder / "work", after_step, penalty, logs, keeper)
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
    }
    write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


def build(config: RunConfig, text: Text, options: ModelOptions | None = None) -> tuple[Any, LocAteR | None]:
    """The model with random weights from the seed, on its device, and its LocAteR penalty, if any.

    The weights are drawn on the CPU: they are the same on every device.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    refuse_too_large(config, len(text.tokenizer))
    shape = config.model
    eos = text.tokenizer.eos_token_id
    bos = eos if text.tokenizer.bos_token_id is None else text.tokenizer.bos_token_id
    ids = dict(vocab_size=len(text.tokenizer), bos_token_id=bos, eos_token_id=eos, pad_token_id=None)
    length = config.training.length
    if shape.family == "llama":
        settings: dict[str, Any] = dict(
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            intermediate_size=shape.mlp or 8 * shape.width // 3,
            max_position_embeddings=length,
            rope_parameters=_rope(config),
            tie_word_embeddings=True,
        )
    elif shape.family == "gpt2":
        settings = dict(
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_inner=shape.mlp,
            n_positions=length,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    else:
        settings = dict(hidden_size=shape.width, n_layer=shape.layers, n_head=shape.heads, hidden_dropout=0.0)
        settings |= dict(attention_dropout=0.0)
    scheme = rotary_change(config)
    model_config = AutoConfig.for_model(
        shape.family, **ids, **settings, **({"armillary_rotary": scheme} if scheme else {})
    )
    model_config.use_cache = False
    torch.manual_seed(config.training.seed)
    model = AutoModelForCausalLM.from_config(model_config, **_attention(options))
    model.loss_type = "ForCausalLM"
    if scheme:
        apply(model, scheme)
    if shape.family == "gpt2" and position_of(shape) == "none":
        with torch.no_grad():
            model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight.requires_grad_(False)
    model = _placed(model, options)
    penalty = None
    if config.regularizer.kind == "locater":
        regularizer = config.regularizer
        penalty = LocAteR(model, regularizer.scale, regularizer.mean, regularizer.target)
    elif config.regularizer.kind == "sigma-reparam":
        sigma_reparam(model)
    return model, penalty


def _attention(options: ModelOptions | None) -> dict[str, str]:
    chosen = None if options is None else options.get("attn_implementation")
    return {} if chosen is None else {"attn_implementation": chosen}


def _placed(model: Any, options: ModelOptions | None) -> Any:
    """The model on its device, in float32 unless another precision was asked for."""
    if options is None:
        return model
    device = pick_device(options["device"])
    dtype = pick_dtype(options["dtype"], device)
    return moved(model if isinstance(dtype, str) else model.to(dtype), device)


def refuse_too_large(config: RunConfig, vocabulary: int) -> None:
    """Raise if the model does not fit in memory: 16 bytes per weight (weight, gradient, two moments of AdamW).

    In addition, some 40 kB of Python per layer, and the activations stored for the backward pass: fourteen vectors and
    the MLP's of every token in every layer, and the logits with their gradient, in float32.
    """
    shape, tokens = config.model, config.training.batch * config.training.length
    mlp = shape.mlp or 4 * shape.width
    weights = shape.layers * (4 * shape.width**2 + 2 * shape.width * mlp) + vocabulary * shape.width
    activations = tokens * (shape.layers * (14 * shape.width + 2 * mlp) + 2 * vocabulary)
    refuse_beyond_memory(
        16.0 * weights + 4.0 * activations + 4e4 * shape.layers,
        f"a model of {shape.layers} layers of width {shape.width} on {config.training.batch} x "
        f"{config.training.length} tokens a step",
        "train a smaller model, or use smaller batches",
    )


def rotary_change(config: RunConfig) -> dict[str, Any] | None:
    """How the position scheme differs from a plain rotary encoding, or None."""
    shape = config.model
    if shape.family != "llama":
        return None
    changes: dict[str, dict[str, Any]] = {
        "none": {"nope": True},
        "partial": {"partial": shape.fraction},
        "reversed": {"p": shape.fraction, "reversed": True},
        **({} if _proportional(config) else {"p-rope": {"p": shape.fraction}}),
    }
    return changes.get(position_of(shape))


def _proportional(config: RunConfig) -> bool:
    """Whether transformers has 'proportional', with the right number of frequencies for p-RoPE (it can lose one)."""
    if below(installed(), PROPORTIONAL):
        return False
    shape = config.model
    width = shape.width // shape.heads
    return int((shape.fraction or 0.0) * width // 2) == kept_count(shape.fraction or 0.0, width // 2)


def _rope(config: RunConfig) -> dict[str, Any]:
    """rope_parameters; p-RoPE is transformers' own 'proportional', so that a saved model loads without Armillary."""
    if position_of(config.model) != "p-rope" or not _proportional(config):
        return dict(rope_type="default", rope_theta=config.model.base)
    return dict(rope_type="proportional", rope_theta=config.model.base, partial_rotary_factor=config.model.fraction)


def read_text(config: RunConfig, options: ModelOptions | None = None) -> Text:
    """The corpus as tokens, with an end-of-text token before every document; its last share is held out."""
    name = bundled("llama") if config.data.tokenizer == "bundled" else config.data.tokenizer
    tokenizer = tokenizer_of(name, options or {})
    if tokenizer.eos_token_id is None:
        raise ArmillaryError(f"the tokenizer {name} has no end-of-text token to put between documents")
    ids: list[int] = []
    if config.data.corpus == "builtin:random":
        raise ArmillaryError("there is nothing to learn from builtin:random", advice="give text")
    for count, document in enumerate(documents(split_sources(config.data.corpus))):
        if config.data.documents is not None and count >= config.data.documents:
            break
        ids += [
            tokenizer.eos_token_id,
            *tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"],
        ]
    tokens = np.array(ids, dtype=np.int32)
    split = int(len(tokens) * (1 - config.data.held_out))
    needed = max(config.monitor.sequences, HELD_OUT_WINDOWS) * config.training.length
    if len(tokens) - split < needed or split <= config.training.length:
        raise ArmillaryError(
            f"{config.data.corpus} has {len(tokens)} tokens, of which {len(tokens) - split} are held out: {needed} of "
            f"those and more than {config.training.length} others are needed"
        )
    return Text(tokens[:split], tokens[split:], tokenizer)


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
    """Whether this is the work folder with nothing but a lock in it."""
    return path.name == "work" and path.is_dir() and all(inside.name == "lock" for inside in path.iterdir())


def _write_settings(config: RunConfig, folder: Path) -> None:
    """Write run.json."""
    make_folder(folder)
    write_atomically(folder / "run.json", json.dumps(config.as_dict(), indent=1).encode())
