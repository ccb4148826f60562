"""The results of `verify-heads`, stored in a file beside the store, which itself never changes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.atlas.beside import read_beside, write_beside

if TYPE_CHECKING:
    import pandas as pd

    from armillary.atlas.atlas import Atlas

# Imports inside functions: pandas is slow to import, and most atlases have no verdicts.

FILE = "head-checks.json"


def keep_verdicts(atlas: "Atlas", checked: "pd.DataFrame") -> Path:
    """Add the verdicts to the file; a head that is checked again gets the new one."""
    verdicts = {(verdict["layer"], verdict["head"]): verdict for verdict in _read(atlas)}
    for row in checked.to_dict("records"):
        head = {"layer": int(row["layer"]), "head": int(row["head"]), "label": str(row["label"])}
        verdicts[head["layer"], head["head"]] = head | {"check": _word(row["holds"])}
    return write_beside(atlas, FILE, {"heads": [verdicts[head] for head in sorted(verdicts)]})


def with_verdicts(atlas: "Atlas", heads: "pd.DataFrame") -> "pd.DataFrame":
    """The heads table with the column `check` (holds, fails, undecided), if any head was checked under its label."""
    import pandas as pd

    verdicts = {(head["layer"], head["head"], head["label"]): head["check"] for head in _read(atlas)}
    if not verdicts or "label" not in heads:
        return heads
    names = zip(heads["layer"], heads["head"], heads["label"], strict=True)
    return heads.assign(check=pd.Series([verdicts.get(name) for name in names], index=heads.index, dtype="str"))


def _word(holds: Any) -> str:
    return "undecided" if holds is None or holds != holds else "holds" if holds else "fails"


def _read(atlas: "Atlas") -> list[dict[str, Any]]:
    """The verdicts on this atlas; none if the file belongs to an earlier atlas in this folder."""
    record = read_beside(atlas, FILE, "verify-heads")
    return [] if record is None else list(record["heads"])
