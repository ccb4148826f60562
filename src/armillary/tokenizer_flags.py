"""Begin and end tokens as a checkpoint asks for them, where the tokenizer that transformers builds adds others."""

from pathlib import Path
from typing import Any

from armillary.anatomy.gguf import tokenizer_fields
from armillary.corpus import special_tokens


def honour_gguf(tokenizer: Any, file: Path) -> None:
    """Add begin and end tokens as the file's own flags say; without a flag llama.cpp's SentencePiece begins texts."""
    told = tokenizer_fields(file)
    if told.get("bos_token_id") is not None and tokenizer.bos_token_id != told["bos_token_id"]:
        tokenizer.bos_token = tokenizer.convert_ids_to_tokens(int(told["bos_token_id"]))
    if told.get("eos_token_id") is not None and tokenizer.eos_token_id != told["eos_token_id"]:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(int(told["eos_token_id"]))
    usual = True if told.get("model") == "llama" else None
    _set(tokenizer, told.get("add_bos_token", usual), told.get("add_eos_token"))


def honour_config(tokenizer: Any, place: str) -> None:
    """Add the begin and end tokens that tokenizer_config.json asks for and the post-processor lacks.

    transformers reads add_bos_token only where there is no tokenizer.json. A begin token that the post-processor adds
    stays, whatever the flag says: that is what transformers does, and what most flags of old files do not know.
    """
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    told = get_tokenizer_config(place)
    _set(tokenizer, told.get("add_bos_token") or None, told.get("add_eos_token") or None)


def _set(tokenizer: Any, bos: bool | None, eos: bool | None) -> None:
    """Begin and end texts, or do not; None leaves it as it is."""
    before, after = special_tokens(tokenizer, "auto")
    first, last = _changed(before, tokenizer.bos_token_id, bos, 0), _changed(after, tokenizer.eos_token_id, eos, -1)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if (first, last) == (before, after) or backend is None:
        return
    from tokenizers import processors

    names = {token: str(tokenizer.convert_ids_to_tokens(token)) for token in (*first, *last)}
    words = [*(names[token] for token in first), "$A", *(names[token] for token in last)]
    known = [(name, token) for token, name in names.items()]
    template = processors.TemplateProcessing(single=words, pair=[*words, "$B:1"], special_tokens=known)
    plain = backend.post_processor is not None and not before and not after
    backend.post_processor = processors.Sequence([backend.post_processor, template]) if plain else template


def _changed(ids: list[int], token: int | None, wanted: bool | None, side: int) -> list[int]:
    """The special tokens with or without this one, which stands outermost: first (side 0) or last (-1)."""
    if token is None or wanted is None or (token in ids) == wanted:
        return ids
    if not wanted:
        return [other for other in ids if other != token]
    return [token, *ids] if side == 0 else [*ids, token]
