"""Run a text through the model with a tap, and read what one head did."""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from armillary.anatomy.layout import entry
from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError
from armillary.lenses.constituents import means_of
from armillary.observe.precision import wide
from armillary.observe.softmax import softmax
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView
from armillary.probe.frequency_use import FrequencyUse, frequency_use
from armillary.probe.trial import predicts
from armillary.streams.constituents import TERMS, LogitParts, Means
from armillary.text.sequences import special_tokens
from armillary.text.words import Words, token_words, words_of
from armillary.viewer.views import capped, mean_entropy, stacked
from armillary.viewer.worker import Gone

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

MOST_TOKENS = 2048
"""The longest text: larger matrices would not fit the page, and take too long."""
MOST_KEPT = 256 * 2**20
"""Bytes of cached runs, so that another head of the same text needs no new run."""
MOST_RUNS = 32

Change = Callable[[Any], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Run:
    """One text through the model: views of the cached layers, entropies, loss and next-token probabilities.

    entropy[l, a] is the mean over rows t >= skip in nats (if requested); loss the mean per token; following the
    probabilities of the next token. The last two are missing if the model predicts no next token.
    """

    words: Words
    views: dict[int, AttentionView]
    entropy: Float[np.ndarray, "layer head"] | None
    loss: float | None
    following: Float[np.ndarray, "vocabulary"] | None

    @property
    def bytes(self) -> int:
        parts = (part for view in self.views.values() for part in (view.q, view.k, view.v, view.x) if part is not None)
        following = 0 if self.following is None else self.following.nbytes
        return following + sum(part.numel() * part.element_size() for part in parts)


@dataclass(frozen=True)
class HeadOnText:
    """One head in one run, token by token; `terms` are those of the logits, or None (`why` says why)."""

    attention: Float[np.ndarray, "query key"]
    logits: Float[np.ndarray, "query key"]
    visible: Bool[np.ndarray, "query key"]
    entropy: Float[np.ndarray, "query"]
    terms: dict[str, Float[np.ndarray, "query key"]] | None
    why: str
    softcap: float | None
    sink: float | None


class LiveModel:
    """The atlas's model with its tokenizer; only the worker's thread may use it."""

    def __init__(self, model: Any, tokenizer: Any, atlas: "Atlas") -> None:
        self.model, self.tokenizer = model, tokenizer
        self.anatomy = describe(model)
        self.skip, self.length = int(atlas.settings["skip"]), int(atlas.settings["length"])
        self._before, self._after = special_tokens(tokenizer, atlas.settings["bos"])
        self.means: Means | None = None
        self.no_terms = self.anatomy.missing
        try:
            self.means = means_of(atlas)
        except ArmillaryError as error:
            self.no_terms = self.no_terms or str(error)
        self._runs: OrderedDict[tuple[str, str], Run] = OrderedDict()

    @property
    def made_for(self) -> int | None:
        """The model's context length; longer texts are outside what it was trained on."""
        return self.anatomy.max_positions

    @property
    def most_tokens(self) -> int:
        """The longest text that can be shown."""
        limit = self.anatomy.max_positions if self.anatomy.hard_limit else None
        return min(MOST_TOKENS, limit or MOST_TOKENS)

    def words(self, text: str, level: str = "token") -> Words:
        """The words (or tokens) of a text between the special tokens of the atlas's sequences."""
        words = words_of(self.tokenizer, text) if level == "word" else token_words(self.tokenizer, text)
        return _between(words, self._before, self._after, self._special_names())

    def _special_names(self) -> dict[int, str]:
        ids = [*self._before, *self._after]
        return dict(zip(ids, map(str, self.tokenizer.convert_ids_to_tokens(ids)), strict=True))

    def run(
        self,
        text: str,
        layer: int,
        gone: Gone,
        change: Change | None = None,
        name: str = "",
        *,
        entropies: bool = False,
    ) -> Run:
        """The run of a text, with the change of this name; from the cache if it is there."""
        cached = self._runs.get((text, name))
        if cached is not None and layer in cached.views and (cached.entropy is not None or not entropies):
            self._runs.move_to_end((text, name))
            return cached
        words = self.words(text)
        if not 2 <= len(words.tokens) <= self.most_tokens:
            raise ArmillaryError(f"the text has {len(words.tokens)} tokens; it may have 2 to {self.most_tokens} here")
        if self.anatomy.vocabulary and max(words.tokens) >= self.anatomy.vocabulary:
            raise ArmillaryError("the tokenizer gives tokens outside the vocabulary: it does not belong to this model")
        gone.check()
        with nullcontext() if change is None else change(self.model):
            run = self._run(words, layer, gone, entropies)
        self._keep((text, name), run)
        return run

    def _keep(self, key: tuple[str, str], run: Run) -> None:
        self._runs[key] = run
        self._runs.move_to_end(key)
        while len(self._runs) > 1 and (
            len(self._runs) > MOST_RUNS or sum(cached.bytes for cached in self._runs.values()) > MOST_KEPT
        ):
            self._runs.popitem(last=False)

    @torch.no_grad()
    def _run(self, words: Words, layer: int, gone: Gone, entropies: bool) -> Run:
        views: dict[int, AttentionView] = {}
        entropy: dict[int, Float[np.ndarray, "head"]] = {}
        numbers = 4 * self.anatomy.d_model * len(words.tokens) * len(self.anatomy.layers)
        all_layers = numbers * 4 <= MOST_KEPT / 4

        def receive(view: AttentionView) -> None:
            gone.check()
            if entropies:
                entropy[view.layer] = mean_entropy(view, self.skip)
            if all_layers or view.layer == layer:
                views[view.layer] = replace(view, output=None)

        tokens = torch.tensor([words.tokens], device=next(self.model.parameters()).device)
        loss = following = None
        with evaluating(self.model), Tap(self.model, receive):
            if predicts(self.model):
                logits = self.model(input_ids=tokens, use_cache=False).logits[0]
                blocks = zip(logits[:-1].split(128), tokens[0, 1:].split(128), strict=True)  # all in float64: gigabytes
                exact = ((wide(each), after) for each, after in blocks)
                losses = [cross_entropy(a, b.to(a.device), reduction="sum") for a, b in exact]
                loss = float(sum(losses) / (len(logits) - 1))
                following = wide(logits[-1]).softmax(-1).cpu().numpy()
            else:
                entry(self.model)(input_ids=tokens)
        if layer not in views:
            raise ArmillaryError(f"layer {layer} did not run on this text")
        return Run(words, views, stacked(entropy) if entropies else None, loss, following)

    @torch.no_grad()
    def head(self, run: Run, layer: int, head: int, *, terms: bool = True) -> HeadOnText:
        """A head in a run, as the tap observed it; with its terms, computed from the unchanged weights."""
        view = run.views[layer].of_head(head)
        attention, logits, seen = view.attention(), view.logits(), view.visible()
        computed = softmax(view, wide(capped(view)), seen.expand(1, 1, -1, -1))
        parts, why = self._terms(run.views[layer], head) if terms else (None, "")
        return HeadOnText(
            _matrix(attention).astype(np.float64),
            _matrix(logits).astype(np.float64),
            _matrix(seen.expand(1, 1, -1, -1)),
            computed.entropy[0, 0].cpu().numpy(),
            parts,
            why,
            view.softcap,
            None if view.sinks is None else float(view.sinks[0]),
        )

    def _terms(self, view: AttentionView, head: int) -> tuple[dict[str, Float[np.ndarray, "query key"]] | None, str]:
        """The ten terms of one head's logits, or None and why."""
        if self.means is None or self.no_terms:
            return None, self.no_terms
        if view.queries > self.length:
            return None, (
                f"the text has {view.queries} tokens, but the atlas has the means of {self.length} positions: "
                f"scan with `length={view.queries}` or more to see the constituents of this text"
            )
        try:
            terms = LogitParts(self.anatomy, self.means, view).of_head(head)
        except ArmillaryError as error:  # clipped or wrapped weights: show attention without terms
            return None, str(error)
        return dict(zip(TERMS, map(_matrix, terms), strict=True)), ""

    @torch.no_grad()
    def frequencies(self, run: Run, layer: int, head: int) -> FrequencyUse | None:
        """How a head uses its rotary frequencies in a run; None in a layer that does not rotate."""
        return frequency_use(self.anatomy.layers[layer], run.views[layer].of_head(head), self.skip)


def _matrix(tensor: Tensor) -> Any:
    return tensor[0, 0].cpu().numpy()


def _between(words: Words, before: list[int], after: list[int], names: dict[int, str]) -> Words:
    """The words with these special tokens around them, in place of those that the tokenizer added itself."""
    empty = np.array([start == end for start, end in words.spans], dtype=bool)
    added = words.special & empty
    inner = np.flatnonzero(~added[words.of_token])
    first, last = (int(inner[0]), int(inner[-1]) + 1) if len(inner) else (0, 0)
    if list(words.tokens) == [*before, *words.tokens[first:last], *after]:
        return words
    low, high = (int(words.of_token[first]), int(words.of_token[last - 1]) + 1) if len(inner) else (0, 0)
    front, back = len(before), len(after)
    middle = words.of_token[first:last] - low + front
    return Words(
        (*(names[t] for t in before), *words.names[low:high], *(names[t] for t in after)),
        np.concatenate([np.arange(front), middle, front + high - low + np.arange(back)]).astype(np.int64),
        (*((0, 0),) * front, *words.spans[low:high], *((0, 0),) * back),
        np.concatenate([np.ones(front, bool), words.special[low:high], np.ones(back, bool)]),
        (*before, *words.tokens[first:last], *after),
    )
