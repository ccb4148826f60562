"""Reads LoRA adapters as PEFT writes them, and merges them into weights: W + s B A, or with DoRA its rows rescaled."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from armillary.anatomy.folder import read_json, refuse_special_files
from armillary.anatomy.hub import fetched_adapter
from armillary.anatomy.tensors import Tensors, same_tensor
from armillary.anatomy.whole import some
from armillary.errors import ArmillaryError

PREFIX = "base_model.model."
PARTS = {
    "lora_A.weight": "A",
    "lora_B.weight": "B",
    "lora_embedding_A": "A",
    "lora_embedding_B": "B",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
}
"""How the names of a change's parts end, and what they are."""

NOT_READ = (
    *("use_qalora", "use_bdlora", "layer_replication", "alora_invocation_tokens", "trainable_token_indices"),
    *("kasa_config", "monteclora_config", "arrow_config", "target_parameters", "lora_bias"),
)
"""Settings of PEFT that change what is computed, and that are not read here."""


@dataclass(frozen=True)
class Change:
    """What an adapter does to one weight: adds scale * B A (DoRA: and rescales), or replaces it."""

    scale: float
    parts: dict[str, Tensor]
    of_embedding: bool
    transposed: bool

    def applied(self, weight: Tensor) -> Tensor:
        """The changed weight, in float32 or better, on the weight's device."""
        base = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        parts = {name: part.to(base.device, base.dtype) for name, part in self.parts.items()}
        if "whole" in parts:
            return parts["whole"]
        added = self.scale * (parts["B"] @ parts["A"])
        added = added.T if self.of_embedding or self.transposed else added
        if added.shape != base.shape:
            raise ArmillaryError(f"the adapter adds a matrix {tuple(added.shape)} to a weight {tuple(base.shape)}")
        merged = base + added
        if "magnitude" not in parts:
            return merged
        magnitude = parts["magnitude"].reshape(-1)
        outputs = 0 if self.transposed else 1
        rescaled: Tensor = merged * (magnitude / merged.norm(dim=outputs)).unsqueeze(outputs)
        return rescaled


class LowRank:
    """An adapter's changes by the name of the weight that they change."""

    def __init__(self, source: str | Path) -> None:
        self.source = str(source)
        folder = fetched_adapter(source)
        if not folder.is_dir():
            raise ArmillaryError(f"there is no folder {folder}", advice="give an adapter's folder or hub id")
        refuse_special_files(folder)
        settings, file = folder / "adapter_config.json", folder / "adapter_model.safetensors"
        if not settings.is_file() or not file.is_file():
            raise ArmillaryError(
                f"{folder} is not an adapter that can be read: it should have adapter_config.json and "
                "adapter_model.safetensors, as save_pretrained() of a PEFT model writes them"
            )
        self.files = [settings, file]
        self.changes = _changes(_understood(read_json(settings), settings), _tensors(file))

    def placed(self, names: list[str]) -> dict[str, Change]:
        """The changes by the model's own names; raises if the model lacks a weight that the adapter changes."""
        found = {name: same_tensor(name, names) for name in self.changes}
        missing = [name for name, candidates in found.items() if len(candidates) != 1]
        if missing:
            raise ArmillaryError(
                f"the adapter {self.source} changes weights that this model does not have, or has several times "
                f"({some(missing)})",
                advice="give the model that it was trained on",
            )
        return {candidates[0]: self.changes[name] for name, candidates in found.items()}


class AdaptedTensors:
    """The tensors of a checkpoint with an adapter merged into them; with `delta`, what it changes alone."""

    def __init__(self, checkpoint: Tensors, adapter: LowRank, delta: bool = False) -> None:
        self._checkpoint, self._delta = checkpoint, delta
        self._changes = adapter.placed(checkpoint.names())

    def names(self) -> list[str]:
        return self._checkpoint.names()

    def header(self, name: str) -> Tensor | None:
        return self._checkpoint.header(name)

    def read(self, name: str) -> Tensor | None:
        """The tensor of that name as the adapted model has it, or its change."""
        weight = self._checkpoint.read(name)
        if weight is None:
            return None
        change = self._changes.get(name)
        if self._delta:  # in float64: a change of rank r has this rank, without the rounding of the merged weight
            wide = weight.double()
            return torch.zeros_like(wide) if change is None else _named(name, change, wide) - wide
        return weight if change is None else _named(name, change, weight)


