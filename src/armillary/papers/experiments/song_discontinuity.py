"""Smoothness of positions in models of addition and in language models: Gram matrix, P W P' and QK matrix.

With a short window every model has high shares: ten frequencies are a large part of all when there are few positions.
So language models are also measured on windows as long as those of addition, and for 3 and 5 frequencies as well as 10.
Two controls show the effect of training: the same transformer before training on the same strings, and the table of
learned positions, which does not depend on the strings.
"""

from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.anatomy.loading import load
from armillary.anatomy.modes import one_thread
from armillary.atlas.atlas import Atlas, open_atlas
from armillary.figures.style import SIGNED, styled
from armillary.files.atomic import whole_folder
from armillary.lenses.constituents import qk_energy
from armillary.lenses.positional import positional_arrays
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered, sized
from armillary.papers.experiments.material import atlas_of, models
from armillary.papers.experiments.song_addition import (
    MEASURED,
    PAPER,
    SMALL,
    Position,
    Task,
    draw_problems,
    trained_adder,
)
from armillary.papers.experiments.song_addition import untrained as untrained_adder
from armillary.papers.experiments.song_nanogpt import PAPER as PAPER_LANGUAGE
from armillary.papers.experiments.song_nanogpt import SMALL as SMALL_LANGUAGE
from armillary.papers.experiments.song_nanogpt import language_model, text_of
from armillary.scanning.scan import scan
from armillary.theory.smoothness import dct_energy, gram

POSITIONS: tuple[Position, ...] = ("learned", "rotary")
STREAMS = ("positions", "constituents")
FREQUENCIES = (3, 5, 10)
TABLE = "transformer.wpe.weight"
COMPARED = 5
"""Models are compared at this many frequencies: windows of about 15 positions have few frequencies above 10."""


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
                atlas = _on_problems(
                    settings, run / f"atlas-{kind}-{language.sequences}", model, task, language.sequences
                )
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
    """The initial weights of the model, saved to a folder."""
    folder = run / "untrained"
    if not (folder / "config.json").exists():
        with whole_folder(folder) as place:
            untrained_adder(task, position, seed).save_pretrained(place)
    return folder


def _on_problems(settings: Settings, folder: Path, model: Path, task: Task, sequences: int) -> Atlas:
    """The atlas of a model on random problems of all trained lengths, one per sequence, from its first token."""
    if not (folder / "atlas.zarr").exists():
        lengths = tuple(range(task.shortest, task.longest + 1))
        problems = draw_problems(task, MEASURED, lengths, sequences, 0, room=task.window + 1)
        tokens = problems.tokens[:, : task.window]
        scan(
            model,
            tokens,
            out=folder,
            streams=STREAMS,
            resume=(folder / "scan.json").exists(),
            **settings.loading_for(model),
        )
    return open_atlas(folder)


def _on_text(settings: Settings, model: str, corpus: str, length: int, sequences: int) -> Atlas:
    return atlas_of(settings, model, corpus, length=length, sequences=sequences, streams=STREAMS)


def _row(atlas: Atlas, kind: str, position: str, seed: int, model: Path | str) -> dict[str, Any]:
    """Means over layers (and heads) of the shares of the lowest frequencies."""
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
    """Whether a model has GPT-2's learned position embeddings."""
    return TABLE in dict(load(model, device="cpu").named_parameters())


def _position_table(model: Path | str, length: int, skip: int) -> Float[np.ndarray, "t t"]:
    """The Gram matrix of the centered learned position embeddings, over the positions of the window."""
    rows = dict(load(model, device="cpu").named_parameters())[TABLE].detach().double().numpy()[skip:length]
    return gram(rows - rows.mean(0))


def outcome(task: Task, table: pd.DataFrame, shown: dict[tuple[str, Position], Atlas], reference: str) -> Outcome:
    """The claims, from the table of shares; `reference` is the model that stands for GPT-2."""
    of = _Shares(table, task.window)
    claims = [*_low_frequency_claims(of, reference), *_smoothness_claims(of), *_training_claims(of)]
    return Outcome(
        {"shares": table}, {"gram": _grams(task, shown), "shares": _shares(task, table)}, claims, _learned(task, table)
    )


@dataclass(frozen=True)
class _Shares:
    """The table of shares; called, it gives a column's mean over seeds and that mean's standard error."""

    table: pd.DataFrame
    window: int

    @property
    def short(self) -> "pd.Series[bool]":
        return self.table["window"] == self.window

    def __call__(self, kind: str, position: Position, column: str) -> tuple[float, float]:
        chosen = self.table[(self.table["model"] == kind) & (self.table["position"] == position) & self.short]
        values = chosen[column].to_numpy(dtype=float)
        return float(values.mean()), float(values.std(ddof=1) / sqrt(len(values))) if len(values) > 1 else 0.0


def _low_frequency_claims(of: _Shares, reference: str) -> list[Claim]:
    share, error = of("addition", "learned", "gram_10")
    return [
        sized(
            "the ten lowest frequencies hold about half of the Gram matrix of addition",
            0.5,
            share,
            error=error,
            place="Section 4.3",
            why=f"with {of.window} positions in place of 33, ten frequencies are most of them",
        ),
        sized(
            "the ten lowest frequencies hold nearly all of the Gram matrix of GPT-2",
            0.997,
            float(of.table.loc[(of.table["model"] == reference) & ~of.short, "gram_10"].iloc[0]),
            place=f"Table 3; here {reference}",
        ),
    ]


def _smoothness_claims(of: _Shares) -> list[Claim]:
    seeds = of.table.loc[of.table["model"] == "language", "seed"].nunique()
    claims = []
    for position in POSITIONS:
        for part, name in (("gram", "Gram"), ("pwp", "P W P'"), ("qk", "QK")):
            language, l_error = of("language", position, f"{part}_{COMPARED}")
            adding, a_error = of("addition", position, f"{part}_{COMPARED}")
            claims.append(
                ordered(
                    f"the {name} matrix of a language model is smoother than that of addition, {position} positions "
                    f"(share of {COMPARED} frequencies, {of.window} positions; language models: {seeds})",
                    language,
                    adding,
                    error=sqrt(l_error**2 + a_error**2),
                    printed="99 % against 50 % (Section 4.3)" if part == "gram" else "visibly discontinuous (Figure 5)",
                    why=f"position has {of('language', position, 'pos_share')[0]:.2%} of the variance in the language "
                    f"model, where {of('language', position, 'chance_share')[0]:.2%} is chance",
                )
            )
    return claims


def _training_claims(of: _Shares) -> list[Claim]:
    claims = []
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
    return claims


def _learned(task: Task, table: pd.DataFrame) -> list[str]:
    """Sentences with the numbers of the controls."""
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
            middle_layer = arrays.sel(layer=len(arrays["layer"]) // 2)
            t = middle_layer["position"].to_numpy()
            cosines = go.Heatmap(
                z=middle_layer["gram"].to_numpy().round(3),
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
    """Shares of the lowest frequencies by model, on windows of addition."""
    short = table[table["window"] == task.window]
    parts = {"gram": "Gram matrix", "pwp": "P W P'", "qk": "QK matrix", "table": "position table"}
    figure = make_subplots(1, len(parts), subplot_titles=list(parts.values()), shared_yaxes=True)
    colors = {"addition": "#d62728", "untrained": "#7f7f7f", "language": "#1f77b4"}
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
                line=dict(color=colors.get(str(kind), "#2ca02c"), dash="solid" if position == "learned" else "dot"),
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
