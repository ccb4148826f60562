"""Splits a text into words and maps tokens to words, by the same rule for every tokenizer."""

import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from armillary.errors import ArmillaryError

Span = tuple[int, int]
"""Index of the first character, and one past the last."""

LINE_BREAKS = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
APOSTROPHES = frozenset("'\u2019")
IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
WHITE, LETTER, IDEOGRAPH, SYMBOL, SIGN, JOINING = "white", "letter", "ideograph", "symbol", "sign", "joining"

LINE_BREAK_NAME = "⏎"
SPACE_NAME = "␣"


@dataclass(frozen=True)
class Words:
    """Token t belongs to word of_token[t]; a word is a run of tokens, words are in order, names[w] is the word's text.

    spans[w] are the word's characters in the text; empty for a special token that the tokenizer added.
    """

    names: tuple[str, ...]
    of_token: Int[np.ndarray, "token"]
    spans: tuple[Span, ...]
    special: Bool[np.ndarray, "word"]
    tokens: tuple[int, ...]

    @property
    def starts(self) -> Int[np.ndarray, "word"]:
        """The first token of every word."""
        return np.flatnonzero(np.diff(self.of_token, prepend=-1))

    @property
    def sizes(self) -> Int[np.ndarray, "word"]:
        """How many tokens every word has."""
        return np.bincount(self.of_token, minlength=len(self.names))


def text_words(text: str) -> list[Span]:
    """The words of a text: a run of characters of one kind is a word.

    The kinds: letters and digits, with apostrophes between letters (don't) and points between digits (3.14); Chinese
    characters, each a word; symbols beyond ASCII, such as emoji; all other signs (... or '):'); and white space with a
    line break. Accents and invisible joiners belong to the character before them. White space within a line is not a
    word.
    """
    runs: list[Span] = []
    previous = WHITE
    for i, character in enumerate(text):
        kind = kind_of(character)
        if kind == JOINING:
            kind = LETTER if previous == WHITE else previous
            begins = previous == WHITE
        else:
            if previous == LETTER and _links(text, i):
                kind = LETTER
            begins = kind != previous or kind == IDEOGRAPH
        if begins or not runs:
            runs.append((i, i + 1))
        else:
            runs[-1] = (runs[-1][0], i + 1)
        previous = kind
    return [(start, end) for start, end in runs if text[start:end].strip() or LINE_BREAKS & {*text[start:end]}]


def kind_of(character: str) -> str:
    """The kind of a character, as in text_words; the end of the text counts as white space."""
    if not character or character.isspace():
        return WHITE
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf":
        return JOINING
    if any(first <= ord(character) <= last for first, last in IDEOGRAPHS):
        return IDEOGRAPH
    if category[0] in "LN":
        return LETTER
    return SYMBOL if category[0] == "S" and not character.isascii() else SIGN


def _links(text: str, i: int) -> bool:
    """Whether character i is an apostrophe before a letter or a point between digits."""
    after = text[i + 1 : i + 2]
    if text[i] == ".":
        return text[i - 1].isdecimal() and after.isdecimal()
    return text[i] in APOSTROPHES and kind_of(after) == LETTER


def words_of(tokenizer: Any, text: str) -> Words:
    """The words of a text, with the tokens of each; a special token is a word of its own, named by the tokenizer.

    A token belongs to the word that most of its characters are in (the first on a tie), white space not counted. A
    token of white space belongs to its line break, else to the next word, else to the previous one. If a token covers
    a second word entirely, the two become one word. Text that the tokenizer drops is left out.
    """
    encoding = encoded(tokenizer, text)
    if encoding.spans is None:
        raise ArmillaryError(
            f"the tokenizer {type(tokenizer).__name__} does not say which characters its tokens cover (it is "
            "not a fast one), so tokens cannot be joined to words",
            advice="use level 'token'",
        )
    words = _words_between(
        text, [span for span, special in zip(encoding.spans, encoding.special, strict=True) if special]
    )
    owners = _joined_to_neighbors(_owners(text, encoding.spans, encoding.special, words))
    extents = _with_swallowed(text, encoding.spans, owners, words)
    names: list[str] = []
    spans: list[Span] = []
    of_token: list[int] = []
    for t, owner in enumerate(owners):
        if t == 0 or owner == SPECIAL or owner != owners[t - 1]:
            span = extents[owner] if owner >= 0 else encoding.spans[t]
            shown = text[slice(*span)].strip() or LINE_BREAK_NAME
            names.append({SPECIAL: encoding.names[t], BLANK: SPACE_NAME}.get(owner, shown))
            spans.append(span)
        of_token.append(len(names) - 1)
    special = np.zeros(len(names), dtype=bool)
    special[of_token] = encoding.special
    return Words(tuple(names), np.array(of_token, dtype=np.int64), tuple(spans), special, encoding.tokens)


