"""Every value that an atlas or a training run gives, a hash for each name: what is compared bit for bit."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

Values = dict[str, str]


def digest(values: Any) -> str:
    """A hash of an array: its type, shape and bits; of text, the characters."""
    array = np.asarray(values)
    kind = f"{array.dtype} {array.shape} ".encode()
    data = repr(array.tolist()).encode() if array.dtype.kind in "OUST" else np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(kind + data).hexdigest()[:16]


def arrays(folder: Path) -> Values:
    """Every array of an atlas, as xarray reads its tree and lenses read its groups, and every column of its tables."""
    from armillary.atlas.atlas import open_atlas

    atlas = open_atlas(folder)
    found: Values = {}
    groups = set()
    for node in atlas.tree.subtree:
        for name, variable in node.to_dataset(inherit=False).variables.items():
            found[f"{node.path}/{name}"] = digest(variable.to_numpy())
            groups.add(node.path.strip("/"))
    for group in sorted(groups):
        if group and not group.startswith("tables"):
            for name, variable in atlas.group(group).variables.items():
                found[f"group {group}/{name}"] = digest(variable.to_numpy())
    tables = ["heads"] if not atlas.settings["streams"] else ["heads", "layers"]
    for name in [*tables, *(["matrices"] if atlas.has("tables/matrices") else [])]:
        table = getattr(atlas, name)
        for column in table:
            found[f"table {name}/{column}"] = digest(table[column].to_numpy(object))
    return found


def attributes(folder: Path) -> Values:
    """What the atlas says of itself."""
    from armillary.atlas.atlas import open_atlas

    return {f"attribute {name}": json.dumps(value, sort_keys=True) for name, value in open_atlas(folder).attrs.items()}


def run_values(folder: Path) -> Values:
    """The weights of a training run, its losses and what its monitor saw; times are left out."""
    from safetensors.numpy import load_file

    from armillary.training.runs import read_run

    found = {
        f"weight {name}": digest(value) for name, value in load_file(folder / "model" / "model.safetensors").items()
    }
    run = read_run(folder)
    for name, table in (("loss", run.loss), ("attention", run.attention)):
        for column in table:
            found[f"{name}/{column}"] = digest(table[column].to_numpy(object))
    result = run.result or {}
    return found | {"held out": repr(result.get("held_out_loss")), "warnings": repr(result.get("warnings"))}


def differences(expected: Values, given: Values) -> list[str]:
    """The names whose values are not those that were expected, or that are missing or new."""
    return sorted(name for name in {*expected, *given} if expected.get(name) != given.get(name))
