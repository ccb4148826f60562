"""Checks of a model folder: plain files only, readable JSON, and an index whose files are inside the folder."""

import json
import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from armillary.errors import ArmillaryError

READ_BY_TRANSFORMERS = (".json", ".safetensors", ".gguf", ".bin", ".txt", ".model", ".jinja", ".py")
LARGEST_JSON = 64 * 2**20
DEEPEST_JSON = 32
DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def refuse_special_files(folder: Path) -> None:
    """Raise if a model folder contains a pipe, socket or device: reading one could block forever."""
    try:
        entries = list(os.scandir(folder))
        entries += [inner for entry in entries if entry.is_dir() for inner in os.scandir(entry.path)]
    except OSError as error:
        raise ArmillaryError(f"{folder} cannot be read: {error.strerror or error}") from error
    for entry in entries:
        if not entry.name.endswith(READ_BY_TRANSFORMERS):
            continue
        try:
            mode = entry.stat().st_mode
        except OSError:  # a broken link: the code that needs the file reports it
            continue
        for is_kind, kind in KINDS:
            if is_kind(mode):
                raise ArmillaryError(f"{entry.path} is {kind}, not a file: a model folder contains plain files")


def read_json(path: Path) -> dict[str, Any]:
    """The settings in a JSON file, which must be an object of reasonable size and depth."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ArmillaryError(f"{path} is not a plain file")
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise ArmillaryError(f"{path} has {size:,} bytes", advice=f"settings need at most {LARGEST_JSON:,}")
        content = json.loads(path.read_bytes().decode("utf-8"))
    except RecursionError as error:
        raise ArmillaryError(f"{path} cannot be read as JSON: it is nested too deep") from error
    except (ValueError, OSError) as error:
        raise ArmillaryError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ArmillaryError(f"{path} holds a {type(content).__name__}, not settings (an object in braces)")
    if _deeper_than(content, DEEPEST_JSON):
        raise ArmillaryError(f"{path} is nested deeper than {DEEPEST_JSON} levels, which no settings are")
    return content


def _deeper_than(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper_than(item, levels - 1) for item in inner)


def index_names(index: Path) -> list[str]:
    """The file names in an index of shards, in alphabetical order."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ArmillaryError(f"{index} is not a readable index: its weight_map should give a file's name per tensor")
    names = sorted(set(weight_map.values()))
    if not names:
        raise ArmillaryError(f"{index} lists no files: its weight_map is empty")
    return names


def indexed_files(index: Path) -> list[Path]:
    """The files that an index of shards lists; all must be in the index's folder."""
    names = index_names(index)
    for name in names:
        refuse_outside(index, name)
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ArmillaryError(f"{index.parent} lacks {shown}, which its index names")
    return [index.parent / name for name in names]


def refuse_outside(referrer: Path, name: str) -> None:
    """Raise if a file name leads out of the folder; links inside it may point anywhere, as in the hub's cache."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name or not path.parts:
        raise ArmillaryError(
            f"{referrer} names the file {name!r}, which is not in the model's folder",
            advice="only files inside it are read",
        )


def refuse_hidden_weights(folder: Path) -> None:
    """Raise on files that transformers would read in place of, or on top of, the weights that Armillary reads."""
    if (folder / "adapter_config.json").exists():
        raise ArmillaryError(
            f"{folder} has an adapter (adapter_config.json) beside the model, which changes the weights when the model "
            "is loaded: move it to its own folder and give that as `adapter`, or remove it"
        )
    distributed = sorted(path.name for path in folder.iterdir() if DISTRIBUTED.fullmatch(path.name))
    if distributed:
        raise ArmillaryError(
            f"{folder} holds a distributed checkpoint ({distributed[0]})",
            advice="save the model with save_pretrained() first",
        )
