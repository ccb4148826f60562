"""Position schemes that transformers cannot express, as a model's configuration records them, and what they mean.

armillary_rotary     other rotary frequencies (changed_rotary's arguments)
armillary_positions  random positions (random_positions.py)
armillary_alibi      ALiBi's slopes added to the logits of a model without it
armillary_table      learned positions added to the embeddings of a model without them: how many
"""

from dataclasses import replace
from typing import Any

from armillary.anatomy.bias import alibi_slopes
from armillary.anatomy.description import Alibi, Anatomy, Rotary
from armillary.anatomy.frequencies import changed_rotary
from armillary.anatomy.random_positions import SETTING, random_positions_of

ROTARY, ALIBI, TABLE = "armillary_rotary", "armillary_alibi", "armillary_table"
NORM = "armillary_norm"

OTHERWISE = {
    ROTARY: "rotate with all frequencies",
    SETTING: "place tokens at 0, 1, 2, ...",
    ALIBI: "leave out ALiBi",
    TABLE: "leave out the learned positions",
    NORM: "put the norms before attention and MLP",
}


def beyond_transformers(config: Any) -> list[str]:
    """What plain transformers would do otherwise with this configuration, each after 'plain transformers would'."""
    return [words for name, words in OTHERWISE.items() if getattr(config, name, None)]


def as_trained(anatomy: Anatomy, config: Any) -> Anatomy:
    """The anatomy of a model with one of these schemes."""
    change, places = getattr(config, ROTARY, None), random_positions_of(config)
    layers = anatomy.layers
    if change:
        layers = tuple(
            replace(layer, position=changed_rotary(layer.position, **change))
            if isinstance(layer.position, Rotary)
            else layer
            for layer in layers
        )
    if places is not None:
        layers = tuple(
            replace(layer, position=replace(layer.position, places=places.places))
            if isinstance(layer.position, Rotary)
            else layer
            for layer in layers
        )
    if getattr(config, ALIBI, None):
        layers = tuple(replace(layer, position=Alibi(alibi_slopes(layer.heads))) for layer in layers)
    count = getattr(config, TABLE, None)
    if count:
        anatomy = replace(anatomy, positions_added="learned", max_positions=int(count), hard_limit=True)
    return replace(anatomy, layers=layers)
