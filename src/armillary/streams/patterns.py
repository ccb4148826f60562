"""How much of a head's attention goes where: to keys that stand in some relation to the query, and beyond chance."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.streams.stream import State
from armillary.view import AttentionView

Relation = Callable[[Int[Tensor, "row 1"], Int[Tensor, "1 key"]], Bool[Tensor, "row key"]]
"""Which keys stand in the relation to which queries, from their positions."""

NEAR = 8
"""Keys this many tokens away or fewer are near."""

BLOCK = 8_000_000
"""Rows are taken so that a block of attention has about this many numbers."""

TEXT: dict[str, Relation] = {
    "self": lambda i, j: i == j,
    "previous": lambda i, j: j == i - 1,
    "next": lambda i, j: j == i + 1,
    "near": lambda i, j: ((i - j).abs() <= NEAR) & (j > 0),
    "first": lambda i, j: (j == 0).expand(i.shape[0], -1),
}
"""What can be told of any text; the first key is never near."""


def repeats(period: int, first: int = 0) -> dict[str, Relation]:
    """Relations in a text that says the same `period` tokens twice: the other copy of a token, and what followed it.

    The first copy begins at token `first`. Tokens before and after the copies have no other copy.
    """

    def within(i: Int[Tensor, "..."], copy: int) -> Bool[Tensor, "..."]:
        return (i >= first + copy * period) & (i < first + (copy + 1) * period)

    return {
        "duplicate": lambda i, j: ((i - j == period) & within(i, 1)) | ((j - i == period) & within(i, 0)),
        "induction": lambda i, j: ((i - j == period - 1) & within(i, 1)) | ((j - i == period + 1) & within(i, 0)),
        "first": TEXT["first"],
    }


def among_tokens(
    view: AttentionView, rows: slice
) -> tuple[Float[Tensor, "batch head row key"], Float[Tensor, "#batch #head row key"]]:
    """Where these rows look among the tokens, and what uniform attention over their visible keys would be.

    Attention on a learned sink is left aside: it is told by itself.
    """
    attention, seen = view.attention(rows), view.visible(rows)
    if view.sinks is not None:
        attention = attention / attention.sum(-1, keepdim=True).clamp(min=torch.finfo(attention.dtype).tiny)
    return attention, seen / seen.sum(-1, keepdim=True).clamp(min=1)


class Masses:
    """Per head, means over rows: the attention on each relation, what uniform attention would give it, and the focus.

    focus = sum_j max(a_j - 1/n, 0) over the row's n visible keys: the attention that is taken from some keys and given
    to others; 0 for uniform attention. No relation's mass exceeds its chance by more than the focus. Rows before
    `skip` are left out, and, where `among` is given, rows that see no key in that relation. Attention on a learned sink
    is left aside.
    """

    def __init__(self, relations: dict[str, Relation], skip: int, among: str | None = None) -> None:
        self.relations = relations
        self.skip = skip
        self.among = among
        names = [f"{name}_{kind}" for name in relations for kind in ("mass", "chance")]
        self.dims: dict[str, tuple[str, ...]] = dict.fromkeys((*names, "focus"), ("head",))

    def measure(self, batch: AttentionView) -> State:
        rows = max(1, BLOCK // (batch.q.shape[0] * batch.heads * batch.keys))
        starts = range(self.skip, batch.queries, rows)
        blocks = [self._measure_rows(batch, slice(start, min(start + rows, batch.queries))) for start in starts]
        state = blocks[0]
        for block in blocks[1:]:
            state = self.combine(state, block)
        return state

    def _measure_rows(self, view: AttentionView, rows: slice) -> State:
        attention, chance = among_tokens(view, rows)
        seen = view.visible(rows)
        query = torch.arange(view.queries, device=attention.device)[rows, None] + view.keys - view.queries
        key = torch.arange(view.keys, device=attention.device)[None]
        counted = seen.any(-1, keepdim=True)
        if self.among is not None:
            counted = (self.relations[self.among](query, key) & seen).any(-1, keepdim=True)
        batch, heads = attention.shape[:2]
        focus = (attention - chance).clamp_(min=0).sum(-1, keepdim=True)
        # sums over the texts first: which keys stand in a relation is the same in all of them
        looked = (attention * counted).sum(0)
        expected = (chance * counted).expand(batch, -1, -1, -1).sum(0).expand(heads, -1, -1)
        state: State = {
            "rows": counted.expand(batch, heads, -1, -1).sum((0, 2, 3)).double(),
            "focus": (focus * counted).sum((0, 2, 3), dtype=torch.float64),
        }
        for name, relation in self.relations.items():
            here = relation(query, key)
            state[f"{name}_mass"] = (looked * here).sum((1, 2), dtype=torch.float64)
            state[f"{name}_chance"] = (expected * here).sum((1, 2), dtype=torch.float64)
        return state

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {name: sums / state["rows"] for name, sums in state.items() if name != "rows"}
