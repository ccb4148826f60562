"""Train small transformers on addition, character by character, and measure how often the answer is right.

A problem is the string a + b = c and an end mark, where a and b have the same number of digits and c is learned (Song
4.3 and D.3). At small size the digits are written from the units up, the order of the carries; the paper does not say
its order. A tenth of all pairs (a, b) is held out.
"""

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from armillary.anatomy.devices import input_device, pick_device
from armillary.files.atomic import whole_folder, write_atomically
from armillary.files.lock import FolderLock
from armillary.papers.experiments.experiment import Settings
from armillary.training.config import ModelConfig, RunConfig
from armillary.training.data import Text
from armillary.training.loop import Part, TrainSettings, train
from armillary.training.models import build

# Imports inside functions: transformers takes seconds to import.

Position = Literal["learned", "rotary"]
FAMILY: dict[str, str] = {"learned": "gpt2", "rotary": "llama"}
CHARACTERS = "0123456789+=;"
PLUS, EQUALS, END = 10, 11, 12
TRAINING, HELD_OUT, MEASURED = range(3)
"""What problems are used for; each use has its own random numbers."""


@dataclass(frozen=True)
class Task:
    """The problems, the transformer and its training.

    initial_scale: standard deviation of the initial matrices over GPT-2's (0.02, meant for a width of 768). Narrow
    models leave the initial plateau, before they find the digits to add, much sooner with a larger one.
    """

    shortest: int
    longest: int
    tested: tuple[int, ...]
    units_first: bool
    layers: int
    heads: int
    width: int
    steps: int
    batch: int
    learning_rate: float
    initial_scale: float
    problems: int
    seeds: int

    @property
    def window(self) -> int:
        """The length of the longest training sequence, a + b = c without its end mark: 33 for ten digits."""
        return 3 * self.longest + 3

    @property
    def context(self) -> int:
        """The number of positions of the longest test problem."""
        return 3 * max(self.longest, *self.tested) + 4


SMALL = Task(
    shortest=2,
    longest=4,
    tested=(1, 2, 3, 4, 5, 6),
    units_first=True,
    layers=3,
    heads=4,
    width=64,
    steps=3000,
    batch=64,
    learning_rate=2e-3,
    initial_scale=4.0,
    problems=100_000,
    seeds=3,
)
PAPER = Task(
    shortest=5,
    longest=10,
    tested=tuple(range(1, 13)),
    units_first=False,
    layers=4,
    heads=4,
    width=256,
    steps=10_000,
    batch=64,
    learning_rate=1e-4,
    initial_scale=1.0,
    problems=640_000,
    seeds=3,
)


@dataclass(frozen=True)
class Problems:
    """Token rows, padded with end marks, and the positions of their answers (including the end mark)."""

    tokens: Int[np.ndarray, "problem token"]
    answer: Bool[np.ndarray, "problem token"]


def draw_problems(
    task: Task, use: int, lengths: tuple[int, ...], count: int, seed: int, *, room: int | None = None
) -> Problems:
    """Random problems whose operands have `lengths` digits, in rows of `room` tokens.

    TRAINING and HELD_OUT problems have no pair (a, b) in common.
    """
    rng = np.random.default_rng([seed, use])
    n, a, b = (np.zeros(0, dtype=np.int64) for _ in range(3))
    while len(a) < count:
        more = rng.choice(np.array(lengths), 2 * count)
        x, y = (rng.integers(np.where(more > 1, 10 ** (more - 1), 0), 10**more) for _ in range(2))
        allowed = np.ones(len(x), bool) if use == MEASURED else held_out(x, y) == (use == HELD_OUT)
        n, a, b = (np.concatenate([old, new[allowed]]) for old, new in ((n, more), (a, x), (b, y)))
    return _written(n[:count], a[:count], b[:count], task, room or 3 * max(lengths) + 4)


