"""Barbero's Tables 3 to 5 and Figures 5 to 7: what positional and semantic heads of trained models do."""

from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.stats import spearmanr

from armillary.anatomy.loading import load_with_tokenizer
from armillary.atlas.atlas import Atlas
from armillary.figures.rotary import token_usage
from armillary.figures.style import styled
from armillary.lenses.rotary import frequency_table
from armillary.papers.experiments.barbero_frequencies import PAPER, SMALL, head_norms, scanned
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, limited, ordered, sized
from armillary.papers.experiments.material import models
from armillary.probe.rotary_tokens import token_frequencies

MOST = 0.5
"""A head is diagonal (or previous-token, first-token) if more than this share of its attention goes there."""
POSITIONAL = ("self", "previous", "local")
"""Labels of heads that attend to a fixed distance, whatever the token."""
TEXT = "It's late, and I'm sure that she doesn't know where he's gone."
"""A text with apostrophes, as in Figure 7."""

DIAGONAL_BOUND = np.array([203.65, 483.97, 141.48, 130.71, 168.52, 122.31])
DIAGONAL = np.array([156.93, 383.00, 98.47, 92.15, 137.10, 90.71])
DIAGONAL_PREVIOUS = np.array([76.67, 82.13, 29.01, 45.33, 73.04, 55.25])
"""Table 3, tokens 2 to 7: bound |q||k| / sqrt(e), logit with the token itself, logit with the one before."""
PREVIOUS_BOUND = np.array([76.54, 79.13, 102.41, 61.34, 54.54, 56.62, 57.2])
PREVIOUS_SELF = np.array([3.29, 5.21, -1.46, 4.23, 4.61, 2.47, 3.08])
PREVIOUS = np.array([31.04, 35.31, 18.91, 19.72, 18.96, 17.46, 13.67])
"""Table 5, tokens 1 to 7, likewise for the previous-token head."""
WHY = "heads of small models; whether their size is why was not tested"


def positional_heads(settings: Settings) -> Outcome:
    """How close the logits of the best diagonal and previous-token head come to |q||k|, and by which frequencies."""
    atlases = scanned(settings)
    every, claims, learned = [], [], []
    for name, atlas in atlases.items():
        heads = _heads(atlas).assign(model=name)
        every.append(heads)
        claims += [*_tightness(name, heads), *_carriers(name, heads)]
        learned.append(_mean_mean(name, heads))
    table = pd.concat(every, ignore_index=True)
    name = list(atlases)[-1]
    place = models(settings, SMALL.models, PAPER.models)[name]
    return Outcome(
        tables={"heads": table.round(4)},
        figures={**_usage(settings, name, place, table[table["model"] == name]), "mean_mean": _mean_figure(table)},
        claims=claims,
        learned=learned,
    )


def _heads(atlas: Atlas) -> pd.DataFrame:
    """head_norms with the tightness of each head, and the slow frequencies' logits on the first key and on others."""
    table = frequency_table(atlas)
    slow = table[(table["turns"] < 1) & table["q_norm"].notna()].groupby(["layer", "head"])
    added = slow[["first_product", "other_product"]].sum().add_prefix("slow_").reset_index()
    own = atlas.heads[["layer", "head", "self_cosine", "previous_cosine"]]
    return head_norms(table, atlas).merge(own, on=["layer", "head"]).merge(added, on=["layer", "head"])


def _tightness(name: str, heads: pd.DataFrame) -> list[Claim]:
    """Tables 3 to 5: logit over bound, for the heads with most attention to themselves and to the token before."""
    diagonal = _most(heads, "self_mass")
    previous = _most(heads, "prev_mass")
    printed_ratios = {
        "self": float((DIAGONAL / DIAGONAL_BOUND).mean()),
        "self_previous": float((DIAGONAL_PREVIOUS / DIAGONAL_BOUND).mean()),
        "previous": float((PREVIOUS / PREVIOUS_BOUND).mean()),
        "previous_self": float((PREVIOUS_SELF / PREVIOUS_BOUND).mean()),
    }
    claims = []
    for head, mass, word, here, there, near, table in (
        (diagonal, "self_mass", "diagonal", "self", "previous", "self_previous", "Table 3"),
        (previous, "prev_mass", "previous-token", "previous", "self", "previous_self", "Table 5"),
    ):
        target_words = {"self": "itself", "previous": "the token before"}
        who = f"{name}, most {word} head ({_place(head)})"
        printed = f"{printed_ratios[here]:.2f} against {printed_ratios[near]:.2f} of the bound ({table})"
        says = f"{who}: logits with {target_words[here]} are nearer to |q||k| than logits with {target_words[there]}"
        if head[mass] < MOST:
            claims.append(_no_such_head(says, printed, f"no {word} head: at most {head[mass]:.2f} of the attention"))
            continue
        claims.append(ordered(says, float(head[f"{here}_cosine"]), float(head[f"{there}_cosine"]), printed=printed))
        says = f"{who}, attention there {head[mass]:.2f}: logit with {target_words[here]} over the bound"
        claims.append(
            sized(
                says,
                printed_ratios[here],
                float(head[f"{here}_cosine"]),
                place=f"mean of {table}",
                why=WHY,
                signed=True,
            )
        )
    return claims


