"""Corpora as they are named on the command line."""

import re
from pathlib import Path


def split_sources(given: str) -> str | list[str]:
    """'a.txt+b.txt' as two sources, unless a file of that very name exists."""
    return given if "+" not in given or Path(given).exists() else [part for part in given.split("+") if part]


def folder_names(corpora: list[str]) -> list[str]:
    """A short, distinct folder name for each corpus: builtin:prose -> builtin-prose, data/a.txt -> a."""
    names: list[str] = []
    for corpus in corpora:
        short = re.sub(r"[^\w.]+", "-", corpus if ":" in corpus else Path(corpus).stem).strip("-.") or "corpus"
        while short in names:
            short += "-2"
        names.append(short)
    return names
