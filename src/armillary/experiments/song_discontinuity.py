"""How smooth positions are in models of addition, beside language models: the Gram matrix, P W P' and the QK matrix.

A short window flatters every model: ten frequencies are a large part of all when there are few positions. So the
language models are measured on windows as long as those of addition too, and for 3 and 5 frequencies as well as 10. Two
controls tell what training adds: the same transformer before training on the same strings, and the table of learned
positions, which no string can break.
"""

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.atlas import Atlas, open_atlas
from armillary.experiments.experiment import Experiment, Outcome, Settings, ordered, sized
from armillary.experiments.material import atlas_of, models
from armillary.experiments.song_addition import MEASURED, PAPER, SMALL, Position, Task, draw_problems, trained_adder
from armillary.experiments.song_addition import untrained as untrained_adder
from armillary.experiments.song_nanogpt import PAPER as PAPER_LANGUAGE
from armillary.experiments.song_nanogpt import SMALL as SMALL_LANGUAGE
from armillary.experiments.song_nanogpt import language_model, text_of
from armillary.figures.style import SIGNED, styled
from armillary.files import whole_folder
from armillary.lenses.constituents import qk_energy
from armillary.lenses.positional import positional_arrays
from armillary.models import load
from armillary.modes import one_thread
from armillary.scanning import scan
from armillary.theory.smoothness import dct_energy, gram

POSITIONS: tuple[Position, ...] = ("learned", "rotary")
STREAMS = ("positions", "constituents")
FREQUENCIES = (3, 5, 10)
TABLE = "transformer.wpe.weight"
COMPARED = 5
"""Windows of about 15 positions have few frequencies above 10; models of one length are compared at this many."""


@one_thread()
def discontinuity(settings: Settings) -> Outcome:
    """Low-frequency shares of P P', P W P' and QK, by model."""
    task, language = (SMALL, SMALL_LANGUAGE) if settings.small else (PAPER, PAPER_LANGUAGE)
    rows: list[dict[str, Any]] = []
    shown: dict[tuple[str, Position], Atlas] = {}
    for position in POSITIONS:
        for seed in range(task.seeds):
            run = trained_adder(settings, task, position, seed)
            fresh = _untrained(run, task, position, seed)
            for kind, model in (("addition", run / "model"), ("untrained", fresh)):
                atlas = _on_problems(run / f"atlas-{kind}-{language.sequences}", model, task, language.sequences)
                rows.append(_row(atlas, kind, position, seed, model))
                shown.setdefault((kind, position), atlas)
        for seed in range(language.seeds):
            folder = language_model(settings, language, position, seed) / "model"
            for length in (task.window, language.length):
                atlas = _on_text(settings, str(folder), text_of(settings)[1], length, language.sequences)
                rows.append(_row(atlas, "language", position, seed, folder))
                shown.setdefault(("language", position), atlas)
    others = models(settings, ("bundled-gpt2",), ("openai-community/gpt2",))
    for name, place in others.items():
        for length in (task.window, language.length):
            atlas = _on_text(settings, place, "builtin:prose", length, language.sequences)
            rows.append(_row(atlas, name, "learned" if _has_table(place) else "other", 0, place))
    return outcome(task, pd.DataFrame(rows), shown, next(iter(others)))


def _untrained(run: Path, task: Task, position: Position, seed: int) -> Path:
    """The weights that training began with, in a folder."""
    folder = run / "untrained"
    if not (folder / "config.json").exists():
        with whole_folder(folder) as place:
            untrained_adder(task, position, seed).save_pretrained(place)
    return folder


def _on_problems(folder: Path, model: Path, task: Task, sequences: int) -> Atlas:
    """The atlas of a model on random problems of all trained lengths, each in a window from its first token."""
    if not (folder / "atlas.zarr").exists():
        lengths = tuple(range(task.shortest, task.longest + 1))
        problems = draw_problems(task, MEASURED, lengths, sequences, 0, room=task.window + 1)
        tokens = problems.tokens[:, : task.window]
        scan(model, tokens, out=folder, streams=STREAMS, resume=(folder / "scan.json").exists())
    return open_atlas(folder)


def _on_text(settings: Settings, model: str, corpus: str, length: int, sequences: int) -> Atlas:
    return atlas_of(settings, model, corpus, length=length, sequences=sequences, streams=STREAMS)


