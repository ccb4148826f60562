"""A head's attention above chance, by the key's position and by the key's token: does it rest on a few fixed keys?"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.observe.view import AttentionView
from armillary.streams.declaration import Declaration, Pass, Reads
from armillary.streams.patterns import BLOCK, PATTERNS, among_tokens
from armillary.streams.stream import Axes, State

POSITIONS = 64
"""The first this many positions are counted one by one."""

TOKENS = 64
"""This many tokens are counted: those that the most queries see."""


def most_seen(tokens: Int[np.ndarray, "sequence position"], causal: bool, most: int = TOKENS) -> tuple[int, ...]:
    """The `most` tokens that the most queries of these sequences see, without the first key of each sequence.

    The share of a head's attention on a token cannot exceed the share of queries that see it. Ties go to the smaller
    token id.
    """
    length = tokens.shape[1]
    seen: dict[int, int] = {}
    for sequence in tokens[:, 1:]:
        distinct, first = np.unique(sequence, return_index=True)
        for token, place in zip(distinct.tolist(), first.tolist(), strict=True):
            seen[token] = seen.get(token, 0) + (length - 1 - place if causal else length)
    return tuple(sorted(sorted(seen), key=lambda token: -seen[token])[:most])


class KeyMasses:
    """Per head, means over rows: attention on the keys at each of the first positions, and on the keys of some tokens.

    *_mass: the attention; *_gain: the attention minus that of uniform attention. The key at position 0 counts as a
    position and never as a token, since heads attend to it for any token. Rows before `skip` are left out.
    """

    def __init__(self, tokens: tuple[int, ...], skip: int, length: int) -> None:
        self.tokens = tokens
        self.skip = skip
        self.positions = min(POSITIONS, length)
        self.dims: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(("position_mass", "position_gain"), ("head", "key_position")),
            **dict.fromkeys(("token_mass", "token_gain"), ("head", "key_token")),
        }

    def axes(self) -> Axes:
        """Which tokens are counted."""
        return {"key_token": (("key_token",), np.array(self.tokens))}

    def measure(self, batch: AttentionView) -> State:
        assert batch.tokens is not None
        counted_tokens = torch.tensor(self.tokens, device=batch.tokens.device)
        is_token = (batch.tokens[:, :, None] == counted_tokens).double()
        is_token[:, 0] = 0.0
        rows = max(1, BLOCK // (batch.q.shape[0] * batch.heads * batch.keys))
        starts = range(self.skip, batch.queries, rows)
        parts = [_received(batch, slice(start, min(start + rows, batch.queries))) for start in starts]
        counted, mass, gain = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
        state: State = {"rows": counted}
        for kind, values in (("mass", mass), ("gain", gain)):
            state[f"position_{kind}"] = values[..., : self.positions].sum(0)
            state[f"token_{kind}"] = (values @ is_token.to(values.device)).sum(0)
        return state

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {name: sums / state["rows"][:, None] for name, sums in state.items() if name != "rows"}


def _received(
    view: AttentionView, rows: slice
) -> tuple[Float[Tensor, "head"], Float[Tensor, "batch head key"], Float[Tensor, "batch head key"]]:
    """The number of rows that see any key, the attention each key receives from them, and the part above chance."""
    attention, chance = among_tokens(view, rows)
    counted = (chance.sum(-1) > 0).expand(attention.shape[:-1])
    mass = attention.sum(2, dtype=torch.float64)
    return counted.sum((0, 2)).double(), mass, mass - chance.expand_as(attention).sum(2, dtype=torch.float64)


KEYS = Declaration(
    "patterns.key",
    PATTERNS,
    Reads.ATTENTION,
    lambda context: KeyMasses(context.tracked_tokens, context.skip, context.length),
    lenses=("resting",),
    when=Pass.SAMPLE,
)
