"""Titles of models and corpora: a name, not the path."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from armillary.anatomy.gguf_header import gguf_text

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
"""Folder names that do not name the model: the folder above does."""

STAGE = re.compile(r"(checkpoint|ckpt|step|epoch|iter)[-_]?\d*|final|best|last|latest")
"""Folder names for a state of a model: shown together with the folder above."""

HASH = re.compile(r"[0-9a-f]{12,64}")
PLAIN_FILES = re.compile(r"(ggml-)?model([-._].*)?|ggml.*|weights([-._].*)?", re.IGNORECASE)
"""GGUF file names that do not name the model: the file's general.name may."""


def title(source: str | Path) -> str:
    """The title of the model at a path or hub id, by these rules, in order:

    1. A GGUF file: its name without '.gguf'; for model.gguf or ggml-model-*.gguf the general.name inside it, else
       its folder.
    2. The hub's cache .../models--ORG--NAME/snapshots/HASH is ORG/NAME.
    3. A folder: its name; for hashes and names such as 'hf' or 'model' the folder above; 'checkpoint-500' or
       'final' are appended to it.
    4. Anything else with at most one slash is a hub id, and stays as it is.
    """
    text = str(source).rstrip("/") or "/"
    path = Path(text).expanduser()
    if path.suffix == ".gguf":
        return _of_gguf(path)
    if not _is_path(text, path):
        return text
    return _of_folder(path.absolute() if path.exists() else path, text)


def recorded_title(model: Mapping[str, Any]) -> str:
    """The title in an atlas's record of its model; from its path if the atlas is older than titles."""
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
    general_name = " ".join(gguf_text(path, "general.name").split()) if path.is_file() else ""
    return general_name or _of_folder(path.parent.absolute() if path.exists() else path.parent, path.stem)


# text -------------------------------------------------------------------------------------------------------------


def corpus_title(name: str) -> str:
    """The name of a corpus without folders; several sources are joined by '+'."""
    parts = [part.strip() for part in name.split("+")]
    return " + ".join(part if ":" in part else part.rstrip("/").rpartition("/")[2] or part for part in parts)
