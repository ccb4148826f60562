"""Attention of a head on keys in a given relation to the query (previous, induction, ...), compared with chance."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.observe.view import AttentionView
from armillary.streams.declaration import Context, Declaration, Option, Pass, Reads
from armillary.streams.stream import State

Relation = Callable[[Int[Tensor, "row 1"], Int[Tensor, "1 key"]], Bool[Tensor, "row key"]]
"""Which keys are in the relation to which queries, from their positions."""

NEAR = 8
"""Keys at most this many tokens away are near."""

DELIMITER = "delimiter"

BLOCK = 8_000_000
"""Rows are processed in blocks of about this many attention values."""

TEXT: dict[str, Relation] = {
    "self": lambda i, j: i == j,
    "previous": lambda i, j: j == i - 1,
    "next": lambda i, j: j == i + 1,
    "near": lambda i, j: ((i - j).abs() <= NEAR) & (j > 0),
    "first": lambda i, j: (j == 0).expand(i.shape[0], -1),
}
"""Relations in any text; the first key is never near."""


def repeats(period: int, first: int = 0) -> dict[str, Relation]:
    """Relations in a text that repeats `period` tokens: the other copy of a token, and the token after that copy.

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
    """The attention of these rows on tokens, without a learned sink, and uniform attention over their visible keys."""
    attention, seen = view.attention(rows), view.visible(rows)
    if view.sinks is not None:
        attention = attention / attention.sum(-1, keepdim=True).clamp(min=torch.finfo(attention.dtype).tiny)
    return attention, seen / seen.sum(-1, keepdim=True).clamp(min=1)


class Masses:
    """Per head, means over rows: attention on each relation (mass), the same of uniform attention (chance), the focus.

    focus = sum_j max(a_j - 1/n, 0) over the row's n visible keys: the distance from uniform attention, 0 if it is
    uniform. No relation's mass exceeds its chance by more than the focus. Rows before `skip` are left out; with
    `among`, also rows that see no key in that relation. Attention on a learned sink is left out. With `delimiters`
    (True for tokens that are), also the mass and chance of keys that are such tokens, the first key left out.
    """

    def __init__(
        self,
        relations: dict[str, Relation],
        skip: int,
        among: str | None = None,
        delimiters: Bool[Tensor, "vocabulary"] | None = None,
    ) -> None:
        self.relations = relations
        self.delimiters = delimiters
        self.skip = skip
        self.among = among
        named = [*relations, *([] if delimiters is None else [DELIMITER])]
        names = [f"{name}_{kind}" for name in named for kind in ("mass", "chance")]
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
        # sum over the sequences first: a relation selects the same keys in all of them
        summed = (attention * counted).sum(0)
        expected = (chance * counted).expand(batch, -1, -1, -1).sum(0).expand(heads, -1, -1)
        state: State = {
            "rows": counted.expand(batch, heads, -1, -1).sum((0, 2, 3)).double(),
            "focus": (focus * counted).sum((0, 2, 3), dtype=torch.float64),
        }
        for name, relation in self.relations.items():
            in_relation = relation(query, key)
            state[f"{name}_mass"] = (summed * in_relation).sum((1, 2), dtype=torch.float64)
            state[f"{name}_chance"] = (expected * in_relation).sum((1, 2), dtype=torch.float64)
        if self.delimiters is not None:
            assert view.tokens is not None
            chosen = self.delimiters.to(view.tokens.device)[view.tokens]
            chosen[:, 0] = False
            for kind, values in (("mass", attention), ("chance", chance)):
                by_key = (values * counted).expand(batch, heads, -1, -1).sum(2, dtype=torch.float64)
                state[f"{DELIMITER}_{kind}"] = (by_key * chosen[:, None]).sum((0, 2))
        return state

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {name: sums / state["rows"] for name, sums in state.items() if name != "rows"}


PATTERNS = Option(
    "patterns", "where heads attend in text and in repeated random tokens, and where random heads would (for labels)"
)


def repeat_masses(context: Context) -> Masses | None:
    """Masses on repeated random tokens; None if sequences are too short for two copies."""
    return Masses(repeats(context.period, context.before), 0, among="duplicate") if context.period else None


def text_masses(context: Context) -> Masses:
    """Masses in text, also on delimiters where there is a tokenizer."""
    words = context.vocabulary
    return Masses(TEXT, context.skip, delimiters=None if words is None else torch.from_numpy(words.delimiters()))


IN_TEXT = Declaration(
    "patterns.text",
    PATTERNS,
    Reads.ATTENTION,
    text_masses,
    lenses=("labels",),
    when=Pass.SAMPLE,
)
IN_REPEATS = Declaration(
    "patterns.repeat", PATTERNS, Reads.ATTENTION, repeat_masses, lenses=("labels",), when=Pass.REPEATS
)
