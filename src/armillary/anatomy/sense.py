"""Checks that the attention in a configuration can be computed: sizes that fit, numbers that are finite."""

import math
from typing import Any

from armillary.anatomy.description import Alibi, Anatomy, Disentangled, GridRotary, Layer, RelativeBias, Rotary
from armillary.errors import ArmillaryError


def refuse_nonsense(anatomy: Anatomy) -> None:
    """Raise an error that names the layer if heads cannot share keys, or a scale or frequency is not finite."""
    for layer in anatomy.layers:
        problem = _problem(layer)
        if problem:
            raise ArmillaryError(
                f"the configuration of this {anatomy.family} model gives layer {layer.index} {problem}"
            )


def _problem(layer: Layer) -> str:
    if layer.heads % layer.kv_heads:
        return f"{layer.heads} heads, which cannot share {layer.kv_heads} key heads evenly"
    for name, value in (("a logit scale", layer.scale), ("a soft-cap", layer.softcap), ("a clip", layer.clip_qkv)):
        if value is not None and not (_is_number(value) and value > 0):
            return f"{name} of {value!r}: it should be a number above 0"
    if layer.window is not None and not (_is_number(layer.window) and layer.window >= 1):
        return f"a window of {layer.window!r} tokens: it should be at least 1"
    if layer.qk_norm is not None and not (_is_number(layer.qk_norm.eps) and layer.qk_norm.eps >= 0):
        return f"a q/k norm with eps={layer.qk_norm.eps!r}: it should be a number of at least 0"
    return _problem_of_position(layer)


def _problem_of_position(layer: Layer) -> str:
    position = layer.position
    if isinstance(position, Rotary):
        if not position.frequencies or position.channels.stop > layer.head_width:
            return f"{position.width} rotary channels, but its heads have {layer.head_width}"
        if not all(_is_number(f) and f >= 0 for f in position.frequencies) or not _is_number(position.factor):
            return f"rotary frequencies that are not finite numbers (base {position.base!r})"
    if isinstance(position, GridRotary) and 4 * len(position.frequencies) != layer.head_width:
        return f"{4 * len(position.frequencies)} rotary channels, but its heads have {layer.head_width}"
    if isinstance(position, Alibi) and not all(_is_number(slope) for slope in position.slopes):
        return "ALiBi slopes that are not finite numbers"
    if isinstance(position, Disentangled) and position.buckets and position.max_distance <= position.buckets // 2 + 1:
        return f"{position.buckets} buckets of distances, but counts none above {position.max_distance}"
    if isinstance(position, RelativeBias):
        for name, size in (("buckets", position.buckets), ("distances", position.max_distance)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                return f"{size!r} {name} of relative positions: it should be a whole number of at least 1"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
