"""Scores every head on a relation between tokens that the user gives, compared with random heads.

A relation is a function from the texts of a sequence's tokens to a matrix (query, key), or a TOML file:

    name = "a closing bracket to its opening one"
    query = [")", "]"]          # tokens, or a class of tokens (text/vocabulary.py): punctuation, digits, capital, ...
    key = ["(", "["]
    distance = [1, 40]          # optional: from how many tokens before the query to how many
    nearest = true              # optional: only the nearest such key
"""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from armillary.anatomy.devices import input_device
from armillary.anatomy.layout import entry
from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError, unknown
from armillary.lenses.labels import MOST, random_threshold
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView
from armillary.streams.null import DRAWS, OfRandomHeads
from armillary.streams.patterns import among_tokens
from armillary.streams.stream import State, Statistic, Stream
from armillary.text.sequences import read_sequences
from armillary.text.vocabulary import CLASSES, Vocabulary, vocabulary_of

Related = Callable[[list[str]], Bool[np.ndarray, "query key"]]
"""From the texts of a sequence's tokens to which keys are in the relation to which queries."""

KEYS = ("name", "query", "key", "distance", "nearest")
NAMED = (*CLASSES, "capital", "any")


@dataclass(frozen=True)
class Relation:
    """A named relation; `of` gives its matrix for the token ids of a sequence."""

    name: str
    of: Callable[[Int[np.ndarray, "token"]], Bool[np.ndarray, "query key"]]


def as_relation(given: Related | str | Path, vocabulary: Vocabulary) -> Relation:
    """The relation of a function of texts, or of a TOML file."""
    if callable(given):
        function = given
        return Relation(
            getattr(given, "__name__", "relation"),
            lambda ids: _checked(function([vocabulary.texts[token] for token in ids]), len(ids)),
        )
    path = Path(given)
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArmillaryError(f"{path} is not a TOML file that can be read ({error})") from error
    return declared_relation(record, vocabulary, path.stem)


def declared_relation(record: dict[str, Any], vocabulary: Vocabulary, name: str = "relation") -> Relation:
    """The relation that a record declares; unknown keys, classes and tokens raise an error that names them."""
    for key in record:
        if key not in KEYS:
            raise unknown("key of a relation", key, KEYS)
    lacking = [key for key in ("query", "key") if key not in record]
    if lacking:
        raise ArmillaryError(f"the relation has no {lacking[0]!r}", advice=f"its keys are {', '.join(KEYS)}")
    asks, answers = (_members(record[part], vocabulary) for part in ("query", "key"))
    low, high = _distance(record.get("distance", [1, 1 << 40]))
    nearest = record.get("nearest", False)
    if not isinstance(nearest, bool):
        raise ArmillaryError(f"`nearest={nearest!r}` is neither true nor false")

    def matrix(ids: Int[np.ndarray, "token"]) -> Bool[np.ndarray, "query key"]:
        place = np.arange(len(ids))
        away = place[:, None] - place
        related = asks[ids][:, None] & answers[ids] & (away >= low) & (away <= high)
        if nearest:
            distance = np.where(related, np.abs(away), len(ids) + 1)
            related &= distance == distance.min(1, keepdims=True)
        return np.asarray(related)

    return Relation(str(record.get("name", name)), matrix)


def _members(given: Any, vocabulary: Vocabulary) -> Bool[np.ndarray, "token"]:
    """Which tokens are meant: of a class, or with one of these texts (with or without white space around)."""
    chosen = np.zeros(len(vocabulary), bool)
    for item in given if isinstance(given, list) else [given]:
        if item in CLASSES:
            own = vocabulary.kinds == CLASSES.index(item)
        elif item == "capital":
            own = vocabulary.capital
        elif item == "any":
            own = np.ones(len(vocabulary), bool)
        else:
            own = np.array([text == item or text.strip() == item for text in vocabulary.texts])
        if not own.any():
            raise ArmillaryError(
                f"no token of this vocabulary is {item!r}", advice=f"classes are {', '.join(NAMED)}", given=item
            )
        chosen |= own
    return chosen


def _distance(given: Any) -> tuple[int, int]:
    pair = given if isinstance(given, list) else [given, given]
    if len(pair) != 2 or not all(isinstance(n, int) for n in pair) or pair[0] > pair[1]:
        raise ArmillaryError(f"`distance={given!r}` is not a distance", advice="write 3, or [1, 40]; 1 is the previous")
    return pair[0], pair[1]


