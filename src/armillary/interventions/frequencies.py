"""Other rotary frequencies for a model: the fast ones alone (p-RoPE), the slow ones, a partial width, a base, none."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from inspect import signature
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.anatomy.adapter import adapter_for
from armillary.anatomy.description import Alibi, Anatomy, RelativeBias, Rotary, geometric
from armillary.anatomy.rotary import rotary_from
from armillary.anatomy.source import blocks_name, describe, transformer_of
from armillary.errors import ArmillaryError
from armillary.theory.rotary import kept_count, kept_frequencies

Share = float | int | Fraction

FREQUENCIES, TABLE = "inv_freq", "embed_positions"
"""The buffers of frequencies (one, or one for each layer type, whose name stands before), or of sines and cosines."""
FOLLOWING = (FREQUENCIES, "max_seq_len_cached", "attention_scaling")
"""What transformers writes, while a model runs, where frequencies follow the length of the text."""
CHANGED: WeakSet[nn.Module] = WeakSet()
"""The modules whose frequencies are changed now."""


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
    """Every layer's rotary encoding as `changed_rotary` says, where the family keeps its frequencies.

    `of_base` changes only the layers that turn with this base, in a model whose layers have several.
    Frequencies that stay keep their bits, and p=1 touches nothing. Where they follow the length of the text (dynamic,
    longrope), each text's are changed as it comes.
    """
    asked = dict(p=p, base=base, reversed=reversed, partial=partial, nope=nope)
    if (base is not None or partial is not None) and getattr(transformer_of(model).config, "armillary_rotary", None):
        raise ArmillaryError(
            "this model was trained with other frequencies than its base and width say, which base and partial "
            "would undo: p and nope can be tried"
        )
    places = _places(model, describe(model))
    if of_base is not None:
        bases = sorted({place.rotary.base for place in places})
        if of_base not in bases:
            known = " and ".join(f"{base:.10g}" for base in bases)
            raise ArmillaryError(
                f"no layer of this model turns with base {of_base:.10g}: there are layers with {known}"
            )
        places = [place for place in places if place.rotary.base == of_base]
    changes = [(place, changed_rotary(place.rotary, **asked)) for place in places]  # type: ignore[arg-type]
    changes = [(place, new) for place, new in changes if new != place.rotary]
    modules = {place.module for place, _ in changes}
    if not CHANGED.isdisjoint(modules):
        raise ArmillaryError("the rotary frequencies of this model are changed already: leave that block first")
    with ExitStack() as undo:
        for place, new in changes:
            undo.enter_context(place.changed(new))
        CHANGED.update(modules)
        undo.callback(CHANGED.difference_update, modules)
        yield model


def refuse_without_rotary(model: nn.Module) -> None:
    """Raise, saying what the model has instead, if it has no rotary encoding."""
    _places(model, describe(model))


def apply(model: nn.Module, change: dict[str, Any]) -> None:
    """Change the frequencies for good: for a model that is trained with them, or was (config.armillary_rotary)."""
    config = copy.deepcopy(transformer_of(model).config)
    config.armillary_rotary = None
    for place in _places(model, describe(config)):
        if place.rotary.follows_length:
            raise ArmillaryError(
                f"rope_type {place.rotary.scaling!r} sets the frequencies while the model runs: "
                "they cannot be changed for good"
            )
        write = _with_table if place.buffer == TABLE else _with_frequencies
        new = changed_rotary(place.rotary, **change)
        setattr(place.module, place.buffer, write(getattr(place.module, place.buffer), place.rotary, new))


def changed_rotary(
    rotary: Rotary,
    *,
    p: Share | None = None,
    base: float | int | None = None,
    reversed: bool = False,
    partial: Share | None = None,
    nope: bool = False,
) -> Rotary:
    """The encoding after the change: as many pairs as before, with frequency 0 where they no longer turn.

    p keeps the fastest floor(p F) of the F frequencies, reversed=True the slowest; p=1 is the encoding itself. nope
    keeps none. partial=c puts the whole range of frequencies, fast to slow, on the first floor(c F) pairs and none on
    the others, so trained pairs of channels stay together. base sets the base first, under the model's own scaling (of
    every layer type, where there are several). cos and sin keep their `factor`: with yarn also pairs that do not turn
    are multiplied by it, so their part of the logit is factor^2 times q.k.
    """
    _check(p, base, reversed, partial, nope)
    count = len(rotary.frequencies)
    if base is not None and base != rotary.base:
        rotary = _rescaled(rotary, float(base), rotary.width)
    if partial is not None:
        if rotary.follows_length:
            raise ArmillaryError(
                f"rope_type {rotary.scaling!r} sets the frequencies by the length of the text for the width that the "
                "model has: a partial width is not defined. Use p instead"
            )
        kept = kept_count(partial, count)
        if kept == count:
            return rotary
        frequencies = _rescaled(rotary, rotary.base, 2 * kept).frequencies if kept else ()
        return replace(rotary, frequencies=frequencies + (0.0,) * (count - kept))
    flags = kept_frequencies(0 if nope else 1 if p is None else p, count, reversed=reversed)
    if all(flags):
        return rotary
    if rotary.follows_length:
        return StoppedRotary(**vars(rotary), turning=flags).at(0)
    return replace(rotary, frequencies=_stopped(rotary.frequencies, flags))


@dataclass(frozen=True)
class StoppedRotary(Rotary):
    """An encoding whose frequencies follow the length of the text, less the pairs that no longer turn."""

    turning: tuple[bool, ...] = ()

    def at(self, length: int) -> Rotary:
        """The encoding for a text of `length` tokens: the same pairs stand still at every length."""
        there = super().at(length)
        return replace(there, frequencies=_stopped(there.frequencies, self.turning))


def _stopped(frequencies: tuple[float, ...], turning: tuple[bool, ...]) -> tuple[float, ...]:
    return tuple(g if turns else 0.0 for g, turns in zip(frequencies, turning, strict=True))


def _check(p: Share | None, base: float | int | None, reversed: bool, partial: Share | None, nope: bool) -> None:
    if sum((p is not None, partial is not None, nope)) > 1:
        raise ArmillaryError("p, partial and nope each say which frequencies stay: give one of them")
    if p is None and partial is None and not nope and base is None:
        raise ArmillaryError("nothing was asked of the rotary encoding: give p, partial, nope or base")
    if reversed and p is None:
        raise ArmillaryError("reversed keeps the slowest fraction p of the frequencies: give p with it")
    if base is not None and not 1 < base < float("inf"):
        raise ArmillaryError(f"base={base} gives no falling frequencies: give a number above 1, such as 10000")


def _rescaled(rotary: Rotary, base: float, width: int) -> Rotary:
    """The encoding for another base or width, under the same scaling."""
    if rotary.scaling == "default":
        return replace(rotary, base=base, frequencies=geometric(base, width))
    from transformers import LlamaConfig

    parameters = {**rotary.parameters, "rope_theta": base}
    trained = parameters.pop("max_position_embeddings")
    if rotary.scaling != "proportional":  # elsewhere this says how wide the encoding is, which we say ourselves
        parameters.pop("partial_rotary_factor", None)
    config = LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        head_dim=width,
        max_position_embeddings=trained,
        rope_parameters=parameters,
    )
    found = rotary_from(config, 0, head_width=width)
    assert found is not None
    return replace(rotary, base=base, frequencies=found.frequencies)


@dataclass(frozen=True)
class _Place:
    """A buffer that holds frequencies, or the sines and cosines made from them, and the encoding that it holds."""

    module: Any
    buffer: str
    rotary: Rotary

    def changed(self, new: Rotary) -> AbstractContextManager[None]:
        """The module with this encoding, until the block ends."""
        if self.rotary.follows_length:
            return self._following(new)
        write = _with_table if self.buffer == TABLE else _with_frequencies
        return self._swapped(write(getattr(self.module, self.buffer), self.rotary, new))

    @contextmanager
    def _swapped(self, tensor: Tensor) -> Iterator[None]:
        kept = getattr(self.module, self.buffer)
        setattr(self.module, self.buffer, tensor)
        try:
            yield
        finally:
            setattr(self.module, self.buffer, kept)

    @contextmanager
    def _following(self, new: Rotary) -> Iterator[None]:
        """Change what the module gives, since it writes its frequencies anew while it runs; what it wrote is undone."""
        module = self.module
        kept = _following_state(module)
        hook = module.register_forward_hook(self._turn(new), with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()
            for name in _following_state(module):
                if name not in kept:
                    delattr(module, name)
            for name, value in kept.items():
                setattr(module, name, value)

    def _turn(self, new: Rotary) -> Callable[..., tuple[Tensor, Tensor] | None]:
        layer_type = self.buffer.removesuffix(FREQUENCIES).rstrip("_")

        def turn(module: Any, args: Any, kwargs: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
            given = signature(module.forward).bind(*args, **kwargs).arguments
            if given.get("layer_type", "") != layer_type:
                return None
            positions = given["position_ids"]
            length = int(positions.max()) + 1
            before, after = self.rotary.at(length).frequencies, new.at(length).frequencies
            columns = _differing(before, after)
            angle = positions[..., None].float() * torch.tensor([after[f] for f in columns], device=positions.device)
            cos, sin = (part.clone() for part in output)
            for start in range(0, cos.shape[-1], len(after)):  # most families write every angle twice
                into = [start + f for f in columns]
                cos[..., into] = (angle.cos() * new.factor).to(cos)
                sin[..., into] = (angle.sin() * new.factor).to(sin)
            return cos, sin

        return turn


def _following_state(module: nn.Module) -> dict[str, Any]:
    names = [name for name in (*vars(module), *module._buffers) if name.endswith(FOLLOWING)]
    return {name: getattr(module, name) for name in names}


def _differing(before: tuple[float, ...], after: tuple[float, ...]) -> list[int]:
    """The frequencies that are not the same, so that the others keep the model's own rounding."""
    return [f for f, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def _with_frequencies(buffer: Float[Tensor, "f"], old: Rotary, new: Rotary) -> Float[Tensor, "f"]:
    """The model's frequencies with the changed ones written over."""
    described = torch.tensor(old.frequencies, dtype=torch.float64, device=buffer.device)
    if buffer.shape != described.shape or not torch.allclose(buffer.double(), described, rtol=1e-2, atol=1e-6):
        raise ArmillaryError(
            "the rotary frequencies in this model are not those that its configuration describes: something else has "
            "changed them. Load the model anew"
        )
    written = buffer.clone()
    for f in _differing(old.frequencies, new.frequencies):
        written[f] = new.frequencies[f]
    return written


def _with_table(table: Float[Tensor, "position width"], old: Rotary, new: Rotary) -> Float[Tensor, "position width"]:
    """The model's table, sines of all angles beside their cosines, with the changed frequencies' columns made anew."""
    columns, count = _differing(old.frequencies, new.frequencies), len(old.frequencies)
    changed = torch.tensor([new.frequencies[f] for f in columns], device=table.device)
    angle = torch.arange(len(table), device=table.device).float()[:, None] * changed
    written = table.clone()
    written[:, columns] = angle.sin().to(table)
    written[:, [count + f for f in columns]] = angle.cos().to(table)
    return written


def _places(model: nn.Module, anatomy: Anatomy) -> list[_Place]:
    """Where the model keeps its frequencies, each with what it should hold; an error for a model without any."""
    if anatomy.missing:
        raise ArmillaryError(
            f"where this {anatomy.family} model keeps rotary frequencies is not known: {anatomy.missing}"
        )
    encodings = {layer.index: layer.position for layer in anatomy.layers if isinstance(layer.position, Rotary)}
    if encodings and not any(g for rotary in encodings.values() for g in rotary.frequencies):
        raise ArmillaryError(f"no frequency of this {anatomy.family} model turns: it has no rotary encoding in use")
    if not encodings:
        raise ArmillaryError(
            f"this {anatomy.family} model has no rotary encoding ({_other(anatomy)}): it has no frequencies to change"
        )
    adapter = adapter_for(anatomy.family)
    assert adapter is not None
    around = model.get_submodule(blocks_name(model, adapter).rpartition(".")[0])
    types = getattr(transformer_of(model).config, "layer_types", None) or []
    found = []
    for module in around.modules():
        for name, _ in module.named_buffers(recurse=False):
            if name in (FREQUENCIES, TABLE):
                held = set(encodings.values())
            elif name.endswith("_" + FREQUENCIES):
                layer_type = name.removesuffix("_" + FREQUENCIES)
                held = {rotary for index, rotary in encodings.items() if types[index : index + 1] == [layer_type]}
            else:
                continue
            if len(held) > 1:
                raise ArmillaryError(
                    f"the layers of this {anatomy.family} model share {name!r}, but are described with different "
                    "encodings: its configuration does not describe it"
                )
            found += [_Place(module, name, one) for one in held]
    if not found:
        raise ArmillaryError(
            f"this {anatomy.family} model has no buffer {FREQUENCIES!r} or {TABLE!r}, where its family keeps rotary "
            "frequencies: it was changed, or this version of transformers keeps them elsewhere"
        )
    return found


def _other(anatomy: Anatomy) -> str:
    """How a model without a rotary encoding knows positions."""
    position = anatomy.layers[0].position
    if isinstance(position, Alibi):
        return "its logits fall with distance, ALiBi"
    if isinstance(position, RelativeBias):
        return "its logits have a learned bias for each distance"
    return f"its embeddings carry {anatomy.positions_added} positions"
