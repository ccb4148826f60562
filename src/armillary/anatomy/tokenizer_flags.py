"""Makes a tokenizer add the begin and end tokens that its checkpoint specifies, where transformers does not."""

from pathlib import Path
from typing import Any

from armillary.anatomy.gguf import tokenizer_fields
from armillary.text.sequences import special_tokens

# Imports inside functions: transformers takes seconds to import.


def honor_gguf(tokenizer: Any, file: Path) -> None:
    """Follow the file's flags for begin and end tokens; without a flag SentencePiece models add a begin token."""
    settings = tokenizer_fields(file)
    if settings.get("bos_token_id") is not None and tokenizer.bos_token_id != settings["bos_token_id"]:
        tokenizer.bos_token = tokenizer.convert_ids_to_tokens(int(settings["bos_token_id"]))
    if settings.get("eos_token_id") is not None and tokenizer.eos_token_id != settings["eos_token_id"]:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(int(settings["eos_token_id"]))
    default = True if settings.get("model") == "llama" else None
    _set(tokenizer, settings.get("add_bos_token", default), settings.get("add_eos_token"))


def honor_config(tokenizer: Any, place: str) -> None:
    """Add the begin and end tokens that tokenizer_config.json asks for and the post-processor lacks.

    transformers reads add_bos_token only if there is no tokenizer.json. A begin token that the post-processor adds
    stays, whatever the flag says: transformers does the same, and the flags of old files are often wrong.
    """
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    settings = get_tokenizer_config(place)
    _set(tokenizer, settings.get("add_bos_token") or None, settings.get("add_eos_token") or None)


def _set(tokenizer: Any, bos: bool | None, eos: bool | None) -> None:
    """Add begin and end tokens, or do not; None leaves them as they are."""
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


def _changed(ids: list[int], token: int | None, add: bool | None, side: int) -> list[int]:
    """The special tokens with or without this one, which is outermost: first (side 0) or last (-1)."""
    if token is None or add is None or (token in ids) == add:
        return ids
    if not add:
        return [other for other in ids if other != token]
    return [token, *ids] if side == 0 else [*ids, token]
