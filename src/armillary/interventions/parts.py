"""Remove the positional part or the content part from the input of chosen layers."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from armillary.anatomy.layout import find_stack
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError, unknown
from armillary.lenses.constituents import means_of
from armillary.observe.precision import measurable, single
from armillary.streams.constituents import Means

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

Part = Literal["position", "content"]


@contextmanager
def without(
    model: nn.Module, part: Part, means: "Atlas | Means", *, layers: Iterable[int] | None = None
) -> Iterator[nn.Module]:
    """The attention of the chosen layers reads x without its positional part p_t, or without its content x - m - p_t.

    x = m + p_t + v with the mean m and positional means p_t of an atlas of this model, so `position` leaves m + v and
    `content` leaves m + p_t, for q, k and v alike. The first `skip` positions of the atlas (attention sinks) do not
    change. Texts may be as long as the sequences of the atlas. Weights do not change.
    """
    if part not in ("position", "content"):
        raise unknown("part", part, ("position", "content"))
    layer_means = means if isinstance(means, Means) else means_of(means)
    anatomy = describe(model)
    if anatomy.missing:
        raise ArmillaryError(f"the inputs of this model's layers are not known: {anatomy.missing}")
    stack = find_stack(model, anatomy)
    if len(layer_means.mean) != len(anatomy.layers):
        raise ArmillaryError(
            f"the atlas is of a model with {len(layer_means.mean)} layers, but this one has {len(anatomy.layers)}"
        )
    chosen = set(range(len(anatomy.layers)) if layers is None else layers)
    for layer in chosen:
        if not 0 <= layer < len(anatomy.layers):
            raise ArmillaryError(
                f"there is no layer {layer}: this model has layers 0 to {len(anatomy.layers) - 1}",
                given=layer,
                expected=range(len(anatomy.layers)),
            )
    calls: dict[int, int] = {}
    with ExitStack() as hooks:
        start_hook = model.register_forward_pre_hook(lambda *_: calls.clear())
        hooks.callback(start_hook.remove)
        for module in model.modules():
            if stack.may_attend(module):
                hook = module.register_forward_pre_hook(
                    _replacer(stack, calls, chosen, part, layer_means), with_kwargs=True
                )
                hooks.callback(hook.remove)
        yield model


def _replacer(stack: Any, calls: dict[int, int], chosen: set[int], part: Part, means: Means) -> Any:
    def replace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        layer = stack.layer_of(module, calls)
        if layer not in chosen:
            return args, kwargs
        _refuse_cache(layer, kwargs)
        by_keyword = "hidden_states" in kwargs
        x = kwargs["hidden_states"] if by_keyword else args[0]
        changed = _changed(x, layer, part, means)
        return (args, {**kwargs, "hidden_states": changed}) if by_keyword else ((changed, *args[1:]), kwargs)

    return replace


def _refuse_cache(layer: int, kwargs: dict[str, Any]) -> None:
    """Raise for a text that continues a cache: its positions are not known here."""
    for value in kwargs.values():
        length = getattr(value, "get_seq_length", None)
        if callable(length) and length(layer) > 0:
            raise ArmillaryError(
                "parts can be removed only from whole texts", advice="run the model with use_cache=False"
            )


def _changed(x: Tensor, layer: int, part: Part, means: Means) -> Tensor:
    mean, pos = means.mean[layer], means.pos[layer]
    if x.shape[1] > len(pos):
        raise ArmillaryError(
            f"the text has {x.shape[1]} tokens, but the atlas has the means of {len(pos)} positions",
            advice=f"cut it, or scan with `length={x.shape[1]}`",
        )
    if x.shape[-1] != len(mean):
        raise ArmillaryError(f"the atlas is of a model with width {len(mean)}, but this one has {x.shape[-1]}")
    exact = single(measurable(x))  # the means are in float64
    p = pos[: x.shape[1]].to(exact.device)
    changed = exact - p if part == "position" else (mean.to(exact.device) + p).expand_as(exact)
    return torch.cat([x[:, : means.skip], changed[:, means.skip :].to(x)], 1)
