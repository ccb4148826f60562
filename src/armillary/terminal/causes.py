"""Print the effects of ablated heads, and the edges between heads, as tables and sentences."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from armillary.anatomy.sources import SIDES, source_names
from armillary.errors import ArmillaryError
from armillary.lenses.causes import WELL_CORRELATED, estimate_agreement
from armillary.lenses.sources import fed_by, feeds
from armillary.terminal import tables
from armillary.terminal.console import console
from armillary.text.numerals import head_name

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

SHOWN = 12
"""Heads of a table of effects."""


def show_ablation(heads: pd.DataFrame, about: dict[str, Any]) -> None:
    """The heads without which the loss rises most, on text and on repeated random tokens; how good estimates are."""
    out = console()
    for prefix, where in (("", "text"), ("repeat_", "the second copy of repeated random tokens")):
        name = f"{prefix}ablation_loss"
        if name not in heads or heads[name].isna().all():
            continue
        columns = ["layer", "head", name, f"{prefix}ablation_se", f"{prefix}gradient_loss"]
        shown = heads[[*columns, *(["direct_logit"] if "direct_logit" in heads and not prefix else [])]]
        shown = shown.dropna(subset=[name]).sort_values(name, ascending=False, kind="stable").head(SHOWN)
        loss = about.get(f"{prefix}loss", float("nan"))
        tables.show(
            shown, title=f"Without each head ({about['to']} instead), on {where}; loss {loss:.3f} nats per token"
        )
        correlation, count = estimate_agreement(heads, prefix)
        if count > 2:
            order = "" if correlation >= WELL_CORRELATED else ": estimates do not order these heads"
            out.print(
                f"[dim]gradient_loss against exact ablation: rank correlation {correlation:.2f} over {count} heads"
                f"{order}[/dim]\n"
            )


def head_edges(atlas: "Atlas", table: pd.DataFrame, head: str) -> pd.DataFrame:
    """The edges of a head: what feeds it, then what it feeds."""
    layer, number = _parsed(atlas, head)
    own = (table["layer"] == layer) & (table["head"] == number)
    return table[own | (table["source"] == f"L{layer}H{number}")].reset_index(drop=True)


def show_edges(atlas: "Atlas", table: pd.DataFrame, head: str | None, rows: int) -> None:
    """What feeds a head on each side and what it feeds; without a head, the largest edges between heads."""
    if head is None:
        between = table[table["source"].str.fullmatch(r"L\d+H\d+")]
        largest = between.sort_values("share", key=abs, ascending=False, kind="stable")
        tables.show(largest, title="The largest edges between heads", limit=rows)
        return
    layer, number = _parsed(atlas, head)
    fed = feeds(table, layer, number)
    for side in SIDES:
        own = fed[fed["side"] == side][["source", "share"]]
        tables.show(own, title=f"What wrote the {side} of L{layer}H{number}; all shares add to 1", limit=rows)
    tables.show(
        fed_by(table, layer, number)[["layer", "head", "side", "share"]],
        title=f"What L{layer}H{number} feeds",
        limit=rows,
    )


def _parsed(atlas: "Atlas", head: str) -> tuple[int, int]:
    parsed = head_name(head)
    if parsed is None or f"L{parsed[0]}H{parsed[1]}" not in source_names(atlas.anatomy):
        raise ArmillaryError(
            f"this atlas has no head {head!r}", advice="write LAYER.HEAD, as in 3.5, or L3H5", given=head
        )
    return parsed
