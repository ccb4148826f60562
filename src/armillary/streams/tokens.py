"""What a head reads, in tokens: attention beyond what distance explains, by key token, pair of tokens and class; and
the places in the text that show it best."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from armillary.observe.view import AttentionView
from armillary.streams import heavy_pairs
from armillary.streams.attention import ATTENTION
from armillary.streams.declaration import Context, Declaration, Option, Pass, Reads
from armillary.streams.looks import Look, Text, look
from armillary.streams.patterns import BLOCK
from armillary.streams.stream import Axes, State
from armillary.text.vocabulary import CLASSES, Vocabulary

READ_TOKENS = 1024
"""Key tokens that are counted: those that the most queries see. The gain of any other token is at most the number of
queries that see it, which is at most that of the last of these."""

RELATIONS = (*CLASSES, "capital", "same", "after same")
"""Classes of key tokens; words that start with a capital letter; keys with the token of the query; keys whose previous
token is that of the query. The last two are keys before the query."""

EXAMPLES, KEYS = 8, 16
"""Examples of every head, and keys of an example whose attention is stored: the strongest ones."""

SQUARES = ("a", "b", "aa", "ab", "bb")


class TokenReading:
    """Sums of a - abar by key token, pair of tokens and relation, where abar is the head's mean attention by distance.

    Gains are sums of a - abar, lifts ratios sum a / sum abar, with standard errors over texts (heavy_pairs.py). Pairs
    whose query or key is among the first `skip` tokens are left out. token_latest_gain: the same over queries that see
    no later key with that token. moved: sum of max(a - abar, 0) a row; no set of pairs can gain more. mass: attention
    on kept keys, a row. Examples: of the texts in which one query's sum of max(a - max(1/n, abar), 0) is largest, that
    query and its strongest keys; one a text, ties by order.
    """

    def __init__(
        self,
        by_lag: dict[int, Float[Tensor, "head lag"]],
        tokens: tuple[int, ...],
        vocabulary: Vocabulary | None,
        skip: int,
    ) -> None:
        self.by_lag, self.tokens, self.vocabulary, self.skip = by_lag, tokens, vocabulary, skip
        per_token, pairs = ("head", "read_token"), ("head", "pair")
        examples = ("head", "example")
        self.dims: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(("token_gain", "token_lift", "token_se", "token_latest_gain"), per_token),
            **dict.fromkeys(("token_count", "token_texts"), ("read_token",)),
            **dict.fromkeys((f"pair_{n}" for n in ("query", "key", "gain", "lift", "se", "count", "texts")), pairs),
            **dict.fromkeys(("relation_gain", "relation_lift", "relation_se"), ("head", "relation")),
            **dict.fromkeys(("pair_missed", "moved", "mass"), ("head",)),
            **dict.fromkeys(("example_score", "example_text", "example_query"), examples),
            **dict.fromkeys(("example_key", "example_weight"), (*examples, "strongest")),
        }

    def axes(self) -> Axes:
        """Which tokens are counted."""
        return {"read_token": (("read_token",), np.array(self.tokens, np.int64))}

    def measure(self, batch: AttentionView) -> State:
        assert batch.tokens is not None
        by_lag = self.by_lag[batch.layer].float().numpy()
        total: State = {}
        for number in range(len(batch.tokens)):
            text = _Measured(self, batch.tokens[number].cpu().numpy(), batch.heads)
            for heads, attention, seen in _head_by_head(batch, number):
                text.add(heads, attention, by_lag[heads], seen)
            state = text.state()
            total = self.combine(total, state) if total else state
        return total

    def combine(self, a: State, b: State) -> State:
        added = {name: a[name] + b[name] for name in a if not name.startswith(("pair_", "example_"))}
        return added | heavy_pairs.joined(a, b) | best_examples(a, b, a["texts"])

    def finish(self, state: State) -> dict[str, Tensor]:
        texts = state["token_texts"].expand(state["token"].shape[:-1])
        gain, lift, error = heavy_pairs.lift_and_error(state["token"][..., :5], texts)
        latest = state["token"][..., 5] - state["token"][..., 6]
        results = {"token_gain": gain, "token_lift": lift, "token_se": error, "token_latest_gain": latest}
        results |= {name: state[name] for name in ("token_count", "token_texts")}
        sums, tokens = state["pair_sums"], state["pair_tokens"]
        gain, lift, error = heavy_pairs.lift_and_error(sums[..., :5], sums[..., 6])
        results |= {"pair_query": tokens[..., 0], "pair_key": tokens[..., 1], "pair_gain": gain, "pair_lift": lift}
        results |= {"pair_se": error, "pair_count": sums[..., 5], "pair_texts": sums[..., 6]}
        gain, lift, error = heavy_pairs.lift_and_error(state["relation"], state["relation_texts"])
        results |= {"relation_gain": gain, "relation_lift": lift, "relation_se": error}
        results |= {name: state[name] / state["rows"] for name in ("moved", "mass")}
        return results | {name: state[name] for name in state if name.startswith("example_") or name == "pair_missed"}


class _Measured:
    """The state of one text, head by head."""

    def __init__(self, stream: TokenReading, ids: Int[np.ndarray, "position"], heads: int) -> None:
        self.stream, self.ids, self.text = stream, ids, Text.of(ids)
        slots = {token: slot for slot, token in enumerate(stream.tokens)}
        self.slot = torch.tensor([slots.get(int(token), len(slots)) for token in ids])
        self.slot[: stream.skip] = len(slots)
        self.relations = self._classes()
        self.token = torch.zeros(heads, 7, len(slots) + 1, dtype=torch.float64)
        self.relation = torch.zeros(heads, 5, len(RELATIONS), dtype=torch.float64)
        self.per_head: dict[str, list[Tensor]] = {name: [] for name in ("moved", "mass")}
        self.lists: list[State] = []
        self.examples: list[State] = []
        self.seen: Bool[np.ndarray, "query key"] | None = None
        self.visible = np.zeros((0, 0), np.int64)

    def _classes(self) -> Bool[Tensor, "class position"]:
        """Which positions have a token of each class, and words with a capital letter; none without a tokenizer."""
        vocabulary = self.stream.vocabulary
        member = torch.zeros(len(CLASSES) + 1, len(self.ids), dtype=torch.bool)
        if vocabulary is not None:
            kinds = torch.from_numpy(vocabulary.kinds[self.ids].astype(np.int64))
            member[:-1] = kinds == torch.arange(len(CLASSES))[:, None]
            member[-1] = torch.from_numpy(vocabulary.capital[self.ids])
        member[:, : self.stream.skip] = False
        return member

    def _count_pairs(self, seen: Bool[np.ndarray, "query key"]) -> Int[np.ndarray, "distinct distinct"]:
        """How many kept pairs of positions have each pair of tokens."""
        kept, distinct = seen.copy(), len(self.text.tokens)
        kept[: self.stream.skip], kept[:, : self.stream.skip] = False, False
        query, key = np.nonzero(kept)
        code = self.text.local[query] * distinct + self.text.local[key]
        return np.bincount(code, minlength=distinct * distinct).reshape(distinct, distinct)

    def add(
        self,
        heads: slice,
        attention: Float[np.ndarray, "head query key"],
        by_lag: Float[np.ndarray, "head lag"],
        seen: Bool[np.ndarray, "some query key"],
    ) -> None:
        """Add some heads; `seen` has one row where all see the same."""
        length = len(self.ids)
        middle = by_lag.shape[1] // 2
        by_lag = np.ascontiguousarray(by_lag[:, middle - length + 1 : middle + length])
        for place, head in enumerate(range(heads.start, heads.stop)):
            visible = seen[min(place, len(seen) - 1)]
            looked = look(attention[place], by_lag[place], visible, self.stream.skip, self.text)
            if self.seen is None or not np.array_equal(self.seen, visible):
                self.seen, self.visible = visible, self._count_pairs(visible)
            self._sums(head, looked)
            self.lists.append(heavy_pairs.of_text(looked, self.text, self.visible))
            self.examples.append(self._example(looked, attention[place], visible))

    def _sums(self, head: int, looked: Look) -> None:
        by_key = torch.from_numpy(looked.by_key)
        sums = torch.zeros(4, self.token.shape[-1], dtype=torch.float64).index_add_(1, self.slot, by_key)
        a, b = sums[0], sums[1]
        self.token[head] = torch.stack([a, b, a * a, a * b, b * b, sums[2], sums[3]])
        classes = by_key[:2] @ self.relations.double().T
        a, b = torch.cat([classes, torch.from_numpy(looked.by_relation.T)], 1)
        self.relation[head] = torch.stack([a, b, a * a, a * b, b * b])
        self.per_head["moved"].append(torch.tensor(looked.by_row[0].sum(), dtype=torch.float64))
        self.per_head["mass"].append(by_key[0].sum())

    def _example(
        self, looked: Look, attention: Float[np.ndarray, "query key"], seen: Bool[np.ndarray, "query key"]
    ) -> State:
        """The query that shows best what the head reads here, and its strongest keys."""
        query = int(np.argmax(looked.by_row[1]))
        row = np.where(seen[query], attention[query], -1.0)
        row[: self.stream.skip] = -1.0
        keys = np.argsort(-row, kind="stable")[:KEYS]
        place, weight = np.full(KEYS, -1, np.int64), np.zeros(KEYS)
        keys = keys[row[keys] >= 0]
        place[: len(keys)], weight[: len(keys)] = keys, row[keys]
        return {
            "example_score": torch.tensor([looked.by_row[1, query]], dtype=torch.float64),
            "example_text": torch.tensor([0]),
            "example_query": torch.tensor([query]),
            "example_key": torch.from_numpy(place)[None],
            "example_weight": torch.from_numpy(weight)[None],
        }

    def state(self) -> State:
        count = torch.bincount(self.slot, minlength=self.token.shape[-1])[:-1]
        relation = self.relation.transpose(1, 2).contiguous()
        stacked = {name: torch.stack([entry[name] for entry in self.lists]) for name in self.lists[0]}
        shown = {name: torch.stack([entry[name] for entry in self.examples]) for name in self.examples[0]}
        rows = max(0, len(self.ids) - self.stream.skip)
        return {
            "texts": torch.tensor(1.0, dtype=torch.float64),
            "rows": torch.tensor(float(rows), dtype=torch.float64),
            "token": self.token[..., :-1].transpose(1, 2).contiguous(),
            "token_count": count.double(),
            "token_texts": (count > 0).double(),
            "relation": relation,
            "relation_texts": (relation[..., 1] > 0).double(),
            **{name: torch.stack(values) for name, values in self.per_head.items()},
            **stacked,
            **best_examples(shown, {name: tensor[:, :0] for name, tensor in shown.items()}, torch.tensor(0.0)),
        }


def best_examples(a: State, b: State, texts: Tensor) -> State:
    """The EXAMPLES best of both, those of `a` first on ties; `texts`: how many texts `a` has, which b's come after."""
    names = [name for name in a if name.startswith("example_")]
    later = {name: b[name] for name in names}
    later["example_text"] = torch.where(later["example_text"] >= 0, later["example_text"] + int(texts), -1)
    both = {name: torch.cat([a[name], later[name]], 1) for name in names}
    missing = EXAMPLES - both["example_score"].shape[1]
    if missing > 0:
        heads = len(both["example_score"])
        for name, tensor in both.items():
            empty = tensor.new_full((heads, missing, *tensor.shape[2:]), 0.0 if tensor.is_floating_point() else -1)
            both[name] = torch.cat([tensor, empty], 1)
    order = torch.sort(-both["example_score"], dim=1, stable=True).indices[:, :EXAMPLES]
    return {
        name: tensor.gather(1, order if tensor.dim() == 2 else order[..., None].expand(-1, -1, tensor.shape[2]))
        for name, tensor in both.items()
    }


