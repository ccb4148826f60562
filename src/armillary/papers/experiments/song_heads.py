"""Song's Figures 4 and 6: heads' weights in the positional basis, and which constituent drives a head's pattern."""

from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Bool, Float
from plotly.subplots import make_subplots

from armillary.anatomy.loading import load, load_with_tokenizer
from armillary.anatomy.source import describe
from armillary.atlas.atlas import Atlas
from armillary.figures.style import heat, styled
from armillary.lenses.geometry import dissect
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, limited, ordered
from armillary.papers.experiments.song_reading import NEEDS, SMALLER, chosen_models, home, like, read, rotary
from armillary.probe.terms import TextConstituents, text_constituents

CORNER = 20
SHOWN = 40
PASSAGES, PASSAGE = 6, 24
"""The number of passages, each repeated once, and their length in tokens."""
WEAK = 0.1
"""A head with less attention than this on the keys of a pattern does not show the pattern."""

PATTERNS = {
    "identical": ("duplicate_score", "content", "attention to identical tokens"),
    "neighbor": ("prev_mass", "positional", "attention to neighboring tokens"),
    "shifted": ("induction_score", "content", "attention to the token to be copied"),
}
"""Pattern -> the column to choose its head by, the constituent that drives it in the paper, the pattern in words."""


def dissection(settings: Settings) -> Outcome:
    """Figure 4: W = V L V' + D + noise, for every head; drawn for the heads of the middle layer."""
    rows, claims = [], []
    figures: dict[str, go.Figure] = {}
    for name, path in chosen_models(settings).items():
        atlas = read(settings, path, home(settings))
        anatomy = describe(load(path, **settings.loading_for(path)))
        d, middle = anatomy.d_model, len(anatomy.layers) // 2
        whole = atlas.heads.set_index(["layer", "head"])["qk_fro"]
        drawn = []
        for layer in anatomy.layers:
            for head in range(layer.heads):
                dissected = dissect(atlas, anatomy, layer.index, head, CORNER, SHOWN)
                if layer.index == middle:
                    drawn.append(dissected.rotated * np.where(dissected.survives, 1.0, np.nan))
                total = float(whole[layer.index, head] * (layer.scale or 1.0)) ** 2
                rows.append(
                    {
                        "model": name,
                        "like": like(atlas),
                        "layer": layer.index,
                        "head": head,
                        "corner_share": dissected.corner_share,
                        "corner_survivors": dissected.corner_survivors,
                        "corner_by_chance": (CORNER / d) ** 2,
                        "diagonal_share": float(np.square(dissected.diagonal).sum()) / total,
                        "diagonal_by_chance": 1 / d,
                        "diagonal_mean": float(dissected.diagonal.mean()),
                    }
                )
        if len(figures) < 2:
            figures[f"dissection_{name.rpartition('/')[2]}"] = _dissection_figure(drawn[:6], name, middle)
        claims += _dissected(name, pd.DataFrame(rows).query("model == @name"), rotary(atlas))
    table = pd.DataFrame(rows)
    ratios = "; ".join(
        f"{name} {model_heads['corner_share'].mean() / model_heads['corner_by_chance'].mean():.1f}"
        for name, model_heads in table.groupby("model", sort=False)
    )
    learned = (
        f"Energy of W in the {CORNER} x {CORNER} corner of positional directions, in units of what random directions "
        f"would hold (mean over heads): {ratios}."
    )
    return Outcome({"heads": table}, figures, claims, [learned])


def _dissected(name: str, heads: pd.DataFrame, turned: bool) -> list[Claim]:
    above = heads["corner_share"] > 2 * heads["corner_by_chance"]
    many, count = float(above.mean()), np.sqrt(len(heads))
    why = f"{SMALLER}; positions enter by rotation too, which W does not show" if turned else SMALLER
    return [
        ordered(
            f"what survives denoising is concentrated in the {CORNER} x {CORNER} corner (share of survivors against "
            f"the corner's share of the area, mean over heads), {name}",
            float(heads["corner_survivors"].mean()),
            float(heads["corner_by_chance"].mean()),
            error=float(heads["corner_survivors"].std() / count),
            printed="'concentrated in the top left (K about 20)' (Figure 4)",
            why=why,
        ),
        limited(
            f"so it is for most heads (share of heads with twice the energy of chance there), {name}",
            many,
            0.5,
            above=True,
            error=float(above.std() / count),
            printed="'the majority of attention heads' (section 5.1)",
            why=why,
        ),
        ordered(
            f"W has a diagonal component (share of |W|^2 on the diagonal against 1/d, mean over heads), {name}",
            float(heads["diagonal_share"].mean()),
            float(heads["diagonal_by_chance"].mean()),
            error=float(heads["diagonal_share"].std() / count),
            printed="'diagonal' in (9)",
            why="a diagonal depends on the basis in which the model writes its channels; others were not tried",
            digits=2,
        ),
    ]


