"""Bao's Figures 6 and 8 to 12: does LocAteR shrink the eigenspectrum, raise entropy, and improve the model?"""

from math import log, sqrt

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.figures.style import styled
from armillary.papers.experiments.bao_runs import (
    FIGURES,
    LOCALIZING,
    LOCATER,
    NEEDS,
    NONE,
    PENALTIES,
    SCALE_ONLY,
    Trained,
    ends,
    over_time,
    plan_of,
    train_all,
)
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered
from armillary.theory.localization import locater_minimizer

MEASURES = ("held_out_loss", "entropy", "eigen_scale", "eigen_mean", "r", "rho")
COLORS = {NONE: "#444444", SCALE_ONLY: "#E69F00", LOCATER: "#0072B2", LOCALIZING: "#009E73"}
OTHERS = ("#CC79A7", "#D55E00", "#56B4E9")
SMALLER = "few steps at a higher rate, pre-norm in place of post-norm, another vocabulary (not tested: which matters)"


def differences(runs: pd.DataFrame, against: str) -> pd.DataFrame:
    """Each penalty minus `against`, paired by shape and seed: mean and its standard error over seeds."""
    rows = []
    base = runs[runs["penalty"] == against].set_index(["layers", "width", "seed"])
    for (layers, width, penalty), part in runs.groupby(["layers", "width", "penalty"], sort=False):
        if penalty == against:
            continue
        pairs = part.set_index(["layers", "width", "seed"])
        row = {"layers": layers, "width": width, "penalty": penalty, "against": against}
        for measure in MEASURES:
            gaps = pairs[measure] - base.loc[pairs.index, measure]
            row |= {measure: gaps.mean(), f"{measure}_error": gaps.std(ddof=1) / sqrt(len(gaps))}
        rows.append(row)
    return pd.DataFrame(rows)


def compared(
    runs: pd.DataFrame, says: str, measure: str, higher: str, lower: str, *, printed: str, why: str = ""
) -> Claim:
    """The claim that `measure` is higher with penalty `higher` than with `lower`, paired by shape and seed."""
    by_penalty = {
        name: runs[runs["penalty"] == name].set_index(["layers", "width", "seed"])[measure] for name in (higher, lower)
    }
    gaps = by_penalty[higher] - by_penalty[lower]
    error = float(gaps.std(ddof=1)) / sqrt(len(gaps))
    return ordered(
        says, float(by_penalty[higher].mean()), float(by_penalty[lower].mean()), error=error, printed=printed, why=why
    )


def locater(settings: Settings) -> Outcome:
    """All shapes, penalties and seeds; claims (B), (C), (D) of every figure, and of kappa2 alone over all shapes."""
    plan = plan_of(settings)
    trained = train_all(settings, plan, plan.shapes, plan.penalties)
    runs = ends(trained)
    gaps = pd.concat([differences(runs, NONE), differences(runs, SCALE_ONLY)], ignore_index=True)
    return Outcome(
        tables={"runs": runs.round(5), "differences": gaps.round(5)},
        figures={"training": training_figure(trained), "losses": losses_figure(differences(runs, NONE))},
        claims=claims(runs),
        learned=learned(runs, plan.length),
    )


def claims(runs: pd.DataFrame) -> list[Claim]:
    return [*_claims_by_shape(runs), *_claims_of_kappa(runs)]


def _claims_by_shape(runs: pd.DataFrame) -> list[Claim]:
    """LocAteR against no regularizer, for each shape of model that was trained."""
    claims = []
    for (layers, width), figure in FIGURES.items():
        part = runs[(runs["layers"] == layers) & (runs["width"] == width)]
        if part.empty:
            continue
        who = f"{layers} layer{'s' * (layers > 1)}, width {width}"
        claims += [
            compared(
                part,
                f"LocAteR (kappa1 = 100, kappa2 = 1) shrinks the eigenspectrum's scale: {who}",
                "eigen_scale",
                NONE,
                LOCATER,
                printed=f"{figure} B: it shrinks",
            ),
            compared(
                part,
                f"LocAteR raises attention entropy (nats): {who}",
                "entropy",
                LOCATER,
                NONE,
                printed=f"{figure} C: it rises",
            ),
            compared(
                part,
                f"LocAteR improves the held-out loss (nats a token): {who}",
                "held_out_loss",
                NONE,
                LOCATER,
                printed=f"{figure} D: perplexity improves",
                why=f"{SMALLER}; {int(part['steps'].iloc[0])} steps",
            ),
        ]
    return claims


def _claims_of_kappa(runs: pd.DataFrame) -> list[Claim]:
    """A stronger kappa2, over all shapes; and whether LocAteR localizes."""
    pushed = {width: 100 * locater_minimizer(100.0, 1.0, width) for width in (32, 128)}
    pulled = ", ".join(f"{w:.2f}/100 at d = {width}" for width, w in pushed.items())
    kappa = "kappa2 = 1 against 0 at kappa1 = 100, all shapes"
    return [
        compared(
            runs,
            f"A stronger kappa2 shrinks the scale: {kappa}",
            "eigen_scale",
            SCALE_ONLY,
            LOCATER,
            printed="Figures 6, 8 to 12 B",
            why=f"the penalty's minimum is W = 0 for kappa2 = 0 and w I, w = {pulled}, for kappa2 = 1: no spread in "
            "either (LEDGER L31)",
        ),
        compared(
            runs,
            f"A stronger kappa2 raises entropy: {kappa}",
            "entropy",
            LOCATER,
            SCALE_ONLY,
            printed="Figures 6, 8 to 12 C",
            why="kappa2 = 0 drives W to 0, where attention is uniform and entropy the largest there is",
        ),
        compared(
            runs,
            f"A stronger kappa2 improves the held-out loss: {kappa}",
            "held_out_loss",
            SCALE_ONLY,
            LOCATER,
            printed="Figures 6, 8 to 12 D",
            why=SMALLER,
        ),
        compared(
            runs,
            "LocAteR localizes attention: the share of keys that pass a signal falls, all shapes",
            "rho",
            NONE,
            LOCATER,
            printed="Sections 6 and 7",
            why="the target tr(W) = 1 is r = 1 / lambda, far from |r| > 2 where rho is a band (LEDGER L30): attention "
            "becomes uniform",
        ),
    ]


