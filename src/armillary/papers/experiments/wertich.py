"""Wertich's figures and measurements as experiments: noise, weights, few-shot prompts, changed weights, mixtures."""

from armillary.papers.experiments import (
    wertich_changes,
    wertich_cosine,
    wertich_maps,
    wertich_mixture,
    wertich_random,
    wertich_weights,
)
from armillary.papers.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *wertich_random.EXPERIMENTS,
    *wertich_weights.EXPERIMENTS,
    *wertich_maps.EXPERIMENTS,
    *wertich_cosine.EXPERIMENTS,
    *wertich_changes.EXPERIMENTS,
    *wertich_mixture.EXPERIMENTS,
)
