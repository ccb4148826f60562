"""Which model this is: hashes of every byte of its weights, and of the settings that say how they are used.

Two models with the same identity compute the same numbers. It is what guards a scan that goes on, parts that are
merged, and a text that is looked at with an atlas.
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
from armillary.anatomy.source import offloaded, transformer_of
from armillary.file_hashes import file_hash
from armillary.parallel import in_parallel

CHUNK = 1 << 24
"""Bytes that are moved from a device at once."""

NOT_COMPUTED_WITH = {
    *("_name_or_path", "name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype", "use_cache"),
    *("return_dict", "output_attentions", "output_hidden_states", "quantization_config", "id2label", "label2id"),
    *("bos_token_id", "eos_token_id", "_attn_implementation", "attn_implementation"),
}
"""Settings that change no number of an attention layer, or that differ between places where the same model is kept."""


def fingerprint(model: nn.Module) -> str:
    """A hash of every byte of the weights: name, type, shape and numbers of every tensor, wherever they are kept."""
    tensors = dict(sorted(model.state_dict().items()))
    places: dict[tuple[Any, ...], str] = {}  # weights that are tied are read once
    for name, tensor in tensors.items():
        places.setdefault(_place(name, tensor), name)
    first = list(places.values())

    def digest(name: str) -> str:
        tensor = tensors[name]
        return tensor_hash(offloaded(model, name, tensor) if tensor.is_meta else tensor)

    hashes = dict(zip(first, in_parallel(digest, first), strict=True))
    whole = hashlib.sha256()
    for name, tensor in tensors.items():
        same = hashes[places[_place(name, tensor)]]
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {same}\n".encode())
    return whole.hexdigest()


def _place(name: str, tensor: Tensor) -> tuple[Any, ...]:
    """What tells a tensor's memory from that of others; weights that are not here are each by themselves."""
    if tensor.is_meta or tensor.layout != torch.strided or _inner(tensor) or not tensor.numel():
        return (name,)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def tensor_hash(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's numbers as they lie in memory, in the order of its dimensions."""
    digest = hashlib.sha256()
    for inside in _inner(tensor):
        digest.update(f"{inside} {tensor_hash(getattr(tensor, inside))} ".encode())
    if not _inner(tensor):
        for piece in _pieces(tensor.detach()):
            digest.update(piece)
    return digest.hexdigest()


def _inner(tensor: Tensor) -> list[str]:
    """The tensors that a quantized one is made of (torchao's kinds), by name; none of a plain one."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return [] if flatten is None else list(flatten()[0])


def _pieces(tensor: Tensor) -> Iterator[Any]:
    """The bytes of a tensor, a piece at a time in main memory."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = (tensor.to_dense() if tensor.layout != torch.strided else tensor).reshape(-1)
    step = max(1, CHUNK // flat.element_size())
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].cpu().contiguous().resolve_conj().resolve_neg()
        yield piece.view(torch.uint8).numpy()


def config_hash(model: nn.Module) -> str:
    """A hash of the settings that a loaded model computes with, but not of where it was found."""
    return settings_hash(transformer_of(model).config)


def settings_hash(config: Any) -> str:
    """A hash of a configuration, less what no number depends on and what its class says by default.

    Defaults are left out so that a later release of transformers, with more of them, does not make it another model.
    """
    told = config.to_diff_dict() if hasattr(config, "to_diff_dict") else config.to_dict()
    return hashlib.sha256(json.dumps(_essential(told), sort_keys=True, default=str).encode()).hexdigest()


def _essential(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _essential(item) for key, item in value.items() if key not in NOT_COMPUTED_WITH}
    return [_essential(item) for item in value] if isinstance(value, list | tuple) else value


def folder_identity(source: str | Path, *, trust_remote_code: bool = False) -> str:
    """The same of a folder of safetensors or a GGUF file that is not loaded: every byte of its files, its settings.

    Where it is and when it was written do not count: a copy is the same model.
    """
    place = Path(expanded(source))
    packed = gguf_file(place)
    if packed is not None:
        return file_hash(packed)
    whole = hashlib.sha256()
    for file in Checkpoint(place).files():
        whole.update(f"{file.name} {file_hash(file)}\n".encode())
    whole.update(settings_hash(load_config(place, trust_remote_code=trust_remote_code)).encode())
    return whole.hexdigest()
