"""The page's data of an atlas: the start, the figures of a head, the spiral, and a second atlas."""

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import pandas as pd

from armillary.anatomy.description import Alibi, Disentangled, LayerPosition, RelativeBias, Rotary
from armillary.anatomy.naming import corpus_title, recorded_title
from armillary.atlas.columns import definition, is_measure
from armillary.atlas.compare import compare
from armillary.errors import ArmillaryError
from armillary.figures.head_map import LABEL_COLORS, ink_on
from armillary.figures.localization import COLORS as REGIME_COLORS
from armillary.figures.positional import contexts, spiral
from armillary.lenses.positional import context_coordinates, positional_arrays
from armillary.streams.constituents import TERMS
from armillary.viewer.arrays import plain
from armillary.viewer.cells import MOST
from armillary.viewer.dossiers import Dossiers
from armillary.viewer.live import LiveModel

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from armillary.atlas.atlas import Atlas

COLORS = {**LABEL_COLORS, **REGIME_COLORS}


class Pages:
    """One atlas, or two, as the page reads them. Read-only; figures are cached."""

    def __init__(
        self, atlas: "Atlas", other: "Atlas | None" = None, live: LiveModel | None = None, why: str = ""
    ) -> None:
        self.atlas, self.other, self.live = atlas, other, live
        self._why = why
        self.heads = atlas.heads
        self.counts = [layer.heads for layer in atlas.anatomy.layers]
        self.comparison = None
        if other is not None:
            self.comparison = compare(atlas, other)
        self.dossiers = Dossiers(atlas)
        self.spiral = lru_cache(maxsize=256)(self._spiral)

    def start(self) -> dict[str, Any]:
        """Everything that does not depend on a head or a text."""
        attrs, settings, anatomy = self.atlas.attrs, self.atlas.settings, self.atlas.anatomy
        encodings = [layer.position for layer in anatomy.layers]
        live = self.live
        return plain(  # type: ignore[no-any-return]
            {
                "model": recorded_title(attrs["model"]),
                "family": anatomy.family,
                "corpus": corpus_title(attrs.get("corpus", {}).get("name", "")),
                "finished": attrs.get("finished", ""),
                "length": settings.get("length"),
                "skip": settings.get("skip"),
                "heads_in": self.counts,
                "head_width": [layer.head_width for layer in anatomy.layers],
                "rotary": any(isinstance(position, Rotary) for position in encodings),
                "bases": _bases(encodings),
                "biased": any(isinstance(position, Alibi | RelativeBias | Disentangled) for position in encodings),
                "measures": measures(self.heads),
                "table": columns(self.heads),
                "other": None if self.other is None else self._other(),
                "terms": TERMS,
                "colors": COLORS,
                "inks": {word: ink_on(color) for word, color in COLORS.items()},
                "figures": self.dossiers.templates,
                "points": self.points,
                "live": live is not None,
                "constituents": live is not None and not live.no_terms,
                "most_tokens": live.most_tokens if live is not None else 0,
                "exact_tokens": MOST,
                "missing": self.missing(),
            }
        )

    def missing(self) -> list[str]:
        """What this page cannot show, and what to do about it."""
        if self.atlas.kind == "weights":
            return [
                "This atlas was made from weights alone: scan the model for attention, texts, positions and changes."
            ]
        notes = []
        if self.live is None:
            notes.append(
                f"No model is loaded ({self._why}), so texts and changes cannot be tried: "
                "start the viewer with --model MODEL."
            )
        elif self.live.no_terms:
            notes.append(f"Constituents of a text are not available: {self.live.no_terms}.")
        if "label" not in self.heads or self.heads["label"].isna().all():
            notes.append("This atlas has no labels: scan the model again.")
        return notes

    @cached_property
    def points(self) -> int:
        """How many points of the residual stream have a positional basis."""
        if not self.atlas.has("residual") or "positions" not in self.atlas.settings["streams"]:
            return 0
        return int(self.atlas.group("residual").sizes["layer"])

    def _other(self) -> dict[str, Any]:
        assert self.other is not None
        assert self.comparison is not None
        attrs = self.other.attrs
        return {
            "model": recorded_title(attrs["model"]),
            "corpus": corpus_title(attrs.get("corpus", {}).get("name", "")),
            "table": columns(self.other.heads),
            "scans": self.comparison.scans,
            "changes": json.loads(self.comparison.heads.head(200).to_json(orient="records")),
        }

    def _spiral(self, kind: str, layer: int) -> str:
        """pos or sampled cvec of a layer in three principal coordinates, as Plotly's JSON."""
        if kind == "cvec":
            if not self.atlas.has("sample"):
                raise ArmillaryError(
                    "this atlas has no vectors of single tokens, which cvec needs", advice="scan again"
                )
            return _as_json(contexts(context_coordinates(self.atlas, layer), layer))
        return _as_json(spiral(self._positional, layer))

    @cached_property
    def _positional(self) -> Any:
        return positional_arrays(self.atlas)


def _as_json(figure: "go.Figure | None") -> str:
    return "null" if figure is None else str(figure.to_json(engine="json"))


def _bases(encodings: Sequence[LayerPosition | None]) -> list[str]:
    """The rotary bases of the layers, each once, as the page names them."""
    return [f"{base:.10g}" for base in sorted({turned.base for turned in encodings if isinstance(turned, Rotary)})]


def columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """The columns of a table of heads; missing values are null, booleans 1 and 0, which maps can color."""

    def shown(value: Any) -> Any:
        return None if pd.isna(value) else int(value) if isinstance(value, bool) else value

    return {str(name): plain([shown(value) for value in column]) for name, column in table.items()}


def measures(heads: pd.DataFrame) -> list[dict[str, Any]]:
    """The measures that at least one head has, with their definitions."""
    present = [name for name in heads.columns if is_measure("heads", name) and heads[name].notna().any()]
    declared = {name: definition("heads", name) for name in present}
    return [
        {
            "name": name,
            "words": not pd.api.types.is_numeric_dtype(heads[name]),
            "means": "" if column is None else column.words,
        }
        for name, column in declared.items()
    ]
