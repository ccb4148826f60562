"""Look at an atlas: heads, layers, show, compare."""

import json
from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.options import (
    AsCsv,
    AsJson,
    Columns,
    Folder,
    OneLayer,
    Sort,
    TrustRemoteCode,
    output_file,
    print_json,
)
from armillary.errors import ArmillaryError


def heads(
    folder: Folder,
    sort: Sort = None,
    layer: OneLayer = None,
    columns: Columns = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print a row for every head: what its attention looks like."""
    _print_table(folder, "heads", sort, layer, columns, as_json, as_csv)


def layers(
    folder: Folder,
    sort: Sort = None,
    layer: OneLayer = None,
    columns: Columns = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print a row for every point of the residual stream, from the embeddings to the last layer."""
    _print_table(folder, "layers", sort, layer, columns, as_json, as_csv)


def show(
    folder: Folder,
    head: Annotated[str, typer.Argument(help="LAYER.HEAD, as in 3.5", metavar="L.H")],
    text: Annotated[str | None, typer.Option(help="A text to look at; it needs the model.")] = None,
    model: Annotated[str | None, typer.Option(help="The model, if it is not where the scan found it.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the panels to this HTML file.", callback=output_file)] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Print a head's dossier: its numbers, its constituents, and what it attends to in a text and why."""
    from armillary import figures, tables
    from armillary.atlas import open_atlas
    from armillary.dossier import dossier, head_row, parse_head
    from armillary.lenses.constituents import text_constituents
    from armillary.models import load_for, load_tokenizer

    atlas = open_atlas(folder)
    layer, number = parse_head(head)
    head_row(atlas, layer, number)
    if html is not None and text is None:
        raise ArmillaryError("--html draws the head on a text: give one with --text")
    found = None
    if text is not None:
        source = model or atlas.attrs["model"]["name"]
        loaded = load_for(atlas.attrs["model"], source, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
        found = text_constituents(atlas, loaded, tokenizer, layer, number, text)
    told = dossier(atlas, layer, number, found)
    tables.show_dossier(told)
    if html is not None and found is not None:
        figures.write_page(html, f"Head {layer}.{number}", [figures.constituents(found)], text or "")
        typer.echo(f"The panels are in {html}")


def compare(
    folders: Annotated[
        list[Path], typer.Argument(help="Two or more folders that `armillary scan` wrote.", metavar="A B ...")
    ],
    rows: Annotated[int, typer.Option(help="How many of the largest changes to print.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Print atlases side by side, layer means of every measure; of two, also what changed, largest changes first."""
    from armillary import tables
    from armillary.atlas import open_atlas
    from armillary.comparison import compare as run_comparison
    from armillary.comparison import side_by_side

    if len(folders) < 2:
        raise ArmillaryError("compare needs two folders or more")
    atlases = [open_atlas(folder) for folder in folders]
    beside = side_by_side(atlases)
    found = run_comparison(*atlases) if len(atlases) == 2 else None
    if as_json:
        parts = {"side_by_side": json.loads(tables.as_json(beside))}
        if found is not None:
            changes = {"heads": found.heads, "layers": found.layers}
            parts |= {name: json.loads(tables.as_json(table)) for name, table in changes.items()}
        print_json({"scans": found.scans if found else [], **parts})
        return
    for line in found.scans if found else []:
        typer.echo(line)
    tables.show(beside, title="Side by side, means over layers")
    if found is not None:
        tables.show(found.heads, title="Heads, the largest changes first", limit=rows)
        tables.show(found.layers, title="Layers, the largest changes first", limit=rows)


def _print_table(
    folder: Path, name: str, sort: str | None, layer: int | None, columns: str | None, as_json: bool, as_csv: bool
) -> None:
    from armillary import tables
    from armillary.atlas import open_atlas

    atlas = open_atlas(folder)
    weights_only = not atlas.settings["streams"]
    if weights_only and name == "layers":
        raise ArmillaryError(f"{folder} was made from weights alone and has no residual stream: scan the model")
    table = tables.select(getattr(atlas, name), sort=sort, layer=layer)
    if columns is not None or not (as_json or as_csv):
        table = tables.columns_of(table, "spectra" if weights_only else name, columns, sort)
    if as_json:
        typer.echo(tables.as_json(table))
    elif as_csv:
        typer.echo(table.to_csv(index=False), nl=False)
    else:
        tables.show(table)
