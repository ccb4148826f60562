"""Train the two models that come with Armillary: python -m armillary.training.recipe {gpt2,llama} FOLDER.

Both are trained on Python's own documentation and sources (the built-in corpora), with one byte-level tokenizer, and on
spans that repeat: text alone makes no induction heads in so short a time. The first stage has short windows, where few
keys compete for attention, so that a head that finds the right one is noticed early. A tenth of the modules, chosen by
a hash of their names, is held out.

FOLDER/model is the finished model, FOLDER/checkpoints has some steps for a timeline. training.json, beside the weights,
says how it was trained, its loss on held-out prose, and its loss on repeated random tokens with and without its
induction heads. Killed and started again, it continues; on one thread it gives the same bits.

Only llama's weights are of this recipe. Those of gpt2 are still of the one before it, 1,500 steps of text alone: in
trials of the first stage (up to 1,100 steps) its learned positions made no previous-token head, so no induction head.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.modes import one_thread
from armillary.atlas.atlas import Atlas
from armillary.files.atomic import whole_folder, write_atomically
from armillary.files.lock import FolderLock
from armillary.scanning.scan import scan
from armillary.text.builtin import python_version
from armillary.training.bundled import CONTEXT, FAMILIES, SHAPE, VOCABULARY, held_out_loss, make_tokenizer, tokens
from armillary.training.checkpoints import CheckpointConfig, Keeper
from armillary.training.loop import Part, TrainSettings, train
from armillary.training.repeats import Spans, copy_losses, repeated_spans, two_copies

# Imports inside functions: transformers takes seconds to import.


@dataclass(frozen=True)
class Stage:
    """A part of the training: its settings, and the share and kind of spans that repeat; the rest is prose and code."""

    name: str
    settings: TrainSettings
    repeated: float
    spans: Spans


STAGES = (
    Stage(
        "short windows",
        TrainSettings(
            steps=600, batch=64, length=64, learning_rate=3e-3, final_rate=2e-3, warmup=100, checkpoint_every=100
        ),
        repeated=0.9,
        spans=Spans(4, 24, copies=8),
    ),
    Stage(
        "long windows",
        TrainSettings(
            steps=2000, batch=16, length=CONTEXT, learning_rate=2e-3, final_rate=5e-5, warmup=50, checkpoint_every=100
        ),
        repeated=0.25,
        spans=Spans(8, 100, copies=4),
    ),
)
PROSE = 0.6
"""Of what does not repeat, this share is prose, the rest code."""

KEPT = (*(2**k for k in range(6)), *range(0, 600, 50), *range(600, 1200, 100), *range(1200, 2601, 200))
"""Steps whose models are kept for a timeline."""

REPEATED_TOKENS = 2_000_000
"""How many tokens of repeated spans the windows of a stage are cut from."""

SINUSOIDS = 0.05
"""Amplitude of the sinusoids that learned positions begin as; token embeddings begin with a deviation of 0.02."""

PERIOD, ROWS = 64, 64
"""The record's loss on repeated random tokens: so many tokens a copy, so many sequences."""


