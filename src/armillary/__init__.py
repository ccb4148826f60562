"""Armillary: what every attention head of a transformer does, and why, in numbers that add up exactly."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from armillary import interventions
    from armillary.anatomy import (
        Adapter,
        Anatomy,
        Projection,
        describe,
        known_families,
        rebuilt_logits,
        register,
    )
    from armillary.atlas import Atlas, open_atlas
    from armillary.checking import check
    from armillary.comparison import compare
    from armillary.converting import convert
    from armillary.errors import ArmillaryError
    from armillary.limits import no_limits
    from armillary.merging import merge
    from armillary.models import load
    from armillary.scanning import scan, scan_part
    from armillary.tap import Tap
    from armillary.training.bundled import bundled
    from armillary.verification import verify
    from armillary.view import AttentionView
    from armillary.weighing import weigh

__version__ = "0.1.0"

_HOMES = {
    "Adapter": "armillary.anatomy",
    "Anatomy": "armillary.anatomy",
    "Projection": "armillary.anatomy",
    "describe": "armillary.anatomy",
    "known_families": "armillary.anatomy",
    "rebuilt_logits": "armillary.anatomy",
    "register": "armillary.anatomy",
    "Atlas": "armillary.atlas",
    "open_atlas": "armillary.atlas",
    "check": "armillary.checking",
    "compare": "armillary.comparison",
    "convert": "armillary.converting",
    "ArmillaryError": "armillary.errors",
    "no_limits": "armillary.limits",
    "load": "armillary.models",
    "merge": "armillary.merging",
    "scan": "armillary.scanning",
    "scan_part": "armillary.scanning",
    "Tap": "armillary.tap",
    "bundled": "armillary.training.bundled",
    "verify": "armillary.verification",
    "weigh": "armillary.weighing",
    "AttentionView": "armillary.view",
}

__all__ = [
    "Adapter",
    "Anatomy",
    "ArmillaryError",
    "Atlas",
    "AttentionView",
    "Projection",
    "Tap",
    "bundled",
    "check",
    "compare",
    "convert",
    "describe",
    "interventions",
    "known_families",
    "load",
    "merge",
    "no_limits",
    "open_atlas",
    "rebuilt_logits",
    "register",
    "scan",
    "scan_part",
    "verify",
    "weigh",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import armillary` does not wait for torch."""
    if name == "interventions":  # a module, imported with torch when it is first asked for
        from importlib import import_module

        return import_module("armillary.interventions")
    if name not in _HOMES:
        raise AttributeError(f"module 'armillary' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
