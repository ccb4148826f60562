"""What a model is called in titles: its name, not the path at which it lies."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    from armillary.anatomy.gguf_header import gguf_text

    inside = " ".join(gguf_text(path, "general.name").split()) if path.is_file() else ""
    return inside or _of_folder(path.parent.absolute() if path.exists() else path.parent, path.stem)


# text -------------------------------------------------------------------------------------------------------------


def corpus_title(name: str) -> str:
    """What text was read, without the folders that it lies in; several sources are joined by '+'."""
    parts = [part.strip() for part in name.split("+")]
    return " + ".join(part if ":" in part else part.rstrip("/").rpartition("/")[2] or part for part in parts)
