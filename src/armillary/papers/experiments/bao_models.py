"""Bao's law on trained models (Figures 2 and 5): observed rho and entropy, and those predicted from eigenspectra."""

from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy.stats import spearmanr

from armillary.atlas.atlas import Atlas
from armillary.figures.style import styled
from armillary.lenses.localization import propagation_table
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, limited
from armillary.papers.experiments.material import atlas_of, corpora, models

SMALL = dict(models=("bundled-llama", "bundled-gpt2", "stories15M"), corpus="builtin:prose", sequences=16)
PAPER = dict(models=("openai-community/gpt2", "meta-llama/Llama-3.2-1B"), corpus="builtin:prose", sequences=256)
LENGTH = 128
STREAMS = ("attention", "lags")
COLUMNS = ("layer", "head", "entropy", "least_entropy", "mean_distance", "qk_fro", "xi", "eta", "r", "regime", "r_data")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def trained_models(settings: Settings) -> Outcome:
    """For every head: r, scale, entropy, mean distance, and rho by position, observed and predicted."""
    plan: dict[str, Any] = SMALL if settings.small else PAPER
    text = next(iter(corpora(settings, (plan["corpus"],), (plan["corpus"],)).values()))
    heads, places = [], []
    for name, model in models(settings, plan["models"], plan["models"]).items():
        atlas = atlas_of(settings, model, text, length=LENGTH, sequences=plan["sequences"], streams=STREAMS)
        heads.append(_heads(atlas, name))
        places.append(propagation_table(atlas).assign(model=name))
    all_heads, rho = pd.concat(heads, ignore_index=True), pd.concat(places, ignore_index=True)
    correlations = relations(all_heads, rho)
    by_layer = rho.groupby(["model", "layer", "place"], sort=False)[["observed", "predicted", "predicted_data"]].mean()
    regimes = all_heads.groupby(["model", "regime_data"]).size().rename("heads").reset_index()
    return Outcome(
        tables={
            "relations": correlations.round(4),
            "heads": all_heads.round(4),
            "rho_by_layer": by_layer.reset_index().round(4),
            "regimes": regimes,
        },
        figures={"distance": distance_figure(all_heads), "rho": rho_figure(rho)},
        claims=claims(correlations, all_heads),
        learned=learned(correlations, all_heads, rho),
    )


def _heads(atlas: Atlas, name: str) -> pd.DataFrame:
    table = atlas.heads
    heads = table[[column for column in (*COLUMNS, "eta_data", "regime_data") if column in table]].copy()
    scales = [layer.scale for layer in atlas.anatomy.layers]
    heads["strength"] = heads["qk_fro"] * [scales[layer] for layer in heads["layer"]]  # |W|_F / lambda
    heads.insert(0, "model", name)
    return heads


