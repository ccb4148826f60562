"""Makes docs/reference.md, the reference page of all tables and columns, from their declarations."""

from html import escape

from armillary.atlas.columns.column import Column
from armillary.atlas.columns.registry import TABLES, declared

BEGINNING = """\
# The tables and their columns

<!-- Made by `armillary columns --markdown > docs/reference.md`; change src/armillary/atlas/columns instead. -->

`armillary columns` prints this table, `armillary columns NAME` a column of it, and `arm.columns()` gives it as a
DataFrame. A measure that does not apply is missing, never zero. Columns in **bold** are always present, in this order
and before the others. Averages never count padding or masked entries.

Notation: h is the residual stream, x what a layer's q, k and v projections read (after the norm); t are positions, c
sequences, d is the width of the model, e that of a head, s the scale of the logits.

- $`h = \\mu + pos_t + ctx_c + resid_{ct}`$: the mean, the part that depends on the position alone (P has the rows
  $`pos_t`$), the part that depends on the sequence alone, and the rest.
- $`x = m + p_t + v_{ct}`$: the mean, the positional part, the content. $`s_{ab}`$: share of a term of the logits.
- $`b_{ij}`$: the logit of query i and key j; $`a_{ij}`$: its attention; $`n_i`$: how many keys i sees; $`g_f`$: a
  rotary frequency.

Means over positions leave out the first ones (as many as the scan's setting `skip`, usually 1).
"""

HEADER = "| column | unit | meaning | formula | filled by |\n| --- | --- | --- | --- | --- |"

KINDS = {"number": "", "whole": "whole number", "word": "word", "yes-no": "yes or no"}


def reference_page() -> str:
    """The page as Markdown."""
    parts = [BEGINNING]
    for table in TABLES.values():
        parts.append(f"## {table.name}\n\n{table.rows}\n\n{HEADER}")
        parts += [_row(column) for column in declared(table.name)]
        parts.append("")
    return "\n".join(parts)


def _row(column: Column) -> str:
    name = f"**{column.name}**" if column.contract else column.name
    meaning = escape(column.words, quote=False)
    if column.explained:
        meaning += f" See `armillary theory {column.explained}`."
    cells = (
        f'<a id="{column.table}-{column.name}"></a>{name}',
        column.unit or KINDS[column.kind],
        meaning.replace("|", r"\|"),
        _formula(column.formula),
        column.lens,
    )
    return f"| {' | '.join(cells)} |"


def _formula(tex: str) -> str:
    """TeX in the delimiters that protect it from Markdown, without bars, which would end the cell."""
    bars = tex.replace(r"\|", r"\Vert ").replace("|", r"\vert ")
    return f"$`{bars}`$" if tex else ""