def held_out(a: Int[np.ndarray, "n"], b: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Whether a pair is held out from training: a tenth of all, by a rule that depends on all digits."""
    return np.asarray((7919 * a + 104_729 * b) % 101 < 10)


def _written(
    n: Int[np.ndarray, "c"], a: Int[np.ndarray, "c"], b: Int[np.ndarray, "c"], task: Task, room: int
) -> Problems:
    tokens, answer = np.full((len(n), room), END), np.zeros((len(n), room), dtype=bool)
    total = a + b
    carried = total >= 10**n
    for length in np.unique(n):
        for carry in (False, True):
            rows = np.flatnonzero((n == length) & (carried == carry))
            start, stop = 2 * length + 2, 3 * length + 2 + carry
            tokens[rows, :length] = _digits(a[rows], int(length), task.units_first)
            tokens[rows, length] = PLUS
            tokens[rows, length + 1 : start - 1] = _digits(b[rows], int(length), task.units_first)
            tokens[rows, start - 1] = EQUALS
            tokens[rows, start:stop] = _digits(total[rows], int(length) + carry, task.units_first)
            answer[rows, start : stop + 1] = True
    return Problems(tokens, answer)


def _digits(values: Int[np.ndarray, "c"], count: int, units_first: bool) -> Int[np.ndarray, "c n"]:
    digits = values[:, None] // 10 ** np.arange(count) % 10
    return digits if units_first else digits[:, ::-1]


def as_text(row: Int[np.ndarray, "token"]) -> str:
    """A row of tokens as a string."""
    return "".join(CHARACTERS[token] for token in row)


class Answers(nn.Module):
    """A language model with the loss of the answers only. Its input is the indices of problems, (batch, 1)."""

    def __init__(self, model: Any, problems: Problems) -> None:
        super().__init__()
        self.model = model
        self.tokens: Tensor
        self.answer: Tensor
        self.register_buffer("tokens", torch.from_numpy(problems.tokens), persistent=False)
        self.register_buffer("answer", torch.from_numpy(problems.answer), persistent=False)

    def forward(self, input_ids: Int[Tensor, "batch 1"], labels: Int[Tensor, "batch 1"]) -> Any:
        rows, answer = self.tokens[input_ids[:, 0]], self.answer[input_ids[:, 0]]
        return self.model(input_ids=rows, labels=rows.masked_fill(~answer, -100))


def untrained(task: Task, position: Position, seed: int) -> Any:
    """The transformer with random weights, with positions for the longest test problem."""
    shape = ModelConfig(family=FAMILY[position], layers=task.layers, heads=task.heads, width=task.width)
    usual = TrainSettings(steps=task.steps, length=task.context, warmup=0, seed=seed)
    nothing = np.zeros(0, dtype=np.int32)
    model, _ = build(RunConfig(model=shape, training=usual), Text(nothing, nothing, character_tokenizer(CHARACTERS)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(task.initial_scale)
    return model.eval()


def trained_adder(settings: Settings, task: Task, position: Position, seed: int) -> Path:
    """The folder of the trained transformer, trained once; an interrupted run resumes."""
    options = {**asdict(task), "position": position, "seed": seed}
    options = {name: value for name, value in options.items() if name not in ("tested", "seeds")} | {
        "context": task.context
    }
    key = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
    folder = settings.work / "runs" / f"addition-{position}-{seed}-{key}"
    if not (folder / "result.json").exists():
        settings.say(f"training addition with {position} positions, seed {seed}: {task.steps} steps")
        with FolderLock(folder, "training run"):
            _train_adder(folder, options, task, position, seed, settings.loading.get("device", "auto"))
    return folder


def _train_adder(folder: Path, options: dict[str, Any], task: Task, position: Position, seed: int, device: str) -> None:
    """Train it in its folder, which the caller has locked."""
    lengths = tuple(range(task.shortest, task.longest + 1))
    problems = draw_problems(task, TRAINING, lengths, task.problems, seed)
    model, start, losses = untrained(task, position, seed), time.process_time(), []
    how = TrainSettings(
        steps=task.steps,
        batch=task.batch,
        length=1,
        learning_rate=task.learning_rate,
        final_rate=task.learning_rate / 50,
        warmup=min(100, task.steps // 10),
        seed=seed,
        checkpoint_every=max(1, task.steps // 10),
    )
    train(
        Answers(model, problems).to(pick_device(device)),
        [Part(np.arange(task.problems + 1), 1.0)],  # a window is one token, the index of a problem
        how,
        folder / "work",
        lambda step, loss: losses.append(loss),
    )
    with whole_folder(folder / "model") as place:
        model.save_pretrained(place)
    result = {"settings": options, "last_losses": losses[-20:], "seconds": time.process_time() - start}
    write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())


@torch.no_grad()
def exactly_right(model: Any, problems: Problems, batch: int = 256) -> Bool[np.ndarray, "problem"]:
    """Whether the model would write the whole answer and its end mark.

    Each token is the argmax after the true tokens before it; if all are right, so is greedy generation.
    """
    correct = []
    for start in range(0, len(problems.tokens), batch):
        rows = torch.from_numpy(problems.tokens[start : start + batch])
        guesses = model(input_ids=rows[:, :-1].to(input_device(model))).logits.argmax(-1).cpu().numpy()
        right = (guesses == rows[:, 1:].numpy()) | ~problems.answer[start : start + batch, 1:]
        correct.append(right.all(1))
    return np.concatenate(correct)


def character_tokenizer(characters: str) -> Any:
    """A tokenizer whose tokens are these characters; the last is the end of text and the unknown token."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(
        models.WordLevel({character: i for i, character in enumerate(characters)}, unk_token=characters[-1])
    )
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=characters[-1], eos_token=characters[-1])
