"""One head of an atlas: its label, what it reads and writes in tokens, and where the text shows it."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from armillary.atlas.texts import texts_of
from armillary.errors import ArmillaryError
from armillary.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import pandas as pd

    from armillary.atlas.atlas import Atlas

# Imports inside functions: pandas is slow to import, and the atlas imports this file.

AROUND = 10
"""Tokens shown before a key or a query, and after a key."""


@dataclass(frozen=True)
class Shown:
    """One token of an example: its position, its text, the attention on it (0 if it is not among the strongest keys),
    whether it is the query, and whether text is left out before it."""

    position: int
    text: str
    weight: float
    is_query: bool
    after_gap: bool


@dataclass(frozen=True)
class Example:
    """A window of text in which one query shows what the head reads; score: attention beyond what distance explains."""

    sequence: int
    query: int
    score: float
    tokens: tuple[Shown, ...]

    def __str__(self) -> str:
        """The text with the attention behind each strongly attended token, and the query in [[ ]]."""
        parts = []
        for token in self.tokens:
            strong = token.weight >= 0.1 and not token.is_query
            text = (
                f"[[{token.text}]]" if token.is_query else f"{token.text}⟨{token.weight:.2f}⟩" if strong else token.text
            )
            parts.append((" … " if token.after_gap else "") + text)
        return "".join(parts)


@dataclass(frozen=True)
class Head:
    """A head; tables have a row per token, direction or example, best first; empty where nothing was measured."""

    atlas: "Atlas"
    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @cached_property
    def row(self) -> "pd.Series":
        """The head's row of the heads table; an error if there is no such head."""
        heads = self.atlas.heads
        rows = heads[(heads["layer"] == self.layer) & (heads["head"] == self.head)]
        if rows.empty:
            layers = self.atlas.anatomy.layers
            raise ArmillaryError(
                f"there is no head {self.layer}.{self.head}: this model has layers 0 to {len(layers) - 1} "
                f"with heads 0 to {layers[0].heads - 1}"
            )
        return rows.iloc[0]

    @property
    def label(self) -> str:
        """One word for what the head does; '' if the scan measured no patterns."""
        return self._word("label")

    @property
    def does(self) -> str:
        """What the head reads and writes, in words; '' if that was not measured."""
        return self._word("does")

    def _word(self, name: str) -> str:
        value = self.row.get(name)
        return value if isinstance(value, str) else ""

    @property
    def evidence(self) -> "pd.DataFrame":
        """What the label rests on: measure, value, that of random heads, whether the rule holds."""
        return self._rows("evidence")

    @property
    def reads(self) -> "pd.DataFrame":
        """Tokens that it reads more, or less, than distance explains."""
        return self._rows("tokens")

    @property
    def pairs(self) -> "pd.DataFrame":
        """(query token, key token) pairs that it favors."""
        return self._rows("pairs")

    @property
    def relations(self) -> "pd.DataFrame":
        """Classes of tokens and relations to the query that it reads more, or less, than distance explains."""
        return self._rows("relations")

    @property
    def writes(self) -> "pd.DataFrame":
        """Directions from tokens that it reads to tokens whose logits rise."""
        return self._directions("writes")

    @property
    def matches(self) -> "pd.DataFrame":
        """Directions from tokens that ask to tokens that are found."""
        return self._directions("matches")

    @cached_property
    def examples(self) -> list[Example]:
        """Windows of text that show best what the head reads."""
        return [self._example(row) for row in self._rows("examples").to_dict("records")]

    def _directions(self, kind: str) -> "pd.DataFrame":
        table = self._rows("writes")
        return table[table["kind"] == kind].drop(columns="kind").reset_index(drop=True) if len(table) else table

    def _rows(self, name: str) -> "pd.DataFrame":
        table = self.atlas.table(name)
        own = table[(table["layer"] == self.layer) & (table["head"] == self.head)] if len(table) else table
        return own.drop(columns=["layer", "head"], errors="ignore").reset_index(drop=True)

    def _example(self, row: "dict[Any, Any]") -> Example:
        ids = self.atlas.group("corpus")["tokens"][int(row["sequence"])].to_numpy().tolist()
        weights = {int(place): float(a) for place, a in (part.split(":") for part in str(row["keys"]).split())}
        query = int(row["query"])
        shown = window(ids, query, weights, texts_of(self.atlas))
        return Example(int(row["sequence"]), query, float(row["score"]), shown)


def window(ids: list[int], query: int, weights: dict[int, float], words: Vocabulary) -> tuple[Shown, ...]:
    """The tokens around the query and around the keys with at least a tenth of the attention of the strongest."""
    least = max(weights.values(), default=0.0) / 10
    places = set(range(max(0, query - AROUND), query + 1))
    for key in [key for key, weight in weights.items() if weight >= least]:
        places |= set(range(max(0, key - AROUND // 2), min(len(ids), key + AROUND // 2 + 1)))
    shown, previous = [], -1
    for place in sorted(places):
        text = words.texts[ids[place]] if ids[place] < len(words.texts) else ""
        gap = place != previous + 1
        shown.append(Shown(place, text or f"token {ids[place]} ", weights.get(place, 0.0), place == query, gap))
        previous = place
    return tuple(shown)
