"""The tap: observes q, k, v of every attention head while the model runs, and changes nothing.

transformers models call AttentionInterface.get_interface for the function that computes attention. While a tap is
open, it wraps that function: the wrapper computes exactly the same, then passes the layer's inputs to the tap of the
calling module's model. Other models are not affected. Families that bypass the interface: observe/bypassing.py.
"""

import inspect
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from armillary.anatomy.description import Anatomy
from armillary.anatomy.layout import Stack, entry, find_stack
from armillary.anatomy.registry import adapter_of
from armillary.anatomy.source import describe, transformer_of
from armillary.anatomy.versions import refuse_too_old
from armillary.errors import ArmillaryError
from armillary.observe.bypassing import watch_for
from armillary.observe.precision import measurable
from armillary.observe.view import AttentionView, split_mask

OnAttention = Callable[[AttentionView], object]
OnResidual = Callable[[int, Tensor], None]


class Tap:
    """`with Tap(model, on_attention): model(...)` calls on_attention with an AttentionView for every layer.

    on_residual(l, h), if given, receives the residual stream: l = 0 after the embeddings, ..., L after the last
    block. The model is restored when the context ends, also after an exception. One tap per model at a time. Of an
    encoder-decoder the encoder is observed, or the part that is asked for: 'decoder' or 'cross'.

    Tensors are the model's own. On a device without float64 (mps), where statistics could not be summed, they are
    copies on the CPU, unless `own` is set, for receivers that write into the output.
    """

    def __init__(
        self,
        model: nn.Module,
        on_attention: OnAttention | None = None,
        on_residual: OnResidual | None = None,
        *,
        part: str = "",
        own: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArmillaryError(
                f"a tap needs a loaded model, not a {type(model).__name__}", advice="load it with arm.load"
            )
        self.model = model
        self.anatomy: Anatomy = describe(model, part=part)
        if hasattr(model, "config"):
            refuse_too_old(model.config)
        self._on_attention = on_attention
        self._on_residual = on_residual
        self._own = own
        self._stack: Stack = find_stack(model, self.anatomy)
        if on_residual is not None and not self._stack.blocks:
            raise ArmillaryError(
                f"the blocks of this {self.anatomy.family} model could not be found, so its residual stream "
                "cannot be followed",
                advice="register an adapter for its family",
            )
        self._undo = ExitStack()
        self._local = threading.local()

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

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tap":
        """A copy of a tapped model has copies of the hooks, which do nothing."""
        return self

    def _remove(self) -> None:
        try:
            self._undo.close()
        finally:
            self._local = threading.local()
            _close(self)

    def _put_hooks(self) -> None:
        inner = transformer_of(self.model)
        encoder = () if self.anatomy.part else (entry(inner),)
        roots = {id(m): m for m in (self.model, inner, getattr(inner, "base_model", inner), *encoder)}
        for root in roots.values():
            self._hook(root.register_forward_pre_hook(self._forward_begins, with_kwargs=True))
            self._hook(root.register_forward_hook(self._forward_ends, always_call=True))
        adapter = adapter_of(self.anatomy)
        watch = None if adapter is None else watch_for(adapter.watched_as)
        for module in self.model.modules():
            if self._stack.may_attend(module):
                self._hook(module.register_forward_pre_hook(self._attention_begins, with_kwargs=True))
                if watch is not None:
                    self._undo.callback(watch(module, lambda view, at=module: self._observed(at, view)))  # type: ignore[misc]
        if self._on_residual is not None:
            for block in {id(block): block for block in self._stack.blocks}.values():
                self._hook(block.register_forward_pre_hook(self._block_begins, with_kwargs=True))
                self._hook(block.register_forward_hook(self._block_ends))

    def _hook(self, handle: torch.utils.hooks.RemovableHandle) -> None:
        self._undo.callback(handle.remove)

    # one forward pass ---------------------------------------------------------------------------------------

    @property
    def _forward(self) -> "_Forward":
        """This thread's forward pass."""
        if not hasattr(self._local, "forward"):
            self._local.forward = _Forward()
        forward: _Forward = self._local.forward
        return forward

    def _forward_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._owns(module):
            return
        if self._forward.depth == 0:
            self._local.forward = _Forward()
        self._forward.depth += 1
        arguments = _bound(module, args, kwargs)
        self.anatomy.check_length(_longest(arguments))
        if not self.anatomy.part and arguments.get("encoder_outputs") is not None:
            self._forward.stack_runs = False
        for name, masks in (("attention_mask", self._forward.masks), ("decoder_attention_mask", self._forward.masks)):
            mask = arguments.get(name)
            if isinstance(mask, Tensor) and mask.dim() == 2 and name not in masks:
                masks[name] = mask.bool()

    def _forward_ends(self, module: nn.Module, args: Any, computed: Any) -> None:
        if not self._owns(module) or self._forward.depth == 0:
            return
        self._forward.depth -= 1
        if self._forward.depth == 0 and computed is not None and not self._forward.seen and self._forward.stack_runs:
            raise ArmillaryError(_nothing_seen(self.model))

    def _attention_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        if self._owns(module) and isinstance(x, Tensor) and x.dim() == 3:
            self._forward.x[id(module)] = x.detach()
            if isinstance(other := kwargs.get("key_value_states"), Tensor):
                self._forward.keys_from[id(module)] = other.detach()

    def _observed(self, module: nn.Module, view: AttentionView) -> None:
        """Called when an attention module has run: pass the view on, with its layer and input."""
        if not self._owns(module) or torch._C._current_graph_task_id() != -1:
            return  # a copy of the model, or gradient checkpointing that runs the forward pass again
        layer = self._stack.layer_of(module, self._forward.calls)
        if layer is None:
            return
        self._forward.seen = True
        x = self._forward.x.pop(id(module), None)
        keys_from = self._forward.keys_from.pop(id(module), None)
        if self._on_attention is None:
            return
        self._on_attention(
            replace(
                view,
                q=self._given(view.q),
                k=self._given(view.k),
                v=self._given(view.v),
                mask=self._given(view.mask),
                bias=self._given(view.bias),
                sinks=self._given(view.sinks),
                output=self._given(view.output),
                layer=layer,
                module=self._stack.names[id(module)],
                x=self._given(x),
                valid=self._given(self._valid(module, view)),
                keys_from=self._given(keys_from),
            )
        )

    def _given(self, tensor: Any) -> Any:
        """A tensor of the view: the model's own, or, where statistics could not be summed, a copy on the CPU."""
        if tensor is None:
            return None
        return tensor.detach() if self._own else measurable(tensor.detach())

    def _valid(self, module: nn.Module, view: AttentionView) -> Tensor | None:
        """The padding mask of this module's queries."""
        decodes = self._stack.is_decoder(module)
        mask = self._forward.masks.get("decoder_attention_mask" if decodes else "attention_mask")
        if self.anatomy.part == "cross":
            return mask if mask is not None and mask.shape[1] == view.queries else None
        if mask is None or mask.shape[1] != view.keys:
            return None
        return mask[:, view.keys - view.queries :].to(view.q.device)  # layers may be on several devices

    def _owns(self, module: nn.Module) -> bool:
        return _OWNERS.get(id(module)) is self

    def _block_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._owns(module) and self._on_residual is not None:
            self._on_residual(
                self._forward.blocks % len(self._stack.blocks),
                self._given(_hidden(args or kwargs.get("hidden_states"))),
            )

    def _block_ends(self, module: nn.Module, args: Any, computed: Any) -> None:
        if self._owns(module) and self._on_residual is not None:
            self._forward.blocks += 1
            if self._forward.blocks % len(self._stack.blocks) == 0:
                self._on_residual(len(self._stack.blocks), self._given(_hidden(computed)))

    # called by the wrapped interface ------------------------------------------------------------------------

    def _interface_called(self, module: nn.Module, call: "_Call") -> None:
        q, k, v, mask, kwargs = call.query, call.key, call.value, call.mask, call.kwargs
        flash = "flash" in (call.implementation or "")
        bias, seen, causal, window = kwargs.get("position_bias"), None, False, None
        if isinstance(mask, Tensor) and mask.dim() == 4:
            seen, added = self._forward.split(mask, k.shape[2])
            bias = added if bias is None else bias if added is None else bias + added
        elif mask is None or (flash and isinstance(mask, Tensor) and mask.dim() == 2):
            flag = kwargs.get("is_causal")
            is_causal = getattr(module, "is_causal", True) if flag is None else flag
            causal = bool(is_causal) and call.implementation != "eager" and q.shape[2] > 1
            seen = None if mask is None else mask.bool()[:, None, None, : k.shape[2]]
            window = kwargs.get("sliding_window") if flash else None
        else:
            raise ArmillaryError(_unreadable_mask(call))
        if flash and any(kwargs.get(name) is not None for name in ("cu_seq_lens_q", "cu_seqlens_q")):
            raise ArmillaryError(
                "the tap cannot separate texts packed into one row under flash attention", advice="use sdpa"
            )
        if causal and not flash:  # sdpa's causal flag counts from the first key
            k, v = k[:, :, : q.shape[2]], v[:, :, : q.shape[2]]
        scale = kwargs.get("scaling")
        self._observed(
            module,
            AttentionView(
                q,
                k,
                v,
                scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
                mask=seen,
                causal=causal,
                window=window,
                bias=bias,
                softcap=kwargs.get("softcap"),
                sinks=kwargs.get("s_aux"),
                output=call.output,
            ),
        )


class _Forward:
    """The state of one forward pass of the tapped model in one thread."""

    def __init__(self) -> None:
        self.depth = 0
        self.seen = False
        self.stack_runs = True
        self.masks: dict[str, Tensor] = {}
        self.x: dict[int, Tensor] = {}
        self.keys_from: dict[int, Tensor] = {}
        self.calls: dict[int, int] = {}
        self.blocks = 0
        self._splits: dict[tuple[int, int], tuple[Tensor, tuple[Tensor, Tensor | None]]] = {}

    def split(self, mask: Tensor, keys: int) -> tuple[Tensor, Tensor | None]:
        """split_mask, once for a mask that several layers share."""
        key = (id(mask), keys)
        if key not in self._splits:
            self._splits[key] = (mask, split_mask(mask, keys))
        return self._splits[key][1]


class _Call:
    """One call of an attention function."""

    def __init__(
        self, implementation: str | None, query: Tensor, key: Tensor, value: Tensor, mask: Any, kwargs: dict[str, Any]
    ) -> None:
        self.implementation = implementation
        self.query, self.key, self.value, self.mask, self.kwargs = query, key, value, mask, kwargs
        self.output: Tensor | None = None


_LOCK = threading.Lock()
_OWNERS: dict[int, Tap] = {}
"""The tap of every module of every tapped model, by id."""
_STOCK: list[Callable[..., Any]] = []
"""The original AttentionInterface.get_interface, from when the first tap opened."""


def _open(tap: Tap) -> None:
    with _LOCK:
        if any(id(module) in _OWNERS for module in tap.model.modules()):
            raise ArmillaryError(
                f"this {type(tap.model).__name__} already has a tap",
                advice="close the first tap, or give it both callbacks",
            )
        if not _OWNERS:
            _STOCK[:] = [AttentionInterface.get_interface]
            AttentionInterface.get_interface = _observed_interface
        _OWNERS.update((id(module), tap) for module in tap.model.modules())


def _close(tap: Tap) -> None:
    with _LOCK:
        for key in [key for key, owner in _OWNERS.items() if owner is tap]:
            del _OWNERS[key]
        if not _OWNERS and AttentionInterface.get_interface is _observed_interface:
            AttentionInterface.get_interface = _STOCK[0]


def _observed_interface(self: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """AttentionInterface.get_interface while a tap is open: the stock function, wrapped to call the tap."""
    stock = _STOCK[0](self, *args, **kwargs)
    implementation = args[0] if args else kwargs.get("attn_implementation")

    def observed(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> Any:
        computed = stock(module, query, key, value, attention_mask, **kwargs)
        tap = _OWNERS.get(id(module))
        if tap is not None:
            call = _Call(implementation, query, key, value, attention_mask, kwargs)
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


def _longest(arguments: dict[str, Any]) -> int:
    """How many positions a call needs."""
    positions, tokens = arguments.get("position_ids"), arguments.get("input_ids")
    if isinstance(positions, Tensor) and positions.numel():
        return int(positions.max()) + 1
    shape = tokens.shape if isinstance(tokens, Tensor) else getattr(arguments.get("inputs_embeds"), "shape", None)
    if shape is None or len(shape) < 2:
        return 0
    cache: Any = arguments.get("past_key_values")
    return int(shape[1]) + (int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0)


def _hidden(states: Any) -> Tensor:
    """The hidden states among a block's arguments or results."""
    hidden = states[0] if isinstance(states, tuple | list) else states
    if not isinstance(hidden, Tensor):
        raise ArmillaryError(f"a block passed a {type(hidden).__name__} where its hidden states were expected")
    return hidden.detach()


def _nothing_seen(model: nn.Module) -> str:
    if any(getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod") for m in model.modules()):
        return "no attention passed the tap: the model is compiled; tap it before torch.compile, or without"
    return (
        f"no attention passed the tap: {type(model).__name__} computes it without transformers' attention "
        "interface, or has no attention layers; an adapter with `watched_as` makes it visible"
    )


def _unreadable_mask(call: _Call) -> str:
    shape = tuple(call.mask.shape) if isinstance(call.mask, Tensor) else ""
    return (
        f"the attention implementation {call.implementation!r} passes its mask as {type(call.mask).__name__} {shape}, "
        "which the tap does not read: load the model with attn_implementation='sdpa' or 'eager', and give masks of 2 "
        "or 4 dimensions"
    )
