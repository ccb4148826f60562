"""Cuts text into token sequences of one length, each with the document it comes from."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from armillary.errors import ArmillaryError
from armillary.machine.limits import refuse_beyond_memory
from armillary.text.sources import Document, Skipped, Source, open_sources

Bos = Literal["auto", "always", "never"]

RANDOM = "builtin:random"
"""The corpus of random tokens."""


@dataclass(frozen=True)
class Sequences:
    """Sequences of equal length: tokens[c], and documents[document[c]] is the text that sequence c begins in.

    token_names: the text of some of the tokens, by token id as a decimal string.
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
    """Special tokens before and after the text of every sequence, and the one that `bos=always` would put first."""

    @property
    def sha256(self) -> str:
        """A fingerprint of the tokens and their documents."""
        digest = hashlib.sha256(np.ascontiguousarray(self.tokens, dtype=np.int64).tobytes())
        digest.update(np.ascontiguousarray(self.document, dtype=np.int64).tobytes())
        return digest.hexdigest()


def read_sequences(
    sources: str | Path | Sequence[str | Path],
    tokenizer: Any,
    *,
    length: int,
    sequences: int,
    vocabulary: int,
    by_document: bool = False,
    bos: Bos = "auto",
    seed: int = 0,
) -> Sequences:
    """`sequences` sequences of `length` tokens from one or several sources.

    A sequence is text with the special tokens that `bos` adds. By default texts are packed one after the other
    (separated by the end-of-text token, if there is one) and cut in order. With `by_document` no sequence mixes two
    documents, and documents take turns, so that as many as possible contribute.
    """
    names = _names(sources)
    if length < 2 or sequences < 1:
        raise ArmillaryError(
            f"{sequences} sequences of {length} tokens are too few", advice="give at least 1 sequence of 2 tokens"
        )
    refuse_too_many(sequences, length, sources)
    if names == [RANDOM]:
        return random_sequences(length=length, sequences=sequences, vocabulary=vocabulary, seed=seed)
    skipped = Skipped()
    opened = open_sources(names, seed=seed, skipped=skipped)
    if tokenizer is None:
        raise ArmillaryError(
            "this model came without a tokenizer, which text needs", advice="give one, or tokens, or builtin:random"
        )
    before, after = special_tokens(tokenizer, bos)
    room = length - len(before) - len(after)
    if room < 1:
        raise ArmillaryError(
            f"sequences of {length} tokens have no room for text beside the tokenizer's special tokens",
            advice="use a larger `length`",
        )
    tokenized = _tokenized(_documents(opened), tokenizer, skipped)
    cut = _by_document if by_document else _packed
    texts_cut, owners, read = cut(tokenized, room, sequences, getattr(tokenizer, "eos_token_id", None))
    if len(texts_cut) < sequences:
        why = _too_little(" + ".join(names), len(texts_cut), sequences, length, read, by_document, skipped)
        raise ArmillaryError(why)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(owners))}
    tokens = np.array([[*before, *text, *after] for text in texts_cut], dtype=np.int64)
    refuse_other_vocabulary(tokens, vocabulary)
    document = np.array([numbers[owner] for owner in owners], dtype=np.int64)
    records = [source.record() for source in opened]
    return Sequences(
        tokens,
        document,
        tuple(numbers),
        by_document,
        (*skipped.notes(), *_unread(records, sequences)),
        tuple(records),
        before=tuple(before),
        after=tuple(after),
        begin=begin_token(tokenizer),
    )


def refuse_other_vocabulary(tokens: Int[np.ndarray, "sequence token"], vocabulary: int) -> None:
    """Raise if a token is not one of the model's."""
    if tokens.max() >= vocabulary:
        raise ArmillaryError(
            f"the tokenizer gives the token {int(tokens.max())}, but the model's vocabulary has {vocabulary}: "
            "this tokenizer does not belong to this model"
        )


def refuse_too_many(sequences: int, length: int, sources: str | Path | Sequence[str | Path]) -> None:
    """Raise if the sequences do not fit into memory: 8 bytes per token, and 40 more as Python integers before that."""
    bytes_per_token = 8.0 if str(sources) == RANDOM else 48.0
    what = f"{sequences} sequences of {length} tokens"
    refuse_beyond_memory(sequences * length * bytes_per_token, what, "ask for fewer or shorter sequences")


def check_corpus(sources: str | Path | Sequence[str | Path]) -> None:
    """Raise if a source does not exist or is not text; only the beginning of each is read."""
    names = _names(sources)
    if names != [RANDOM]:
        open_sources(names)


def _names(sources: str | Path | Sequence[str | Path]) -> list[str]:
    names = [str(source) for source in ([sources] if isinstance(sources, str | Path) else sources)]
    if RANDOM in names and len(names) > 1:
        raise ArmillaryError(f"{RANDOM} cannot be mixed with text", advice="scan it on its own")
    return names


def _unread(records: list[dict[str, Any]], sequences: int) -> list[str]:
    """A note about sources that were not read because the ones before them had enough text."""
    names = [record["source"] for record in records if not record["read"]]
    if not names:
        return []
    reason = "were not read: the sources before them" if len(names) > 1 else "was not read: the sources before it"
    return [f"{', '.join(names)} {reason} filled all {sequences} sequences"]


