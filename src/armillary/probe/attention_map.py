"""Attention between the words of one text, averaged over heads, and the cosines of the words' embeddings.

Wertich (chapter 8) analyzes few-shot prompts like this: summed over the tokens of a word, averaged over heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata
from torch import Tensor

from armillary.anatomy.description import Anatomy
from armillary.anatomy.layout import entry, find_stack
from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError
from armillary.machine.limits import attention_seconds, refuse_beyond_memory, refuse_beyond_patience
from armillary.observe.precision import wide
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView
from armillary.text.numerals import whole_number
from armillary.text.words import Span, Words, join_keys, token_words, word_means, words_of

Level = Literal["word", "token"]
HeadWeights = Literal["plain", "output"]

BLOCK = 4_000_000
"""Rows are taken so that a block of attention, all heads together, has about this many numbers."""


@dataclass(frozen=True)
class AttentionMap:
    """attention[l, i, j]: how much word i attends to word j in layer layers[l], averaged over heads.

    It is summed over the tokens of word j and averaged over those of word i. cosine[i, j] is between the mean
    embeddings of the words' tokens: the residual stream before the first layer, including added positions. place[i] is
    the word's index in the whole text; rows of a map that is restricted to spans are not normalized again.
    """

    words: tuple[str, ...]
    layers: tuple[int, ...]
    attention: Float[np.ndarray, "layer word word"]
    cosine: Float[np.ndarray, "word word"]
    place: Int[np.ndarray, "word"]
    special: Bool[np.ndarray, "word"]
    level: Level = "word"
    weights: HeadWeights = "plain"
    heads: tuple[int, ...] | None = None

    @property
    def inside(self) -> Float[np.ndarray, "layer word"]:
        """How much of each word's attention stays among the words shown: 1, or less with spans or a learned sink."""
        return np.asarray(self.attention.sum(-1))

    @property
    def sinks(self) -> Bool[np.ndarray, "word"]:
        """Attention sinks: the text's first word or token, and special tokens."""
        return np.asarray(self.special | (self.place == 0))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "level": self.level,
            "weights": self.weights,
            "heads": None if self.heads is None else list(self.heads),
            "words": [
                {"place": int(place), "word": word, "special": bool(special)}
                for place, word, special in zip(self.place, self.words, self.special, strict=True)
            ],
            "layers": [
                {"layer": layer, "attention": matrix.tolist(), "inside": matrix.sum(-1).tolist()}
                for layer, matrix in zip(self.layers, self.attention, strict=True)
            ],
            "cosine": [[None if np.isnan(c) else c for c in row] for row in self.cosine.tolist()],
        }


def attention_map(
    model: Any,
    tokenizer: Any,
    text: str,
    *,
    level: Level = "word",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    weights: HeadWeights = "plain",
    spans: Sequence[Span | str] | None = None,
) -> AttentionMap:
    """Attention between the words (or tokens) of a text, in these layers, averaged over these heads.

    weights 'plain' gives heads equal weight; 'output' weights head a by |W_o[a]|_F.
    `spans` keeps the words that overlap given ranges of characters, or any occurrence of a given piece of text.
    """
    for name, given, known in (("level", level, get_args(Level)), ("weights", weights, get_args(HeadWeights))):
        if given not in known:
            raise ArmillaryError(
                f"{name}={given!r} is not known",
                advice=f"it can be {' or '.join(map(repr, known))}",
                given=given,
                expected=known,
            )
    if not text.strip():
        raise ArmillaryError("the text is empty: a map needs words")
    words = words_of(tokenizer, text) if level == "word" else token_words(tokenizer, text)
    if not words.tokens:
        raise ArmillaryError("the tokenizer makes no tokens of this text", advice="give one with words")
    anatomy, sums = describe(model), _Sums(words)
    _refuse_too_long(words, anatomy, len(anatomy.layers) if layers is None else len(layers))
    follows = bool(find_stack(model, anatomy).blocks)
    tap = Tap(model, sums.add_layer, sums.keep_embeddings if follows else None)
    sums.shares = _head_shares(anatomy, layers, heads, weights)
    chosen_words = np.arange(len(words.names)) if spans is None else _chosen_words(words, text, spans)
    if max(words.tokens) >= anatomy.vocabulary:
        raise ArmillaryError(
            f"the tokenizer gives the token {max(words.tokens)}, but the model's vocabulary has "
            f"{anatomy.vocabulary}: this tokenizer does not belong to this model"
        )
    with torch.no_grad(), evaluating(model), tap:
        entry(model)(input_ids=torch.tensor([words.tokens], device=next(model.parameters()).device))
    order = tuple(sums.shares)
    missing = [layer for layer in order if layer not in sums.attention]
    if missing:
        raise ArmillaryError(
            f"layer {missing[0]} did not run, so there is no attention to map", advice="choose other layers"
        )
    return AttentionMap(
        tuple(words.names[w] for w in chosen_words),
        order,
        np.stack([sums.attention[layer][np.ix_(chosen_words, chosen_words)] for layer in order]),
        cosines(word_means(sums.embeddings, words))[np.ix_(chosen_words, chosen_words)],
        chosen_words,
        words.special[chosen_words],
        level,
        weights,
        None if heads is None else tuple(dict.fromkeys(heads)),
    )


