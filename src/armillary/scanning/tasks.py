"""The kinds of tasks that workers of a scan run."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from armillary.scanning.folder import Shard
from armillary.scanning.options import ScanSettings
from armillary.streams.declaration import Pass
from armillary.text.loss import LossSample

RESULT = "result"
"""The key of a result that is sent to the driver and not stored in a file."""


@dataclass(frozen=True)
class ShardWork:
    """Run one shard of one pass: its sequences, with the settings of the scan."""

    when: Pass
    shard: Shard
    tokens: Int[np.ndarray, "sequence token"]
    settings: ScanSettings


@dataclass(frozen=True)
class ReadWeights:
    """Return the weights of one layer."""

    layer: int


@dataclass(frozen=True)
class ReadVocabulary:
    """Compute what every head writes, in tokens, from the weights."""

    seed: int


@dataclass(frozen=True)
class MeasureLoss:
    """Measure how well the model predicts this text."""

    text: LossSample


@dataclass(frozen=True)
class LayerSpectra:
    """Compute the spectra of one layer's weights."""

    layer: int
