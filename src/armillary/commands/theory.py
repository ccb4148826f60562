"""Every statement of the papers, re-checked: theory."""

from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.options import AsJson, output_file, print_json
from armillary.errors import ArmillaryError


def theory(
    statement: Annotated[
        str | None, typer.Argument(help="One statement, as in L12; all without.", metavar="ID")
    ] = None,
    paper: Annotated[str | None, typer.Option(help="Only this paper: Song, Wertich, Bao or Barbero.")] = None,
    seed: Annotated[int, typer.Option(help="For the simulations.", min=0)] = 0,
    processes: Annotated[int, typer.Option(help="How many processes compute.", min=1)] = 2,
    html: Annotated[
        Path | None, typer.Option(help="Write the ledger (or the statement) to this HTML file.", callback=output_file)
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write the verdicts to this file, as the new record.", callback=output_file)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the papers' formulas again and print which hold, which nearly, and which differ from print.

    Exit code 1 if a verdict is not the recorded one.
    """
    import json
    from dataclasses import asdict

    import pandas as pd

    from armillary import tables, terminal
    from armillary.files import write_atomically
    from armillary.theory import ledger
    from armillary.theory.ledger.words import VERDICTS, sentence

    chosen = [ledger.entry(statement)] if statement else list(ledger.entries())
    if paper is not None:
        chosen = [one for one in chosen if one.paper.lower() == paper.lower()]
        if not chosen:
            raise ArmillaryError(f"there is no paper {paper!r}: there are Song, Wertich, Bao and Barbero")
    if record is not None and (statement or paper):
        raise ArmillaryError("--record keeps the verdicts of all statements: leave ID and --paper out")
    found = {}
    results = ledger.run(chosen, seed=seed, processes=processes)
    for one, result in zip(terminal.progress(chosen, "statements"), results, strict=True):
        found[one.id] = result
    before = ledger.recorded()
    changed = [name for name, result in found.items() if before.get(name, result.verdict) != result.verdict]
    unresolved = [name for name, result in found.items() if result.verdict == "unresolved"]
    if as_json:
        print_json(
            [
                {
                    **{key: value for key, value in vars(one).items() if key != "check"},
                    **asdict(found[one.id]),
                    "recorded": before.get(one.id),
                }
                for one in chosen
            ]
        )
    elif statement:
        one, result = chosen[0], found[chosen[0].id]
        typer.echo(f"{one.id}  {one.paper}, {one.place}: {VERDICTS[result.verdict]}\n\n{one.statement}")
        typer.echo(f"  as printed:  {one.printed}" + (f"\n  corrected:   {one.corrected}" if one.corrected else ""))
        if one.remark:
            typer.echo(f"\n{one.remark}")
        if one.command:
            typer.echo(f"\nMeasured by: {one.command}")
        for item in result.evidence:
            typer.echo(f"  - {sentence(item)}")
        typer.echo(f"\n{result.seconds:.2f} s, seed {seed}")
    else:
        rows = [
            {
                "id": one.id,
                "paper": one.paper,
                "place": one.place,
                "verdict": VERDICTS[found[one.id].verdict],
                "evidence": _shortest([sentence(item) for item in found[one.id].evidence]),
            }
            for one in chosen
        ]
        tables.show(pd.DataFrame(rows))
        counts = pd.DataFrame(rows).groupby(["paper", "verdict"]).size().unstack(fill_value=0).reset_index()
        tables.show(counts, title="Statements by paper and verdict")
        typer.echo(f"{sum(result.seconds for result in found.values()):.0f} s of computing, seed {seed}")
    if html is not None:
        _draw(html, chosen, found)
        typer.echo(f"The page is {html}", err=as_json)
    if record is not None:
        verdicts = {name: result.verdict for name, result in found.items()}
        write_atomically(record, (json.dumps(verdicts, indent=1) + "\n").encode())
    if (changed and record is None) or unresolved:
        for name in changed:
            typer.echo(f"{name}: was {before[name]}, now {found[name].verdict}", err=True)
        if unresolved:
            typer.echo(f"unresolved: {', '.join(unresolved)}", err=True)
        raise typer.Exit(1)


def _shortest(sentences: list[str], at_most: int = 90) -> str:
    first = sentences[0] if sentences else ""
    return first if len(first) <= at_most else first[: at_most - 1] + "…"


def _draw(path: Path, chosen: list, found: dict) -> None:  # type: ignore[type-arg]
    from armillary.figures.theory import FIGURES
    from armillary.theory.ledger.page import write_page

    write_page(path, chosen, found, {one.id: FIGURES[one.id]() for one in chosen if one.id in FIGURES})
