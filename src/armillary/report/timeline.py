"""The page of a timeline: a slider over checkpoints with the map of heads, the loss with births, curves of a column."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from armillary.anatomy.naming import corpus_title
from armillary.atlas.columns import in_set
from armillary.figures.head_map import LABEL_COLORS
from armillary.figures.timeline import column_curves, label_map, loss_with_births
from armillary.files.atomic import make_folder, write_atomically
from armillary.lenses.labels import MEASURES
from armillary.report.dossiers import plain
from armillary.report.page import Card, Grid, Page, Pairs, Section, TimeSlider, Words, render
from armillary.report.sections import sentence
from armillary.report.timeline_sentences import births_sentence, change_sentence, loss_sentence

if TYPE_CHECKING:
    from armillary.atlas.timelines.timeline import Timeline

MOST_NUMBERS = 600_000
"""Numbers of curves in a page; a larger timeline shows fewer columns."""
MOST_CHANGES = 300


def write_timeline_page(timeline: "Timeline", path: str | Path) -> Path:
    """Write the page of a timeline, one file that needs no network and no server."""
    path = Path(path)
    make_folder(path.parent)
    write_atomically(path, timeline_html(timeline).encode("utf-8"))
    return path


def timeline_html(timeline: "Timeline") -> str:
    """The page as HTML."""
    return render(timeline_page(timeline))


def timeline_page(timeline: "Timeline") -> Page:
    """What the page shows."""
    model, text = timeline.attrs["model"], timeline.attrs["corpus"]
    changes = timeline.changes(MOST_CHANGES)
    unit = timeline.unit
    cards = [
        Card(text, None)
        for text in (births_sentence(timeline), loss_sentence(timeline), change_sentence(changes, unit))
        if text
    ]
    columns = page_columns(timeline)
    notes = [Words(sentence(note)) for note in timeline.attrs.get("notes", [])]
    sections = [
        Section("through", "Heads through time", [TimeSlider(columns, unit, [f"{step:,}" for step in timeline.steps])]),
        Section(
            "births",
            "Births",
            [
                Words(
                    "A head is born at the first checkpoint from which on its label is that of the last checkpoint and "
                    "significant against random heads."
                ),
                Grid("births", timeline.births, "births", "Heads in the order of birth.", filters=True),
            ],
        ),
        Section(
            "changes",
            "Largest changes",
            [Grid("steps", changes, "steps", "Changes from one checkpoint to the next, largest first.", filters=True)],
        ),
        Section(
            "checkpoints",
            "Checkpoints",
            [*notes, Grid("checkpoints", timeline.checkpoints.dropna(axis=1, how="all"), "checkpoints", "In order.")],
        ),
        Section("provenance", "Provenance", [Pairs(_provenance(timeline))]),
    ]
    data = {
        "kind": "timeline",
        "labels": LABEL_COLORS,
        "maps": {},
        "panels": {},
        "arrays": {},
        "evidence": [],
        "timeline": _data(timeline, columns),
    }
    layers, heads = timeline.labels.shape[1:]
    size = f"{model.get('family') or 'unknown family'}, {layers} layers of {heads} heads; "
    size += f"{len(timeline.steps)} checkpoints, {timeline.unit} {timeline.steps[0]:,} to {timeline.steps[-1]:,}"
    title = f"The heads of {model.get('title', 'a model')} through training, on {corpus_title(str(text['name']))}"
    return Page(title, size, cards, sections, data)


def page_columns(timeline: "Timeline") -> list[str]:
    """The columns that the page offers, those that labels are decided by first; as many as fit."""
    decided = dict.fromkeys(MEASURES[label] for label in MEASURES)
    usual = in_set("heads", "usual", timeline.measures)
    ordered = dict.fromkeys(["induction_score", *decided, *usual, *timeline.measures])
    present = [name for name in ordered if name in timeline.measures]
    fits = max(1, MOST_NUMBERS // timeline.labels.size)
    return present[:fits]


def _data(timeline: "Timeline", columns: list[str]) -> dict[str, Any]:
    """What the slider needs: labels as numbers, curves, and templates of the figures."""
    names = [name for name in LABEL_COLORS if (timeline.labels == name).any()]
    codes = np.full(timeline.labels.shape, -1)
    for code, name in enumerate(names):
        codes[timeline.labels == name] = code
    count = len(timeline.steps)
    significant = timeline.heads["significant"].to_numpy()
    return {
        "unit": timeline.unit,
        "steps": timeline.steps.tolist(),
        "names": names,
        "codes": codes.reshape(count, -1).tolist(),
        "significant": (significant == 1).astype(int).reshape(count, -1).tolist(),
        "heads": int(timeline.labels.shape[2]),
        "columns": {name: _rounded(timeline.heads[name].to_numpy().reshape(count, -1)) for name in columns},
        "map": plain(label_map(timeline.labels[-1], significant[-1], names)),
        "loss": plain(loss_with_births(timeline)),
        "curves": plain(column_curves(timeline, columns[0])) if columns else None,
    }


def _rounded(values: Any) -> list[list[float | None]]:
    """To four digits; missing and infinite ones as null."""
    return [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in values.astype(float)]


def _provenance(timeline: "Timeline") -> dict[str, str]:
    attributes = timeline.attrs
    rows = {f"model {key}": str(value) for key, value in attributes["model"].items()}
    rows |= {f"text {key}": str(value) for key, value in attributes["corpus"].items()}
    rows |= {key.replace("_", " "): str(value) for key, value in attributes["settings"].items()}
    rows |= {f"version of {key}": str(value) for key, value in attributes.get("versions", {}).items()}
    return rows
