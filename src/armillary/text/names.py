"""Names of corpora: joined sources (a.txt+b.txt) and a folder name for each corpus."""

import re
from pathlib import Path

from armillary.errors import ArmillaryError


def split_sources(corpus: str) -> str | list[str]:
    """'a.txt+b.txt' as two sources, unless a file with that name exists."""
    if "+" not in corpus or Path(corpus).exists():
        return corpus
    parts = corpus.split("+")
    if not all(part.strip() for part in parts):
        raise ArmillaryError(f"the corpus {corpus!r} has an empty part: join sources as in a.txt+b.txt")
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
