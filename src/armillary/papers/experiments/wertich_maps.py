"""Wertich, §8.2: attention maps of few-shot prompts, by token and by word."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Int
from plotly.subplots import make_subplots

from armillary.figures.maps import attention_maps
from armillary.figures.style import styled
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered
from armillary.papers.experiments.wertich_claims import below, mean_error, over_models
from armillary.papers.experiments.wertich_prompts import NEEDS, Prompt, loaded, opened, pieces_of, prompts
from armillary.papers.experiments.wertich_weights import colors_of
from armillary.probe.attention_map import AttentionMap, attention_map, layer_masses


@dataclass(frozen=True)
class Maps:
    """The maps in the figures: the first prompt of a model, by word and by token."""

    model: str
    words: AttentionMap
    tokens: AttentionMap


def few_shot(settings: Settings) -> Outcome:
    """Attention of words to themselves, within their shot, and to the shot's word, by layer."""
    rows: list[pd.DataFrame] = []
    shown: Maps | None = None
    for name, place in loaded(settings).items():
        model, tokenizer = opened(settings, place)
        for number, prompt in enumerate(prompts(settings)):
            words = attention_map(model, tokenizer, prompt.text, spans=prompt.spans)
            tokens = attention_map(model, tokenizer, prompt.text, level="token", spans=prompt.spans)
            rows.append(
                shot_table(words, pieces_of(words, tokenizer, prompt), prompt).assign(model=name, prompt=number)
            )
            rows[-1]["largest_token_score"] = tokens.attention[:, :, ~tokens.sinks].max((1, 2))
            shown = shown or Maps(name, words, tokens)
    table = pd.concat(rows, ignore_index=True)
    assert shown is not None
    names = list(dict.fromkeys(table["model"]))
    claims = [
        *(over_models({name: _turn(table, name, end) for name in names}) for end in ("first", "last")),
        over_models({name: _inside(table, name) for name in names}),
        over_models({name: _asking(table, name) for name in names}),
        over_models({name: _domain(table, name) for name in names}),
    ]
    means = _means(table)
    by_model = {name: _paired(table, name, "same_shot_at_lag", "other_shot_at_lag") for name in names}
    learned = [
        "How much of the triangles is distance: at the same number of words apart, keys of the query's own shot get "
        + ", ".join(f"{masses[0] / masses[1]:.2f} ({name})" for name, masses in by_model.items())
        + " times the attention of keys in the shot before; without that comparison own keys get "
        + ", ".join(
            f"{_mean(table, name, 'own_shot') / _mean(table, name, 'own_shot_chance'):.2f} ({name})" for name in names
        )
        + " times their share of the words in sight."
    ]
    figures = {
        "by_layer": _by_layer(means),
        "word_level": _drawn(shown.words, shown.model, "8.5"),
        "token_level": _drawn(shown.tokens, shown.model, "8.4"),
    }
    return Outcome({"layers": means}, figures, claims, learned)


def shot_table(attention_map: AttentionMap, pieces: Int[np.ndarray, "word"], prompt: Prompt) -> pd.DataFrame:
    """Per layer, of the attention among the words shown, without sinks: means over the clue words of shots 1 on.

    diagonal: on the word itself. own_shot: on the query's own shot, itself left out, over all earlier words shown;
    own_shot_chance: what equal attention to them would give. own_word: from a clue to its shot's word, other_word: to
    the words of earlier shots. same_shot_at_lag, other_shot_at_lag: mean attention to keys as many words before, of the
    own and of another shot, lags with both kinds counted alike.
    """
    shot = np.array([prompt.pieces[i].shot for i in pieces])
    clue = np.array([prompt.pieces[i].role == "clue" for i in pieces])
    n = len(pieces)
    earlier = (np.arange(n)[:, None] > np.arange(n)) & ~attention_map.sinks
    query = clue & (shot > 0)
    same = shot[:, None] == shot
    lag = attention_map.place[:, None] - attention_map.place
    own_word, other_word = earlier & same & ~clue, earlier & ~same & ~clue
    lags = [
        d
        for d in np.unique(lag[earlier])
        if all(_cells(earlier, query, lag == d, kind).any() for kind in (same, ~same))
    ]
    rows = []
    masses = layer_masses(attention_map)
    for layer, matrix, itself, others in zip(
        attention_map.layers, attention_map.attention, masses["itself"], masses["others"], strict=True
    ):
        seen = (matrix * earlier)[query].sum(1)
        at_lag = {
            name: float(np.mean([matrix[_cells(earlier, query, lag == d, kind)].mean() for d in lags]))
            if lags
            else np.nan
            for name, kind in (("same_shot_at_lag", same), ("other_shot_at_lag", ~same))
        }
        rows.append(
            {
                "layer": layer,
                "diagonal": itself / (itself + others),
                "own_shot": float(((matrix * (earlier & same))[query].sum(1) / seen).mean()),
                "own_shot_chance": float(((earlier & same)[query].sum(1) / earlier[query].sum(1)).mean()),
                "own_word": float(matrix[own_word & query[:, None]].mean()),
                "other_word": float(matrix[other_word & query[:, None]].mean()),
                **at_lag,
            }
        )
    return pd.DataFrame(rows)


