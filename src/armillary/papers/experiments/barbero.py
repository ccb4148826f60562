"""Barbero et al., 'Round and round we go': its tables and figures, run again."""

from armillary.papers.experiments import (
    barbero_constructions,
    barbero_decay,
    barbero_domains,
    barbero_frequencies,
    barbero_heads,
    barbero_training,
    barbero_truncation,
)
from armillary.papers.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *barbero_decay.EXPERIMENTS,
    *barbero_frequencies.EXPERIMENTS,
    *barbero_domains.EXPERIMENTS,
    *barbero_constructions.EXPERIMENTS,
    *barbero_heads.EXPERIMENTS,
    *barbero_truncation.EXPERIMENTS,
    *barbero_training.EXPERIMENTS,
)
