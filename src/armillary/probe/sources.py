"""What wrote the query, the key and the value of every head, on one text."""

from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import nn

from armillary.anatomy.layout import entry
from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.lenses.sources import edge_rows
from armillary.observe.sources import Sources
from armillary.streams.sources import SourceShares
from armillary.streams.stream import Stream


def edges_of(
    model: nn.Module, tokens: Int[np.ndarray, "sequence token"], *, skip: int = 1, least: float = 0.0
) -> pd.DataFrame:
    """The edges table of these sequences (of one text, mostly): layer, head, side, source, share."""
    anatomy = describe(model)
    sources = Sources(model, anatomy, skip)
    stream = Stream(SourceShares(len(sources.names)))
    device = next(model.parameters()).device
    with evaluating(model):
        for row in tokens:
            run = partial(entry(model), input_ids=torch.from_numpy(row)[None].to(device))
            for layer, state in sources.products(run).items():
                stream.update(layer, state)
    shares = stream.finish(len(anatomy.layers))["share"]
    return edge_rows(shares.cpu().numpy(), sources.names, least)
