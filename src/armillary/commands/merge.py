"""Join the parts of a scan into one atlas: merge."""

from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.commands.options import NewFolder
from armillary.commands.parameters import with_parameters
from armillary.scanning.options import MergeOptions

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(MergeOptions)
def merge(
    parts: Annotated[
        list[Path], typer.Argument(help="Folders that `armillary scan --part` wrote, in any order.", metavar="PART...")
    ],
    out: NewFolder,
    model: Annotated[
        str | None, typer.Option(help="The model, if it is no longer where the parts loaded it from.", metavar="MODEL")
    ] = None,
    **options: Any,
) -> None:
    """Join the parts of a scan, made with --part, into the same atlas that one scan would have written."""
    from armillary.scanning.merging import merge as run_merge
    from armillary.terminal.progress import shown_progress

    with shown_progress() as progress:
        run_merge(parts, out=out, model=model, progress=progress, **options)
    typer.echo(f"{out}: see  armillary heads {out}  and  armillary layers {out}")
