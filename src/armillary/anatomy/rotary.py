"""Reads the rotary encoding from a configuration: any base, fraction and scaling, per layer type."""

import math
from typing import Any

import torch

from armillary.anatomy.description import PairLayout, Rotary, geometric
from armillary.anatomy.versions import PROPORTIONAL, installed
from armillary.errors import ArmillaryError

# Imports inside functions: transformers takes seconds to import, and most encodings are read without it.


def rotary_from(
    config: Any, layer: int, *, head_width: int, layout: PairLayout = "half", partial: bool = False
) -> Rotary | None:
    """The layer's rotary encoding, or None if this layer type has none.

    `partial`: whether the family's code follows partial_rotary_factor.
    """
    parameters = config.rope_parameters
    layer_type = None
    if parameters is not None and not _is_flat(parameters):
        layer_type = config.layer_types[layer]
        if layer_type not in parameters:
            raise ArmillaryError(
                f"the configuration gives layer {layer} the type {layer_type!r}, but rope_parameters only has "
                f"{sorted(parameters)}"
            )
        parameters = parameters[layer_type]
    if parameters is None:
        return None
    kind, base = parameters.get("rope_type", "default"), float(parameters["rope_theta"])
    if not isinstance(kind, str):
        raise ArmillaryError(f"the configuration's rope_type is a {type(kind).__name__}, not a name")
    if not math.isfinite(base) or base <= 0:
        raise ArmillaryError(f"the configuration has rope_theta={base!r}: the rotary base must be above 0")
    fraction = parameters.get("partial_rotary_factor", 1.0)
    if not 0 < fraction <= 1:
        raise ArmillaryError(f"the configuration has partial_rotary_factor={fraction!r}: it must be in (0, 1]")
    width = head_width if kind == "proportional" else int(head_width * fraction)  # there the share that is rotated
    if (fraction != 1 and not partial and kind == "default") or width % 2:
        raise ArmillaryError(
            f"the configuration has partial_rotary_factor={fraction!r}, which {config.model_type} models do not follow "
            f"with heads of {head_width} channels"
        )
    if kind == "default":
        return Rotary(geometric(base, width), layout, base, parameters=dict(parameters))
    frequencies, factor = _scaled(config, kind, layer_type)
    extended = {**parameters, "max_position_embeddings": config.max_position_embeddings}
    return Rotary(frequencies, layout, base, kind, factor, extended)


def _is_flat(parameters: dict[str, Any]) -> bool:
    """Whether there is one set of parameters for all layers, not one per layer type."""
    return "rope_theta" in parameters or "rope_type" in parameters


def _scaled(config: Any, kind: str, layer_type: str | None) -> tuple[tuple[float, ...], float]:
    """Frequencies and cos/sin factor of a scaled encoding, from transformers' own table of scalings."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        newer = f"install transformers>={PROPORTIONAL}" if kind == "proportional" else ""
        raise ArmillaryError(
            f"the configuration has rope_type={kind!r}; transformers {installed()} knows default, "
            f"{', '.join(sorted(ROPE_INIT_FUNCTIONS))}",
            advice=newer,
            given=f"transformers {installed()}" if newer else kind,
        )
    typed = {"layer_type": layer_type} if layer_type else {}
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), **typed)
    return tuple(frequencies.tolist()), float(factor)
