"""Models whose heads were put together by hand, so that it is known what each of them does; a tokenizer of letters."""

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from armillary.theory.rotary_heads import positional_head

VOCABULARY, E, SHARP = 42, 96, 60.0
WIDTH = 2 * VOCABULARY
"""The first half of the channels says which token this is, the second which token came before (layer 0 writes that)."""

EXPECTED = {
    (0, 0): "previous",
    (0, 1): "self",
    (0, 2): "first-token",
    (0, 3): "broad",
    (0, 4): "self",
    (0, 5): "local",
    (1, 0): "induction",
    (1, 1): "duplicate",
    **{(1, head): "broad" for head in range(2, 6)},
}
"""Layer 0: Barbero's previous-token and diagonal heads, a first-token head, a uniform head, W_q W_k' = identity, and a
head that looks at the last tokens; layer 1: the other half of an induction pair, a head that finds earlier copies."""


@torch.no_grad()
def handmade_llama() -> LlamaForCausalLM:
    """Two layers of six heads over one-hot tokens; token 0 begins every text. Half of the frequencies hardly turn."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=E,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.zero_()
    model.model.embed_tokens.weight[:, :VOCABULARY] = torch.eye(VOCABULARY)
    frequencies = 1e12 ** (-np.arange(E // 2) / (E // 2))
    _build_first(model.model.layers[0].self_attn, frequencies)
    _build_second(model.model.layers[1].self_attn)
    model.lm_head.weight[:, :VOCABULARY] = torch.eye(VOCABULARY)
    return model


def _build_first(attention: Any, frequencies: np.ndarray) -> None:
    scale = 1 / WIDTH**0.5  # a one-hot token leaves the norm with length sqrt(WIDTH)
    fast = (frequencies > 1e-2).astype(float)
    for head, distance in ((0, 1), (1, 0)):
        q, k = positional_head(SHARP * E**0.5, frequencies, distance=distance, weights=fast)
        _every_token(attention.q_proj, head, q * scale)
        _every_token(attention.k_proj, head, k * scale)
    # local: a smooth bump over the last tokens, from two frequencies whose half turns are 12 and 40 tokens
    chosen = np.zeros_like(frequencies)
    chosen[[np.abs(frequencies - np.pi / reach).argmin() for reach in (12, 40)]] = 1.0
    q, k = positional_head(14 * E**0.5, frequencies, distance=3, weights=chosen)
    _every_token(attention.q_proj, 5, q * scale)
    _every_token(attention.k_proj, 5, k * scale)
    still = _still(VOCABULARY)
    rows = _rows(2)
    attention.q_proj.weight[rows, :VOCABULARY][still[0]] = 8.0 * E**0.25 * scale
    attention.k_proj.weight[rows.start + still[0], 0] = 8.0 * E**0.25 * scale
    for part in (attention.q_proj, attention.k_proj):
        part.weight[_rows(4).start + torch.tensor(still), torch.arange(VOCABULARY)] = SHARP**0.5 * E**0.25 * scale
    # what came before: head 0 copies the token that it sees into the second half
    values = torch.arange(VOCABULARY)
    attention.v_proj.weight[values, values] = scale
    attention.o_proj.weight[VOCABULARY + values, values] = 1.0


def _build_second(attention: Any) -> None:
    """Induction: this token against what came before the key. Duplicate: the same token, but not this one."""
    scale, still = 1 / (WIDTH / 2) ** 0.5, torch.tensor(_still(VOCABULARY))
    tokens, sharp = torch.arange(VOCABULARY), SHARP**0.5 * E**0.25 * scale
    attention.q_proj.weight[_rows(0).start + still, tokens] = sharp
    attention.k_proj.weight[_rows(0).start + still, VOCABULARY + tokens] = sharp
    attention.q_proj.weight[_rows(1).start + still, tokens] = sharp
    attention.k_proj.weight[_rows(1).start + still, tokens] = sharp
    # and a fast pair of channels that speaks against the token itself, but not against one 19 tokens before
    attention.q_proj.weight[_rows(1).start + 1, tokens] = 3 * E**0.25 * scale
    attention.k_proj.weight[_rows(1).start + 1, tokens] = -3 * E**0.25 * scale


def _rows(head: int) -> slice:
    return slice(head * E, (head + 1) * E)


def _still(count: int) -> list[int]:
    """Channels of one half of the pairs that hardly turn, the slowest ones."""
    half = E // 2
    slow = [half - 1 - i for i in range(count // 2)]
    return [*slow, *(half + channel for channel in slow)]


def _every_token(part: torch.nn.Linear, head: int, vector: np.ndarray) -> None:
    part.weight[_rows(head), :VOCABULARY] = torch.from_numpy(vector).float()[:, None]


def random_texts(texts: int = 24, length: int = 41, seed: int = 0) -> Tensor:
    """Random tokens after the token 0, none of which stands twice in a text."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(VOCABULARY - 1, generator=generator)[: length - 1] + 1 for _ in range(texts)]
    return torch.cat([torch.zeros(texts, 1, dtype=torch.long), torch.stack(rows)], 1)


