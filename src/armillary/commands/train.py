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
    """Train a small language model, or continue from one, and monitor its attention; a killed run can be continued.

    All keys of the file: docs/training.md.
    """
    from dataclasses import replace

    from armillary import figures
    from armillary.commands.options import print_json
    from armillary.figures.training import training_curves
    from armillary.terminal import tables
    from armillary.terminal.progress import shown_progress
    from armillary.training.config import read_config
    from armillary.training.run import train_run
    from armillary.training.runs import read_run, side_by_side, spread
    from armillary.training.seeds import runs_in, train_seeds

    settings = read_config(config)
    if seed is not None:
        settings = replace(settings, training=replace(settings.training, seed=seed, seeds=None))
    folder = out or config.with_suffix("")
    if folder == config:
        raise ArmillaryError(f"{config} has no suffix to take off", advice="name the run's folder with --out")
    several = settings.training.seeds is not None
    with shown_progress("training") as progress:
        result: Any = (train_seeds if several else train_run)(settings, folder, progress=progress, **options)
    histories = [read_run(run) for run in (runs_in(folder) if several else [folder])]
    figures.write_page(folder / "figure.html", f"Training {folder.name}", [training_curves(histories)])
    if as_json:
        print_json(result)
        return
    table = side_by_side(histories)
    tables.show(table)
    if several:
        tables.show(spread(table))
    _say(folder, several, result)


def _say(folder: Path, several: bool, result: Any) -> None:
    """Where the results are, and what to know about them."""
    from armillary.anatomy.checkpoint import load_config
    from armillary.anatomy.schemes import beyond_transformers
    from armillary.training.seeds import runs_in

    models = [run / "model" for run in runs_in(folder)]
    model = (
        f"the {len(models)} models are in {folder / 'seed-*' / 'model'}" if several else f"the model is in {models[0]}"
    )
    typer.echo(f"{folder}: {model}, the curves in {folder / 'figure.html'}")
    otherwise = beyond_transformers(load_config(models[0]))
    if otherwise:
        typer.echo(f"Load it with armillary.load: plain transformers would {' and '.join(otherwise)}.")
    if several:
        return
    if "start" in result:
        before, changed = result["start"]["held_out_before"], result["start"]["held_out_changed"]
        after_change = "" if before == changed else f"{changed:.4f} right after the change, "
        loss, steps = result["held_out_loss"], result["steps"]
        typer.echo(f"Held-out loss {before:.4f} before, {after_change}{loss:.4f} after {steps} steps.")
    if result["monitor_overhead"] > 0:
        typer.echo(f"The monitor took {result['monitor_overhead']:.1%} of the time.")


def runs(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `armillary train` wrote.", metavar="DIR...")],
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Print training runs side by side: settings, held-out loss, and attention at the end; seeds with their spread."""
    from armillary import figures
    from armillary.figures.training import training_curves
    from armillary.terminal import tables
    from armillary.training.runs import read_run, side_by_side, spread
    from armillary.training.seeds import runs_in

    by_folder = {folder: [read_run(run) for run in runs_in(folder)] for folder in folders}
    finished_runs = [run for several in by_folder.values() for run in several]
    table = side_by_side(finished_runs)
    if as_json:
        typer.echo(tables.as_json(table))
    else:
        tables.show(table)
        for several in by_folder.values():
            if len(several) > 1:
                tables.show(spread(side_by_side(several)))
    if html is not None:
        figures.write_page(html, "Training runs", [training_curves(finished_runs)])
        typer.echo(f"The curves are in {html}", err=as_json)
