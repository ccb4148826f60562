"""Scan the checkpoints of a model and print when its heads are born: timeline."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary.commands.options import AsJson, OneHead, Rows, output_file, print_json
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError
from armillary.scanning.options import TimelineOptions

if TYPE_CHECKING:
    from armillary.atlas.timelines.timeline import Timeline

# Imports inside functions: the program starts without what this command alone needs.

PAGE = "timeline.html"


@with_parameters(TimelineOptions)
def timeline(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="A run with checkpoints, a hub id (with --revisions), several model folders, or a finished timeline.",
            metavar="RUN | MODEL | A B ...",
        ),
    ] = None,
    revisions: Annotated[
        str | None, typer.Option(help="Revisions of the hub id, separated by commas: step0,step1000,...")
    ] = None,
    corpus: Annotated[str, typer.Option(help="Text, as in `armillary scan`; join several with + .")] = "builtin:prose",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to write or continue (of a run: RUN/timeline).")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Store only these columns, separated by commas; labels are always stored.")
    ] = None,
    keep_atlases: Annotated[bool, typer.Option("--keep-atlases", help="Keep the atlas of every checkpoint.")] = False,
    column: Annotated[str | None, typer.Option(help="Print the curves of this column.")] = None,
    head: OneHead = None,
    rows: Rows = 20,
    html: Annotated[
        Path | None, typer.Option(help="Write the page to this file (OUT/timeline.html).", callback=output_file)
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show the timeline of the bundled model.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Scan every checkpoint on the same text and show when heads are born, what changed, and a page with a slider.

    Started again, it continues: failed checkpoints are tried again, new ones are added.
    """
    result = _opened(sources or [], demo, revisions)
    made = result is None
    if result is None:
        result = _made(sources or [], revisions, corpus, out, columns, keep_atlases, options)
    page = html or (result.path.parent / PAGE if made else Path(f"armillary-{PAGE}") if demo else None)
    if page is not None:
        from armillary.report.timeline import write_timeline_page

        write_timeline_page(result, page)
    if as_json:
        _print_json(result, column, head)
    else:
        _print(result, column, head, rows)
        if page is not None:
            typer.echo(f"\nThe page, for a browser:  {page.resolve()}")
    if made and not as_json:
        typer.echo(f"{result.path}: see  armillary timeline {result.path.parent} --column NAME")


def _opened(sources: list[str], demo: bool, revisions: str | None) -> "Timeline | None":
    """A timeline that is finished already: the bundled one, or that in the folder; None if one is to be made."""
    from armillary.atlas.timelines.timeline import open_timeline, store_in
    from armillary.scanning.checkpoints import checkpoint_folders

    if demo:
        from armillary.training.bundled import bundled

        if sources:
            raise ArmillaryError("--demo shows the bundled timeline", advice="leave the folder out")
        if not bundled("timeline").is_dir():
            raise ArmillaryError("this Armillary comes without a bundled timeline", advice="make one of a training run")
        return open_timeline(bundled("timeline"))
    if not sources:
        raise ArmillaryError(
            "timeline needs a run's folder, a hub id with --revisions, or several folders",
            advice="armillary timeline --demo shows an example",
        )
    place = Path(sources[0]).expanduser()
    is_finished = len(sources) == 1 and revisions is None and place.is_dir() and not checkpoint_folders(place)
    return open_timeline(place) if is_finished and store_in(place) is not None else None


def _made(
    sources: list[str],
    revisions: str | None,
    corpus: str,
    out: Path | None,
    columns: str | None,
    keep_atlases: bool,
    options: dict[str, Any],
) -> "Timeline":
    from armillary.scanning.checkpoints import find_checkpoints
    from armillary.scanning.timeline import timeline as run_timeline
    from armillary.terminal.progress import shown_progress
    from armillary.text.names import split_sources

    named = None if revisions is None else [part.strip() for part in revisions.split(",") if part.strip()]
    if out is None and find_checkpoints(sources, named).run is None:
        raise ArmillaryError("a timeline of several models needs a folder to be written to", advice="give --out")
    with shown_progress("timeline") as progress:
        return run_timeline(
            *sources,
            corpus=split_sources(corpus),
            out=out,
            revisions=named,
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            keep_atlases=keep_atlases,
            **{**options, "progress": progress},
        )


def _print(result: "Timeline", column: str | None, head: str | None, rows: int) -> None:
    from armillary.report.timeline_sentences import summary
    from armillary.terminal import tables

    if column is not None:
        curve = result.curve(column, head=head).reset_index()
        tables.show(curve, title=f"{column} by {result.unit}")
        return
    for line in summary(result):
        typer.echo(line)
    tables.show(result.checkpoints, title="Checkpoints")
    births = result.births
    if head is not None:
        births = births[births["layer"].eq(_numbers(head)[0]) & births["head"].eq(_numbers(head)[1])]
    tables.show(births, title="Births", limit=rows)
    changes = result.changes(rows if head is None else 1000)
    if head is not None:
        changes = changes[changes["layer"].eq(_numbers(head)[0]) & changes["head"].eq(_numbers(head)[1])].head(rows)
    tables.show(changes, title="Largest changes from one checkpoint to the next")


def _numbers(head: str) -> tuple[int, int]:
    from armillary.probe.dossier import parse_head

    return parse_head(head)


def _print_json(result: "Timeline", column: str | None, head: str | None) -> None:
    from armillary.terminal import tables

    frames = {"checkpoints": result.checkpoints, "births": result.births, "changes": result.changes()}
    if column is not None:
        frames = {"curve": result.curve(column, head=head).reset_index()}
    parts = {name: json.loads(tables.as_json(frame)) for name, frame in frames.items()}
    print_json({"unit": result.unit, "failed": result.attrs["failed"], "notes": result.attrs.get("notes", []), **parts})
