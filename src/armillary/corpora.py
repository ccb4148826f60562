"""Corpora as they are named on the command line."""

import re
from pathlib import Path

from armillary.errors import ArmillaryError


def split_sources(given: str) -> str | list[str]:
    """'a.txt+b.txt' as two sources, unless a file of that very name exists."""
    if "+" not in given or Path(given).exists():
        return given
    parts = given.split("+")
    if not all(part.strip() for part in parts):
        raise ArmillaryError(f"the corpus {given!r} has an empty part: join sources as in a.txt+b.txt")
    return parts


def folder_names(corpora: list[str]) -> list[str]:
    """A short, distinct folder name for each corpus: builtin:prose -> builtin-prose, data/a.txt -> a."""
    names: list[str] = []
    for corpus in corpora:
        short = re.sub(r"[^\w.]+", "-", corpus if ":" in corpus else Path(corpus).stem).strip("-.") or "corpus"
        while short in names:
            short += "-2"
        names.append(short)
    return names
