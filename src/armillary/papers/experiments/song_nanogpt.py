"""The positional basis of NanoGPT on Shakespeare and on other text, with learned and with rotary positions."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from armillary.anatomy.modes import one_thread
from armillary.atlas.atlas import Atlas
from armillary.figures.style import SIGNED, styled
from armillary.files.atomic import whole_folder
from armillary.lenses.positional import positional_arrays
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered, sized
from armillary.papers.experiments.material import atlas_of, corpora, shared, trained
from armillary.papers.experiments.song_addition import FAMILY, Position, character_tokenizer
from armillary.text.names import split_sources
from armillary.text.sources import documents
from armillary.training.config import DataConfig, ModelConfig, MonitorConfig, RunConfig
from armillary.training.loop import TrainSettings
from armillary.training.run_files import read_result

END_OF_TEXT = "\x03"
POSITIONS: tuple[Position, ...] = ("learned", "rotary")
STREAMS = ("positions", "covariance", "constituents")
FREQUENCIES = (1, 3, 5, 10)


@dataclass(frozen=True)
class Size:
    """The model, its training, and how many sequences its positional basis is averaged over."""

    layers: int
    heads: int
    width: int
    length: int
    steps: int
    batch: int
    learning_rate: float
    warmup: int
    seeds: int
    sequences: int


SMALL = Size(
    layers=3,
    heads=4,
    width=96,
    length=128,
    steps=1500,
    batch=12,
    learning_rate=3e-3,
    warmup=50,
    seeds=1,
    sequences=512,
)
PAPER = Size(
    layers=6,
    heads=6,
    width=384,
    length=128,
    steps=5000,
    batch=64,
    learning_rate=1e-3,
    warmup=100,
    seeds=1,
    sequences=6400,
)
"""Song A.2, without its dropout of 0.1."""


def text_of(settings: Settings) -> tuple[str, str]:
    """Name and source of the training text: Shakespeare, or (at small size) built-in prose if that is missing."""
    play = "shared:corpora/tinyshakespeare.txt"
    return next(iter(corpora(settings, (play, "builtin:prose"), (play,)).items()))


def other_text() -> tuple[str, str]:
    """A text that the model was not trained on: WikiText, or built-in code if that is missing."""
    wiki = shared("corpora/wikitext2-tokenized-test.txt")
    return ("wikitext2", str(wiki)) if wiki is not None else ("builtin:code", "builtin:code")


def language_model(settings: Settings, size: Size, position: Position, seed: int = 0) -> Path:
    """The folder of a character-level language model, trained once for all experiments that need it."""
    _, corpus = text_of(settings)
    config = RunConfig(
        model=ModelConfig(family=FAMILY[position], layers=size.layers, heads=size.heads, width=size.width),
        data=DataConfig(corpus=corpus, tokenizer=str(_characters_of(settings, corpus))),
        training=TrainSettings(
            steps=size.steps,
            batch=size.batch,
            length=size.length,
            learning_rate=size.learning_rate,
            final_rate=size.learning_rate / 10,
            warmup=size.warmup,
            seed=seed,
            checkpoint_every=max(1, size.steps // 10),
        ),
        monitor=MonitorConfig(every=max(1, size.steps // 4), sequences=2),
    )
    key = hashlib.sha256(json.dumps(config.as_dict(), sort_keys=True).encode()).hexdigest()[:8]
    return trained(settings, f"nanogpt-{position}-{seed}-{key}", config)


def _characters_of(settings: Settings, corpus: str) -> Path:
    """A tokenizer of the characters of a text, in a folder."""
    distinct = sorted({c for text in documents(split_sources(corpus)) for c in text.text})
    characters = "".join(c for c in distinct if c != END_OF_TEXT) + END_OF_TEXT
    key = hashlib.sha256(characters.encode()).hexdigest()[:8]
    folder = settings.work / "tokenizers" / f"characters-{key}"
    if not (folder / "tokenizer.json").exists():
        with whole_folder(folder) as place:
            character_tokenizer(characters).save_pretrained(place)
    return folder


@one_thread()
def nanogpt(settings: Settings) -> Outcome:
    """Rank, relative norm and low-frequency share of the positional basis by layer, on two texts."""
    size = SMALL if settings.small else PAPER
    texts = dict([text_of(settings), other_text()])
    own, other = texts
    rows, atlases, losses = [], {}, {}
    for position in POSITIONS:
        for seed in range(size.seeds):
            run = language_model(settings, size, position, seed)
            losses[position] = read_result(run)["held_out_loss"]
            for name, place in texts.items():
                atlas = atlas_of(
                    settings, str(run / "model"), place, length=size.length, sequences=size.sequences, streams=STREAMS
                )
                atlases[position, name] = atlas
                rows.append(_measured(atlas).assign(position=position, seed=seed, text=name))
    layers = pd.concat(rows, ignore_index=True)
    groups = layers.groupby(["position", "text"], sort=False)
    summary = groups.mean(numeric_only=True).drop(columns=["layer", "seed"]).reset_index()
    of = Means(summary)
    smaller = f"{size.layers} layers of width {size.width}, {size.steps} steps" if settings.small else ""
    spread = groups["screenot_rank"].std()
    errors = {text: float(spread["learned", text]) / np.sqrt(size.layers + 1) for text in texts}
    claims = _claims(of, own, other, errors, smaller)
    learned = [
        f"With rotary positions, position has {of('rotary', own, 'pos_share'):.2%} of the variance of the residual "
        f"stream ({of('learned', own, 'pos_share'):.2%} with learned ones), where the means of {size.sequences} "
        f"sequences would have {1 / size.sequences:.2%} by chance; the ten lowest frequencies hold "
        f"{of('rotary', own, 'dct_energy_10'):.0%} of its Gram matrix ({of('learned', own, 'dct_energy_10'):.0%}), at "
        f"held-out losses of {losses['rotary']:.2f} and {losses['learned']:.2f} nats a character. "
        f"Where the share is near chance, a rank or a relative norm says nothing about positions (seeds: {size.seeds})."
    ]
    figures = {
        "gram": _grams({position: atlases[position, own] for position in POSITIONS}, own),
        "by_layer": _by_layer(layers[layers["text"] == own]),
    }
    return Outcome({"layers": layers, "means": summary}, figures, claims, learned)


@dataclass(frozen=True)
class Means:
    """Means over layers and seeds, by kind of positions and text; called with a column it gives one of them."""

    summary: pd.DataFrame

    def __call__(self, position: Position, text: str, column: str) -> float:
        chosen = (self.summary["position"] == position) & (self.summary["text"] == text)
        return float(self.summary.loc[chosen, column].iloc[0])


def _claims(of: Means, own: str, other: str, errors: dict[str, float], smaller: str) -> list[Claim]:
    """Tables 1 and 2 on the text it was trained on and on another; `errors` are those of the ranks."""
    return [
        sized(
            f"rank estimate of the positional basis on {own}, mean over layers",
            7.86,
            of("learned", own, "screenot_rank"),
            error=errors[own],
            place="Table 1, NanoGPT",
            why=smaller,
        ),
        sized(
            f"relative norm of the positional basis on {own}",
            0.66,
            of("learned", own, "relative_norm"),
            place="Table 1, NanoGPT",
            why=smaller,
        ),
        sized(
            f"rank estimate on a text it was not trained on ({other})",
            5.43,
            of("learned", other, "screenot_rank"),
            error=errors[other],
            place="Table 2, NanoGPT",
            why=smaller,
        ),
        sized(
            f"share of the ten lowest frequencies on a text it was not trained on ({other})",
            0.84,
            of("learned", other, "dct_energy_10"),
            place="Table 2, NanoGPT",
            why=smaller,
        ),
        _robust(of("learned", own, "dct_energy_10"), of("learned", other, "dct_energy_10")),
        ordered(
            "absolute positions leave a larger positional basis than rotary ones (relative norm)",
            of("learned", own, "relative_norm"),
            of("rotary", own, "relative_norm"),
            printed="GPT-2 0.84, Llama 2 0.14 (Table 1)",
            why=smaller,
        ),
    ]


def _robust(trained_text: float, other_text: float) -> Claim:
    """Song 4.1: the structure persists out of distribution."""
    return sized(
        "the low frequencies hold as much of the Gram matrix on other text as on its own",
        trained_text,
        other_text,
        place="on its own text, measured",
    )


def _measured(atlas: Atlas) -> pd.DataFrame:
    """The paper's measures of every layer of the residual stream."""
    table = atlas.layers
    columns = [
        "layer",
        "screenot_rank",
        "stable_rank",
        "relative_norm",
        "pos_share",
        "smoothness",
        "low_frequency_bound",
    ]
    return table[[*columns, *(f"dct_energy_{k}" for k in FREQUENCIES)]].copy()


