"""Reads a model folder: its configuration, and its safetensors one tensor at a time."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from armillary.anatomy.folder import (
    indexed_files,
    read_json,
    refuse_hidden_weights,
    refuse_outside,
    refuse_special_files,
)
from armillary.anatomy.limits import refuse_absurd_counts
from armillary.errors import ArmillaryError
from armillary.machine.quiet import quiet

# Imports inside functions: transformers takes seconds to import, and many checkpoints are read without it.


def load_config(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """The transformers configuration of a folder or a hub id, or an error that says what is wrong.

    `options` select a version: revision, subfolder, gguf_file, token, cache_dir.
    """
    from transformers import AutoConfig

    source = expanded(source)
    folder = Path(source)
    if folder.is_dir():
        refuse_special_files(folder)
        if "gguf_file" not in options:
            _check_config_file(folder / str(options.get("subfolder") or ""), trust_remote_code)
    elif folder.exists():
        kind = "is a file" if folder.is_file() else "is neither a folder nor a file"
        raise ArmillaryError(
            f"{source} {kind}", advice="give the model's folder (the one with config.json) or a hub id"
        )
    elif looks_like_path(source):
        raise ArmillaryError(f"there is no folder {source}", advice="give a model folder that exists or a hub id")
    elif not hub_reachable():
        options = {"local_files_only": True, **options}  # use the cache: without a connection the hub would time out
    try:
        with quiet():
            if not folder.is_dir():
                _check_settings(_fetched_settings(source, options), f"the configuration of {source}")
            return AutoConfig.from_pretrained(str(source), trust_remote_code=trust_remote_code, **options)
    except ArmillaryError:
        raise
    except Exception as error:
        raise ArmillaryError(_config_problem(source, error)) from error


def _fetched_settings(source: str | Path, options: dict[str, Any]) -> dict[str, Any]:
    """The raw configuration of a model on the hub."""
    from transformers import PreTrainedConfig

    settings: dict[str, Any] = PreTrainedConfig.get_config_dict(str(source), **options)[0]
    return settings


def hub_reachable() -> bool:
    """Whether the hub's host name resolves; with a proxy, which resolves names itself, True."""
    from huggingface_hub.constants import ENDPOINT

    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def expanded(source: str | Path) -> str | Path:
    """The source with ~ expanded; raises if it is empty."""
    if not str(source):
        raise ArmillaryError("no model was given", advice="give a model folder or a hub id")
    return type(source)(Path(source).expanduser()) if str(source).startswith("~") else source


