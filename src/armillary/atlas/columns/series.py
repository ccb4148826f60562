"""Columns of the tables that put several atlases side by side."""

from functools import partial

from armillary.atlas.columns.column import Column, Family, Table

_series = partial(Column, table="series", lens="atlas.series", measure=False)
_labels = partial(Column, table="series_labels", lens="atlas.series", measure=False)
_layers = partial(Column, table="series_layers", lens="atlas.series", measure=False)

SERIES = Table(
    "series",
    "A row for every measure of a head that changes over several atlases, the largest changes first.",
    (
        _series("layer", "The layer, counted from 0.", kind="whole"),
        _series("head", "The head within its layer, counted from 0.", kind="whole"),
        _series("measure", "Which measure.", kind="word"),
        Family(r"atlas_(\d+)", lambda k: _series(f"atlas_{k}", f"Its value in atlas {k} of the series.")),
        _series("range", "Its largest minus its smallest value."),
        _series(
            "size",
            "The range, in units of the measure's standard deviation over the heads of all atlases.",
            unit="standard deviations",
        ),
    ),
)

SERIES_LABELS = Table(
    "series_labels",
    "A row for every label that occurs in several atlases.",
    (
        _labels("label", "The label.", kind="word"),
        Family(
            r"atlas_(\d+)",
            lambda k: _labels(f"atlas_{k}", f"Heads with this label in atlas {k}.", kind="whole", unit="heads"),
        ),
        _labels("change", "Heads in the last atlas minus those in the first.", kind="whole", unit="heads"),
    ),
)

SERIES_LAYERS = Table(
    "series_layers",
    "A row for every measure of the residual stream that all atlases have.",
    (
        _layers("measure", "Which measure of the layers.", kind="word"),
        Family(r"atlas_(\d+)", lambda k: _layers(f"atlas_{k}", f"Its mean over layers 1 to L in atlas {k}.")),
    ),
)
