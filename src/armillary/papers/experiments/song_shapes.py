"""Song's Figures 1 and 2: positions on a curve, contexts in clusters, and the Gram matrix of both."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.atlas.atlas import Atlas
from armillary.figures.style import SIGNED, styled
from armillary.lenses.decomposition import decompose
from armillary.lenses.positional import layer_measures
from armillary.papers.experiments.experiment import Experiment, Outcome, Settings, limited, ordered, sized
from armillary.papers.experiments.song_reading import NEEDS, NOISY, SMALLER, learned_positions, read, topics
from armillary.theory.smoothness import gram

Vectors = Float[np.ndarray, "t d"]
BLUES, REDS = "Blues", "Reds"


def step_ratio(pos: Vectors) -> float:
    """Mean |pos_t+1 - pos_t| over the mean distance of two positions: small for a curve, 1 for scattered points."""
    steps = np.linalg.norm(np.diff(pos, axis=0), axis=1).mean()
    distances = np.linalg.norm(pos[:, None] - pos[None], axis=2)
    return float(steps / distances[np.triu_indices(len(pos), 1)].mean())


def plane_share(pos: Vectors) -> float:
    """Share of |P|_F^2 in its first two principal directions."""
    values = np.square(np.linalg.svd(pos, compute_uv=False))
    return float(values[:2].sum() / values.sum())


def turn(pos: Vectors) -> float:
    """The angle, in full turns, of the curve in its first two principal directions, smoothed over five positions."""
    left, values, _ = np.linalg.svd(pos - pos.mean(0), full_matrices=False)
    plane = (left * values)[:, :2]
    smooth = np.stack([np.convolve(axis, np.ones(5) / 5, mode="valid") for axis in plane.T], 1)
    ahead = np.diff(smooth, axis=0)
    angles = np.unwrap(np.arctan2(ahead[:, 1], ahead[:, 0]))
    return float(abs(angles[-1] - angles[0]) / (2 * np.pi))


def spiral(settings: Settings) -> Outcome:
    """Figure 1: pos_t and sampled cvec in the plane of pos, a panel for every layer."""
    corpus, source = topics(settings)
    rows, claims = [], []
    figures: dict[str, go.Figure] = {}
    for name, path in learned_positions(settings).items():
        atlas = read(settings, path, source)
        layers = range(len(atlas.anatomy.layers) + 1)
        parts = [decompose(atlas, layer).pos for layer in layers]
        rows += [
            {
                "model": name,
                "corpus": corpus,
                "layer": layer,
                "step_ratio": step_ratio(pos),
                "plane_share": plane_share(pos),
                "turns": turn(pos),
                "largest_singular_value": float(np.linalg.norm(pos, 2)),
            }
            for layer, pos in enumerate(parts)
        ]
        if len(figures) < 3:
            figures[f"spiral_{name.rpartition('/')[2]}"] = _spiral_figure(atlas, name)
        layers_of_model = pd.DataFrame(rows).query("model == @name")
        inner = layers_of_model.iloc[:-1]  # the paper leaves out the last layer (A.3)
        claims += [
            limited(
                f"positions lie on a continuous curve: the distance of neighbors over that of any two positions (mean "
                f"of the layers before the last, of which the roughest has {inner['step_ratio'].max():.2f}), {name}",
                float(inner["step_ratio"].mean()),
                1.0,
                above=False,
                printed="'continuous and curving shape' (section 2, Figure 1)",
            ),
            limited(
                f"two directions hold most of the positional basis (their share; mean of the layers before the last, "
                f"of which the least has {inner['plane_share'].min():.2f}), {name}",
                float(inner["plane_share"].mean()),
                0.5,
                above=True,
                printed="drawn in two dimensions; stable rank about 2 (Table 5)",
                why=NOISY,
            ),
            ordered(
                f"principal components have increasing scales across layers (largest singular value, last layer "
                f"against first), {name}",
                float(layers_of_model["largest_singular_value"].iloc[-1]),
                float(layers_of_model["largest_singular_value"].iloc[0]),
                printed="'dramatically increasing scales' (Figure 1)",
                why=NOISY,
            ),
        ]
    return Outcome({"curves": pd.DataFrame(rows)}, figures, claims)


def _spiral_figure(atlas: Atlas, name: str, at_most: int = 6) -> go.Figure:
    count = len(atlas.anatomy.layers) + 1
    shown = np.unique(np.linspace(0, count - 1, at_most).round().astype(int))
    sample, skip = atlas.group("sample"), atlas.settings["skip"]
    at = sample["position"].to_numpy()
    figure = make_subplots(2, 3, subplot_titles=[f"layer {layer}" for layer in shown], vertical_spacing=0.14)
    for i, layer in enumerate(shown):
        parts = decompose(atlas, int(layer))
        plane = np.linalg.svd(parts.pos, full_matrices=False)[2][:2].T
        cvec = sample["vector"].sel(layer=layer).to_numpy().astype(float) - parts.mu - parts.pos[at - skip]
        cell = dict(row=i // 3 + 1, col=i % 3 + 1)
        for vectors, color, t, label in (
            (cvec.reshape(-1, cvec.shape[-1]), REDS, np.tile(at, len(cvec)), "cvec"),
            (parts.pos, BLUES, np.arange(skip, skip + len(parts.pos)), "pos"),
        ):
            x, y = np.round(vectors @ plane, 4).T
            marker = dict(size=4, color=t, colorscale=color, cmin=-60, cmax=int(t.max()))
            figure.add_scatter(
                x=x, y=y, mode="markers", marker=marker, name=label, showlegend=i == 0, legendgroup=label, **cell
            )
    figure.update_xaxes(title="first direction").update_yaxes(title="second", col=1)
    return styled(figure, f"{name}: positions (blue) and contexts (red), darker for later tokens", height=640)


def gram_blocks(settings: Settings) -> Outcome:
    """Figure 2: cosines between all positions and contexts, contexts sorted by document."""
    corpus, source = topics(settings)
    rows, claims = [], []
    figures: dict[str, go.Figure] = {}
    for name, path in learned_positions(settings).items():
        atlas = read(settings, path, source)
        documents = atlas.group("corpus")["document"].to_numpy()
        count = len(atlas.anatomy.layers)
        for layer in range(count + 1):
            measures = layer_measures(decompose(atlas, layer), documents)
            columns = (
                "dct_energy_10",
                "incoherence_mean",
                "incoherence_random_mean",
                "intra_similarity",
                "inter_similarity",
            )
            rows.append({"model": name, "corpus": corpus, "layer": layer, **{key: measures[key] for key in columns}})
        if len(figures) < 3:
            figures[f"gram_{name.rpartition('/')[2]}"] = _gram_figure(atlas, name, documents)
        layers_of_model = pd.DataFrame(rows).query("model == @name")
        middle = layers_of_model.iloc[count // 2]
        claims += [
            sized(
                f"smooth: the ten lowest frequencies of the pos-pos block, layer {count // 2}, {name}",
                0.997,
                middle["dct_energy_10"],
                place="Table 3, mean over layers",
                why=SMALLER,
            ),
            sized(
                f"incoherent: mean |cos| of the pos-ctx block, layer {count // 2}, {name}",
                0.051,
                middle["incoherence_mean"],
                place="Table 1, mean over layers",
                why=f"{SMALLER}; random directions of this width have {middle['incoherence_random_mean']:.3f}",
            ),
            ordered(
                f"clustered: contexts of one document against those of others, layer {count // 2}, {name}",
                middle["intra_similarity"],
                middle["inter_similarity"],
                printed="'strong cluster patterns' (Figure 2)",
            ),
            ordered(
                f"the clusters grow clearer with depth (gap in the last layer against layer 0), {name}",
                float(layers_of_model["intra_similarity"].iloc[-1] - layers_of_model["inter_similarity"].iloc[-1]),
                float(layers_of_model["intra_similarity"].iloc[0] - layers_of_model["inter_similarity"].iloc[0]),
                printed="'progressively clear block structures' (C.3)",
                why="here the documents are apart already at layer 0, by their words alone",
            ),
        ]
    return Outcome({"blocks": pd.DataFrame(rows)}, figures, claims)


def _gram_figure(atlas: Atlas, name: str, documents: np.ndarray, cells: int = 40) -> go.Figure:
    """Three layers, with a subset of positions and contexts to keep the figure small."""
    count = len(atlas.anatomy.layers)
    shown = (0, count // 2, count)
    figure = make_subplots(1, 3, subplot_titles=[f"layer {layer}" for layer in shown], horizontal_spacing=0.04)
    order = np.argsort(documents, kind="stable")
    for i, layer in enumerate(shown, 1):
        parts = decompose(atlas, layer)
        t = np.linspace(0, len(parts.pos) - 1, cells).round().astype(int)
        c = order[np.linspace(0, len(order) - 1, cells).round().astype(int)]
        values = gram(np.concatenate([parts.pos[t], parts.ctx[c]])).astype(np.float32)
        trace = go.Heatmap(
            z=values, zmin=-1, zmax=1, colorscale=SIGNED, colorbar=dict(title="cosine"), showscale=i == 3
        )
        figure.add_trace(trace, 1, i)
        figure.add_hline(cells - 0.5, line_color="black", row=1, col=i)
        figure.add_vline(cells - 0.5, line_color="black", row=1, col=i)
    figure.update_yaxes(autorange="reversed", showticklabels=False).update_yaxes(title="contexts | positions", col=1)
    figure.update_xaxes(title="positions | contexts by document", showticklabels=False)
    return styled(figure, f"{name}: cosines between positions and contexts", height=400)


EXPERIMENTS = (
    Experiment(
        "song-spiral",
        "Song",
        "Figure 1",
        "Do positions lie on a smooth curve in few dimensions, and contexts apart from it?",
        spiral,
        0.1,
        NEEDS,
        quick=True,
    ),
    Experiment(
        "song-gram",
        "Song",
        "Figure 2",
        "Is the Gram matrix of positions smooth, apart from contexts, and are contexts in blocks?",
        gram_blocks,
        0.1,
        NEEDS,
        quick=True,
    ),
)
