"""The text of every token of a tokenizer, readable whatever it holds, and the class of each token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from armillary.text.words import LINE_BREAKS

SPECIAL, NEWLINE, PUNCTUATION, DIGITS, WORD_START, WORD_REST = range(6)
CLASSES = ("special", "newline", "punctuation", "digits", "start of a word", "rest of a word")
"""Every token has one class. Newline: no letter or digit, and a line break; punctuation: other tokens without a letter
or digit, white space included; digits: digits without a letter; start of a word: letters, after white space."""

DELIMITERS = (SPECIAL, NEWLINE, PUNCTUATION)
LONGEST = 24
"""At most this many characters of a token are shown."""

SPACE_MARK, BYTE = "\u2581", re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How SentencePiece writes a space and a single byte."""


@dataclass(frozen=True)
class Vocabulary:
    """The text and the class of every token, by token id; capital: a word that starts with a capital letter."""

    texts: tuple[str, ...]
    kinds: UInt8[np.ndarray, "token"]
    capital: Bool[np.ndarray, "token"]

    def __len__(self) -> int:
        return len(self.texts)

    def delimiters(self) -> Bool[np.ndarray, "token"]:
        """Which tokens are punctuation, newlines or special tokens."""
        return np.asarray(np.isin(self.kinds, DELIMITERS))

    def shown(self, token: int) -> str:
        """The token in quotes, readable; 'token 17' for a number that the tokenizer does not know."""
        return quoted(self.texts[token]) if 0 <= token < len(self.texts) and self.texts[token] else f"token {token}"


def quoted(text: str) -> str:
    """A text in quotes; what cannot be printed (control characters, directions, lone bytes) is escaped, and long ones
    are cut."""
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return repr(cut).replace("\\\\", "\\")


def vocabulary_of(tokenizer: Any, size: int) -> Vocabulary:
    """The vocabulary of a tokenizer, for a model with `size` tokens; tokens that it does not know have no text."""
    pieces = _pieces(tokenizer, size)
    special = {int(token) for token in getattr(tokenizer, "all_special_ids", ())}
    special |= {int(i) for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items() if token.special}
    style = _style(pieces)
    texts, kinds, capital = [], np.zeros(size, np.uint8), np.zeros(size, bool)
    for token, piece in enumerate(pieces):
        text = piece if token in special else _text(piece, style)
        kinds[token] = SPECIAL if token in special else class_of(text, _starts(piece, text, style))
        capital[token] = kinds[token] == WORD_START and text.strip()[:1].isupper()
        texts.append(text.removeprefix("##") if style == "wordpiece" and token not in special else text)
    return Vocabulary(tuple(texts), kinds, capital)


def class_of(text: str, starts: bool) -> int:
    """The class of a token that is not special; starts: whether its letters begin a word."""
    if any(character.isalpha() for character in text):
        return WORD_START if starts else WORD_REST
    if any(character.isdigit() for character in text):
        return DIGITS
    return NEWLINE if LINE_BREAKS & {*text} else PUNCTUATION


def _pieces(tokenizer: Any, size: int) -> list[str]:
    """The tokenizer's own name of every token; '' for those that it does not know."""
    pieces = [""] * size
    for piece, token in tokenizer.get_vocab().items():
        if 0 <= token < size:
            pieces[token] = str(piece)
    return pieces


def _style(pieces: Sequence[str]) -> str:
    """How the pieces mark white space: 'bytes' (GPT-2), 'sentencepiece', 'wordpiece' (BERT), or not at all."""
    counts = {
        "bytes": sum(piece.startswith("\u0120") for piece in pieces),
        "sentencepiece": sum(SPACE_MARK in piece for piece in pieces),
        "wordpiece": sum(piece.startswith("##") for piece in pieces),
    }
    style = max(counts, key=lambda name: counts[name])
    return style if counts[style] else "plain"


def _text(piece: str, style: str) -> str:
    """The characters that a piece stands for; bytes that are no characters are written as \\xE2."""
    if style == "bytes" and piece and all(character in _byte_alphabet() for character in piece):
        return _decoded(bytes(_byte_alphabet()[character] for character in piece))
    if style == "sentencepiece":
        byte = BYTE.fullmatch(piece)
        return _decoded(bytes([int(byte[1], 16)])) if byte else piece.replace(SPACE_MARK, " ")
    return piece


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


def _starts(piece: str, text: str, style: str) -> bool:
    """Whether a piece with letters begins a word; where nothing marks white space, every piece does."""
    if style == "wordpiece":
        return not piece.startswith("##")
    return style == "plain" or text[:1].isspace()


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, the others follow from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
