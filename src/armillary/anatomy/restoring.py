"""Gives a model that transformers loaded the schemes that only Armillary knows (schemes.py)."""

from typing import Any

from armillary.anatomy.added_positions import add_alibi, restore_table
from armillary.anatomy.placing import place_randomly
from armillary.anatomy.post_norm import is_post_norm, put_norms_after
from armillary.anatomy.random_positions import random_positions_of
from armillary.anatomy.rotary_buffers import apply
from armillary.anatomy.schemes import ALIBI, ROTARY, TABLE
from armillary.anatomy.source import describe


def restore_schemes(model: Any, source: Any) -> None:
    """Change a model that was just loaded from `source` as its configuration says."""
    config = model.config
    if getattr(config, ROTARY, None):
        apply(model, config.armillary_rotary)
    if is_post_norm(config):
        put_norms_after(model)
    places = random_positions_of(config)
    if places is not None:
        place_randomly(model, places)
    if getattr(config, ALIBI, None):
        add_alibi(model)
    if getattr(config, TABLE, None):
        restore_table(model, source, describe(config))
