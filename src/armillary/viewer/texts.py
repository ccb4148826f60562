"""The page's data of a text: matrices, terms, frequencies, one row in full, before and after a change."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from armillary.figures.maps import LONGEST, shown
from armillary.streams.constituents import TERMS
from armillary.text.words import Words, join
from armillary.viewer.arrays import packed
from armillary.viewer.cells import MOST, Cells, cells_of, max_cells, mean_cells
from armillary.viewer.live import Change, HeadOnText, LiveModel, Run
from armillary.viewer.worker import Gone

NEXT = 10
"""How many of the most probable next tokens are sent."""


def look(
    live: LiveModel, gone: Gone, text: str, layer: int, head: int, level: str, terms: tuple[str, ...]
) -> dict[str, Any]:
    """A head on a text. Up to MOST tokens all numbers are sent, and the page itself joins words and switches terms;
    longer texts are sent in cells, with the attention of the chosen terms."""
    run = live.run(text, layer, gone)
    gone.check()
    on_text = live.head(run, layer, head)
    gone.check()
    answer = {
        **names_of(live, run, text, level),
        "layer": layer,
        "head": head,
        "softcap": on_text.softcap,
        "sink": on_text.sink,
        "why": on_text.why,
        "shares": shares_of(on_text, live.skip),
        "entropy": packed(on_text.entropy),
        "entropy_mean": float(on_text.entropy[min(live.skip, len(on_text.entropy) - 1) :].mean()),
        "loss": run.loss,
        "next": next_tokens(live, run),
        **_frequencies(live, run, layer, head, level, text),
    }
    if len(run.words.tokens) <= MOST:
        hidden = ~on_text.visible
        return answer | {
            "attention": packed(np.where(hidden, np.nan, on_text.attention)),
            "logits": packed(np.where(hidden, np.nan, on_text.logits)),
            "terms": _packed_terms(on_text),
        }
    words = live.words(text, level)
    cells = cells_of(words)
    answer |= {
        "attention": packed(shown_attention(on_text.attention, on_text.visible, words, cells)),
        "logits": packed(mean_cells(_centered(on_text.logits, on_text.visible), on_text.visible, cells)),
        "terms": _packed_terms(on_text, cells),
    }
    if on_text.terms is not None and set(terms) != set(TERMS):
        chosen = attention_of_terms(on_text, terms)
        answer["chosen"] = packed(shown_attention(chosen, on_text.visible, words, cells))
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
    """Attention between words (keys added, queries averaged), the largest of every cell; NaN if nothing is visible."""
    joined = join(np.where(visible, attention, 0.0), words)
    seen = join(visible.astype(np.float64), words) > 0
    return max_cells(np.where(seen, joined, np.nan), cells.step)


def attention_of_terms(on_text: HeadOnText, terms: tuple[str, ...]) -> Float[np.ndarray, "query key"]:
    """The attention of the sum of these terms alone, with the head's soft-cap, sink and mask."""
    assert on_text.terms is not None
    products = sum((on_text.terms[name] for name in terms if name != "bias"), np.zeros_like(on_text.logits))
    if on_text.softcap is not None:
        products = on_text.softcap * np.tanh(products / on_text.softcap)
    logits = np.where(on_text.visible, products + (on_text.terms["bias"] if "bias" in terms else 0.0), -np.inf)
    top = logits.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0) if on_text.sink is None else np.maximum(top, on_text.sink)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True) + (0.0 if on_text.sink is None else np.exp(on_text.sink - top))
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def shares_of(on_text: HeadOnText, skip: int) -> dict[str, float] | None:
    """Each term's share of the row-centered logits, sum(term * b) / sum(b * b), without the first `skip` positions."""
    if on_text.terms is None:
        return None
    kept = (
        on_text.visible & (np.arange(len(on_text.visible)) >= skip) & (np.arange(len(on_text.visible)) >= skip)[:, None]
    )
    whole = np.where(kept, sum(on_text.terms.values()), 0.0)
    whole = np.where(kept, whole - whole.sum(-1, keepdims=True) / np.maximum(kept.sum(-1, keepdims=True), 1), 0.0)
    square = float(np.square(whole).sum())
    products = {name: float((np.where(kept, term, 0.0) * whole).sum()) for name, term in on_text.terms.items()}
    return {name: product / square if square > 0 else np.nan for name, product in products.items()}


def row(live: LiveModel, gone: Gone, text: str, layer: int, head: int, token: int) -> dict[str, Any]:
    """One query of a text: exact attention, logits and terms for every key, for any length of text."""
    run = live.run(text, layer, gone)
    on_text = live.head(run, layer, head)
    at = min(token, len(run.words.tokens) - 1)
    seen = on_text.visible[at]
    terms = (
        None if on_text.terms is None else {n: packed(np.where(seen, t[at], np.nan)) for n, t in on_text.terms.items()}
    )
    return {
        "token": at,
        "attention": packed(np.where(seen, on_text.attention[at], np.nan)),
        "logits": packed(np.where(seen, on_text.logits[at], np.nan)),
        "entropy": float(on_text.entropy[at]),
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
        on_text = live.head(run, layer, head, terms=False)
        matrix = np.where(on_text.visible, on_text.attention, np.nan)
        if len(run.words.tokens) > MOST:
            words = live.words(text, level)
            matrix = shown_attention(on_text.attention, on_text.visible, words, cells_of(words))
        assert run.entropy is not None
        answer[moment] = {
            "attention": packed(matrix),
            "entropy": packed(on_text.entropy),
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
    """Shares and norms by frequency: of the whole text, and of every shown row."""
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


def _centered(values: Float[np.ndarray, "query key"], visible: Bool[np.ndarray, "query key"]) -> np.ndarray:
    """Each row minus its mean over the visible keys: softmax ignores what is constant along a row."""
    count = np.maximum(visible.sum(-1, keepdims=True), 1)
    return np.asarray(values - np.where(visible, values, 0.0).sum(-1, keepdims=True) / count)


def _packed_terms(on_text: HeadOnText, cells: Cells | None = None) -> dict[str, Any] | None:
    """The terms or, in cells, the mean of each over its visible pairs, every row minus its mean."""
    if on_text.terms is None or cells is None:
        return None if on_text.terms is None else {name: packed(term) for name, term in on_text.terms.items()}
    seen = on_text.visible
    return {name: packed(mean_cells(_centered(term, seen), seen, cells)) for name, term in on_text.terms.items()}
