"""The dossier of one head: its numbers and label, what it attends to in a text, and which constituents explain it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.errors import ArmillaryError
from armillary.lenses.labels import IN_REPEATS, evidence_table
from armillary.probe.terms import TextConstituents
from armillary.text.numerals import head_name

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def parse_head(name: str) -> tuple[int, int]:
    """'L3H5', '3.5' or '3 5' as layer 3, head 5."""
    parsed = head_name(name)
    if parsed is None:
        raise ArmillaryError(
            f"{name!r} is not a head", advice="write LAYER.HEAD, as in 3.5, or L3H5", given=name, expected="LAYER.HEAD"
        )
    return parsed


@dataclass(frozen=True)
class Dossier:
    """The head's row of the table, its constituents (largest first), its largest key for each query of the text
    (`looks`), and the evidence for its label (rows of lenses.labels.evidence_table)."""

    row: pd.Series
    shares: pd.Series
    looks: pd.DataFrame
    evidence: pd.DataFrame


def head_row(atlas: "Atlas", layer: int, head: int) -> pd.Series:
    """The head's row of the heads table; raises if there is no such head."""
    rows = atlas.heads[(atlas.heads["layer"] == layer) & (atlas.heads["head"] == head)]
    if rows.empty:
        layers = atlas.anatomy.layers
        raise ArmillaryError(
            f"there is no head {layer}.{head}: this model has layers 0 to {len(layers) - 1} "
            f"with heads 0 to {layers[0].heads - 1}"
        )
    return rows.iloc[0]


def dossier(atlas: "Atlas", layer: int, head: int, text: TextConstituents | None = None, *, looks: int = 12) -> Dossier:
    """The dossier of a head; on a text, for each of the last `looks` queries the largest key and what favors it.

    'for it' is each group of constituents at that key less its mean over the row's visible keys.
    """
    row = head_row(atlas, layer, head)
    shares = row[[name for name in row.index if str(name).startswith("share_")]].astype(float).dropna()
    rows = []
    if text is not None:
        folds = text.folded()
        for i in range(max(1, len(text.tokens) - looks), len(text.tokens)):
            seen = text.visible[i]
            j = int(np.argmax(np.where(seen, text.attention[i], -1)))
            favors = {name: values[i, j] - values[i][seen].mean() for name, values in folds.items()}
            rows.append(
                {
                    "query": f"{i} {text.tokens[i]!r}",
                    "looks at": f"{j} {text.tokens[j]!r}",
                    "attention": text.attention[i, j],
                }
                | {f"for it: {name}": value for name, value in favors.items()}
            )
    ordered = shares.reindex(shares.abs().sort_values(ascending=False).index)
    evidence = evidence_table(atlas)
    own = evidence[(evidence["layer"] == layer) & (evidence["head"] == head)].drop(columns=["layer", "head"])
    return Dossier(row, ordered, pd.DataFrame(rows), own)


def label_sentence(row: pd.Series) -> str:
    """The label in words: 'first-token (significant against random heads), and induction on repeated random tokens'."""
    label = row.get("label")
    if label is None or pd.isna(label):
        return "no label: the scan did not measure patterns"
    facts = _facts(row)
    if label == "mixed":
        return f"mixed{facts}: nearest to {row['first_label']} and {row['second_label']}"
    return f"{label}{'' if label == 'broad' else _significance(row)}{facts}; second nearest {row['second_label']}"


def _significance(row: pd.Series) -> str:
    """Whether the label is significant against random heads, and whether its check passed."""
    significant = row.get("significant")
    clauses = [] if pd.isna(significant) else [f"{'' if significant else 'not '}significant against random heads"]
    check = {"holds": "its check passed", "fails": "its check failed"}.get(str(row.get("check")))
    clauses += [check] if check else []
    return f" ({', but '.join(clauses) if check == 'its check failed' else ', '.join(clauses)})" if clauses else ""


def _facts(row: pd.Series) -> str:
    """What else the head does, and the few keys that get most of its attention."""
    clauses, also, keys = "", row.get("also"), row.get("rests_on")
    if isinstance(also, str) and also:
        clauses += f", and {also} " + ("on repeated random tokens" if also in IN_REPEATS else "in text")
    return clauses + (f"; most attention on {keys}" if isinstance(keys, str) and keys else "")