CHOICES = 8
"""Tokens 1 to CHOICES are said by the texts of `choosing_llama`; token 0 begins them."""

PREFERRED = 7


@torch.no_grad()
def choosing_llama() -> LlamaForCausalLM:
    """One layer of three heads over one-hot tokens, without positions to speak of, and what they look at.

    Head 0: keys that are token PREFERRED, whatever asks. Head 1: keys that are the token after the asking one (1 after
    CHOICES). Head 2: token PREFERRED and, half as strongly, what matches, so that neither explains all.
    """
    config = LlamaConfig(
        **dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=4, num_hidden_layers=1),
        **dict(num_attention_heads=3, num_key_value_heads=3, head_dim=E, max_position_embeddings=128),
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.zero_()
    model.model.embed_tokens.weight[:, :VOCABULARY] = torch.eye(VOCABULARY)
    model.lm_head.weight[:, :VOCABULARY] = torch.eye(VOCABULARY)
    attention, still = model.model.layers[0].self_attn, _still(VOCABULARY)
    sharp, tokens = 4.0 * E**0.25 / WIDTH**0.5, torch.arange(1, CHOICES + 1)
    for head, preference, match in ((0, 1.0, 0.0), (1, 0.0, 1.0), (2, 1.0, 0.5)):
        start = head * E
        attention.q_proj.weight[start + still[0], tokens] = sharp * preference
        attention.k_proj.weight[start + still[0], PREFERRED] = sharp
        for token in tokens.tolist():
            channel = start + still[token]
            attention.q_proj.weight[channel, token] = sharp * match
            attention.k_proj.weight[channel, token % CHOICES + 1] = sharp
        values = torch.arange(VOCABULARY)
        attention.v_proj.weight[start + values, values] = 1 / WIDTH**0.5
        attention.o_proj.weight[VOCABULARY + values, start + values] = 1.0
    return model


def choices(texts: int = 24, length: int = 40, seed: int = 0) -> Tensor:
    """Token 0, then tokens 1 to CHOICES drawn evenly."""
    generator = torch.Generator().manual_seed(seed)
    said = torch.randint(1, CHOICES + 1, (texts, length - 1), generator=generator)
    return torch.cat([torch.zeros(texts, 1, dtype=torch.long), said], 1)


@torch.no_grad()
def copying_llama() -> LlamaForCausalLM:
    """`handmade_llama` with an induction head that copies: head 1.0 writes the token that it sees into the logits.

    Head 0.0 writes which token came before; head 1.0 matches that against the present token, and what it attends to is
    the token that followed then. A channel of the first half of the width says which token, the logits are these.
    """
    model = handmade_llama()
    attention, values = model.model.layers[1].self_attn, torch.arange(VOCABULARY)
    attention.v_proj.weight[values, values] = 1 / (WIDTH / 2) ** 0.5
    attention.o_proj.weight[values, values] = 2.0  # louder than the present token itself
    model.lm_head.weight[:] *= 8.0
    return model


