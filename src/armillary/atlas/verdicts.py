"""The results of `verify-heads`, stored in a file beside the store, which itself never changes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.errors import ArmillaryError
from armillary.files.atomic import checksum_path, read_checked, write_with_checksum

if TYPE_CHECKING:
    import pandas as pd

    from armillary.atlas.atlas import Atlas

# Imports inside functions: pandas is slow to import, and most atlases have no verdicts.

FILE = "head-checks.json"


def keep_verdicts(atlas: "Atlas", checked: "pd.DataFrame") -> Path:
    """Add the verdicts to the file; a head that is checked again gets the new one."""
    path = _path(atlas)
    verdicts = {(verdict["layer"], verdict["head"]): verdict for verdict in _read(atlas)}
    for row in checked.to_dict("records"):
        head = {"layer": int(row["layer"]), "head": int(row["head"]), "label": str(row["label"])}
        verdicts[head["layer"], head["head"]] = head | {"check": _word(row["holds"])}
    record = {"atlas": _identity(atlas), "heads": [verdicts[head] for head in sorted(verdicts)]}
    write_with_checksum(path, [json.dumps(record, indent=1).encode()])
    return path


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
    path = _path(atlas)
    if not path.is_file() and not checksum_path(path).is_file():
        return []
    data = read_checked(path)
    if data is None:
        raise ArmillaryError(f"{path} is damaged: delete it, and run `armillary verify-heads` again for its checks")
    try:
        record = json.loads(data)
        return list(record["heads"]) if record["atlas"] == _identity(atlas) else []
    except (ValueError, KeyError, TypeError) as error:
        raise ArmillaryError(f"{path} does not hold what verify-heads writes: delete it, and run it again") from error


def _path(atlas: "Atlas") -> Path:
    return atlas.path.parent / FILE


def _identity(atlas: "Atlas") -> dict[str, Any]:
    """What distinguishes this atlas from a later one in the same folder."""
    model, corpus = atlas.attrs.get("model", {}), atlas.attrs.get("corpus", {})
    return {
        "finished": atlas.attrs.get("finished"),
        "weights": model.get("weights"),
        "corpus": corpus.get("sha256"),
    }
