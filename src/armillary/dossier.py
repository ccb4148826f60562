"""One head in words and numbers: what it attends to in a text and which constituents make it so."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.errors import ArmillaryError
from armillary.lenses.constituents import TextConstituents

if TYPE_CHECKING:
    from armillary.atlas import Atlas


def parse_head(name: str) -> tuple[int, int]:
    """'3.5' as layer 3, head 5."""
    layer, dot, head = name.partition(".")
    if not dot or not layer.isdigit() or not head.isdigit():
        raise ArmillaryError(f"{name!r} is not a head: write LAYER.HEAD, as in 3.5")
    return int(layer), int(head)


@dataclass(frozen=True)
class Dossier:
    """The head's row of the table, its largest constituents, and what it looks at in the text."""

    row: pd.Series
    shares: pd.Series
    looks: pd.DataFrame


def head_row(atlas: "Atlas", layer: int, head: int) -> pd.Series:
    """The head's row, or a sentence that says which heads there are."""
    found = atlas.heads[(atlas.heads["layer"] == layer) & (atlas.heads["head"] == head)]
    if found.empty:
        layers = atlas.attrs["anatomy"]["layers"]
        raise ArmillaryError(
            f"there is no head {layer}.{head}: this model has layers 0 to {len(layers) - 1} "
            f"with heads 0 to {layers[0]['heads'] - 1}"
        )
    return found.iloc[0]


def dossier(atlas: "Atlas", layer: int, head: int, text: TextConstituents | None = None, *, looks: int = 12) -> Dossier:
    """For every token of the text (the last ones, if there are many): its largest key and what speaks for it.

    'speaks for it' is each fold of the constituents at that key less its mean over the row's visible keys.
    """
    row = head_row(atlas, layer, head)
    shares = row[[name for name in row.index if str(name).startswith("share_")]].astype(float).dropna()
    rows = []
    if text is not None:
        folds = text.folded()
        for i in range(max(1, len(text.tokens) - looks), len(text.tokens)):
            seen = text.visible[i]
            j = int(np.argmax(np.where(seen, text.attention[i], -1)))
            speaks = {name: values[i, j] - values[i][seen].mean() for name, values in folds.items()}
            rows.append(
                {
                    "query": f"{i} {text.tokens[i]!r}",
                    "looks at": f"{j} {text.tokens[j]!r}",
                    "attention": text.attention[i, j],
                }
                | {f"for it: {name}": value for name, value in speaks.items()}
            )
    return Dossier(row, shares.reindex(shares.abs().sort_values(ascending=False).index), pd.DataFrame(rows))