def merge_adapter(model: nn.Module, source: str | Path) -> None:
    """Merge an adapter into a loaded model's parameters, in their precision."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, change in LowRank(source).placed(list(parameters)).items():
        parameter = parameters[name]
        if parameter.is_meta or not parameter.is_floating_point() or parameter.dtype.itemsize < 2:
            raise ArmillaryError(
                f"{name} is quantized or offloaded, so the adapter {source} cannot be merged into it",
                advice="load the model unquantized, on one device",
            )
        with torch.no_grad():
            parameter.copy_(_named(name, change, parameter))


def _named(name: str, change: Change, weight: Tensor) -> Tensor:
    try:
        return change.applied(weight)
    except (ArmillaryError, RuntimeError) as error:
        raise ArmillaryError(f"the adapter does not fit {name}: {error}") from error


def _understood(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings; raises if the adapter is of a kind that is not read."""
    if settings.get("peft_type") != "LORA":
        raise ArmillaryError(
            f"{path} describes an adapter of type {settings.get('peft_type')!r}",
            advice="only LORA (with rsLoRA and DoRA) is read; merge others with PEFT (merge_and_unload) first",
        )
    unread = [name for name in NOT_READ if settings.get(name)]
    if unread:
        raise ArmillaryError(
            f"{path} has {unread[0]}, which is not read here", advice="merge it with PEFT (merge_and_unload) first"
        )
    if not isinstance(settings.get("r"), int) or not isinstance(settings.get("lora_alpha"), int | float):
        raise ArmillaryError(f"{path} does not give the rank r and lora_alpha as numbers")
    return settings


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise ArmillaryError(
            f"{file} is truncated or not a safetensors file ({str(error).strip()})", advice="write it again"
        ) from error


def _changes(settings: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Change]:
    """The changes by the name of the weight: of an adapter's own matrices, and of weights that it replaces."""
    parts: dict[str, dict[str, Tensor]] = {}
    embeddings: set[str] = set()
    for name, tensor in tensors.items():
        plain = name.removeprefix(PREFIX).replace(".base_layer.", ".")
        end = next((end for end in PARTS if plain.endswith(f".{end}")), None)
        if end is None and "lora_" in plain:
            raise ArmillaryError(f"the adapter has a tensor {name}, which is not a part of LoRA as it is read here")
        if end is None:
            parts[plain] = {"whole": tensor}  # modules_to_save, and biases that were trained
            continue
        weight = plain.removesuffix(end) + "weight"
        parts.setdefault(weight, {})[PARTS[end]] = tensor
        embeddings |= {weight} if "embedding" in end else set()
    changes = {}
    for weight, found in parts.items():
        if "whole" not in found and not {"A", "B"} <= set(found):
            raise ArmillaryError(f"the adapter has only a part of its change of {weight} ({', '.join(found)})")
        if "magnitude" in found and weight in embeddings:
            raise ArmillaryError(
                f"the adapter changes the embedding {weight} by DoRA, which is not read here",
                advice="merge it with PEFT (merge_and_unload) first",
            )
        scale = 1.0 if "whole" in found else _scale(settings, weight.removesuffix(".weight"), len(found["A"]))
        changes[weight] = Change(scale, found, weight in embeddings, bool(settings.get("fan_in_fan_out")))
    if not changes:
        raise ArmillaryError("the adapter changes no weight: its safetensors file is empty")
    return changes


def _scale(settings: dict[str, Any], module: str, rank: int) -> float:
    """alpha / r, with rsLoRA alpha / sqrt(r); alpha_pattern names modules by the end of their names."""
    alpha = settings["lora_alpha"]
    for pattern, other in (settings.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = other
            break
    return float(alpha) / (rank**0.5 if settings.get("use_rslora") else rank)