def looks_like_path(source: str | Path) -> bool:
    """Whether a string is meant as a path, not as a hub id (at most one slash, no dot at the start)."""
    text = str(source)
    return isinstance(source, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1


def _check_config_file(folder: Path, trust_remote_code: bool) -> None:
    path = folder / "config.json"
    if not path.is_file() and (folder / "adapter_config.json").is_file():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        raise ArmillaryError(
            f"{folder} is an adapter, not a model",
            advice=f"give the model that it was trained on ({base}), and `adapter={folder}`",
        )
    if not path.is_file():
        raise ArmillaryError(f"{folder} has no config.json: a model folder is what save_pretrained() writes")
    config = read_json(path)
    _check_settings(config, path)
    if "auto_map" in config and not trust_remote_code and not _known_to_transformers(config["model_type"]):
        raise ArmillaryError(
            f"{folder} needs Python code that comes with the checkpoint ({config['auto_map']}); it is not run "
            "by default",
            advice="`trust_remote_code=True`",
        )


def _check_settings(config: dict[str, Any], where: Any) -> None:
    """Raise if the settings do not name the family, or have absurdly large counts."""
    if not isinstance(config.get("model_type"), str):
        raise ArmillaryError(
            f"{where} has no model_type, which names the family",
            advice='add a line such as "model_type": "bert", with the family that the model was trained as',
        )
    refuse_absurd_counts(config, where)


def _known_to_transformers(model_type: Any) -> bool:
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def _config_problem(source: str | Path, error: Exception) -> str:
    reason = " ".join(str(error).split())[:200]
    if not Path(source).is_dir():
        return f"{source} is neither a folder here nor a model that could be fetched from the hub: {reason}"
    if "trust_remote_code" in str(error):
        return f"{source} needs code from its checkpoint; it is not run by default (`trust_remote_code=True`)"
    return f"the configuration in {source} cannot be used: {reason}"


class Checkpoint:
    """The tensors of a folder by name, each read on demand; only the files' headers are kept in memory."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        refuse_special_files(self.folder)
        refuse_hidden_weights(self.folder)
        self._files: dict[str, Path] = {}
        self._headers: dict[str, Tensor] = {}
        for file in self._shards():
            for name, header in _headers_of(file):
                if name in self._files:
                    raise ArmillaryError(
                        f"{self.folder} has the tensor {name} in {self._files[name].name} and in {file.name}: "
                        "it is unclear which one to read"
                    )
                self._files[name], self._headers[name] = file, header

    def _shards(self) -> list[Path]:
        """The files that transformers would read: model.safetensors, else those of the index, else the only one."""
        settings = self.folder / "config.json"
        named = read_json(settings).get("transformers_weights") if settings.is_file() else None
        if named is not None:
            return self._named(settings, named)
        single, index = self.folder / "model.safetensors", self.folder / INDEX
        if single.is_file():
            return [single]
        if index.is_file():
            return indexed_files(index)
        shards = sorted(path for path in self.folder.glob("*.safetensors") if path.is_file())
        if not shards:
            raise ArmillaryError(_no_safetensors(self.folder))
        if len(shards) > 1:
            raise ArmillaryError(
                f"{self.folder} has several safetensors files ({', '.join(s.name for s in shards)}) and no index that "
                "says which belong together"
            )
        return shards

    def files(self) -> list[Path]:
        """The files that contain the tensors."""
        return sorted(set(self._files.values()))

    def _named(self, settings: Path, name: Any) -> list[Path]:
        """The file, or the files of the index, named in the configuration."""
        if not isinstance(name, str) or not name.endswith((".safetensors", ".safetensors.index.json")):
            raise ArmillaryError(f"{settings} has transformers_weights={name!r}, which is not a safetensors file")
        refuse_outside(settings, name)
        if not (self.folder / name).is_file():
            raise ArmillaryError(f"{self.folder} lacks {name}, which its configuration names")
        return indexed_files(self.folder / name) if name.endswith(".json") else [self.folder / name]

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._headers)

    def read(self, name: str) -> Tensor | None:
        """The tensor of that name, or None."""
        if name not in self._files:
            return None
        try:
            with safe_open(self._files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ArmillaryError(_damaged(self._files[name], error)) from error
        return tensor

    def read_rows(self, name: str, start: int, stop: int) -> Tensor | None:
        """Rows start .. stop - 1 of the tensor of that name, without reading the others; or None."""
        if name not in self._files:
            return None
        try:
            with safe_open(self._files[name], framework="pt") as file:
                tensor: Tensor = file.get_slice(name)[start:stop]
        except (SafetensorError, OSError) as error:
            raise ArmillaryError(_damaged(self._files[name], error)) from error
        return tensor

    def header(self, name: str) -> Tensor | None:
        """An empty (meta) tensor of that name's shape and type, from the file's header; or None."""
        return self._headers.get(name)


INDEX = "model.safetensors.index.json"
STORED_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Plain floating-point types; everything else counts as quantized."""


def has_weights(folder: Path) -> bool:
    """Whether a folder has weights in some form, or an index of them."""
    return any(list(folder.glob(pattern)) for pattern in ("*.safetensors", INDEX, "pytorch_model*.bin*"))


def _headers_of(file: Path) -> Iterator[tuple[str, Tensor]]:
    """The names of a file's tensors, each with an empty (meta) tensor of its shape and type."""
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (no mapping)
                entry = opened.get_slice(name)
                dtype = STORED_TYPES.get(entry.get_dtype(), torch.uint8)
                yield name, torch.empty(entry.get_shape(), dtype=dtype, device="meta")
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ArmillaryError(_damaged(file, error)) from error


def _damaged(file: Path, error: Exception) -> str:
    return f"{file} is truncated or not a safetensors file ({str(error).strip()}): download or write it again"


def _no_safetensors(folder: Path) -> str:
    if (folder / "pytorch_model.bin").is_file() or (folder / "pytorch_model.bin.index.json").is_file():
        return (
            f"{folder} has its weights only as a pickle (pytorch_model.bin), which is not read: write them as "
            f"safetensors with  armillary convert {folder}"
        )
    return f"{folder} has no .safetensors file: there are no weights to read"
