"""Wertich, §7.2.2 and Figures A.19 to A.22: singular values of learned weights beside noise, and W_q against W_k."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from armillary.atlas.atlas import Atlas
from armillary.figures.style import styled
from armillary.lenses.products import entropy_rank
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered, sized
from armillary.papers.experiments.material import models
from armillary.papers.experiments.wertich_claims import below, between, over_models
from armillary.scanning.weights import weigh
from armillary.theory.random_matrix import MarchenkoPastur, xavier_variance

SMALL = ("stories15M", "bundled-llama", "bundled-gpt2", "minilm")
PAPER = ("mistralai/Mistral-7B-Instruct-v0.2",)
NEEDS = (
    "mistralai/Mistral-7B-Instruct-v0.2 as a downloaded folder (--model FOLDER): its weights are read layer by layer"
)
DRAWN = ("q", "k", "v", "up", "down")
POINTS = 120
"""The number of points of a spectrum in figures and tables."""
SMALLER = "other models than Mistral; what sets the scale of their weights was not tested"


def weighed(settings: Settings) -> dict[str, Atlas]:
    """The weights atlas of every model, compared with random heads; computed once and shared."""
    atlases = {}
    for name, place in models(settings, SMALL, PAPER).items():
        key = sha256(str(Path(place).resolve()).encode()).hexdigest()[:8]
        folder = settings.work / "weights" / f"{Path(name).name}-{key}"
        atlases[name] = weigh(place, out=folder, against="random", resume=folder.exists())
    return atlases


# singular values ----------------------------------------------------------------------------------------------------


def singular_values(settings: Settings) -> Outcome:
    """Every matrix of every layer against a Xavier matrix of its shape: energy, largest value, value by value."""
    atlases = weighed(settings)
    every = pd.concat([_matrices(atlas).assign(model=name) for name, atlas in atlases.items()], ignore_index=True)
    means = every.groupby(["model", "matrix"], sort=False)[
        ["xavier_energy", "xavier_largest", "above_xavier", "entropy_rank_share", "outlier_energy", "mp_distance"]
    ]
    table = means.mean().reset_index()
    qk = table[table["matrix"].isin(["q", "k"])].groupby("model", sort=False).mean(numeric_only=True)
    v = table[table["matrix"] == "v"].set_index("model")
    shapes = every[every["matrix"] == "q"].groupby("model", sort=False)[["rows", "columns"]].first()
    noise = {str(model): noise_rank_share((int(n), int(m))) for model, (n, m) in shapes.iterrows()}
    sparse = "; ".join(
        f"{model} {qk.loc[model, 'entropy_rank_share']:.0%} (W_v {v.loc[model, 'entropy_rank_share']:.0%}, noise "
        f"{noise[str(model)]:.0%})"
        for model in qk.index
    )
    scales = "; ".join(
        f"{model} {qk.loc[model, 'xavier_energy']:.2f} and {v.loc[model, 'xavier_energy']:.2f}" for model in qk.index
    )
    learned = [
        "Sparse and small are two things. Sparse: the share of directions that carry the energy of W_q and W_k "
        f"(entropy rank over rank) is {sparse}. Small: in Mistral the thesis finds W_q and W_k far below W_v; here the "
        f"energies over Xavier's of W_q, W_k and of W_v are {scales}."
    ]
    main = next(iter(atlases))
    figures = {"spectra": _spectra_figure(atlases[main], main), "by_layer": _layers_figure(every)}
    columns = ["model", "layer", "matrix", *(c for c in every.columns if c not in ("model", "layer", "matrix"))]
    return Outcome({"means": table, "matrices": every[columns]}, figures, _xavier_claims(qk, v), learned)


def _xavier_claims(qk: pd.DataFrame, v: pd.DataFrame) -> list[Claim]:
    """W_q and W_k, and W_v, against Xavier matrices; a row for each model."""

    def claim(says: str, low: float, high: float, values: "pd.Series[float]") -> Claim:
        each = {
            str(model): between(says, low, high, float(value), place="§7.2.2", why=SMALLER)
            for model, value in values.items()
        }
        return over_models(each)

    return [
        claim("squares of the singular values of W_q, W_k: their sum over Xavier's", 0.05, 0.1, qk["xavier_energy"]),
        claim("largest singular value of W_q, W_k over Xavier's", 1.5, 2.0, qk["xavier_largest"]),
        claim("squares of the singular values of W_v: their sum over Xavier's", 0.9, 1.2, v["xavier_energy"]),
        claim("largest singular value of W_v over Xavier's", 1.0, 1.5, v["xavier_largest"]),
        claim("share of singular values of W_q, W_k above Xavier's of the same rank", 0.1, 0.1, qk["above_xavier"]),
        over_models(
            {
                str(model): ordered(
                    "W_v has more energy than W_q, W_k (squares of the singular values over Xavier's)",
                    float(v.loc[model, "xavier_energy"]),
                    float(qk.loc[model, "xavier_energy"]),
                    printed="about n against n/20 to n/10 (§7.2.2)",
                    why=SMALLER,
                )
                for model in qk.index
            }
        ),
        over_models(
            {
                str(model): _more(float(qk.loc[model, "entropy_rank_share"]), float(v.loc[model, "entropy_rank_share"]))
                for model in qk.index
            }
        ),
    ]


def _matrices(atlas: Atlas) -> pd.DataFrame:
    """The atlas's table of matrices, with the share of values above Xavier's and the entropy rank over the rank."""
    table, arrays = atlas.matrices.copy(), atlas.group("matrices")
    above = []
    for row in table.to_dict("records"):
        values = arrays[row["matrix"]].sel(layer=row["layer"]).to_numpy()
        above.append(share_above_xavier(values[np.isfinite(values)], (row["rows"], row["columns"])))
    ranks = table[["rows", "columns"]].min(axis=1)
    return table.assign(above_xavier=above, entropy_rank_share=table["entropy_rank"] / ranks)


def xavier_squares(shape: tuple[int, int], count: int) -> Float[np.ndarray, "count"]:
    """Squared singular values of a Xavier matrix at `count` evenly spaced ranks, largest first, by its law."""
    small, large = sorted(shape)
    law = MarchenkoPastur(small / large, xavier_variance(*shape))
    return np.asarray(large * law.quantile(1 - (np.arange(count) + 0.5) / count))


def share_above_xavier(values: Float[np.ndarray, "rank"], shape: tuple[int, int]) -> float:
    """The share of squared singular values above those of a Xavier matrix at the same rank."""
    return float((np.sort(values)[::-1] > xavier_squares(shape, len(values))).mean())


def noise_rank_share(shape: tuple[int, int]) -> float:
    """The entropy rank of noise over its rank: 61 % for a square matrix, since E x log x = 1/2 under its law."""
    return float(entropy_rank(xavier_squares(shape, min(shape)))) / min(shape)


def _more(qk: float, v: float) -> Claim:
    """Training makes W_q and W_k sparser than W_v: fewer directions carry their energy."""
    return Claim(
        "training makes W_q, W_k sparser than W_v (share of directions that carry the energy: entropy rank over rank)",
        "the spectrum is pressed down, 'making the matrix more sparse' (§7.2.2)",
        f"{qk:.2f} against {v:.2f}",
        "same direction" if qk < v else "differs",
    )


def _spectra_figure(atlas: Atlas, name: str) -> go.Figure:
    arrays, table = atlas.group("matrices"), atlas.matrices
    drawn = [matrix for matrix in DRAWN if matrix in arrays]
    titles = [f"W_{matrix}" for matrix in drawn]
    figure = make_subplots(1, len(drawn), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.02)
    layers = sorted(table["layer"].unique())
    colors = sample_colorscale("Viridis", np.linspace(0, 0.9, max(len(layers), 2)))
    for col, matrix in enumerate(drawn, start=1):
        rows = table[table["matrix"] == matrix]
        shape = (int(rows["rows"].iloc[0]), int(rows["columns"].iloc[0]))
        for color, layer in zip(colors, layers, strict=False):
            values = arrays[matrix].sel(layer=layer).to_numpy()
            values = values[np.isfinite(values)]
            at = np.unique(np.linspace(0, len(values) - 1, POINTS).astype(int))
            label = dict(name=f"layer {layer}", legendgroup=str(layer), showlegend=col == 1)
            line = dict(color=color, width=1.5)
            figure.add_scatter(x=(at + 0.5) / len(values), y=values[at], line=line, **label, row=1, col=col)
        law = xavier_squares(shape, POINTS)
        label = dict(name="Xavier noise", legendgroup="noise", showlegend=col == 1)
        dashed = dict(color="black", dash="dash")
        figure.add_scatter(x=(np.arange(POINTS) + 0.5) / POINTS, y=law, line=dashed, **label, row=1, col=col)
    figure.update_yaxes(type="log", exponentformat="power", range=[-5, 2.2])
    figure.update_xaxes(title="rank / number", range=[0, 1])
    figure.update_yaxes(title="squared singular value", row=1, col=1)
    return styled(figure, f"Learned matrices beside Xavier noise: {name} (Wertich, Figures A.19 to A.21)", height=420)


def _layers_figure(every: pd.DataFrame) -> go.Figure:
    shown = [("q", "solid"), ("k", "dash"), ("v", "dot")]
    titles = ("sum of squared singular values over Xavier's", "largest singular value over Xavier's")
    figure = make_subplots(1, 2, subplot_titles=titles)
    for name, color in colors_of(every["model"]).items():
        for matrix, dash in shown:
            part = every[(every["model"] == name) & (every["matrix"] == matrix)]
            for col, column in enumerate(("xavier_energy", "xavier_largest"), start=1):
                line = dict(color=color, dash=dash)
                label = dict(name=f"{name} W_{matrix}", legendgroup=f"{name}{matrix}", showlegend=col == 1)
                figure.add_scatter(x=part["layer"], y=part[column], line=line, **label, row=1, col=col)
    for col in (1, 2):
        figure.add_hline(1, line=dict(color="gray", dash="dash"), row=1, col=col)
    figure.update_xaxes(title="layer").update_yaxes(type="log", exponentformat="power")
    return styled(figure, "Scale of learned weights, layer by layer; Xavier noise is 1", height=500)


# alignment ----------------------------------------------------------------------------------------------------------


def alignment(settings: Settings) -> Outcome:
    """tr(W_q'W_k) of every head over its deviation for unrelated matrices (`armillary theory T6.34`): z, by layer."""
    rows = []
    for name, atlas in weighed(settings).items():
        heads = atlas.heads[["layer", "head", "qk_trace", "qk_align_z", "qk_align_z_random"]]
        rows.append(heads.rename(columns={"qk_align_z": "z", "qk_align_z_random": "z_random"}).assign(model=name))
    heads = pd.concat(rows, ignore_index=True)
    widths = {name: _width(atlas) for name, atlas in weighed(settings).items()}
    heads["cosine"] = heads["z"] / np.sqrt([widths[name] for name in heads["model"]])
    layers = heads.groupby(["model", "layer"], sort=False).agg(
        heads=("z", "size"),
        rms_z=("z", _root_mean_square),
        rms_z_random=("z_random", _root_mean_square),
        layer_z=("z", lambda z: z.sum() / np.sqrt(len(z))),
        beyond_2=("z", lambda z: (z.abs() > 2).mean()),
    )
    layers = layers.reset_index()
    beyond = {
        str(name): float((of_model["z"].abs() > 2).mean()) for name, of_model in heads.groupby("model", sort=False)
    }
    random = float((heads["z_random"].abs() > 2).mean())
    learned = [
        "Measured head by head and by its own standard deviation, the alignment of W_q and W_k shows: |z| exceeds "
        "2 in "
        + ", ".join(f"{share:.0%} ({name})" for name, share in beyond.items())
        + f" of the heads, in {random:.0%} of random ones with the same norms. The trace looks small beside full "
        "alignment, |W_q||W_k|, but that of unrelated matrices is smaller by sqrt(d e)."
    ]
    tables = {"layers": layers, "heads": heads[["model", "layer", "head", "z", "z_random", "cosine"]]}
    return Outcome(tables, {"alignment": _alignment_figure(heads)}, _alignment_claims(heads, layers), learned)


def _alignment_claims(heads: pd.DataFrame, layers: pd.DataFrame) -> list[Claim]:
    models = {str(name): of_model for name, of_model in heads.groupby("model", sort=False)}
    ordinary = layers.groupby("model", sort=False)["layer_z"].apply(lambda z: float((z.abs() < 2).mean()))
    return [
        over_models(
            {
                name: sized(
                    "tr(W_q'W_k) behaves like N(0, 1): root mean square of z over heads",
                    1.0,
                    _root_mean_square(models[name]["z"]),
                    place="§7.2.2, Fig. A.22",
                    why="W_q and W_k of these trained heads are related beyond chance; Mistral's were not measured",
                )
                for name in models
            }
        ),
        over_models(
            {
                name: Claim(
                    "tr(W_q'W_k) behaves like N(0, 1) for most layers: share of layers with |sum over heads| below 2",
                    "most layers, 'relatively unstable' (§7.2.2, Fig. A.22)",
                    f"{share:.0%}",
                    "same direction" if share > 0.5 else "differs",
                    "" if share > 0.5 else "the heads of these models add up; Mistral's were not measured",
                )
                for name, share in zip(ordinary.index.astype(str), ordinary, strict=True)
            }
        ),
        over_models(
            {
                name: below(
                    "W_q and W_k are far from aligned: tr(W_q'W_k)/(|W_q||W_k|), mean over heads",
                    0.5,
                    float(models[name]["cosine"].mean()),
                    printed="0 rather than 1 (§7.2.2)",
                )
                for name in models
            }
        ),
    ]


def _width(atlas: Atlas) -> int:
    """d e: the entries of a head's W_q."""
    return int(atlas.anatomy.d_model * atlas.group("spectral").sizes["component"])


def _root_mean_square(values: "pd.Series[float]") -> float:
    return float(np.sqrt(np.square(values).mean()))


def _alignment_figure(heads: pd.DataFrame) -> go.Figure:
    names = list(dict.fromkeys(heads["model"]))
    figure = make_subplots(1, len(names), subplot_titles=[Path(name).name for name in names], shared_yaxes=False)
    rng = np.random.default_rng(0)
    for col, name in enumerate(names, start=1):
        part = heads[heads["model"] == name]
        for column, color, label, shift in (
            ("z_random", "darkgray", "random, same norms", 0.15),
            ("z", "firebrick", "learned", -0.15),
        ):
            figure.add_scatter(
                x=part["layer"] + shift + rng.uniform(-0.06, 0.06, len(part)),
                y=part[column],
                mode="markers",
                marker=dict(color=color, size=6),
                name=label,
                legendgroup=label,
                showlegend=col == 1,
                row=1,
                col=col,
            )
        figure.add_hrect(-2, 2, fillcolor="lightgray", opacity=0.35, line_width=0, row=1, col=col)
    figure.update_xaxes(title="layer").update_yaxes(title="z of tr(W_q'W_k)", row=1, col=1)
    title = "Alignment of W_q and W_k, every head a point; gray band: |z| < 2 (Wertich, Figure A.22)"
    return styled(figure, title, height=420)


def colors_of(names: "pd.Series[str]") -> dict[str, str]:
    """A color for every model."""
    palette = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
    return {name: palette[i % len(palette)] for i, name in enumerate(dict.fromkeys(names))}


EXPERIMENTS = (
    Experiment(
        "wertich-singular-values",
        "Wertich",
        "§7.2.2, Figures A.19 to A.21",
        "What does training do to the singular values of the weights?",
        singular_values,
        minutes=0.3,
        needs=NEEDS,
        quick=True,
    ),
    Experiment(
        "wertich-alignment",
        "Wertich",
        "§7.2.2, Figure A.22",
        "Are W_q and W_k of trained models as unrelated as random matrices?",
        alignment,
        minutes=0.1,
        needs=NEEDS,
        quick=True,
    ),
)
