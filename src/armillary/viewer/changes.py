"""Interventions as the page asks for them: which change, on which heads, within which limits."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from armillary import interventions
from armillary.anatomy.description import Layer, Rotary
from armillary.errors import ArmillaryError
from armillary.viewer.asked import Asked
from armillary.viewer.live import Change, LiveModel

SCOPES = ("head", "layer", "all")
KINDS = ("scale", "cut", "randomise", "frequencies", "remove")


def asked_change(asked: Asked, live: LiveModel, layer: int, head: int) -> tuple[Change, str]:
    """The change that a request describes, and a name that tells it apart from others.

    scale: all singular values of W_q and W_k times alpha; cut: the `rank` largest kept, or all but those; randomise:
    noise with the same norm, spectrum or shape; frequencies: only the fastest (slowest) fraction p turns, in all
    layers or in those with one base; remove: the positional or the content part of what the layers read.
    """
    kind = asked.choice("kind", KINDS)
    scope = asked.choice("scope", SCOPES, "head")
    width = live.anatomy.layers[layer].head_width
    where: dict[str, Any] = {"layers": None if scope == "all" else [layer]}
    heads = [(layer, head)] if scope == "head" else None
    told: dict[str, Any]
    build: Change
    if kind == "scale":
        told = {"alpha": asked.number("alpha", -100.0, 100.0)}
        build = partial(interventions.scaled, **told, **where, heads=heads)
    elif kind == "cut":
        told = {"rank": asked.whole("rank", 0, width), "keep": asked.choice("keep", ("top", "rest"), "top")}
        build = partial(interventions.cut, **told, **where, heads=heads)
    elif kind == "randomise":
        told = {"keep": asked.choice("keep", ("norm", "spectrum", "shape"), "norm")}
        told |= {"seed": asked.whole("seed", 0, 2**31 - 1, 0)}
        build = partial(interventions.randomised, **told, **where, heads=heads)
    elif kind == "frequencies":
        bases = {f"{base:.10g}": base for base in rotary_bases(live.anatomy.layers)}
        told = {"p": asked.number("p", 0.0, 1.0), "reversed": asked.flag("reversed")}
        told["of_base"] = bases.get(asked.choice("base", ("all", *bases), "all"))
        scope = "all"  # the frequencies are the model's, not a head's
        build = partial(interventions.rotary, **told)
    else:
        told = {"part": asked.choice("part", ("position", "content"))}
        if live.means is None:
            raise ArmillaryError(live.no_terms)
        scope = "all" if scope == "all" else "layer"  # the heads of a layer read the same x
        build = partial(interventions.without, **told, means=live.means, **where)
    asked.done()
    place = {"head": [layer, head], "layer": [layer], "all": []}[scope]
    return build, json.dumps([kind, told, place])


def rotary_bases(layers: Sequence[Layer]) -> list[float]:
    """The bases that layers turn with, each once."""
    return sorted({layer.position.base for layer in layers if isinstance(layer.position, Rotary)})
