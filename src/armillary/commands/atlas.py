"""Print the tables of an atlas, one head, or several atlases side by side: heads, layers, show, compare."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import (
    AsCsv,
    AsJson,
    Columns,
    Folder,
    OneLayer,
    OtherModel,
    Rows,
    Sort,
    output_file,
    print_json,
)
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError

# Imports inside functions: the program starts without what this command alone needs.


def heads(
    folder: Folder,
    sort: Sort = None,
    layer: OneLayer = None,
    columns: Columns = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print a table with one row per head: label, entropy, attention masses and more."""
    _print_table(folder, "heads", sort, layer, columns, as_json, as_csv)


def layers(
    folder: Folder,
    sort: Sort = None,
    layer: OneLayer = None,
    columns: Columns = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print a table with one row per layer of the residual stream, from the embeddings to the last layer."""
    _print_table(folder, "layers", sort, layer, columns, as_json, as_csv)


@with_parameters(ModelOptions)
def show(
    folder: Folder,
    head: Annotated[list[str], typer.Argument(help="A head: L3H5, 3.5, or 3 5.", metavar="HEAD")],
    text: Annotated[str | None, typer.Option(help="Show what the head does on this text; needs the model.")] = None,
    model: OtherModel = None,
    html: Annotated[Path | None, typer.Option(help="Write the panels to this HTML file.", callback=output_file)] = None,
    **options: Any,
) -> None:
    """Print everything about one head: its numbers, its constituents, and what it attends to in a text and why."""
    from armillary import figures
    from armillary.anatomy.loading import as_recorded, load_for, tokenizer_of
    from armillary.atlas.atlas import open_atlas
    from armillary.probe.dossier import dossier, head_row, parse_head
    from armillary.probe.terms import text_constituents
    from armillary.terminal import tables

    atlas = open_atlas(folder)
    layer, number = parse_head(" ".join(head))
    head_row(atlas, layer, number)
    if html is not None and text is None:
        raise ArmillaryError("--html draws the head on a text", advice="give one with --text")
    on_text = None
    if text is not None:
        source = model or atlas.attrs["model"]["name"]
        loaded = load_for(atlas.attrs["model"], source, **options)
        tokenizer = tokenizer_of(source, as_recorded(atlas.attrs["model"], options))
        on_text = text_constituents(atlas, loaded, tokenizer, layer, number, text)
    tables.show_dossier(dossier(atlas, layer, number, on_text))
    if html is not None and on_text is not None:
        figures.write_page(html, f"Head {layer}.{number}", [figures.constituents(on_text)], text or "")
        typer.echo(f"The panels are in {html}")


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Two or more folders that `armillary scan` wrote, or two timelines.", metavar="A B ..."),
    ],
    rows: Rows = 20,
    as_json: AsJson = False,
) -> None:
    """Print layer means of every measure of two or more atlases; for two, also the heads and layers that changed.

    Of two timelines: first births by label, births head by head, and where curves differ most.
    """
    from armillary.atlas.atlas import open_atlas
    from armillary.atlas.compare import compare as run_comparison
    from armillary.atlas.compare import side_by_side
    from armillary.atlas.timelines.timeline import store_in
    from armillary.terminal import tables

    if len(folders) < 2:
        raise ArmillaryError("compare needs two folders or more")
    if any(store_in(folder) is not None for folder in folders):
        return _compare_timelines(folders, rows, as_json)
    atlases = [open_atlas(folder) for folder in folders]
    means = side_by_side(atlases)
    changes = run_comparison(*atlases) if len(atlases) == 2 else None
    if as_json:
        parts = {"side_by_side": json.loads(tables.as_json(means))}
        if changes is not None:
            changed = {"heads": changes.heads, "layers": changes.layers}
            parts |= {name: json.loads(tables.as_json(table)) for name, table in changed.items()}
        return print_json({"scans": changes.scans if changes else [], **parts})
    for line in changes.scans if changes else []:
        typer.echo(line)
    tables.show(means, title="Side by side, means over layers")
    if changes is not None:
        tables.show(changes.heads, title="Heads, largest changes first", limit=rows)
        tables.show(changes.layers, title="Layers, largest changes first", limit=rows)
    return None


def _compare_timelines(folders: list[Path], rows: int, as_json: bool) -> None:
    from armillary.atlas.compare import compare as run_comparison
    from armillary.atlas.timelines.timeline import open_timeline
    from armillary.terminal import tables

    if len(folders) > 2:
        raise ArmillaryError(f"{len(folders)} timelines were given: compare takes two")
    compared = run_comparison(*(open_timeline(folder) for folder in folders))
    frames = {"first_births": compared.first_births, "births": compared.births, "curves": compared.curves}
    if as_json:
        parts = {name: json.loads(tables.as_json(frame)) for name, frame in frames.items()}
        return print_json({"scans": compared.scans, **parts})
    for line in compared.scans:
        typer.echo(line)
    tables.show(compared.first_births, title="First births by label")
    tables.show(compared.births, title="Births, head by head", limit=rows)
    tables.show(compared.curves, title="Curves, largest differences first", limit=rows)
    return None


def _print_table(
    folder: Path, name: str, sort: str | None, layer: int | None, columns: str | None, as_json: bool, as_csv: bool
) -> None:
    from armillary.atlas.atlas import open_atlas
    from armillary.terminal import tables

    atlas = open_atlas(folder)
    weights_only = atlas.kind == "weights"
    if weights_only and name == "layers":
        raise ArmillaryError(
            f"{folder} was made from weights alone and has no residual stream", advice="scan the model"
        )
    table = tables.select(getattr(atlas, name), sort=sort, layer=layer)
    if columns is not None or not (as_json or as_csv):
        table = tables.columns_of(table, name, columns, sort, "weights" if weights_only else "usual")
    if as_json:
        typer.echo(tables.as_json(table))
    elif as_csv:
        typer.echo(table.to_csv(index=False), nl=False)
    else:
        tables.show(table)
