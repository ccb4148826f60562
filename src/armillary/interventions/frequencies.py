"""Change the rotary frequencies of a model: keep the fast or the slow ones, a partial width, another base, none."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakSet

from torch import nn

from armillary.anatomy.frequencies import Share, changed_rotary
from armillary.anatomy.rotary_buffers import rotary_buffers
from armillary.anatomy.source import describe, transformer_of
from armillary.errors import ArmillaryError

CHANGED: WeakSet[nn.Module] = WeakSet()
"""The modules whose frequencies are currently changed."""


@contextmanager
def rotary(
    model: nn.Module,
    *,
    p: Share | None = None,
    base: float | int | None = None,
    reversed: bool = False,
    partial: Share | None = None,
    nope: bool = False,
    of_base: float | int | None = None,
) -> Iterator[nn.Module]:
    """Change the rotary encoding of every layer as `changed_rotary` describes.

    `of_base` changes only the layers with this base, in a model whose layers have several. Frequencies that are kept
    keep their bits, and p=1 changes nothing. Frequencies that depend on the length of the text (dynamic, longrope) are
    changed for each text.
    """
    change = dict(p=p, base=base, reversed=reversed, partial=partial, nope=nope)
    if (base is not None or partial is not None) and getattr(transformer_of(model).config, "armillary_rotary", None):
        raise ArmillaryError(
            "this model was trained with other frequencies than its base and width give, which `base` and "
            "`partial` would undo",
            advice="use `p` or `nope`",
        )
    buffers = rotary_buffers(model, describe(model))
    if of_base is not None:
        bases = sorted({buffer.rotary.base for buffer in buffers})
        if of_base not in bases:
            known_bases = " and ".join(f"{base:.10g}" for base in bases)
            raise ArmillaryError(
                f"no layer of this model has the rotary base {of_base:.10g}",
                advice=f"there are layers with {known_bases}",
            )
        buffers = [buffer for buffer in buffers if buffer.rotary.base == of_base]
    changes = [(buffer, changed_rotary(buffer.rotary, **change)) for buffer in buffers]  # type: ignore[arg-type]
    changes = [(buffer, changed) for buffer, changed in changes if changed != buffer.rotary]
    modules = {buffer.module for buffer, _ in changes}
    if not CHANGED.isdisjoint(modules):
        raise ArmillaryError(
            "the rotary frequencies of this model are already changed", advice="leave that `with` block first"
        )
    with ExitStack() as undo:
        for buffer, changed in changes:
            undo.enter_context(buffer.changed(changed))
        CHANGED.update(modules)
        undo.callback(CHANGED.difference_update, modules)
        yield model


def refuse_without_rotary(model: nn.Module) -> None:
    """Raise if the model has no rotary encoding; the error says what it has instead."""
    rotary_buffers(model, describe(model))
