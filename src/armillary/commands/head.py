"""One head, and which heads read or write a token: head, find."""

from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import AsJson, Folder, OtherModel, Rows, output_file, print_json
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ModelOptions)
def head(
    folder: Folder,
    head: Annotated[list[str], typer.Argument(help="A head: L3H5, 3.5, or 3 5.", metavar="HEAD")],
    text: Annotated[str | None, typer.Option(help="Show what the head does on this text; needs the model.")] = None,
    model: OtherModel = None,
    html: Annotated[Path | None, typer.Option(help="Write the panels to this HTML file.", callback=output_file)] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Print everything about one head: what it reads and writes, with examples, its numbers, its constituents, why."""
    from armillary.atlas.atlas import open_atlas
    from armillary.probe.dossier import dossier, parse_head
    from armillary.probe.terms import text_constituents
    from armillary.terminal import heads as terminal

    atlas = open_atlas(folder)
    layer, number = parse_head(" ".join(head))
    chosen = atlas.head(layer, number)
    if html is not None and text is None:
        raise ArmillaryError("--html draws the head on a text", advice="give one with --text")
    if as_json:
        print_json(terminal.plain_head(chosen))
        return
    on_text = None
    if text is not None:
        from armillary.anatomy.loading import as_recorded, load_for, tokenizer_of

        source = model or atlas.attrs["model"]["name"]
        loaded = load_for(atlas.attrs["model"], source, **options)
        tokenizer = tokenizer_of(source, as_recorded(atlas.attrs["model"], options))
        on_text = text_constituents(atlas, loaded, tokenizer, layer, number, text)
    terminal.show_head(chosen, dossier(atlas, layer, number, on_text))
    if html is not None and on_text is not None:
        from armillary import figures

        figures.write_page(html, f"Head {layer}.{number}", [figures.constituents(on_text)], text or "")
        typer.echo(f"The panels are in {html}")


def find(
    folder: Folder,
    what: Annotated[
        str, typer.Argument(help="A token (as ' the' or '.'), or a class: newline, punctuation, digits, ...")
    ],
    rows: Rows = 20,
    as_json: AsJson = False,
) -> None:
    """Print which heads read or write a token, or a class of tokens, most."""
    from armillary.atlas.atlas import open_atlas
    from armillary.lenses.finding import find as search
    from armillary.terminal import tables

    reading, writing = search(open_atlas(folder), what)
    if as_json:
        print_json({"reads": tables.records(reading), "writes": tables.records(writing)})
        return
    tables.show(reading, title=f"Heads that read {what!r} more than distance explains, by gain", limit=rows)
    if not writing.empty:
        tables.show(writing, title=f"Directions that write {what!r}, by their share of the head's energy", limit=rows)
