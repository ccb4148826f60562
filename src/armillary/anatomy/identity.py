"""Identifies a model: hashes of every byte of its weights and of the settings that it computes with.

Two models with the same identity compute the same numbers. It is checked when a scan resumes, when parts are merged,
and when an atlas is used with a model.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from armillary.anatomy.checkpoint import Checkpoint, expanded, load_config
from armillary.anatomy.gguf import gguf_file
from armillary.anatomy.lora import LowRank
from armillary.anatomy.source import offloaded, transformer_of
from armillary.files.hashes import file_hash
from armillary.machine.parallel import in_parallel

CHUNK = 1 << 24
"""Bytes that are copied from a device at once."""

IRRELEVANT = {
    *("_name_or_path", "name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype", "use_cache"),
    *("return_dict", "output_attentions", "output_hidden_states", "quantization_config", "id2label", "label2id"),
    *("bos_token_id", "eos_token_id", "_attn_implementation", "attn_implementation"),
}
"""Settings that do not affect attention, or that differ between copies of the same model."""


def fingerprint(model: nn.Module) -> str:
    """A hash of the weights: name, type, shape and bytes of every tensor, also of offloaded ones."""
    tensors = dict(sorted(model.state_dict().items()))
    name_of: dict[tuple[Any, ...], str] = {}  # tied weights are read once
    for name, tensor in tensors.items():
        name_of.setdefault(_memory(name, tensor), name)
    distinct = list(name_of.values())

    def digest(name: str) -> str:
        tensor = tensors[name]
        return tensor_hash(offloaded(model, name, tensor) if tensor.is_meta else tensor)

    hashes = dict(zip(distinct, in_parallel(digest, distinct), strict=True))
    whole = hashlib.sha256()
    for name, tensor in tensors.items():
        content = hashes[name_of[_memory(name, tensor)]]
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {content}\n".encode())
    return whole.hexdigest()


def _memory(name: str, tensor: Tensor) -> tuple[Any, ...]:
    """A key of the memory that a tensor occupies; its own name if it is offloaded."""
    if tensor.is_meta or tensor.layout != torch.strided or _inner(tensor) or not tensor.numel():
        return (name,)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def tensor_hash(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's bytes, in the order of its dimensions."""
    digest = hashlib.sha256()
    for name in _inner(tensor):
        digest.update(f"{name} {tensor_hash(getattr(tensor, name))} ".encode())
    if not _inner(tensor):
        for piece in _pieces(tensor.detach()):
            digest.update(piece)
    return digest.hexdigest()


def _inner(tensor: Tensor) -> list[str]:
    """The names of the tensors inside a quantized one (torchao); none for a plain one."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return [] if flatten is None else list(flatten()[0])


def _pieces(tensor: Tensor) -> Iterator[Any]:
    """The bytes of a tensor, copied to main memory piece by piece."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = (tensor.to_dense() if tensor.layout != torch.strided else tensor).reshape(-1)
    step = max(1, CHUNK // flat.element_size())
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].cpu().contiguous().resolve_conj().resolve_neg()
        yield piece.view(torch.uint8).numpy()


def config_hash(model: nn.Module) -> str:
    """A hash of the settings that a loaded model computes with, not of its location."""
    return settings_hash(transformer_of(model).config)


def settings_hash(config: Any) -> str:
    """A hash of a configuration without IRRELEVANT settings and without defaults.

    Defaults are left out, so that a later transformers with more settings gives the same hash.
    """
    settings = config.to_diff_dict() if hasattr(config, "to_diff_dict") else config.to_dict()
    return hashlib.sha256(json.dumps(_essential(settings), sort_keys=True, default=str).encode()).hexdigest()


def _essential(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _essential(item) for key, item in value.items() if key not in IRRELEVANT}
    return [_essential(item) for item in value] if isinstance(value, list | tuple) else value


def folder_identity(source: str | Path, *, trust_remote_code: bool = False, adapter: Any = None) -> str:
    """A hash of a folder of safetensors or a GGUF file without loading it: every byte of its files, and its settings.

    Location and time of writing do not count: a copy is the same model. An adapter's files count too.
    """
    if adapter is not None:
        files = [file_hash(file) for file in LowRank(adapter).files]
        whole_model = folder_identity(source, trust_remote_code=trust_remote_code)
        return hashlib.sha256(" ".join([whole_model, *files]).encode()).hexdigest()
    place = Path(expanded(source))
    packed = gguf_file(place)
    if packed is not None:
        return file_hash(packed)
    whole = hashlib.sha256()
    for file in Checkpoint(place).files():
        whole.update(f"{file.name} {file_hash(file)}\n".encode())
    whole.update(settings_hash(load_config(place, trust_remote_code=trust_remote_code)).encode())
    return whole.hexdigest()
