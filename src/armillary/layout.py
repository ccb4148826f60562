"""Which modules of a model are its attention layers and blocks, for families known and unknown."""

import re
from typing import Any

from torch import nn

from armillary.anatomy.adapter import adapter_for
from armillary.anatomy.description import Anatomy
from armillary.anatomy.source import blocks_name, transformer_of
from armillary.errors import ArmillaryError


class Stack:
    """The blocks whose attention a tap reports, in order, and the layer that each attention module is."""

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
        """Which layer a call of this module is, or None where it is none of the stack's self-attention.

        A module that serves several layers is told by the number of its call.
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
        """Whether the module reads the text that an encoder-decoder model writes."""
        name = self.names.get(id(module), "")
        return "decoder" in name and any("encoder" in other.split(".") for other in self.names.values())


CROSS = re.compile(r"cross|encoder_attn|enc_dec|EncDec|encdec|multi_modal|vision|image|audio")
"""Names of attention that does not look at its own text."""


def find_stack(model: nn.Module, anatomy: Anatomy) -> Stack:
    """The attention layers of a model: where its adapter says, or where they most likely are."""
    adapter = adapter_for(anatomy.family)
    if adapter is None:
        return Stack(model, likely_blocks(model, len(anatomy.layers)), {}, known=False)
    root = blocks_name(model, adapter)
    used = {layer.block.removeprefix(f"{adapter.blocks}.").split(".")[0] for layer in anatomy.layers}
    listed: Any = model.get_submodule(root)
    if len(used) < len(listed):
        raise ArmillaryError(
            f"this model has {len(listed)} blocks in {root}, but its configuration speaks of {len(used)}: "
            "its configuration does not describe it"
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
                f"the configuration speaks of {len(anatomy.layers)} layers, but this model has no {name}: "
                "its configuration does not describe it"
            ) from error
        blocks.append(block)
    return Stack(model, blocks, attention, known=True)


def likely_blocks(model: nn.Module, count: int) -> list[nn.Module]:
    """The blocks of a model that no adapter knows: a list of as many modules as it has layers, with attention.

    Where there are several, the one of the text, then the one that comes first.
    """
    found = [
        (name, list(module))
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and _attends(module)
    ]
    seeing = [(name, blocks) for name, blocks in found if not re.search(r"vision|image|audio|visual", name)]
    return (seeing or found)[0][1] if found else []


def _attends(module: nn.Module) -> bool:
    return any("attention" in type(part).__name__.lower() for part in module.modules())


def entry(model: Any) -> Any:
    """The part of a model to call for its hidden states alone: without the word predictions, or the encoder."""
    inner = transformer_of(model)
    base = getattr(inner, "base_model", inner)
    encodes = getattr(getattr(base, "config", None), "is_encoder_decoder", False) and hasattr(base, "get_encoder")
    return base.get_encoder() if encodes else base
