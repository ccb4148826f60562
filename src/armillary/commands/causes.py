"""Why heads attend and whether they matter: ablate, edges, composition."""

import json
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import AsCsv, AsJson, Folder, OneHead, Rows, print_json
from armillary.commands.parameters import with_parameters

# Imports inside functions: the program starts without what this command alone needs.

Model = Annotated[str, typer.Argument(help="A model folder, GGUF file or hub id.", show_default=False)]


@with_parameters(ModelOptions)
def ablate(
    model: Model,
    folder: Folder,
    to: Annotated[
        str, typer.Option(help="What a head's output is replaced by: mean (at its position), zero or resampled.")
    ] = "mean",
    heads: Annotated[
        int, typer.Option("--heads", help="How many heads to ablate exactly, those with the largest estimates.", min=0)
    ] = 32,
    exact: Annotated[bool, typer.Option("--exact", help="Ablate all heads exactly.")] = False,
    sequences: Annotated[
        int, typer.Option("--sequences", "--limit", help="How many sequences of the atlas's text to run.", min=2)
    ] = 8,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    **options: Any,
) -> None:
    """Measure what each head is worth: the loss without it, on text and on repeated tokens; `heads` then shows it."""
    from typing import cast, get_args

    from armillary.anatomy.loading import load_for
    from armillary.atlas.atlas import open_atlas
    from armillary.atlas.effects import keep_effects
    from armillary.commands.options import one_of
    from armillary.errors import ArmillaryError
    from armillary.interventions.ablation import Instead
    from armillary.probe.ablation import ablate as measure
    from armillary.probe.ablation import with_direct_logits
    from armillary.terminal import tables
    from armillary.terminal.causes import show_ablation
    from armillary.terminal.progress import shown_progress

    one_of("--to", to, get_args(Instead))
    atlas = open_atlas(folder)
    loaded = load_for(atlas.attrs["model"], model, **options)
    with shown_progress("ablating") as progress:
        measured = measure(
            loaded,
            atlas,
            to=cast(Instead, to),
            exact=None if exact else heads,
            sequences=sequences,
            progress=progress,
        )
        measured = with_direct_logits(loaded, atlas, measured, sequences=sequences, progress=progress)
    try:
        keep_effects(atlas, measured.heads, measured.about)
    except ArmillaryError as error:  # a read-only folder: print the effects all the same
        typer.echo(f"armillary: the effects are not saved for heads, report and viewer: {error}", err=True)
    if as_csv:
        typer.echo(measured.heads.to_csv(index=False), nl=False)
    elif as_json:
        print_json({"about": measured.about, "heads": json.loads(tables.as_json(measured.heads))})
    else:
        show_ablation(measured.heads, measured.about)


def edges(
    folder: Folder,
    head: Annotated[str | None, typer.Argument(help="A head: L5H1 or 5.1; all heads without one.")] = None,
    rows: Rows = 8,
    least: Annotated[float, typer.Option(help="Leave out shares below this, in absolute value.", min=0.0)] = 0.01,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print what wrote a head's query, key and value, and what the head feeds (`scan --streams default,sources`)."""
    from armillary.atlas.atlas import open_atlas
    from armillary.lenses.sources import edges as lens
    from armillary.terminal import tables
    from armillary.terminal.causes import head_edges, show_edges

    atlas = open_atlas(folder)
    table = lens(atlas, least)
    if head is not None:
        table = head_edges(atlas, table, head)
    if as_csv:
        typer.echo(table.to_csv(index=False), nl=False)
    elif as_json:
        typer.echo(tables.as_json(table))
    else:
        show_edges(atlas, table, head, rows)


def composition(
    model: Model,
    head: OneHead = None,
    rows: Rows = 20,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print which later heads can read what a head writes, from the weights, against random bases."""
    from armillary.anatomy.source import describe
    from armillary.lenses.composition import composition as lens
    from armillary.probe.dossier import parse_head
    from armillary.terminal import tables

    table = lens(describe(model))
    if head is not None:
        layer, number = parse_head(head)
        ends = [(table[f"{end}_layer"] == layer) & (table[f"{end}_head"] == number) for end in ("from", "to")]
        table = table[ends[0] | ends[1]]
    table = table.sort_values("z", ascending=False, kind="stable").reset_index(drop=True)
    if as_csv:
        typer.echo(table.to_csv(index=False), nl=False)
    elif as_json:
        typer.echo(tables.as_json(table))
    else:
        tables.show(table, title="Heads whose weights compose most, against random bases", limit=rows)
