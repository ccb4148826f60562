"""Temporary changes to a model: each is a context manager that restores the model bit for bit."""

from armillary.anatomy.frequencies import changed_rotary
from armillary.anatomy.placing import randomly_placed
from armillary.interventions.frequencies import rotary
from armillary.interventions.parts import without
from armillary.interventions.spectra import cut, randomized, scaled

__all__ = ["changed_rotary", "cut", "randomized", "randomly_placed", "rotary", "scaled", "without"]
