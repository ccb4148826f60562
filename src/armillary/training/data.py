"""The text of a run as tokens: packed once into a file, read from there through a memory map.

The file is named by a hash of the tokenizer and of every byte of the text, so other text is another file. It lies in
the user's cache (files/hashes.py says where), shared by all runs on that text, or in RUN/work without a cache. A run
writes the name of its file to RUN/work/text.json: when it is resumed, the corpus is not read again while that file is
there and its checksum is right.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Integer

from armillary.anatomy.loading import tokenizer_of
from armillary.anatomy.options import ModelOptions
from armillary.errors import ArmillaryError
from armillary.files.atomic import checksum_path, make_folder, write_atomically, write_with_checksum
from armillary.files.hashes import cache_folder, file_hash
from armillary.files.records import read_record
from armillary.text.names import split_sources
from armillary.text.sources import Document, documents
from armillary.training.bundled import bundled
from armillary.training.config import RunConfig
from armillary.training.loop import last_checkpoint

HELD_OUT_WINDOWS = 8
"""During training the held-out loss is measured on this many windows; at the end on all."""

PIECE = 1 << 20
"""Tokens that are written at once."""


class PackedText(TypedDict):
    """RUN/work/text.json."""

    file: str
    corpus: str
    documents: int | None
    tokenizer: str


@dataclass(frozen=True)
class Text:
    """Training tokens, held-out tokens, and the tokenizer."""

    training: Integer[np.ndarray, "token"]
    held_out: Integer[np.ndarray, "token_"]
    tokenizer: Any


def read_text(config: RunConfig, options: ModelOptions | None = None, work: Path | None = None) -> Text:
    """The corpus as tokens, with an end-of-text token before every document; its last share is held out.

    `work` is the folder of a run that remembers which packed file it reads.
    """
    name: str | Path = bundled("llama") if config.data.tokenizer == "bundled" else config.data.tokenizer
    tokenizer = tokenizer_of(name if config.model.from_ is None else config.model.from_, options or {})
    if tokenizer.eos_token_id is None:
        raise ArmillaryError(f"the tokenizer {name} has no end-of-text token to put between documents")
    if config.data.corpus == "builtin:random":
        raise ArmillaryError("there is nothing to learn from builtin:random", advice="give text")
    tokens = _packed(config, tokenizer, work)
    split = int(len(tokens) * (1 - config.data.held_out))
    needed = max(config.monitor.sequences, HELD_OUT_WINDOWS) * config.training.length
    if len(tokens) - split < needed or split <= config.training.length:
        raise ArmillaryError(
            f"{config.data.corpus} has {len(tokens)} tokens, of which {len(tokens) - split} are held out: {needed} of "
            f"those and more than {config.training.length} others are needed"
        )
    return Text(tokens[:split], tokens[split:], tokenizer)


def _packed(config: RunConfig, tokenizer: Any, work: Path | None) -> Integer[np.ndarray, "token"]:
    """The tokens of the corpus, from the packed file if there is one."""
    remembered = _remembered(config, work)
    if remembered is not None:
        return remembered
    kind = np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.int32)
    key = _key(config, tokenizer)
    cache = cache_folder()
    folder = cache / "tokens" if cache is not None else work
    if folder is None:  # nothing to remember it in
        return np.concatenate([*_encoded(config, tokenizer, kind), np.array([], kind)])
    path = folder / f"tokens-{key[:32]}.{kind.name}"
    if not _is_intact(path):
        make_folder(folder)
        write_with_checksum(path, (np.ascontiguousarray(piece).data for piece in _encoded(config, tokenizer, kind)))
    if work is not None:
        make_folder(work)
        write_atomically(work / "text.json", json.dumps({"file": str(path.absolute()), **_named(config)}).encode())
    return _mapped(path)


def _named(config: RunConfig) -> dict[str, Any]:
    """The settings that name the text."""
    of = config.data.tokenizer if config.model.from_ is None else config.model.from_
    return {"corpus": config.data.corpus, "documents": config.data.documents, "tokenizer": of}


def _remembered(config: RunConfig, work: Path | None) -> Integer[np.ndarray, "token"] | None:
    """The packed text that a run with a checkpoint has read, if it is there and undamaged."""
    if work is None or not (work / "text.json").is_file() or not last_checkpoint(work):
        return None
    record = read_record(work / "text.json", PackedText, "delete it: the corpus is then read again")
    path = Path(record.pop("file"))
    return _mapped(path) if record == _named(config) and _is_intact(path) else None


def _is_intact(path: Path) -> bool:
    """Whether the file is there with the content that its checksum says."""
    if not path.is_file() or not checksum_path(path).is_file():
        return False
    return file_hash(path) == checksum_path(path).read_text().strip()


def _mapped(path: Path) -> Integer[np.ndarray, "token"]:
    kind = np.dtype(path.suffix.removeprefix("."))
    return np.memmap(path, dtype=kind, mode="r") if path.stat().st_size else np.array([], kind)


def _read(config: RunConfig) -> Iterator[Document]:
    return islice(documents(split_sources(config.data.corpus)), config.data.documents)


def _key(config: RunConfig, tokenizer: Any) -> str:
    """A hash of the tokenizer and of the text."""
    digest = hashlib.sha256(_tokenizer_state(tokenizer).encode("utf-8", errors="surrogatepass"))
    for document in _read(config):
        text = document.text.encode("utf-8", errors="surrogatepass")
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
    return digest.hexdigest()


def _tokenizer_state(tokenizer: Any) -> str:
    """All that the tokens of a text depend on: the fast tokenizer's own JSON, or the vocabulary of a slow one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return f"{type(tokenizer).__name__} {tokenizer.eos_token_id} {state}"


def _encoded(config: RunConfig, tokenizer: Any, kind: Any) -> Iterator[Integer[np.ndarray, "token"]]:
    """The tokens in pieces, an end-of-text token before every document."""
    return _gathered(
        (np.array([tokenizer.eos_token_id, *_ids(tokenizer, document.text)], dtype=kind) for document in _read(config)),
        PIECE,
    )


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _gathered(arrays: Iterable[Any], size: int) -> Iterator[Integer[np.ndarray, "token"]]:
    """The arrays joined to larger ones of about `size` tokens."""
    waiting: list[Any] = []
    count = 0
    for array in arrays:
        waiting.append(array)
        count += len(array)
        if count >= size:
            yield np.concatenate(waiting)
            waiting, count = [], 0
    if waiting:
        yield np.concatenate(waiting)