def fresh_model(family: str) -> Any:
    """The model before training. The learned positions of gpt2 begin as sinusoids: neighbors are then alike.

    Matrix products and attention run in bfloat16 while it is trained, which takes half the time; sums, norms, softmax
    and the weights themselves are in float32.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SHAPE, **FAMILIES[family]))
    model.config.use_cache = False
    model.set_attn_implementation("eager")  # on a CPU, in bfloat16, faster than sdpa
    if family == "gpt2":
        positions = model.transformer.wpe.weight
        with torch.no_grad():
            positions.copy_(SINUSOIDS * sinusoids(*positions.shape))
    return model


def sinusoids(count: int, width: int) -> Float[Tensor, "count width"]:
    """sin and cos of the position times frequencies from 1 down to 1/1000."""
    frequencies = 1000.0 ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    angles = torch.arange(count, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1).float()


def train_stages(model: Any, tokenizer: Any, folder: Path, stages: Sequence[Stage] = STAGES) -> float:
    """Train a model through the stages, keeping the steps KEPT; returns the processor minutes that it took."""
    texts = [tokens(tokenizer, kind, testing=False) for kind in ("prose", "code")]
    total = sum(stage.settings.steps for stage in stages)
    kept = CheckpointConfig(keep=[step for step in dict.fromkeys(KEPT) if step <= total])
    keeper = Keeper(model, tokenizer, kept, total, folder)
    plain = model.forward
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(plain)
    before, minutes = 0, 0.0
    for number, stage in enumerate(stages):
        repeated = repeated_spans(texts, VOCABULARY, REPEATED_TOKENS, stage.spans, seed=number)
        rest = 1 - stage.repeated
        parts = [
            Part(tokens, weight)
            for tokens, weight in zip(
                (*texts, repeated), (rest * PROSE, rest * (1 - PROSE), stage.repeated), strict=True
            )
        ]
        place = folder / "run" / f"stage-{number}"
        log = place / "steps.jsonl"
        train(
            model,
            parts,
            replace(stage.settings, seed=number),
            place,
            _Log(log, stage, before, total),
            logs=[log],
            keep=partial(_keep, keeper, before),
        )
        minutes += sum(json.loads(line)["seconds"] for line in log.read_text(encoding="utf-8").splitlines()) / 60
        before += stage.settings.steps
    model.forward = plain
    return minutes


def _keep(keeper: Keeper, before: int, step: int) -> None:
    """Keep a step of a stage that `before` steps precede."""
    if step or not before:
        keeper(before + step)


class _Log:
    """Writes loss and processor seconds every 20 steps, and shows them."""

    def __init__(self, path: Path, stage: Stage, before: int, total: int) -> None:
        self._path, self._stage, self._before, self._total = path, stage, before, total
        self._clock = process_time()

    def __call__(self, step: int, loss: float) -> None:
        if (step + 1) % 20 and step + 1 != self._stage.settings.steps:
            return
        now = process_time()
        line = {"step": self._before + step + 1, "loss": round(loss, 4), "seconds": round(now - self._clock, 2)}
        self._clock = now
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        sys.stderr.write(f"{self._stage.name}: step {line['step']} of {self._total}, loss {loss:.4f}\n")


def make(family: str, folder: Path, stages: Sequence[Stage] = STAGES) -> None:
    """Train one of the two models, write it as a Hugging Face folder and record what was measured."""
    from transformers import AutoModelForCausalLM

    tokenizer, model = make_tokenizer(), fresh_model(family)
    with FolderLock(folder, "training run"), one_thread():
        minutes = train_stages(model, tokenizer, folder, stages)
        model.set_attn_implementation("sdpa")
        final = folder / "model"
        with whole_folder(final) as partial_folder:
            model.to(torch.float16).save_pretrained(partial_folder)
            tokenizer.save_pretrained(partial_folder)
        trained = AutoModelForCausalLM.from_pretrained(final, dtype=torch.float32).eval()
        facts = {
            "held_out_loss": round(held_out_loss(trained, tokenizer), 4),
            "parameters": sum(p.numel() for p in model.parameters()),
            "trained_on_tokens": sum(s.settings.steps * s.settings.batch * s.settings.length for s in stages),
            "processor_minutes": round(minutes, 1),
            "repeated_tokens": what_induction_does(trained, scan(final, "builtin:prose")),
            "stages": [asdict(stage) for stage in stages],
            "python": python_version(),
        }
    write_atomically(final / "training.json", (json.dumps(facts, indent=1) + "\n").encode())
    sys.stdout.write(json.dumps(facts) + "\n")


def what_induction_does(model: Any, atlas: Atlas) -> dict[str, Any]:
    """Losses on two copies of random tokens, with all heads, without the significant induction heads, and without as
    many others: those of the nearest layers that are neither induction nor previous-token heads."""
    heads = atlas.heads
    significant = heads[heads["significant"].fillna(value=False).astype(bool)]
    by_label = {
        label: [(int(layer), int(head)) for layer, head in part[["layer", "head"]].to_numpy()]
        for label, part in significant.groupby("label")
    }
    induction = by_label.get("induction", [])
    circuit = {*induction, *by_label.get("previous", [])}
    middle = sum(layer for layer, _ in induction) / max(1, len(induction))
    free = [(layer.index, head) for layer in atlas.anatomy.layers for head in range(layer.heads)]
    nearest = sorted((place for place in free if place not in circuit), key=lambda place: abs(place[0] - middle))
    others = sorted(nearest[: len(induction)])
    ids = two_copies(VOCABULARY, PERIOD, ROWS)
    first, second = copy_losses(model, ids)
    return {
        "period": PERIOD,
        "heads": {label: [f"{layer}.{head}" for layer, head in places] for label, places in sorted(by_label.items())},
        "first_copy": round(first, 4),
        "second_copy": round(second, 4),
        "second_copy_without_induction_heads": round(copy_losses(model, ids, induction)[1], 4),
        "second_copy_without_others": round(copy_losses(model, ids, others)[1], 4),
        "others": [f"{layer}.{head}" for layer, head in others],
    }


def measure_again(folder: Path) -> None:
    """Measure what induction heads do in a model that is trained, and write it into its record."""
    from transformers import AutoModelForCausalLM

    record = json.loads((folder / "training.json").read_text())
    with one_thread():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        record["repeated_tokens"] = what_induction_does(model, scan(folder, "builtin:prose"))
    write_atomically(folder / "training.json", (json.dumps(record, indent=1) + "\n").encode())
    sys.stdout.write(json.dumps(record["repeated_tokens"]) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measure_again(Path(sys.argv[2]))
    else:
        make(sys.argv[1], Path(sys.argv[2]))
