"""Addition in and out of distribution: exact answers by number of digits, with learned and with rotary positions."""

from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch

from armillary.anatomy.loading import load
from armillary.anatomy.modes import one_thread
from armillary.figures.style import styled
from armillary.papers.experiments.experiment import Experiment, Outcome, Settings, limited, ordered, sized
from armillary.papers.experiments.song_addition import (
    HELD_OUT,
    MEASURED,
    PAPER,
    SMALL,
    Position,
    Task,
    draw_problems,
    exactly_right,
    trained_adder,
)

POSITIONS: tuple[Position, ...] = ("learned", "rotary")
BELOW = 0.2
"""Song 4.3: with learned positions, less than this share of shorter sums is right."""
TESTS = 1000
"""Problems of each number of digits, as in the paper."""
PRINTED: dict[Position, tuple[float, ...]] = {
    "learned": (0.326, 0.080, 0.111, 0.099),
    "rotary": (0.356, 0.134, 0.200, 0.385),
}
"""Song D.3: the accuracy on 1, 2, 3 and 4 digits of models that were trained on 5 to 10."""


@one_thread()
def addition(settings: Settings) -> Outcome:
    """Accuracy by number of digits for every trained model."""
    task = SMALL if settings.small else PAPER
    rows = []
    for position in POSITIONS:
        for seed in range(task.seeds):
            place = trained_adder(settings, task, position, seed) / "model"
            model = load(place, **settings.loading_for(place))
            rows += accuracies(model, task, position, seed)
    return outcome(task, pd.DataFrame(rows))


def accuracies(model: torch.nn.Module, task: Task, position: Position, seed: int) -> list[dict[str, Any]]:
    """A row for every number of digits; in distribution, on held-out pairs."""
    rows: list[dict[str, Any]] = []
    for digits in task.tested:
        trained = task.shortest <= digits <= task.longest
        problems = draw_problems(task, HELD_OUT if trained else MEASURED, (digits,), TESTS, seed)
        right = float(exactly_right(model, problems).mean())
        rows.append(
            {"position": position, "seed": seed, "digits": digits, "trained": trained, "accuracy": right}
            | {"standard_error": sqrt(right * (1 - right) / TESTS)}
        )
    return rows


def outcome(task: Task, table: pd.DataFrame) -> Outcome:
    """The claims about accuracy; errors are standard errors over seeds and lengths."""
    by = table.groupby(["position", "digits"], sort=False)["accuracy"]
    means = by.agg(["mean", "std", "count"]).reset_index()
    means["standard_error"] = means.pop("std").fillna(0.0) / np.sqrt(means["count"])
    kind = np.select([table["trained"], table["digits"] < task.shortest], ["trained", "shorter"], "longer")
    by_region = table.assign(region=kind).groupby(["position", "region", "seed"], sort=False)["accuracy"]
    regions = by_region.mean().reset_index()
    claims, longer_sums = [], []
    lengths = f"{task.shortest} to {task.longest} digits"
    for position in POSITIONS:
        inside, inside_error = _mean(regions, position, "trained")
        claims.append(
            sized(
                f"accuracy on numbers of the trained lengths ({lengths}), {position} positions",
                0.99,
                inside,
                error=inside_error,
                place="Section 4.3: above 99 %",
            )
        )
        shorter, shorter_error = _mean(regions, position, "shorter")
        claims += [
            sized(
                f"accuracy on shorter numbers, {position} positions",
                float(np.mean(PRINTED[position])),
                shorter,
                error=shorter_error,
                place="Appendix D.3, mean over 1 to 4 digits",
                why=f"trained on {lengths} here, 5 to 10 in the paper; shorter is {_shorter(task)} here, 1 to 4 there",
            ),
            ordered(
                f"a model that adds numbers of the trained lengths fails on shorter ones, {position} positions",
                inside,
                shorter,
                error=sqrt(inside_error**2 + shorter_error**2),
                printed="above 99 % against less than 20 % (Section 4.3)",
            ),
        ]
        if position == "learned":
            claims.append(
                limited(
                    f"accuracy on shorter numbers stays below {BELOW:.0%}, {position} positions",
                    shorter,
                    BELOW,
                    above=False,
                    error=shorter_error,
                    printed="less than 20 % on average (Section 4.3)",
                )
            )
        longer, longer_error = _mean(regions, position, "longer")
        longer_sums.append(f"{longer:.1%} (± {longer_error:.1%}) with {position} positions")
    learned = (
        f"Of sums of longer numbers ({_longer(task)} digits), which the paper leaves out, are right: "
        f"{', '.join(longer_sums)}."
    )
    seeds = "; ".join(f"{position} positions {_each(regions, position)}" for position in POSITIONS)
    each = f"Seed by seed, the share of sums of the trained lengths that is right: {seeds}."
    figures = {"accuracy": _figure(task, means, table)}
    return Outcome({"accuracy": table, "means": means}, figures, claims, [learned, each])


def _each(regions: pd.DataFrame, position: str) -> str:
    """The accuracy of every seed in distribution: a mean would hide a seed that did not learn the task."""
    rows = (regions["position"] == position) & (regions["region"] == "trained")
    return ", ".join(f"{value:.1%}" for value in regions.loc[rows, "accuracy"])


def _mean(regions: pd.DataFrame, position: str, region: str) -> tuple[float, float]:
    """Mean over seeds and its standard error (0 for one seed)."""
    rows = (regions["position"] == position) & (regions["region"] == region)
    values = regions.loc[rows, "accuracy"].to_numpy()
    return float(values.mean()), float(values.std(ddof=1) / sqrt(len(values))) if len(values) > 1 else 0.0


def _shorter(task: Task) -> str:
    return _range([n for n in task.tested if n < task.shortest])


def _longer(task: Task) -> str:
    return _range([n for n in task.tested if n > task.longest])


def _range(lengths: list[int]) -> str:
    return f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"


def _figure(task: Task, means: pd.DataFrame, table: pd.DataFrame) -> go.Figure:
    """Bars are means over seeds, dots are seeds."""
    figure = go.Figure()
    for (position, part), color in zip(means.groupby("position", sort=False), ("#1f77b4", "#d62728"), strict=True):
        error = dict(array=part["standard_error"])
        look = dict(marker_color=color, opacity=0.75, offsetgroup=position, name=f"{position} positions")
        figure.add_bar(x=part["digits"], y=part["mean"], error_y=error, **look)
        side = -0.2 if position == POSITIONS[0] else 0.2
        each = table[table["position"] == position]
        dots = dict(color=color, size=7, line=dict(color="white", width=1))
        figure.add_scatter(x=each["digits"] + side, y=each["accuracy"], mode="markers", marker=dots, showlegend=False)
    figure.add_vrect(
        task.shortest - 0.5,
        task.longest + 0.5,
        fillcolor="lightgray",
        opacity=0.3,
        line_width=0,
        layer="below",
        annotation_text="trained lengths",
        annotation_position="top left",
    )
    figure.update_xaxes(title="digits of each number", dtick=1)
    figure.update_yaxes(title="share of sums that are exactly right", range=[-0.03, 1.12])
    figure.update_layout(barmode="group")
    return styled(figure, "Sums that are exactly right, by number of digits (dots: seeds)")


ADDITION = Experiment(
    name="song-addition",
    paper="Song",
    of="Section 4.3 and Appendix D.3",
    question="Does a transformer that adds numbers of the trained lengths also add shorter and longer ones?",
    run=addition,
    minutes=15.0,
    needs="no model; trains 4 layers of width 256 for 10,000 steps on 5 to 10 digits, 3 seeds of each kind of position",
)
