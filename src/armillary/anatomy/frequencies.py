"""Changes rotary frequencies: keep the fast ones (p-RoPE) or the slow ones, a partial width, another base, none."""

from dataclasses import dataclass, replace
from fractions import Fraction

from armillary.anatomy.description import Rotary, geometric
from armillary.anatomy.rotary import rotary_from
from armillary.errors import ArmillaryError
from armillary.theory.rotary import kept_count, kept_frequencies

# Imports inside functions: transformers takes seconds to import.

Share = float | int | Fraction


def changed_rotary(
    rotary: Rotary,
    *,
    p: Share | None = None,
    base: float | int | None = None,
    reversed: bool = False,
    partial: Share | None = None,
    nope: bool = False,
) -> Rotary:
    """The encoding after the change: as many pairs as before, with frequency 0 for frozen pairs.

    p keeps the fastest floor(p F) of the F frequencies, reversed=True the slowest; p=1 is the encoding itself. nope
    keeps none. partial=c puts the whole range of frequencies, fast to slow, on the first floor(c F) pairs and none on
    the others, so trained pairs of channels stay together. base is set first, under the model's own scaling (of every
    layer type, if there are several). cos and sin keep their `factor`: with yarn frozen pairs are multiplied by it
    too, so their part of the logit is factor^2 times q.k.
    """
    _check(p, base, reversed, partial, nope)
    count = len(rotary.frequencies)
    if base is not None and base != rotary.base:
        rotary = _rescaled(rotary, float(base), rotary.width)
    if partial is not None:
        if rotary.follows_length:
            raise ArmillaryError(
                f"rope_type {rotary.scaling!r} sets the frequencies by the length of the text for the full width: "
                "a partial width is not defined. Use p instead"
            )
        pairs = kept_count(partial, count)
        if pairs == count:
            return rotary
        frequencies = _rescaled(rotary, rotary.base, 2 * pairs).frequencies if pairs else ()
        return replace(rotary, frequencies=frequencies + (0.0,) * (count - pairs))
    flags = kept_frequencies(0 if nope else 1 if p is None else p, count, reversed=reversed)
    if all(flags):
        return rotary
    if rotary.follows_length:
        return FrozenRotary(**vars(rotary), turning=flags).at(0)
    return replace(rotary, frequencies=_frozen(rotary.frequencies, flags))


@dataclass(frozen=True)
class FrozenRotary(Rotary):
    """An encoding whose frequencies depend on the length of the text, with some pairs frozen."""

    turning: tuple[bool, ...] = ()

    def at(self, length: int) -> Rotary:
        """The encoding for a text of `length` tokens: the same pairs are frozen at every length."""
        rotary = super().at(length)
        return replace(rotary, frequencies=_frozen(rotary.frequencies, self.turning))


def _frozen(frequencies: tuple[float, ...], turning: tuple[bool, ...]) -> tuple[float, ...]:
    return tuple(g if turns else 0.0 for g, turns in zip(frequencies, turning, strict=True))


def _check(p: Share | None, base: float | int | None, reversed: bool, partial: Share | None, nope: bool) -> None:
    if sum((p is not None, partial is not None, nope)) > 1:
        raise ArmillaryError("p, partial and nope each say which frequencies to keep", advice="give one of them")
    if p is None and partial is None and not nope and base is None:
        raise ArmillaryError("no change of the rotary encoding was given", advice="give p, partial, nope or base")
    if reversed and p is None:
        raise ArmillaryError("reversed keeps the slowest fraction p of the frequencies", advice="give p with it")
    if base is not None and not 1 < base < float("inf"):
        raise ArmillaryError(f"base={base} is not above 1", advice="give a number above 1, such as 10000")


def _rescaled(rotary: Rotary, base: float, width: int) -> Rotary:
    """The encoding for another base or width, under the same scaling."""
    if rotary.scaling == "default":
        return replace(rotary, base=base, frequencies=geometric(base, width))
    from transformers import LlamaConfig

    parameters = {**rotary.parameters, "rope_theta": base}
    trained = parameters.pop("max_position_embeddings")
    if rotary.scaling != "proportional":  # for other scalings it is the width, which is set here
        parameters.pop("partial_rotary_factor", None)
    config = LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        head_dim=width,
        max_position_embeddings=trained,
        rope_parameters=parameters,
    )
    rescaled = rotary_from(config, 0, head_width=width)
    assert rescaled is not None
    return replace(rotary, base=base, frequencies=rescaled.frequencies)
