"""The report that compares two atlases: what changed, in sentences, maps and sorted tables."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.anatomy.naming import corpus_title
from armillary.atlas.columns import is_measure
from armillary.atlas.compare import Comparison, compare
from armillary.figures.head_map import LABEL_COLORS, measure_map
from armillary.report import pictures, sentences
from armillary.report.page import Block, Card, Grid, HeadMap, Page, Pairs, Picture, Section, Words
from armillary.report.sections import provenance_rows, sentence
from armillary.report.whole import short_name, size, word_maps

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

MOST_ROWS = 1000
"""How many of the largest changes are listed."""


def comparison_page(a: "Atlas", b: "Atlas") -> Page:
    """The report of a comparison; the atlases must have the same layers and heads."""
    comparison = compare(a, b)
    table = differences(a.heads, b.heads)
    moved = _most_moved(comparison)
    cards = [
        Card(sentences.labels_changed(a.heads, b.heads).text, _label_map(a.heads, b.heads)),
        Card(sentences.position_changed(a.heads, b.heads).text, Picture(pictures.change_bars(comparison.heads), BARS)),
        Card(sentences.largest_change(comparison.heads).text, _change_map(table, moved)),
    ]
    parts = [
        Section("scans", "What differs between the scans", _scans(comparison)),
        Section("heads", "Heads", _heads(comparison, table)),
        Section("labels", "Labels that changed", _labels(a.heads, b.heads)),
        Section("layers", "Layers", _layers(comparison)),
        Section("provenance-a", f"Provenance of the first: {short_name(a)}", [Pairs(provenance_rows(a))]),
        Section("provenance-b", f"Provenance of the second: {short_name(b)}", [Pairs(provenance_rows(b))]),
    ]
    data = {
        "kind": "comparison",
        "labels": LABEL_COLORS,
        "maps": word_maps(table),
        "panels": {},
        "arrays": {},
        "evidence": [],
        "measure": moved or "",
        "before": _values(a.heads, table),
        "after": _values(b.heads, table),
    }
    title = f"What changed from {_name(a, b)} to {_name(b, a)}"
    return Page(title, f"{size(a)}; the second: {size(b)}", cards, parts, data)


BARS = "The measures that changed most, median over heads, in units of their spread over heads."


def _name(atlas: "Atlas", other: "Atlas") -> str:
    """The model's name, and the text if the two atlases have different texts."""
    name, text = short_name(atlas), atlas.attrs["corpus"]["name"]
    return name if text == other.attrs["corpus"]["name"] else f"{name} on {corpus_title(str(text))}"


def differences(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Second minus first, for every head and every number that both have."""
    index = ["layer", "head"]
    numbers = [
        column
        for column in a.columns
        if is_measure("heads", column) and column in b and pd.api.types.is_numeric_dtype(a[column])
    ]
    change = b[numbers].astype(float) - a[numbers].astype(float)
    return pd.concat([a[index], change.dropna(axis=1, how="all")], axis=1)


def _values(heads: pd.DataFrame, table: pd.DataFrame) -> dict[str, list[float | None]]:
    names = [str(column) for column in table.columns if column not in ("layer", "head")]
    return {
        name: [None if pd.isna(v) or not np.isfinite(v) else float(f"{v:.7g}") for v in heads[name].astype(float)]
        for name in names
    }


def _most_moved(comparison: Comparison) -> str | None:
    """The measure with the largest change of all."""
    moved = comparison.heads[np.isfinite(comparison.heads["size"]) & (comparison.heads["size"] > 0)]
    return None if moved.empty else str(moved.iloc[0]["measure"])


def _change_map(table: pd.DataFrame, measure: str | None) -> Picture | None:
    if measure is None:
        return None
    figure = measure_map(table, measure).update_layout(height=pictures.small(table))
    return Picture(figure, f"Change of {measure}, second minus first.", opens=True)


def _label_map(a: pd.DataFrame, b: pd.DataFrame) -> Picture | None:
    """The second atlas's labels where they differ from the first's."""
    if not sentences.known(a, "label") or not sentences.known(b, "label"):
        return None
    changed = sentences.changed_labels(a, b).set_index(["layer", "head"]).index
    if changed.empty:
        return None
    same = ~pd.MultiIndex.from_frame(b[["layer", "head"]]).isin(changed)
    shown = b[["layer", "head"]].assign(label=b["label"].mask(same))
    figure = measure_map(shown, "label").update_layout(height=pictures.small(shown))
    return Picture(figure, "New labels of the heads whose label changed; the others are blank.", opens=True)


def _scans(comparison: Comparison) -> list[Block]:
    if not comparison.scans:
        return [Words("Nothing: same weights, same text, same settings.")]
    return [Words(sentence(line)) for line in comparison.scans]


def _heads(comparison: Comparison, table: pd.DataFrame) -> list[Block]:
    changes = comparison.heads[~(comparison.heads["size"] == 0)]
    if changes.empty:
        return [Words("No measure of any head changed.")]
    shown = f"The {MOST_ROWS} largest of {len(changes)} changes" if len(changes) > MOST_ROWS else "All changes"
    wide = [str(column) for column in table.columns if column not in ("layer", "head")]
    return [
        HeadMap("Change of the measure, second minus first. Click a head for its numbers."),
        Grid("changes", changes.head(MOST_ROWS), "changes", f"{shown}, largest first.", filters=True),
        Grid(
            "heads",
            table,
            "heads",
            "Changes of every head, second minus first.",
            {"first": wide[:12], "all": wide},
            True,
        ),
    ]


def _labels(a: pd.DataFrame, b: pd.DataFrame) -> list[Block]:
    if not sentences.known(a, "label") or not sentences.known(b, "label"):
        return [Words("At least one of the atlases has no labels: scan again with the stream 'patterns'.")]
    changed = sentences.changed_labels(a, b)
    if changed.empty:
        return [Words("No label changed.")]
    return [Grid("labels", changed, "changes", "Heads whose label changed.")]


def _layers(comparison: Comparison) -> list[Block]:
    changes = comparison.layers[~(comparison.layers["size"] == 0)]
    if changes.empty:
        return [Words("No measure of any layer changed, or none was measured.")]
    return [
        Grid(
            "layers",
            changes.head(MOST_ROWS),
            "changes",
            "Changes of the residual stream, largest first.",
            filters=True,
        )
    ]
