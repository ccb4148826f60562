"""Bao's Figure 7: which tokens pass a signal while a model trains, with LocAteR and without."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.figures.style import POSITIVE, styled
from armillary.lenses.localization import propagation_table
from armillary.papers.experiments.bao_locater import COLORS
from armillary.papers.experiments.bao_runs import (
    LOCALIZING,
    LOCATER,
    NEEDS,
    NONE,
    Plan,
    ends,
    over_time,
    plan_of,
    run_config,
    train_all,
    train_one,
)
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered
from armillary.papers.experiments.material import atlas_of

SHAPE = (1, 128)
SHOWN = (NONE, LOCATER, LOCALIZING)
SEQUENCES = 32


def stripes(settings: Settings) -> Outcome:
    """rho over training steps from the logs of all seeds; by position of the key at a few steps, for one seed."""
    plan = plan_of(settings)
    runs = train_all(settings, plan, (SHAPE,), SHOWN)
    logged, final = over_time(runs, "rho"), ends(runs)
    places = _places(settings, plan)
    spread = _spread(places)
    return Outcome(
        tables={"rho_over_steps": logged.round(4), "rho_by_place": places.round(4), "spread": spread.round(4)},
        figures={"stripes": stripes_figure(places), "rho": rho_figure(logged)},
        claims=claims(final, spread),
        learned=learned(final, spread),
    )


def _places(settings: Settings, plan: Plan) -> pd.DataFrame:
    """Per penalty and step: rho by position. Without a schedule, a run of n steps is the start of a longer one."""
    steps = sorted({*plan.looks, plan.steps_of(SHAPE)})
    parts = []
    for penalty in SHOWN:
        for step in steps:
            config = run_config(settings, plan, SHAPE, penalty, seed=0, steps=step)
            folder = train_one(settings, SHAPE, penalty, 0, config)
            text, length = config.data.corpus, plan.length
            atlas = atlas_of(
                settings, str(folder / "model"), text, length=length, sequences=SEQUENCES, streams=("attention",)
            )
            rho = propagation_table(atlas).groupby("place")[["observed", "predicted"]].mean().reset_index()
            parts.append(rho.assign(penalty=penalty, step=step))
    return pd.concat(parts, ignore_index=True)


def _spread(places: pd.DataFrame) -> pd.DataFrame:
    """Per penalty and step: mean of rho over positions, and (max - min) / max (0: uniform)."""
    rows = []
    for (penalty, step), part in places.groupby(["penalty", "step"], sort=False):
        rho = part["observed"].to_numpy()
        gap = float((rho.max() - rho.min()) / max(rho.max(), 1e-12))
        rows.append({"penalty": penalty, "step": step, "rho": float(rho.mean()), "spread": gap})
    return pd.DataFrame(rows)


def claims(final: pd.DataFrame, spread: pd.DataFrame) -> list[Claim]:
    last = spread[spread["step"] == spread["step"].max()].set_index("penalty")["spread"]
    rho = {name: final[final["penalty"] == name].sort_values("seed")["rho"].to_numpy() for name in SHOWN}
    gaps = rho[NONE] - rho[LOCATER]
    uniform = "the target tr(W) = 1 is r = 1 / lambda = 0.09: by the law nothing localizes, rho is near 1 (LEDGER L30)"
    return [
        ordered(
            "With LocAteR (kappa2 = 1) rho has stripes, without it is uniform: (max - min) / max over places with, and "
            "without (one seed)",
            float(last[LOCATER]),
            float(last[NONE]),
            printed="Figure 7: stripes above, uniform below",
            why=uniform,
        ),
        ordered(
            "With LocAteR fewer tokens pass a signal: mean rho without, and with (all seeds)",
            float(rho[NONE].mean()),
            float(rho[LOCATER].mean()),
            error=float(gaps.std(ddof=1) / np.sqrt(len(gaps))),
            printed="Figure 7, Section 7",
            why=uniform,
        ),
    ]


def learned(final: pd.DataFrame, spread: pd.DataFrame) -> list[str]:
    means = final.groupby("penalty")[["rho", "r"]].mean().T.to_dict()
    last = spread[spread["step"] == spread["step"].max()].set_index("penalty")["spread"].to_dict()
    changes = "; ".join(
        f"{name}: r = {means[name]['r']:.2f}, mean rho {means[name]['rho']:.2f}, spread over places {last[name]:.2f}"
        for name in SHOWN
    )
    return [
        f"Which keys pass a signal after {int(spread['step'].max())} steps at one layer, width 128 ({changes}; "
        "spreads are of one seed)."
    ]


def stripes_figure(places: pd.DataFrame) -> go.Figure:
    """rho by position of the key (y) and step (x) for each penalty: horizontal stripes are localized attention."""
    figure = make_subplots(1, len(SHOWN), subplot_titles=SHOWN, shared_yaxes=True, horizontal_spacing=0.03)
    for col, penalty in enumerate(SHOWN, start=1):
        grid = places[places["penalty"] == penalty].pivot(index="place", columns="step", values="observed")
        figure.add_heatmap(
            z=grid.to_numpy().round(4),
            x=[str(step) for step in grid.columns],
            y=grid.index.to_numpy().round(4),
            zmin=0,
            zmax=1,
            colorscale=POSITIVE,
            showscale=col == len(SHOWN),
            colorbar=dict(title="rho"),
            row=1,
            col=col,
        )
    figure.update_xaxes(title="steps trained", type="category").update_yaxes(title="place of the key, 0 oldest", col=1)
    return styled(figure, "Which keys pass a signal while a model trains (1 layer, width 128)", height=420, width=1000)


def rho_figure(logged: pd.DataFrame) -> go.Figure:
    """Share of keys that pass a signal at every snapshot, mean and standard error over seeds."""
    figure = go.Figure()
    for penalty, part in logged.groupby("penalty", sort=False):
        figure.add_scatter(
            x=part["step"],
            y=part["mean"].round(4),
            error_y=dict(array=part["sem"].round(4), thickness=1),
            mode="lines+markers",
            name=str(penalty),
            line_color=COLORS[str(penalty)],
        )
    figure.update_xaxes(title="step").update_yaxes(title="share of keys that pass a signal (rho)", range=[0, 1.05])
    return styled(figure, "rho over training, mean and standard error over seeds (1 layer, width 128)")


EXPERIMENTS = (
    Experiment(
        name="bao-rho-training",
        paper="Bao",
        of="Figure 7",
        question="Which tokens pass a signal while a model trains, with LocAteR and without?",
        run=stripes,
        minutes=1.5,
        needs=NEEDS,
    ),
)
