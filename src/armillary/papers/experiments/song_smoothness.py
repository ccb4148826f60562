"""Song's Tables 2 and 3 and Figure 25: is position smooth on any text, and do logits inherit it?"""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.atlas.atlas import Atlas
from armillary.figures.constituents import argmax_map
from armillary.figures.style import styled
from armillary.lenses.constituents import qk_energy
from armillary.lenses.decomposition import decompose
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, limited, ordered, sized
from armillary.papers.experiments.song_reading import (
    NEEDS,
    PAPER_CORPORA,
    SMALLER,
    TOPICS,
    chosen_corpora,
    chosen_models,
    home,
    in_words,
    like,
    read,
    rotary,
)
from armillary.theory.smoothness import dct_energy

ELSEWHERE = {"small": ("builtin:random", TOPICS[2]), "paper": ("builtin:random", PAPER_CORPORA[2])}
TABLE_2 = {"GPT2": (11.54, 0.995), "BERT": (12.46, 0.702), "BLOOM": (10.44, 0.956)}
"""Rank estimate, and share of the ten lowest frequencies: GPT-2 and BERT on GitHub, BLOOM on random tokens."""
K = (1, 3, 5, 10)
TABLE_3 = {
    "PP'": (0.394, 0.954, 0.982, 0.997),
    "PWP'": (0.459, 0.965, 0.988, 0.999),
    "QK": (0.840, 0.900, 0.904, 0.912),
}
SPAN = 10
"""The number of directions of the positional basis on one text whose share on another text is measured."""


def shared_span(basis_text: Atlas, other_text: Atlas, layer: int, k: int = SPAN) -> float:
    """Share of |P|_F^2 on one text in the first k right singular vectors of P on another."""
    directions = np.linalg.svd(decompose(basis_text, layer).pos, full_matrices=False)[2][:k]
    elsewhere = decompose(other_text, layer).pos
    return float(np.square(elsewhere @ directions.T).sum() / np.square(elsewhere).sum())


def robustness(settings: Settings) -> Outcome:
    """Table 2: the positional basis on random tokens and on other text, compared with that on the home text."""
    known_text = home(settings)
    rows = []
    for name, where in chosen_models(settings).items():
        known = read(settings, where, known_text)
        for corpus, source in {known_text: known_text, **_elsewhere(settings)}.items():
            atlas = read(settings, where, source)
            layers, chance = atlas.layers, SPAN / atlas.anatomy.d_model
            spans = [shared_span(known, atlas, layer) for layer in layers["layer"]]
            rows.append(
                {
                    "model": name,
                    "like": like(atlas),
                    "corpus": corpus,
                    "rank": layers["screenot_rank"].mean(),
                    "rank_std": layers["screenot_rank"].std(),
                    "low_frequencies": layers["dct_energy_10"].mean(),
                    "pos_share": layers["pos_share"].mean(),
                    "shared_span": float(np.mean(spans)),
                    "shared_span_by_chance": chance,
                }
            )
    table = pd.DataFrame(rows)
    away = table[table["corpus"] != known_text]
    told = "; ".join(
        f"{name} {own['shared_span'].min():.0%} to {own['shared_span'].max():.0%}"
        for name, own in away.groupby("model", sort=False)
    )
    learned = (
        f"Does the basis itself persist, not only its shape? The first {SPAN} directions of the positional basis on "
        f"{known_text} hold this much of the basis on the other texts (mean over layers): {told}; as many random "
        f"directions would hold "
        f"{' or '.join(f'{chance:.0%}' for chance in sorted(set(away['shared_span_by_chance'].round(2))))}."
    )
    return Outcome(
        {"table_2": table}, {"other_text": _other_text_figure(table)}, _claims_elsewhere(table, known_text), [learned]
    )


def _claims_elsewhere(table: pd.DataFrame, known_text: str) -> list[Claim]:
    """Ranks and shares on other text, beside those on the model's own and those of Table 2."""
    claims = []
    for model, own in table.groupby("model", sort=False):
        name = str(model)
        kind, away = own["like"].iloc[0], own[own["corpus"] != known_text]
        low = away.sort_values("low_frequencies").iloc[0]
        ranks = (own["rank"].iloc[0], float(away["rank"].mean()))
        claims.append(
            sized(f"rank on other text is that on {known_text}, {name}", *ranks, place="there, measured", why=SMALLER)
        )
        if kind in TABLE_2:
            rank, share = TABLE_2[kind]
            text = "random tokens" if kind == "BLOOM" else "GitHub"
            place = f"Table 2, {in_words(kind)} on {text}"
            for _, row in away.iterrows():
                says = f"rank on {row['corpus']}, {name}"
                claims.append(sized(says, rank, float(row["rank"]), place=place, why=SMALLER))
            says = f"share of the ten lowest frequencies, lowest of the other texts ({low['corpus']}), {name}"
            claims.append(sized(says, share, low["low_frequencies"], place=place, why=SMALLER))
        else:
            claims.append(
                limited(
                    f"on other text the ten lowest frequencies hold most of the Gram matrix (their share; lowest: "
                    f"{low['corpus']}), {name}",
                    float(low["low_frequencies"]),
                    0.5,
                    above=True,
                    printed="BLOOM 95.6 %, no rotary model (Table 2)",
                    why="no position embeddings, a small model, few texts; which matters was not tested",
                )
            )
    return claims


