"""What the page is told about an atlas: how it starts, the figures of a head, the spiral, and a second atlas."""

import json
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import pandas as pd

from armillary.errors import ArmillaryError
from armillary.figures.head_map import LABEL_COLOURS, ink_on
from armillary.figures.localization import COLOURS as REGIME_COLOURS
from armillary.naming import corpus_title, recorded_title
from armillary.report.definitions import definition
from armillary.streams.constituents import TERMS
from armillary.viewer.arrays import plain
from armillary.viewer.cells import MOST
from armillary.viewer.dossiers import Dossiers
from armillary.viewer.live import LiveModel

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from armillary.atlas import Atlas

COLOURS = {**LABEL_COLOURS, **REGIME_COLOURS}
NOT_MEASURES = ("layer", "head", "kv_head", "also", "rests_on")


class Pages:
    """One atlas, or two, as the page reads them. Nothing here changes; figures are kept once they are drawn."""

    def __init__(
        self, atlas: "Atlas", other: "Atlas | None" = None, live: LiveModel | None = None, why: str = ""
    ) -> None:
        self.atlas, self.other, self.live = atlas, other, live
        self._why = why
        self.heads = atlas.heads
        self.counts = [int(layer["heads"]) for layer in atlas.attrs["anatomy"]["layers"]]
        self.comparison = None
        if other is not None:
            from armillary.comparison import compare

            self.comparison = compare(atlas, other)
        self.dossiers = Dossiers(atlas)
        self.spiral = lru_cache(maxsize=256)(self._spiral)

    def start(self) -> dict[str, Any]:
        """Everything that does not depend on a head or a text."""
        attrs, settings = self.atlas.attrs, self.atlas.settings
        live = self.live
        return plain(  # type: ignore[no-any-return]
            {
                "model": recorded_title(attrs["model"]),
                "family": attrs["anatomy"]["family"],
                "corpus": corpus_title(attrs.get("corpus", {}).get("name", "")),
                "finished": attrs.get("finished", ""),
                "length": settings.get("length"),
                "skip": settings.get("skip"),
                "heads_in": self.counts,
                "head_width": [int(layer["head_width"]) for layer in attrs["anatomy"]["layers"]],
                "rotary": any(_kind(layer) == "Rotary" for layer in attrs["anatomy"]["layers"]),
                "bases": _bases(attrs["anatomy"]["layers"]),
                "biased": any(_kind(layer) in ("Alibi", "RelativeBias") for layer in attrs["anatomy"]["layers"]),
                "measures": measures(self.heads),
                "table": columns(self.heads),
                "other": None if self.other is None else self._other(),
                "terms": TERMS,
                "colours": COLOURS,
                "inks": {word: ink_on(colour) for word, colour in COLOURS.items()},
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
        if not self.atlas.settings["streams"]:
            return [
                "This atlas was made from weights alone: scan the model for attention, texts, positions and changes."
            ]
        found = []
        if self.live is None:
            found.append(
                f"No model is loaded ({self._why}), so texts and changes cannot be tried: "
                "start the viewer with --model MODEL."
            )
        elif self.live.no_terms:
            found.append(f"Constituents of a text are not known: {self.live.no_terms}.")
        if "label" not in self.heads or self.heads["label"].isna().all():
            found.append("This atlas has no labels: it was made before there were any; scan the model again.")
        return found

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
        from armillary.figures.positional import contexts, spiral
        from armillary.lenses.positional import context_coordinates

        if kind == "cvec":
            if not self.atlas.has("sample"):
                raise ArmillaryError("this atlas keeps no vectors of single tokens, which cvec needs: scan again")
            return _as_json(contexts(context_coordinates(self.atlas, layer), layer))
        return _as_json(spiral(self._positional, layer))

    @cached_property
    def _positional(self) -> Any:
        from armillary.lenses.positional import positional_arrays

        return positional_arrays(self.atlas)


def _as_json(figure: "go.Figure | None") -> str:
    return "null" if figure is None else str(figure.to_json(engine="json"))


def _kind(layer: dict[str, Any]) -> str:
    return str(layer["position"]["kind"]) if layer["position"] else ""


def _bases(layers: list[dict[str, Any]]) -> list[str]:
    """The rotary bases of the layers, each once, as the page names them."""
    return [
        f"{base:.10g}" for base in sorted({layer["position"]["base"] for layer in layers if _kind(layer) == "Rotary"})
    ]


def columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """The columns of a table of heads; what is missing is null, yes and no are 1 and 0, which maps can color."""

    def shown(value: Any) -> Any:
        return None if pd.isna(value) else int(value) if isinstance(value, bool) else value

    return {str(name): plain([shown(value) for value in column]) for name, column in table.items()}


def measures(heads: pd.DataFrame) -> list[dict[str, Any]]:
    """The measures that at least one head has, with what they mean where that is written down."""
    return [
        {"name": name, "words": not pd.api.types.is_numeric_dtype(heads[name]), "means": meaning(name)}
        for name in heads.columns
        if name not in NOT_MEASURES and heads[name].notna().any()
    ]


def meaning(measure: str) -> str:
    """The definition of a column, from the report's list; empty where there is none."""
    found = definition("heads", measure)
    return "" if found is None else found.words
