"""A model folder on disk: its configuration, and its safetensors read one tensor at a time."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from armillary.errors import ArmillaryError


def load_config(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """The transformers configuration of a folder or a hub id, or an error that says what is wrong with it.

    `options` are those that choose a version of it: revision, subfolder, gguf_file, token, cache_dir.
    """
    from transformers import AutoConfig

    source = expanded(source)
    folder = Path(source)
    if folder.is_dir():
        if "gguf_file" not in options and "subfolder" not in options:
            _check_config_file(folder, trust_remote_code)
    elif folder.exists():
        raise ArmillaryError(f"{source} is a file: give the model's folder (the one with config.json) or a hub id")
    elif looks_like_path(source):
        raise ArmillaryError(f"there is no folder {source}: give a model folder that exists or a hub id")
    if not folder.is_dir() and not hub_reachable():
        options = {"local_files_only": True, **options}  # what was fetched before may do; asking again would take long
    try:
        return AutoConfig.from_pretrained(str(source), trust_remote_code=trust_remote_code, **options)
    except Exception as error:
        raise ArmillaryError(_config_problem(source, error)) from error


def hub_reachable() -> bool:
    """Whether the hub's name can be looked up; with a proxy, which looks it up by itself, it is taken to be."""
    from huggingface_hub.constants import ENDPOINT

    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def expanded(source: str | Path) -> str | Path:
    """The source with ~ written out; an empty one is refused."""
    if not str(source):
        raise ArmillaryError("no model was given: give a model folder or a hub id")
    return type(source)(Path(source).expanduser()) if str(source).startswith("~") else source


def looks_like_path(source: str | Path) -> bool:
    """Whether a string that is no folder was meant as one: hub ids have at most one slash and no dots at the start."""
    text = str(source)
    return isinstance(source, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1


def _check_config_file(folder: Path, trust_remote_code: bool) -> None:
    path = folder / "config.json"
    if not path.is_file():
        raise ArmillaryError(f"{folder} has no config.json: a model folder is what save_pretrained() writes")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ArmillaryError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ArmillaryError(f"{path} holds a {type(config).__name__}, not the settings of a model")
    if "auto_map" in config and not trust_remote_code and not _known_to_transformers(config.get("model_type")):
        raise ArmillaryError(
            f"{folder} needs Python code that comes with the checkpoint ({config['auto_map']}); "
            "it is not run unless you ask: --trust-remote-code, or trust_remote_code=True"
        )


def _known_to_transformers(model_type: Any) -> bool:
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def _config_problem(source: str | Path, error: Exception) -> str:
    reason = " ".join(str(error).split())[:200]
    if not Path(source).is_dir():
        return f"{source} is neither a folder here nor a model that could be fetched from the hub: {reason}"
    if "trust_remote_code" in str(error):
        return f"{source} needs code from its checkpoint; it is not run unless you ask (--trust-remote-code)"
    return f"the configuration in {source} cannot be used: {reason}"


class Checkpoint:
    """The tensors of a folder by name, each read when asked for; nothing is kept in memory."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files = {name: file for file in self._shards() for name in _names_in(file)}

    def _shards(self) -> list[Path]:
        """The files that transformers would read: the one file, else those of the index, else the only one."""
        single, index = self.folder / "model.safetensors", self.folder / "model.safetensors.index.json"
        if single.is_file():
            return [single]
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, KeyError, AttributeError) as error:
                raise ArmillaryError(f"{index} is not a readable index of safetensors files: {error}") from error
            missing = [name for name in names if not (self.folder / Path(name).name).is_file()]
            if missing:
                raise ArmillaryError(f"{self.folder} lacks {', '.join(missing)}, which its index names")
            return [self.folder / Path(name).name for name in names]
        shards = sorted(self.folder.glob("*.safetensors"))
        if not shards:
            raise ArmillaryError(_no_safetensors(self.folder))
        if len(shards) > 1:
            raise ArmillaryError(
                f"{self.folder} has several safetensors files ({', '.join(s.name for s in shards)}) and no index that "
                "says which belong together"
            )
        return shards

    def files(self) -> list[Path]:
        """The files that hold them."""
        return sorted(set(self._files.values()))

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._files)

    def read(self, name: str) -> Tensor | None:
        """The tensor of that name, or None."""
        if name not in self._files:
            return None
        with safe_open(self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def header(self, name: str) -> Tensor | None:
        """A tensor of that name's shape and type without its numbers, from the file's header; or None."""
        if name not in self._files:
            return None
        with safe_open(self._files[name], framework="pt") as file:
            entry = file.get_slice(name)
            dtype = STORED_TYPES.get(entry.get_dtype(), torch.uint8)
            return torch.empty(entry.get_shape(), dtype=dtype, device="meta")


STORED_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The types of plain numbers; everything else is some quantised format."""


def _names_in(file: Path) -> Iterator[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            yield from opened.keys()
    except (SafetensorError, OSError) as error:
        raise ArmillaryError(
            f"{file} is truncated or not a safetensors file ({str(error).strip()}): download or write it again"
        ) from error


def _no_safetensors(folder: Path) -> str:
    pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickles:
        return (
            f"{folder} has its weights only as pickle ({pickles[0]}): reading them lazily needs safetensors; "
            "load the model (armillary does so with weights_only=True, never arbitrary pickle) and save it again "
            "with save_pretrained()"
        )
    return f"{folder} has no .safetensors file: there are no weights to read"
