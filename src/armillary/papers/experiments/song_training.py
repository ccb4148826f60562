"""Song and Zhong: experiments that train models. Addition (Section 4.3, D.3, Figures 5 and 18 to 23) and NanoGPT."""

from armillary.papers.experiments.experiment import Experiment
from armillary.papers.experiments.song_discontinuity import DISCONTINUITY
from armillary.papers.experiments.song_lengths import ADDITION
from armillary.papers.experiments.song_nanogpt import NANOGPT

EXPERIMENTS: tuple[Experiment, ...] = (NANOGPT, ADDITION, DISCONTINUITY)
