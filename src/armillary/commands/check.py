"""Whether a folder is as it was written: check."""

from dataclasses import asdict

import typer

from armillary.commands.options import AsJson, Folder, print_json


def check(folder: Folder, as_json: AsJson = False) -> None:
    """Compare every file of an atlas, or of an unfinished scan, with its checksum: exit code 1 if one is damaged."""
    from armillary.checking import check as run_check

    found = run_check(folder)
    if as_json:
        print_json(asdict(found))
    else:
        for damage in found.damage:
            typer.echo(f"{damage.array}: {damage.file} ({damage.what})")
        for note in found.notes:
            typer.echo(note)
        if found.whole:
            typer.echo(f"{folder}: all {found.files} files are as they were written")
        elif found.damage and found.kind == "atlas":
            typer.echo(f"{folder} is damaged: put it back from a copy, or make it again with --overwrite")
    if not found.whole:
        raise typer.Exit(2 if found.whole is None else 1)
