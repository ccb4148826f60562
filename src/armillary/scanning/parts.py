"""The sequences of a part of a scan, kept beside its shards so that merging needs no text and no tokenizer."""

import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor

from armillary.engines.packing import Packed
from armillary.errors import ArmillaryError
from armillary.files.atomic import read_checked, write_with_checksum
from armillary.files.records import parse_record
from armillary.scanning.folder import (
    ScanFolder,
    unpack_file,
)
from armillary.text.sequences import Sequences
from armillary.text.vocabulary import Vocabulary


class VocabularyRecord(TypedDict):
    """The texts of all tokens, their classes, and which are words with a capital letter."""

    texts: list[str]
    kinds: list[int]
    capital: list[int]


class DocumentsRecord(TypedDict):
    """Contents of work/documents: where the sequences in work/blocks come from."""

    documents: list[str]
    by_document: bool
    notes: list[str]
    sources: list[dict[str, Any]]
    before: list[int]
    after: list[int]
    begin: int | None
    token_names: dict[str, str]
    vocabulary: NotRequired[VocabularyRecord | None]


def write_sequences(place: ScanFolder, sequences: Sequences, first: int, last: int) -> None:
    """Store the sequences first .. last - 1 beside their shards, so that merging needs no text and no tokenizer."""
    tensors = {
        "tokens": torch.from_numpy(sequences.tokens[first:last].copy()),
        "document": torch.from_numpy(sequences.document[first:last].copy()),
    }
    about = {
        "documents": sequences.documents,
        "by_document": sequences.by_document,
        "notes": sequences.notes,
        "sources": sequences.sources,
        "token_names": sequences.token_names,
        "before": sequences.before,
        "after": sequences.after,
        "begin": sequences.begin,
        "vocabulary": None if sequences.vocabulary is None else _vocabulary_record(sequences.vocabulary),
    }
    write_with_checksum(place.work / "blocks", Packed(tensors).pieces())
    write_with_checksum(place.work / "documents", [json.dumps(about).encode()])


def read_sequences_of(places: list[ScanFolder]) -> Sequences:
    """The sequences stored in parts, joined in the order of these folders."""
    parts, about = [], None
    for place in places:
        path, documents_path = place.work / "blocks", place.work / "documents"
        data, documents = read_checked(path), read_checked(documents_path)
        if data is None or documents is None:
            raise ArmillaryError(f"the sequences in {place.out} are missing or damaged", advice="scan this part again")
        parts.append(_checked_sequences(path, unpack_file(path, data)))
        about = parse_record(documents, DocumentsRecord, str(documents_path), "scan this part again")
    assert about is not None
    tokens, document = (torch.cat([part[name] for part in parts]).numpy() for name in ("tokens", "document"))
    if document.min() < 0 or document.max() >= len(about["documents"]):
        raise ArmillaryError(
            "the sequences of these parts refer to documents that do not exist", advice="scan the parts again"
        )
    return Sequences(
        tokens,
        document,
        tuple(about["documents"]),
        about["by_document"],
        tuple(about["notes"]),
        tuple(about["sources"]),
        about["token_names"],
        tuple(about["before"]),
        tuple(about["after"]),
        about["begin"],
        _vocabulary_of(about.get("vocabulary")),
    )


def _vocabulary_record(vocabulary: Vocabulary) -> VocabularyRecord:
    capital = np.flatnonzero(vocabulary.capital).tolist()
    return {"texts": list(vocabulary.texts), "kinds": vocabulary.kinds.tolist(), "capital": capital}


def _vocabulary_of(record: VocabularyRecord | None) -> Vocabulary | None:
    if record is None:
        return None
    kinds = np.array(record["kinds"], np.uint8)
    return Vocabulary(tuple(record["texts"]), kinds, np.isin(np.arange(len(kinds)), record["capital"]))


def _checked_sequences(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a part's sequences, checked: int64 tokens (sequence, token) and document (sequence)."""
    tokens, document = tensors.get("tokens"), tensors.get("document")
    if (
        tokens is None
        or document is None
        or {tokens.dtype, document.dtype} != {torch.int64}
        or (tokens.dim(), document.dim()) != (2, 1)
        or len(tokens) != len(document)
        or not tokens.numel()
    ):
        raise ArmillaryError(f"{path} does not hold sequences of tokens", advice="scan this part again")
    return tensors