def _dissection_figure(drawn: list[Float[np.ndarray, "n n"]], name: str, layer: int) -> go.Figure:
    figure = make_subplots(
        2,
        3,
        subplot_titles=[f"head {layer}.{head}" for head in range(len(drawn))],
        horizontal_spacing=0.06,
        vertical_spacing=0.13,
    )
    for i, entries in enumerate(drawn):
        figure.add_trace(_small(heat(entries, showscale=False)), i // 3 + 1, i % 3 + 1)
        box = dict(x0=-0.5, y0=-0.5, x1=CORNER - 0.5, y1=CORNER - 0.5, line=dict(color="gray", width=1))
        figure.add_shape(type="rect", row=i // 3 + 1, col=i % 3 + 1, **box)
    figure.update_xaxes(showgrid=False, zeroline=False).update_yaxes(
        autorange="reversed", showgrid=False, zeroline=False
    )
    figure.update_xaxes(title="positional direction", row=2).update_yaxes(title="positional direction", col=1)
    title = f"{name}: what survives of W off its diagonal, in the directions of the positional basis"
    return styled(figure, title, height=640)


def relation(tokens: tuple[str, ...], pattern: str) -> Bool[np.ndarray, "query key"]:
    """The pairs of a pattern: identical (an earlier equal token), shifted (the token after it), neighbor (previous)."""
    ids = np.unique(tokens, return_inverse=True)[1]
    n = len(ids)
    before = np.tril(np.ones((n, n), dtype=bool), -1)
    same = (ids[:, None] == ids[None, :]) & before
    if pattern == "identical":
        return np.asarray(same)
    if pattern == "shifted":
        after = np.zeros_like(same)
        after[:, 1:] = same[:, :-1]
        return np.asarray(after & before)
    return np.eye(n, k=-1, dtype=bool)


def boosts(constituents: TextConstituents, pairs: Bool[np.ndarray, "query key"]) -> dict[str, float]:
    """Mean over the pairs of each constituent minus its row mean; they add up to that of the logits.

    The first token is left out.
    """
    visible = constituents.visible.copy()
    visible[:, 0] = visible[0] = False
    chosen = pairs & visible
    result = {}
    for name, term in {**constituents.folded(), "logits": constituents.logits}.items():
        count = np.maximum(visible.sum(1, keepdims=True), 1)
        centered = term - np.where(visible, term, 0.0).sum(1, keepdims=True) / count
        result[name] = float(centered[chosen].mean()) if chosen.any() else np.nan
    return result


def passages(atlas: Atlas, tokenizer: object, count: int = PASSAGES, length: int = PASSAGE) -> list[str]:
    """Passages of the scanned text, each repeated once."""
    tokens = atlas.group("corpus")["tokens"].to_numpy()
    said = [tokenizer.decode(list(map(int, row[1 : 1 + length]))).strip() for row in tokens[:count]]  # type: ignore[attr-defined]
    return [f"{text} {text}" for text in said]


def induction(settings: Settings) -> Outcome:
    """Figure 6: the strongest head of each pattern on repeated passages, and what drives it."""
    rows, claims = [], []
    figures: dict[str, go.Figure] = {}
    for name, path in chosen_models(settings).items():
        atlas = read(settings, path, home(settings))
        model, tokenizer = load_with_tokenizer(path, **settings.loading_for(path))
        texts = passages(atlas, tokenizer)
        examples = {}
        for pattern, (column, driver, words) in PATTERNS.items():
            best = atlas.heads.sort_values(column, na_position="first").iloc[-1]
            layer, head = int(best["layer"]), int(best["head"])
            read_texts = [text_constituents(atlas, model, tokenizer, layer, head, text) for text in texts]
            boost_table = pd.DataFrame(
                [boosts(constituents, relation(constituents.tokens, pattern)) for constituents in read_texts]
            )
            mean = {str(key): float(values.mean()) for key, values in boost_table.items()}
            error = {str(key): float(values.std() / np.sqrt(len(boost_table))) for key, values in boost_table.items()}
            examples[words] = (read_texts[0], driver)
            rows.append(
                {
                    "model": name,
                    "pattern": pattern,
                    "layer": layer,
                    "head": head,
                    "label": best["label"],
                    "score": best[column],
                    **{f"boost_{key}": value for key, value in mean.items()},
                    **{f"error_{key}": value for key, value in error.items()},
                }
            )
            claims.append(_driven(name, words, driver, boost_table, best[column], f"{layer}.{head}", rotary(atlas)))
        if len(figures) < 3:
            figures[f"constituents_{name.rpartition('/')[2]}"] = _pattern_figure(examples, name)
    table = pd.DataFrame(rows)
    weakest = table[table["pattern"] == "shifted"].set_index("model")["score"]
    scores = ", ".join(f"{name} {score:.2f}" for name, score in weakest.items())
    learned = (
        "The mean must not be dropped from the constituents (LEDGER S14): positional here means every term without "
        f"content, the mean's included. Attention of the best induction head to what followed the other copy: {scores}."
    )
    return Outcome({"patterns": table}, figures, claims, [learned])


def _driven(
    name: str, words: str, driver: str, boost_table: pd.DataFrame, score: float, head: str, turned: bool
) -> Claim:
    others = [other for other in ("positional", "mixed", "content") if other != driver]
    rival = max(others, key=lambda other: float(np.mean(boost_table[other].to_numpy())))
    gap = boost_table[driver].to_numpy() - boost_table[rival].to_numpy()
    kinds = {"positional": "the pos-pos constituent", "content": "the cvec-cvec constituent"}
    why = "small models" + ("; of a rotary model, positional includes the rotated mean" if turned else "")
    claim = ordered(
        f"{words} is driven by {kinds[driver]} (its part of these keys' logits above the row's mean against the "
        f"largest other, {rival}), {name}, head {head} (score {score:.2f})",
        float(boost_table[driver].mean()),
        float(boost_table[rival].mean()),
        error=float(gap.std(ddof=1) / np.sqrt(len(gap))),
        printed="Figure 6",
        why=why,
    )
    if score >= WEAK:
        return claim
    why = f"no head does this: the best score is {score:.2f} of the attention, and the terms are of that head"
    return replace(claim, verdict="undecided", why=why)


def _pattern_figure(examples: dict[str, tuple[TextConstituents, str]], name: str) -> go.Figure:
    titles = [
        f"{constituents.layer}.{constituents.head}: {driver} constituent" for constituents, driver in examples.values()
    ]
    figure = make_subplots(2, 3, subplot_titles=[*titles, *examples], horizontal_spacing=0.05, vertical_spacing=0.12)
    for column, (constituents, driver) in enumerate(examples.values(), 1):
        visible = constituents.visible.copy()
        visible[:, 0] = visible[0] = False  # the first token would dominate the color scale
        part = np.where(visible, constituents.folded()[driver], np.nan)
        with np.errstate(invalid="ignore"):
            rows = np.where(visible, part, 0).sum(1, keepdims=True) / np.maximum(visible.sum(1, keepdims=True), 1)
        figure.add_trace(_small(heat(part - rows, showscale=False)), 1, column)
        attention = np.where(visible, constituents.attention, np.nan)
        figure.add_trace(_small(heat(attention, signed=False, showscale=False)), 2, column)
    figure.update_yaxes(autorange="reversed", title="query", col=1).update_yaxes(autorange="reversed")
    figure.update_xaxes(title="key (token)", row=2)
    title = f"{name}: a passage said twice; what drives each pattern (above), and the attention (below)"
    return styled(figure, title, height=680)


def _small(trace: go.Heatmap) -> go.Heatmap:
    """The heatmap in float32, to keep results small."""
    return trace.update(z=np.asarray(trace.z, dtype=np.float32))


EXPERIMENTS = (
    Experiment(
        "song-dissection",
        "Song",
        "Figures 4 and 26 to 29",
        "Is W = W_q W_k' a low-rank part on positions, a diagonal, and noise?",
        dissection,
        0.2,
        NEEDS,
        quick=True,
    ),
    Experiment(
        "song-induction",
        "Song",
        "Figures 6 and 30 to 34",
        "Which constituent of the logits drives attention to identical, neighboring and shifted tokens?",
        induction,
        0.2,
        NEEDS,
        quick=True,
    ),
)
