"""Song's Tables 1, 4, 5 and 6: ranks, norms, similarities and incoherence of every layer."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.figures.style import styled
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered, sized
from armillary.papers.experiments.song_printed import RANK, RELATIVE_NORM, STABLE_RANK, TABLE_1
from armillary.papers.experiments.song_reading import (
    NEEDS,
    SMALLER,
    TOPICS,
    chosen_corpora,
    chosen_models,
    in_words,
    like,
    read,
    text_like,
)

MEASURES = {
    "screenot_rank": "rank estimate",
    "stable_rank": "stable rank",
    "relative_norm": "relative norm",
    "inter_similarity": "inter-cluster similarity",
    "intra_similarity": "intra-cluster similarity",
    "incoherence_mean": "incoherence, mean |cos|",
    "incoherence_random_mean": "incoherence of random directions",
    "pos_share": "variance share of positions",
}
DRAWN = ("screenot_rank", "stable_rank", "relative_norm")


def measured(settings: Settings, texts: tuple[str, ...]) -> pd.DataFrame:
    """A row for every model, text and layer: the columns of the layers table that Tables 1 to 6 print."""
    parts = []
    for corpus, source in chosen_corpora(settings, texts).items():
        for name, path in chosen_models(settings).items():
            atlas = read(settings, path, source)
            table = atlas.layers[["layer", *MEASURES, "dct_energy_10"]].copy()
            table.insert(0, "like", like(atlas))
            table.insert(0, "corpus", corpus)
            table.insert(0, "model", name)
            table["chance_pos_share"] = 1 / atlas.settings["sequences"]
            parts.append(table)
    return pd.concat(parts, ignore_index=True)


def measures(settings: Settings) -> Outcome:
    """Tables 1, 4, 5 and 6, each row with the printed one of the closest model and text."""
    layers = measured(settings, ("builtin:prose", *TOPICS))
    keys = ["model", "like", "corpus"]
    means = layers.groupby(keys, sort=False)[[*MEASURES]].agg(["mean", "std"])
    means.columns = [f"{name}{ending}" for name in MEASURES for ending in ("", "_std")]
    table = means.reset_index()
    claims = [claim for _, row in table.drop_duplicates(["model"]).iterrows() for claim in _beside_table_1(row)]
    claims += [_clusters(table), *_by_layer(layers), _tables_agree()]
    return Outcome(
        {"table_1": table, "layers": layers}, {"by_layer": _by_layer_figure(layers)}, claims, [_learned(layers)]
    )


def _beside_table_1(row: pd.Series) -> list[Claim]:
    text = text_like(row["corpus"])
    text = text if (row["like"], text) in TABLE_1 else "OpenWebText"
    printed, place = TABLE_1[row["like"], text], f"Table 1, {in_words(row['like'])}, {text}"
    who = f"{row['model']} on {row['corpus']}"
    why = f"{SMALLER}, compared with the printed model that gives positions in the same way"
    return [
        sized(
            f"rank estimate of the positional basis, {who}", printed.rank, row["screenot_rank"], place=place, why=why
        ),
        sized(f"relative norm, {who}", printed.relative_norm, row["relative_norm"], place=place, why=why),
        sized(
            f"incoherence, {who}",
            printed.incoherence,
            row["incoherence_mean"],
            place=place,
            why=f"{why}; random directions of this width have {row['incoherence_random_mean']:.3f} (LEDGER S20: the "
            "printed baseline of 0.1 is neither the mean nor the largest)",
        ),
    ]


def _clusters(table: pd.DataFrame) -> Claim:
    few = table.dropna(subset=["intra_similarity"])
    few = few.assign(gap=few["intra_similarity"] - few["inter_similarity"])
    worst = few.sort_values("gap").iloc[0]
    return ordered(
        "contexts of one document are more alike than those of different documents, whatever model and text "
        f"(the smallest gap: {worst['model']} on {worst['corpus']})",
        worst["intra_similarity"],
        worst["inter_similarity"],
        printed="0.44 against 0.10 (Table 1, GPT-2, OpenWebText)",
    )


def _by_layer(layers: pd.DataFrame) -> list[Claim]:
    claims = []
    first_text = layers["corpus"].iloc[0]
    for name, rows in layers[layers["corpus"] == first_text].groupby("model", sort=False):
        kind, first, last = rows["like"].iloc[0], rows.iloc[0], rows.iloc[-1]
        row = (kind, "OpenWebText")
        if kind == "GPT2":
            norm, rank = RELATIVE_NORM[row], STABLE_RANK[row]
            claims.append(
                ordered(
                    f"the relative norm falls from the first to the last layer, {name}",
                    first["relative_norm"],
                    last["relative_norm"],
                    printed=f"{norm[0]:.3g} and {norm[-1]:.3g} (Table 6)",
                )
            )
            claims.append(
                sized(
                    f"stable rank, mean over layers, {name}",
                    float(rank.mean()),
                    rows["stable_rank"].mean(),
                    place="Table 5",
                    why=SMALLER,
                )
            )
        if kind == "Llama2":
            rank = STABLE_RANK[row]
            claims.append(
                ordered(
                    f"without position embeddings the stable rank falls from layer 0 to layer 1, {name}",
                    first["stable_rank"],
                    rows.iloc[1]["stable_rank"],
                    printed=f"{rank[0]:.3g} and {rank[1]:.3g} (Table 5)",
                    why="here both bases are mostly what a mean over few texts leaves of chance",
                )
            )
    return claims


def _tables_agree() -> Claim:
    """Whether Table 1 is the mean over layers of Tables 4 and 6, from the printed numbers alone."""
    away = {
        f"{in_words(model)}, {text}: {printed:.2f} and {found:.2f}": abs(found - printed)
        for (model, text), row in TABLE_1.items()
        for printed, found in (
            (row.rank, float(RANK[model, text].mean())),
            (row.relative_norm, float(RELATIVE_NORM[model, text].mean())),
        )
    }
    off = [name for name, gap in away.items() if gap > 0.0101]
    return Claim(
        "Table 1 holds the means over the layers of Tables 4 and 6",
        f"{len(away)} means (Table 1)",
        f"{len(away) - len(off)} of them agree to the second digit" + (f"; {'; '.join(off)}" if off else ""),
        "differs" if off else "same size",
        "computed from the printed numbers; the first number is Table 1's" if off else "",
    )


def _learned(layers: pd.DataFrame) -> str:
    inner = layers[layers["layer"] > 0]
    kinds = inner.assign(rotary=inner["like"] == "Llama2").groupby("rotary")
    above = (inner["pos_share"] / inner["chance_pos_share"]).groupby(inner["like"] == "Llama2").median()
    share, noise = kinds["pos_share"].median(), inner["chance_pos_share"].iloc[0]
    shares = [
        f"{share[rotary]:.1%} in models {'with rotary' if rotary else 'with other'} positions "
        f"({above[rotary]:.1f} times what chance gives)"
        for rotary in sorted(share.index)
    ]
    return (
        f"The mean over C texts leaves noise in the positional basis: by chance alone it has 1/C of the variance "
        f"({noise:.1%} here). Measured after the first layer (median over layers and texts): {' and '.join(shares)}. A "
        "rank or a norm of the positional basis means little where the share is not far above chance."
    )


def _by_layer_figure(layers: pd.DataFrame) -> go.Figure:
    figure = make_subplots(1, len(DRAWN), subplot_titles=[MEASURES[name] for name in DRAWN])
    colors = ("#3b528b", "#21918c", "#d1495b", "#e0a000", "#7b5ea7")
    dashes = ("solid", "dot", "dash", "dashdot")
    names, texts = list(layers["model"].unique()), list(layers["corpus"].unique())
    for (name, corpus), rows in layers.groupby(["model", "corpus"], sort=False):
        for column, measure in enumerate(DRAWN, 1):
            figure.add_scatter(
                x=rows["layer"],
                y=np.round(rows[measure], 4),
                name=f"{name}, {corpus}",
                legendgroup=f"{name}, {corpus}",
                showlegend=column == 1,
                mode="lines+markers",
                marker_size=4,
                line=dict(color=colors[names.index(name) % 5], dash=dashes[texts.index(corpus) % 4]),
                row=1,
                col=column,
            )
    figure.update_xaxes(title="layer").update_yaxes(rangemode="tozero")
    figure.update_yaxes(type="log", rangemode="normal", col=2)
    figure.update_layout(legend=dict(orientation="h", x=0, y=-0.22))
    return styled(figure, "The positional basis, layer by layer", height=560).update_layout(margin_b=180)


EXPERIMENTS = (
    Experiment(
        "song-measures",
        "Song",
        "Tables 1, 4, 5 and 6",
        "How low-ranked and how large is the positional basis, do contexts cluster, are the two incoherent?",
        measures,
        2.0,
        NEEDS,
    ),
)
