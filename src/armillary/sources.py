"""Where text comes from: built-in prose and code, files, folders, JSON lines, Hugging Face data sets."""

import ast
import hashlib
import json
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from armillary.errors import ArmillaryError

PIECE = 1_000_000
"""A long file is read in pieces of about this many bytes, cut at the end of a line."""

SHORTEST = 500
"""Built-in documents of fewer characters say nothing (generated tables, empty packages) and are left out."""


@dataclass(frozen=True)
class Document:
    """One text and what it is called."""

    name: str
    text: str


@dataclass
class Skipped:
    """What could not be used as text, counted."""

    undecodable_bytes: int = 0
    binary_files: list[str] = field(default_factory=list)
    empty: int = 0

    def notes(self) -> list[str]:
        """A sentence for each kind of thing that was left out."""
        found = []
        if self.undecodable_bytes:
            found.append(f"{self.undecodable_bytes} bytes that are not UTF-8 were skipped")
        if self.binary_files:
            shown = ", ".join(self.binary_files[:3]) + (", ..." if len(self.binary_files) > 3 else "")
            found.append(f"{len(self.binary_files)} binary files were skipped ({shown})")
        return found


def documents(source: str, *, seed: int = 0, skipped: Skipped | None = None) -> Iterator[Document]:
    """The documents of a source, in an order that depends on nothing but the source (and, built-in, the seed)."""
    skipped = Skipped() if skipped is None else skipped
    if source.startswith("builtin:"):
        yield from _builtin(source, seed)
    elif source.startswith("hf:"):
        yield from _hugging_face(source)
    else:
        yield from _from_disk(source, skipped)


def _from_disk(source: str, skipped: Skipped) -> Iterator[Document]:
    path, _, text_field = source.rpartition(".jsonl:")
    if path:
        yield from _json_lines(Path(path + ".jsonl"), text_field, skipped)
        return
    place = Path(source).expanduser()
    if not place.exists():
        raise ArmillaryError(
            f"there is no corpus {source!r}: give a text file, a folder, a .jsonl file, builtin:prose, builtin:code, "
            "builtin:random or hf:NAME:SPLIT:FIELD"
        )
    if place.is_dir():
        before = len(skipped.binary_files)
        files = sorted(file for file in place.rglob("*") if file.is_file())
        if not files:
            raise ArmillaryError(f"the folder {source} holds no files")
        for file in files:
            yield from _text_file(file, str(file.relative_to(place)), skipped)
        if len(skipped.binary_files) - before == len(files):
            raise ArmillaryError(f"the folder {source} holds no text, only {len(files)} binary files")
    elif place.suffix == ".jsonl":
        yield from _json_lines(place, "text", skipped)
    else:
        before = len(skipped.binary_files)
        yield from _text_file(place, place.name, skipped)
        if len(skipped.binary_files) > before:
            raise ArmillaryError(f"{source} is a binary file: a corpus is text")


def _text_file(file: Path, name: str, skipped: Skipped) -> Iterator[Document]:
    """The file's text; a file of many megabytes as several documents of the same name."""
    try:
        with file.open("rb") as opened:
            while piece := opened.read(PIECE):
                piece += opened.readline()
                if b"\0" in piece[:65536]:
                    skipped.binary_files.append(name)
                    return
                text = piece.decode("utf-8", errors="ignore")
                skipped.undecodable_bytes += len(piece) - len(text.encode("utf-8"))
                yield Document(name, text)
    except OSError as error:
        raise ArmillaryError(f"{file} cannot be read: {error.strerror}") from error


def _json_lines(file: Path, text_field: str, skipped: Skipped) -> Iterator[Document]:
    if not file.is_file():
        raise ArmillaryError(f"there is no file {file}")
    with file.open("rb") as opened:
        for number, raw in enumerate(opened, 1):
            line = raw.decode("utf-8", errors="ignore")
            skipped.undecodable_bytes += len(raw) - len(line.encode("utf-8"))
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                text = record[text_field]
            except ValueError as error:
                raise ArmillaryError(f"line {number} of {file} is not JSON: {error}") from error
            except (KeyError, TypeError) as error:
                raise ArmillaryError(
                    f"line {number} of {file} has no field {text_field!r}: name the field as {file}:FIELD"
                ) from error
            if text is None:
                skipped.empty += 1
                continue
            yield Document(f"{file.name} line {number}", str(text))


def _hugging_face(source: str) -> Iterator[Document]:
    """hf:NAME[:config]:SPLIT:FIELD, streamed; a document per row."""
    try:
        import datasets
    except ImportError as error:
        raise ArmillaryError(f"{source} needs the package datasets: pip install 'armillary[hf]'") from error
    parts = source.split(":")[1:]
    if len(parts) not in (3, 4) or not all(parts):
        raise ArmillaryError(f"{source!r} is not hf:NAME:SPLIT:FIELD or hf:NAME:config:SPLIT:FIELD")
    name, config, split, text_field = parts if len(parts) == 4 else (parts[0], None, *parts[1:])
    try:
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
    except Exception as error:
        raise ArmillaryError(f"{source} cannot be opened: {str(error).splitlines()[0]}") from error
    for number, row in enumerate(rows):
        if text_field not in row:
            raise ArmillaryError(f"the rows of {name} have no field {text_field!r}: they have {', '.join(sorted(row))}")
        yield Document(f"row {number}", str(row[text_field]))


def _builtin(source: str, seed: int) -> Iterator[Document]:
    kind = source.removeprefix("builtin:")
    readers: dict[str, Callable[[Path], str]] = {"prose": _docstrings, "code": lambda file: _source_text(file)}
    if kind not in readers:
        raise ArmillaryError(f"there is no {source!r}: built in are builtin:prose, builtin:code and builtin:random")
    modules = _standard_library()
    if kind == "prose":
        modules["pydoc_data.topics"] = None
    for name in sorted(modules, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest()):
        file = modules[name]
        text = _topics() if file is None else readers[kind](file)
        if len(text) >= SHORTEST:
            yield Document(name, text)


def _standard_library() -> dict[str, Path | None]:
    """The files of Python's own library by module name, without its tests and its editor."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "pydoc_data", "lib2to3"}
    found: dict[str, Path | None] = {}
    for folder, inside, files in os.walk(root):
        inside[:] = [name for name in inside if name not in left_out]  # installed packages are many: not entered
        package = Path(folder).relative_to(root).parts
        found |= {".".join((*package, file[:-3])): Path(folder) / file for file in files if file.endswith(".py")}
    return found


def _topics() -> str:
    from pydoc_data import topics

    return "\n\n".join(text for _, text in sorted(topics.topics.items()))


def _source_text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="ignore")


def _docstrings(file: Path) -> str:
    """The docstrings of a module, its classes and its functions, in order, one paragraph apart."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(_source_text(file))
    except (SyntaxError, ValueError):
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return "\n\n".join(text for text in found if text and len(text) > 40)


def python_version() -> str:
    """The version whose library the built-in corpora are."""
    return ".".join(map(str, sys.version_info[:3]))
