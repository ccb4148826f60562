"""What `verify-heads` found of an atlas's labels, kept in a file beside the store, which itself never changes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.errors import ArmillaryError
from armillary.files import checksum_path, read_checked, write_with_checksum

if TYPE_CHECKING:
    import pandas as pd

    from armillary.atlas import Atlas

FILE = "head-checks.json"


def keep_verdicts(atlas: "Atlas", checked: "pd.DataFrame") -> Path:
    """Write the verdicts beside those that are there; a head that is checked again gets the new one."""
    path = _path(atlas)
    kept = {(one["layer"], one["head"]): one for one in _read(atlas)}
    for row in checked.to_dict("records"):
        one = {"layer": int(row["layer"]), "head": int(row["head"]), "label": str(row["label"])}
        kept[one["layer"], one["head"]] = one | {"check": _word(row["holds"])}
    told = {"atlas": _identity(atlas), "heads": [kept[head] for head in sorted(kept)]}
    write_with_checksum(path, [json.dumps(told, indent=1).encode()])
    return path


def with_verdicts(atlas: "Atlas", heads: "pd.DataFrame") -> "pd.DataFrame":
    """The heads table with the column `check` (holds, fails, undecided), where any head was checked under its label."""
    import pandas as pd

    verdicts = {(one["layer"], one["head"], one["label"]): one["check"] for one in _read(atlas)}
    if not verdicts or "label" not in heads:
        return heads
    names = zip(heads["layer"], heads["head"], heads["label"], strict=True)
    return heads.assign(check=pd.Series([verdicts.get(name) for name in names], index=heads.index, dtype="str"))


def _word(holds: Any) -> str:
    return "undecided" if holds is None or holds != holds else "holds" if holds else "fails"


def _read(atlas: "Atlas") -> list[dict[str, Any]]:
    """The verdicts on this atlas; none if the file is of another one, which stood here before."""
    path = _path(atlas)
    if not path.is_file() and not checksum_path(path).is_file():
        return []
    data = read_checked(path)
    if data is None:
        raise ArmillaryError(f"{path} is damaged: delete it, and run `armillary verify-heads` again for its checks")
    try:
        told = json.loads(data)
        return list(told["heads"]) if told["atlas"] == _identity(atlas) else []
    except (ValueError, KeyError, TypeError) as error:
        raise ArmillaryError(f"{path} does not hold what verify-heads writes: delete it, and run it again") from error


def _path(atlas: "Atlas") -> Path:
    return atlas.path.parent / FILE


def _identity(atlas: "Atlas") -> dict[str, Any]:
    """What tells this atlas from one that was made in its place later."""
    model, corpus = atlas.attrs.get("model", {}), atlas.attrs.get("corpus", {})
    return {
        "finished": atlas.attrs.get("finished"),
        "weights": model.get("weights"),
        "corpus": corpus.get("sha256"),
    }
