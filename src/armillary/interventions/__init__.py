"""Changes to a model that are taken back: each is a context manager, and the weights are the same bits afterwards."""

from armillary.interventions.frequencies import changed_rotary, rotary
from armillary.interventions.parts import without
from armillary.interventions.spectra import cut, randomised, scaled

__all__ = ["changed_rotary", "cut", "randomised", "rotary", "scaled", "without"]
