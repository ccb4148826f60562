"""What a model is called in titles: its name, not the path at which it lies."""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

PLAIN_FOLDERS = frozenset(
    (
        "hf",
        "model",
        "models",
        "weights",
        "safetensors",
        "pytorch",
        "gguf",
        "onnx",
        "main",
        "snapshots",
        "float32",
        "fp32",
    )
)
"""Folders named for what they hold, not for which model it is: the folder above says that."""

STAGE = re.compile(r"(checkpoint|ckpt|step|epoch|iter)[-_]?\d*|final|best|last|latest")
"""Folders that say which state of a model they hold: named together with the folder above."""

HASH = re.compile(r"[0-9a-f]{12,64}")
PLAIN_FILES = re.compile(r"(ggml-)?model([-._].*)?|ggml.*|weights([-._].*)?", re.IGNORECASE)
"""GGUF files whose name says nothing: the file's own general.name may."""


def title(source: str | Path) -> str:
    """The name of the model that a path or hub id means, by these rules, in their order:

    1. A GGUF file is called like the file, without '.gguf'; one called model.gguf or ggml-model-*.gguf by the
       general.name inside it, else by its folder.
    2. The hub's cache .../models--ORG--NAME/snapshots/HASH is ORG/NAME.
    3. A folder is called by its own name; hashes and names such as 'hf' or 'model' give way to the folder above,
       and 'checkpoint-500' or 'final' stand behind it.
    4. What is no path here and has at most one slash is a hub id, and stays as it is.
    """
    text = str(source).rstrip("/") or "/"
    path = Path(text).expanduser()
    if path.suffix == ".gguf":
        return _of_gguf(path)
    if not _is_path(text, path):
        return text
    return _of_folder(path.absolute() if path.exists() else path, text)


def recorded_title(model: Mapping[str, Any]) -> str:
    """The title that an atlas's record of its model holds; from its path where the atlas is older than titles."""
    return str(model.get("title") or title(str(model["name"])))


def _is_path(text: str, path: Path) -> bool:
    return text.startswith(("/", ".", "~")) or text.count("/") > 1 or path.exists()


def _of_folder(path: Path, otherwise: str) -> str:
    stage = ""
    for part in reversed(path.parts):
        cached = re.fullmatch(r"models--(.+)", part)
        if cached:
            return cached[1].replace("--", "/")
        if STAGE.fullmatch(part.lower()):
            stage = stage or part
        elif part not in ("/", "..", "~") and part.lower() not in PLAIN_FOLDERS and not HASH.fullmatch(part):
            return f"{part}/{stage}" if stage else part
    return stage or path.name or otherwise


def _of_gguf(path: Path) -> str:
    if not PLAIN_FILES.fullmatch(path.stem):
        return path.stem
    inside = gguf_name(path) if path.is_file() else ""
    return inside or _of_folder(path.parent.absolute() if path.exists() else path.parent, path.stem)


# the name inside a GGUF file --------------------------------------------------------------------------------------

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each kind of plain value; 8 is a string, 9 an array."""
LONGEST = 1 << 16


def gguf_name(path: Path) -> str:
    """general.name of a GGUF file, or nothing; it stands before the vocabulary, so little is read."""
    try:
        with path.open("rb") as file:
            magic, _version, _tensors, fields = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF":
                return ""
            for _ in range(min(fields, 1000)):
                key, kind = _text(file), struct.unpack("<I", file.read(4))[0]
                if kind == 8:
                    value = _text(file)
                    if key == "general.name":
                        return " ".join(value.split())
                elif kind in SIZES:
                    file.seek(SIZES[kind], 1)
                else:
                    _skip_array(file)
    except (OSError, struct.error, UnicodeDecodeError, ValueError):
        return ""
    return ""


def _text(file: BinaryIO) -> str:
    length = struct.unpack("<Q", file.read(8))[0]
    if length > LONGEST:
        raise ValueError("a text of the header is too long")
    return file.read(length).decode("utf-8")


def _skip_array(file: BinaryIO) -> None:
    kind, count = struct.unpack("<IQ", file.read(12))
    if kind in SIZES:
        file.seek(SIZES[kind] * count, 1)
        return
    if kind != 8 or count > LONGEST:
        raise ValueError("this array is not read")
    for _ in range(count):
        _text(file)


# text -------------------------------------------------------------------------------------------------------------


def corpus_title(name: str) -> str:
    """What text was read, without the folders that it lies in; several sources are joined by '+'."""
    parts = [part.strip() for part in name.split("+")]
    return " + ".join(part if ":" in part else part.rstrip("/").rpartition("/")[2] or part for part in parts)
