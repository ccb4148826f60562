"""Print what the columns of the tables mean: columns."""

from dataclasses import asdict
from typing import Annotated

import typer

from armillary.atlas.columns import Column, find
from armillary.commands.options import AsJson, print_json
from armillary.errors import ArmillaryError

# Imports inside functions: the program starts without what this command alone needs.


def columns(
    name: Annotated[
        str | None, typer.Argument(help="One column, as in entropy (default: all).", metavar="NAME")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Only this table, as in heads or layers.")] = None,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option(help="Print the reference page of the documentation.")] = False,
) -> None:
    """Print what the columns of the tables mean, or the full declaration of one."""
    if markdown:
        from armillary.atlas.columns.reference import reference_page

        if name is not None or table is not None or as_json:
            raise ArmillaryError("--markdown prints all columns", advice="leave NAME, --table and --json out")
        typer.echo(reference_page(), nl=False)
        return
    chosen = find(name, table)
    if as_json:
        print_json([asdict(column) for column in chosen])
    elif name is not None:
        typer.echo("\n\n".join(_in_full(column) for column in chosen))
    else:
        _print_table(chosen)


def _print_table(chosen: list[Column]) -> None:
    import pandas as pd

    from armillary.terminal import tables

    rows = [
        {"table": column.table, "column": column.name, "unit": column.unit, "meaning": column.words}
        for column in chosen
    ]
    tables.show(pd.DataFrame(rows))


def _in_full(column: Column) -> str:
    facts = {
        "formula": column.formula,
        "kind": column.kind,
        "unit": column.unit,
        "filled by": f"armillary.{column.lens}",
        "shown in": ", ".join(column.sets),
        "always there": "yes" if column.contract else "",
        "explained": f"armillary theory {column.explained}" if column.explained else "",
    }
    lines = [f"  {title:12}  {fact}" for title, fact in facts.items() if fact]
    return "\n".join([f"{column.name} (table {column.table})", f"  {column.words}", *lines])
