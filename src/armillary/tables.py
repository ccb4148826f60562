"""DataFrames as tables on the terminal, as JSON or as CSV, sorted and filtered as asked."""

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from armillary.console import console
from armillary.errors import ArmillaryError
from armillary.grid import Column, print_columns

if TYPE_CHECKING:
    from armillary.dossier import Dossier


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
        raise ArmillaryError(f"there is no column {column!r} to sort by: there are {', '.join(table.columns)}")
    return table.sort_values(column, ascending=sort.startswith("-"), kind="stable")


SHOWN = {
    "heads": (
        *("layer", "head", "label", "also", "significant", "check", "rests_on", "focus", "entropy", "self_mass"),
        *("prev_mass", "first_mass"),
        *("near_mass", "induction_score", "mean_distance"),
        *("positional_share", "content_share", "high_freq_share", "regime"),
    ),
    "verify": (
        *("layer", "head", "label", "used", "rest", "keys_used", "keys_rest", "attention_used", "attention_rest"),
        *("loss_used", "loss_rest", "holds", "loss_holds", "frequencies_hold"),
    ),
    "spectra": (
        *("layer", "head", "qk_trace", "qk_fro", "qk_spec", "qk_stable_rank", "qk_stable_rank_random"),
        *("qk_symmetric_share", "qk_align_z", "ov_fro", "ov_spec", "ov_stable_rank", "ov_stable_rank_random"),
    ),
    "gaussian": (
        *("layer", "radius", "effective_rank", "isotropy", "entropy", "mi_1", "mi_4", "mi_16", "mi_floor"),
        *("variance_fit", "self_variance_ratio", "kurtosis", "token_cosine"),
    ),
    "matrices": (
        *("layer", "matrix", "rows", "columns", "largest", "stable_rank", "xavier_energy", "xavier_largest"),
        *("mp_distance", "outliers", "outlier_energy"),
    ),
    "layers": (
        *("layer", "pos_share", "ctx_share", "resid_share", "stable_rank", "screenot_rank", "relative_norm"),
        *("dct_energy_10", "incoherence_mean", "intra_similarity", "inter_similarity", "mean_norm"),
    ),
}
"""The columns that a terminal shows unless others are asked for."""


def columns_of(table: pd.DataFrame, name: str, asked: str | None, sort: str | None) -> pd.DataFrame:
    """The table's columns that were asked for ('all', or names with commas), or the usual ones and that of --sort."""
    if asked == "all":
        return table
    if asked is None:
        extra = [sort.removeprefix("-")] if sort else []
        return table[[column for column in dict.fromkeys([*SHOWN[name], *extra]) if column in table.columns]]
    chosen = [column.strip() for column in asked.split(",")]
    unknown = [column for column in chosen if column not in table.columns]
    if unknown:
        raise ArmillaryError(f"there is no column {unknown[0]!r}: there are {', '.join(table.columns)}")
    return table[chosen]


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """The columns that hold anything."""
    return table.dropna(axis=1, how="all")


def as_json(table: pd.DataFrame) -> str:
    """A list of rows; what is missing is null."""
    records = [
        {key: None if pd.isna(value) else value for key, value in row.items()} for row in table.to_dict("records")
    ]
    return json.dumps(records, indent=1, default=_plain)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def show(table: pd.DataFrame, *, title: str = "", limit: int | None = None) -> None:
    """Print the columns that hold anything, numbers to three digits."""
    out = console()
    shown = filled(table)
    print_columns(out, [column(shown[name].head(limit or len(shown))) for name in shown.columns], title)
    if limit is not None and len(shown) > limit:
        out.print(f"[dim]{len(shown) - limit} more rows: --json has them all[/dim]")


def column(values: pd.Series) -> Column:
    """A column as it is printed."""
    number = bool(pd.api.types.is_numeric_dtype(values))
    return Column(str(values.name).replace("_", " "), [cell(value) for value in values.tolist()], number)


def show_dossier(told: "Dossier") -> None:
    """A head's label, its numbers, its constituents as bars, the evidence, and what it looks at."""
    from armillary.dossier import label_sentence

    out = console()
    row = told.row.dropna()
    out.print(f"[bold]Head {int(row['layer'])}.{int(row['head'])}[/bold]  {escape(label_sentence(told.row))}")
    names = [name for name in SHOWN["heads"][2:] if name in row.index]
    out.print(" · ".join(f"{name.replace('_', ' ')} {cell(row[name])}" for name in names), soft_wrap=True)
    if not told.shares.empty:
        grid = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("query part - key part", "share of the logits", ""):
            grid.add_column(column)
        for name, share in told.shares.items():
            if abs(share) >= 0.005:
                bar = ("[blue]" if share > 0 else "[red]") + "█" * max(1, round(40 * min(abs(share), 1))) + "[/]"
                grid.add_row(str(name).removeprefix("share_").replace("_", " - "), f"{share:.3f}", bar)
        out.print(grid)
    if not told.evidence.empty:
        show(told.evidence, title="Why it is called so: what each label rests on, and what other lenses say")
    if not told.looks.empty:
        show(told.looks, title="What it looks at most, and what speaks for that key against the row's other keys")


def cell(value: Any) -> str:
    """A value in a table: numbers to three digits but whole ones, missing as nothing, control characters spelt out."""
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 1e-3 else f"{value:.3f}"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
