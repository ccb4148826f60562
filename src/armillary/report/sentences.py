"""The report's first sentences, written from the tables.

Each function returns the text and the numbers in it: named, unrounded, in their order in the text, for tests to check.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from armillary.lenses.constituents import logit_parts
from armillary.lenses.kinds import LayerKind
from armillary.lenses.rotary import RecommendedP

KINDS = {
    "self": "self",
    "previous": "previous-token",
    "next": "next-token",
    "local": "local",
    "first-token": "first-token",
    "delimiter": "delimiter",
    "induction": "induction",
    "duplicate": "duplicate-token",
    "matching": "matching",
    "preference": "preference",
    "content": "content",
    "broad": "broad",
    "mixed": "mixed",
}
"""Labels as words before 'head', in the order that breaks ties."""

MOST_KINDS = 4
"""How many kinds of heads are listed one by one."""

MASSES = {
    "first_mass": "to the first token",
    "prev_mass": "to the previous one",
    "self_mass": "to the token itself",
}

Fact = int | float | str


class Sentence(NamedTuple):
    """A sentence and the facts in it."""

    text: str
    facts: dict[str, Fact]


@dataclass
class Writer:
    """Formats facts for a sentence and collects them."""

    facts: dict[str, Fact] = field(default_factory=dict)

    def count(self, name: str, value: int) -> str:
        self.facts[name] = int(value)
        return str(value)

    def percent(self, name: str, value: float) -> str:
        self.facts[name] = float(value)
        return percent(value)

    def number(self, name: str, value: float, digits: int = 2) -> str:
        self.facts[name] = float(value)
        return minus(f"{value:.{digits}f}")

    def word(self, name: str, value: str) -> str:
        self.facts[name] = value
        return value

    def sentence(self, text: str) -> Sentence:
        return Sentence(text, self.facts)


def percent(value: float) -> str:
    """0.417 as 42 %, with a space that does not break."""
    return minus(f"{100 * value:.0f}") + "\u00a0%"


def minus(number: str) -> str:
    """With a true minus sign, and none before a zero."""
    if not any(digit in number for digit in "123456789"):
        number = number.removeprefix("-")
    return number.replace("-", "\u2212")


def listed(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def plural(count: int, one: str, many: str | None = None) -> str:
    """The word in singular or plural."""
    return one if count == 1 else many or one + "s"


def known(table: pd.DataFrame, *columns: str) -> bool:
    """Whether the table has values in each of these columns."""
    return all(column in table and bool(table[column].notna().any()) for column in columns)


def counted(words: pd.Series, order: tuple[str, ...]) -> list[tuple[str, int]]:
    """Each word with its count, most frequent first; ties in this order, then alphabetically."""
    counts = words.dropna().value_counts().to_dict()
    rank = {word: i for i, word in enumerate(order)}
    return sorted(((str(w), int(n)) for w, n in counts.items()), key=lambda c: (-c[1], rank.get(c[0], len(rank)), c[0]))


# how many heads of which kind, and where --------------------------------------------------------------------------


def kinds(heads: pd.DataFrame) -> Sentence:
    """How many heads have each label and in which layers; without labels, where attention goes."""
    write = Writer()
    count, layers = len(heads), int(heads["layer"].nunique())
    model = f"{write.count('heads', count)} {plural(count, 'head')}"
    model += f" in {write.count('layers', layers)} {plural(layers, 'layer')}"
    if known(heads, "label"):
        return write.sentence(_by_label(write, heads, model))
    if known(heads, *MASSES):
        rests = [(name, to, int((heads[name] > 0.5).sum())) for name, to in MASSES.items()]
        places = listed([f"{to} in {write.count(name, n) if n else 'none'}" for name, to, n in rests])
        return write.sentence(f"Of {model}, more than half of the attention goes {places}; this atlas has no labels.")
    if known(heads, "regime"):
        regimes = listed([f"{write.count(word, n)} {word}" for word, n in counted(heads["regime"], ())])
        return write.sentence(f"Of {model}, by the keys that can propagate a signal (from the weights), {regimes}.")
    return write.sentence(f"The model has {model}; this atlas does not have their labels.")


def _by_label(write: Writer, heads: pd.DataFrame, model: str) -> str:
    labels = heads["label"]
    counts = counted(labels, tuple(KINDS))
    if counts[0][1] == len(heads):
        return f"Of {model}, all are {KINDS.get(counts[0][0], counts[0][0])} heads{_unsure(write, heads)}."
    shown = counts if len(counts) <= MOST_KINDS + 1 else counts[:MOST_KINDS]
    parts: list[str] = []
    for word, n in shown:
        kind = f"{KINDS.get(word, word)} {plural(n, 'head')}"
        verb = "" if parts else plural(n, "is an " if kind[0] in "aeiou" else "is a ", "are ")
        parts.append(f"{write.count(word, n)} {verb}{kind} ({_where(write, word, heads[labels == word])})")
    rest = sum(n for _, n in counts[len(shown) :])
    if rest:
        parts.append(f"{write.count('other kinds', rest)} of other kinds")
    unknown = int(labels.isna().sum())
    end = f"; {write.count('no label', unknown)} {plural(unknown, 'has', 'have')} no label" if unknown else ""
    return f"Of {model}, {listed(parts)}{end}{_unsure(write, heads)}."


def _unsure(write: Writer, heads: pd.DataFrame) -> str:
    """How many labels are not significant (broad and mixed never are), and how many failed their check."""
    doubts = ""
    if known(heads, "significant"):
        named = ~heads["label"].isin(["broad", "mixed"])
        unsure = int((named & ~heads["significant"].astype("boolean").fillna(True)).sum())
        labels = plural(unsure, "label is", "labels are")
        doubts = f"; {write.count('unsure', unsure)} {labels} not significant against random heads" if unsure else ""
    if known(heads, "check"):
        failed = int((heads["check"] == "fails").sum())
        checked = write.count("checked", int(heads["check"].notna().sum()))
        doubts += f"; of {checked} checked labels, {write.count('failed', failed)} failed"
    return doubts


def _where(write: Writer, word: str, part: pd.DataFrame) -> str:
    """The head if there is only one, else the first and last layer."""
    if len(part) == 1:
        return write.word(f"{word} at", head_names(part)[0])
    first, last = int(part["layer"].min()), int(part["layer"].max())
    if first == last:
        return f"layer {write.count(f'{word} layer', first)}"
    to = "and" if last == first + 1 else "to"
    return f"layers {write.count(f'{word} first layer', first)} {to} {write.count(f'{word} last layer', last)}"


def head_names(heads: pd.DataFrame) -> list[str]:
    """3.5 for layer 3, head 5."""
    return [f"{int(layer)}.{int(head)}" for layer, head in zip(heads["layer"], heads["head"], strict=True)]


# how position is carried ------------------------------------------------------------------------------------------


THROUGH = {"rotated mean": "the rotated mean", "positional vectors": "positional vectors", "bias": "a position bias"}


def position(heads: pd.DataFrame, encodings: list[str], why: str = "") -> Sentence:
    """The share of the logits due to position, and by which parts; `encodings` as the model declares them."""
    write = Writer()
    declared = f"its layers have {listed(encodings)}" if encodings else "its layers declare no position encoding"
    if not known(heads, "positional_share", "content_share"):
        reason = why or "scan it with the streams positions and constituents"
        return write.sentence(f"How this model carries position was not measured ({reason}); {declared}.")
    mean = logit_parts(heads).mean()
    total = float(heads["positional_share"].mean())
    text = f"Position explains {write.percent('positional', total)} of the logits' variation, mean over heads"
    through = [
        f"{write.percent(name, float(mean[name]))} by {carrier}"
        for name, carrier in THROUGH.items()
        if abs(mean[name]) >= 0.005
    ]
    text += f" ({listed(through)})" if through else ""
    text += f", content {write.percent('content', float(mean['content']))}"
    text += f" and the two together {write.percent('mixed', float(mean['mixed']))}"
    return write.sentence(text + _extremes(write, heads) + ".")


def _extremes(write: Writer, heads: pd.DataFrame) -> str:
    """The layers in which position matters most and least, if layers differ."""
    layers = heads.groupby("layer")["positional_share"].mean().dropna().astype(float)
    if len(layers) < 2 or layers.max() == layers.min():
        return ""
    most, least = int(str(layers.idxmax())), int(str(layers.idxmin()))
    extremes = f"; position matters most in layer {write.count('most layer', most)}"
    extremes += f" ({write.percent('most', layers.max())}) and least in layer {write.count('least layer', least)}"
    return extremes + f" ({write.percent('least', layers.min())})"


# what stands out --------------------------------------------------------------------------------------------------


def stands_out(
    heads: pd.DataFrame, layers: pd.DataFrame, rotary: Sequence[tuple[LayerKind, RecommendedP]] = ()
) -> Sentence:
    """Attention sinks, the strongest heads, and the rotary frequencies that could be frozen, by kind of layer."""
    write = Writer()
    clauses: list[str] = []
    if known(heads, "first_mass"):
        sinks = int((heads["first_mass"] > 0.5).sum())
        who = f"{write.count('sinks', sinks)} {plural(sinks, 'head gives', 'heads give')}" if sinks else "no head gives"
        clauses.append(f"{who} more than half of {plural(sinks or 1, 'its', 'their')} attention to the first token")
    strongest: tuple[tuple[str, str, Callable[[str, float], str]], ...] = (
        ("prev_mass", "the most attention to the previous token", write.percent),
        ("induction_score", "the largest induction score", write.number),
    )
    for column, subject, shown in strongest:
        if known(heads, column):
            top = heads[heads[column] == heads[column].max()]
            clauses.append(f"{subject} is {shown(column, float(heads[column].max()))} ({_which(write, column, top)})")
    if rotary:
        said_once = 1 < rotary[0][1].frequencies > rotary[0][1].kept
        frozen = [
            _frozen(write, best, "" if kind.alone else f"in the {kind.name}", again=i > 0 and said_once)
            for i, (kind, best) in enumerate(rotary)
        ]
        clauses.append(", ".join(frozen))
    elif known(layers, "dct_energy_10") and len(layers) > 1:
        smooth = float(layers["dct_energy_10"].iloc[1:].median())
        lowest = write.percent("smooth", smooth)
        clauses.append(f"{lowest} of the positional pattern lies in its ten lowest frequencies, median over layers")
    if not clauses and known(heads, "qk_align_z"):
        z = heads["qk_align_z"].astype(float)
        top = heads[z == z.max()]
        most_aligned = f"queries and keys are most aligned in {_which(write, 'align', top)}"
        clauses.append(f"{most_aligned} (z\u00a0=\u00a0{write.number('qk_align_z', float(z.max()), 1)})")
        rank = float(heads["qk_stable_rank"].median())
        clauses.append(f"the median stable rank of a head's W_q W_k' is {write.number('qk_stable_rank', rank, 1)}")
    if not clauses:
        return write.sentence("Nothing was measured that this sentence could report.")
    return write.sentence(clauses[0][0].upper() + "; ".join(clauses)[1:] + ".")


def _which(write: Writer, name: str, top: pd.DataFrame) -> str:
    """The heads that share a maximum."""
    if len(top) > 3:
        return f"{write.count(f'{name} heads', len(top))} heads"
    return f"{plural(len(top), 'head')} " + listed(
        [write.word(f"{name} at {i}", head) for i, head in enumerate(head_names(top))]
    )


def _frozen(write: Writer, rotary: RecommendedP, where: str, again: bool = False) -> str:
    """How many frequencies could be frozen; `again` if the clause before says the same of other layers."""
    frozen = rotary.frequencies - rotary.kept
    place = f"{write.word(f'place {where}', where)} " if where else ""
    if rotary.frequencies == 1:
        can = "could be frozen at little cost" if frozen else "cannot be frozen at little cost"
        return f"{place}the only rotary frequency {can}"
    count = write.count(f"frozen {where}".strip(), frozen) if frozen else ""
    of = f"of {write.count(f'frequencies {where}'.strip(), rotary.frequencies)} rotary frequencies"
    if not frozen:
        return f"{place}none {of} can be frozen at little cost"
    cost = f"{100 * rotary.cost:.1f}\u00a0%"
    write.facts[f"cost {where}".strip()] = float(rotary.cost)
    if again:
        return f"{place}the slowest {count} of {rotary.frequencies} by {cost}"
    return f"{place}freezing the slowest {count} {of} changes the logits by {cost}"


# two atlases ------------------------------------------------------------------------------------------------------


def labels_changed(a: pd.DataFrame, b: pd.DataFrame) -> Sentence:
    """How many heads have a different label in b, and the most frequent change."""
    write = Writer()
    if not known(a, "label") or not known(b, "label"):
        count = write.count("heads", len(a))
        return write.sentence(
            f"The two atlases have the same {count} heads; without labels in both, only numbers can be compared."
        )
    changed = changed_labels(a, b)
    n = len(changed)
    if not n:
        return write.sentence(f"All {write.count('heads', len(a))} heads keep their label.")
    changed_heads = f"{write.count('changed', n)} of {write.count('heads', len(a))} heads"
    change = f"{changed_heads} {plural(n, 'has', 'have')} a different label"
    pairs = counted(changed["before"].fillna("none") + " to " + changed["after"].fillna("none"), ())
    most = f"{pairs[0][0]} ({write.count('times', pairs[0][1])} {plural(pairs[0][1], 'head')})"
    return write.sentence(f"{change}; the most frequent change is from {most}.")


def changed_labels(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """layer, head, before, after of the heads whose label differs."""
    both = a[["layer", "head"]].assign(before=a["label"], after=b["label"])
    same = (both["before"] == both["after"]).fillna(False) | (both["before"].isna() & both["after"].isna())
    return both[~same].reset_index(drop=True)


def largest_change(changes: pd.DataFrame) -> Sentence:
    """The measure and head that changed most, in units of its spread over heads."""
    write = Writer()
    moved = changes[np.isfinite(changes["size"]) & (changes["size"] > 0)]
    if moved.empty:
        return write.sentence("No measure of any head changed.")
    top = moved.iloc[0]
    head = write.word("head", f"{int(top['layer'])}.{int(top['head'])}")
    went = f"from {write.number('a', float(top['a']))} to {write.number('b', float(top['b']))}"
    size = f"{write.number('size', float(top['size']), 1)} times its spread over heads"
    return write.sentence(f"The largest change is {top['measure']} of head {head}, {went}: {size}.")


def position_changed(a: pd.DataFrame, b: pd.DataFrame) -> Sentence:
    """How the share of position in the logits changed, and where attention goes."""
    write = Writer()
    clauses: list[str] = []
    for column, subject in (
        ("positional_share", "the share of position in the logits"),
        ("first_mass", "the attention to the first token"),
        ("prev_mass", "that to the previous one"),
    ):
        if known(a, column) and known(b, column):
            before, after = (float(table[column].mean()) for table in (a, b))
            went = f"{write.percent(f'{column} a', before)} to {write.percent(f'{column} b', after)}"
            clauses.append(f"{subject} goes from {went}" if not clauses else f"{subject} from {went}")
    if not clauses:
        return write.sentence("Not both atlases have shares of the logits or attention masses.")
    return write.sentence("On average over heads, " + listed(clauses) + ".")
