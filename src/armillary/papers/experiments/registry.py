"""All experiments, by name."""

from armillary.errors import unknown
from armillary.papers.experiments import bao, barbero, song, song_training, wertich
from armillary.papers.experiments.experiment import Experiment


def experiments() -> dict[str, Experiment]:
    """All experiments, by name, in the order of the papers."""
    papers = (song, song_training, wertich, bao, barbero)
    return {experiment.name: experiment for paper in papers for experiment in paper.EXPERIMENTS}


def experiment(name: str) -> Experiment:
    """The experiment of that name."""
    known = experiments()
    if name not in known:
        raise unknown("experiment", name, known)
    return known[name]
