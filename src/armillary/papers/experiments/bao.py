"""Bao, Hataya and Karakida: Figures 2 to 12."""

from armillary.papers.experiments import bao_law, bao_locater, bao_models, bao_stripes, bao_walks
from armillary.papers.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *bao_law.EXPERIMENTS,
    *bao_walks.EXPERIMENTS,
    *bao_models.EXPERIMENTS,
    *bao_locater.EXPERIMENTS,
    *bao_stripes.EXPERIMENTS,
)
