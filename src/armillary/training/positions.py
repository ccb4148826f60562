"""Position schemes by name: their configuration in a new model, and how a model that exists is changed to them."""

from typing import Any

import torch

from armillary.anatomy.added_positions import add_alibi, add_table
from armillary.anatomy.description import Anatomy, Rotary
from armillary.anatomy.placing import place_randomly
from armillary.anatomy.random_positions import RandomPositions
from armillary.anatomy.rotary_buffers import apply
from armillary.anatomy.schemes import ROTARY, beyond_transformers
from armillary.anatomy.source import describe, transformer_of
from armillary.anatomy.versions import PROPORTIONAL, below, installed
from armillary.errors import ArmillaryError
from armillary.theory.rotary import kept_count
from armillary.training.checks import check_position
from armillary.training.config import RunConfig, position_of
from armillary.training.position_tables import freeze_table
from armillary.training.settings import ModelConfig

BASE = 10_000.0
"""The base of the rotary frequencies if none is given."""
RANGE = 4
"""Random positions are drawn from this many times the length of a text if no range is given."""
PLAIN = ("llama", "mistral", "qwen2")
"""Families whose rotary encoding transformers makes from rope_parameters alone, also a proportional one."""

# a new model ----------------------------------------------------------------------------------------------------


def random_positions(shape: ModelConfig, length: int, seed: int) -> RandomPositions:
    """Where texts of `length` tokens are placed in a run with random positions."""
    return RandomPositions(range=shape.range or RANGE * length, length=length, sorted=shape.sorted, seed=seed)


def rotary_change(config: RunConfig) -> dict[str, Any] | None:
    """How a new model's position scheme differs from a rotary encoding that transformers has, or None."""
    shape = config.model
    if shape.family != "llama":
        return None
    changes: dict[str, dict[str, Any]] = {
        "none": {"nope": True},
        "partial": {"partial": shape.fraction},
        "reversed": {"p": shape.fraction, "reversed": True},
        **({} if _proportional(shape) else {"p-rope": {"p": shape.fraction}}),
    }
    return changes.get(position_of(shape))


def _proportional(shape: ModelConfig) -> bool:
    return proportional(shape.fraction or 0.0, shape.width // shape.heads)


def proportional(fraction: float, head_width: int) -> bool:
    """Whether transformers has 'proportional', with the right number of frequencies for p-RoPE (it can lose one)."""
    if below(installed(), PROPORTIONAL):
        return False
    return int(fraction * head_width // 2) == kept_count(fraction, head_width // 2)


def rope_parameters(config: RunConfig) -> dict[str, Any]:
    """rope_parameters; p-RoPE is transformers' own 'proportional', so that a saved model loads without Armillary."""
    base = config.model.base or BASE
    if position_of(config.model) != "p-rope" or not _proportional(config.model):
        return dict(rope_type="default", rope_theta=base)
    return dict(rope_type="proportional", rope_theta=base, partial_rotary_factor=config.model.fraction)


# a model that exists --------------------------------------------------------------------------------------------


def set_position(
    model: Any,
    position: str,
    *,
    length: int,
    fraction: float | None = None,
    base: float | None = None,
    range: int | None = None,
    sorted: bool = True,
    seed: int = 0,
) -> None:
    """Change a loaded model for good to a position scheme, to train it further on texts of `length` tokens.

    The names are those of [model] position in docs/training.md. Where transformers can express the scheme, the saved
    model loads there as it is; else with `armillary.load`, and config.json records it. rotary() and randomly_placed()
    change a model for a while.
    """
    shape = ModelConfig(from_="model", position=position, base=base, fraction=fraction, range=range, sorted=sorted)
    check_position(shape, length)
    change_position(model, shape, length, seed)


def change_position(model: Any, shape: ModelConfig, length: int, seed: int) -> None:
    """Change a loaded model to a position scheme; what transformers can express, its configuration says."""
    position, inner = shape.position, transformer_of(model)
    anatomy = describe(model)
    _refuse_too_long(anatomy, length)
    if position is None or (position == "learned" and anatomy.positions_added == "learned"):
        return
    if beyond_transformers(inner.config):
        raise ArmillaryError(
            "this model has a position scheme of its own already (plain transformers would "
            f"{beyond_transformers(inner.config)[0]})",
            advice="leave out the position, or continue from a plain model",
        )
    if position in ("alibi", "learned", "none"):
        _without_position(model, anatomy)
        if position == "alibi":
            add_alibi(model)
        if position == "learned":
            generator = torch.Generator().manual_seed(seed)
            drawn = 0.02 * torch.randn(length, anatomy.d_model, generator=generator)
            add_table(model, drawn.to(next(model.parameters())))
        return
    if position == "random":
        if shape.base is not None:
            _rotate_otherwise(model, anatomy, {"base": shape.base})
        scheme = random_positions(shape, length, seed)
        if anatomy.hard_limit and anatomy.max_positions is not None and scheme.range > anatomy.max_positions:
            raise ArmillaryError(
                f"random positions below {scheme.range} do not fit: the model has {anatomy.max_positions}",
                advice="set model.range",
            )
        place_randomly(model, scheme)
        return
    share = shape.fraction
    change: dict[str, Any] = {
        "rope": {},
        "p-rope": {"p": share},
        "reversed": {"p": share, "reversed": True},
        "partial": {"partial": share},
    }[position]
    change = change if shape.base is None else {**change, "base": shape.base}
    if change:
        _rotate_otherwise(model, anatomy, change)


def _refuse_too_long(anatomy: Anatomy, length: int) -> None:
    if anatomy.hard_limit and anatomy.max_positions is not None and length > anatomy.max_positions:
        raise ArmillaryError(
            f"training.length = {length}, but this {anatomy.family} model has {anatomy.max_positions} positions",
            advice="train on shorter sequences",
        )


def _without_position(model: Any, anatomy: Anatomy) -> None:
    """Take the rotation or the learned positions out of a model."""
    if any(isinstance(layer.position, Rotary) for layer in anatomy.layers):
        _rotate_otherwise(model, anatomy, {"nope": True})
    elif anatomy.positions_added == "learned":
        freeze_table(model)
    else:
        raise ArmillaryError(
            f"the positions of this {anatomy.family} model cannot be taken out",
            advice="this is known for rotary and learned positions",
        )


def _rotate_otherwise(model: Any, anatomy: Anatomy, change: dict[str, Any]) -> None:
    """Change the rotary frequencies for good, as rope_parameters where transformers has a name for it."""
    inner = transformer_of(model)
    apply(model, change)  # raises for a model without a rotary encoding
    named = _as_parameters(inner.config, anatomy, change)
    if named is None:
        setattr(inner.config, ROTARY, change)
    else:
        inner.config.rope_parameters = named


def _as_parameters(config: Any, anatomy: Anatomy, change: dict[str, Any]) -> dict[str, Any] | None:
    """rope_parameters of the changed encoding, or None if transformers cannot express it."""
    rotary = anatomy.layers[0].position
    plain = isinstance(rotary, Rotary) and rotary.scaling == "default" and anatomy.family in PLAIN
    if not plain or set(change) - {"p", "base"}:
        return None
    assert isinstance(rotary, Rotary)
    parameters = {"rope_type": "default", "rope_theta": float(change.get("base", rotary.base))}
    if "p" not in change:
        return parameters
    if not proportional(change["p"], rotary.width):
        return None
    return {**parameters, "rope_type": "proportional", "partial_rotary_factor": change["p"]}
