"""Train small language models and compare the runs: train, runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import AsJson, Html
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ModelOptions)
def train(
    config: Annotated[
        Path, typer.Argument(help="A TOML file: [model], [data], [training], ...", metavar="CONFIG.toml")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The run's folder (default: the configuration's path without .toml)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, in place of the configuration's.", min=0)] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Train a small language model and monitor its attention; a killed run continues when started again."""
    from dataclasses import replace

    from armillary import figures
    from armillary.commands.options import print_json
    from armillary.figures.training import training_curves
    from armillary.terminal import tables
    from armillary.terminal.progress import shown_progress
    from armillary.training.config import read_config
    from armillary.training.run import rotary_change, train_run
    from armillary.training.runs import read_run, side_by_side

    settings = read_config(config)
    if seed is not None:
        settings = replace(settings, training=replace(settings.training, seed=seed))
    folder = out or config.with_suffix("")
    if folder == config:
        raise ArmillaryError(f"{config} has no suffix to take off", advice="name the run's folder with --out")
    with shown_progress("training") as progress:
        result = train_run(settings, folder, progress=progress, **options)
    run = read_run(folder)
    figures.write_page(folder / "figure.html", f"Training {folder.name}", [training_curves([run])])
    if as_json:
        print_json(result)
    else:
        tables.show(side_by_side([run]))
        typer.echo(f"{folder}: the model is in {folder / 'model'}, the curves in {folder / 'figure.html'}")
        if rotary_change(settings):
            typer.echo("Load it with armillary.load: plain transformers would rotate with all frequencies.")
    if not as_json and result["monitor_overhead"] > 0:
        typer.echo(f"The monitor took {result['monitor_overhead']:.1%} of the time.")


def runs(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `armillary train` wrote.", metavar="DIR...")],
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Print training runs side by side: settings, held-out loss, and attention at the end."""
    from armillary import figures
    from armillary.figures.training import training_curves
    from armillary.terminal import tables
    from armillary.training.runs import read_run, side_by_side

    finished_runs = [read_run(folder) for folder in folders]
    table = side_by_side(finished_runs)
    if as_json:
        typer.echo(tables.as_json(table))
    else:
        tables.show(table)
    if html is not None:
        figures.write_page(html, "Training runs", [training_curves(finished_runs)])
        typer.echo(f"The curves are in {html}", err=as_json)