def _refuse_too_long(words: Words, anatomy: Anatomy, layers: int) -> None:
    """Raise if the maps need too much memory: 8 bytes per pair of words and layer, and 40 per pair while sorting."""
    count, length = len(words.names), len(words.tokens)
    what, instead = f"a map of {count} words in {layers} layers", "give a shorter text, or fewer layers"
    refuse_beyond_memory((8.0 * layers + 40.0) * count**2, what, instead)
    most = max(anatomy.layers, key=lambda layer: layer.heads * layer.head_width)
    refuse_beyond_patience(attention_seconds(most.heads, most.head_width, 1, length), what, "give a shorter text")


def strongest(mapped: AttentionMap, count: int = 8) -> pd.DataFrame:
    """The `count` pairs of two different words with the most attention in every layer, sinks left out as keys."""
    usable = ~np.eye(len(mapped.words), dtype=bool) & ~mapped.sinks
    names = [f"{place} {word!r}" for place, word in zip(mapped.place, mapped.words, strict=True)]
    rows = []
    for layer, matrix in zip(mapped.layers, mapped.attention, strict=True):
        pairs = np.argwhere(usable & (matrix > 0))
        values = matrix[tuple(pairs.T)]
        for at in np.argsort(-values, kind="stable")[:count]:
            i, j = pairs[at]
            rows.append(
                {
                    "layer": layer,
                    "query": names[i],
                    "key": names[j],
                    "attention": float(values[at]),
                    "cosine": float(mapped.cosine[i, j]),
                }
            )
    return pd.DataFrame(rows, columns=["layer", "query", "key", "attention", "cosine"])


def layer_masses(mapped: AttentionMap) -> pd.DataFrame:
    """Where a word's attention goes in every layer, averaged over the words shown: sinks, itself, others, elsewhere.

    cosine_correlation is the rank correlation of a word's attention with its embedding cosines, over the other words
    that it sees (three or more), sinks left out; averaged over words.
    """
    same = np.eye(len(mapped.words), dtype=bool)
    sink = np.broadcast_to(mapped.sinks, same.shape)
    rows = []
    for layer, matrix in zip(mapped.layers, mapped.attention, strict=True):
        usable = ~same & ~sink & (matrix > 0) & np.isfinite(mapped.cosine)
        rows.append(
            {
                "layer": layer,
                "sinks": float((matrix * sink).sum(-1).mean()),
                "itself": float((matrix * (same & ~sink)).sum(-1).mean()),
                "others": float((matrix * ~(same | sink)).sum(-1).mean()),
                "elsewhere": round(float(1 - matrix.sum(-1).mean()), 6) + 0.0,  # no -0
                "cosine_correlation": _row_correlation(matrix, mapped.cosine, usable & ~mapped.sinks[:, None]),
            }
        )
    return pd.DataFrame(rows)


def _row_correlation(
    a: Float[np.ndarray, "word word"], b: Float[np.ndarray, "word word"], usable: Bool[np.ndarray, "word word"]
) -> float:
    """The mean over rows of the rank correlation of a and b, where three or more of the row's cells are usable."""
    correlations = [
        np.corrcoef(rankdata(a[i, row]), rankdata(b[i, row]))[0, 1]
        for i, row in enumerate(usable)
        if row.sum() >= 3 and np.ptp(a[i, row]) > 0 and np.ptp(b[i, row]) > 0
    ]
    return float(np.mean(correlations)) if correlations else float("nan")


