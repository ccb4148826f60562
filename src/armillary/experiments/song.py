"""Song and Zhong: everything that reads trained models. Training is in song_training.py.

The experiments share their atlases: the first that needs one makes it. `minutes` are those of a run in this order; one
that is run alone may take the minute of the scans that it needs on top.
"""

from armillary.experiments import (
    song_heads,
    song_norms,
    song_rotary_mean,
    song_shapes,
    song_smoothness,
    song_spectrum,
    song_tables,
)
from armillary.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *song_tables.EXPERIMENTS,
    *song_smoothness.EXPERIMENTS,
    *song_shapes.EXPERIMENTS,
    *song_spectrum.EXPERIMENTS,
    *song_norms.EXPERIMENTS,
    *song_heads.EXPERIMENTS,
    *song_rotary_mean.EXPERIMENTS,
)