def _grams(atlases: dict[Position, Atlas], text: str) -> go.Figure:
    """Cosines between positions in the middle of each model, and their first two principal coordinates."""
    figure = make_subplots(
        2, 2, subplot_titles=[f"{what}, {p} positions" for what in ("cosines", "coordinates") for p in atlases]
    )
    for column, atlas in enumerate(atlases.values(), 1):
        arrays = positional_arrays(atlas)
        layer = len(arrays["layer"]) // 2
        middle_layer = arrays.sel(layer=layer)
        t = middle_layer["position"].to_numpy()
        cosines = go.Heatmap(
            z=middle_layer["gram"]
            .to_numpy()[::2, ::2]
            .astype(np.float32),  # every second position, to keep the committed figures small
            x=t[::2],
            y=t[::2],
            zmin=-1,
            zmax=1,
            colorscale=SIGNED,
            showscale=column == 1,
            colorbar=dict(title="cosine", y=0.79, len=0.45),
        )
        figure.add_trace(cosines, row=1, col=column)
        figure.update_yaxes(autorange="reversed", title="position", row=1, col=column)
        figure.update_xaxes(title="position", row=1, col=column)
        x, y, _ = middle_layer["coordinates"].to_numpy().T
        dots = dict(
            size=6,
            color=t,
            colorscale="Plasma",
            showscale=column == 1,
            colorbar=dict(title="position", y=0.21, len=0.45),
        )
        line = dict(color="lightgray", width=1)
        figure.add_scatter(x=x, y=y, mode="lines+markers", marker=dots, line=line, showlegend=False, row=2, col=column)
        figure.update_xaxes(title="first coordinate", row=2, col=column)
        figure.update_yaxes(title="second coordinate", row=2, col=column)
    return styled(figure, f"Positions in the middle layer of NanoGPT on {text}", height=820)