def token_sequences(tokens: Any, vocabulary: int) -> Sequences:
    """Sequences from a (sequence, token) array or tensor of token ids; each is a document of its own."""
    array = np.asarray(tokens)
    if array.ndim != 2 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise ArmillaryError(
            f"tokens must be whole numbers of shape (sequence, token), not {array.dtype} {array.shape}",
            advice="cut or pack unequal texts to one length",
        )
    if array.min() < 0 or array.max() >= vocabulary:
        raise ArmillaryError(
            f"tokens run from {array.min()} to {array.max()}, but the model's vocabulary is 0 to {vocabulary - 1}"
        )
    return Sequences(
        array.astype(np.int64), np.arange(len(array)), tuple(f"sequence {c}" for c in range(len(array))), True
    )


def random_sequences(*, length: int, sequences: int, vocabulary: int, seed: int) -> Sequences:
    """Tokens drawn uniformly from the model's vocabulary."""
    tokens = np.random.default_rng(seed).integers(0, vocabulary, (sequences, length))
    return Sequences(tokens, np.zeros(sequences, dtype=np.int64), ("random tokens",))


def special_tokens(tokenizer: Any, bos: Bos) -> tuple[list[int], list[int]]:
    """The special tokens before and after the text of every sequence."""
    if bos == "never":
        return [], []
    if bos == "always":
        first = begin_token(tokenizer)
        if first is None:
            raise ArmillaryError("`bos=always`, but this tokenizer has no begin token", advice="use auto or never")
        return [first], []
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def begin_token(tokenizer: Any) -> int | None:
    """The tokenizer's begin token (BOS or CLS), whether or not it adds it to a text."""
    token = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    return None if token is None else int(token)


Tokenized = Iterator[tuple[str, list[int]]]
Cut = tuple[list[list[int]], list[str], int]
"""Token sequences, the document of each, and how many tokens were read in all."""


def _documents(sources: Sequence[Source]) -> Iterator[Document]:
    """The documents of all sources, named after their source where there are several."""
    for source in sources:
        for document in source.documents():
            yield replace(document, name=f"{source.name}: {document.name}") if len(sources) > 1 else document


def _tokenized(texts: Iterator[Document], tokenizer: Any, skipped: Skipped) -> Tokenized:
    for document in texts:
        if not document.text.strip():
            skipped.empty += 1
            continue
        yield document.name, tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"]


def _packed(texts: Tokenized, room: int, sequences: int, separator: int | None) -> Cut:
    """Sequences one after the other; every token is moved a fixed number of times, however many there are."""
    cuts: list[list[int]] = []
    owners: list[str] = []
    rest: list[int] = []  # tokens that are not cut yet: fewer than `room` between two texts
    read, previous, owner = 0, None, ""  # owner: the document that `rest` begins in
    for name, ids in texts:
        if not rest:
            owner = name
        elif separator is not None and name != previous:
            rest.append(separator)
            read += 1
        rest += ids
        read, previous = read + len(ids), name
        count = min(len(rest) // room, sequences - len(cuts))
        if count:
            cuts += [rest[i * room : (i + 1) * room] for i in range(count)]
            owners += [owner, *[name] * (count - 1)]
            owner = name
            del rest[: count * room]
        if len(cuts) == sequences:
            break
    return cuts, owners, read


def _by_document(texts: Tokenized, room: int, sequences: int, separator: int | None) -> Cut:
    """Sequences from each document in turn; the pieces of one long document count as one document."""
    queues: dict[str, list[list[int]]] = {}
    read = giving = 0
    for name, ids in texts:
        read += len(ids)
        queue = queues.setdefault(name, [])
        had = bool(queue)
        if len(queue) < sequences:
            queue += [ids[i : i + room] for i in range(0, len(ids) - room + 1, room)][: sequences - len(queue)]
        giving += bool(queue) and not had
        if giving >= sequences:
            break  # each of them gives one sequence: more text changes nothing
    cuts: list[list[int]] = []
    owners: list[str] = []
    turn, left = 0, [(name, queue) for name, queue in queues.items() if queue]
    while left and len(cuts) < sequences:
        asked = left[: sequences - len(cuts)]
        cuts += [queue[turn] for _, queue in asked]
        owners += [name for name, _ in asked]
        turn += 1
        left = [(name, queue) for name, queue in left if turn < len(queue)]
    return cuts, owners, read


def _too_little(
    name: str, available: int, requested: int, length: int, read: int, by_document: bool, skipped: Skipped
) -> str:
    if read == 0:
        return f"the corpus {name} holds no text"
    kind = "sequences that do not mix documents" if by_document else "sequences"
    notes = "".join(f" ({note})" for note in skipped.notes())
    instead = f"`sequences={available}`, or a shorter `length`" if available else "a shorter `length`"
    return (
        f"the corpus {name} has {read} tokens{notes}, enough for {available} {kind} of {length}, but {requested} were "
        f"requested ({requested * length} tokens): give more text, or {instead}"
    )
