"""Armillary: what every attention head of a transformer does, and why, in numbers that add up exactly."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from armillary import interventions
    from armillary.anatomy.adapter import Adapter
    from armillary.anatomy.convert import convert
    from armillary.anatomy.description import Anatomy
    from armillary.anatomy.loading import load
    from armillary.anatomy.registry import known_families, register
    from armillary.anatomy.source import describe
    from armillary.anatomy.weights import Projection
    from armillary.atlas.atlas import Atlas, open_atlas
    from armillary.atlas.check import check
    from armillary.atlas.columns import columns
    from armillary.atlas.compare import compare
    from armillary.atlas.timelines.timeline import Timeline, open_timeline
    from armillary.errors import ArmillaryError
    from armillary.machine.limits import no_limits
    from armillary.observe.rebuild import rebuilt_logits
    from armillary.observe.tap import Tap
    from armillary.observe.verification import verify
    from armillary.observe.view import AttentionView
    from armillary.scanning.merging import merge
    from armillary.scanning.scan import scan, scan_part
    from armillary.scanning.timeline import timeline
    from armillary.scanning.weights import weigh
    from armillary.training.bundled import bundled

__version__ = "0.1.0"

_HOMES = {
    "Adapter": "armillary.anatomy.adapter",
    "Anatomy": "armillary.anatomy.description",
    "Projection": "armillary.anatomy.weights",
    "describe": "armillary.anatomy.source",
    "known_families": "armillary.anatomy.registry",
    "rebuilt_logits": "armillary.observe.rebuild",
    "register": "armillary.anatomy.registry",
    "Atlas": "armillary.atlas.atlas",
    "open_atlas": "armillary.atlas.atlas",
    "check": "armillary.atlas.check",
    "columns": "armillary.atlas.columns",
    "compare": "armillary.atlas.compare",
    "Timeline": "armillary.atlas.timelines.timeline",
    "open_timeline": "armillary.atlas.timelines.timeline",
    "convert": "armillary.anatomy.convert",
    "ArmillaryError": "armillary.errors",
    "no_limits": "armillary.machine.limits",
    "load": "armillary.anatomy.loading",
    "merge": "armillary.scanning.merging",
    "scan": "armillary.scanning.scan",
    "scan_part": "armillary.scanning.scan",
    "timeline": "armillary.scanning.timeline",
    "Tap": "armillary.observe.tap",
    "bundled": "armillary.training.bundled",
    "verify": "armillary.observe.verification",
    "weigh": "armillary.scanning.weights",
    "AttentionView": "armillary.observe.view",
}

__all__ = [
    "Adapter",
    "Anatomy",
    "ArmillaryError",
    "Atlas",
    "AttentionView",
    "Projection",
    "Tap",
    "Timeline",
    "bundled",
    "check",
    "columns",
    "compare",
    "convert",
    "describe",
    "interventions",
    "known_families",
    "load",
    "merge",
    "no_limits",
    "open_atlas",
    "open_timeline",
    "rebuilt_logits",
    "register",
    "scan",
    "scan_part",
    "timeline",
    "verify",
    "weigh",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import armillary` does not wait for torch."""
    if name == "interventions":  # a module, imported with torch when it is first asked for
        return import_module("armillary.interventions")
    if name not in _HOMES:
        raise AttributeError(f"module 'armillary' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
