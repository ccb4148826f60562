"""Declares every column of every table once: its name and meaning, the lens that fills it, where it is shown.

Nothing slow is imported here, because every command imports it.
"""

from armillary.atlas.columns.column import Column, Family, Kind, ReportSet, Set, Table
from armillary.atlas.columns.registry import (
    REPORT_SETS,
    TABLES,
    columns,
    contract,
    declared,
    definition,
    find,
    in_order,
    in_set,
    is_measure,
    kind_of,
)

__all__ = [
    "REPORT_SETS",
    "TABLES",
    "Column",
    "Family",
    "Kind",
    "ReportSet",
    "Set",
    "Table",
    "columns",
    "contract",
    "declared",
    "definition",
    "find",
    "in_order",
    "in_set",
    "is_measure",
    "kind_of",
]
