"""Song and Zhong: the experiments on trained models. Those that train models are in song_training.py.

The experiments share their atlases: the first that needs one scans. `minutes` assume this order; an experiment that is
run alone may take a minute longer for its scans.
"""

from armillary.papers.experiments import (
    song_heads,
    song_norms,
    song_rotary_mean,
    song_shapes,
    song_smoothness,
    song_spectrum,
    song_tables,
)
from armillary.papers.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *song_tables.EXPERIMENTS,
    *song_smoothness.EXPERIMENTS,
    *song_shapes.EXPERIMENTS,
    *song_spectrum.EXPERIMENTS,
    *song_norms.EXPERIMENTS,
    *song_heads.EXPERIMENTS,
    *song_rotary_mean.EXPERIMENTS,
)
