"""A text through the model: one run seen by the tap, and what one head did in it."""

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

from armillary.anatomy.description import Rotary
from armillary.anatomy.rebuild import parts_of_queries_and_keys
from armillary.anatomy.source import describe
from armillary.corpus import special_tokens
from armillary.errors import ArmillaryError
from armillary.interventions.trial import predicts
from armillary.layout import entry
from armillary.lenses.constituents import means_of
from armillary.modes import evaluating
from armillary.softmax import softmax, wide_products
from armillary.streams.chunks import pairs
from armillary.streams.constituents import TERMS, Means
from armillary.streams.stream import wide
from armillary.tap import Tap
from armillary.view import AttentionView, grouped_products, row_centred
from armillary.viewer.views import capped, mean_entropy, stacked
from armillary.viewer.worker import Gone
from armillary.words import Words, token_words, words_of

if TYPE_CHECKING:
    from armillary.atlas import Atlas

MOST_TOKENS = 2048
"""A longer text is refused: its matrices would not fit a page, nor a moment."""
MOST_KEPT = 256 * 2**20
"""Bytes of runs that are kept, so that the next head of the same text needs no run of its own."""
MOST_RUNS = 32

Change = Callable[[Any], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Run:
    """One text through the model: views of the kept layers, entropies, and what it says comes next.

    entropy[l, a] is the mean over rows t >= skip in nats, where it was asked for; loss the mean per token; following
    the probabilities of the next token. The last two are missing where a model predicts no next token.
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
    """One head in one run, token by token; `terms` are those of the logits, None where they are not known (`why`)."""

    attention: Float[np.ndarray, "query key"]
    logits: Float[np.ndarray, "query key"]
    visible: Bool[np.ndarray, "query key"]
    entropy: Float[np.ndarray, "query"]
    terms: dict[str, Float[np.ndarray, "query key"]] | None
    why: str
    softcap: float | None
    sink: float | None


@dataclass(frozen=True)
class FrequencyUse:
    """What each rotary frequency does for one head on one text.

    products[i, f] is the part of frequency f in the sum of squares of row i's centred logits, squares[i] that sum
    itself, over the keys that a scan would keep: products.sum(0) / squares.sum() are the shares of MEASURES, 'Rotary'.
    q, k: lengths of the chunks of every token.
    """

    radians: Float[np.ndarray, "frequency"]
    products: Float[np.ndarray, "query frequency"]
    squares: Float[np.ndarray, "query"]
    q: Float[np.ndarray, "token frequency"]
    k: Float[np.ndarray, "token frequency"]


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
        """The longest text that the model was made for; what it does beyond says little of it."""
        return self.anatomy.max_positions

    @property
    def most_tokens(self) -> int:
        """The longest text that can be shown."""
        limit = self.anatomy.max_positions if self.anatomy.hard_limit else None
        return min(MOST_TOKENS, limit or MOST_TOKENS)

    def words(self, text: str, level: str = "token") -> Words:
        """The words (or tokens) of a text between the special tokens that the atlas's blocks have."""
        found = words_of(self.tokenizer, text) if level == "word" else token_words(self.tokenizer, text)
        return _between(found, self._before, self._after, self._special_names())

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
        """The run of a text, inside a change that `name` tells apart; one that was kept is not run again."""
        kept = self._runs.get((text, name))
        if kept is not None and layer in kept.views and (kept.entropy is not None or not entropies):
            self._runs.move_to_end((text, name))
            return kept
        words = self.words(text)
        if not 2 <= len(words.tokens) <= self.most_tokens:
            raise ArmillaryError(f"the text has {len(words.tokens)} tokens; it may have 2 to {self.most_tokens} here")
        if self.anatomy.vocabulary and max(words.tokens) >= self.anatomy.vocabulary:
            raise ArmillaryError("the tokenizer has tokens that this model does not know: they do not belong together")
        gone.check()
        with nullcontext() if change is None else change(self.model):
            found = self._run(words, layer, gone, entropies)
        self._keep((text, name), found)
        return found

    def _keep(self, key: tuple[str, str], run: Run) -> None:
        self._runs[key] = run
        self._runs.move_to_end(key)
        while len(self._runs) > 1 and (
            len(self._runs) > MOST_RUNS or sum(each.bytes for each in self._runs.values()) > MOST_KEPT
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
                losses = [cross_entropy(each.double(), after, reduction="sum") for each, after in blocks]
                loss = float(sum(losses) / (len(logits) - 1))
                following = logits[-1].double().softmax(-1).cpu().numpy()
            else:
                entry(self.model)(input_ids=tokens)
        if layer not in views:
            raise ArmillaryError(f"layer {layer} did not run on this text")
        return Run(words, views, stacked(entropy) if entropies else None, loss, following)

    @torch.no_grad()
    def head(self, run: Run, layer: int, head: int, *, terms: bool = True) -> HeadOnText:
        """What a head did in a run, as the tap saw it; with its terms, as the unchanged weights make them."""
        view = run.views[layer].of_head(head)
        attention, logits, seen = view.attention(), view.logits(), view.visible()
        found = softmax(view, wide(capped(view)), seen.expand(1, 1, -1, -1))
        parts, why = self._terms(run.views[layer], head) if terms else (None, "")
        return HeadOnText(
            _matrix(attention).astype(np.float64),
            _matrix(logits).astype(np.float64),
            _matrix(seen.expand(1, 1, -1, -1)),
            found.entropy[0, 0].cpu().numpy(),
            parts,
            why,
            view.softcap,
            None if view.sinks is None else float(view.sinks[0]),
        )

    def _terms(self, view: AttentionView, head: int) -> tuple[dict[str, Float[np.ndarray, "query key"]] | None, str]:
        """The ten terms of one head's logits, as LogitParts has them for all heads."""
        if self.means is None or self.no_terms:
            return None, self.no_terms
        if view.queries > self.length:
            return None, (
                f"the text has {view.queries} tokens, but the atlas knows the means of {self.length} positions: "
                f"scan with --length {view.queries} or more to see constituents of such a text"
            )
        assert view.x is not None
        here = self.anatomy.layers[view.layer]
        try:
            parts = self.means.split(view.layer, view.x)
            places = torch.arange(view.queries, device=view.x.device)
            qs, ks = parts_of_queries_and_keys(here, self.anatomy.weights(view.layer), parts, places)
        except ArmillaryError as error:  # clipped or wrapped weights: attention is there all the same
            return None, str(error)
        at, key_at = slice(head, head + 1), slice(here.kv_head(head), here.kv_head(head) + 1)
        products = [grouped_products(q[:, at], k[:, key_at]) * (here.scale or 1.0) for q in qs for k in ks]
        bias = view.of_head(head).bias
        added = torch.zeros_like(products[0]) if bias is None else wide(bias).expand(products[0].shape)
        return dict(zip(TERMS, map(_matrix, [*products, added]), strict=True)), ""

    @torch.no_grad()
    def frequencies(self, run: Run, layer: int, head: int) -> FrequencyUse | None:
        """How a head uses its rotary frequencies in a run; None in a layer that does not rotate."""
        here = self.anatomy.layers[layer]
        if not isinstance(here.position, Rotary):
            return None
        rotary = here.position.at(run.views[layer].keys)
        view = run.views[layer].of_head(head)
        q, k = wide(view.q), wide(view.k)
        kept = view.visible().expand(1, 1, -1, -1).clone()
        kept[..., : self.skip] = False
        kept[:, :, : self.skip] = False
        logits = wide_products(view, slice(None))
        logits = logits if view.bias is None else logits + wide(view.bias)
        centred = row_centred(logits, kept)
        products = pairs(rotary, view.scale * q * (centred @ k)).sum(-1)
        lengths = (pairs(rotary, part).square().sum(-1).sqrt()[0, 0].cpu().numpy() for part in (q, k))
        return FrequencyUse(
            np.array(rotary.frequencies),
            products[0, 0].cpu().numpy(),
            centred.square().sum(-1)[0, 0].cpu().numpy(),
            *lengths,
        )


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