def cosines(vectors: Float[np.ndarray, "word d"]) -> Float[np.ndarray, "word word"]:
    """The cosine of every pair; missing where a vector is zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.full_like(vectors, np.nan), where=norms > 0)
    return np.asarray(unit @ unit.T)


class _Sums:
    """Collects one run of the model: a (word, word) mean per chosen layer, and the embeddings.

    If the model's blocks cannot be found, its embeddings stay zero, and their cosines are missing.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        self.shares: dict[int, Float[Tensor, "head"]] = {}
        self.attention: dict[int, Float[np.ndarray, "word word"]] = {}
        self.embeddings: Float[np.ndarray, "token d"] = np.zeros((len(words.tokens), 1))

    def add_layer(self, view: AttentionView) -> None:
        if view.layer not in self.shares or view.layer in self.attention:
            return
        share = self.shares[view.layer]
        used = share.nonzero()[:, 0]
        total = np.zeros((len(self.words.names),) * 2)
        rows = max(1, BLOCK // (view.heads * view.keys))
        for start in range(0, view.queries, rows):
            block = view.attention(slice(start, start + rows))[0, used.to(view.q.device)]
            mean = torch.einsum("h,hij->ij", share[used], wide(block).cpu()).numpy()
            np.add.at(total, self.words.of_token[start : start + rows], join_keys(mean, self.words))
        if not np.isfinite(total).all():
            raise ArmillaryError(
                f"layer {view.layer} gives NaN or infinite attention on this text", advice="try float32"
            )
        self.attention[view.layer] = total / self.words.sizes[:, None]

    def keep_embeddings(self, layer: int, h: Float[Tensor, "batch token d"]) -> None:
        if layer == 0:
            self.embeddings = wide(h[0]).cpu().numpy()


def _head_shares(
    anatomy: Anatomy, layers: Sequence[int] | None, heads: Sequence[int] | None, weights: HeadWeights
) -> dict[int, Float[Tensor, "head"]]:
    """The weight of each head in each chosen layer: zero for heads that are not chosen, summing to 1."""
    if weights == "output" and anatomy.missing:
        raise ArmillaryError(
            f"weights 'output' needs the output matrix of every head, but {anatomy.missing}; weights 'plain' does not"
        )
    shares: dict[int, Tensor] = {}
    for layer in range(len(anatomy.layers)) if layers is None else layers:
        if not 0 <= layer < len(anatomy.layers):
            raise ArmillaryError(
                f"there is no layer {layer}: this model has layers 0 to {len(anatomy.layers) - 1}",
                given=layer,
                expected=range(len(anatomy.layers)),
            )
        count = anatomy.layers[layer].heads
        wrong = [head for head in heads or () if not 0 <= head < count]
        if wrong:
            raise ArmillaryError(
                f"there is no head {wrong[0]} in layer {layer}: it has heads 0 to {count - 1}",
                given=wrong[0],
                expected=range(count),
            )
        chosen = torch.zeros(count, dtype=torch.float64)
        chosen[list(range(count)) if heads is None else list(heads)] = 1
        if weights == "output":
            norms = [float(torch.linalg.matrix_norm(o.detach().float())) for o in anatomy.weights(layer).o]
            chosen *= torch.tensor(norms, dtype=torch.float64)
        if not chosen.sum() > 0:
            what = "the output matrices are zero" if heads is None or len(heads) else "no head was chosen"
            raise ArmillaryError(f"layer {layer} has nothing to average: {what}")
        shares[layer] = chosen / chosen.sum()
    if not shares:
        raise ArmillaryError("no layer was chosen", advice="name one at least")
    return shares


def _chosen_words(words: Words, text: str, spans: Sequence[Span | str]) -> Int[np.ndarray, "word"]:
    """The words that touch one of the spans."""
    if not any(start < end for start, end in words.spans):
        raise ArmillaryError("this tokenizer does not say which characters its tokens are, so spans cannot be found")
    ranges: list[Span] = []
    for span in spans:
        if isinstance(span, str):
            ranges += places(span, text)
        elif not 0 <= span[0] < span[1] <= len(text):
            raise ArmillaryError(
                f"the span {span[0]}:{span[1]} is not in the text, which has {len(text)} characters",
                advice=f"give START:END with 0 <= START < END <= {len(text)}",
            )
        else:
            ranges.append(span)
    inside = [w for w, (a, b) in enumerate(words.spans) if any(max(a, start) < min(b, end) for start, end in ranges)]
    if not inside:
        raise ArmillaryError("no word is inside the spans", advice="give ranges or pieces of the text that hold words")
    return np.array(inside, dtype=np.int64)


def places(piece: str, text: str) -> list[Span]:
    """Every occurrence of a piece of text."""
    spans, start = [], text.find(piece) if piece else -1
    while start >= 0:
        spans.append((start, start + len(piece)))
        start = text.find(piece, start + len(piece))
    if not spans:
        raise ArmillaryError(f"{piece!r} is not in the text: a span is a piece of the text, or START:END in characters")
    return spans


def parse_span(given: str) -> Span | str:
    """'12:40' as a range of characters, anything else as a piece of text."""
    before, _, after = given.partition(":")
    start, end = whole_number(before), whole_number(after)
    return given if start is None or end is None else (start, end)