def token_words(tokenizer: Any, text: str) -> Words:
    """Every token as a word: its characters, or its name if it is special or shares a character with other tokens."""
    encoding = encoded(tokenizer, text)
    names = list(encoding.names)
    if encoding.spans is not None:
        times = Counter(encoding.spans)
        for t, (start, end) in enumerate(encoding.spans):
            if start < end and times[start, end] == 1 and not encoding.special[t]:
                names[t] = text[start:end]
    spans = encoding.spans or ((0, 0),) * len(names)
    return Words(tuple(names), np.arange(len(names)), spans, np.array(encoding.special, dtype=bool), encoding.tokens)


def join_keys(attention: Float[np.ndarray, "*dims key"], words: Words) -> Float[np.ndarray, "*dims word"]:
    """The attention to each word: the sum over its tokens."""
    return np.add.reduceat(attention, words.starts, axis=-1)


def join(attention: Float[np.ndarray, "*dims query key"], words: Words) -> Float[np.ndarray, "*dims word word"]:
    """Attention from word to word: summed over a word's keys, averaged over its queries, so that row sums stay."""
    rows = np.add.reduceat(join_keys(attention, words), words.starts, axis=-2)
    return np.asarray(rows / words.sizes[:, None])


def word_means(vectors: Float[np.ndarray, "token d"], words: Words) -> Float[np.ndarray, "word d"]:
    """The mean vector of every word's tokens."""
    return np.asarray(np.add.reduceat(vectors, words.starts, axis=0) / words.sizes[:, None])


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text and the tokenizer's names for them; spans is None if the tokenizer does not give them."""

    tokens: tuple[int, ...]
    names: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]


def encoded(tokenizer: Any, text: str) -> Encoded:
    """The tokens of a text, with the special ones that the tokenizer adds or that are written in the text."""
    fast = bool(getattr(tokenizer, "is_fast", False))
    extra = {"return_offsets_mapping": True} if fast else {}
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArmillaryError(f"the text is not valid Unicode ({error})", advice="save it as UTF-8") from error
    encoding = tokenizer(text, return_special_tokens_mask=True, verbose=False, **extra)
    tokens = tuple(encoding["input_ids"])
    names = tuple(str(name) for name in tokenizer.convert_ids_to_tokens(list(tokens)))
    spans = tuple((int(start), int(end)) for start, end in encoding["offset_mapping"]) if fast else None
    special = [bool(added) for added in encoding["special_tokens_mask"]]
    reserved = {i for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items() if token.special}
    for t, token in enumerate(tokens):
        if token in reserved and spans is not None:  # an unknown word becomes [UNK] but is not written [UNK]
            special[t] = special[t] or text[slice(*spans[t])].strip() == names[t]
    return Encoded(tokens, names, spans, tuple(special))


SPECIAL, BLANK = -2, -1
"""Owner of a token that is in no word: a special token, or white space that is not yet assigned."""


def _words_between(text: str, special: list[Span]) -> list[Span]:
    """The words of the text; none crosses a special token that is written in it."""
    edges = [0, *(edge for span in special if span[0] < span[1] for edge in span), len(text)]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [(begin + start, begin + end) for begin, stop in gaps for start, end in text_words(text[begin:stop])]


def _owners(text: str, spans: tuple[Span, ...], special: tuple[bool, ...], words: list[Span]) -> list[int]:
    """The word of every token, SPECIAL or BLANK; words never decrease from token to token."""
    word_at = np.full(len(text), BLANK, dtype=np.int64)
    for w, (start, end) in enumerate(words):
        word_at[start:end] = w
    owners: list[int] = []
    latest = 0
    for (start, end), is_special in zip(spans, special, strict=True):
        written = Counter(int(word_at[i]) for i in range(start, end) if not text[i].isspace())
        blank = Counter(int(word_at[i]) for i in range(start, end) if word_at[i] != BLANK)
        if is_special or not (written or blank):
            owners.append(SPECIAL if is_special else BLANK)
        else:
            latest = max(latest, (written or blank).most_common(1)[0][0])  # of equal counts, the first
            owners.append(latest)
    return owners


def _joined_to_neighbors(owners: list[int]) -> list[int]:
    """White space joins the word of the next token, else that of the token before; alone it stays BLANK."""
    joined = list(owners)
    for t in reversed(range(len(joined) - 1)):
        if joined[t] == BLANK and joined[t + 1] != SPECIAL:
            joined[t] = joined[t + 1]
    for t in range(1, len(joined)):
        if joined[t] == BLANK and joined[t - 1] != SPECIAL:
            joined[t] = joined[t - 1]
    return joined


def _with_swallowed(text: str, spans: tuple[Span, ...], owners: list[int], words: list[Span]) -> list[Span]:
    """The words, each extended by neighbors that its tokens cover and that own no token themselves."""
    extents = list(words)
    owning, w = {*owners}, 0
    for (start, end), owner in zip(spans, owners, strict=True):
        while w < len(words) and words[w][1] <= start:
            w += 1
        for other in range(w, len(words)):
            first, last = words[other]
            if first >= end:
                break
            if owner >= 0 and other not in owning and text[first:last].strip():
                extents[owner] = (min(extents[owner][0], first), max(extents[owner][1], last))
    return extents
