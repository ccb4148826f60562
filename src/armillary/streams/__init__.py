"""One-pass statistics: update, merge, finish. Merging is associative, so shards may be computed anywhere."""

from armillary.streams.attention import AttentionStatistics
from armillary.streams.chunks import ChunkNorms
from armillary.streams.moments import Covariance, LaggedCovariance, PositionMoments
from armillary.streams.pairs import PairMoments
from armillary.streams.similarity import OutputRank, TokenSimilarity
from armillary.streams.stream import Stream

__all__ = [
    "AttentionStatistics",
    "ChunkNorms",
    "Covariance",
    "LaggedCovariance",
    "OutputRank",
    "PairMoments",
    "PositionMoments",
    "Stream",
    "TokenSimilarity",
]
