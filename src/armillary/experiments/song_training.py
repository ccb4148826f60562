"""Song and Zhong: the experiments that train. Addition (Section 4.3, D.3, Figures 5 and 18 to 23) and NanoGPT."""

from armillary.experiments.experiment import Experiment
from armillary.experiments.song_discontinuity import DISCONTINUITY
from armillary.experiments.song_lengths import ADDITION
from armillary.experiments.song_nanogpt import NANOGPT

EXPERIMENTS: tuple[Experiment, ...] = (NANOGPT, ADDITION, DISCONTINUITY)
