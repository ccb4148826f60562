"""The report of more than two atlases: maps side by side, labels, and what changes most over the series."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.anatomy.naming import corpus_title
from armillary.atlas.compare import compare
from armillary.atlas.series import refuse_other_shapes, series_changes, series_labels, series_layers
from armillary.errors import ArmillaryError
from armillary.figures.head_map import LABEL_COLORS
from armillary.figures.series import label_bars, label_maps, series_lines
from armillary.report import sentences
from armillary.report.page import Block, Card, Grid, Page, Pairs, Picture, Section, Words
from armillary.report.sections import provenance_rows, sentence
from armillary.report.whole import short_name, size

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def series_page(atlases: "Sequence[Atlas]") -> Page:
    """The report of a series; the atlases must have the same layers and heads."""
    refuse_other_shapes(atlases)
    names = series_names(atlases)
    numbered = [f"{number}: {name}" for number, name in enumerate(names, 1)]
    first, last = atlases[0], atlases[-1]
    changes = series_changes(atlases)
    has_labels = all(sentences.known(atlas.heads, "label") for atlas in atlases)
    lines = series_lines(changes, numbered)
    cards = [
        Card(
            f"From the first to the last: {_small(sentences.labels_changed(first.heads, last.heads).text)}",
            Picture(label_bars(series_labels(atlases), numbered), "Heads by label.") if has_labels else None,
        ),
        Card(
            f"From the first to the last: {_small(sentences.position_changed(first.heads, last.heads).text)}",
            None,
        ),
        Card(
            largest_sentence(changes, names),
            Picture(lines, "The five largest changes, in units of the measure's spread over heads.") if lines else None,
        ),
    ]
    sections = [
        Section("atlases", "The atlases", [*_atlases(atlases, numbered)]),
        Section("maps", "Heads by label", _maps(atlases, numbered, has_labels)),
        Section("changes", "What changes most", _changes(changes)),
        Section("layers", "Layers", _layers(atlases)),
        *(
            Section(f"provenance-{number}", f"Provenance of {name}", [Pairs(provenance_rows(atlas))])
            for number, (name, atlas) in enumerate(zip(numbered, atlases, strict=True), 1)
        ),
    ]
    data = {"kind": "series", "labels": LABEL_COLORS, "maps": {}, "panels": {}, "arrays": {}, "evidence": []}
    title = f"{len(atlases)} atlases side by side: {short_name(first)} to {short_name(last)}"
    return Page(title, size(first), cards, sections, data)


def series_names(atlases: "Sequence[Atlas]") -> list[str]:
    """The models' names, with the text where texts differ, with the folder where that is not enough."""
    texts = {str(atlas.attrs["corpus"].get("sha256")) for atlas in atlases}
    names = [short_name(atlas) for atlas in atlases]
    if len(texts) > 1:
        titles = [corpus_title(str(atlas.attrs["corpus"]["name"])) for atlas in atlases]
        names = [f"{name} on {text}" for name, text in zip(names, titles, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({atlas.path.parent.name})" for name, atlas in zip(names, atlases, strict=True)]
    return names


def largest_sentence(changes: pd.DataFrame, names: list[str]) -> str:
    """The measure and head with the largest range, and in which atlases it has its ends."""
    if changes.empty:
        return "No measure of any head changes over the series."
    top = changes.iloc[0]
    values = top[[name for name in changes.columns if str(name).startswith("atlas_")]].to_numpy(float)
    low, high = int(values.argmin()), int(values.argmax())
    return (
        f"Over the series, {top['measure']} of head {int(top['layer'])}.{int(top['head'])} changes most: from "
        f"{values[low]:.2f} in {names[low]} to {values[high]:.2f} in {names[high]}, {top['size']:.1f} times its spread "
        "over heads."
    )


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]


def _atlases(atlases: "Sequence[Atlas]", numbered: list[str]) -> list[Block]:
    rows = {name: size(atlas) for name, atlas in zip(numbered, atlases, strict=True)}
    lines: list[Block] = [Pairs(rows)]
    for number, (before, after) in enumerate(pairwise(atlases), 1):
        scans = compare(before, after).scans
        differing = [line for line in scans if not line.startswith(("model name", "model title", "model config"))]
        if any(line.startswith("model config") for line in scans):
            differing.append("the configuration differs")
        if differing:
            lines.append(Words(sentence(f"From {number} to {number + 1}: {'; '.join(differing[:4])}")))
    return lines


def _maps(atlases: "Sequence[Atlas]", numbered: list[str], has_labels: bool) -> list[Block]:
    if not has_labels:
        return [Words("Not all of the atlases have labels: scan again with the stream 'patterns'.")]
    grids, significant = [], []
    for atlas in atlases:
        grids.append(atlas.heads.pivot(index="layer", columns="head", values="label").fillna("").to_numpy(object))
        sure = atlas.heads.pivot(index="layer", columns="head", values="significant")
        significant.append(sure.astype("Float64").to_numpy(float, na_value=np.nan))
    return [
        Picture(
            label_maps(grids, significant, numbered),
            "Layers down, heads across; letters where the label is significant against random heads.",
        ),
        Grid("series_labels", series_labels(atlases), "series_labels", "Heads by label in every atlas."),
    ]


def _changes(changes: pd.DataFrame) -> list[Block]:
    if changes.empty:
        return [Words("No measure of any head changes.")]
    return [Grid("series", changes, "series", "The largest changes over the series.", filters=True)]


def _layers(atlases: "Sequence[Atlas]") -> list[Block]:
    try:
        table = series_layers(atlases)
    except (ArmillaryError, KeyError):
        table = pd.DataFrame()
    if table.empty:
        return [Words("No measure of the layers is in all of the atlases.")]
    return [Grid("series_layers", table, "series_layers", "Means over layers 1 to L.")]
