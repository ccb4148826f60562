"""Compiles the loops of the streams before a scan begins, by running each on a small example."""

from collections.abc import Callable

import torch

from armillary.anatomy.description import Rotary
from armillary.machine.compiler import warm_up
from armillary.observe.view import AttentionView
from armillary.streams.attention import AttentionStatistics
from armillary.streams.chunks import ChunkNorms
from armillary.streams.looks import Text, look, strongest
from armillary.streams.moments import PositionMoments
from armillary.streams.similarity import OutputRank


def compile_loops(note: Callable[[str], None]) -> None:
    """Compile the loops, or load them; `note` receives a sentence if that takes a while or fails."""
    warm_up(_example, note)


def _example() -> None:
    q, k = torch.ones(1, 2, 4, 4), torch.ones(1, 1, 4, 4)
    view = AttentionView(q=q, k=k, v=k, scale=0.5, causal=True)
    AttentionStatistics(1, 4).measure(view)
    OutputRank(1).measure(view)
    PositionMoments().measure(k[0])
    seen = view.visible()[0, 0].numpy()
    looked = look(view.attention()[0, 0].numpy(), torch.ones(7).numpy(), seen, 1, Text.of(torch.arange(4).numpy()))
    strongest(looked.pairs, 2)
    ChunkNorms((Rotary(frequencies=(1.0, 0.1), layout="half", base=100.0),), 1, 4).measure(view)