def _by_layer(layers: pd.DataFrame) -> go.Figure:
    """Share of the ten lowest frequencies and rank by layer."""
    columns = {"dct_energy_10": "share of the ten lowest frequencies", "screenot_rank": "rank estimate"}
    figure = make_subplots(1, 2, subplot_titles=list(columns.values()))
    colors = {"learned": "#1f77b4", "rotary": "#d62728"}
    for column, name in enumerate(columns, 1):
        for position, part in layers.groupby("position", sort=False):
            mean = part.groupby("layer")[name].mean()
            look = dict(mode="lines+markers", line=dict(color=colors[str(position)]), showlegend=column == 1)
            figure.add_scatter(x=mean.index, y=mean, name=f"{position} positions", row=1, col=column, **look)
        figure.update_yaxes(title=columns[name], rangemode="tozero", row=1, col=column)
    figure.update_xaxes(title="layer of the residual stream", dtick=1)
    return styled(figure, "How smooth and how low-ranked positions are, layer by layer")


NANOGPT = Experiment(
    name="song-nanogpt",
    paper="Song",
    of="Tables 1 and 2, NanoGPT",
    question="Has a small language model trained here a low-rank, smooth positional basis, also on other text?",
    run=nanogpt,
    minutes=8.0,
    needs="Shakespeare (corpora/tinyshakespeare.txt) and WikiText; trains 6 layers of width 384 for 5,000 steps, twice",
)
