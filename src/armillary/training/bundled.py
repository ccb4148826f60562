"""The two models that come with Armillary: where they lie, and the text and tokenizer that they were trained with.

Both read Python's own documentation and sources (the built-in corpora) through one byte-level tokenizer. A tenth of the
modules, chosen by a hash of their names, is held out. recipe.py trains them.
"""

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from armillary.text.sources import documents
from armillary.training.loop import mean_loss

# Imports inside functions: transformers takes seconds to import.

VOCABULARY = 2048
CONTEXT = 256
SHAPE = dict(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, pad_token_id=None, tie_word_embeddings=True)
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": dict(n_embd=144, n_layer=6, n_head=6, n_positions=CONTEXT, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "llama": dict(
        hidden_size=144,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=6,
        intermediate_size=384,
        max_position_embeddings=CONTEXT,
    ),
}


def bundled(family: str) -> Path:
    """The folder of a bundled model: 'llama' (rotary) or 'gpt2' (learned positions)."""
    return Path(str(files("armillary").joinpath("bundled", family)))


def held_out(name: str) -> bool:
    """Whether a module is held out for testing."""
    return hashlib.sha256(f"held out {name}".encode()).digest()[0] % 10 == 0


def text(kind: str, *, testing: bool) -> Iterator[str]:
    """The training texts of a built-in corpus, or (testing=True) the held-out ones."""
    return (document.text for document in documents(f"builtin:{kind}") if held_out(document.name) == testing)


def make_tokenizer() -> Any:
    """A byte-level BPE tokenizer learned from the training prose and a third as much code."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    prose = list(text("prose", testing=False))
    code = list(text("code", testing=False))[: len(prose) // 10]
    tokenizer.train_from_iterator([*prose, *code], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>", model_max_length=CONTEXT
    )


def tokens(tokenizer: Any, kind: str, *, testing: bool) -> Integer[np.ndarray, "token"]:
    """A built-in corpus as one row of tokens, with an end-of-text token before every document."""
    ids: list[int] = []
    for document in text(kind, testing=testing):
        ids += [tokenizer.eos_token_id, *tokenizer(document, verbose=False)["input_ids"]]
    return np.array(ids, dtype=np.uint16)


def held_out_loss(model: Any, tokenizer: Any) -> float:
    """Mean loss on the held-out prose."""
    return mean_loss(model, tokens(tokenizer, "prose", testing=True), CONTEXT)
