"""Edges: what wrote the query, the key and the value of every head, as shares that add to 1 on each side."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float

from armillary.anatomy.sources import SIDES, source_names
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def edges(atlas: "Atlas", least: float = 0.0) -> pd.DataFrame:
    """A row for every head, side and source with a share other than zero, of at least `least` in absolute value."""
    return edge_rows(source_shares(atlas), source_names(atlas.anatomy), least)


def source_shares(atlas: "Atlas") -> Float[np.ndarray, "layer side head source"]:
    """The shares of all sources."""
    if not atlas.has("sources"):
        raise ArmillaryError("this atlas has no sources", advice="scan with `streams=default,sources`")
    return np.asarray(atlas.group("sources")["share"].to_numpy())


def edge_rows(
    shares: Float[np.ndarray, "layer side head source"], names: tuple[str, ...], least: float = 0.0
) -> pd.DataFrame:
    """The same from the array of shares."""
    layer, side, head, source = np.nonzero(np.nan_to_num(np.abs(shares)) > max(least, 0.0))
    table = pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "side": np.array(SIDES)[side],
            "source": np.array(names)[source],
            "share": shares[layer, side, head, source],
        }
    )
    return table.sort_values(["layer", "head"], kind="stable").reset_index(drop=True)


def feeds(table: pd.DataFrame, layer: int, head: int) -> pd.DataFrame:
    """What feeds a head: its edges, the largest first on each side."""
    own = table[(table["layer"] == layer) & (table["head"] == head)]
    order = own["side"].map({side: place for place, side in enumerate(SIDES)})
    return (
        own.assign(order=order, size=own["share"].abs())
        .sort_values(["order", "size"], ascending=[True, False], kind="stable")[["side", "source", "share"]]
        .reset_index(drop=True)
    )


def fed_by(table: pd.DataFrame, layer: int, head: int) -> pd.DataFrame:
    """What a head feeds: the edges whose source it is, the largest first."""
    own = table[table["source"] == f"L{layer}H{head}"]
    return own.sort_values("share", key=abs, ascending=False, kind="stable").reset_index(drop=True)