def relations(heads: pd.DataFrame, rho: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations over the heads of each model, for rho over all positions of all heads; error 1/sqrt(n - 1)."""
    rows = []
    for model, part in heads.groupby("model", sort=False):
        for what, x, y in (
            ("r_data and mean distance", "r_data", "mean_distance"),
            ("r and mean distance", "r", "mean_distance"),
            ("|W|_F / lambda and entropy", "strength", "entropy"),
            ("|r_data| and entropy", "r_data", "entropy"),
        ):
            values = part[x].abs() if what.startswith("|r") else part[x]
            rows.append(_correlation(str(model), what, values, part[y]))
        model_rho = rho[rho["model"] == model]
        for law in ("predicted", "predicted_data"):
            rows.append(_correlation(str(model), f"rho {law} and observed", model_rho[law], model_rho["observed"]))
            means = model_rho.groupby(["layer", "head"])[[law, "observed"]].mean()
            rows.append(_correlation(str(model), f"mean rho {law} and observed", means[law], means["observed"]))
    return pd.DataFrame(rows)


def _correlation(model: str, what: str, x: pd.Series, y: pd.Series) -> dict[str, Any]:
    known = x.notna() & y.notna()
    n = int(known.sum())
    value = float(spearmanr(x[known], y[known]).statistic) if n > 2 and x[known].nunique() > 1 else np.nan
    return {"model": model, "relation": what, "correlation": value, "error": 1 / sqrt(max(1, n - 1)), "heads": n}


def claims(related: pd.DataFrame, heads: pd.DataFrame) -> list[Claim]:
    judged = []
    by_relation = related.set_index(["model", "relation"])[["correlation", "error"]].T.to_dict()
    for model in heads["model"].unique():

        def against_zero(says: str, relation: str, sign: int, printed: str, why: str, model: str = model) -> Claim:
            value, error = by_relation[model, relation]["correlation"], by_relation[model, relation]["error"]
            return limited(
                f"{says} (rank correlation over heads): {model}",
                value,
                0.0,
                above=sign > 0,
                error=error,
                printed=printed,
                why=f"{why} was not tested",
            )

        judged += [
            against_zero(
                "Heads with tr(W) > 0 look late, with tr(W) < 0 early: r and mean distance go against each other",
                "r_data and mean distance",
                -1,
                "Lemma 2.1 and 2.2",
                "the law's tokens are a random walk without positions, a trained model's are not: whether that is why",
            ),
            against_zero(
                "Where the law (measured Sigma) says that more keys pass a signal, more do",
                "mean rho predicted_data and observed",
                1,
                "Equation (6)",
                "the law's tokens are a random walk, a trained model's are not: whether that is why",
            ),
            against_zero(
                "A smaller scale goes with a higher entropy",
                "|W|_F / lambda and entropy",
                -1,
                "A2, equation (10)",
                "whether it is that x differs in length and shape from layer to layer, which |W|_F does not see",
            ),
        ]
    return judged


def learned(related: pd.DataFrame, heads: pd.DataFrame, rho: pd.DataFrame) -> list[str]:
    def listed(relation: str) -> str:
        part = related[related["relation"] == relation]
        return ", ".join(f"{row.correlation:+.2f} ± {row.error:.2f} ({row.model})" for row in part.itertuples())

    ends = rho[rho["place"].isin([rho["place"].min(), rho["place"].max()])].groupby("place").mean(numeric_only=True)
    (old, new), (old_law, new_law) = ends["observed"], ends["predicted_data"]
    middle = (heads["r_data"].abs() > 2).mean()
    return [
        f"On trained models r = tr(W Sigma) / lambda and the mean distance of attention have rank correlation "
        f"{listed('r_data and mean distance')}, where Bao's law says negative; |r| > 2, the paper's sign of "
        f"localization, holds for {middle:.0%} of heads.",
        f"In trained models the newest sixteenth of keys passes a signal in {new:.0%} of cases and the oldest in "
        f"{old:.0%}, where the law of random walks with the measured Sigma says {new_law:.0%} and {old_law:.0%}.",
        f"Over the heads of trained models, the mean rho that the law predicts (measured Sigma) and the observed one "
        f"have rank correlation {listed('mean rho predicted_data and observed')}.",
    ]


def distance_figure(heads: pd.DataFrame) -> go.Figure:
    """Every head: mean distance and entropy against r and the scale."""
    panels = (
        ("r_data", "mean_distance", "r = tr(W Sigma) / lambda", "mean distance (tokens)"),
        ("strength", "entropy", "|W|_F / lambda", "entropy (nats)"),
    )
    figure = make_subplots(1, 2, horizontal_spacing=0.1)
    for color, (model, part) in zip(COLORS, heads.groupby("model", sort=False), strict=False):
        for col, (x, y, across, up) in enumerate(panels, start=1):
            figure.add_scatter(
                x=part[x],
                y=part[y],
                mode="markers",
                marker=dict(color=color, size=7, opacity=0.8),
                text=[f"{row.layer}.{row.head}" for row in part.itertuples()],
                name=str(model),
                legendgroup=str(model),
                showlegend=col == 1,
                row=1,
                col=col,
            )
            figure.update_xaxes(title=across, row=1, col=col).update_yaxes(title=up, row=1, col=col)
    figure.update_xaxes(type="log", col=2)
    figure.update_layout(legend=dict(orientation="h", y=-0.2))
    return styled(figure, "Heads of trained models: where they look, and their entropy, by the eigenspectrum")


def rho_figure(rho: pd.DataFrame) -> go.Figure:
    """rho by position of the key, mean over the heads of each model: observed and predicted."""
    styles = {"observed": "solid", "predicted": "dot", "predicted_data": "dash"}
    legend = {"observed": "observed", "predicted": "law, weights alone", "predicted_data": "law, measured Sigma"}
    figure = go.Figure()
    for color, (model, part) in zip(COLORS, rho.groupby("model", sort=False), strict=False):
        for column, dash in styles.items():
            curve = part.groupby("place")[column].mean()
            figure.add_scatter(
                x=np.asarray(curve.index),
                y=curve.round(4),
                name=f"{model}, {legend[column]}",
                line=dict(color=color, dash=dash),
            )
    figure.update_xaxes(title="place of the key, oldest 0 to newest 1").update_yaxes(title="rho", range=[0, 1.05])
    return styled(figure, "Which keys pass a signal in trained models, mean over heads")


EXPERIMENTS = (
    Experiment(
        name="bao-trained-models",
        paper="Bao",
        of="Figures 2 and 5, on trained models",
        question="Do the heads of trained models follow the law of random walks?",
        run=trained_models,
        minutes=0.5,
        needs="openai-community/gpt2, meta-llama/Llama-3.2-1B (the paper looks at no trained model)",
    ),
)
