"""Position in rotary models: the mean of the attention input, which the rotation turns into a function of distance.

Without rotation, the product of two constant vectors is constant and has no effect. Rotated by their positions, it is a
function of distance alone. Song and Zhong drop the mean; this experiment measures its effect.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Bool, Float
from plotly.subplots import make_subplots

from armillary.anatomy.description import Anatomy
from armillary.anatomy.loading import load
from armillary.anatomy.source import describe
from armillary.atlas.atlas import Atlas
from armillary.figures.style import styled
from armillary.lenses.constituents import means_of
from armillary.observe.rebuild import parts_of_queries_and_keys, position_bias
from armillary.observe.view import grouped_products
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered
from armillary.papers.experiments.song_reading import NEEDS, chosen_models, home, read, rotary

Maps = Float[np.ndarray, "head query key"]
PARTS = {"mean": "rotated mean", "pos": "positional vectors", "content": "content that is alike nearby"}
COLORS = {"mean": "#d1495b", "pos": "#3b528b", "content": "#9aa0a6", "logits": "black"}
LITTLE = 0.1
"""A share of the logits below this is 'little effect'."""


@dataclass(frozen=True)
class MeanLogits:
    """One layer: the mean over texts of its logits at every pair of positions, as a sum of three parts.

    mean: the mean with itself; pos: every term with a positional vector and no content (and the bias, if any); content:
    the rest, E[cvec_i W cvec_j], which is not zero since nearby tokens are similar.
    """

    logits: Maps
    mean: Maps
    pos: Maps

    @property
    def content(self) -> Maps:
        return np.asarray(self.logits - self.mean - self.pos)

    @property
    def visible(self) -> Bool[np.ndarray, "query key"]:
        return np.tril(np.ones(self.logits.shape[1:], dtype=bool))


def mean_logits(atlas: Atlas, anatomy: Anatomy, layer: int) -> MeanLogits:
    """The parts of a layer's mean logits by position (by cells of positions in sequences longer than 128)."""
    means, skip = means_of(atlas), atlas.settings["skip"]
    here, weights = anatomy.layers[layer], anatomy.weights(layer)
    positions = torch.arange(means.pos.shape[1])
    parts = (means.mean[layer][None, None], means.pos[layer][None])
    q, k = parts_of_queries_and_keys(here, weights, parts, positions)
    mm, mp, pm, pp = ((grouped_products(a, b)[0] * (here.scale or 1.0))[:, skip:, skip:].double() for a in q for b in k)
    bias = position_bias(here, weights, positions)
    added = torch.zeros_like(mm) if bias is None else bias.reshape(-1, *bias.shape[-2:])[:, skip:, skip:].double()
    logits = atlas.group("constituents")["mean_logits"].to_numpy()[layer]
    to_cell = cell_means(mm.shape[1], logits.shape[-1])
    mean, pos = (to_cell @ term.numpy() @ to_cell.T for term in (mm, mp + pm + pp + added))
    return MeanLogits(logits, mean, pos)


def cell_means(length: int, cells: int) -> Float[np.ndarray, "cell position"]:
    """Means over cells of positions, those of the atlas's grid; the identity if each position is a cell."""
    owner = np.arange(length) * cells // length
    members = (owner[None, :] == np.arange(cells)[:, None]).astype(float)
    return np.asarray(members / members.sum(1, keepdims=True))


def row_centered(maps: Maps, visible: Bool[np.ndarray, "query key"]) -> Maps:
    """Each row minus its mean over visible keys; zero for keys that are not visible."""
    mean = np.where(visible, maps, 0.0).sum(-1, keepdims=True) / visible.sum(-1, keepdims=True)
    return np.where(visible, maps - mean, 0.0)


def positional_shares(parts_of_logits: MeanLogits) -> dict[str, Float[np.ndarray, "head"]]:
    """share of a part = sum(part * B) / sum(B * B), B the mean logits row-centered over visible keys; they add to 1."""
    centered = row_centered(parts_of_logits.logits, parts_of_logits.visible)
    total = np.square(centered).sum((1, 2))
    parts = {"mean": parts_of_logits.mean, "pos": parts_of_logits.pos, "content": parts_of_logits.content}
    shares = {
        name: (row_centered(part, parts_of_logits.visible) * centered).sum((1, 2)) / total
        for name, part in parts.items()
    }
    return {**shares, "variation": total / parts_of_logits.visible.sum()}


