"""What a model is made of: layers, heads, their weights, and how it encodes position."""

from armillary.anatomy.adapter import Adapter, adapter_for, known_families, register
from armillary.anatomy.description import Alibi, Anatomy, Layer, QKNorm, RelativeBias, Rotary
from armillary.anatomy.rebuild import rebuilt_logits
from armillary.anatomy.source import describe
from armillary.anatomy.weights import LayerWeights, Projection

__all__ = [
    "Adapter",
    "Alibi",
    "Anatomy",
    "Layer",
    "LayerWeights",
    "Projection",
    "QKNorm",
    "RelativeBias",
    "Rotary",
    "adapter_for",
    "describe",
    "known_families",
    "rebuilt_logits",
    "register",
]
