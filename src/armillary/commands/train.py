"""Small language models from scratch: train, runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.options import AsJson, Html
from armillary.errors import ArmillaryError
from armillary.lines import Lines, is_terminal


def train(
    config: Annotated[
        Path, typer.Argument(help="A TOML file: [model], [data], [training], ...", metavar="CONFIG.toml")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The run's folder (the configuration's name without .toml, beside it).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed than the configuration's.", min=0)] = None,
    as_json: AsJson = False,
) -> None:
    """Train a small language model from scratch and watch its attention; a killed run goes on when started again."""
    from dataclasses import replace

    from armillary import figures, tables
    from armillary.commands.options import print_json
    from armillary.figures.training import training_curves
    from armillary.training.config import read_config
    from armillary.training.run import rotary_change, train_run
    from armillary.training.runs import read_run, side_by_side

    settings = read_config(config)
    if seed is not None:
        settings = replace(settings, training=replace(settings.training, seed=seed))
    folder = out or config.with_suffix("")
    if folder == config:
        raise ArmillaryError(f"{config} has no suffix to take off: name the run's folder with --out")
    with _watched(settings.training.steps) as (on_step, say):
        result = train_run(settings, folder, on_step, say)
    run = read_run(folder)
    figures.write_page(folder / "figure.html", f"Training {folder.name}", [training_curves([run])])
    if as_json:
        print_json(result)
    else:
        tables.show(side_by_side([run]))
        typer.echo(f"{folder}: the model is in {folder / 'model'}, the curves in {folder / 'figure.html'}")
        if rotary_change(settings):
            typer.echo("Load it with armillary.load: plain transformers would let all of its frequencies turn.")
    if not as_json and result["monitor_overhead"] > 0:
        typer.echo(f"The monitor took {result['monitor_overhead']:.1%} of the time.")


@contextmanager
def _watched(steps: int) -> Iterator[tuple[Callable[[int, float], None], Callable[[str], None]]]:
    """Who is told of each step and of each warning: a bar on a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    if not is_terminal():
        with Lines("training", "steps", steps) as lines:

            def line(step: int, loss: float) -> None:
                if not lines.done and step:  # of a run that goes on, only what is done now has a speed
                    lines.begin(steps, step)
                lines.done, lines.also = step + 1, f"loss {loss:.3f}"

            yield line, lines.say
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=steps)

        def move(step: int, loss: float) -> None:
            bar.update(task, completed=step + 1, description=f"training, loss {loss:.3f}")

        yield move, lambda sentence: bar.console.print(sentence, highlight=False)


def runs(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `armillary train` wrote.", metavar="DIR...")],
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Print training runs side by side: settings, held-out loss, and where their attention ended."""
    from armillary import figures, tables
    from armillary.figures.training import training_curves
    from armillary.training.runs import read_run, side_by_side

    found = [read_run(folder) for folder in folders]
    table = side_by_side(found)
    if as_json:
        typer.echo(tables.as_json(table))
    else:
        tables.show(table)
    if html is not None:
        figures.write_page(html, "Training runs", [training_curves(found)])
        typer.echo(f"The curves are in {html}", err=as_json)