def _elsewhere(settings: Settings) -> dict[str, str]:
    if settings.corpora:  # the first of them is home
        return {**dict(list(chosen_corpora(settings, ()).items())[1:]), "builtin:random": "builtin:random"}
    return chosen_corpora(settings, ELSEWHERE["small"]) if settings.small else {c: c for c in ELSEWHERE["paper"]}


def _other_text_figure(table: pd.DataFrame) -> go.Figure:
    titles = {"rank": "rank estimate", "low_frequencies": "share of 10 frequencies", "shared_span": "shared span"}
    figure = make_subplots(1, 3, subplot_titles=list(titles.values()))
    colors = ("#3b528b", "#21918c", "#d1495b", "#e0a000", "#7b5ea7")
    for i, (corpus, rows) in enumerate(table.groupby("corpus", sort=False)):
        for column, name in enumerate(titles, 1):
            figure.add_bar(
                x=rows["model"],
                y=rows[name].round(4),
                name=corpus,
                legendgroup=corpus,
                showlegend=column == 1,
                marker_color=colors[i % 5],
                row=1,
                col=column,
            )
    figure.update_xaxes(title="model")
    figure.update_layout(legend=dict(orientation="h", x=0, y=-0.3), barmode="group")
    return styled(figure, "The positional basis on other text").update_layout(margin_b=130)


def inherited(settings: Settings) -> Outcome:
    """Table 3: low-frequency shares of P P', P W P' and the mean logits (and of the Gram matrix), means over heads."""
    models = chosen_models(settings)
    rows, below_two = [], {}
    for name, path in models.items():
        atlas = read(settings, path, home(settings))
        geometry, layers = atlas.group("geometry"), atlas.layers
        shares = {
            "Gram": np.array([layers[f"dct_energy_{k}"].mean() for k in K]),
            "PP'": geometry["pp_energy"].to_numpy().reshape(-1, len(K)).mean(0),
            "PWP'": np.nanmean(geometry["pwp_energy"].to_numpy().reshape(-1, len(K)), axis=0),
            "QK": np.array([np.nanmean(qk_energy(atlas, k)) for k in K]),
        }
        inputs = [decompose(atlas, layer, "input").pos for layer in range(geometry.sizes["layer"])]
        below_two[name] = float(np.mean([dct_energy(pos @ pos.T, 2) for pos in inputs]))
        rows += [
            {"model": name, "like": like(atlas), "matrix": matrix, **{f"K={k}": v for k, v in zip(K, row, strict=True)}}
            for matrix, row in shares.items()
        ]
    table = pd.DataFrame(rows)
    claims: list[Claim] = []
    for model, matrices in table.groupby("model", sort=False):
        name = str(model)
        by = {str(row["matrix"]): [float(row[f"K={k}"]) for k in K] for _, row in matrices.iterrows()}
        if matrices["like"].iloc[0] in ("GPT2", "BERT"):
            for matrix, printed in TABLE_3.items():
                for i in (0, 3) if matrix == "QK" else (3,):
                    says = f"share of the frequencies below {K[i]}, {matrix}, {name}"
                    place = f"Table 3, {matrix}, K = {K[i]}"
                    claims.append(sized(says, printed[i], by[matrix][i], place=place, why=SMALLER))
            claims.append(_first_frequency(name, by, below_two[name]))
        says = f"P W P' is as smooth as P P', {name}"
        pair = (by["PP'"][-1], by["PWP'"][-1])
        turned = matrices["like"].iloc[0] == "Llama2"
        why = "W acts on rotated vectors here; whether that is why was not tested" if turned else SMALLER
        claims.append(sized(says, *pair, place="P P', measured; Table 3: 99.7 % and 99.9 %", why=why))
    lowest = table[table["matrix"].isin(["PP'", "PWP'"]) & (table["like"] == "GPT2")]["K=1"].max()
    learned = [
        "Positional vectors sum to zero, so the lowest frequency (K = 1) of P P' and P W P' is zero by construction "
        f"(measured: {lowest:.0e}); Table 3 prints 39.4 % and 45.9 %."
    ]
    learned = learned if lowest < 1e-6 else []
    turned = table[table["like"] == "Llama2"].pivot(index="model", columns="matrix", values="K=10")
    if len(turned):
        pairs = zip(turned.index, turned["QK"], turned["PWP'"], strict=True)
        shown = "; ".join(f"{name} {qk:.0%} and {pwp:.0%}" for name, qk, pwp in pairs)
        learned.append(
            "In rotary models the logits are smoother than the positional vectors from which they are said to have it "
            f"(ten lowest frequencies of QK and of P W P': {shown}), so it cannot be from them alone (see rotary-mean)."
        )
    return Outcome({"table_3": table}, {"low_frequencies": _low_frequencies_figure(table)}, claims, learned)


