"""The texts and classes of tokens: readable whatever they hold."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import armillary as arm
from armillary.anatomy.loading import tokenizer_of
from armillary.text.vocabulary import CLASSES, LONGEST, quoted, vocabulary_of

HOSTILE = (
    "\x1b[31mred",
    "</script><b>",
    "\u202eevil",
    "שלום",
    "a\x00b",
    "line\nbreak",
    "x" * 500,
    "\ud7ff\u2028",
    "[bold]",
)


def words_tokenizer(words: dict[str, int], **special: Any) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=next(iter(words))))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_tokens_are_shown_on_one_line_without_control_characters(text: str) -> None:
    shown = quoted(text)
    assert shown.isprintable()
    assert len(shown) <= 6 * LONGEST
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\n" not in shown


def test_byte_level_tokens_are_their_characters_or_their_bytes() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = ["Ġthe", "âĢ", "Ġ12", "ing", "ĠParis"]
    words = {piece: place for place, piece in enumerate([*alphabet, *others])}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary = vocabulary_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer), len(words) + 2)

    def of(piece: str) -> tuple[str, str]:
        return vocabulary.texts[words[piece]], CLASSES[vocabulary.kinds[words[piece]]]

    assert of("Ġthe") == (" the", "start of a word")
    assert of("Ċ") == ("\n", "newline")
    assert of("âĢ")[0] == "\\xe2\\x80"
    assert of("Ġ12") == (" 12", "digits")
    assert of("ing") == ("ing", "rest of a word")
    assert of(".") == (".", "punctuation")
    assert vocabulary.capital[words["ĠParis"]]
    assert not vocabulary.capital[words["Ġthe"]]
    assert vocabulary.shown(words["âĢ"]) == "'\\xe2\\x80'"
    assert vocabulary.shown(len(words) + 1) == f"token {len(words) + 1}"


def test_sentencepiece_and_wordpiece_mark_words_in_their_own_ways() -> None:
    pieces = {"<unk>": 0, "▁the": 1, "ing": 2, "<0x0A>": 3, "<0xE2>": 4, "▁": 5, "▁7": 6}
    vocabulary = vocabulary_of(words_tokenizer(pieces, unk_token="<unk>"), 7)
    assert vocabulary.texts[1:5] == (" the", "ing", "\n", "\\xe2")
    assert [CLASSES[kind] for kind in vocabulary.kinds[[0, 1, 2, 3, 5, 6]]] == [
        "special",
        "start of a word",
        "rest of a word",
        "newline",
        "punctuation",
        "digits",
    ]
    pieces = {"[UNK]": 0, "play": 1, "##ing": 2, "!": 3}
    vocabulary = vocabulary_of(words_tokenizer(pieces, unk_token="[UNK]"), 4)
    assert vocabulary.texts == ("[UNK]", "play", "ing", "!")
    assert [CLASSES[kind] for kind in vocabulary.kinds] == [
        "special",
        "start of a word",
        "rest of a word",
        "punctuation",
    ]


def test_every_token_of_a_real_tokenizer_is_the_text_that_it_decodes_to() -> None:
    tokenizer = tokenizer_of(arm.bundled("llama"), {})
    vocabulary = vocabulary_of(tokenizer, len(tokenizer))
    for token in range(len(tokenizer)):
        decoded = tokenizer.decode([token])
        if "\ufffd" not in decoded and token not in tokenizer.all_special_ids:
            assert vocabulary.texts[token] == decoded
