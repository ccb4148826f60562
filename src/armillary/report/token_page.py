"""Writes the examples of docs/tokens.md: python -m armillary.report.token_page ATLAS L3H2 L4H3 ..."""

import re
import sys
from pathlib import Path

from armillary.atlas.atlas import Atlas, open_atlas
from armillary.atlas.head import Head
from armillary.errors import ArmillaryError
from armillary.files.atomic import write_atomically
from armillary.lenses.labels import agreement_table
from armillary.probe.dossier import parse_head
from armillary.report.reading import cut

BEGIN, END = "<!-- heads: written by python -m armillary.report.token_page -->", "<!-- /heads -->"
TOKENS, EXAMPLES = 6, 3


def head_section(head: Head) -> str:
    """One head in Markdown: its words, the tokens that it reads, what it writes, and examples."""
    rows = head.reads.to_dict("records")
    reads = [f"{row['text']} x {row['lift']:.2g}" for row in rows if row["gain"] > 0][:TOKENS]
    writes = head.writes
    lines = [f"**{head}**: {head.label}; {head.does or 'nothing beyond its label'}.", ""]
    lines += [f"- reads more: {_code(', '.join(reads))}"] if reads else []
    if len(writes):
        strongest = writes.iloc[0]
        ends = f"{_code(strongest['source'])} to {_code(strongest['target'])}"
        score = head.row["copying_score"]
        lines.append(f"- writes ({strongest['share']:.0%} of its energy): {ends}; copying score {score:.2f}")
    lines += [f"- example: {_code(cut_line(str(example)))}" for example in head.examples[:EXAMPLES]]
    return "\n".join(lines)


def induction_sentence(atlas: Atlas) -> str:
    """Whether heads with a high induction score have a high copying score in this model."""
    table = agreement_table(atlas)
    rows = table[(table["a"] == "induction_score") & (table["b"] == "copying_score")]
    if rows.empty:
        return ""
    row = rows.iloc[0]
    own = atlas.heads[atlas.heads["label"] == "induction"]["copying_score"]
    median = f", with a median copying score of {own.median():.2f}" if len(own) else ""
    heads = f"{len(own)} heads are labeled induction{median}"
    return (
        f" Rank correlation of induction and copying scores over its {row['heads']} heads: {row['correlation']:.2f} "
        f"({row['low']:.2f} to {row['high']:.2f}); that induction heads copy: {row['verdict']}. {heads}."
    )


def cut_line(text: str) -> str:
    """A text on one line, with what cannot be printed escaped."""
    return "".join(cut(part) for part in re.findall(r".{1,40}", text, re.DOTALL))


def _code(text: object) -> str:
    return f"`{str(text).replace('`', chr(0x2BC))}`"


def write_page(atlas: Atlas, heads: list[str], page: Path) -> None:
    """Replace the part of the page between its marks."""
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ArmillaryError(f"{page} has no place for examples, between {BEGIN} and {END}")
    model, corpus = atlas.attrs["model"].get("title", ""), atlas.attrs["corpus"]["name"]
    about = f"{model} on {corpus}; the query is in [[ ]], attention in ⟨ ⟩."
    about += induction_sentence(atlas)
    sections = [head_section(atlas.head(*parse_head(name))) for name in heads]
    middle = "\n\n".join([about, *sections])
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    write_atomically(page, f"{before}{BEGIN}\n{middle}\n{END}{after}".encode())


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    write_page(open_atlas(folder), names, Path("docs/tokens.md"))
