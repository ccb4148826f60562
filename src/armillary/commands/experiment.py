"""The papers' tables and figures, run again: experiment list, run, show, page."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.command import Command
from armillary.commands.options import AsJson, one_of, output_file
from armillary.errors import ArmillaryError
from armillary.lines import Lines, is_terminal

experiment = typer.Typer(help="The papers' tables and figures, run again here.", no_args_is_help=True)
Results = Annotated[Path, typer.Option(help="The folder of results.")]


@experiment.command(name="list", cls=Command)
def list_all(as_json: AsJson = False) -> None:
    """Print all experiments: which table or figure, the question, how long the small size takes."""
    import pandas as pd

    from armillary import tables
    from armillary.experiments.experiment import experiments

    rows = [
        {"name": e.name, "paper": e.paper, "of": e.of, "minutes": e.minutes, "question": e.question}
        for e in experiments().values()
    ]
    table = pd.DataFrame(rows)
    typer.echo(tables.as_json(table)) if as_json else tables.show(table)


@experiment.command(cls=Command)
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, as `list` names them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    quick: Annotated[bool, typer.Option(help="Run those that take a few seconds.")] = False,
    size: Annotated[
        str, typer.Option(help="small (minutes on two cores) or paper (the paper's own settings).")
    ] = "small",
    model: Annotated[list[str] | None, typer.Option(help="Look at these models in place of the usual ones.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="Read these texts in place of the usual ones.")] = None,
    out: Results = Path("experiments/results"),
    work: Annotated[Path, typer.Option(help="Where trained models and atlases are kept.")] = Path("experiments/work"),
    again: Annotated[bool, typer.Option(help="Run also what has a result already.")] = False,
) -> None:
    """Run experiments; each writes OUT/NAME with its numbers, figures and verdicts against what the paper printed."""
    from armillary.experiments.experiment import Settings, experiments
    from armillary.experiments.experiment import experiment as named
    from armillary.experiments.results import run as run_one

    one_of("--size", size, ("small", "paper"))
    asked = [named(name).name for name in names or []]
    usual = [one.name for one in experiments().values() if every or (quick and one.quick)]
    chosen = [named(name) for name in dict.fromkeys([*asked, *usual])]
    if not chosen:
        raise ArmillaryError("no experiment was named: give names, --quick or --all (`armillary experiment list`)")
    settings = Settings(
        size=size,  # type: ignore[arg-type]
        models=tuple(model or ()),
        corpora=tuple(corpus or ()),
        work=work,
        say=lambda sentence: typer.echo(f"  {sentence}", err=True),
    )
    for one in chosen:
        if (out / one.name / "result.json").exists() and not again and one.name not in asked:
            typer.echo(f"{one.name}: there is a result in {out / one.name}; --again runs it anew", err=True)
            continue
        typer.echo(f"{one.name}: {one.question}", err=True)
        with nullcontext() if is_terminal() else Lines(one.name, ""):
            result = run_one(one, settings, out)
        _print(result)


@experiment.command(cls=Command)
def show(
    name: Annotated[str, typer.Argument(help="An experiment that was run.")],
    out: Results = Path("experiments/results"),
    html: Annotated[
        Path | None, typer.Option(help="Draw its figures, into this HTML file.", callback=output_file)
    ] = None,
) -> None:
    """Print what an experiment found: its tables, and each claim of the paper with its verdict."""
    from armillary import tables
    from armillary.experiments.experiment import experiment as named
    from armillary.experiments.results import read

    result = read(out / named(name).name)
    for table in result.tables:
        tables.show(result.table(table), title=table.replace("_", " "), limit=40)
        typer.echo()
    _print(result)
    if html is not None:
        from armillary.figures.page import write_page

        write_page(html, f"{result.paper}, {result.of}", [result.figure(figure) for figure in result.figures])
        typer.echo(f"The figures are in {html}")


@experiment.command(cls=Command)
def page(
    out: Results = Path("experiments/results"),
    to: Annotated[
        Path, typer.Option(help="The file to write; pictures go to a folder beside it.", callback=output_file)
    ] = Path("EXPERIMENTS.md"),
) -> None:
    """Write EXPERIMENTS.md from the results: every claim with its verdict, figures, what was learned."""
    from armillary.experiments.page import write_experiments

    typer.echo(f"{write_experiments(out, to)} results are in {to}")


def _print(result: "object") -> None:
    import pandas as pd

    from armillary import tables
    from armillary.experiments.results import Result

    assert isinstance(result, Result)
    rows = [
        {"verdict": c.verdict, "the paper says": c.says, "printed": c.printed, "found": c.found, "why": c.why}
        for c in result.claims
    ]
    tables.show(pd.DataFrame(rows), title=f"{result.name} ({result.paper}, {result.of}): {result.seconds:.0f} s")
    for sentence in result.learned:
        typer.echo(f"Learned: {sentence}")
