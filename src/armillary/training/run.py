"""A training run in a folder: model from scratch, checkpoints, logs, a figure, and the finished model to scan.

RUN/run.json         what is trained, and how
RUN/loss.jsonl       {"step", "loss", "penalty"}, and "held_out" where it was measured
RUN/attention.jsonl  what the monitor saw
RUN/work/            the last checkpoint
RUN/model/           the finished model and its tokenizer, a transformers folder
RUN/result.json      held-out loss, time, warnings
"""

import copy
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

from armillary.corpora import split_sources
from armillary.errors import ArmillaryError
from armillary.files import make_folder, remove_leftovers, whole_folder, write_atomically, writing
from armillary.folder_lock import FolderLock
from armillary.limits import refuse_beyond_memory
from armillary.models import load_tokenizer
from armillary.modes import own_random_numbers
from armillary.shards import differences
from armillary.sources import documents
from armillary.theory.rotary import kept_count
from armillary.training.bundled import bundled
from armillary.training.config import RunConfig, position_of
from armillary.training.loop import Part, last_checkpoint, mean_loss, train
from armillary.training.monitor import Monitor
from armillary.training.regularizers import LocAteR, merge_sigma_reparam, sigma_reparam
from armillary.training.run_files import read_log, read_result, read_settings
from armillary.verified import versions

HELD_OUT_WINDOWS = 8
"""While training, the held-out loss is measured on so many windows; at the end on all."""

OnStep = Callable[[int, float], None]


@dataclass(frozen=True)
class Text:
    """The tokens that are trained on, those that are not, and the tokenizer."""

    training: Integer[np.ndarray, "token"]
    held_out: Integer[np.ndarray, "token_"]
    tokenizer: Any


