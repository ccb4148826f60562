"""Changes to a model that are taken back: each is a context manager, and the weights are the same bits afterwards."""

from armillary.interventions.parts import without
from armillary.interventions.spectra import cut, randomised, scaled

__all__ = ["cut", "randomised", "scaled", "without"]
