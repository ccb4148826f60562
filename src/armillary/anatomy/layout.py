"""Finds the attention layers and blocks of a model, for known and unknown families."""

import re
from typing import Any

from torch import nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.registry import adapter_of
from armillary.anatomy.source import blocks_name, transformer_of
from armillary.errors import ArmillaryError


class Stack:
    """The blocks whose attention a tap reports, in order, and the layer of each attention module."""

    def __init__(self, model: nn.Module, blocks: list[nn.Module], attention: dict[int, list[int]], known: bool) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.blocks = blocks
        self._attention = attention
        self._known = known
        self._block_of: dict[int, int] = {}
        for index, block in enumerate(blocks):
            for module in block.modules():
                self._block_of.setdefault(id(module), index)

    def may_attend(self, module: nn.Module) -> bool:
        """Whether the module's input may be an attention input."""
        if self._known:
            return id(module) in self._attention
        return "attention" in type(module).__name__.lower()

    def layer_of(self, module: nn.Module, calls: dict[int, int]) -> int | None:
        """The layer of this call of the module, or None if it is not self-attention of the stack.

        For a module that several layers share, the number of the call decides.
        """
        if self._known:
            layers = self._attention.get(id(module))
            if layers is None:
                return None
            calls[id(module)] = calls.get(id(module), 0) + 1
            return layers[(calls[id(module)] - 1) % len(layers)]
        if CROSS.search(self.names.get(id(module), "")):
            return None
        if self.blocks:
            return self._block_of.get(id(module))
        return calls.setdefault(id(module), len(calls))

    def is_decoder(self, module: nn.Module) -> bool:
        """Whether the module belongs to the decoder of an encoder-decoder model."""
        name = self.names.get(id(module), "")
        return "decoder" in name and any("encoder" in other.split(".") for other in self.names.values())


CROSS = re.compile(r"cross|encoder_attn|enc_dec|EncDec|encdec|multi_modal|vision|image|audio")
"""Names of attention modules that are not self-attention on text."""


def find_stack(model: nn.Module, anatomy: Anatomy) -> Stack:
    """The attention layers of a model: where its adapter says, or a guess for unknown families."""
    adapter = adapter_of(anatomy)
    if adapter is None:
        return Stack(model, likely_blocks(model, len(anatomy.layers)), {}, known=False)
    root = blocks_name(model, adapter)
    described = {layer.block.removeprefix(f"{adapter.blocks}.").split(".")[0] for layer in anatomy.layers}
    modules: Any = model.get_submodule(root)
    if len(described) + len(anatomy.skipped) < len(modules):
        count = len(described) + len(anatomy.skipped)
        raise ArmillaryError(
            f"this model has {len(modules)} blocks in {root}, but its configuration describes {count}: "
            "they do not belong together"
        )
    attention: dict[int, list[int]] = {}
    blocks = []
    for layer in anatomy.layers:
        name = root + layer.block.removeprefix(adapter.blocks)
        try:
            block = model.get_submodule(name)
            attention.setdefault(id(block.get_submodule(adapter.attention)), []).append(layer.index)
        except AttributeError as error:
            raise ArmillaryError(
                f"the configuration describes {len(anatomy.layers)} layers, but this model has no {name}: "
                "they do not belong together"
            ) from error
        blocks.append(block)
    return Stack(model, blocks, attention, known=True)


def likely_blocks(model: nn.Module, count: int) -> list[nn.Module]:
    """The blocks of a model without an adapter: a list of as many modules as it has layers, with attention.

    If there are several, the first that is not for images or audio.
    """
    candidates = [
        (name, list(module))
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and _attends(module)
    ]
    on_text = [(name, blocks) for name, blocks in candidates if not re.search(r"vision|image|audio|visual", name)]
    return (on_text or candidates)[0][1] if candidates else []


def _attends(module: nn.Module) -> bool:
    return any("attention" in type(part).__name__.lower() for part in module.modules())


def entry(model: Any) -> Any:
    """The part of a model to call for hidden states: without the output head; of an encoder-decoder, the encoder."""
    inner = transformer_of(model)
    base = getattr(inner, "base_model", inner)
    encodes = getattr(getattr(base, "config", None), "is_encoder_decoder", False) and hasattr(base, "get_encoder")
    return base.get_encoder() if encodes else base


def output_projections(model: nn.Module, anatomy: Anatomy) -> list[nn.Module]:
    """The module that multiplies by W_o, of every layer; raises for a family without an adapter."""
    adapter = adapter_of(anatomy)
    if adapter is None:
        raise ArmillaryError(anatomy.missing)
    return [block.get_submodule(adapter.o.name) for block in find_stack(model, anatomy).blocks]