def _no_such_head(says: str, printed: str, found: str) -> Claim:
    return Claim(
        says, printed, found, "undecided", f"no head gives more than {MOST} there: there is nothing to compare"
    )


def _carriers(name: str, heads: pd.DataFrame) -> list[Claim]:
    """Figure 6: positional heads use fast frequencies; Figure 7: slow ones separate the first token from the others."""
    positional = heads["label"].isin(POSITIONAL)
    claims = []
    if 1 < positional.sum() < len(heads) - 1:
        inside, outside = heads.loc[positional, "fast_logit_share"], heads.loc[~positional, "fast_logit_share"]
        claims.append(
            ordered(
                f"{name}: positional heads rely on fast frequencies more than others do (share of their logits)",
                float(inside.mean()),
                float(outside.mean()),
                error=float(sqrt(inside.var(ddof=1) / len(inside) + outside.var(ddof=1) / len(outside))),
                printed="mostly the very highest frequencies (Figure 6)",
                why=WHY,
            )
        )
        claims.append(
            limited(
                f"{name}: the logits of positional heads are mostly made by fast frequencies (their share)",
                float(inside.mean()),
                0.5,
                above=True,
                error=float(inside.std(ddof=1) / sqrt(len(inside))),
                printed="mostly the very highest frequencies (Figure 6)",
                why="'positional' includes local heads, which look at several tokens; not tested whether that is why",
            )
        )
    sink = _most(heads, "first_mass")
    says = f"{name}: slow frequencies raise the first token above others in the head that looks there most"
    printed = "+24.9 against -85.5 before the factor 1/16 (Appendix E.1)"
    if sink["first_mass"] < MOST:
        claims.append(_no_such_head(says, printed, f"no such head: at most {sink['first_mass']:.2f} of the attention"))
    else:
        first, other = (float(sink[f"slow_{key}_product"]) for key in ("first", "other"))
        claims.append(ordered(f"{says} ({_place(sink)})", first, other, printed=printed))
    return claims


def _mean_mean(name: str, heads: pd.DataFrame) -> str:
    """The share, in positional heads, of the term that Theorem 5.3's construction uses."""
    positional = heads["label"].isin(POSITIONAL)
    rank = float(spearmanr(heads["share_mean_mean"], heads["self_mass"] + heads["prev_mass"]).statistic)
    inside, outside = heads.loc[positional, "share_mean_mean"], heads.loc[~positional, "share_mean_mean"]
    return (
        f"The construction of Theorem 5.3, one query and one key for all tokens, is the rotated mean-mean term of the "
        f"logits. In {name} it is {inside.mean():.0%} of the logits of {len(inside)} positional heads and "
        f"{outside.mean():.0%} of the others', and its rank correlation with attention on self and previous token is "
        f"{rank:.2f}"
        + (": positional heads consist of it more than others do." if inside.mean() > outside.mean() else ".")
    )


def _usage(settings: Settings, name: str, place: str, heads: pd.DataFrame) -> dict[str, go.Figure]:
    """Chunk norms token by token, of the best previous-token head and the strongest first-token head."""
    model, tokenizer = load_with_tokenizer(place, **settings.loading_for(place))
    figures = {}
    for key, column, words in (
        ("previous_head", "prev_mass", "looks most at the token before"),
        ("first_head", "first_mass", "looks most at the first token"),
    ):
        head = _most(heads, column)
        usage = token_frequencies(model, tokenizer, int(head["layer"]), int(head["head"]), TEXT)
        norms = {"queries": usage.q.round(3), "keys": usage.k.round(3)}
        title = f"{name}, head {_place(head)}, which {words}: norms of its chunks"
        figures[key] = token_usage(norms, list(usage.tokens), title)
    return figures


def _mean_figure(table: pd.DataFrame) -> go.Figure:
    figure = go.Figure()
    for color, (name, group) in zip(
        ("#3b528b", "#5ec962", "#d95f02"), table.groupby("model", sort=False), strict=False
    ):
        names = [f"{_place(head)}: {head['label']}" for _, head in group.iterrows()]
        figure.add_scatter(
            x=group["share_mean_mean"].round(4),
            y=(group["self_mass"] + group["prev_mass"]).round(4),
            mode="markers",
            name=str(name),
            marker=dict(color=color, size=8),
            text=names,
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_xaxes(title="share of the rotated mean-mean term in the logits")
    figure.update_yaxes(title="attention on self and previous token")
    return styled(figure, "Heads that look near are made of what all tokens share, rotated")


def _most(heads: pd.DataFrame, column: str) -> "pd.Series[Any]":
    """The head with the largest value of a column."""
    return heads.iloc[int(heads[column].to_numpy().argmax())]


def _place(head: "pd.Series[Any]") -> str:
    return f"{int(head['layer'])}.{int(head['head'])}"


EXPERIMENTS = (
    Experiment(
        name="barbero-heads",
        paper="Barbero",
        of="Figures 5 to 7, Tables 3 to 5",
        question="How near do positional heads come to the bound |q||k|, and which frequencies and terms carry them?",
        run=positional_heads,
        minutes=1.0,
        needs="google/gemma-7b and meta-llama/Llama-3.1-8B on lines of Shakespeare",
        quick=True,
    ),
)
