"""What the page is told about a text: matrices, terms, frequencies, one row in full, before and after a change."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from armillary.figures.maps import LONGEST, shown
from armillary.streams.constituents import TERMS
from armillary.viewer.arrays import packed
from armillary.viewer.cells import MOST, Cells, cells_of, max_cells, mean_cells
from armillary.viewer.live import Change, HeadOnText, LiveModel, Run
from armillary.viewer.worker import Gone
from armillary.words import Words, join

NEXT = 10
"""So many of the most probable next tokens are told."""


def look(
    live: LiveModel, gone: Gone, text: str, layer: int, head: int, level: str, terms: tuple[str, ...]
) -> dict[str, Any]:
    """A head on a text. Up to MOST tokens every number is exact and the page itself joins words and switches terms;
    longer texts come in cells, with the attention that the chosen terms make."""
    run = live.run(text, layer, gone)
    gone.check()
    found = live.head(run, layer, head)
    gone.check()
    answer = {
        **names_of(live, run, text, level),
        "layer": layer,
        "head": head,
        "softcap": found.softcap,
        "sink": found.sink,
        "why": found.why,
        "shares": shares_of(found, live.skip),
        "entropy": packed(found.entropy),
        "entropy_mean": float(found.entropy[min(live.skip, len(found.entropy) - 1) :].mean()),
        "loss": run.loss,
        "next": next_tokens(live, run),
        **_frequencies(live, run, layer, head, level, text),
    }
    if len(run.words.tokens) <= MOST:
        hidden = ~found.visible
        return answer | {
            "attention": packed(np.where(hidden, np.nan, found.attention)),
            "logits": packed(np.where(hidden, np.nan, found.logits)),
            "terms": _packed_terms(found),
        }
    words = live.words(text, level)
    cells = cells_of(words)
    answer |= {
        "attention": packed(shown_attention(found.attention, found.visible, words, cells)),
        "logits": packed(mean_cells(_centred(found.logits, found.visible), found.visible, cells)),
        "terms": _packed_terms(found, cells),
    }
    if found.terms is not None and set(terms) != set(TERMS):
        chosen = attention_of_terms(found, terms)
        answer["chosen"] = packed(shown_attention(chosen, found.visible, words, cells))
    return answer


def names_of(live: LiveModel, run: Run, text: str, level: str) -> dict[str, Any]:
    """Tokens and words by name, which token is in which word, and how tokens are shown."""
    words = live.words(text, "word") if getattr(live.tokenizer, "is_fast", False) else run.words
    exact = len(run.words.tokens) <= MOST
    cells = cells_of(words if level == "word" else run.words)
    return {
        "tokens": list(run.words.names),
        "made_for": live.made_for,
        "labels": [shown(name, LONGEST) for name in run.words.names],
        "special": run.words.special.tolist(),
        "words": list(words.names),
        "word_labels": [shown(name, LONGEST) for name in words.names],
        "of_token": words.of_token.tolist(),
        "exact": exact,
        "step": 1 if exact else cells.step,
        "starts": None if exact else cells.starts.tolist(),
    }


def shown_attention(
    attention: Float[np.ndarray, "query key"], visible: Bool[np.ndarray, "query key"], words: Words, cells: Cells
) -> Float[np.ndarray, "cell cell"]:
    """From word to word (keys added, queries averaged), the largest of every cell; NaN where nothing is visible."""
    joined = join(np.where(visible, attention, 0.0), words)
    seen = join(visible.astype(np.float64), words) > 0
    return max_cells(np.where(seen, joined, np.nan), cells.step)


def attention_of_terms(found: HeadOnText, terms: tuple[str, ...]) -> Float[np.ndarray, "query key"]:
    """The attention that the sum of these terms alone would make, with the head's soft-cap, sink and mask."""
    assert found.terms is not None
    products = sum((found.terms[name] for name in terms if name != "bias"), np.zeros_like(found.logits))
    if found.softcap is not None:
        products = found.softcap * np.tanh(products / found.softcap)
    logits = np.where(found.visible, products + (found.terms["bias"] if "bias" in terms else 0.0), -np.inf)
    top = logits.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0) if found.sink is None else np.maximum(top, found.sink)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True) + (0.0 if found.sink is None else np.exp(found.sink - top))
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def shares_of(found: HeadOnText, skip: int) -> dict[str, float] | None:
    """Each term's share of the row-centred logits, sum(term * b) / sum(b * b), without the first `skip` positions."""
    if found.terms is None:
        return None
    kept = found.visible & (np.arange(len(found.visible)) >= skip) & (np.arange(len(found.visible)) >= skip)[:, None]
    whole = np.where(kept, sum(found.terms.values()), 0.0)
    whole = np.where(kept, whole - whole.sum(-1, keepdims=True) / np.maximum(kept.sum(-1, keepdims=True), 1), 0.0)
    square = float(np.square(whole).sum())
    products = {name: float((np.where(kept, term, 0.0) * whole).sum()) for name, term in found.terms.items()}
    return {name: product / square if square > 0 else np.nan for name, product in products.items()}


