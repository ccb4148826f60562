"""Print DataFrames as tables or JSON, sorted and filtered."""

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from armillary.atlas.columns import Set, in_set
from armillary.errors import ArmillaryError
from armillary.terminal.console import console
from armillary.terminal.grid import Column, print_columns

if TYPE_CHECKING:
    from armillary.probe.dossier import Dossier


def select(table: pd.DataFrame, *, sort: str | None = None, layer: int | None = None) -> pd.DataFrame:
    """The rows of one layer, or all, sorted by a column (largest first; '-column' for smallest first)."""
    if layer is not None:
        table = table[table["layer"] == layer]
        if table.empty:
            raise ArmillaryError(f"there is no layer {layer} in this table")
    if sort is None:
        return table
    column = sort.removeprefix("-")
    if column not in table.columns:
        raise ArmillaryError(
            f"there is no column {column!r} to sort by", advice=f"there are {', '.join(table.columns)}"
        )
    return table.sort_values(column, ascending=sort.startswith("-"), kind="stable")


def columns_of(
    table: pd.DataFrame, name: str, columns: str | None = None, sort: str | None = None, usual: Set = "usual"
) -> pd.DataFrame:
    """The chosen columns ('all', or names separated by commas); by default those of the set `usual`, and `sort`."""
    if columns == "all":
        return table
    if columns is None:
        extra = [sort.removeprefix("-")] if sort else []
        shown = dict.fromkeys([*in_set(name, usual, table.columns), *extra])
        return table[[column for column in shown if column in table.columns]]
    chosen = [column.strip() for column in columns.split(",")]
    unknown = [column for column in chosen if column not in table.columns]
    if unknown:
        raise ArmillaryError(f"there is no column {unknown[0]!r}", advice=f"there are {', '.join(table.columns)}")
    return table[chosen]


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """The columns that have a value in some row."""
    return table.dropna(axis=1, how="all")


def as_json(table: pd.DataFrame) -> str:
    """A JSON list of rows; missing values are null."""
    return json.dumps(records(table), indent=1)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain data; missing values are None."""
    return [
        {str(key): None if pd.isna(value) else _plain(value) for key, value in row.items()}
        for row in table.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value if isinstance(value, int | float | bool) else str(value)


def show(table: pd.DataFrame, *, title: str = "", limit: int | None = None) -> None:
    """Print the columns that have a value in some row, numbers to three digits."""
    out = console()
    shown = filled(table)
    print_columns(out, [column(shown[name].head(limit or len(shown))) for name in shown.columns], title)
    if limit is not None and len(shown) > limit:
        out.print(f"[dim]{len(shown) - limit} more rows: --json has them all[/dim]")


def column(values: pd.Series) -> Column:
    """A column as texts to print."""
    number = bool(pd.api.types.is_numeric_dtype(values))
    return Column(str(values.name).replace("_", " "), [cell(value) for value in values.tolist()], number)


def show_dossier(dossier: "Dossier") -> None:
    """Print a head's label, its numbers, its constituents as bars, the evidence, and what it attends to."""
    # for start-up: tables are printed without torch, which a dossier needs
    from armillary.probe.dossier import label_sentence

    out = console()
    row = dossier.row.dropna()
    out.print(f"[bold]Head {int(row['layer'])}.{int(row['head'])}[/bold]  {escape(label_sentence(dossier.row))}")
    names = [name for name in in_set("heads", "usual", row.index) if name not in ("layer", "head")]
    out.print(" · ".join(f"{name.replace('_', ' ')} {cell(row[name])}" for name in names), soft_wrap=True)
    if not dossier.shares.empty:
        grid = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("query part - key part", "share of the logits", ""):
            grid.add_column(column)
        for name, share in dossier.shares.items():
            if abs(share) >= 0.005:
                bar = ("[blue]" if share > 0 else "[red]") + "█" * max(1, round(40 * min(abs(share), 1))) + "[/]"
                grid.add_row(str(name).removeprefix("share_").replace("_", " - "), f"{share:.3f}", bar)
        out.print(grid)
    if not dossier.evidence.empty:
        show(dossier.evidence, title="Evidence for the label, and what other lenses say")
    if not dossier.looks.empty:
        show(dossier.looks, title="Keys with most attention, and the terms that favor each over the row's other keys")


def cell(value: Any) -> str:
    """A value as text: floats to three digits, missing values empty, control characters escaped."""
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 1e-3 else f"{value:.3f}"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
