"""The model's loss on the scanned text, with and without a begin token, compared with two baselines.

On text unlike its training data, or without the begin token it was trained with, a model's heads are not
representative. The loss on a few sequences shows it.
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

from armillary.machine.float64 import wide
from armillary.text.sequences import Sequences

SEQUENCES = 4
"""The loss is measured on this many sequences, evenly spaced over the corpus."""

MOST_LOGITS = 1 << 26
"""At most this many logits are computed per sequence; with a larger vocabulary fewer positions are predicted."""


@dataclass(frozen=True)
class LossSample:
    """Sequences of plain text, the tokens that `bos` may put before them, and the positions that are predicted."""

    texts: Int[np.ndarray, "sequence token"]
    begin: tuple[int, ...]
    positions: tuple[int, ...]


def loss_sample(sequences: Sequences, vocabulary: int) -> LossSample | None:
    """A sample of the text; None if the sequences are not text. The last token is cut to make room for `begin`."""
    if not sequences.sources:
        return None
    texts = plain_texts(sequences)[:, : sequences.tokens.shape[1] - 1]
    rows = np.unique(np.linspace(0, len(texts) - 1, min(SEQUENCES, len(texts))).round().astype(int))
    most = max(1, MOST_LOGITS // max(1, vocabulary))
    candidates = np.arange(1, texts.shape[1])
    if not len(candidates):
        return None
    chosen = np.unique(np.linspace(0, len(candidates) - 1, min(most, len(candidates))).round().astype(int))
    begin = sequences.before or ((sequences.begin,) if sequences.begin is not None else ())
    return LossSample(texts[rows], tuple(begin), tuple(int(position) for position in candidates[chosen]))


def plain_texts(sequences: Sequences) -> Int[np.ndarray, "sequence token"]:
    """The sequences without their special tokens."""
    return sequences.tokens[:, len(sequences.before) : sequences.tokens.shape[1] - len(sequences.after)]


Losses = Float[np.ndarray, "sequence"]


@torch.no_grad()
def losses(model: Any, sample: LossSample, device: torch.device) -> dict[str, Losses]:
    """The mean loss of every sequence: 'without_begin' and, if there is a begin token, 'with_begin'."""
    prefixes = {"without_begin": (), **({"with_begin": sample.begin} if sample.begin else {})}
    losses_by_prefix = {}
    for name, prefix in prefixes.items():
        rows = [torch.tensor([[*prefix, *map(int, text)]], device=device) for text in sample.texts]
        positions = torch.tensor(sample.positions) + len(prefix)
        losses_by_prefix[name] = np.array([float(_loss(model, ids, positions)) for ids in rows])
    return losses_by_prefix


def _loss(model: Any, ids: Int[Tensor, "1 token"], positions: Int[Tensor, "position"]) -> Float[Tensor, ""]:
    """The mean loss of the tokens at these positions, with logits for these positions only if the model supports it.

    Other models predict the same number of tokens at the start of the text, so that the logits stay as small.
    """
    accepted = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in accepted else {}
    if "logits_to_keep" in accepted:
        logits = model(input_ids=ids, logits_to_keep=(positions - 1).to(ids.device), **options).logits[0]
    else:
        skipped = int(positions.min()) - 1
        positions = torch.arange(skipped + 1, skipped + 1 + len(positions))
        logits = model(input_ids=ids[:, : int(positions.max())], **options).logits[0, skipped:]
    logits = wide(logits)
    return cross_entropy(logits, ids[0, positions.to(ids.device)].to(logits.device))


def predicts_next(model: nn.Module, causal: bool | None) -> bool:
    """Whether the model predicts the next token: its attention is causal and it has an output embedding."""
    output_embedding = getattr(model, "get_output_embeddings", lambda: None)
    return causal is not False and output_embedding() is not None


def unigram_losses(texts: Int[np.ndarray, "text token"], sample: LossSample, vocabulary: int) -> Losses:
    """The loss of a unigram model of this text, each predicted token left out of its own count.

    p = (1 - u) (n - 1)/(N - 1) + u/V for a token that occurs n times among all N. u, the share of tokens that occur
    once, estimates the probability of an unseen token (Good-Turing): nothing is fitted but the counts.
    """
    counts = np.bincount(texts.ravel(), minlength=vocabulary)
    total = int(counts.sum())
    unseen = float((counts == 1).sum()) / total
    targets = counts[sample.texts[:, list(sample.positions)]]
    probability = (1 - unseen) * (targets - 1) / max(1, total - 1) + unseen / vocabulary
    return np.asarray(-np.log(probability).mean(1))


def summary(measured: dict[str, Losses], sequences: Sequences, sample: LossSample, vocabulary: int) -> dict[str, Any]:
    """Mean losses in nats per token, with standard errors over sequences; `chosen` is how the scan runs.

    begin_se is that of with_begin - without_begin, unigram_se that of the chosen loss minus the unigram loss.
    """
    unigram = unigram_losses(plain_texts(sequences), sample, vocabulary)
    chosen = "with_begin" if sequences.before else "without_begin"
    begin_effect = measured.get("with_begin", np.full(len(unigram), np.nan)) - measured["without_begin"]
    return {
        "chosen": chosen,
        "with_begin": _rounded(measured["with_begin"].mean()) if "with_begin" in measured else None,
        "without_begin": _rounded(measured["without_begin"].mean()),
        "begin_se": _rounded(_standard_error(begin_effect)),
        "unigram": _rounded(unigram.mean()),
        "unigram_se": _rounded(_standard_error(measured[chosen] - unigram)),
        "uniform": _rounded(math.log(vocabulary)),
        "blocks": len(unigram),
        "tokens": len(unigram) * len(sample.positions),
    }


def _standard_error(differences: Losses) -> float:
    count = len(differences)
    return float(differences.std(ddof=1) / math.sqrt(count)) if count > 1 else math.nan


def _rounded(value: float) -> float | None:
    """Four decimals, which do not depend on the number of threads; None if not finite."""
    return round(float(value), 4) if math.isfinite(value) else None


def chosen_loss(measured: dict[str, Any] | None) -> float | None:
    """The loss of the text as it was scanned, from a `summary`."""
    return None if not measured or "chosen" not in measured else measured[measured["chosen"]]


def sentence(measured: dict[str, Any] | None) -> str:
    """'loss 3.12 nats per token (3.46 without the begin token; 7.90 by ...)', or "" if it is not known."""
    loss = chosen_loss(measured)
    if measured is None or loss is None or measured["unigram"] is None or measured["uniform"] is None:
        return ""
    other = "without_begin" if measured["chosen"] == "with_begin" else "with_begin"
    alternative = "" if measured[other] is None else f"{measured[other]:.2f} {other.split('_')[0]} the begin token; "
    baselines = f"{measured['unigram']:.2f} by the tokens' frequencies, {measured['uniform']:.2f} by chance"
    return f"loss {loss:.2f} nats per token ({alternative}{baselines})"


def notes(measured: dict[str, Any] | None) -> list[str]:
    """Warnings: the other choice of begin token gives a lower loss, or the model predicts this text badly."""
    loss = chosen_loss(measured)
    if measured is None or loss is None:
        return []
    if measured["unigram"] is not None and loss > measured["unigram"] - (measured["unigram_se"] or 0.0):
        return [
            f"this model does not know this text: its loss is {loss:.2f} nats per token, that of the tokens' "
            f"frequencies alone {measured['unigram']:.2f} (and {measured['uniform']:.2f} by chance)"
        ]
    chosen, other = measured["chosen"], "without_begin" if measured["chosen"] == "with_begin" else "with_begin"
    error = measured["begin_se"]
    if measured[other] is not None and error is not None and loss - measured[other] > error:
        option = "always" if other == "with_begin" else "never"
        return [
            f"this model predicts the text better {other.split('_')[0]} a begin token ({measured[other]:.2f} against "
            f"{loss:.2f} nats per token {chosen.split('_')[0]} it, standard error {error:.2f}): consider "
            f"`bos={option}`"
        ]
    return []
