"""Song's Figure 8: do residual connections explain that layers look alike? Norms and cosines on random tokens."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.atlas.atlas import Atlas
from armillary.figures.style import SIGNED, styled
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, limited, sized
from armillary.papers.experiments.song_reading import NEEDS, SMALLER, chosen_models, like, read

CORPUS = "builtin:random"


def layer_cosines(atlas: Atlas, *, centered: bool = False) -> Float[np.ndarray, "layer layer"]:
    """Mean cosine of a token's vectors in two layers, over sampled tokens; centered: minus their mean in each layer."""
    vectors = atlas.group("sample")["vector"].to_numpy().astype(float)
    flat = vectors.reshape(len(vectors), -1, vectors.shape[-1])
    if centered:
        flat = flat - flat.mean(1, keepdims=True)
    unit = flat / np.linalg.norm(flat, axis=-1, keepdims=True)
    return np.asarray(np.einsum("and,bnd->ab", unit, unit) / flat.shape[1])


def norms(settings: Settings) -> Outcome:
    """Figure 8: mean norms and cosines between layers of the embeddings, whole and centered."""
    rows, claims = [], []
    figures: dict[str, go.Figure] = {}
    for name, path in chosen_models(settings).items():
        atlas = read(settings, path, CORPUS)
        length = atlas.layers["mean_norm"].to_numpy()
        plain, less = layer_cosines(atlas), layer_cosines(atlas, centered=True)
        rows += [
            {
                "model": name,
                "layer": layer,
                "mean_norm": length[layer],
                "norm_over_layer_0": length[layer] / length[0],
                "cosine_with_layer_0": plain[0, layer],
                "centered_cosine_with_layer_0": less[0, layer],
                "cosine_with_previous": plain[layer - 1, layer] if layer else np.nan,
            }
            for layer in range(len(length))
        ]
        if len(figures) < 3:
            figures[f"norms_{name.rpartition('/')[2]}"] = _norms_figure(length, plain, name)
        claims += _compared(name, like(atlas), length, plain)
    table = pd.DataFrame(rows)
    after = table[table["layer"] > 0].groupby("model", sort=False)
    cosines = "; ".join(
        f"{name} {layers_of_model['cosine_with_layer_0'].iloc[0]:.2f}, less the mean "
        f"{layers_of_model['centered_cosine_with_layer_0'].iloc[0]:.2f}"
        for name, layers_of_model in after
    )
    learned = (
        "The cosine between layers is also one of their means, which belong to no token: mean cosine of a token's "
        f"vectors in layers 0 and 1 on random tokens, and of the same vectors less their layer's mean: {cosines}."
    )
    return Outcome({"norms": table}, figures, claims, [learned])


def _compared(
    name: str, kind: str, length: Float[np.ndarray, "layer"], cosines: Float[np.ndarray, "layer layer"]
) -> list[Claim]:
    why = f"{SMALLER}, beside GPT-2's own number"
    place = "Figure 8, GPT-2"
    return [
        sized(f"norm in layer 1 over layer 0, {name}", 10.92, length[1] / length[0], place=place, why=why),
        sized(f"norm in the last layer over layer 0, {name}", 109.8, length[-1] / length[0], place=place, why=why),
        limited(
            f"embeddings of layer 0 are nearly orthogonal to those of any other layer (largest |cosine|), {name}",
            float(np.abs(cosines[0, 1:]).max()),
            0.2,
            above=False,
            printed="'close to 0' (B.2)",
            why=SMALLER,
        ),
    ]


def _norms_figure(
    length: Float[np.ndarray, "layer"], cosines: Float[np.ndarray, "layer layer"], name: str
) -> go.Figure:
    figure = make_subplots(1, 2, subplot_titles=("mean norm", "cosine between layers"), horizontal_spacing=0.14)
    figure.add_scatter(x=np.arange(len(length)), y=length, mode="lines+markers", showlegend=False, row=1, col=1)
    trace = go.Heatmap(z=np.round(cosines, 3), zmin=-1, zmax=1, colorscale=SIGNED, colorbar=dict(title="cosine"))
    figure.add_trace(trace, 1, 2)
    figure.update_xaxes(title="layer", dtick=1 if len(length) < 16 else None)
    figure.update_yaxes(title="norm", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="layer", autorange="reversed", row=1, col=2)
    return styled(figure, f"{name}: embeddings by layer, on random tokens", height=420)


EXPERIMENTS = (
    Experiment(
        "song-norms",
        "Song",
        "Figure 8",
        "Do residual connections explain that the layers look alike?",
        norms,
        0.1,
        NEEDS,
    ),
)
