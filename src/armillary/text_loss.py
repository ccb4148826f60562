"""How well a model predicts the text that is scanned: with and without a begin token, and beside two guesses.

A model out of its element (without the token that its texts began with, or on text of a kind that it never read) has
heads like any other, and numbers that say nothing of it. A few blocks tell.
"""

import inspect
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from armillary.corpus import Blocks

ASKED = 4
"""So many blocks are predicted, evenly spaced over the corpus."""

MOST_LOGITS = 1 << 26
"""So many numbers a block's logits may have; of a longer text or a larger vocabulary fewer places are predicted."""


@dataclass(frozen=True)
class Asked:
    """Blocks of plain text, what may stand before them, and the places (of the text) whose tokens are predicted."""

    texts: Int[np.ndarray, "block token"]
    begin: tuple[int, ...]
    places: tuple[int, ...]


def asked_of(blocks: Blocks, vocabulary: int) -> Asked | None:
    """What to ask of a model about its text; None where blocks are not text. The last token makes room for `begin`."""
    if not blocks.sources:
        return None
    texts = plain_texts(blocks)[:, : blocks.tokens.shape[1] - 1]
    rows = np.unique(np.linspace(0, len(texts) - 1, min(ASKED, len(texts))).round().astype(int))
    most = max(1, MOST_LOGITS // max(1, vocabulary))
    following = np.arange(1, texts.shape[1])
    if not len(following):
        return None
    places = following[np.unique(np.linspace(0, len(following) - 1, min(most, len(following))).round().astype(int))]
    begin = blocks.before or ((blocks.begin,) if blocks.begin is not None else ())
    return Asked(texts[rows], tuple(begin), tuple(int(place) for place in places))


def plain_texts(blocks: Blocks) -> Int[np.ndarray, "block token"]:
    """The blocks without the special tokens around them."""
    return blocks.tokens[:, len(blocks.before) : blocks.tokens.shape[1] - len(blocks.after)]


Losses = Float[np.ndarray, "block"]


@torch.no_grad()
def losses(model: Any, asked: Asked, device: torch.device) -> dict[str, Losses]:
    """The mean loss of the asked places of every block, 'without_begin' and, if there is one, 'with_begin'."""
    ways = {"without_begin": (), **({"with_begin": asked.begin} if asked.begin else {})}
    found = {}
    for name, begin in ways.items():
        rows = [torch.tensor([[*begin, *map(int, text)]], device=device) for text in asked.texts]
        places = torch.tensor(asked.places) + len(begin)
        found[name] = np.array([float(_loss(model, ids, places)) for ids in rows])
    return found


def _loss(model: Any, ids: Int[Tensor, "1 token"], places: Int[Tensor, "place"]) -> Float[Tensor, ""]:
    """The mean loss of the tokens at these places; logits are made of them alone where the model can do that.

    Elsewhere they are made of as many first tokens as there are places, which keeps them as small.
    """
    taken = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in taken else {}
    if "logits_to_keep" in taken:
        logits = model(input_ids=ids, logits_to_keep=(places - 1).to(ids.device), **options).logits[0]
    else:
        skipped = int(places.min()) - 1
        places = torch.arange(skipped + 1, skipped + 1 + len(places))
        logits = model(input_ids=ids[:, : int(places.max())], **options).logits[0, skipped:]
    return cross_entropy(logits.double(), ids[0, places.to(ids.device)].to(logits.device))


def predicts_next(model: nn.Module, causal: bool | None) -> bool:
    """Whether the model is one that predicts the next token: it looks back only, and has a head for the vocabulary."""
    head = getattr(model, "get_output_embeddings", lambda: None)
    return causal is not False and head() is not None


def unigram_losses(texts: Int[np.ndarray, "text token"], asked: Asked, vocabulary: int) -> Float[np.ndarray, "block"]:
    """The loss of a guess that only knows how frequent each token is in this very text, each token left out in turn.

    p = (1 - u) (n - 1)/(N - 1) + u/V for a token that stands n times among all N. u, the share of tokens that stand
    once, is about the probability of one never seen before (Good and Turing): nothing is fitted but the counts.
    """
    counts = np.bincount(texts.ravel(), minlength=vocabulary)
    total = int(counts.sum())
    unseen = float((counts == 1).sum()) / total
    targets = counts[asked.texts[:, list(asked.places)]]
    chance = (1 - unseen) * (targets - 1) / max(1, total - 1) + unseen / vocabulary
    return np.asarray(-np.log(chance).mean(1))


def summary(found: dict[str, Losses], blocks: Blocks, asked: Asked, vocabulary: int) -> dict[str, Any]:
    """Mean losses in nats per token, `chosen` being what the scan does, with standard errors over blocks.

    begin_se is that of with_begin - without_begin, unigram_se that of the chosen one less the unigram's.
    """
    guess = unigram_losses(plain_texts(blocks), asked, vocabulary)
    chosen = "with_begin" if blocks.before else "without_begin"
    both = found.get("with_begin", np.full(len(guess), np.nan)) - found["without_begin"]
    return {
        "chosen": chosen,
        "with_begin": _rounded(found["with_begin"].mean()) if "with_begin" in found else None,
        "without_begin": _rounded(found["without_begin"].mean()),
        "begin_se": _rounded(_error(both)),
        "unigram": _rounded(guess.mean()),
        "unigram_se": _rounded(_error(found[chosen] - guess)),
        "uniform": _rounded(math.log(vocabulary)),
        "blocks": len(guess),
        "tokens": len(guess) * len(asked.places),
    }


def _error(differences: Losses) -> float:
    count = len(differences)
    return float(differences.std(ddof=1) / math.sqrt(count)) if count > 1 else math.nan


def _rounded(value: float) -> float | None:
    """Four digits after the point, which do not depend on the number of threads; None where there is none."""
    return round(float(value), 4) if math.isfinite(value) else None


def chosen_loss(told: dict[str, Any] | None) -> float | None:
    """The loss of the text as it was scanned."""
    return None if not told or "chosen" not in told else told[told["chosen"]]


def sentence(told: dict[str, Any] | None) -> str:
    """'loss 3.12 nats per token (3.46 without the begin token; guesses: ...)', or nothing where it is not known."""
    loss = chosen_loss(told)
    if told is None or loss is None or told["unigram"] is None or told["uniform"] is None:
        return ""
    other = "without_begin" if told["chosen"] == "with_begin" else "with_begin"
    beside = "" if told[other] is None else f"{told[other]:.2f} {other.split('_')[0]} the begin token; "
    guesses = f"{told['unigram']:.2f} by the tokens' frequencies, {told['uniform']:.2f} by chance"
    return f"loss {loss:.2f} nats per token ({beside}{guesses})"


def notes(told: dict[str, Any] | None) -> list[str]:
    """What a person should know: the other choice suits the model better, or it does not know this text at all."""
    loss = chosen_loss(told)
    if told is None or loss is None:
        return []
    if told["unigram"] is not None and loss > told["unigram"] - (told["unigram_se"] or 0.0):
        return [
            f"this model does not know this text: its loss is {loss:.2f} nats per token, that of a guess that only "
            f"knows how frequent the tokens are {told['unigram']:.2f} (and {told['uniform']:.2f} by chance)"
        ]
    chosen, other = told["chosen"], "without_begin" if told["chosen"] == "with_begin" else "with_begin"
    if told[other] is not None and told["begin_se"] is not None and loss - told[other] > told["begin_se"]:
        option = "always" if other == "with_begin" else "never"
        return [
            f"this model predicts the text better {other.split('_')[0]} a begin token ({told[other]:.2f} against "
            f"{loss:.2f} nats per token {chosen.split('_')[0]} it, standard error {told['begin_se']:.2f}): consider "
            f"--bos {option}"
        ]
    return []
