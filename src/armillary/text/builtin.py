"""The built-in text: docstrings and source code of Python's standard library, in an order given by a seed."""

import ast
import hashlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

# Imports inside functions: the manual is large, and few texts are made of it.

SHORTEST = 500
"""Shorter documents, in characters, are left out (generated tables, empty packages)."""

KINDS = ("prose", "code")


def builtin_documents(kind: str, seed: int) -> Iterator[tuple[str, str]]:
    """Name and text of every document of the given kind, one of KINDS."""
    readers: dict[str, Callable[[Path], str]] = {"prose": _docstrings, "code": _source_text}
    modules = _standard_library()
    if kind == "prose":
        modules["pydoc_data.topics"] = None
    for name in sorted(modules, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest()):
        file = modules[name]
        text = _topics() if file is None else readers[kind](file)
        if len(text) >= SHORTEST:
            yield name, text


def _standard_library() -> dict[str, Path | None]:
    """The files of Python's standard library by module name, without its tests and its editor."""
    root = Path(sysconfig.get_path("stdlib"))
    excluded = {"site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "pydoc_data", "lib2to3"}
    modules: dict[str, Path | None] = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in excluded]  # site-packages is large: skip it
        package = Path(folder).relative_to(root).parts
        modules |= {".".join((*package, file[:-3])): Path(folder) / file for file in files if file.endswith(".py")}
    return modules


def _topics() -> str:
    from pydoc_data import topics

    return "\n\n".join(text for _, text in sorted(topics.topics.items()))


def _source_text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="ignore")


def _docstrings(file: Path) -> str:
    """The docstrings of a module, its classes and its functions, in order, separated by blank lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(_source_text(file))
    except (SyntaxError, ValueError):
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return "\n\n".join(text for text in docstrings if text and len(text) > 40)


def python_version() -> str:
    """The version of Python whose library the built-in corpora come from."""
    return ".".join(map(str, sys.version_info[:3]))