def copies(texts: int = 8, period: int = 20, seed: int = 0) -> Tensor:
    """Token 0, then `period` random tokens, twice."""
    first = random_texts(texts, period + 1, seed)
    return torch.cat([first, first[:, 1:]], 1)


LETTERS = {"<s>": 0, "</s>": 1, **{chr(97 + i): i + 2 for i in range(26)}, "[UNK]": 28}


def letters(template: str | None = None) -> PreTrainedTokenizerFast:
    """A token for every letter, words split at spaces; with a template, special tokens as it says."""
    tokenizer = Tokenizer(models.WordLevel(LETTERS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


WORDS = ("<s>", ".", "cat", "dog", "sun", "sea", "ran", "sat", "red", "old")
"""The vocabulary of `telling_llama`, by token; the rest of its tokens are not used."""

TELLS = {
    0: "attends to the last '.'",
    1: "copies what it reads",
    2: "suppresses what it reads",
    3: "attends to earlier mentions of the same token",
}
"""What its heads do, in words."""


@torch.no_grad()
def telling_llama() -> LlamaForCausalLM:
    """One layer of four heads over one-hot tokens: the last full stop, a copier and a suppressor that attend evenly,
    and earlier mentions of the same token. The first and the last write nothing."""
    config = LlamaConfig(
        **dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=4, num_hidden_layers=1),
        **dict(num_attention_heads=4, num_key_value_heads=4, head_dim=E, max_position_embeddings=128),
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.zero_()
    tokens = torch.arange(VOCABULARY)
    model.model.embed_tokens.weight[tokens, tokens] = 1.0
    model.lm_head.weight[tokens, tokens] = 1.0
    attention, scale = model.model.layers[0].self_attn, 1 / WIDTH**0.5
    frequencies = 1e12 ** (-np.arange(E // 2) / (E // 2))
    chosen = np.zeros_like(frequencies)
    chosen[np.abs(frequencies - np.pi / 60).argmin()] = 1.0
    q, k = positional_head(60 * E**0.5, frequencies, distance=0, weights=chosen)
    _every_token(attention.q_proj, 0, q * scale)
    _every_token(attention.k_proj, 0, k * scale)
    still, stop = _still(VOCABULARY), WORDS.index(".")
    attention.q_proj.weight[_rows(0).start + still[0], tokens] = 12.0 * E**0.25 * scale
    attention.k_proj.weight[_rows(0).start + still[0], stop] = 12.0 * E**0.25 * scale
    for head, sign in ((1, 1.0), (2, -1.0)):
        attention.v_proj.weight[_rows(head).start + tokens, tokens] = scale
        attention.o_proj.weight[tokens, _rows(head).start + tokens] = sign
    sharp = SHARP**0.5 * E**0.25 * scale
    for part in (attention.q_proj, attention.k_proj):
        part.weight[_rows(3).start + torch.tensor(still), tokens] = sharp
    attention.q_proj.weight[_rows(3).start + 1, tokens] = 3 * E**0.25 * scale
    attention.k_proj.weight[_rows(3).start + 1, tokens] = -3 * E**0.25 * scale
    return model


def telling_tokenizer() -> PreTrainedTokenizerFast:
    """Words and full stops, each a token."""
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(WORDS)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def telling_text(sentences: int = 400, seed: int = 0) -> str:
    """Sentences of 3 to 8 random words."""
    generator = np.random.default_rng(seed)
    return " ".join(" ".join([*generator.choice(WORDS[2:], generator.integers(3, 9)), "."]) for _ in range(sentences))
