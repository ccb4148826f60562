"""Layers that are run again from W_o on: their attention is not computed a second time."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.layout import find_stack
from armillary.anatomy.registry import adapter_of


class AfterAttention:
    """What enters W_o in every layer of one run, and that layer's attention module with another input of W_o.

    Only for layers whose attention module returns what W_o gives, bit for bit, and whose heads have no gate.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        adapter = adapter_of(anatomy)
        self._modules: list[tuple[nn.Module, nn.Module]] = []
        blocks = find_stack(model, anatomy).blocks
        if adapter is not None and len({id(block) for block in blocks}) == len(blocks):
            self._modules = [
                (block.get_submodule(adapter.attention), block.get_submodule(adapter.o.name)) for block in blocks
            ]
        self._heads = [0 if layer.gated else layer.heads for layer in anatomy.layers]
        self._mixed: dict[int, Tensor] = {}
        self._projected: dict[int, Tensor] = {}
        self._results: dict[int, Any] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, a run of the model is recorded."""
        with ExitStack() as hooks:
            for layer, (attention, projection) in enumerate(self._modules):

                def mixed(module: nn.Module, args: Any, result: Tensor, layer: int = layer) -> None:
                    self._mixed[layer], self._projected[layer] = args[0], result

                def attended(module: nn.Module, args: Any, result: Any, layer: int = layer) -> None:
                    self._results[layer] = result

                hooks.callback(projection.register_forward_hook(mixed).remove)
                hooks.callback(attention.register_forward_hook(attended).remove)
            yield

    def output(self, layer: int) -> Float[Tensor, "batch token head ev"] | None:
        """What the heads of a layer wrote; None if the layer cannot be run from W_o on."""
        result = self._results.get(layer)
        first = result[0] if isinstance(result, tuple) else result
        if not isinstance(first, Tensor) or layer not in self._mixed or not self._heads[layer]:
            return None
        if first is not self._projected[layer] and not torch.equal(first, self._projected[layer]):
            return None
        mixed = self._mixed[layer]
        return mixed.view(*mixed.shape[:-1], self._heads[layer], -1)

    @contextmanager
    def replaced(self, layer: int, head: int, output: Float[Tensor, "batch token ev"]) -> Iterator[None]:
        """Inside, the layer's attention returns what W_o gives when this head has this output."""
        attention, projection = self._modules[layer]
        mixed = self._mixed[layer].clone()
        mixed.unflatten(-1, (self._heads[layer], -1))[:, :, head] = output.to(mixed)
        result, own = self._results[layer], vars(attention).get("forward")

        def forward(*args: Any, **kwargs: Any) -> Any:
            projected = projection(mixed)
            return (projected, *result[1:]) if isinstance(result, tuple) else projected

        attention.forward = forward
        try:
            yield
        finally:
            del attention.forward
            if own is not None:  # the module had its own forward before
                attention.forward = own
