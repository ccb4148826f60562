"""Song's Figures 3 and 7: singular values and frequencies of the positional basis, and of sinusoidal positions."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from scipy.fft import dctn

from armillary.figures.style import heat, styled
from armillary.lenses.decomposition import decompose
from armillary.lenses.positional import positional_arrays, screenot_rank
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, limited, ordered, sized
from armillary.papers.experiments.song_reading import NEEDS, NOISY, learned_positions, like, read, topics
from armillary.theory.smoothness import dct_energy, gram, smoothness

Vectors = Float[np.ndarray, "t d"]


def spectrum(settings: Settings) -> Outcome:
    """Figure 3: singular values of P, and the first frequencies of its Gram matrix."""
    corpus, source = topics(settings)
    rows, claims = [], []
    figures: dict[str, go.Figure] = {}
    for name, path in learned_positions(settings).items():
        atlas = read(settings, path, source)
        arrays = positional_arrays(atlas)
        values = arrays["singular_values"].to_numpy()
        layers = len(values)
        for layer in range(layers):
            energy = np.square(values[layer])
            coefficients = np.square(arrays["dct"].to_numpy()[layer])
            rows.append(
                {
                    "model": name,
                    "corpus": corpus,
                    "layer": layer,
                    "energy_of_10_values": energy[:10].sum() / energy.sum(),
                    "value_10_over_1": values[layer, 9] / values[layer, 0],
                    "energy_of_10_frequencies": coefficients[:10, :10].sum() / coefficients.sum(),
                }
            )
        if len(figures) < 3:
            figures[f"spectrum_{name.rpartition('/')[2]}"] = _spectrum_figure(
                values[:-1], arrays["dct"].to_numpy()[layers // 2], f"{name}: the positional basis"
            )
        layers_of_model = pd.DataFrame(rows).query("model == @name").iloc[:-1]
        claims += [
            sized(
                f"ten frequencies of the Gram matrix (mean over layers but the last), {name}",
                0.997,
                float(layers_of_model["energy_of_10_frequencies"].mean()),
                place="Table 3, GPT-2",
                why=NOISY,
            ),
            limited(
                f"a sharp change in the singular values: ten hold nearly all of |P|^2 (their share; mean over layers "
                f"but the last, of which the least has {layers_of_model['energy_of_10_values'].min():.2f}), {name}",
                float(layers_of_model["energy_of_10_values"].mean()),
                0.9,
                above=True,
                printed="'a sharp change in the plot' (Figure 3)",
                why=NOISY,
            ),
        ]
    return Outcome({"spectrum": pd.DataFrame(rows)}, figures, claims)


def _spectrum_figure(
    values: Float[np.ndarray, "layer n"], dct: Float[np.ndarray, "t t"], title: str, names: tuple[str, ...] = ()
) -> go.Figure:
    figure = make_subplots(
        1, 2, subplot_titles=("singular values of P", "cosine coefficients of its Gram matrix"), horizontal_spacing=0.15
    )
    for i, line in enumerate(values):
        x = np.arange(1, min(60, len(line)) + 1)
        line = np.where(line > 1e-4 * line[0], line, np.nan)  # rounding errors would stretch the axis
        label = names[i] if names else f"layer {i}"
        figure.add_scatter(x=x, y=np.round(line[:60], 5), name=label, mode="lines+markers", marker_size=4, row=1, col=1)
    figure.add_trace(heat(np.round(np.abs(dct[:10, :10]), 3), signed=False, colorbar=dict(title="|coefficient|")), 1, 2)
    figure.update_xaxes(title="component", row=1, col=1)
    figure.update_yaxes(title="singular value", type="log", dtick=1, row=1, col=1)
    figure.update_xaxes(title="frequency", row=1, col=2)
    figure.update_yaxes(title="frequency", autorange="reversed", row=1, col=2)
    figure.update_layout(legend=dict(orientation="h", x=0, y=-0.2))
    return styled(figure, title)


def sinusoidal_positions(length: int, d: int, *, printed: bool = False) -> Vectors:
    """sin and cos of t / 10000^(i/d), a pair per even i; printed: 2i for every channel (`armillary theory S19`)."""
    channel = np.arange(d)
    exponent = 2 * channel / d if printed else (channel - channel % 2) / d
    angle = np.arange(length)[:, None] / 10000.0**exponent
    return np.where(channel % 2 == 0, np.sin(angle), np.cos(angle))


def sinusoidal(settings: Settings) -> Outcome:
    """Figure 7: sinusoidal positions and a learned basis of the same length and width."""
    _, source = topics(settings)
    rows, claims, curves, names, learned_dct = [], [], [], [], None
    for name, path in learned_positions(settings).items():
        atlas = read(settings, path, source)
        layer = len(atlas.anatomy.layers) // 2
        pos = decompose(atlas, layer).pos
        fixed = sinusoidal_positions(len(pos), pos.shape[1])
        printed = sinusoidal_positions(len(pos), pos.shape[1], printed=True)
        bases = {
            f"{name}, layer {layer}": pos,
            "sinusoidal": fixed - fixed.mean(0),
            "as printed": printed - printed.mean(0),
        }
        shares = pd.DataFrame(
            [{"basis": basis, "like": like(atlas), **_shape(vectors)} for basis, vectors in bases.items()]
        )
        rows.append(shares.assign(beside=name))
        learned, original = shares.iloc[0], shares.iloc[1]
        claims += _against_fixed(name, learned, original)
        if learned_dct is None:
            learned_dct = gram(bases["sinusoidal"])
            for basis, vectors in bases.items():
                values = np.linalg.svd(vectors, compute_uv=False)
                curves.append(values / values[0])
                names.append(basis)
    assert learned_dct is not None
    coefficients = dctn(learned_dct, norm="ortho")
    figure = _spectrum_figure(
        np.stack(curves), coefficients, "The sinusoidal positions of 2017, and a learned basis", tuple(names)
    )
    figure.layout.annotations[1].text = "cosine coefficients, sinusoidal"
    table = pd.concat(rows, ignore_index=True)
    spread = table.groupby("basis", sort=False)["energy_of_10_frequencies"].first()
    learned_sentence = (
        f"The formula that Figure 7 prints has twice the exponents (LEDGER S19); its ten lowest frequencies hold "
        f"{spread['as printed']:.1%}, those of the encoding of 2017 {spread['sinusoidal']:.1%}."
    )
    return Outcome({"bases": table}, {"sinusoidal": figure}, claims, [learned_sentence])


def _shape(vectors: Vectors) -> dict[str, float]:
    cosines = gram(vectors)
    energy = np.square(np.linalg.svd(vectors, compute_uv=False))
    return {
        "energy_of_10_frequencies": float(dct_energy(cosines, 10)),
        "energy_of_10_values": float(energy[:10].sum() / energy.sum()),
        "rank": screenot_rank(vectors),
        "neighbor_cosine": float(np.diagonal(cosines, 1).mean()),
        "smoothness": smoothness(cosines),
    }


def _against_fixed(name: str, learned: pd.Series, fixed: pd.Series) -> list[Claim]:
    says = {
        "neighbor_cosine": "the learned Gram matrix is smooth, the sinusoidal one has spikes on the diagonal "
        "(mean cosine of neighbors)",
        "energy_of_10_values": "the learned basis has a more pronounced low rank (energy of ten singular values)",
        "energy_of_10_frequencies": "the learned basis has more low frequencies (energy of ten)",
    }
    places = ("B.1, item 1", "B.1, item 2", "B.1, item 3")
    return [
        ordered(f"{sentence}, {name}", float(learned[key]), float(fixed[key]), printed=place, why=NOISY)
        for (key, sentence), place in zip(says.items(), places, strict=True)
    ]


EXPERIMENTS = (
    Experiment(
        "song-spectrum",
        "Song",
        "Figure 3",
        "How fast do singular values and cosine coefficients of the positional basis fall?",
        spectrum,
        0.1,
        NEEDS,
        quick=True,
    ),
    Experiment(
        "song-sinusoidal",
        "Song",
        "Figure 7",
        "How do learned positions differ from the sinusoidal ones of 2017?",
        sinusoidal,
        0.1,
        NEEDS,
        quick=True,
    ),
)