def _row(atlas: Atlas, kind: str, position: str, seed: int, model: Path | str) -> dict[str, Any]:
    """Means over layers (and heads) of the shares that the lowest frequencies hold."""
    layers, geometry = atlas.layers, atlas.group("geometry")
    row: dict[str, Any] = {"model": kind, "position": position, "seed": seed, "window": atlas.settings["length"]}
    for k in FREQUENCIES:
        row[f"gram_{k}"] = float(layers[f"dct_energy_{k}"].mean())
    row["pos_share"] = float(layers["pos_share"].mean())
    row["chance_share"] = 1 / atlas.settings["sequences"]
    row["gram_smoothness"] = float(layers["smoothness"].mean())
    for k in FREQUENCIES:
        row[f"pwp_{k}"] = float(np.nanmean(geometry["pwp_energy"].sel(frequencies=k).to_numpy()))
    for k in FREQUENCIES:
        row[f"qk_{k}"] = float(np.nanmean(qk_energy(atlas, k)))
    for k in FREQUENCIES:
        row[f"table_{k}"] = np.nan
    if position == "learned":
        table = _position_table(model, atlas.settings["length"], atlas.settings["skip"])
        row |= {f"table_{k}": float(dct_energy(table, k)) for k in FREQUENCIES}
    return row


def _has_table(model: Path | str) -> bool:
    """Whether a model has learned positions in the way of GPT-2."""
    return TABLE in dict(load(model).named_parameters())


def _position_table(model: Path | str, length: int, skip: int) -> Float[np.ndarray, "t t"]:
    """The Gram matrix of the learned position embeddings less their mean, over the positions of the window."""
    rows = dict(load(model).named_parameters())[TABLE].detach().double().numpy()[skip:length]
    return gram(rows - rows.mean(0))


def outcome(task: Task, table: pd.DataFrame, shown: dict[tuple[str, Position], Atlas], reference: str) -> Outcome:
    """The claims, from the table of shares; `reference` is the model that stands for GPT-2."""
    short = table["window"] == task.window
    claims = []

    def of(kind: str, position: Position, column: str, *, long: bool = False) -> tuple[float, float]:
        chosen = table[(table["model"] == kind) & (table["position"] == position) & (short != long)]
        values = chosen[column].to_numpy(dtype=float)
        return float(values.mean()), float(values.std(ddof=1) / sqrt(len(values))) if len(values) > 1 else 0.0

    seeds = table.loc[table["model"] == "language", "seed"].nunique()
    share, error = of("addition", "learned", "gram_10")
    claims.append(
        sized(
            "the ten lowest frequencies hold about half of the Gram matrix of addition",
            0.5,
            share,
            error=error,
            place="Section 4.3",
            why=f"with {task.window} positions in place of 33, ten frequencies are most of them",
        )
    )
    claims.append(
        sized(
            "the ten lowest frequencies hold nearly all of the Gram matrix of GPT-2",
            0.997,
            float(table.loc[(table["model"] == reference) & ~short, "gram_10"].iloc[0]),
            place=f"Table 3; here {reference}",
        )
    )
    for position in POSITIONS:
        for part, name in (("gram", "Gram"), ("pwp", "P W P'"), ("qk", "QK")):
            language, l_error = of("language", position, f"{part}_{COMPARED}")
            adding, a_error = of("addition", position, f"{part}_{COMPARED}")
            claims.append(
                ordered(
                    f"the {name} matrix of a language model is smoother than that of addition, {position} positions "
                    f"(share of {COMPARED} frequencies, {task.window} positions; language models: {seeds})",
                    language,
                    adding,
                    error=sqrt(l_error**2 + a_error**2),
                    printed="99 % against 50 % (Section 4.3)" if part == "gram" else "visibly discontinuous (Figure 5)",
                    why=f"position has {of('language', position, 'pos_share')[0]:.2%} of the variance in the language "
                    f"model, where {of('language', position, 'chance_share')[0]:.2%} is chance",
                )
            )
    for position in POSITIONS:
        before, b_error = of("untrained", position, f"gram_{COMPARED}")
        after, a_error = of("addition", position, f"gram_{COMPARED}")
        claims.append(
            ordered(
                f"the discontinuity comes from training: the same strings are smoother before it, {position} positions",
                before,
                after,
                error=sqrt(b_error**2 + a_error**2),
                printed="discontinuity as a consequence of non-language data training (Figure 5)",
                why="which token can stand at a place depends on the place in these strings, which shows in an "
                "untrained model already",
            )
        )
    return Outcome(
        {"shares": table}, {"gram": _grams(task, shown), "shares": _shares(task, table)}, claims, _learned(task, table)
    )