def mean_distance(maps: Maps, visible: Bool[np.ndarray, "query key"]) -> Float[np.ndarray, "head"]:
    """The mean distance of attention with these logits."""
    logits = np.where(visible, maps, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    place = np.arange(maps.shape[-1])
    return np.asarray((weights * (place[:, None] - place[None, :])).sum(-1).mean(-1))


def by_lag(maps: Float[np.ndarray, "query key"]) -> Float[np.ndarray, "lag"]:
    """The mean over queries by distance of the key, for the nearer half of the distances."""
    return np.array([np.diagonal(maps, -lag).mean() for lag in range(len(maps) // 2)])


def rank_correlation(a: pd.Series, b: pd.Series) -> float:
    """Spearman's; NaN if one of the two is constant over heads (a mean without rotation)."""
    if min(np.ptp(a.to_numpy()), np.ptp(b.to_numpy())) < 1e-9:
        return np.nan
    return float(a.corr(b, method="spearman"))


def rotary_mean(settings: Settings) -> Outcome:
    """Shares of the positional variation of the logits, and of all of it, by head; a curve over distance."""
    rows, curves, claims = [], [], []
    for name, path in chosen_models(settings).items():
        atlas = read(settings, path, home(settings))
        anatomy = describe(load(path, **settings.loading_for(path)))
        heads = iter(atlas.heads.sort_values(["layer", "head"]).to_dict("records"))
        head_rows: list[dict[str, object]] = []
        for layer in anatomy.layers:
            layer_logits = mean_logits(atlas, anatomy, layer.index)
            shares = positional_shares(layer_logits)
            distances = {
                part: mean_distance(getattr(layer_logits, part), layer_logits.visible) for part in ("mean", "pos")
            }
            for head in range(layer.heads):
                row = next(heads)
                head_rows.append(
                    {
                        "model": name,
                        "rotary": rotary(atlas),
                        "layer": layer.index,
                        "head": head,
                        "variation": shares["variation"][head],
                        **{f"positional_{part}": shares[part][head] for part in PARTS},
                        "whole_mean": row["share_mean_mean"],
                        "whole_pos": row["share_mean_pos"] + row["share_pos_mean"] + row["share_pos_pos"],
                        "whole_content": row["content_share"],
                        "mean_distance": row["mean_distance"],
                        **{f"distance_from_{part}": values[head] for part, values in distances.items()},
                    }
                )
        rows += head_rows
        table = pd.DataFrame(head_rows)
        curves.append(_curves(atlas, anatomy, table, name))
        claims += _beside_the_paper(name, table)
    heads_table, lags = pd.DataFrame(rows), pd.concat(curves, ignore_index=True)
    summary = pd.DataFrame(
        [_summary(str(name), head_rows) for name, head_rows in heads_table.groupby("model", sort=False)]
    )
    figures = {"shares": _shares_figure(heads_table), "by_distance": _lag_figure(lags)}
    return Outcome({"models": summary, "heads": heads_table, "by_distance": lags}, figures, claims, _learned(summary))


def _curves(atlas: Atlas, anatomy: Anatomy, table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The head whose logits vary most with position, by distance: every part minus its mean over these distances."""
    best = table.sort_values("variation").iloc[-1]
    layer, head = int(best["layer"]), int(best["head"])
    layer_logits = mean_logits(atlas, anatomy, layer)
    lines = {part: by_lag(getattr(layer_logits, part)[head]) for part in ("logits", *PARTS)}
    return pd.DataFrame(
        {
            "model": name,
            "layer": layer,
            "head": head,
            "distance": np.arange(len(lines["logits"])),
            **{part: line - line.mean() for part, line in lines.items()},
        }
    )


def _summary(name: str, heads: pd.DataFrame) -> dict[str, object]:
    """Means over heads; of the positional variation also pooled, so that heads that vary more count more."""
    weights = heads["variation"] / heads["variation"].sum()
    return {
        "model": name,
        "rotary": bool(heads["rotary"].iloc[0]),
        **{f"positional_{part}": float((heads[f"positional_{part}"] * weights).sum()) for part in PARTS},
        **{f"positional_{part}_mean_of_heads": heads[f"positional_{part}"].mean() for part in PARTS},
        **{column: heads[column].mean() for column in ("whole_mean", "whole_pos", "whole_content")},
        **{
            f"distance_told_by_{part}": rank_correlation(heads["mean_distance"], heads[f"distance_from_{part}"])
            for part in ("mean", "pos")
        },
    }


def _beside_the_paper(name: str, heads: pd.DataFrame) -> list[Claim]:
    summary = _summary(name, heads)
    share = float(heads["whole_mean"].mean())
    turned = bool(heads["rotary"].iloc[0])
    why = "under rotation the mean's product with itself is a function of distance" if turned else ""
    return [
        Claim(
            f"the global mean has little effect (share of the mean-mean term in the logits, mean over heads; little: "
            f"below {LITTLE:.0%}), {name}",
            "'little effect on interpretations' (E.2)",
            f"{share:.1%}",
            "same direction" if abs(share) < LITTLE else "differs",
            "" if abs(share) < LITTLE else why,
        ),
        ordered(
            f"position enters the logits through positional vectors rather than the mean (share of the logits' "
            f"variation with position), {name}",
            float(summary["positional_pos"]),  # type: ignore[arg-type]
            float(summary["positional_mean"]),  # type: ignore[arg-type]
            printed="P W P' is 'an important—often dominant—constituent' (section 4.2)",
            why=why,
        ),
    ]


def _learned(summary: pd.DataFrame) -> list[str]:
    sentences = []
    turned, still = summary[summary["rotary"]], summary[~summary["rotary"]]
    if len(turned):
        shares = "; ".join(
            f"{row.model}: {row.positional_mean:.0%} of it from the rotated mean, {row.positional_pos:.0%} from "
            f"positional vectors, {row.positional_content:.0%} from content that is alike nearby"
            for row in turned.itertuples()
        )
        carries = bool((turned["positional_mean"] > 0.5).all())
        sentences.append(
            ("In these rotary models the carrier of position is the rotated mean. " if carries else "")
            + f"Of how the mean logits of rotary models vary with position (shares add to 100% and may be negative), "
            f"{shares}."
            + "".join(
                f" In {row.model}, which adds learned positions: {row.positional_mean:.0%} and "
                f"{row.positional_pos:.0%}."
                for row in still.itertuples()
            )
        )
        whole = "; ".join(f"{row.model} {row.whole_mean:.0%} and {row.whole_pos:.0%}" for row in turned.itertuples())
        order = "; ".join(
            f"{row.model} {row.distance_told_by_mean:.2f} and {row.distance_told_by_pos:.2f}"
            for row in turned.itertuples()
        )
        sentences.append(
            "Of the whole logits, content included, rotated mean and positional vectors make (mean over heads): "
            f"{whole}. How far each head looks is ordered by softmax of the one and of the other alone with rank "
            f"correlation: {order}."
        )
    return sentences


def _shares_figure(table: pd.DataFrame) -> go.Figure:
    names = list(table["model"].unique())
    figure = make_subplots(1, len(names), subplot_titles=names, shared_yaxes=True)
    for column, name in enumerate(names, 1):
        heads = table[table["model"] == name]
        for part, words in PARTS.items():
            weighted = heads[f"positional_{part}"] * heads["variation"]
            share = weighted.groupby(heads["layer"]).sum() / heads["variation"].groupby(heads["layer"]).sum()
            figure.add_bar(
                x=share.index,
                y=share.round(4),
                name=words,
                marker_color=COLORS[part],
                legendgroup=part,
                showlegend=column == 1,
                row=1,
                col=column,
            )
    figure.update_xaxes(title="layer").update_yaxes(tickformat=".0%").update_yaxes(title="share", col=1)
    figure.update_layout(barmode="group", legend=dict(orientation="h", x=0, y=-0.2))
    return styled(figure, "What makes the mean logits vary with position, by layer")


def _lag_figure(lags: pd.DataFrame) -> go.Figure:
    names = list(lags["model"].unique())
    heads = [lags[lags["model"] == name].iloc[0] for name in names]
    titles = [f"{name}, head {row['layer']}.{row['head']}" for name, row in zip(names, heads, strict=True)]
    figure = make_subplots(1, len(names), subplot_titles=titles)
    for column, name in enumerate(names, 1):
        rows = lags[lags["model"] == name]
        for part, words in {"logits": "mean logits", **PARTS}.items():
            figure.add_scatter(
                x=rows["distance"],
                y=rows[part].round(4),
                name=words,
                line=dict(color=COLORS[part], dash="dot" if part == "logits" else "solid"),
                legendgroup=part,
                showlegend=column == 1,
                row=1,
                col=column,
            )
    figure.update_xaxes(title="distance to the key").update_yaxes(title="logit less its mean", col=1)
    figure.update_layout(legend=dict(orientation="h", x=0, y=-0.2))
    return styled(figure, "The head that varies most with position: its mean logits over distance, and their parts")


EXPERIMENTS = (
    Experiment(
        "rotary-mean",
        "Song",
        "section 5.2 and E.2, for rotary models (our own)",
        "What carries position in rotary models: positional vectors, or the mean under rotation?",
        rotary_mean,
        0.2,
        NEEDS,
        quick=True,
    ),
)
