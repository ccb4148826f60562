"""The tables by name, and functions that look up their columns."""

from collections.abc import Iterable
from dataclasses import asdict
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, get_args

from armillary.atlas.columns.by_layer import GAUSSIAN, LOCALIZATION
from armillary.atlas.columns.checks import AGREEMENT, CHANGES, VERIFY
from armillary.atlas.columns.column import Column, Family, Kind, ReportSet, Set, Table
from armillary.atlas.columns.heads import HEADS
from armillary.atlas.columns.layers import LAYERS
from armillary.atlas.columns.matrices import MATRICES
from armillary.atlas.columns.observed import OBSERVED
from armillary.atlas.columns.rotary import BANDS, KINDS
from armillary.atlas.columns.series import SERIES, SERIES_LABELS, SERIES_LAYERS
from armillary.atlas.columns.timelines import (
    BIRTHS,
    BIRTHS_COMPARED,
    CHECKPOINTS,
    CURVES_COMPARED,
    FIRST_BIRTHS,
    STEPS,
)
from armillary.errors import ArmillaryError, unknown

if TYPE_CHECKING:
    import pandas as pd

# Imports inside functions: pandas is slow to import, and most functions here do not need it.

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *(HEADS, LAYERS, MATRICES, LOCALIZATION, GAUSSIAN, BANDS, KINDS, AGREEMENT, VERIFY, CHANGES, OBSERVED),
        *(CHECKPOINTS, BIRTHS, STEPS, BIRTHS_COMPARED, FIRST_BIRTHS, CURVES_COMPARED),
        *(SERIES, SERIES_LABELS, SERIES_LAYERS),
    )
}

REPORT_SETS: tuple[ReportSet, ...] = get_args(ReportSet)
"""The report's choices of columns of the heads table, in the order of its menu."""


def declared(table: str) -> tuple[Column, ...]:
    """The columns of a table in order, a family as its template."""
    return tuple(column.template if isinstance(column, Family) else column for column in TABLES[table].columns)


@cache
def _places(table: str) -> dict[str, tuple[int, Column]]:
    numbered = enumerate(TABLES[table].columns)
    return {column.name: (place, column) for place, column in numbered if isinstance(column, Column)}


def _placed(table: str, name: str) -> tuple[int, Column] | None:
    """The column and its place in the order of its table."""
    if name in _places(table):
        return _places(table)[name]
    for place, family in enumerate(TABLES[table].columns):
        column = family.column(name) if isinstance(family, Family) else None
        if column is not None:
            return place, column
    return None


def definition(table: str, name: str) -> Column | None:
    """The column of that name in a table; None if it is not declared, as in an atlas of another version."""
    placed = _placed(table, name)
    return None if placed is None else placed[1]


def in_order(table: str, names: Iterable[str]) -> list[str]:
    """The names in the order of the table's declarations, undeclared ones last."""
    given = list(names)
    places = {name: placed[0] if (placed := _placed(table, name)) else len(TABLES[table].columns) for name in given}
    return sorted(given, key=lambda name: places[name])


def in_set(table: str, name: Set, present: Iterable[str]) -> list[str]:
    """The columns of a set that are present, in order."""
    shown = [other for other in present if (column := definition(table, other)) is not None and name in column.sets]
    return in_order(table, shown)


def contract(table: str) -> tuple[str, ...]:
    """The columns that a table always has, in order."""
    return tuple(column.name for column in declared(table) if column.contract)


def kind_of(table: str, name: str) -> Kind:
    """The kind of values in a column; 'number' if it is not declared."""
    column = definition(table, name)
    return "number" if column is None else column.kind


def is_measure(table: str, name: str) -> bool:
    """Whether the column is a measure; undeclared columns are."""
    column = definition(table, name)
    return column is None or column.measure


def find(name: str | None = None, table: str | None = None) -> list[Column]:
    """The columns of that name, of one table or of all; all columns without a name."""
    if table is not None and table not in TABLES:
        raise unknown("table", table, TABLES)
    tables = list(TABLES) if table is None else [table]
    all_columns = [column for table_name in tables for column in declared(table_name)]
    if name is None:
        return all_columns
    of_name = [column for table_name in tables if (column := definition(table_name, name)) is not None]
    if not of_name:
        near = get_close_matches(name, dict.fromkeys(column.name for column in all_columns), n=5)
        where = "" if table is None else f" in the table {table}"
        raise ArmillaryError(
            f"there is no column {name!r}{where}",
            advice=f"near it are {', '.join(near)}" if near else "`armillary columns` lists them",
            given=name,
            expected=near,
        )
    return of_name


def columns(name: str | None = None, table: str | None = None) -> "pd.DataFrame":
    """A row for every column of the tables, or for those of one name or one table: meaning, unit, lens."""
    import pandas as pd

    return pd.DataFrame([asdict(column) for column in find(name, table)])
