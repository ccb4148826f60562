"""Few-shot prompts of Wertich (§8.1): words with clues, then a word without one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int

from armillary.anatomy.loading import load_with_tokenizer
from armillary.errors import ArmillaryError
from armillary.papers.experiments.experiment import Settings
from armillary.papers.experiments.material import models
from armillary.probe.attention_map import AttentionMap
from armillary.text.words import Span, token_words, words_of

Shot = tuple[str, str]
"""A word and its clue."""

PRINTED: tuple[Shot, ...] = (
    ("Parrot", "Mimics you, but doesn't understand."),
    ("Butterfly", "Flutters by, colorfully."),
    ("Salmon", "Jumps upstream, but never down."),
)
"""The three shots of the prompt that §8.1 prints."""

POOL: tuple[Shot, ...] = (
    *PRINTED,
    ("Cat", "Purrs on your lap, hunts at night."),
    ("Dog", "Wags its tail when you come home."),
    ("Cow", "Gives milk and eats grass."),
    ("Hen", "Lays an egg every morning."),
    ("Frog", "Green, and jumps into the pond."),
    ("Bear", "Big and brown, sleeps in winter."),
    ("Fish", "Swims in the sea without a boat."),
    ("Owl", "Sees in the dark and says hoo."),
    ("Pig", "Pink, and happy in the mud."),
    ("Horse", "Runs fast and carries a rider."),
    ("Mouse", "Small, gray, and fond of cheese."),
    ("Duck", "Walks, swims, flies and quacks."),
)
TARGETS = ("Ant", "Bee", "Fox", "Raven", "Tarantula")
"""The last words of prompts, which have no clue: those of Figures A.9 to A.13."""


@dataclass(frozen=True)
class Form:
    """The template of a prompt: its start, the text around a word, and after a clue."""

    opening: str
    before_word: str
    before_clue: str
    after_clue: str


PLAIN = Form("A short clue for every word.\n", "Word: ", ". Clue: ", "\n")
"""For base models, which continue a text."""
INSTRUCTED = Form(
    "[INST] You are a crossword clue generator and have to generate a short clue for each input word from the category "
    "Animals. I will give you a word, and you have to output a brief description of the word, which will be engaging "
    "and challenging. Just give one answer, marking the end with a #. [/INST] Ok ",
    "[INST] Word: ",
    " [/INST]",
    "# ",
)
"""The prompt of §8.1, verbatim: the paper's setting."""


@dataclass(frozen=True)
class Piece:
    """A word or a clue of the prompt, and its position."""

    shot: int
    role: Literal["word", "clue"]
    span: Span


@dataclass(frozen=True)
class Prompt:
    """A text with its pieces; the last is the word without a clue."""

    text: str
    pieces: tuple[Piece, ...]
    target: str

    @property
    def spans(self) -> list[Span]:
        return [piece.span for piece in self.pieces]


@dataclass(frozen=True)
class PromptSettings:
    """Models, prompts, shots, template, tokens to generate, and seeds of random weights."""

    models: tuple[str, ...]
    prompts: int
    shots: int
    form: Form
    generate: int
    seeds: int


SMALL = PromptSettings(("stories15M", "bundled-llama", "bundled-gpt2"), 6, 3, PLAIN, 24, 2)
PAPER = PromptSettings(("mistralai/Mistral-7B-Instruct-v0.2",), 100, 3, INSTRUCTED, 24, 3)
NEEDS = (
    "mistralai/Mistral-7B-Instruct-v0.2 (28 GB in float32 on a CPU, 14 GB on a GPU); the thesis's 5000 clues are not "
    "public: --corpus FILE gives others, a line for each word, a tab, its clue"
)


def settings_for(settings: Settings) -> PromptSettings:
    return SMALL if settings.small else PAPER


def loaded(settings: Settings, also: tuple[str, ...] = ()) -> "dict[str, str]":
    """The models to run on the prompts, name -> path."""
    chosen = settings_for(settings)
    return models(settings, (*chosen.models, *also), chosen.models)


def opened(settings: Settings, place: str) -> tuple[Any, Any]:
    """A model and its tokenizer, on the chosen device."""
    return load_with_tokenizer(place, **settings.loading_for(place))


def prompts(settings: Settings) -> list[Prompt]:
    """Prompts with shots drawn from the pool, targets in turn; the first has the printed shots and the target 'Ant'."""
    chosen = settings_for(settings)
    pool = POOL if not settings.corpora else tuple(shot for place in settings.corpora for shot in read_shots(place))
    if len(pool) < chosen.shots:
        raise ArmillaryError(
            f"{len(pool)} words with clues are too few for {chosen.shots} shots", advice="give more lines"
        )
    rng = np.random.default_rng(0)
    written_prompts = [written(pool[: chosen.shots], TARGETS[0], chosen.form)]
    for number in range(1, chosen.prompts):
        drawn = [pool[i] for i in rng.choice(len(pool), chosen.shots, replace=False)]
        written_prompts.append(written(drawn, TARGETS[number % len(TARGETS)], chosen.form))
    return written_prompts


def read_shots(place: str) -> list[Shot]:
    """Words and clues of a file: word, tab, clue on every line."""
    path = Path(place)
    if not path.is_file():
        raise ArmillaryError(f"there is no file {place}: these experiments read words with clues from it")
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    for number, parts in enumerate(lines, start=1):
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise ArmillaryError(f"line {number} of {place} is not a word, a tab and its clue: {parts}")
    return [(word.strip(), clue.strip()) for word, clue in lines]


def written(shots: "list[Shot] | tuple[Shot, ...]", target: str, form: Form) -> Prompt:
    """The prompt with these shots, with the positions of its words and clues."""
    text, pieces = form.opening, []

    def add(shot: int, role: Literal["word", "clue"], piece: str) -> None:
        nonlocal text
        pieces.append(Piece(shot, role, (len(text), len(text) + len(piece))))
        text += piece

    for number, (word, clue) in enumerate(shots):
        text += form.before_word
        add(number, "word", word)
        text += form.before_clue
        add(number, "clue", clue)
        text += form.after_clue
    text += form.before_word
    add(len(shots), "word", target)
    return Prompt(text + form.before_clue.rstrip(), tuple(pieces), target)


def pieces_of(attention_map: AttentionMap, tokenizer: Any, prompt: Prompt) -> Int[np.ndarray, "word"]:
    """The index of the piece of every word in the map: the one with most of its characters."""
    words = (words_of if attention_map.level == "word" else token_words)(tokenizer, prompt.text)
    numbers = []
    for place in attention_map.place:
        start, end = words.spans[place]
        inside = [min(end, stop) - max(start, begin) for begin, stop in prompt.spans]
        numbers.append(int(np.argmax(inside)))
    return np.array(numbers, dtype=np.int64)


def tokens_of(tokenizer: Any, text: str) -> torch.Tensor:
    """The tokens of a text, as a batch of one."""
    return torch.as_tensor(tokenizer(text, return_tensors="pt")["input_ids"])
