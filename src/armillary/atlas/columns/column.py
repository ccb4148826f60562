"""What is known of a column: its name and kind, what it means, who fills it, and where it is shown."""

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

Kind = Literal["number", "whole", "word", "yes-no"]

ReportSet = Literal["overview", "attention", "constituents", "spectra", "localization", "rotary", "logits"]
"""Choices of columns that the report offers for the heads table."""

Set = Literal["usual", "weights"] | ReportSet
"""Choices of columns. usual: what a terminal shows unless others are asked for, and a table of the report at first;
weights: the same of the heads of an atlas that was made from weights alone."""


@dataclass(frozen=True)
class Column:
    """A column of a table, declared once; whatever shows or writes the table reads it here.

    words: what it means, in sentences; formula: the same in TeX, where that says more; lens: the module that fills it;
    measure: whether maps of heads can be colored by it; contract: whether the table always has it, missing values
    included, before all columns that are not in the contract; explained: a statement of `armillary theory`.
    array: GROUP/NAME of an array (layer, head) of the atlas that fills the column as it is; the lens need not name it.
    Columns of a set, and of the contract, have the order in which they are declared.
    """

    name: str
    words: str
    formula: str = ""
    _: KW_ONLY
    table: str
    lens: str
    kind: Kind = "number"
    unit: str = ""
    sets: tuple[Set, ...] = ()
    measure: bool = True
    contract: bool = False
    explained: str = ""
    array: str = ""


@dataclass(frozen=True)
class Family:
    """Columns that differ in a number, as mi_1, mi_2, ...: `make("4")` gives mi_4, and `make("K")` their template."""

    pattern: str
    make: Callable[[str], Column]

    @property
    def template(self) -> Column:
        return self.make("K")

    def column(self, name: str) -> Column | None:
        """The column of that name, if it belongs to the family."""
        match = re.fullmatch(self.pattern, name)
        return None if match is None else self.make(match[1])


@dataclass(frozen=True)
class Table:
    """A table: what its rows are, and its columns in order."""

    name: str
    rows: str
    columns: tuple[Column | Family, ...]
