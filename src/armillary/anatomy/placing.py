"""Places the tokens of a model at random positions, for good (a model in training) or until a context ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from armillary.anatomy.added_positions import lengths, stem
from armillary.anatomy.description import Rotary
from armillary.anatomy.random_positions import SETTING, RandomPositions
from armillary.anatomy.source import describe, transformer_of
from armillary.errors import ArmillaryError


class Placer:
    """The hook that gives a model its positions. A training loop calls `begin(step)` before each step."""

    def __init__(self, scheme: RandomPositions) -> None:
        self.scheme = scheme
        self.step, self.forwards = 0, 0

    def begin(self, step: int) -> None:
        """The draws from now on are those of this step: a resumed run draws the same."""
        self.step, self.forwards = step, 0

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("position_ids") is not None:
            return None
        given, before = lengths(args, kwargs)
        positions = torch.from_numpy(self.positions(module.training, given.shape[0], before, given.shape[1]))
        mask = kwargs.get("attention_mask")
        if mask is None:  # without one, transformers takes positions that do not increase by 1 for packed texts
            mask = torch.ones(given.shape[0], before + given.shape[1], dtype=torch.long, device=given.device)
        return args, {**kwargs, "attention_mask": mask, "position_ids": positions.to(given.device)}

    def positions(self, training: bool, batch: int, before: int, count: int) -> Int[np.ndarray, "batch token"]:
        """The positions of `count` tokens after `before` others."""
        if before + count > self.scheme.length:
            raise ArmillaryError(
                f"the text has {before + count} tokens, but this model's random positions are for texts of "
                f"{self.scheme.length}",
                advice=f"cut the text to {self.scheme.length} tokens",
            )
        if not training:
            places = np.array(self.scheme.places[before : before + count], dtype=np.int64)
            return np.repeat(places[None], batch, 0)
        rng = np.random.default_rng([self.scheme.seed, self.step, self.forwards])
        self.forwards += 1
        return self.scheme.drawn(rng, batch, before + count)[:, before:]


def place_randomly(model: Any, scheme: RandomPositions) -> Placer:
    """Give a model random positions, permanently; its configuration then says so."""
    _refuse_without_positions(model)
    placer = Placer(scheme)
    _, module = stem(model)
    module.register_forward_pre_hook(placer, with_kwargs=True)
    module.armillary_placer = placer
    setattr(transformer_of(model).config, SETTING, scheme.settings())
    return placer


def placer_of(model: Any) -> Placer | None:
    """The hook of a model with random positions, or None."""
    placers = (vars(module).get("armillary_placer") for module in model.modules())
    return next((placer for placer in placers if isinstance(placer, Placer)), None)


@contextmanager
def randomly_placed(model: Any, *, range: int, length: int, sorted: bool = True, seed: int = 0) -> Iterator[Any]:
    """The model with its tokens at one random draw of positions, the same for all texts, until the context ends.

    Texts have at most `length` tokens. Its anatomy knows the positions, so constituents stay exact.
    """
    inner = transformer_of(model)
    if getattr(inner.config, SETTING, None):
        raise ArmillaryError("this model has random positions already", advice="leave that `with` block first")
    _refuse_without_positions(model)
    scheme = RandomPositions(range=range, length=length, sorted=sorted, seed=seed)
    limit = describe(model).max_positions if describe(model).hard_limit else None
    if limit is not None and range > limit:
        raise ArmillaryError(
            f"positions below {range} do not fit: the model has {limit}", advice="give a smaller range"
        )
    hook = stem(model)[1].register_forward_pre_hook(Placer(scheme), with_kwargs=True)
    setattr(inner.config, SETTING, scheme.settings())
    try:
        yield model
    finally:
        hook.remove()
        delattr(inner.config, SETTING)


def _refuse_without_positions(model: Any) -> None:
    """Raise if the model does not take position_ids."""
    anatomy = describe(model)
    rotates = any(isinstance(layer.position, Rotary) for layer in anatomy.layers)
    if not rotates and anatomy.positions_added != "learned":
        raise ArmillaryError(
            f"this {anatomy.family} model has no rotary or learned positions, so that random ones have no effect"
        )
