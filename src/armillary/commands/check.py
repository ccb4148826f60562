"""Compare the files of an atlas or an unfinished scan with their checksums: check."""

from dataclasses import asdict

import typer

from armillary.commands.options import AsJson, Folder, print_json

# Imports inside functions: the program starts without what this command alone needs.


def check(folder: Folder, as_json: AsJson = False) -> None:
    """Compare every file of an atlas or of an unfinished scan with its checksum; exit code 1 if one is damaged."""
    from armillary.atlas.check import check as run_check

    result = run_check(folder)
    if as_json:
        print_json(asdict(result))
    else:
        for damage in result.damage:
            typer.echo(f"{damage.array}: {damage.file} ({damage.what})")
        for note in result.notes:
            typer.echo(note)
        if result.whole:
            typer.echo(f"{folder}: all {result.files} files match their checksums")
        elif result.damage and result.kind == "atlas":
            typer.echo(f"{folder} is damaged: restore it from a copy, or scan again with --overwrite")
    if not result.whole:
        raise typer.Exit(2 if result.whole is None else 1)
