"""Text to token blocks of one length that remember their document."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from armillary.errors import ArmillaryError
from armillary.limits import refuse_beyond_memory
from armillary.sources import Document, Skipped, open_sources

Bos = Literal["auto", "always", "never"]

RANDOM = "builtin:random"
"""The corpus of random tokens."""


@dataclass(frozen=True)
class Blocks:
    """Sequences of equal length: tokens[c], and documents[document[c]] is the text that block c begins in.

    token_names: how some of the tokens, by their number in decimal, are written in text.
    """

    tokens: Int[np.ndarray, "sequence token"]
    document: Int[np.ndarray, "sequence"]
    documents: tuple[str, ...]
    by_document: bool = False
    notes: tuple[str, ...] = ()
    sources: tuple[dict[str, Any], ...] = ()
    """What was read of each source: Source.record."""
    token_names: dict[str, str] = field(default_factory=dict)
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    begin: int | None = None
    """Special tokens before and after the text of every block, and the one that `bos` always would put before it."""

    @property
    def sha256(self) -> str:
        """A fingerprint of the tokens and their documents."""
        digest = hashlib.sha256(np.ascontiguousarray(self.tokens, dtype=np.int64).tobytes())
        digest.update(np.ascontiguousarray(self.document, dtype=np.int64).tobytes())
        return digest.hexdigest()


def read_blocks(
    sources: str | Path | Sequence[str | Path],
    tokenizer: Any,
    *,
    length: int,
    sequences: int,
    vocabulary: int,
    by_document: bool = False,
    bos: Bos = "auto",
    seed: int = 0,
) -> Blocks:
    """`sequences` blocks of `length` tokens from one or several sources.

    A block carries the special tokens that `bos` asks for, then text. Without `by_document` texts are packed one
    after the other (with the end-of-text token between them, where there is one) and blocks are cut in order. With
    it, no block mixes two documents, and documents take turns, so that each gives as many blocks as it can.
    """
    names = _names(sources)
    if length < 2 or sequences < 1:
        raise ArmillaryError(f"blocks of {length} tokens and {sequences} sequences make no corpus: 2 and 1 at least")
    refuse_too_many(sequences, length, sources)
    if names == [RANDOM]:
        return random_blocks(length=length, sequences=sequences, vocabulary=vocabulary, seed=seed)
    skipped = Skipped()
    opened = open_sources(names, seed=seed, skipped=skipped)
    if tokenizer is None:
        raise ArmillaryError(
            "this model came without a tokenizer, which text needs: give one, or tokens, or builtin:random"
        )
    before, after = special_tokens(tokenizer, bos)
    room = length - len(before) - len(after)
    if room < 1:
        raise ArmillaryError(f"blocks of {length} tokens have no room beside the tokenizer's special tokens: use more")
    texts = (
        replace(document, name=f"{source.name}: {document.name}" if len(opened) > 1 else document.name)
        for source in opened
        for document in source.documents()
    )
    tokenised = _tokenised(texts, tokenizer, skipped)
    cut = _by_document if by_document else _packed
    taken, owners, read = cut(tokenised, room, sequences, getattr(tokenizer, "eos_token_id", None))
    if len(taken) < sequences:
        raise ArmillaryError(_too_little(" + ".join(names), len(taken), sequences, length, read, by_document, skipped))
    order = list(dict.fromkeys(owners))
    tokens = np.array([[*before, *block, *after] for block in taken], dtype=np.int64)
    if tokens.max() >= vocabulary:
        raise ArmillaryError(
            f"the tokenizer gives the token {int(tokens.max())}, but the model's vocabulary has {vocabulary}: "
            "this tokenizer does not belong to this model"
        )
    document = np.array([order.index(owner) for owner in owners], dtype=np.int64)
    records = [source.record() for source in opened]
    notes = [*skipped.notes(), *_unread(records, sequences)]
    return Blocks(
        tokens,
        document,
        tuple(order),
        by_document,
        tuple(notes),
        tuple(records),
        before=tuple(before),
        after=tuple(after),
        begin=begin_token(tokenizer),
    )


def refuse_too_many(sequences: int, length: int, sources: str | Path | Sequence[str | Path]) -> None:
    """Raise if so many blocks do not fit into memory: 8 bytes a token, and as Python's numbers before that 40 more."""
    each = 8.0 if str(sources) == RANDOM else 48.0
    what = f"{sequences} blocks of {length} tokens"
    refuse_beyond_memory(sequences * length * each, what, "ask for fewer or shorter blocks")


def check_corpus(sources: str | Path | Sequence[str | Path]) -> None:
    """Raise if a source is not there or is no text; nothing but their beginnings is read."""
    names = _names(sources)
    if names != [RANDOM]:
        open_sources(names)


def _names(sources: str | Path | Sequence[str | Path]) -> list[str]:
    names = [str(source) for source in ([sources] if isinstance(sources, str | Path) else sources)]
    if RANDOM in names and len(names) > 1:
        raise ArmillaryError(f"{RANDOM} cannot be mixed with text: scan it on its own")
    return names


