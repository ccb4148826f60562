"""Reads text from its source: built-in prose and code, files, folders, JSON lines, Hugging Face data sets.

A source is checked when it is opened, even if it is never read, and keeps a record of what was read.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from armillary.errors import ArmillaryError, brief
from armillary.text.builtin import KINDS, builtin_documents

# Imports inside functions: datasets is an optional package.

PIECE = 1_000_000
"""A long file is read in pieces of about this many bytes, cut at the end of a line."""

INSPECTED = 65_536
"""A file with a zero byte among its first this many bytes is not text."""

NAMED_FILES = 1000
"""The record of a source names at most this many files."""


@dataclass(frozen=True)
class Document:
    """A text and its name."""

    name: str
    text: str


@dataclass
class Skipped:
    """Counts what could not be used as text."""

    undecodable_bytes: int = 0
    binary_files: list[str] = field(default_factory=list)
    empty: int = 0

    def notes(self) -> list[str]:
        """A sentence for each kind of skipped content."""
        sentences = []
        if self.undecodable_bytes:
            sentences.append(f"{self.undecodable_bytes} bytes that are not UTF-8 were skipped")
        if self.binary_files:
            shown = ", ".join(self.binary_files[:3]) + (", ..." if len(self.binary_files) > 3 else "")
            sentences.append(f"{len(self.binary_files)} binary files were skipped ({shown})")
        return sentences


class Source:
    """A source whose name, location and format were checked; `record` says what was read of it so far."""

    def __init__(self, name: str, *, seed: int = 0, skipped: Skipped | None = None) -> None:
        self.name = name
        self._skipped = Skipped() if skipped is None else skipped
        self._bytes: dict[str, int] = {}
        self._digest = hashlib.sha256()
        self._read = _opened(name, seed)

    def documents(self) -> Iterator[Document]:
        """The documents, in an order that depends only on the source (and the seed, for built-in text)."""
        return self._read(self._take, self._skipped)

    def _take(self, file: str, data: bytes) -> None:
        self._bytes[file] = self._bytes.get(file, 0) + len(data)
        self._digest.update(data)

    def record(self) -> dict[str, Any]:
        """What was read: files with their byte counts, and the SHA-256 of all these bytes in order.

        For files these are the bytes on disk from the beginning; for built-in text and data sets those of the text.
        """
        files = [{"file": name, "bytes": count} for name, count in self._bytes.items()]
        return {
            "source": self.name,
            "read": bool(self._bytes),
            "files": files[:NAMED_FILES],
            "files_read": len(files),
            "bytes": sum(self._bytes.values()),
            "sha256": self._digest.hexdigest() if self._bytes else None,
        }


def open_sources(
    sources: str | Path | Iterable[str | Path], *, seed: int = 0, skipped: Skipped | None = None
) -> list[Source]:
    """Open and check one or several sources."""
    names = [sources] if isinstance(sources, str | Path) else list(sources)
    if not names:
        raise ArmillaryError("no corpus was given")
    return [Source(str(name), seed=seed, skipped=skipped) for name in names]


def documents(sources: str | Path | Iterable[str | Path], *, seed: int = 0) -> Iterator[Document]:
    """The documents of one or several sources, all of which are checked before the first is read."""
    return chain.from_iterable([source.documents() for source in open_sources(sources, seed=seed)])


Take = Callable[[str, bytes], None]
"""Called with the name of a file and its bytes as they are read."""

Read = Callable[[Take, Skipped], Iterator[Document]]


def _opened(source: str, seed: int) -> Read:
    """The reader of a source, after checking it."""
    if not source.strip():
        raise ArmillaryError(
            "a corpus has an empty name",
            advice="give a text file, a folder (. for this one), a .jsonl file, builtin:prose, ...",
        )
    if source.startswith("builtin:"):
        kind = source.removeprefix("builtin:")
        if kind not in KINDS:
            raise ArmillaryError(
                f"there is no {source!r}: built in are builtin:prose, builtin:code and builtin:random",
                given=source,
                expected=("builtin:prose", "builtin:code", "builtin:random"),
            )
        return lambda take, skipped: _builtin(kind, seed, take)
    return _opened_data_set(source) if source.startswith("hf:") else _opened_place(source)


def _opened_place(source: str) -> Read:
    """A file or a folder."""
    path, _, text_field = source.rpartition(".jsonl:")
    place = Path(f"{path}.jsonl" if path else source).expanduser()
    if not place.exists():
        if path:
            raise ArmillaryError(f"there is no file {place}")
        raise ArmillaryError(
            f"there is no corpus {source!r}",
            advice=(
                "give a text file, a folder, a .jsonl file, builtin:prose, builtin:code, builtin:random or "
                "hf:NAME:SPLIT:FIELD"
            ),
        )
    if place.is_dir():
        files = _files(place)
        return lambda take, skipped: _folder(place, files, take, skipped)
    if not place.is_file():
        raise ArmillaryError(f"{source} is neither a file nor a folder", advice="write its text into a file first")
    if place.stat().st_size == 0:
        raise ArmillaryError(f"the corpus {source} holds no text: it is an empty file")
    if path or place.suffix == ".jsonl":
        chosen = text_field if path else "text"
        next(_json_lines(place, chosen, lambda file, data: None, Skipped()), None)  # checks the first record
        return lambda take, skipped: _json_lines(place, chosen, take, skipped)
    if _is_binary(place):
        raise ArmillaryError(f"{source} is a binary file: a corpus is text")
    return lambda take, skipped: _text_file(place, place.name, take, skipped)


def _files(folder: Path) -> list[Path]:
    """All files in a folder; raises if none of them is text."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if not files:
        raise ArmillaryError(f"the folder {folder} holds no files")
    if all(_is_binary(file) for file in files):
        raise ArmillaryError(f"the folder {folder} holds no text, only {len(files)} binary files")
    return files


