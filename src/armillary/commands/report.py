"""What an atlas says, as one HTML file: report."""

from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.options import output_file
from armillary.errors import ArmillaryError


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="A folder that `armillary scan` wrote, or two to compare.", metavar="DIR [DIR]")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file to write (report.html in the first folder).", callback=output_file)
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write one HTML file that tells what every head does, or what changed between two atlases; it needs no network."""
    from armillary.report import write_report

    if len(folders) > 2:
        raise ArmillaryError(f"{len(folders)} folders were given: report takes one, or two to compare")
    path = write_report(folders[0], folders[1] if len(folders) == 2 else None, out=out)
    typer.echo(f"The report is in {path}")
    if open_it:
        typer.launch(path.resolve().as_uri())
