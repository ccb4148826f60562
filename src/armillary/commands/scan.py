"""Run text through a model and write an atlas: scan, demo."""

from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import Model, NewFolder
from armillary.commands.parameters import with_parameters
from armillary.scanning.options import ScanOptions

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ScanOptions)
def scan(
    model: Model,
    out: NewFolder,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="Text: a file, a folder, a .jsonl, builtin:prose, builtin:code, builtin:random or "
            "hf:NAME[:config]:SPLIT:FIELD; join several with + . If given several times: one atlas each, in OUT/NAME."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="Compute one part only, as in 3/16 for the third of sixteen; `armillary merge` joins them."),
    ] = None,
    **options: Any,
) -> None:
    """Run text through a model and write the statistics of its attention, an atlas, for the other commands to read."""
    from armillary.engines import opened
    from armillary.scanning.folder import parse_part
    from armillary.terminal.progress import shown_progress
    from armillary.text.names import folder_names, split_sources
    from armillary.text.sequences import check_corpus

    if options["streams"] == ("list",):
        return _list_streams()
    if part is not None:
        parse_part(part)
    sources = corpus or ["builtin:prose"]
    places = [out] if len(sources) == 1 else [out / name for name in folder_names(sources)]
    for source in sources if len(sources) > 1 else ():
        check_corpus(split_sources(source))  # all of them before the first is scanned
    work = [options.pop(name) for name in ("engine", "workers", "threads", "address")]
    with opened(*work) as engine:  # the model is loaded once for all texts
        for source, place in zip(sources, places, strict=True):
            with shown_progress() as progress:
                lines = _scanned(model, source, place, part, {**options, "engine": engine, "progress": progress})
            for line in lines:
                typer.echo(line)
    return None


def _scanned(model: str, source: str, place: Path, part: str | None, options: dict[str, Any]) -> list[str]:
    """Scan one text into one folder; what to print about it."""
    from armillary.scanning.scan import scan as run_scan
    from armillary.scanning.scan import scan_part
    from armillary.text.loss import sentence
    from armillary.text.names import split_sources

    if part is not None:
        scan_part(model, split_sources(source), part=part, out=place, **options)
        return [f"{place}: part {part}; when all parts are done:  armillary merge PART PART ... --out DIR"]
    atlas = run_scan(model, split_sources(source), out=place, **options)
    loss = sentence(atlas.attrs.get("loss"))
    return [*([loss] if loss else []), f"{place}: see  armillary heads {place}  and  armillary layers {place}"]


def _list_streams() -> None:
    """Print what `--streams` can name."""
    from armillary.streams.registry import OPTIONS

    for stream in OPTIONS.values():
        typer.echo(f"{stream.name:14}{stream.words}{'' if stream.default else ' (only if named)'}")


@with_parameters(ModelOptions)
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder to write; a finished demo is shown again.")
    ] = Path("armillary-demo"),
    **options: Any,
) -> None:
    """Scan the bundled small rotary model on the built-in prose, print its heads and write a report."""
    from armillary.report import write_report
    from armillary.scanning.scan import scan as run_scan
    from armillary.terminal import tables
    from armillary.terminal.progress import shown_progress
    from armillary.training.bundled import bundled

    with shown_progress() as bar:
        streams = ("default", "tokens")
        atlas = run_scan(
            bundled("llama"), "builtin:prose", out=out, resume=True, progress=bar, streams=streams, **options
        )
    shown = tables.columns_of(atlas.heads, "heads")
    tables.show(shown, title="A small rotary language model, head by head, on Python's own documentation")
    page = write_report(out)
    typer.echo(f"\nThe report, for a browser:  {page.resolve()}\nThe interactive viewer:  armillary view {out}")