def _is_binary(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return b"\0" in opened.read(INSPECTED)
    except OSError as error:
        raise ArmillaryError(f"{file} cannot be read: {error.strerror}") from error


def _folder(folder: Path, files: list[Path], take: Take, skipped: Skipped) -> Iterator[Document]:
    for file in files:
        yield from _text_file(file, str(file.relative_to(folder)), take, skipped)


def _text_file(file: Path, name: str, take: Take, skipped: Skipped) -> Iterator[Document]:
    """The file's text; a large file is read as several documents of the same name."""
    try:
        with file.open("rb") as opened:
            while piece := opened.read(PIECE):
                piece += opened.readline()
                if b"\0" in piece[:INSPECTED]:
                    skipped.binary_files.append(name)
                    return
                take(name, piece)
                text = piece.decode("utf-8", errors="ignore")
                skipped.undecodable_bytes += len(piece) - len(text.encode("utf-8"))
                yield Document(name, text)
    except OSError as error:
        raise ArmillaryError(f"{file} cannot be read: {error.strerror}") from error


def _json_lines(file: Path, text_field: str, take: Take, skipped: Skipped) -> Iterator[Document]:
    try:
        opened = file.open("rb")
    except OSError as error:
        raise ArmillaryError(f"{file} cannot be read: {error.strerror}") from error
    with opened:
        for number, raw in enumerate(opened, 1):
            take(file.name, raw)
            line = raw.decode("utf-8", errors="ignore")
            skipped.undecodable_bytes += len(raw) - len(line.encode("utf-8"))
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                text = record[text_field]
            except (ValueError, RecursionError) as error:
                why = "it is nested too deeply" if isinstance(error, RecursionError) else brief(error)
                raise ArmillaryError(f"line {number} of {file} is not JSON: {why}") from error
            except (KeyError, TypeError, IndexError) as error:
                raise ArmillaryError(
                    f"line {number} of {file} has no field {text_field!r}", advice=f"name the field as {file}:FIELD"
                ) from error
            if text is None:
                skipped.empty += 1
                continue
            if not isinstance(text, str):
                raise ArmillaryError(f"line {number} of {file}: the field {text_field!r} is not text but {text!r:.60}")
            yield Document(f"{file.name} line {number}", text)


def _opened_data_set(source: str) -> Read:
    """hf:NAME[:config]:SPLIT:FIELD, streamed; a document per row."""
    parts = source.split(":")[1:]
    if len(parts) not in (3, 4) or not all(parts):
        raise ArmillaryError(f"{source!r} is not hf:NAME:SPLIT:FIELD or hf:NAME:config:SPLIT:FIELD")
    try:
        import datasets
    except ImportError as error:
        raise ArmillaryError(f"{source} needs the package datasets: pip install 'armillary[hf]'") from error
    name, split, text_field = parts[0], parts[-2], parts[-1]
    config = parts[1] if len(parts) == 4 else None
    try:
        rows = iter(datasets.load_dataset(name, config, split=split, streaming=True))
        first = list(islice(rows, 1))
    except Exception as error:
        raise ArmillaryError(f"{source} cannot be opened: {str(error).splitlines()[0]}") from error
    if first:
        _text_of(first[0], name, text_field)

    def read(take: Take, skipped: Skipped) -> Iterator[Document]:
        for number, row in enumerate(chain(first, rows)):
            text = _text_of(row, name, text_field)
            take(name, text.encode("utf-8", errors="replace"))
            yield Document(f"row {number}", text)

    return read


def _text_of(row: dict[str, Any], name: str, text_field: str) -> str:
    if text_field not in row:
        raise ArmillaryError(f"the rows of {name} have no field {text_field!r}: they have {', '.join(sorted(row))}")
    return str(row[text_field])


def _builtin(kind: str, seed: int, take: Take) -> Iterator[Document]:
    for name, text in builtin_documents(kind, seed):
        take(name, text.encode("utf-8", errors="replace"))
        yield Document(name, text)
