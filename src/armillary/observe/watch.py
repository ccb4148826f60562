"""Observes attention modules that bypass transformers' attention interface.

A watch is installed on one attention module: it reports an AttentionView each time the module runs, and returns a
function that removes it. The module computes as before.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from armillary.errors import ArmillaryError
from armillary.observe.view import AttentionView, split_mask

Report = Callable[[AttentionView], object]
Undo = Callable[[], None]
Watch = Callable[[nn.Module, Report], Undo]


def watch_method(
    name: str,
    read: Callable[[Any, Tensor, Tensor, Tensor, Tensor | None], AttentionView],
    *,
    heads_first: bool = True,
) -> Watch:
    """Watch a method of the module that takes query, key, value and mask and returns output and probabilities.

    heads_first: whether that output is (batch, head, query, e) or (batch, query, head, e).
    """

    def watch(module: nn.Module, report: Report) -> Undo:
        stock, own = getattr(module, name), vars(module).get(name)

        class Observed:
            """The method, wrapped to report its inputs."""

            def __call__(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> Any:
                computed = stock(query, key, value, attention_mask)
                mixed = computed[0].transpose(1, 2) if heads_first else computed[0]
                report(replace(read(module, query, key, value, attention_mask), output=mixed))
                return computed

            def __deepcopy__(self, memo: dict[int, Any]) -> Any:
                """A copy of the module gets the plain method."""
                copied = memo[id(module)]
                return getattr(type(copied), name).__get__(copied)

        def undo() -> None:
            delattr(module, name)
            if own is not None:  # the method had been replaced on this module before
                setattr(module, name, own)

        setattr(module, name, Observed())
        return undo

    return watch


def watch_projection(
    projection: str, output: str, read: Callable[[Any, dict[str, Any], Tensor], AttentionView]
) -> Watch:
    """Watch a module that computes attention inside its forward, by its arguments and its fused q, k, v projection."""

    def watch(module: nn.Module, report: Report) -> Undo:
        signature = inspect.signature(module.forward)
        seen: dict[str, Any] = {}

        def arguments(_: nn.Module, args: Any, kwargs: Any) -> None:
            seen["arguments"] = dict(signature.bind(*args, **kwargs).arguments)

        def fused(_: nn.Module, args: Any, projected: Tensor) -> None:
            seen["fused"] = projected

        def mixed(_: nn.Module, args: Any) -> None:
            """Called before the output projection, so that a head's output can still be replaced."""
            _no_past(module, seen["arguments"], seen["fused"].shape[1])
            view = read(module, seen["arguments"], seen["fused"])
            report(replace(view, output=args[0].unflatten(-1, (view.heads, -1))))
            seen.clear()

        handles = [
            module.register_forward_pre_hook(arguments, with_kwargs=True),
            module.get_submodule(projection).register_forward_hook(fused),
            module.get_submodule(output).register_forward_pre_hook(mixed),
        ]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    return watch


def watch_parts(
    names: tuple[str, str, str],
    read: Callable[[Any, dict[str, Any], Tensor, Tensor, Tensor], AttentionView],
    *,
    output: str = "",
    method: str = "",
) -> Watch:
    """Watch a module that computes attention inside its forward, by its arguments and its projections q, k and v.

    output: the module's output projection, if it is inside; else the module returns what attention mixed. method: one
    of the module's methods, whose result is given to `read` among the arguments, under the method's name.
    """

    def watch(module: nn.Module, report: Report) -> Undo:
        signature = inspect.signature(module.forward)
        seen: dict[str, Any] = {}

        def begin(_: nn.Module, args: Any, kwargs: Any) -> None:
            seen.clear()
            seen["arguments"] = dict(signature.bind(*args, **kwargs).arguments)

        def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
            def first(_: nn.Module, args: Any, projected: Tensor) -> None:
                seen.setdefault(name, projected)  # a later call may project positions

            return first

        def tell(mixed: Tensor) -> None:
            parts = (seen[name].unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2) for name in names)
            view = read(module, seen["arguments"], *parts)
            seen.clear()
            report(replace(view, output=mixed.unflatten(-1, (view.heads, -1))))

        handles = [
            module.register_forward_pre_hook(begin, with_kwargs=True),
            *(module.get_submodule(name).register_forward_hook(keep(name)) for name in names),
            module.get_submodule(output).register_forward_pre_hook(lambda _, args: tell(args[0]))
            if output
            else module.register_forward_hook(lambda _, args, computed: tell(computed[0])),
        ]
        restore = _keep_result(module, method, seen) if method else None

        def undo() -> None:
            for handle in handles:
                handle.remove()
            if restore is not None:
                restore()

        return undo

    return watch


def _keep_result(module: nn.Module, method: str, seen: dict[str, Any]) -> Undo:
    """Wrap a method of the module so that its result is kept among the arguments of the forward pass."""
    stock, own = getattr(module, method), vars(module).get(method)

    class Observed:
        """The method, wrapped to keep its result."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            computed = seen["arguments"][method] = stock(*args, **kwargs)
            return computed

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            """A copy of the module gets the plain method."""
            copied = memo[id(module)]
            return getattr(type(copied), method).__get__(copied)

    def undo() -> None:
        delattr(module, method)
        if own is not None:  # the method had been replaced on this module before
            setattr(module, method, own)

    setattr(module, method, Observed())
    return undo


def _no_past(module: nn.Module, arguments: dict[str, Any], queries: int) -> None:
    cache = arguments.get("layer_past") or arguments.get("past_key_values")
    if cache is not None and cache.get_seq_length(module.layer_idx) > queries:
        raise ArmillaryError(
            f"{type(module).__name__} continues a cached text, whose earlier keys the tap cannot see",
            advice="run the whole text at once, with use_cache=False",
        )


def masked(mask: Tensor | None, keys: int) -> dict[str, Any]:
    """The fields `mask` and `bias` of a view, from a mask of transformers."""
    if mask is None:
        return {"mask": None, "bias": None}
    if mask.dim() != 4:
        raise ArmillaryError(
            f"a mask of shape {tuple(mask.shape)} cannot be read",
            advice="load the model with attn_implementation='eager'",
        )
    seen, bias = split_mask(mask, keys)
    return {"mask": seen, "bias": bias}
