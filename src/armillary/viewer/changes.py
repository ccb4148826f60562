"""Read the intervention that a request describes: which change, on which heads, within which limits."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from armillary import interventions
from armillary.anatomy.description import Layer, Rotary
from armillary.errors import ArmillaryError
from armillary.viewer.fields import Fields
from armillary.viewer.live import Change, LiveModel

SCOPES = ("head", "layer", "all")
KINDS = ("scale", "cut", "randomize", "frequencies", "remove")


def requested_change(fields: Fields, live: LiveModel, layer: int, head: int) -> tuple[Change, str]:
    """The change that a request describes, and a unique name for it.

    scale: all singular values of W_q and W_k times alpha; cut: keep the `rank` largest, or all others; randomize:
    random weights with the same norm, spectrum or shape; frequencies: only the fastest (slowest) fraction p rotates, in
    all layers or in those with one base; remove: the positional or the content part of the layers' input.
    """
    kind = fields.choice("kind", KINDS)
    scope = fields.choice("scope", SCOPES, "head")
    width = live.anatomy.layers[layer].head_width
    where: dict[str, Any] = {"layers": None if scope == "all" else [layer]}
    heads = [(layer, head)] if scope == "head" else None
    arguments: dict[str, Any]
    build: Change
    if kind == "scale":
        arguments = {"alpha": fields.number("alpha", -100.0, 100.0)}
        build = partial(interventions.scaled, **arguments, **where, heads=heads)
    elif kind == "cut":
        arguments = {"rank": fields.whole("rank", 0, width), "keep": fields.choice("keep", ("top", "rest"), "top")}
        build = partial(interventions.cut, **arguments, **where, heads=heads)
    elif kind == "randomize":
        arguments = {"keep": fields.choice("keep", ("norm", "spectrum", "shape"), "norm")}
        arguments |= {"seed": fields.whole("seed", 0, 2**31 - 1, 0)}
        build = partial(interventions.randomized, **arguments, **where, heads=heads)
    elif kind == "frequencies":
        bases = {f"{base:.10g}": base for base in rotary_bases(live.anatomy.layers)}
        arguments = {"p": fields.number("p", 0.0, 1.0), "reversed": fields.flag("reversed")}
        arguments["of_base"] = bases.get(fields.choice("base", ("all", *bases), "all"))
        scope = "all"  # the frequencies are the model's, not a head's
        build = partial(interventions.rotary, **arguments)
    else:
        arguments = {"part": fields.choice("part", ("position", "content"))}
        if live.means is None:
            raise ArmillaryError(live.no_terms)
        scope = "all" if scope == "all" else "layer"  # the heads of a layer read the same x
        build = partial(interventions.without, **arguments, means=live.means, **where)
    fields.done()
    place = {"head": [layer, head], "layer": [layer], "all": []}[scope]
    return build, json.dumps([kind, arguments, place])


def rotary_bases(layers: Sequence[Layer]) -> list[float]:
    """The rotary bases of the layers, each once."""
    return sorted({layer.position.base for layer in layers if isinstance(layer.position, Rotary)})
