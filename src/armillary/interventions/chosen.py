"""Choose the layers and heads that an intervention changes, and restore their weights afterward."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy, Layer
from armillary.anatomy.source import describe_own
from armillary.anatomy.weights import LayerWeights
from armillary.errors import ArmillaryError

Heads = Iterable[int] | Iterable[tuple[int, int]] | None
"""None for all heads, head numbers (in every chosen layer), or (layer, head) pairs."""


@dataclass(frozen=True)
class ChosenHeads:
    """One layer with its weights (views of the model's parameters) and the heads to change in it."""

    layer: Layer
    weights: LayerWeights
    heads: tuple[int, ...]

    @property
    def whole_key_heads(self) -> tuple[int, ...]:
        """The key heads whose query heads are all chosen."""
        group = self.layer.group
        return tuple(g for g in range(self.layer.kv_heads) if all(g * group + i in self.heads for i in range(group)))


def choose_heads(model: nn.Module, layers: Iterable[int] | None, heads: Heads) -> list[ChosenHeads]:
    """The chosen layers and heads of a model. Mistakes raise before anything is changed."""
    anatomy = describe_own(model)
    anatomy.weights(0)  # raises for a family without an adapter
    numbers = list(range(len(anatomy.layers))) if layers is None else sorted(set(layers))
    pairs = _pairs(anatomy, numbers, heads)
    if not pairs:
        raise ArmillaryError("no layer or no head was chosen", advice="leave out `layers` and `heads` to choose all")
    _refuse_shared(anatomy, {layer for layer, _ in pairs})
    _refuse_copies(model, anatomy, {layer for layer, _ in pairs})
    chosen = []
    seen_blocks: set[str] = set()
    for number in sorted({layer for layer, _ in pairs}):
        layer = anatomy.layers[number]
        if layer.block not in seen_blocks:  # layers that share their weights are changed once
            seen_blocks.add(layer.block)
            layer_heads = tuple(sorted(head for pair_layer, head in pairs if pair_layer == number))
            chosen.append(ChosenHeads(layer, anatomy.weights(number), layer_heads))
    return chosen


def _pairs(anatomy: Anatomy, layers: list[int], heads: Heads) -> set[tuple[int, int]]:
    for layer in layers:
        if not 0 <= layer < len(anatomy.layers):
            raise ArmillaryError(
                f"there is no layer {layer}: this model has layers 0 to {len(anatomy.layers) - 1}",
                given=layer,
                expected=range(len(anatomy.layers)),
            )
    if heads is None:
        return {(layer, head) for layer in layers for head in range(anatomy.layers[layer].heads)}
    pairs = set()
    for item in heads:
        for layer, head in [item] if isinstance(item, tuple) else [(layer, item) for layer in layers]:
            if not 0 <= layer < len(anatomy.layers) or not 0 <= head < anatomy.layers[layer].heads:
                raise ArmillaryError(
                    f"there is no head {layer}.{head}: this model has layers 0 to {len(anatomy.layers) - 1} with heads "
                    f"0 to {anatomy.layers[0].heads - 1}"
                )
            pairs.add((layer, head))
    return pairs


def _refuse_shared(anatomy: Anatomy, layers: set[int]) -> None:
    """Raise if only some of the layers that share their weights were chosen."""
    for layer in layers:
        block = anatomy.layers[layer].block
        others = [other.index for other in anatomy.layers if other.block == block and other.index not in layers]
        if others:
            raise ArmillaryError(
                f"layer {layer} shares its weights with layer {others[0]} in this model",
                advice="choose both, or neither",
            )


def _refuse_copies(model: nn.Module, anatomy: Anatomy, layers: set[int]) -> None:
    """Raise for weights that are computed (not writable), and for a parameter that two layers share."""
    stored = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    owners: dict[tuple[int, int], Layer] = {}
    for layer in anatomy.layers:
        weights = anatomy.weights(layer.index)
        for part in ("q", "k", "v", "o"):
            for matrix in getattr(weights, part):
                if layer.index in layers and layer.latent and part != "o":
                    raise ArmillaryError(
                        f"W_{part} of layer {layer.index} is a product of matrices (multi-head latent attention)",
                        advice="it cannot be changed in place",
                    )
                place = (matrix.untyped_storage().data_ptr(), matrix.storage_offset())
                if layer.index in layers and place[0] not in stored:
                    raise ArmillaryError(
                        f"W_{part} of layer {layer.index} is computed from other parameters (a parametrization)",
                        advice="it cannot be changed in place; remove the parametrization first",
                    )
                owner = owners.setdefault(place, layer)
                if owner.block != layer.block and {owner.index, layer.index} & layers:
                    raise ArmillaryError(
                        f"layers {owner.index} and {layer.index} share W_{part} in this model: it would change in both"
                    )


def tensors_of(weights: LayerWeights, part: str, head: int) -> list[Tensor]:
    """The matrix and, where there is one, the bias of a head's q, k or v: views that can be written to."""
    biases = getattr(weights, f"{part}_bias")
    return [getattr(weights, part)[head], *([] if biases is None else [biases[head]])]


@contextmanager
def restored(tensors: list[Tensor], change: Callable[[], None]) -> Iterator[None]:
    """Apply the change; restore the tensors from copies at the end, also after an exception."""
    copies = [tensor.clone() for tensor in tensors]
    try:
        with torch.no_grad():
            change()
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)