def _low_frequencies_figure(table: pd.DataFrame) -> go.Figure:
    names = list(table["model"].unique())
    figure = make_subplots(1, len(names), subplot_titles=names, shared_yaxes=True)
    colors = {"Gram": "#9aa0a6", "PP'": "#3b528b", "PWP'": "#21918c", "QK": "#d1495b"}
    for _, row in table.iterrows():
        column = names.index(row["model"]) + 1
        figure.add_bar(
            x=[f"K = {k}" for k in K],
            y=[round(row[f"K={k}"], 4) for k in K],
            name=row["matrix"],
            legendgroup=row["matrix"],
            showlegend=column == 1,
            marker_color=colors[row["matrix"]],
            row=1,
            col=column,
        )
    figure.update_yaxes(range=[0, 1], tickformat=".0%").update_yaxes(title="share of squared coefficients", col=1)
    figure.update_xaxes(title="frequencies below K")
    figure.update_layout(legend=dict(orientation="h", x=0, y=-0.2))
    return styled(figure, "What low frequencies explain, mean over layers and heads")


def _first_frequency(name: str, by: dict[str, list[float]], below_two: float) -> Claim:
    """The printed values at K = 1 of P P' and P W P' in Table 3, and those that follow from sum pos_t = 0."""
    raw = max(by["PP'"][0], by["PWP'"][0])
    return Claim(
        f"the lowest frequency holds a large part of P P' and P W P', {name}",
        "39.4 % and 45.9 % (Table 3, K = 1)",
        f"{'nothing' if raw < 1e-12 else f'{raw:.1%}'} of them; {by['Gram'][0]:.1%} of the normalized Gram matrix; "
        f"{below_two:.1%} of P P' at K = 2",
        "differs" if raw < TABLE_3["PP'"][0] / 2 else "same direction",
        "the vectors pos_t sum to zero, so that coefficient of P P' and P W P' is zero: the printed K must count "
        "otherwise",
    )


def local_heads(ratio: Float[np.ndarray, "layer head"], at: float = 0.8) -> float:
    """The fraction of heads whose positional logits are largest at the position itself for more than `at` of rows."""
    return float((ratio > at).mean())


def argmax(settings: Settings) -> Outcome:
    """Figure 25: the argmax ratio of every head, from (P + m) W (P + m)' alone."""
    rows, claims = [], []
    figures: dict[str, go.Figure] = {}
    for name, path in chosen_models(settings).items():
        atlas = read(settings, path, home(settings))
        ratio = atlas.group("geometry")["argmax_ratio"].to_numpy()
        half = len(ratio) // 2
        heads = atlas.heads[["layer", "head", "argmax_ratio", "self_mass", "mean_distance"]].copy()
        heads.insert(0, "model", name)
        rows.append(heads)
        if len(figures) < 3:
            figure = argmax_map(np.round(ratio, 3))
            figures[f"argmax_{name.rpartition('/')[2]}"] = styled(figure, f"{name}: argmax ratio of every head")
        why = f"{SMALLER}" + ("; positions by rotation, not by embeddings" if rotary(atlas) else "")
        claims += [
            sized(
                f"heads whose positional logits are largest at the diagonal for more than 80 % of positions, {name}",
                0.43,
                local_heads(ratio),
                place="more than 43 % of GPT-2's heads, section 4.2",
                why=why,
            ),
            ordered(
                f"the property is stronger in early layers (mean of the first half against the second), {name}",
                float(ratio[:half].mean()),
                float(ratio[half:].mean()),
                printed="'especially among early layers' (D.2)",
                why=why,
            ),
        ]
    table = pd.concat(rows, ignore_index=True)
    correlations = "; ".join(
        f"{name} {heads['argmax_ratio'].corr(heads['self_mass'], method='spearman'):.2f}"
        for name, heads in table.groupby("model", sort=False)
    )
    learned = (
        "Rank correlation over heads of the argmax ratio with the attention that rests on the token itself: "
        f"{correlations}."
    )
    return Outcome({"heads": table}, figures, claims, [learned])


EXPERIMENTS = (
    Experiment(
        "song-robustness",
        "Song",
        "Table 2",
        "Is the positional basis the same on other text and on random tokens?",
        robustness,
        0.5,
        NEEDS,
    ),
    Experiment(
        "song-smoothness",
        "Song",
        "Table 3",
        "Do P W P' and the logits inherit the smoothness of the positional basis?",
        inherited,
        0.2,
        NEEDS,
        quick=True,
    ),
    Experiment(
        "song-argmax",
        "Song",
        "Figure 25",
        "For how many positions are a head's positional logits largest at the position itself?",
        argmax,
        0.1,
        NEEDS,
        quick=True,
    ),
)
