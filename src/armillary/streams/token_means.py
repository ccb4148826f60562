"""The mean attention input at tokens of each type: what heads above the first layer see of a token."""

import numpy as np
import torch
from torch import Tensor

from armillary.observe.precision import wide
from armillary.observe.view import AttentionView
from armillary.streams.declaration import Context, Declaration, Pass, Reads
from armillary.streams.stream import Axes, State
from armillary.streams.tokens import TOKENS

MEANT_TOKENS = 256
"""Tokens whose mean is kept, those that the most queries see: (token, width) numbers a layer."""


class TokenMeans:
    """For each of some tokens the mean of x over the positions that have it, the first `skip` left out."""

    def __init__(self, tokens: tuple[int, ...], skip: int) -> None:
        self.tokens, self.skip = tokens, skip
        self.dims: dict[str, tuple[str, ...]] = {"count": ("mean_token",), "norm": ("mean_token",)}

    def axes(self) -> Axes:
        """Which tokens have a mean."""
        return {"mean_token": (("mean_token",), np.array(self.tokens, np.int64))}

    def measure(self, batch: AttentionView) -> State:
        assert batch.tokens is not None
        assert batch.x is not None
        slots = {token: slot for slot, token in enumerate(self.tokens)}
        ids = batch.tokens[:, self.skip :].flatten()
        slot = torch.tensor([slots.get(token, len(slots)) for token in ids.tolist()], device=batch.x.device)
        x = wide(batch.x[:, self.skip :].flatten(0, 1))
        sums = x.new_zeros(len(slots) + 1, x.shape[1]).index_add_(0, slot, x)
        count = torch.bincount(slot, minlength=len(slots) + 1).to(x)
        return {"sum": sums[:-1], "count": count[:-1]}

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {"count": state["count"], "norm": self.means(state).norm(dim=-1)}

    @staticmethod
    def means(state: State) -> Tensor:
        """The means themselves, which only the driver of a scan needs: (token, width)."""
        return state["sum"] / state["count"].clamp(min=1)[:, None]


def _means(context: Context) -> TokenMeans | None:
    """None for families without an adapter, whose weights are not read."""
    return None if context.anatomy.missing else TokenMeans(context.read_tokens[:MEANT_TOKENS], context.skip)


MEANS = Declaration("tokens.mean", TOKENS, Reads.ATTENTION, _means, lenses=("writing",), when=Pass.SAMPLE)
