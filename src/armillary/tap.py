"""One tap that sees q, k, v of every attention head while the model runs, and changes nothing.

Every transformers model asks AttentionInterface.get_interface for the function that computes its attention. While
a tap is open, what that returns is wrapped: it computes exactly what it would have computed, then hands the layer's
inputs to the tap that the calling module belongs to. Modules of other models are not touched. Families that do not
ask the interface are watched as their adapter says (armillary.watch).
"""

import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from armillary.anatomy.adapter import adapter_for
from armillary.anatomy.description import Anatomy
from armillary.anatomy.source import blocks_name, config_of, describe
from armillary.errors import ArmillaryError
from armillary.view import AttentionView, split_mask
from armillary.watch import Undo

OnAttention = Callable[[AttentionView], None]
OnResidual = Callable[[int, Tensor], None]


class Tap:
    """`with Tap(model, on_attention): model(...)` calls on_attention with an AttentionView for every layer.

    on_residual(l, h), where given, receives the residual stream: l = 0 after the embeddings, ..., L after the last
    block. The model is as it was when the block ends, also after an exception. One tap per model at a time.
    """

    def __init__(
        self, model: nn.Module, on_attention: OnAttention | None = None, on_residual: OnResidual | None = None
    ) -> None:
        self.model = model
        self.anatomy: Anatomy = describe(model)
        self._on_attention = on_attention
        self._on_residual = on_residual
        self._config = config_of(model)
        self._undo: list[Undo] = []
        self._names = {id(module): name for name, module in model.named_modules()}
        self._layers, self._blocks = self._find_layers()
        self._forward = _Forward()

    def __enter__(self) -> "Tap":
        _open(self)
        try:
            self._put_hooks()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()

    def _remove(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        _close(self)

    # where things are ---------------------------------------------------------------------------------------

    def _find_layers(self) -> tuple[dict[int, list[int]], list[nn.Module]]:
        """The layers (one, or several where it is shared) of every attention module, and the blocks in order."""
        adapter = adapter_for(self.anatomy.family)
        if adapter is None:
            return {}, _likely_blocks(self.model, len(self.anatomy.layers))
        root = blocks_name(self.model, adapter)
        layers: dict[int, list[int]] = {}
        blocks = []
        for layer in self.anatomy.layers:
            block = self.model.get_submodule(root + layer.block.removeprefix(adapter.blocks))
            layers.setdefault(id(block.get_submodule(adapter.attention)), []).append(layer.index)
            blocks.append(block)
        return layers, blocks

    def _put_hooks(self) -> None:
        roots = {id(m): m for m in (self.model, getattr(self.model, "base_model", self.model), entry(self.model))}
        for root in roots.values():
            self._hook(root.register_forward_pre_hook(self._forward_begins, with_kwargs=True))
            self._hook(root.register_forward_hook(self._forward_ends, always_call=True))
        for module in self.model.modules():
            if id(module) in self._layers or (not self._layers and "attention" in type(module).__name__.lower()):
                self._hook(module.register_forward_pre_hook(self._attention_begins, with_kwargs=True))
        adapter = adapter_for(self.anatomy.family)
        if adapter is not None and adapter.watch is not None:
            for module in self.model.modules():
                if id(module) in self._layers:
                    self._undo.append(adapter.watch(module, lambda view, at=module: self._seen(at, view)))  # type: ignore[misc]
        if self._on_residual is not None:
            for block in {id(block): block for block in self._blocks}.values():
                self._hook(block.register_forward_pre_hook(self._block_begins, with_kwargs=True))
                self._hook(block.register_forward_hook(self._block_ends))

    def _hook(self, handle: torch.utils.hooks.RemovableHandle) -> None:
        self._undo.append(handle.remove)

    # one forward pass ---------------------------------------------------------------------------------------

    def _forward_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._forward.depth += 1
        if self._forward.depth > 1:
            return
        self._forward = _Forward(depth=1)
        given = _bound(module, args, kwargs)
        tokens = given.get("input_ids")
        shape = tokens.shape if isinstance(tokens, Tensor) else getattr(given.get("inputs_embeds"), "shape", None)
        if shape is not None and given.get("past_key_values") is None:
            self.anatomy.check_length(shape[1])
        mask = given.get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 2:
            self._forward.valid = mask.bool()

    def _forward_ends(self, module: nn.Module, args: Any, computed: Any) -> None:
        self._forward.depth -= 1
        if self._forward.depth == 0 and computed is not None and not self._forward.seen:
            raise ArmillaryError(
                f"no attention passed the tap: {type(self.model).__name__} computes it without asking transformers' "
                "attention interface; register an adapter with a `watch` for its family"
            )

    def _attention_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        self._forward.x[id(module)] = x if isinstance(x, Tensor) and x.dim() == 3 else None

    def _seen(self, module: nn.Module, view: AttentionView) -> None:
        """An attention module computed: say which layer it is, what it read, and pass it on."""
        if self._forward.depth == 0:
            return  # not part of a forward pass of this model (gradient checkpointing computes again, backward)
        layer = self._layer_of(module)
        if layer is None:
            return
        self._forward.seen = True
        if self._on_attention is None:
            return
        x, valid = self._forward.x.get(id(module)), self._forward.valid
        self._on_attention(
            replace(
                view,
                q=view.q.detach(),
                k=view.k.detach(),
                v=view.v.detach(),
                bias=None if view.bias is None else view.bias.detach(),
                sinks=None if view.sinks is None else view.sinks.detach(),
                output=None if view.output is None else view.output.detach(),
                layer=layer,
                module=self._names[id(module)],
                x=None if x is None else x.detach(),
                valid=valid if valid is not None and valid.shape[1] == view.keys else None,
            )
        )

    def _layer_of(self, module: nn.Module) -> int | None:
        """Which layer this call is: fixed by the module, or by the number of the call where layers are shared."""
        if not self._layers:
            return self._forward.order.setdefault(id(module), len(self._forward.order))
        layers = self._layers.get(id(module))
        if layers is None:
            return None
        calls = self._forward.calls[id(module)] = self._forward.calls.get(id(module), 0) + 1
        return layers[(calls - 1) % len(layers)]

    def _block_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._forward.depth and self._on_residual is not None:
            hidden = args[0] if args else kwargs["hidden_states"]
            self._on_residual(self._forward.blocks, hidden.detach())

    def _block_ends(self, module: nn.Module, args: Any, computed: Any) -> None:
        if not self._forward.depth or self._on_residual is None:
            return
        self._forward.blocks += 1
        if self._forward.blocks == len(self._blocks):
            hidden = computed[0] if isinstance(computed, tuple) else computed
            self._on_residual(self._forward.blocks, hidden.detach())

    # called by the wrapped interface ------------------------------------------------------------------------

    def _interface_called(self, module: nn.Module, call: "_Call") -> None:
        q, k, v, mask, kwargs = call.query, call.key, call.value, call.mask, call.kwargs
        eager = call.implementation == "eager"
        flash = "flash" in (call.implementation or "")
        bias, seen, causal, window = kwargs.get("position_bias"), None, False, None
        if isinstance(mask, Tensor) and mask.dim() == 4:
            seen, added = self._forward.split(mask, k.shape[2])
            bias = added if bias is None else bias if added is None else bias + added
        elif isinstance(mask, Tensor) or mask is None:
            flag = kwargs.get("is_causal")
            causal = (getattr(module, "is_causal", True) if flag is None else flag) and not eager and q.shape[2] > 1
            window = kwargs.get("sliding_window") if flash else None
        else:
            raise ArmillaryError(
                f"the attention implementation {call.implementation!r} passes its mask as {type(mask).__name__}, "
                "which the tap does not read: load the model with attn_implementation='sdpa' or 'eager'"
            )
        scale = kwargs.get("scaling")
        self._seen(
            module,
            AttentionView(
                q,
                k[:, :, : q.shape[2]] if causal and not flash else k,
                v[:, :, : q.shape[2]] if causal and not flash else v,
                scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
                mask=seen,
                causal=bool(causal),
                window=window,
                bias=bias,
                softcap=kwargs.get("softcap"),
                sinks=kwargs.get("s_aux"),
                output=call.output,
            ),
        )


class _Forward:
    """What belongs to one forward pass of the tapped model."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.seen = False
        self.valid: Tensor | None = None
        self.x: dict[int, Tensor | None] = {}
        self.calls: dict[int, int] = {}
        self.order: dict[int, int] = {}
        self.blocks = 0
        self._mask: tuple[Tensor, int] | None = None
        self._split: tuple[Tensor, Tensor | None] | None = None

    def split(self, mask: Tensor, keys: int) -> tuple[Tensor, Tensor | None]:
        """split_mask, once for a mask that all layers share."""
        if self._split is None or self._mask is None or self._mask[0] is not mask or self._mask[1] != keys:
            self._mask, self._split = (mask, keys), split_mask(mask, keys)
        return self._split


class _Call:
    """One call of an attention function."""

    def __init__(
        self,
        implementation: str | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        kwargs: dict[str, Any],
    ) -> None:
        self.implementation = implementation
        self.query, self.key, self.value, self.mask, self.kwargs = query, key, value, mask, kwargs
        self.output: Tensor | None = None


_LOCK = threading.Lock()
_OWNERS: dict[int, Tap] = {}
"""The tap of every module of every tapped model, by id."""
_STOCK_GET = AttentionInterface.get_interface


def _open(tap: Tap) -> None:
    with _LOCK:
        if any(id(module) in _OWNERS for module in tap.model.modules()):
            raise ArmillaryError(
                f"this {type(tap.model).__name__} is tapped already: close the first tap, or give it both receivers"
            )
        if not _OWNERS:
            AttentionInterface.get_interface = _observed_interface
        _OWNERS.update((id(module), tap) for module in tap.model.modules())


def _close(tap: Tap) -> None:
    with _LOCK:
        for key in [key for key, owner in _OWNERS.items() if owner is tap]:
            del _OWNERS[key]
        if not _OWNERS:
            AttentionInterface.get_interface = _STOCK_GET


def _observed_interface(self: Any, attn_implementation: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
    """AttentionInterface.get_interface while a tap is open: the stock function, which also tells the tap."""
    stock = _STOCK_GET(self, attn_implementation, default)

    def observed(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **kwargs: Any,
    ) -> Any:
        computed = stock(module, query, key, value, attention_mask, **kwargs)
        tap = _OWNERS.get(id(module))
        if tap is not None:
            call = _Call(attn_implementation, query, key, value, attention_mask, kwargs)
            call.output = computed[0] if computed[0].dim() == 4 else None
            tap._interface_called(module, call)
        return computed

    return observed


def _bound(module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a forward call by name."""
    if not args:
        return dict(kwargs)
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except TypeError:
        return dict(kwargs)


def entry(model: Any) -> Any:
    """The part of a model to call for its hidden states alone: without the word predictions, or the encoder."""
    base = getattr(model, "base_model", model)
    return base.get_encoder() if getattr(getattr(base, "config", None), "is_encoder_decoder", False) else base


def _likely_blocks(model: nn.Module, count: int) -> list[nn.Module]:
    """The blocks of a model that no adapter knows: the first list of as many modules as it has layers."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []
