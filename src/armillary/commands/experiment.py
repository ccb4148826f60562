"""Reproduce the papers' tables and figures: experiment list, run, show, page."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions, parameters
from armillary.commands.command import Command
from armillary.commands.options import AsJson, one_of, output_file
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError
from armillary.terminal.lines import is_terminal

# Imports inside functions: the program starts without what this command alone needs.

experiment = typer.Typer(help="Reproduce the papers' tables and figures.", no_args_is_help=True)
Results = Annotated[Path, typer.Option("--out", "-o", help="The folder of results.")]


@experiment.command(name="list", cls=Command)
def list_all(as_json: AsJson = False) -> None:
    """List the experiments: the table or figure, the question, the minutes that the small size takes."""
    import pandas as pd

    from armillary.papers.experiments.registry import experiments
    from armillary.terminal import tables

    rows = [
        {"name": e.name, "paper": e.paper, "of": e.of, "minutes": e.minutes, "question": e.question}
        for e in experiments().values()
    ]
    table = pd.DataFrame(rows)
    typer.echo(tables.as_json(table)) if as_json else tables.show(table)


@experiment.command(cls=Command)
@with_parameters(ModelOptions)
def run(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of experiments, from `armillary experiment list`.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Run all experiments.")] = False,
    quick: Annotated[bool, typer.Option(help="Run the experiments that take a few seconds.")] = False,
    size: Annotated[
        str, typer.Option(help="small (minutes on two cores) or paper (the paper's own settings).")
    ] = "small",
    model: Annotated[list[str] | None, typer.Option(help="Use these models in place of the default ones.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="Use these texts in place of the default ones.")] = None,
    out: Results = Path("experiments/results"),
    work: Annotated[Path, typer.Option(help="Where trained models and atlases are kept.")] = Path("experiments/work"),
    again: Annotated[bool, typer.Option(help="Also run experiments that already have a result.")] = False,
    **options: Any,
) -> None:
    """Run experiments; each writes its numbers, figures and verdicts on the paper's claims to OUT/NAME."""
    from armillary.papers.experiments.experiment import Settings
    from armillary.papers.experiments.registry import experiment as named
    from armillary.papers.experiments.registry import experiments
    from armillary.papers.experiments.results import run as run_experiment

    one_of("--size", size, ("small", "paper"))
    by_name = [named(name).name for name in names or []]
    by_option = [known.name for known in experiments().values() if every or (quick and known.quick)]
    chosen = [named(name) for name in dict.fromkeys([*by_name, *by_option])]
    if not chosen:
        raise ArmillaryError(
            "no experiment was named", advice="give names, --quick or --all (`armillary experiment list`)"
        )
    settings = Settings(
        size=size,  # type: ignore[arg-type]
        models=tuple(model or ()),
        corpora=tuple(corpus or ()),
        work=work,
        say=lambda sentence: typer.echo(f"  {sentence}", err=True),
        loading={name: given for name, given in options.items() if given != parameters(ModelOptions)[name][1].default},
    )
    from armillary.terminal.progress import ProgressLines

    for chosen_one in chosen:
        name = chosen_one.name
        if (out / name / "result.json").exists() and not again and name not in by_name:
            typer.echo(f"{name}: there is a result in {out / name}; --again runs it again", err=True)
            continue
        typer.echo(f"{name}: {chosen_one.question}", err=True)
        with nullcontext() if is_terminal() else ProgressLines(name):
            result = run_experiment(chosen_one, settings, out)
        _print(result)


@experiment.command(cls=Command)
def show(
    name: Annotated[str, typer.Argument(help="The experiment's name.")],
    out: Results = Path("experiments/results"),
    html: Annotated[
        Path | None, typer.Option(help="Write its figures to this HTML file.", callback=output_file)
    ] = None,
) -> None:
    """Print an experiment's result: its tables, and each claim of the paper with its verdict."""
    from armillary.papers.experiments.registry import experiment as named
    from armillary.papers.experiments.results import read
    from armillary.terminal import tables

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
    """Write EXPERIMENTS.md from the results: figures, each claim with its verdict, what was learned."""
    from armillary.papers.experiments.page import write_experiments

    typer.echo(f"{write_experiments(out, to)} results are in {to}")


def _print(result: "object") -> None:
    import pandas as pd

    from armillary.papers.experiments.results import Result
    from armillary.terminal import tables

    assert isinstance(result, Result)
    rows = [
        {"verdict": c.verdict, "the paper says": c.says, "printed": c.printed, "found": c.found, "why": c.why}
        for c in result.claims
    ]
    tables.show(pd.DataFrame(rows), title=f"{result.name} ({result.paper}, {result.of}): {result.seconds:.0f} s")
    for sentence in result.learned:
        typer.echo(f"Learned: {sentence}")
