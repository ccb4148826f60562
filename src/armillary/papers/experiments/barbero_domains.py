"""Barbero's Figure 19: is the use of frequencies the same on every kind of text?"""

from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.figures.style import heat, styled
from armillary.files.atomic import make_folder, write_atomically
from armillary.lenses.rotary import frequency_table
from armillary.papers.experiments.barbero_frequencies import PAPER, SMALL, short
from armillary.papers.experiments.experiment import Experiment, Outcome, Settings, sized
from armillary.papers.experiments.material import WRITTEN, atlas_of, corpora, models

ADDITIONS = 4000
"""Lines of the arithmetic domain: additions of two large integers."""


def domains(settings: Settings) -> Outcome:
    """The correlation of frequency usage between kinds of text (Figure 19)."""
    chosen = SMALL if settings.small else PAPER
    written = _additions(settings)
    texts = corpora(settings, (*chosen.text, *chosen.domains), (*chosen.text, *chosen.domains))
    texts = {name: str(written) if place == WRITTEN else place for name, place in texts.items()}
    options = dict(length=chosen.length, sequences=chosen.domain_sequences, streams=("attention", "chunks"))
    rows, usage, claims = [], {}, []
    for model, place in models(settings, chosen.models, chosen.models).items():
        maps = {}
        for text, corpus in texts.items():
            table = frequency_table(atlas_of(settings, place, corpus, **options))
            maps[text] = table.pivot(index=["layer", "head"], columns="frequency", values="q_norm").to_numpy(float)
        usage[model] = maps
        likeness = {pair: _likeness(maps[pair[0]], maps[pair[1]]) for pair in _pairs(list(maps))}
        rows += [{"model": model, "one": a, "other": b, "correlation": value} for (a, b), value in likeness.items()]
        if likeness:
            (a, b), least = min(likeness.items(), key=lambda item: item[1])
            claims.append(
                sized(
                    f"{model}: usage is very similar in all domains (least correlation of log chunk norms over heads "
                    f"and frequencies: {a} and {b})",
                    1.0,
                    least,
                    place="Figure 19: very similar, very slight differences",
                    why="small models on short texts; whether their size is why was not tested",
                    signed=True,
                )
            )
    table = pd.DataFrame(rows)
    return Outcome(
        tables={"likeness": table.round(4)},
        figures={f"domains_{short(model)}": _by_domain(model, maps) for model, maps in list(usage.items())[:2]},
        claims=claims,
    )


def _additions(settings: Settings) -> Path:
    """A text of additions of two large integers, always the same."""
    path = settings.work / "texts" / "additions.txt"
    if not path.exists():
        numbers = np.random.default_rng(0).integers(10**5, 10**9, (ADDITIONS, 2))
        make_folder(path.parent)
        write_atomically(path, "".join(f"{a} + {b} = {a + b}\n" for a, b in numbers.tolist()).encode())
    return path


def _likeness(first: Float[np.ndarray, "head f"], second: Float[np.ndarray, "head f"]) -> float:
    """Correlation of the logarithms of two maps of chunk norms."""
    return float(np.corrcoef(np.log(first).ravel(), np.log(second).ravel())[0, 1])


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]


def _by_domain(model: str, maps: dict[str, Float[np.ndarray, "head f"]]) -> go.Figure:
    columns = min(3, len(maps))
    rows = -(-len(maps) // columns)
    figure = make_subplots(rows, columns, subplot_titles=list(maps), vertical_spacing=0.18, shared_yaxes=True)
    top = float(np.log10(np.concatenate(list(maps.values()))).max())
    low = float(np.log10(np.concatenate(list(maps.values()))).min())
    for i, values in enumerate(maps.values()):
        bar = dict(title="log10 |q|", thickness=10, outlinewidth=0)
        figure.add_trace(
            heat(np.log10(values).round(3), signed=False, zmin=low, zmax=top, showscale=i == 0, colorbar=bar),
            row=i // columns + 1,
            col=i % columns + 1,
        )
    figure.update_xaxes(title="frequency, fastest first").update_yaxes(autorange="reversed")
    figure.update_yaxes(title="head, all layers", col=1)
    return styled(
        figure, f"{model}: norms of query chunks, by head and frequency, on each kind of text", height=300 * rows + 80
    )


EXPERIMENTS = (
    Experiment(
        name="barbero-domains",
        paper="Barbero",
        of="Figure 19",
        question="Does the use of frequencies depend on the kind of text?",
        run=domains,
        minutes=1.0,
        needs="google/gemma-7b; texts in Italian and Chinese with --corpus",
    ),
)
