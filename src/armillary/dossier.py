"""One head in words and numbers: what it attends to in a text and which constituents make it so."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.errors import ArmillaryError
from armillary.lenses.constituents import TextConstituents
from armillary.lenses.labels import IN_REPEATS, evidence_table
from armillary.numerals import whole_number

if TYPE_CHECKING:
    from armillary.atlas import Atlas


def parse_head(name: str) -> tuple[int, int]:
    """'3.5' as layer 3, head 5."""
    before, _, after = name.partition(".")
    layer, head = whole_number(before), whole_number(after)
    if layer is None or head is None:
        raise ArmillaryError(f"{name!r} is not a head: write LAYER.HEAD, as in 3.5")
    return layer, head


@dataclass(frozen=True)
class Dossier:
    """The head's row of the table, its largest constituents, what it looks at in the text, and why it is called so.

    `evidence` holds the head's rows of lenses.labels.evidence_table.
    """

    row: pd.Series
    shares: pd.Series
    looks: pd.DataFrame
    evidence: pd.DataFrame


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
    ordered = shares.reindex(shares.abs().sort_values(ascending=False).index)
    evidence = evidence_table(atlas)
    own = evidence[(evidence["layer"] == layer) & (evidence["head"] == head)].drop(columns=["layer", "head"])
    return Dossier(row, ordered, pd.DataFrame(rows), own)


def label_sentence(row: pd.Series) -> str:
    """The label in words: 'first-token (no random head does that), and induction on repeated random tokens'."""
    label = row.get("label")
    if label is None or pd.isna(label):
        return "no label: the scan kept no patterns"
    facts = _facts(row)
    if label == "mixed":
        return f"mixed{facts}: nearest to {row['first_label']} and {row['second_label']}"
    return f"{label}{'' if label == 'broad' else _sureness(row)}{facts}; next nearest {row['second_label']}"


def _sureness(row: pd.Series) -> str:
    """What random heads and the label's own check say of it."""
    significant = row.get("significant")
    said = [] if pd.isna(significant) else ["no random head does that" if significant else "random heads could look so"]
    check = {"holds": "its check holds", "fails": "its own check fails"}.get(str(row.get("check")))
    said += [check] if check else []
    return f" ({', but '.join(said) if check == 'its own check fails' else ', '.join(said)})" if said else ""


def _facts(row: pd.Series) -> str:
    """What else the head does, and the few keys that it rests on."""
    said, also, keys = "", row.get("also"), row.get("rests_on")
    if isinstance(also, str) and also:
        said += f", and {also} " + ("on repeated random tokens" if also in IN_REPEATS else "in text")
    return said + (f"; rests on {keys}" if isinstance(keys, str) and keys else "")
