"""song: written next."""

from armillary.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = ()