def _cells(earlier: np.ndarray, query: np.ndarray, at: np.ndarray, kind: np.ndarray) -> np.ndarray:
    return np.asarray(earlier & query[:, None] & at & kind)


def _by_prompt(layers: pd.DataFrame, name: str) -> pd.DataFrame:
    """Means over layers for every prompt of a model."""
    return layers[layers["model"] == name].groupby("prompt").mean(numeric_only=True)


def _mean(layers: pd.DataFrame, name: str, column: str) -> float:
    return float(_by_prompt(layers, name)[column].mean())


def _paired(layers: pd.DataFrame, name: str, first: str, second: str) -> tuple[float, float, float]:
    """Two means over prompts, and the standard error of their difference."""
    table = _by_prompt(layers, name)
    _, error = mean_error((table[first] - table[second]).to_numpy())
    return float(table[first].mean()), float(table[second].mean()), error


def _turn(layers: pd.DataFrame, name: str, end: str) -> Claim:
    table = layers[layers["model"] == name].pivot(index="prompt", columns="layer", values="diagonal")
    edge = table.iloc[:, 0 if end == "first" else -1]
    middle = table.iloc[:, 1:-1].mean(axis=1)
    _, error = mean_error((edge - middle).to_numpy())
    return ordered(
        f"maps of the {end} layer are nearer to the diagonal than those between (a word's share of its attention)",
        float(edge.mean()),
        float(middle.mean()),
        error=error,
        printed="diagonal-dominant first and last, spread between (§8.2)",
        why="fewer layers than Mistral's 32; whether that is why was not tested",
    )


def _inside(layers: pd.DataFrame, name: str) -> Claim:
    own, chance, error = _paired(layers, name, "own_shot", "own_shot_chance")
    says = "words attend within their own shot: share of the attention to earlier words, against equal attention"
    return ordered(says, own, chance, error=error, printed="subdivided triangles (§8.2, Fig. 8.5)")


def _asking(layers: pd.DataFrame, name: str) -> Claim:
    own, other, error = _paired(layers, name, "own_word", "other_word")
    says = "clues attend to the word of their shot more than to the words of earlier shots"
    return ordered(says, own, other, error=error, printed="'mimics' to 'parrot' (§8.2)")


def _domain(layers: pd.DataFrame, name: str) -> Claim:
    table = layers[layers["model"] == name].groupby("prompt")["largest_token_score"].max()
    mean, error = mean_error(table.to_numpy())
    return below(
        "attention scores between tokens, heads averaged, range up to 0.1",
        0.125,
        mean,
        error=error,
        printed="[0, 0.1] (§8.2, Fig. 8.4)",
        why="fewer heads are averaged than Mistral's 32; whether that is why was not tested",
    )


def _means(layers: pd.DataFrame) -> pd.DataFrame:
    columns = [column for column in layers.columns if column not in ("model", "layer", "prompt")]
    grouped = layers.groupby(["model", "layer"], sort=False)[columns]
    return grouped.mean().join(grouped.sem().add_suffix("_error")).reset_index()


def _by_layer(means: pd.DataFrame) -> go.Figure:
    panels = (
        (("diagonal", "solid"),),
        (("own_shot", "solid"), ("own_shot_chance", "dot")),
        (("same_shot_at_lag", "solid"), ("other_shot_at_lag", "dot")),
    )
    titles = ("on the word itself", "on its own shot (dotted: chance)", "equal lags (dotted: other shot)")
    figure = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.08)
    for name, color in colors_of(means["model"]).items():
        part = means[means["model"] == name]
        for col, lines in enumerate(panels, start=1):
            for column, dash in lines:
                figure.add_scatter(
                    x=part["layer"],
                    y=part[column],
                    error_y=dict(array=part[f"{column}_error"], thickness=1),
                    line=dict(color=color, dash=dash),
                    name=name,
                    legendgroup=name,
                    showlegend=col == 1,
                    row=1,
                    col=col,
                )
    figure.update_annotations(font_size=13)
    figure.update_xaxes(title="layer").update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="share of attention", row=1, col=1)
    return styled(figure, "Where the words of a few-shot prompt attend, layer by layer (Wertich, §8.2)", height=400)


def _drawn(attention_map: AttentionMap, model: str, number: str) -> go.Figure:
    """The maps of the first, middle and last layer, small enough to be committed."""
    last = len(attention_map.layers) - 1
    chosen = sorted({0, last // 2, last})
    few = replace(
        attention_map, layers=tuple(attention_map.layers[i] for i in chosen), attention=attention_map.attention[chosen]
    )
    figure = light(attention_maps(few))
    return figure.update_layout(title_text=f"{figure.layout.title.text}: {model} (Wertich, Figure {number})")


def light(figure: go.Figure) -> go.Figure:
    """The same figure with heatmaps in float32, which halves the file."""
    for trace in figure.data:
        if isinstance(trace, go.Heatmap):
            trace.z = np.asarray(trace.z, dtype=np.float32)
    return figure


EXPERIMENTS = (
    Experiment(
        "wertich-few-shot",
        "Wertich",
        "§8.2, Figures 8.4, 8.5, A.1 to A.18",
        "Who attends to whom in a few-shot prompt, token by token and word by word?",
        few_shot,
        minutes=0.3,
        needs=NEEDS,
        quick=True,
    ),
)
