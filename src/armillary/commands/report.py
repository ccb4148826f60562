"""Write the HTML report of an atlas, or of several compared: report."""

from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.options import output_file

# Imports inside functions: the program starts without what this command alone needs.


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="A folder that `armillary scan` wrote, or several to compare.", metavar="DIR [DIR ...]"),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write (report.html in the first folder).", callback=output_file),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write a self-contained HTML report of what every head does, or of what changed between several."""
    from armillary.report import write_report

    path = write_report(*folders, out=out)
    typer.echo(f"The report is in {path}")
    if open_it:
        typer.launch(path.resolve().as_uri())
