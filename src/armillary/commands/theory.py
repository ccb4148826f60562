"""Check the papers' statements again: theory."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from armillary.commands.options import AsJson, output_file, print_json
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from armillary.papers.ledger.entry import Entry, Result, Verdict

# Imports inside functions: the program starts without what this command alone needs.


def theory(
    statement: Annotated[
        str | None, typer.Argument(help="One statement, as in L12 (default: all).", metavar="ID")
    ] = None,
    paper: Annotated[str | None, typer.Option(help="Only this paper: Song, Wertich, Bao or Barbero.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulations.", min=0)] = 0,
    processes: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 2,
    html: Annotated[
        Path | None, typer.Option(help="Write the ledger (or the statement) to this HTML file.", callback=output_file)
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write the verdicts to this file, as the new record.", callback=output_file)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the papers' statements again and print which hold, nearly hold, or differ from the printed formula.

    Exit code 1 if a verdict is not the recorded one.
    """
    import json

    from armillary.files.atomic import write_atomically
    from armillary.papers import ledger
    from armillary.terminal.progress import shown_progress

    chosen = _chosen(statement, paper)
    if record is not None and (statement or paper):
        raise ArmillaryError("--record keeps the verdicts of all statements", advice="leave ID and --paper out")
    results = {}
    computed = ledger.run(chosen, seed=seed, processes=processes)
    with shown_progress("checking") as progress:
        for entry, result in zip(progress.each(chosen, "statements"), computed, strict=True):
            results[entry.id] = result
    before = ledger.recorded()
    if as_json:
        _print_json(chosen, results, before)
    elif statement:
        _print_statement(chosen[0], results[chosen[0].id], seed)
    else:
        _print_table(chosen, results, seed)
    if html is not None:
        _draw(html, chosen, results)
        typer.echo(f"The page is {html}", err=as_json)
    verdicts = {name: result.verdict for name, result in results.items()}
    if record is not None:
        write_atomically(record, (json.dumps(verdicts, indent=1) + "\n").encode())
    changed = [name for name, verdict in verdicts.items() if before.get(name, verdict) != verdict]
    unresolved = [name for name, verdict in verdicts.items() if verdict == "unresolved"]
    if (changed and record is None) or unresolved:
        for name in changed:
            typer.echo(f"{name}: was {before[name]}, now {verdicts[name]}", err=True)
        if unresolved:
            typer.echo(f"unresolved: {', '.join(unresolved)}", err=True)
        raise typer.Exit(1)


def _chosen(statement: str | None, paper: str | None) -> "list[Entry]":
    """The chosen statements: one, those of a paper, or all."""
    from armillary.papers import ledger

    chosen = [ledger.entry(statement)] if statement else list(ledger.entries())
    if paper is not None:
        chosen = [entry for entry in chosen if entry.paper.lower() == paper.lower()]
        if not chosen:
            raise ArmillaryError(f"there is no paper {paper!r}", advice="there are Song, Wertich, Bao and Barbero")
    return chosen


def _print_json(chosen: "list[Entry]", results: "dict[str, Result]", before: "dict[str, Verdict]") -> None:
    from dataclasses import asdict

    print_json(
        [
            {
                **{key: value for key, value in vars(entry).items() if key != "check"},
                **asdict(results[entry.id]),
                "recorded": before.get(entry.id),
            }
            for entry in chosen
        ]
    )


def _print_statement(entry: "Entry", result: "Result", seed: int) -> None:
    """One statement with its verdict and the evidence."""
    from armillary.papers.ledger.words import VERDICTS, sentence

    typer.echo(f"{entry.id}  {entry.paper}, {entry.place}: {VERDICTS[result.verdict]}\n\n{entry.statement}")
    typer.echo(f"  as printed:  {entry.printed}" + (f"\n  corrected:   {entry.corrected}" if entry.corrected else ""))
    if entry.remark:
        typer.echo(f"\n{entry.remark}")
    if entry.command:
        typer.echo(f"\nMeasured by: {entry.command}")
    for item in result.evidence:
        typer.echo(f"  - {sentence(item)}")
    typer.echo(f"\n{result.seconds:.2f} s, seed {seed}")


def _print_table(chosen: "list[Entry]", results: "dict[str, Result]", seed: int) -> None:
    """A row for each statement, and how many of each paper have which verdict."""
    import pandas as pd

    from armillary.papers.ledger.words import VERDICTS, sentence
    from armillary.terminal import tables

    rows = [
        {
            "id": entry.id,
            "paper": entry.paper,
            "place": entry.place,
            "verdict": VERDICTS[results[entry.id].verdict],
            "evidence": _shortest([sentence(item) for item in results[entry.id].evidence]),
        }
        for entry in chosen
    ]
    tables.show(pd.DataFrame(rows))
    counts = pd.DataFrame(rows).groupby(["paper", "verdict"]).size().unstack(fill_value=0).reset_index()
    tables.show(counts, title="Statements by paper and verdict")
    typer.echo(f"{sum(result.seconds for result in results.values()):.0f} s of computing, seed {seed}")


def _shortest(sentences: list[str], at_most: int = 90) -> str:
    first = sentences[0] if sentences else ""
    return first if len(first) <= at_most else first[: at_most - 1] + "…"


def _draw(path: Path, chosen: "list[Entry]", results: "dict[str, Result]") -> None:
    from armillary.figures.theory import FIGURES
    from armillary.papers.ledger.page import write_page

    write_page(path, chosen, results, {entry.id: FIGURES[entry.id]() for entry in chosen if entry.id in FIGURES})
