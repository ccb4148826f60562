"""The table of learned positions of a model: freeze it at zero (no positions) or at sines and cosines."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.anatomy.source import transformer_of
from armillary.errors import ArmillaryError

NAMES = ("wpe", "embed_positions", "position_embeddings")
"""What families call the table."""


def table_of(model: Any) -> nn.Embedding:
    """The table of learned positions; raises if the model has none."""
    for name, module in transformer_of(model).named_modules():
        if name.rpartition(".")[2] in NAMES and isinstance(module, nn.Embedding):
            return module
    raise ArmillaryError(f"no table of learned positions was found in this {type(model).__name__}")


@torch.no_grad()
def freeze_table(model: Any) -> None:
    """No positions: the table is zero and stays so."""
    weight = table_of(model).weight
    weight.zero_()
    weight.requires_grad_(False)


@torch.no_grad()
def fill_table(model: Any) -> None:
    """Sines and cosines (Vaswani et al.) that stay as they are.

    They are scaled by the size of the initial embeddings: fairseq, which Bao et al. trained with, has both 50 times as
    large.
    """
    table: Any = table_of(model)
    offset = int(getattr(table, "offset", 0))  # the first rows of OPT's table are for padding
    waves = sinusoids(len(table.weight) - offset, table.weight.shape[1])
    config = transformer_of(model).config
    size = getattr(config, "init_std", None) or config.initializer_range  # OPT's name, GPT-2's name
    table.weight[offset:] = float(size) * waves.to(table.weight)
    table.weight.requires_grad_(False)


def sinusoids(count: int, width: int) -> Float[Tensor, "position d"]:
    """sin and cos of position * 10000^(-i / (d/2 - 1)), the sines first."""
    half = width // 2
    rates = torch.exp(torch.arange(half) * -(math.log(10_000) / max(1, half - 1)))
    angle = torch.arange(count)[:, None].double() * rates
    waves = torch.cat([angle.sin(), angle.cos()], 1)
    return nn.functional.pad(waves, (0, width - 2 * half))