def _checked(matrix: Any, length: int) -> Bool[np.ndarray, "query key"]:
    array = np.asarray(matrix, bool)
    if array.shape != (length, length):
        raise ArmillaryError(f"a relation must give a matrix of {length} x {length}, not {array.shape}")
    return array


class RelationMasses:
    """Per head, over rows with a visible key in the relation: attention on such keys, chance, focus."""

    def __init__(self, relation: Relation, skip: int) -> None:
        self.relation, self.skip = relation, skip
        self.dims: dict[str, tuple[str, ...]] = dict.fromkeys(("mass", "chance", "focus", "rows"), ("head",))

    def measure(self, batch: AttentionView) -> State:
        assert batch.tokens is not None
        rows = slice(self.skip, batch.queries)
        attention, chance = among_tokens(batch, rows)
        matrices = [self.relation.of(ids) for ids in batch.tokens.cpu().numpy()]
        related = torch.from_numpy(np.stack(matrices)).to(attention.device)[:, None, rows] & batch.visible(rows)
        counted = related.any(-1, keepdim=True)
        chance = chance.expand_as(attention)
        sums = {
            "mass": attention * related,
            "chance": chance * related,
            "focus": (attention - chance).clamp(min=0) * counted,
            "rows": counted.expand(*attention.shape[:3], 1),
        }
        return {name: values.sum((0, 2, 3), dtype=torch.float64) for name, values in sums.items()}

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        rows = state["rows"]
        return {name: values if name == "rows" else values / rows for name, values in state.items()}


def score_relation(
    model: Any,
    tokenizer: Any,
    relation: Related | str | Path,
    corpus: str | Path = "builtin:prose",
    *,
    length: int = 128,
    sequences: int = 16,
    batch: int = 4,
    seed: int = 0,
) -> pd.DataFrame:
    """A row per head, best first: mass and chance on the relation's keys, share of the focus, random heads, rows.

    Rows are queries with a visible key in the relation. share = (mass - chance) / focus; `holds` if it is more than
    half and the mass is above what random heads reach. Without an adapter for the family there are no random heads.
    """
    anatomy = describe(model)
    vocabulary = vocabulary_of(tokenizer, anatomy.vocabulary)
    chosen = as_relation(relation, vocabulary)
    texts = read_sequences(
        corpus, tokenizer, length=length, sequences=sequences, vocabulary=anatomy.vocabulary, seed=seed
    )
    statistics: dict[str, Statistic] = {"own": RelationMasses(chosen, 1)}
    if not anatomy.missing:
        statistics["random"] = OfRandomHeads(RelationMasses(chosen, 1), anatomy, DRAWS, seed)
    streams = {name: Stream(statistic) for name, statistic in statistics.items()}
    for ids in _batches(texts.tokens, batch):
        on_device = torch.from_numpy(ids).to(input_device(model))

        def receive(view: AttentionView, tokens: Tensor = on_device) -> None:
            for stream in streams.values():
                stream.update(view.layer, replace(view, tokens=tokens))

        with evaluating(model), torch.no_grad(), Tap(model, receive):
            entry(model)(input_ids=on_device)
    return _table(streams)


def _batches(tokens: Int[np.ndarray, "sequence token"], size: int) -> Iterator[Int[np.ndarray, "batch token"]]:
    for start in range(0, len(tokens), size):
        yield tokens[start : start + size]


def _table(streams: dict[str, Stream]) -> pd.DataFrame:
    parts = []
    for layer, state in streams["own"].states.items():
        own = {name: t.cpu().numpy() for name, t in streams["own"].statistic.finish(state).items()}
        if not own["rows"].any():
            raise ArmillaryError("no query of this text has such a key", advice="give more or other text")
        null = threshold = np.full(own["mass"].shape, np.nan)
        if "random" in streams:
            draws = streams["random"].statistic.finish(streams["random"].states[layer])["mass"].cpu().numpy()
            null, threshold = (values[0] for values in random_threshold(draws[None]))
        share = np.where(own["focus"] > 0, (own["mass"] - own["chance"]) / np.maximum(own["focus"], 1e-12), 0.0)
        numbers = {name: own[name] for name in ("mass", "chance", "focus")}
        frame = pd.DataFrame({"layer": layer, "head": range(len(share)), **numbers, "share": share, "null": null})
        holds = (share > MOST) & ~(own["mass"] <= threshold)
        parts.append(frame.assign(threshold=threshold, holds=holds, rows=own["rows"].astype(int)))
    table = pd.concat(parts, ignore_index=True)
    return table.sort_values("share", ascending=False, kind="stable", ignore_index=True)