@own_random_numbers()
def train_run(
    config: RunConfig, folder: Path, on_step: OnStep | None = None, on_warning: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Train what the configuration says, or go on with it; returns what result.json holds."""
    _refuse_other(config, folder)
    if (folder / "result.json").is_file():  # nothing is written, so nobody needs to wait
        return read_result(folder)
    with FolderLock(folder, "training run"):
        _refuse_other(config, folder)
        if (folder / "result.json").is_file():
            return read_result(folder)
        return _train(config, folder, on_step, on_warning)


def _train(
    config: RunConfig, folder: Path, on_step: OnStep | None, on_warning: Callable[[str], None] | None
) -> dict[str, Any]:
    """The run in its folder, which is ours."""
    text = read_text(config)
    model, penalty = build(config, text)
    _note(config, folder)  # not before it is clear that the run can start
    remove_leftovers(folder)
    length = config.training.length
    probe = text.held_out[: config.monitor.sequences * length].reshape(-1, length)
    monitor = Monitor(
        model,
        torch.from_numpy(probe.astype(np.int64)),
        config.monitor.every,
        log=folder / "attention.jsonl",
        on_warning=on_warning or (lambda sentence: None),
    )
    begun = time.perf_counter()

    def after(step: int, loss: float) -> None:
        last = step + 1 == config.training.steps
        row: dict[str, float | int] = {"step": step, "loss": loss}
        if penalty is not None:
            row["penalty"] = float(penalty().detach())
        if step % config.monitor.every == 0 or last:
            monitor.look(step) if last and step % config.monitor.every else monitor(step)
            row["held_out"] = _held_out(model, text.held_out, length, HELD_OUT_WINDOWS)
        with writing(folder / "loss.jsonl"), (folder / "loss.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if on_step is not None:
            on_step(step, loss)

    logs = [folder / name for name in ("loss.jsonl", "attention.jsonl")]
    train(model, [Part(text.training, 1.0)], config.training, folder / "work", after, penalty, logs)
    plain = copy.deepcopy(model)
    if config.regulariser.kind == "sigma-reparam":
        merge_sigma_reparam(plain)
    with whole_folder(folder / "model") as place:
        plain.save_pretrained(place)
        text.tokenizer.save_pretrained(place)
    loss = _held_out(model, text.held_out, length, None)
    result = {
        "held_out_loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        "steps": config.training.steps,
        "seconds": time.perf_counter() - begun,
        "monitor_overhead": monitor.overhead,
        "warnings": _warnings(folder),
        "versions": versions(),
    }
    write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


def build(config: RunConfig, text: Text) -> tuple[Any, LocAteR | None]:
    """The model with random weights from the seed, and its penalty where there is one."""
    from transformers import AutoConfig, AutoModelForCausalLM

    refuse_too_large(config, len(text.tokenizer))
    shape = config.model
    end = text.tokenizer.eos_token_id
    start = end if text.tokenizer.bos_token_id is None else text.tokenizer.bos_token_id
    ids = dict(vocab_size=len(text.tokenizer), bos_token_id=start, eos_token_id=end, pad_token_id=None)
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
    chosen = AutoConfig.for_model(shape.family, **ids, **settings, **({"armillary_rotary": scheme} if scheme else {}))
    chosen.use_cache = False
    torch.manual_seed(config.training.seed)
    model = AutoModelForCausalLM.from_config(chosen)
    model.loss_type = "ForCausalLM"
    if scheme:
        from armillary.interventions.frequencies import apply

        apply(model, scheme)
    if shape.family == "gpt2" and position_of(shape) == "none":
        with torch.no_grad():
            model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight.requires_grad_(False)
    penalty = None
    if config.regulariser.kind == "locater":
        chosen_penalty = config.regulariser
        penalty = LocAteR(model, chosen_penalty.scale, chosen_penalty.mean, chosen_penalty.target)
    elif config.regulariser.kind == "sigma-reparam":
        sigma_reparam(model)
    return model, penalty


def refuse_too_large(config: RunConfig, vocabulary: int) -> None:
    """Raise if the model does not fit: 16 bytes for every weight (itself, its gradient, two moments of AdamW).

    With them some 40 kB of Python for every layer, and what a step keeps for its gradients: fourteen vectors and the
    MLP's of every token in every layer, and the logits with their gradient, in float32.
    """
    shape, tokens = config.model, config.training.batch * config.training.length
    mlp = shape.mlp or 4 * shape.width
    weights = shape.layers * (4 * shape.width**2 + 2 * shape.width * mlp) + vocabulary * shape.width
    kept = tokens * (shape.layers * (14 * shape.width + 2 * mlp) + 2 * vocabulary)
    refuse_beyond_memory(
        16.0 * weights + 4.0 * kept + 4e4 * shape.layers,
        f"a model of {shape.layers} layers of width {shape.width} on {config.training.batch} x "
        f"{config.training.length} tokens a step",
        "train a smaller one, or on smaller batches",
    )


def rotary_change(config: RunConfig) -> dict[str, Any] | None:
    """What the position scheme changes in a plain rotary encoding, or None."""
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
    """Whether transformers' 'proportional' keeps as many frequencies as p-RoPE should (its floor can lose one)."""
    shape = config.model
    width = shape.width // shape.heads
    return int((shape.fraction or 0.0) * width // 2) == kept_count(shape.fraction or 0.0, width // 2)


def _rope(config: RunConfig) -> dict[str, Any]:
    """rope_parameters; p-RoPE is transformers' own 'proportional', so that a saved model needs nothing of ours."""
    if position_of(config.model) != "p-rope" or not _proportional(config):
        return dict(rope_type="default", rope_theta=config.model.base)
    return dict(rope_type="proportional", rope_theta=config.model.base, partial_rotary_factor=config.model.fraction)


def read_text(config: RunConfig) -> Text:
    """The corpus as tokens, an end-of-text token before every document; the last share of it is held out."""
    name = bundled("llama") if config.data.tokenizer == "bundled" else config.data.tokenizer
    tokenizer = load_tokenizer(name)
    if tokenizer.eos_token_id is None:
        raise ArmillaryError(f"the tokenizer {name} has no end-of-text token, which stands between documents")
    rows: list[int] = []
    if config.data.corpus == "builtin:random":
        raise ArmillaryError("there is nothing to learn from builtin:random: give text")
    for count, document in enumerate(documents(split_sources(config.data.corpus))):
        if config.data.documents is not None and count >= config.data.documents:
            break
        rows += [
            tokenizer.eos_token_id,
            *tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"],
        ]
    tokens = np.array(rows, dtype=np.int32)
    cut = int(len(tokens) * (1 - config.data.held_out))
    needed = max(config.monitor.sequences, HELD_OUT_WINDOWS) * config.training.length
    if len(tokens) - cut < needed or cut <= config.training.length:
        raise ArmillaryError(
            f"{config.data.corpus} has {len(tokens)} tokens, of which {len(tokens) - cut} are held out: {needed} of "
            f"those and more than {config.training.length} others are needed"
        )
    return Text(tokens[:cut], tokens[cut:], tokenizer)


def _held_out(model: Any, tokens: Integer[np.ndarray, "token"], length: int, windows: int | None) -> float:
    return mean_loss(model, tokens if windows is None else tokens[: windows * length], length)


def _warnings(folder: Path) -> list[str]:
    """Every warning of the run, also of sessions before this one, each once."""
    rows = read_log(folder, "attention.jsonl")
    told = {re.sub(r" at step \d+", "", sentence): sentence for row in rows for sentence in reversed(row["warnings"])}
    return list(told.values())


def _refuse_other(config: RunConfig, folder: Path) -> None:
    """Two runs are not mixed; one that has no checkpoint yet may still change its settings."""
    if folder.exists() and not folder.is_dir():
        raise ArmillaryError(f"{folder} is a file: a run needs a folder; give another with --out")
    record = folder / "run.json"
    if record.is_file() and (last_checkpoint(folder / "work") or (folder / "result.json").is_file()):
        different = differences(read_settings(folder), json.loads(json.dumps(config.as_dict())))
        if different:
            raise ArmillaryError(
                f"{folder} holds a run with other settings ({'; '.join(different[:3])}): train into another folder"
            )
    elif not record.is_file() and folder.exists() and any(not _is_empty_work(path) for path in folder.iterdir()):
        raise ArmillaryError(f"{folder} holds other files: choose a new or empty folder")


def _is_empty_work(path: Path) -> bool:
    """Whether this is the folder of unfinished work with nothing but a lock in it."""
    return path.name == "work" and path.is_dir() and all(inside.name == "lock" for inside in path.iterdir())


def _note(config: RunConfig, folder: Path) -> None:
    """Write down what is trained here."""
    make_folder(folder)
    write_atomically(folder / "run.json", json.dumps(config.as_dict(), indent=1).encode())