def _head_by_head(
    view: AttentionView, number: int
) -> Iterator[tuple[slice, Float[np.ndarray, "head query key"], Bool[np.ndarray, "some query key"]]]:
    """The attention of one text, as many heads at a time as fit a block, and which keys they see."""

    def own(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[min(number, len(tensor) - 1)][None]

    group = view.heads // view.k.shape[1]
    few = max(1, BLOCK // (view.queries * view.keys * group))
    for start in range(0, view.k.shape[1], few):
        keys = slice(start, min(start + few, view.k.shape[1]))
        heads = slice(keys.start * group, keys.stop * group)

        def of(tensor: Tensor | None, heads: slice = heads) -> Tensor | None:
            alone = own(tensor)
            return alone if alone is None or alone.shape[1] == 1 else alone[:, heads]

        part = replace(
            view,
            q=view.q[number : number + 1, heads],
            k=view.k[number : number + 1, keys],
            v=view.v[number : number + 1, keys],
            mask=of(view.mask),
            bias=of(view.bias),
            sinks=None if view.sinks is None else view.sinks[heads],
            output=None,
            x=None,
            valid=None,
            tokens=None,
            keys_from=None,
        )
        yield heads, part.attention()[0].float().cpu().numpy(), part.visible()[0].cpu().numpy()


TOKENS = Option(
    "tokens",
    "which tokens every head reads, beyond what distance explains, with examples (a quarter of a scan more)",
    default=False,
    needs=ATTENTION,
)


def _reading(context: Context) -> TokenReading | None:
    """None where the model was not observed in the first pass."""
    if not context.by_lag:
        return None
    return TokenReading(context.by_lag, context.read_tokens, context.vocabulary, context.skip)


READ = Declaration(
    "tokens.read",
    TOKENS,
    Reads.ATTENTION,
    _reading,
    lenses=("reading",),
    when=Pass.SAMPLE,
    plain=True,
)
