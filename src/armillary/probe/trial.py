"""A model on one text before and after a change: loss, attention entropy, and the continuation."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from armillary.anatomy.layout import entry
from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError
from armillary.machine.limits import OPERATIONS, refuse_beyond_patience
from armillary.observe.precision import wide
from armillary.observe.tap import Tap
from armillary.progress import Progress
from armillary.streams.attention import AttentionStatistics
from armillary.streams.stream import Stream

Change = Callable[[nn.Module], AbstractContextManager[nn.Module]]
"""An intervention with its settings: gives the context in which the model is changed."""


@dataclass(frozen=True)
class Run:
    """One run: mean loss per token in nats (None if the model predicts no next token), entropies, the continuation."""

    loss: float | None
    entropy: Float[np.ndarray, "layer head"]
    entropy_norm: Float[np.ndarray, "layer head"]
    written: str | None


@dataclass(frozen=True)
class Trial:
    """The same text before and after."""

    before: Run
    after: Run

    def layers(self) -> pd.DataFrame:
        """Mean attention entropy of every layer, before and after, in nats."""
        means = {name: run.entropy.mean(1) for name, run in (("before", self.before), ("after", self.after))}
        table = pd.DataFrame({"layer": np.arange(len(self.before.entropy)), **means})
        return table.assign(change=table["after"] - table["before"])


def trial(
    model: nn.Module, tokenizer: Any, text: str, change: Change, *, generate: int = 0, progress: Progress | None = None
) -> Trial:
    """Run the text through the model, and again with the change."""
    tokens = tokenizer(text, return_tensors="pt")["input_ids"].to(next(model.parameters()).device)
    anatomy = describe(model)
    if generate < 0:
        raise ArmillaryError(
            f"{generate} tokens cannot be generated", advice="give 0 or more", given=generate, expected="0 or more"
        )
    if anatomy.vocabulary and tokens.numel() and int(tokens.max()) >= anatomy.vocabulary:
        raise ArmillaryError("the tokenizer gives tokens outside the vocabulary: it does not belong to this model")
    if tokens.shape[1] < 3:
        raise ArmillaryError(f"the text {text!r} has {tokens.shape[1]} tokens", advice="give a longer one")
    anatomy.check_length(tokens.shape[1] + generate)
    _refuse_too_many(generate, tokens.shape[1], sum(weight.numel() for weight in model.parameters()))
    before = run(model, tokenizer, tokens, generate, progress)
    with change(model):
        after = run(model, tokenizer, tokens, generate, progress)
    return Trial(before, after)


def _refuse_too_many(count: int, length: int, weights: int) -> None:
    """Raise if generating would take too long: each new token runs the whole text again."""
    ran = count * length + count * (count - 1) / 2
    what = f"generating {count} tokens before and after the change"
    refuse_beyond_patience(2 * 2.0 * weights * ran / OPERATIONS, what, "ask for fewer")


@torch.no_grad()
def run(
    model: nn.Module,
    tokenizer: Any,
    tokens: Int[Tensor, "1 token"],
    generate: int = 0,
    progress: Progress | None = None,
) -> Run:
    """Loss, entropies and the greedy continuation."""
    statistics = Stream(AttentionStatistics(skip=1, length=tokens.shape[1]))
    loss = None
    with evaluating(model), Tap(model, lambda view: statistics.update(view.layer, view)):
        if predicts(model):
            logits = wide(model(input_ids=tokens).logits[0, :-1])
            loss = float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:].to(logits.device)))
        else:
            entry(model)(input_ids=tokens)
    finished = statistics.finish()
    written = continuation(model, tokenizer, tokens, generate, progress) if generate else None
    return Run(loss, finished["entropy"].cpu().numpy(), finished["entropy_norm"].cpu().numpy(), written)


def predicts(model: Any) -> bool:
    """Whether the model predicts the next token."""
    layers = describe(model).layers
    return bool(layers[0].causal is not False and getattr(model, "get_output_embeddings", lambda: None)() is not None)


@torch.no_grad()
def continuation(
    model: Any, tokenizer: Any, tokens: Int[Tensor, "1 token"], count: int, progress: Progress | None = None
) -> str:
    """The most likely `count` tokens after the text, one after the other."""
    if not predicts(model):
        raise ArmillaryError(
            f"{type(model).__name__} does not predict the next token", advice="it cannot continue a text"
        )
    end = getattr(model.config, "eos_token_id", None)
    ends = set(end) if isinstance(end, list | tuple) else {end}
    with evaluating(model):
        for _ in (progress or Progress()).each(range(count), "tokens"):
            following = model(input_ids=tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, following], 1)
            if int(following) in ends:
                break
    return str(tokenizer.decode(tokens[0], skip_special_tokens=True))
