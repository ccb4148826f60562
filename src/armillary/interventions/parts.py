"""Take the positional or the content part out of what a layer reads."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError
from armillary.layout import find_stack
from armillary.streams.constituents import Means

if TYPE_CHECKING:
    from armillary.atlas import Atlas

Part = Literal["position", "content"]


@contextmanager
def without(
    model: nn.Module, part: Part, means: "Atlas | Means", *, layers: Iterable[int] | None = None
) -> Iterator[nn.Module]:
    """The chosen layers' attention reads x without its positional part p_t, or without its content x - m - p_t.

    x = m + p_t + v with the mean m and positional means p_t of an atlas of this model, so `position` leaves m + v and
    `content` leaves m + p_t; q, k and v all see it. The first `skip` positions of the atlas (attention sinks) are left
    as they are. Texts may be as long as the atlas's blocks. No weight is touched.
    """
    if part not in ("position", "content"):
        raise ArmillaryError(f"there is no part {part!r} to remove: there are 'position' and 'content'")
    known = means if isinstance(means, Means) else _means_of(means)
    anatomy = describe(model)
    if anatomy.missing:
        raise ArmillaryError(f"what the layers of this model read is not known: {anatomy.missing}")
    stack = find_stack(model, anatomy)
    if len(known.mean) != len(anatomy.layers):
        raise ArmillaryError(
            f"the atlas is of a model of {len(known.mean)} layers, but this one has {len(anatomy.layers)}"
        )
    chosen = set(range(len(anatomy.layers)) if layers is None else layers)
    for layer in chosen:
        if not 0 <= layer < len(anatomy.layers):
            raise ArmillaryError(f"there is no layer {layer}: this model has layers 0 to {len(anatomy.layers) - 1}")
    calls: dict[int, int] = {}
    with ExitStack() as hooks:
        starts = model.register_forward_pre_hook(lambda *_: calls.clear())
        hooks.callback(starts.remove)
        for module in model.modules():
            if stack.may_attend(module):
                hook = module.register_forward_pre_hook(_replacer(stack, calls, chosen, part, known), with_kwargs=True)
                hooks.callback(hook.remove)
        yield model


def _replacer(stack: Any, calls: dict[int, int], chosen: set[int], part: Part, means: Means) -> Any:
    def replace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        layer = stack.layer_of(module, calls)
        if layer not in chosen:
            return args, kwargs
        _refuse_cache(layer, kwargs)
        named = "hidden_states" in kwargs
        x = kwargs["hidden_states"] if named else args[0]
        changed = _changed(x, layer, part, means)
        return (args, {**kwargs, "hidden_states": changed}) if named else ((changed, *args[1:]), kwargs)

    return replace


def _refuse_cache(layer: int, kwargs: dict[str, Any]) -> None:
    """Of a text that continues what is in a cache, the positions are not known here."""
    for value in kwargs.values():
        length = getattr(value, "get_seq_length", None)
        if callable(length) and length(layer) > 0:
            raise ArmillaryError("parts are removed from whole texts: run the model with use_cache=False")


def _changed(x: Tensor, layer: int, part: Part, means: Means) -> Tensor:
    mean, pos = means.mean[layer], means.pos[layer]
    if x.shape[1] > len(pos):
        raise ArmillaryError(
            f"the text has {x.shape[1]} tokens, but the atlas knows the means of {len(pos)} positions: "
            f"cut it, or scan with --length {x.shape[1]}"
        )
    if x.shape[-1] != len(mean):
        raise ArmillaryError(f"the atlas is of a model of width {len(mean)}, but this one has {x.shape[-1]}")
    here = pos[: x.shape[1]].to(x.device)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    changed = wide - here if part == "position" else (mean.to(x.device) + here).expand_as(wide)
    return torch.cat([x[:, : means.skip], changed[:, means.skip :].to(x.dtype)], 1)


def _means_of(atlas: "Atlas") -> Means:
    from armillary.lenses.constituents import means_of

    return means_of(atlas)
