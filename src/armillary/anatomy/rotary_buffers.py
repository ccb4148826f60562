"""Finds the rotary frequencies in a model's buffers and changes them, temporarily or permanently."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.anatomy.description import Alibi, Anatomy, RelativeBias, Rotary
from armillary.anatomy.frequencies import changed_rotary
from armillary.anatomy.registry import adapter_of, described_part
from armillary.anatomy.source import blocks_name, describe, transformer_of
from armillary.errors import ArmillaryError
from armillary.machine.float64 import wide

FREQUENCIES, TABLE = "inv_freq", "embed_positions"
"""Names of the buffers: frequencies (after the layer type, if there are several), or a table of sin and cos."""


FOLLOWING = (FREQUENCIES, "max_seq_len_cached", "attention_scaling")
"""What transformers writes while a model runs, if frequencies depend on the length of the text."""


def apply(model: nn.Module, change: dict[str, Any]) -> None:
    """Change the frequencies permanently, for a model that is trained with them (config.armillary_rotary)."""
    config = copy.deepcopy(transformer_of(model).config)
    config.armillary_rotary = config.armillary_alibi = None  # as transformers built it
    for place in rotary_buffers(model, describe(config)):
        if place.rotary.follows_length:
            raise ArmillaryError(
                f"rope_type {place.rotary.scaling!r} sets the frequencies while the model runs",
                advice="they cannot be changed permanently",
            )
        write = _with_table if place.buffer == TABLE else _with_frequencies
        new = changed_rotary(place.rotary, **change)
        setattr(place.module, place.buffer, write(getattr(place.module, place.buffer), place.rotary, new))


@dataclass(frozen=True)
class RotaryBuffer:
    """A buffer of frequencies, or of their sines and cosines, and its encoding."""

    module: Any
    buffer: str
    rotary: Rotary

    def changed(self, new: Rotary) -> AbstractContextManager[None]:
        """The module with this encoding, until the context ends."""
        if self.rotary.follows_length:
            return self._following(new)
        write = _with_table if self.buffer == TABLE else _with_frequencies
        return self._swapped(write(getattr(self.module, self.buffer), self.rotary, new))

    @contextmanager
    def _swapped(self, tensor: Tensor) -> Iterator[None]:
        original = getattr(self.module, self.buffer)
        setattr(self.module, self.buffer, tensor)
        try:
            yield
        finally:
            setattr(self.module, self.buffer, original)

    @contextmanager
    def _following(self, new: Rotary) -> Iterator[None]:
        """Change the module's output, since it recomputes its frequencies while it runs; its state is restored."""
        module = self.module
        original = _following_state(module)
        hook = module.register_forward_hook(self._turn(new), with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()
            for name in _following_state(module):
                if name not in original:
                    delattr(module, name)
            for name, value in original.items():
                setattr(module, name, value)

    def _turn(self, new: Rotary) -> Callable[..., tuple[Tensor, Tensor] | None]:
        layer_type = self.buffer.removesuffix(FREQUENCIES).rstrip("_")

        def turn(module: Any, args: Any, kwargs: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
            arguments = signature(module.forward).bind(*args, **kwargs).arguments
            if arguments.get("layer_type", "") != layer_type:
                return None
            positions = arguments["position_ids"]
            length = int(positions.max()) + 1
            before, after = self.rotary.at(length).frequencies, new.at(length).frequencies
            columns = _differing(before, after)
            angle = positions[..., None].float() * torch.tensor([after[f] for f in columns], device=positions.device)
            cos, sin = (part.clone() for part in output)
            for start in range(0, cos.shape[-1], len(after)):  # most families repeat every angle
                into = [start + f for f in columns]
                cos[..., into] = (angle.cos() * new.factor).to(cos)
                sin[..., into] = (angle.sin() * new.factor).to(sin)
            return cos, sin

        return turn


def _following_state(module: nn.Module) -> dict[str, Any]:
    names = [name for name in (*vars(module), *module._buffers) if name.endswith(FOLLOWING)]
    return {name: getattr(module, name) for name in names}


def _differing(before: tuple[float, ...], after: tuple[float, ...]) -> list[int]:
    """The indices of frequencies that differ; the others keep the model's own rounding."""
    return [f for f, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def _with_frequencies(buffer: Float[Tensor, "f"], old: Rotary, new: Rotary) -> Float[Tensor, "f"]:
    """The model's frequencies with the changed ones replaced."""
    exact = wide(buffer)
    described = torch.tensor(old.frequencies, dtype=torch.float64, device=exact.device)
    if exact.shape != described.shape or not torch.allclose(exact, described, rtol=1e-2, atol=1e-6):
        raise ArmillaryError(
            "the rotary frequencies in this model are not those that its configuration describes: something else has "
            "changed them. Load the model again"
        )
    written = buffer.clone()
    for f in _differing(old.frequencies, new.frequencies):
        written[f] = new.frequencies[f]
    return written


def _with_table(table: Float[Tensor, "position width"], old: Rotary, new: Rotary) -> Float[Tensor, "position width"]:
    """The model's table (sines of all angles, then cosines) with the changed frequencies' columns recomputed."""
    columns, count = _differing(old.frequencies, new.frequencies), len(old.frequencies)
    changed = torch.tensor([new.frequencies[f] for f in columns], device=table.device)
    angle = torch.arange(len(table), device=table.device).float()[:, None] * changed
    written = table.clone()
    written[:, columns] = angle.sin().to(table)
    written[:, [count + f for f in columns]] = angle.cos().to(table)
    return written


def rotary_buffers(model: nn.Module, anatomy: Anatomy) -> list[RotaryBuffer]:
    """The model's buffers of frequencies, each with its expected encoding; raises if there are none."""
    if anatomy.missing:
        raise ArmillaryError(
            f"it is unknown where this {anatomy.family} model stores rotary frequencies: {anatomy.missing}"
        )
    encodings = {
        int(layer.block.rpartition(".")[2]): layer.position
        for layer in anatomy.layers
        if isinstance(layer.position, Rotary)
    }
    if encodings and not any(g for rotary in encodings.values() for g in rotary.frequencies):
        raise ArmillaryError(f"all frequencies of this {anatomy.family} model are frozen: it uses no rotary encoding")
    if not encodings:
        raise ArmillaryError(
            f"this {anatomy.family} model has no rotary encoding ({_other(anatomy)}): it has no frequencies to change"
        )
    adapter = adapter_of(anatomy)
    assert adapter is not None
    transformer = model.get_submodule(blocks_name(model, adapter).rpartition(".")[0])
    types = getattr(described_part(transformer_of(model).config), "layer_types", None) or []
    buffers = []
    for module in transformer.modules():
        for name, _ in module.named_buffers(recurse=False):
            if name in (FREQUENCIES, TABLE):
                expected = set(encodings.values())
            elif name.endswith("_" + FREQUENCIES):
                layer_type = name.removesuffix("_" + FREQUENCIES)
                expected = {rotary for index, rotary in encodings.items() if types[index : index + 1] == [layer_type]}
            else:
                continue
            if len(expected) > 1:
                raise ArmillaryError(
                    f"the layers of this {anatomy.family} model share {name!r}, but its configuration gives them "
                    "different encodings: they do not belong together"
                )
            buffers += [RotaryBuffer(module, name, rotary) for rotary in expected]
    if not buffers:
        raise ArmillaryError(
            f"this {anatomy.family} model has no buffer {FREQUENCIES!r} or {TABLE!r}, where its family stores rotary "
            "frequencies: it was changed, or this version of transformers stores them elsewhere"
        )
    return buffers


def _other(anatomy: Anatomy) -> str:
    """How a model without a rotary encoding encodes position."""
    position = anatomy.layers[0].position
    if isinstance(position, Alibi):
        return "its logits decrease with distance, ALiBi"
    if isinstance(position, RelativeBias):
        return "its logits have a learned bias for each distance"
    return f"its embeddings contain {anatomy.positions_added} positions"