def _learned(task: Task, table: pd.DataFrame) -> list[str]:
    """What the controls say, in numbers."""
    short = table[table["window"] == task.window]

    def of(kind: str, position: Position, part: str) -> str:
        chosen = short[(short["model"] == kind) & (short["position"] == position)]
        return f"{chosen[f'{part}_{COMPARED}'].mean():.0%}"

    return [
        f"On windows of {task.window} positions the {COMPARED} lowest frequencies hold "
        f"{of('addition', 'learned', 'gram')} of the Gram matrix of the trained adder and "
        f"{of('untrained', 'learned', 'gram')} before training on "
        f"the same strings (rotary: {of('addition', 'rotary', 'gram')} and {of('untrained', 'rotary', 'gram')}), "
        f"{of('language', 'learned', 'gram')} in a language model on as many positions. "
        "What the untrained model shows cannot be due to training.",
        f"The table of learned positions, which no string can break, has {of('addition', 'learned', 'table')} of its "
        f"Gram matrix in these frequencies after addition, {of('language', 'learned', 'table')} after training on text "
        f"and {of('untrained', 'learned', 'table')} before training.",
    ]


def _grams(task: Task, shown: dict[tuple[str, Position], Atlas]) -> go.Figure:
    """Cosines between positions in the middle layer: addition, before training, language."""
    kinds = ("addition", "untrained", "language")
    titles = [f"{kind}, {position}" for position in POSITIONS for kind in kinds]
    figure = make_subplots(2, 3, subplot_titles=titles, horizontal_spacing=0.07, vertical_spacing=0.14)
    for row, position in enumerate(POSITIONS, 1):
        for column, kind in enumerate(kinds, 1):
            arrays = positional_arrays(shown[kind, position])
            here = arrays.sel(layer=len(arrays["layer"]) // 2)
            t = here["position"].to_numpy()
            cosines = go.Heatmap(
                z=here["gram"].to_numpy().round(3),
                x=t,
                y=t,
                zmin=-1,
                zmax=1,
                colorscale=SIGNED,
                showscale=(row, column) == (1, 1),
                colorbar=dict(title="cosine"),
            )
            figure.add_trace(cosines, row=row, col=column)
            figure.update_yaxes(autorange="reversed", title="position" if column == 1 else None, row=row, col=column)
            figure.update_xaxes(title="position" if row == 2 else None, row=row, col=column)
    title = (
        f"Cosines between {task.window} positions in the middle layer, addition before and after training, and language"
    )
    return styled(figure, title, height=640)


def _shares(task: Task, table: pd.DataFrame) -> go.Figure:
    """Shares of the lowest frequencies by model, window of addition."""
    short = table[table["window"] == task.window]
    parts = {"gram": "Gram matrix", "pwp": "P W P'", "qk": "QK matrix", "table": "position table"}
    figure = make_subplots(1, len(parts), subplot_titles=list(parts.values()), shared_yaxes=True)
    colours = {"addition": "#d62728", "untrained": "#7f7f7f", "language": "#1f77b4"}
    for column, part in enumerate(parts, 1):
        for (kind, position), rows in short.groupby(["model", "position"], sort=False):
            values = rows[[f"{part}_{k}" for k in FREQUENCIES]].to_numpy(dtype=float)
            if np.isnan(values).all():
                continue
            error = values.std(0, ddof=1) / sqrt(len(values)) if len(values) > 1 else np.zeros(len(FREQUENCIES))
            figure.add_scatter(
                x=[str(k) for k in FREQUENCIES],
                y=values.mean(0),
                error_y=dict(array=error),
                mode="lines+markers",
                line=dict(color=colours.get(str(kind), "#2ca02c"), dash="solid" if position == "learned" else "dot"),
                name=f"{kind}, {position}",
                legendgroup=f"{kind}, {position}",
                showlegend=part == "gram",
                row=1,
                col=column,
            )
    figure.update_xaxes(title="lowest frequencies", type="category")
    figure.update_yaxes(range=[0, 1.05]).update_yaxes(title="share of the energy", col=1)
    return styled(figure, f"What the lowest frequencies hold, {task.window} positions")


DISCONTINUITY = Experiment(
    name="song-addition-smoothness",
    paper="Song",
    of="Figures 5 and 18 to 23",
    question="Is the positional basis of addition less smooth than that of language, and is that due to training?",
    run=discontinuity,
    minutes=3.0,
    needs="what song-addition and song-nanogpt train, and openai-community/gpt2",
)
