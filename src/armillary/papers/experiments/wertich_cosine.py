"""Wertich, §8.3: attention against the cosines of the embeddings, with learned and with random weights."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from armillary.figures.style import styled
from armillary.interventions.spectra import randomized
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings
from armillary.papers.experiments.wertich_claims import below, mean_error, over_models
from armillary.papers.experiments.wertich_prompts import NEEDS, Prompt, loaded, opened, prompts
from armillary.papers.experiments.wertich_weights import colors_of
from armillary.probe.attention_map import attention_map, layer_masses

MINIMAL = 0.3
"""A rank correlation below this counts as minimal: it explains less than a tenth of the variance."""


def cosine(settings: Settings) -> Outcome:
    """Rank correlation of a token's attention with its embedding cosines, by layer; and with random W_q, W_k."""
    rows = []
    for name, place in loaded(settings, also=("minilm",)).items():
        model, tokenizer = opened(settings, place)
        for number, prompt in enumerate(prompts(settings)):
            rows.append(_correlations(model, tokenizer, prompt, name, number, "learned"))
            with randomized(model, keep="spectrum", seed=number):
                rows.append(_correlations(model, tokenizer, prompt, name, number, "random bases"))
    correlations = pd.concat(rows, ignore_index=True)
    grouped = correlations.groupby(["model", "weights", "layer"], sort=False)["correlation"]
    table = grouped.agg(["mean", "sem"]).rename(columns={"mean": "correlation", "sem": "error"}).reset_index()
    names = list(dict.fromkeys(correlations["model"]))

    def pooled(name: str, weights: str, layers: int | None = None) -> tuple[float, float]:
        part = correlations[(correlations["model"] == name) & (correlations["weights"] == weights)]
        part = part if layers is None else part[part["layer"] < layers]
        return mean_error(part.groupby("prompt")["correlation"].mean().to_numpy())

    def minimal(name: str, says: str, weights: str, limit: float, printed: str) -> Claim:
        correlation, error = pooled(name, weights, 3)
        return below(says, limit, correlation, error=error, printed=printed)

    says = "attention has little to do with the cosines of the embeddings: rank correlation, layers 0 to 2"
    lost = "random weights keep no angle on average: the same with W_q and W_k between random bases"
    claims = [
        over_models({name: minimal(name, says, "learned", MINIMAL, "minimal (§8.3, Fig. 8.6)") for name in names}),
        over_models(
            {
                name: minimal(name, lost, "random bases", 0.1, "angles kept in the variance only (§6.3)")
                for name in names
            }
        ),
    ]
    first = {name: table[(table["model"] == name) & (table["weights"] == "learned")].iloc[0] for name in names}
    strongest = {name: _strongest(table, name) for name in names}
    learned = [
        "How minimal, and of which sign: in the first layer the correlation is "
        + ", ".join(f"{row['correlation']:+.2f} ± {row['error']:.1g} ({name})" for name, row in first.items())
        + "; its largest size is "
        + ", ".join(f"{row['correlation']:+.2f} in layer {row['layer']} ({name})" for name, row in strongest.items())
        + "; with the same spectra between random bases it is "
        + ", ".join(f"{pooled(name, 'random bases')[0]:+.2f} ({name})" for name in names)
        + " over all layers."
    ]
    return Outcome({"correlation": table}, {"correlation": _cosine_figure(table)}, claims, learned)


def _correlations(model: Any, tokenizer: Any, prompt: Prompt, name: str, number: int, weights: str) -> pd.DataFrame:
    attention = attention_map(model, tokenizer, prompt.text, level="token")
    table = layer_masses(attention)[["layer", "cosine_correlation"]].rename(
        columns={"cosine_correlation": "correlation"}
    )
    return table.assign(model=name, prompt=number, weights=weights)


def _strongest(table: pd.DataFrame, name: str) -> "pd.Series[Any]":
    part = table[(table["model"] == name) & (table["weights"] == "learned")]
    return part.iloc[int(part["correlation"].abs().to_numpy().argmax())]


def _cosine_figure(table: pd.DataFrame) -> go.Figure:
    figure = go.Figure()
    for name, color in colors_of(table["model"]).items():
        for weights, dash in (("learned", "solid"), ("random bases", "dot")):
            part = table[(table["model"] == name) & (table["weights"] == weights)]
            figure.add_scatter(
                x=part["layer"],
                y=part["correlation"],
                error_y=dict(array=part["error"], thickness=1),
                line=dict(color=color, dash=dash),
                name=f"{name}, {weights}",
            )
    figure.add_hline(0, line=dict(color="gray", width=1))
    figure.update_xaxes(title="layer", dtick=1).update_yaxes(title="rank correlation of attention and cosine")
    return styled(figure, "Attention against the cosines of the embeddings (Wertich, Figure 8.6)", height=420)


EXPERIMENTS = (
    Experiment(
        "wertich-cosine",
        "Wertich",
        "§8.3, Figure 8.6",
        "Does attention follow the cosines of the embeddings?",
        cosine,
        minutes=0.4,
        needs=NEEDS,
    ),
)