def _unread(records: list[dict[str, Any]], sequences: int) -> list[str]:
    """A sentence about sources that no block is from, because the text before them was enough."""
    names = [record["source"] for record in records if not record["read"]]
    if not names:
        return []
    were = "were not read: the sources before them" if len(names) > 1 else "was not read: the sources before it"
    return [f"{', '.join(names)} {were} filled all {sequences} blocks"]


def token_blocks(tokens: Any, vocabulary: int) -> Blocks:
    """Blocks from plain tokens, a (sequence, token) array or tensor; every sequence is a document of its own."""
    array = np.asarray(tokens)
    if array.ndim != 2 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise ArmillaryError(
            f"tokens must be whole numbers of shape (sequence, token), not {array.dtype} {array.shape}: "
            "cut or pack unequal texts to one length"
        )
    if array.min() < 0 or array.max() >= vocabulary:
        raise ArmillaryError(
            f"tokens run from {array.min()} to {array.max()}, but the model's vocabulary is 0 to {vocabulary - 1}"
        )
    return Blocks(
        array.astype(np.int64), np.arange(len(array)), tuple(f"sequence {c}" for c in range(len(array))), True
    )


def random_blocks(*, length: int, sequences: int, vocabulary: int, seed: int) -> Blocks:
    """Tokens drawn uniformly from the model's vocabulary."""
    tokens = np.random.default_rng(seed).integers(0, vocabulary, (sequences, length))
    return Blocks(tokens, np.zeros(sequences, dtype=np.int64), ("random tokens",))


def special_tokens(tokenizer: Any, bos: Bos) -> tuple[list[int], list[int]]:
    """What stands before and after the text of every block."""
    if bos == "never":
        return [], []
    if bos == "always":
        first = begin_token(tokenizer)
        if first is None:
            raise ArmillaryError("--bos always, but this tokenizer has no token that begins a text: use auto or never")
        return [first], []
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def begin_token(tokenizer: Any) -> int | None:
    """The token that a text can begin with, whether or not the tokenizer puts it there."""
    found = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    return None if found is None else int(found)


Tokenised = Iterator[tuple[str, list[int]]]
Cut = tuple[list[list[int]], list[str], int]
"""Blocks, the document of each, and how many tokens were read in all."""


def _tokenised(texts: Iterator[Document], tokenizer: Any, skipped: Skipped) -> Tokenised:
    for document in texts:
        if not document.text.strip():
            skipped.empty += 1
            continue
        yield document.name, tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"]


def _packed(texts: Tokenised, room: int, sequences: int, separator: int | None) -> Cut:
    blocks: list[list[int]] = []
    owners: list[str] = []
    pending: list[int] = []
    pending_owners: list[tuple[int, str]] = []  # where in `pending` each document begins
    read, previous = 0, None
    for name, ids in texts:
        if pending and separator is not None and name != previous:
            ids = [separator, *ids]
        pending_owners.append((len(pending), name))
        pending += ids
        read, previous = read + len(ids), name
        while len(pending) >= room and len(blocks) < sequences:
            owner = max((begin, owner) for begin, owner in pending_owners if begin <= 0)[1] if pending_owners else name
            blocks.append(pending[:room])
            owners.append(owner)
            pending = pending[room:]
            shifted = [(begin - room, owner) for begin, owner in pending_owners]
            passed = [entry for entry in shifted if entry[0] <= 0]
            pending_owners = passed[-1:] + [entry for entry in shifted if entry[0] > 0]
        if len(blocks) == sequences:
            break
    return blocks, owners, read


def _by_document(texts: Tokenised, room: int, sequences: int, separator: int | None) -> Cut:
    """Blocks of each document in turn; the pieces of one long document count as one."""
    queues: dict[str, list[list[int]]] = {}
    read = 0
    for name, ids in texts:
        read += len(ids)
        queue = queues.setdefault(name, [])
        if len(queue) < sequences:
            queue += [ids[i : i + room] for i in range(0, len(ids) - room + 1, room)][: sequences - len(queue)]
        if sum(1 for blocks in queues.values() if blocks) >= sequences:
            break  # each of them gives one block: more text changes nothing
    blocks: list[list[int]] = []
    owners: list[str] = []
    for turn in range(sequences):
        for name, queue in queues.items():
            if turn < len(queue) and len(blocks) < sequences:
                blocks.append(queue[turn])
                owners.append(name)
    return blocks, owners, read


def _too_little(name: str, found: int, wanted: int, length: int, read: int, by_document: bool, skipped: Skipped) -> str:
    if read == 0:
        return f"the corpus {name} holds no text"
    kind = "blocks that do not mix documents" if by_document else "blocks"
    notes = "".join(f" ({note})" for note in skipped.notes())
    instead = f"--sequences {found}, or a shorter --length" if found else "a shorter --length"
    return (
        f"the corpus {name} has {read} tokens{notes}, enough for {found} {kind} of {length}, but {wanted} were asked "
        f"for ({wanted * length} tokens): give more text, or {instead}"
    )