def row(live: LiveModel, gone: Gone, text: str, layer: int, head: int, token: int) -> dict[str, Any]:
    """One query of a text in full: attention, logits and terms for every key, exact whatever the text's length."""
    run = live.run(text, layer, gone)
    found = live.head(run, layer, head)
    at = min(token, len(run.words.tokens) - 1)
    seen = found.visible[at]
    terms = None if found.terms is None else {n: packed(np.where(seen, t[at], np.nan)) for n, t in found.terms.items()}
    return {
        "token": at,
        "attention": packed(np.where(seen, found.attention[at], np.nan)),
        "logits": packed(np.where(seen, found.logits[at], np.nan)),
        "entropy": float(found.entropy[at]),
        "terms": terms,
    }


def before_and_after(
    live: LiveModel, gone: Gone, text: str, layer: int, head: int, level: str, change: Change, name: str
) -> dict[str, Any]:
    """The same text and head without and with a change; entropies are (layer, head) means in nats."""
    plain = live.run(text, layer, gone, entropies=True)
    changed = live.run(text, layer, gone, change, name, entropies=True)
    answer: dict[str, Any] = {**names_of(live, plain, text, level), "layer": layer, "head": head}
    for moment, run in (("before", plain), ("after", changed)):
        gone.check()
        found = live.head(run, layer, head, terms=False)
        matrix = np.where(found.visible, found.attention, np.nan)
        if len(run.words.tokens) > MOST:
            words = live.words(text, level)
            matrix = shown_attention(found.attention, found.visible, words, cells_of(words))
        assert run.entropy is not None
        answer[moment] = {
            "attention": packed(matrix),
            "entropy": packed(found.entropy),
            "heads": packed(run.entropy),
            "loss": run.loss,
        }
    return answer | {"next": next_tokens(live, plain, changed)}


def next_tokens(live: LiveModel, *runs: Run) -> list[dict[str, Any]] | None:
    """The most probable next tokens of the runs together, with the probability in each."""
    if any(run.following is None for run in runs):
        return None
    following = np.stack([run.following for run in runs if run.following is not None])
    best = {int(i) for each in following for i in np.argsort(-np.nan_to_num(each), kind="stable")[:NEXT]}
    order = sorted(best, key=lambda i: -float(np.nan_to_num(following[0, i])))
    names = [str(live.tokenizer.decode([i])) for i in order]
    return [
        {"token": name, "label": shown(name, LONGEST), "p": [float(each[i]) for each in following]}
        for name, i in zip(names, order, strict=True)
    ]


def _frequencies(live: LiveModel, run: Run, layer: int, head: int, level: str, text: str) -> dict[str, Any]:
    """Shares and lengths by frequency: of the whole text, and of every row that is shown."""
    use = live.frequencies(run, layer, head)
    if use is None:
        return {"frequencies": None}
    exact = len(run.words.tokens) <= MOST
    cells = Cells(np.arange(len(use.squares)), 1) if exact else cells_of(live.words(text, level))
    starts, sizes = cells.starts, (cells.ends - cells.starts)[:, None]
    total = use.squares.sum()
    return {
        "frequencies": {
            "radians": use.radians.tolist(),
            "share": (use.products.sum(0) / total if total > 0 else np.full(len(use.radians), np.nan)).tolist(),
            "products": packed(np.add.reduceat(use.products, starts, axis=0)),
            "squares": packed(np.add.reduceat(use.squares, starts)),
            "q": packed(np.add.reduceat(use.q, starts, axis=0) / sizes),
            "k": packed(np.add.reduceat(use.k, starts, axis=0) / sizes),
        }
    }


def _centred(values: Float[np.ndarray, "query key"], visible: Bool[np.ndarray, "query key"]) -> np.ndarray:
    """Each row less its mean over the visible keys: what is constant along a row does nothing."""
    count = np.maximum(visible.sum(-1, keepdims=True), 1)
    return np.asarray(values - np.where(visible, values, 0.0).sum(-1, keepdims=True) / count)


def _packed_terms(found: HeadOnText, cells: Cells | None = None) -> dict[str, Any] | None:
    """The terms as they are or, in cells, the mean of each over its visible pairs, every row less its mean."""
    if found.terms is None or cells is None:
        return None if found.terms is None else {name: packed(term) for name, term in found.terms.items()}
    seen = found.visible
    return {name: packed(mean_cells(_centred(term, seen), seen, cells)) for name, term in found.terms.items()}
