"""The data of a head's dossier for the page: one template per figure, and every head's arrays.

Drawing a figure in Python is too slow for switching heads; the page fills the fields that a trace's `meta` names
(figures/heads.py) with the arrays of the shown head.
"""

import json
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from armillary.anatomy.sources import SIDES
from armillary.errors import ArmillaryError
from armillary.figures import heads as drawn
from armillary.lenses.labels import evidence_table
from armillary.lenses.panels import Arrays, logit_arrays, pattern_arrays, share_arrays
from armillary.lenses.sources import edges, fed_by, feeds
from armillary.report.reading import reading_cards
from armillary.viewer.arrays import packed, plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from armillary.atlas.atlas import Atlas

MATRICES = "logits"
"""The panel whose arrays are read for one head at a time: those of all heads may not fit in memory."""


LEAST, MOST_EDGES = 0.02, 8
"""Shares of sources that are listed: not smaller, and not more on each side."""


class Dossiers:
    """The dossiers of all heads of an atlas."""

    def __init__(self, atlas: "Atlas") -> None:
        self._atlas = atlas
        self._heads = atlas.heads.reset_index(drop=True)
        names = zip(self._heads["layer"].tolist(), self._heads["head"].tolist(), strict=True)
        self._row = {(int(layer), int(head)): i for i, (layer, head) in enumerate(names)}
        self.evidence = _evidence(atlas)
        self._of_logits = lru_cache(maxsize=64)(lambda layer, head: logit_arrays(atlas, layer, head))

    def of(self, layer: int, head: int) -> dict[str, Any]:
        """A head's evidence, and its arrays by name; NaN where a number is missing."""
        i = self._row[layer, head]
        arrays = {name: values[i] for name, values in self._by_row.items()}
        for panel, of_all in self._by_head.items():
            own = {name: values for name, values in of_all.items() if name not in drawn.PANELS[panel].shared}
            arrays |= {name: values[layer, head] for name, values in own.items()}
        arrays |= self._of_logits(layer, head) or {}
        numbers = {name: packed(np.asarray(values)) for name, values in arrays.items() if values.dtype.kind in "fi"}
        return {
            "evidence": self._evidence_of(layer, head),
            "reading": self._reading[i],
            "arrays": numbers,
            "circuit": self._circuit_of(layer, head),
        }

    def _circuit_of(self, layer: int, head: int) -> dict[str, list[list[Any]]]:
        """What feeds the head on each side, and what it feeds: [name, share], largest first; {} without sources."""
        if self._edges is None:
            return {}
        own = feeds(self._edges, layer, head)
        lists = {side: own[own["side"] == side][["source", "share"]] for side in SIDES}
        read = fed_by(self._edges, layer, head)
        names = [f"L{a}H{b}" for a, b in zip(read["layer"], read["head"], strict=True)]
        lists["feeds"] = pd.DataFrame({"head": names, "share": read["share"], "side": read["side"]})
        return {
            name: [list(row) for row in rows.head(MOST_EDGES).itertuples(index=False)] for name, rows in lists.items()
        }

    @cached_property
    def _edges(self) -> pd.DataFrame | None:
        return edges(self._atlas, LEAST) if self._atlas.has("sources") else None

    def _evidence_of(self, layer: int, head: int) -> list[dict[str, Any]]:
        """For every candidate label the measure, its value, the value of random heads, the threshold."""
        rows = self.evidence
        if rows is None:
            return []
        own = rows[(rows["layer"] == layer) & (rows["head"] == head)].drop(columns=["layer", "head"])
        return plain(own.to_dict("records"))  # type: ignore[no-any-return]

    @cached_property
    def templates(self) -> dict[str, Any]:
        """The figures of the dossier in order, each drawn for the first head that has its numbers."""
        row = {name: values[0] for name, values in self._by_row.items()}
        first = self._heads.iloc[0]
        figures: dict[str, go.Figure | None] = {
            "patterns": drawn.pattern_bars(first, self.evidence) if "patterns" in row else None,
            "constituents": drawn.constituent_bars(self._first_with("shares")) if "shares" in row else None,
        }
        for name, panel in drawn.PANELS.items():
            arrays = self._of_logits(0, 0) if name == MATRICES else self._first(name)
            figures[name] = panel.draw(arrays) if arrays else None
        return {name: json.loads(figure.to_json()) for name, figure in figures.items() if figure is not None}

    def _first_with(self, name: str) -> pd.Series:
        known = np.isfinite(self._by_row[name]).any(-1)
        return self._heads.iloc[int(np.argmax(known))]

    def _first(self, panel: str) -> Arrays | None:
        """The arrays of the first head that has any finite number in this panel."""
        of_all = self._by_head.get(panel)
        if of_all is None:
            return None
        shared = drawn.PANELS[panel].shared
        for layer, head in self._row:
            own = {name: values if name in shared else values[layer, head] for name, values in of_all.items()}
            if any(np.isfinite(values).any() for name, values in own.items() if name not in shared):
                return own
        return None

    @cached_property
    def _reading(self) -> list[dict[str, Any]]:
        """What every head reads and writes, in tokens: the report's cards, each with what the head does in words."""
        says = self._heads["does"].fillna("").tolist() if "does" in self._heads else [""] * len(self._heads)
        return [{**card, "does": does} for card, does in zip(reading_cards(self._atlas), says, strict=True)]

    @cached_property
    def _by_row(self) -> Arrays:
        """Arrays from the heads table: (row, ...)."""
        return {
            **(pattern_arrays(self._heads, self.evidence) or {}),
            **(share_arrays(self._heads) or {}),
        }

    @cached_property
    def _by_head(self) -> dict[str, Arrays]:
        """Arrays from the atlas, by panel: (layer, head, ...)."""
        read = {name: panel.arrays(self._atlas, None, None) for name, panel in drawn.PANELS.items() if name != MATRICES}
        return {name: arrays for name, arrays in read.items() if arrays is not None}


def _evidence(atlas: "Atlas") -> pd.DataFrame | None:
    """The evidence for every head's label; None for an atlas without labels."""
    try:
        return evidence_table(atlas)
    except (ArmillaryError, KeyError):
        return None
