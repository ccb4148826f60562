"""Text that repeats itself, for training induction heads, and what a model and its heads make of it.

Prose and code of this size repeat too little: heads that copy from an earlier occurrence are not worth their weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from armillary.anatomy.devices import input_device
from armillary.anatomy.modes import evaluating
from armillary.interventions.attention import replaced_output
from armillary.observe.view import AttentionView

Head = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True)
class Spans:
    """Spans of `shortest` to `longest` tokens, each 2 to `copies` times in a row.

    A share `random` of them are tokens drawn from the whole vocabulary, the others are cut from texts.
    """

    shortest: int
    longest: int
    copies: int
    random: float = 0.5


def repeated_spans(
    texts: list[Integer[np.ndarray, "_"]], vocabulary: int, count: int, spans: Spans, seed: int = 0
) -> Integer[np.ndarray, "count"]:
    """`count` tokens of repeated spans, one after the other. Token 0, which ends a text, is not drawn."""
    rng = np.random.default_rng([seed, spans.shortest, spans.longest, spans.copies])
    parts: list[np.ndarray] = []
    missing = count
    while missing > 0:
        length = int(rng.integers(spans.shortest, spans.longest + 1))
        if rng.random() < spans.random:
            span = rng.integers(1, vocabulary, length)
        else:
            text = texts[int(rng.integers(len(texts)))]
            begin = int(rng.integers(0, len(text) - length))
            span = text[begin : begin + length]
        parts.append(np.tile(span, int(rng.integers(2, spans.copies + 1))))
        missing -= len(parts[-1])
    return np.concatenate(parts)[:count].astype(np.uint16)


def two_copies(vocabulary: int, period: int, rows: int, seed: int = 0) -> Int[Tensor, "rows token"]:
    """Rows of `period` different random tokens, twice."""
    rng = np.random.default_rng(seed)
    copies = np.stack([rng.choice(np.arange(1, vocabulary), period, replace=False) for _ in range(rows)])
    return torch.from_numpy(np.concatenate([copies, copies], 1).astype(np.int64))


@torch.no_grad()
def copy_losses(model: Any, ids: Int[Tensor, "rows token"], without: Iterable[Head] = ()) -> tuple[float, float]:
    """Mean loss on the first and on the second copy of `two_copies`, in nats per token.

    The heads `without` have their mean output over these rows and positions in place of their own. Not counted: the
    first token, and the first one of the second copy, which nothing announces.
    """
    period = ids.shape[1] // 2
    removed = list(without)

    def mean_outputs(view: AttentionView) -> dict[int, Float[Tensor, "batch query ev"]]:
        assert view.output is not None
        here = [head for layer, head in removed if layer == view.layer]
        return {
            head: view.output[:, :, head].mean((0, 1), keepdim=True).expand_as(view.output[:, :, head]) for head in here
        }

    with evaluating(model), replaced_output(model, mean_outputs):
        logits = model(input_ids=ids.to(input_device(model))).logits.float()
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:].to(logits.device), reduction="none")
    return float(losses[:, : period - 1].mean()), float(losses[:, period:].mean())
