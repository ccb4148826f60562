"""The models and texts of Song's experiments, and the paper's model and text that each is closest to."""

from dataclasses import dataclass
from pathlib import Path

from armillary.anatomy.description import Alibi, Rotary
from armillary.atlas.atlas import Atlas
from armillary.papers.experiments.experiment import Settings
from armillary.papers.experiments.material import atlas_of, corpora, models, small_models

OF_LAYERS = ("positions", "covariance")
OF_HEADS = (*OF_LAYERS, "attention", "constituents", "patterns")
"""The streams for every text, and for the one text on which heads are measured."""


@dataclass(frozen=True)
class Plan:
    """`sequences` sequences of `length` tokens; the constituents are measured on the first `second_pass`."""

    length: int
    sequences: int
    second_pass: int


SMALL = Plan(length=128, sequences=128, second_pass=48)
PAPER = Plan(length=512, sequences=6400, second_pass=256)

SMALL_MODELS = ("bundled-gpt2", "bundled-llama", "stories15M")
PAPER_MODELS = ("gpt2", "bert-base-uncased", "bigscience/bloom-560m", "meta-llama/Llama-2-7b-hf")
TOPICS = tuple(f"shared:corpora/topics/{name}" for name in ("openwebtext", "wikitext", "github"))
PAPER_CORPORA = (
    "hf:Skylion007/openwebtext:train:text",
    "hf:wikitext:wikitext-103-raw-v1:train:text",
    "hf:codeparrot/github-code:train:code",
)
NEEDS = "GPT-2, BERT, BLOOM-560M and Llama-2-7B; 6400 blocks of 512 tokens of OpenWebText, WikiText and GitHub"
SMALLER = "a much smaller model, on 128 blocks of 128 tokens"
NOISY = f"{SMALLER}: a mean over few texts leaves noise in every pos_t (more texts were not tried)"


def chosen_models(settings: Settings, small: tuple[str, ...] = SMALL_MODELS) -> dict[str, str]:
    """The models of these experiments, name -> path."""
    return models(settings, small, PAPER_MODELS)


def chosen_corpora(settings: Settings, small: tuple[str, ...]) -> dict[str, str]:
    """The texts of these experiments, name -> source."""
    return corpora(settings, small, PAPER_CORPORA)


def topics(settings: Settings) -> tuple[str, str]:
    """Text of few documents, for clusters: the four of OpenWebText if they exist here, else built-in prose."""
    texts = chosen_corpora(settings, (TOPICS[0], "builtin:prose"))
    return next(iter(texts.items()))


def home(settings: Settings) -> str:
    """The text on which heads are measured, and with which other texts are compared."""
    default = ("builtin:prose",) if settings.small else PAPER_CORPORA
    return next(iter(corpora(settings, default, default).values()))


def read(settings: Settings, model: str, corpus: str) -> Atlas:
    """The atlas that Song's experiments share; with streams of heads for the home text."""
    plan = SMALL if settings.small else PAPER
    return atlas_of(
        settings,
        model,
        corpus,
        length=plan.length,
        sequences=plan.sequences,
        second_pass=plan.second_pass,
        by_document=Path(corpus).is_dir(),
        streams=OF_HEADS if corpus == home(settings) else OF_LAYERS,
    )


def like(atlas: Atlas) -> str:
    """The paper's model with the same kind of positions: GPT2, BERT, BLOOM or Llama2."""
    layer = atlas.anatomy.layers[0]
    if isinstance(layer.position, Rotary):
        return "Llama2"
    if isinstance(layer.position, Alibi):
        return "BLOOM"
    return "GPT2" if layer.causal else "BERT"


def rotary(atlas: Atlas) -> bool:
    return like(atlas) == "Llama2"


def text_like(corpus: str) -> str:
    """The paper's corpus closest to a text: GitHub for code, WikiText for names with 'wiki'."""
    name = corpus.lower()
    if "code" in name or "github" in name:
        return "GitHub"
    return "WikiText" if "wiki" in name else "OpenWebText"


def in_words(model: str) -> str:
    return {"GPT2": "GPT-2", "Llama2": "Llama 2"}.get(model, model)


def learned_positions(settings: Settings) -> dict[str, str]:
    """The model with learned positions for the figures of GPT-2 (or `settings.models`)."""
    if settings.models:
        return chosen_models(settings)
    return {"bundled-gpt2": small_models()["bundled-gpt2"]} if settings.small else {"gpt2": "gpt2"}
