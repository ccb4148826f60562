"""One head in a terminal: what it reads and writes, examples with its attention, then its dossier."""

from typing import TYPE_CHECKING, Any

from rich.markup import escape

from armillary.terminal import tables
from armillary.terminal.console import console

if TYPE_CHECKING:
    from armillary.atlas.head import Example, Head
    from armillary.probe.dossier import Dossier

SHOWN, TEXTS = 8, 3
"""Rows of each table, and examples."""


def show_head(head: "Head", dossier: "Dossier") -> None:
    """Print a head: in words, tokens it reads, what it writes, examples, and all that a dossier has."""
    out = console()
    tables.show_dossier(dossier)
    if head.does:
        out.print(f"\n[bold]In words[/bold]  {escape(head.does)}")
    reads = head.reads
    if len(reads):
        tables.show(reads.drop(columns="token"), title="Reads more, and less, than distance explains", limit=SHOWN)
    pairs = head.pairs
    if len(pairs):
        listed = pairs.drop(columns=["query", "key", "missed"])
        bound = f"other pairs gain at most {tables.cell(float(pairs['missed'].iloc[0]))}"
        tables.show(listed, title=f"Pairs of query and key token ({bound})", limit=SHOWN)
    for name, title in (
        ("writes", "Writes: from what it reads to what it raises"),
        ("matches", "Matches: asks, and finds"),
    ):
        table = getattr(head, name)
        if len(table):
            tables.show(table.drop(columns="side"), title=title, limit=2 * TEXTS)
    if head.examples:
        how = "in reverse, keys brighter with more attention" if out.is_terminal else "in [[ ]], attention in ⟨ ⟩"
        out.print(f"\n[bold]Examples[/bold]  the query {escape(how)}")
        for example in head.examples[:TEXTS]:
            shown = colored(example) if out.is_terminal else escape(readable(str(example)))
            out.print(f"  {shown}", soft_wrap=True)


def colored(example: "Example") -> str:
    """The example as markup: the query in reverse, keys on a background by their attention, line breaks as ⏎."""
    parts = []
    for token in example.tokens:
        text = escape(readable(token.text))
        if token.is_query:
            text = f"[reverse]{text}[/]"
        elif token.weight >= 0.01:
            shade = round(80 + 175 * min(1.0, token.weight))
            text = f"[black on rgb({shade},{shade},120)]{text}[/]"
        parts.append(("[dim] … [/]" if token.after_gap else "") + text)
    return "".join(parts)


def readable(text: str) -> str:
    """A text on one line, with what cannot be printed escaped."""
    return tables.cell(text.replace("\n", "⏎").replace("\t", "⇥"))


def plain_head(head: "Head") -> dict[str, Any]:
    """The head for --json."""
    names = ("reads", "pairs", "relations", "writes", "matches", "evidence")
    examples = [
        {
            "sequence": example.sequence,
            "query": example.query,
            "score": example.score,
            "tokens": [[token.position, token.text, round(token.weight, 4)] for token in example.tokens],
        }
        for example in head.examples
    ]
    about = {"layer": head.layer, "head": head.head, "label": head.label, "does": head.does}
    return about | {name: tables.records(getattr(head, name)) for name in names} | {"examples": examples}