def learned(runs: pd.DataFrame, length: int) -> list[str]:
    means = runs.groupby("penalty")[list(MEASURES)].mean().T.to_dict()
    uniform = sum(log(seen) for seen in range(2, length + 1)) / (length - 1)  # the first token sees only itself

    def gap(one: str, other: str) -> str:
        index = ["layers", "width", "seed"]
        values = [runs[runs["penalty"] == name].set_index(index)["held_out_loss"] for name in (one, other)]
        apart = values[0] - values[1]
        return f"{apart.mean():+.3f} ± {apart.std(ddof=1) / sqrt(len(apart)):.3f}"

    return [
        f"With LocAteR's printed target r = tr(W) / lambda ends at {means[LOCATER]['r']:.2f} (|r| > 2 localizes), "
        f"{means[LOCATER]['rho']:.0%} of keys pass a signal (without it {means[NONE]['rho']:.0%}) and entropy is "
        f"{means[LOCATER]['entropy']:.2f} nats (without it {means[NONE]['entropy']:.2f}, uniform attention "
        f"{uniform:.2f}); the held-out loss changes by {gap(LOCATER, NONE)} nats, and by {gap(SCALE_ONLY, NONE)} where "
        "W is penalized to zero, so that no head can tell keys apart.",
        f"With a target that localizes by the paper's own law (5 lambda; r ends at {means[LOCALIZING]['r']:.1f}) "
        f"entropy is {means[LOCALIZING]['entropy']:.2f} nats, {means[LOCALIZING]['rho']:.0%} of keys pass a signal, "
        f"and the held-out loss changes by {gap(LOCALIZING, NONE)} nats.",
    ]


def _color(penalty: str) -> str:
    return COLORS.get(penalty) or OTHERS[list(PENALTIES).index(penalty) % len(OTHERS)]


def training_figure(runs: list[Trained]) -> go.Figure:
    """Scale, entropy and held-out loss over the steps, mean over seeds, a column for every shape."""
    panels = (("eigen_scale", "scale of W"), ("entropy", "entropy (nats)"), ("held_out", "held-out loss (nats)"))
    shapes = list(dict.fromkeys(run.shape for run in runs))
    titles = [f"{FIGURES.get(shape, '')}: {shape[0]} x {shape[1]}" for shape in shapes]
    figure = make_subplots(
        len(panels),
        len(shapes),
        column_titles=titles,
        shared_xaxes=True,
        shared_yaxes=True,
        vertical_spacing=0.04,
        horizontal_spacing=0.015,
    )
    for row, (measure, title) in enumerate(panels, start=1):
        table = over_time(runs, measure)
        for (layers, width, penalty), part in table.groupby(["layers", "width", "penalty"], sort=False):
            column = shapes.index((int(str(layers)), int(str(width)))) + 1
            figure.add_scatter(
                x=part["step"],
                y=part["mean"].round(6),
                name=str(penalty),
                legendgroup=str(penalty),
                showlegend=row == 1 and column == 1,
                line_color=_color(str(penalty)),
                row=row,
                col=column,
            )
        figure.update_yaxes(title=title, row=row, col=1)
    figure.update_yaxes(type="log", exponentformat="power", row=1).update_xaxes(title="step", row=len(panels))
    figure.update_layout(legend=dict(orientation="h", y=-0.1))
    return styled(figure, "LocAteR over training (layers x width; mean over seeds)", height=620, width=1100)


def losses_figure(gaps: pd.DataFrame) -> go.Figure:
    """Change of the held-out loss by each penalty, with two standard errors over seeds; below 0 is better."""
    figure = go.Figure()
    for penalty, part in gaps.groupby("penalty", sort=False):
        figure.add_scatter(
            x=[f"{row.layers} x {row.width}" for row in part.itertuples()],
            y=part["held_out_loss"].round(4),
            error_y=dict(array=(2 * part["held_out_loss_error"]).round(4)),
            mode="markers",
            name=str(penalty),
            marker=dict(color=_color(str(penalty)), size=9),
        )
    figure.add_hline(0, line_color="#888")
    figure.update_xaxes(title="layers x width").update_yaxes(title="held-out loss minus that without a penalty (nats)")
    figure.update_layout(scattermode="group", scattergap=0.5)
    return styled(figure, "What LocAteR changes in the held-out loss (below 0: better; bars: two standard errors)")


EXPERIMENTS = (
    Experiment(
        name="bao-locater",
        paper="Bao",
        of="Figures 6 and 8 to 12",
        question="Does LocAteR shrink the eigenspectrum of W_QK, raise entropy and improve models of 1, 3, 6 layers?",
        run=locater,
        minutes=20.0,
        needs=NEEDS,
    ),
)
