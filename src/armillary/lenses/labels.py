"""What each head does, in one word, with the evidence for it: every lens is heard, and random heads are asked too.

Two rules, and 'most' is always 'more than half'. A head is focused if most of its attention is not spread evenly.

1. What most of the focus does is the label: on random tokens said twice, induction (what followed the other copy) and
   duplicate (the other copy), leaving aside what rests on the first token; in text, self, previous, next, first-token,
   or local (keys up to NEAR tokens away, those three among them). What happens in text goes first where most of the
   focus rests on the first token even of tokens said twice; the other fact is kept as `also`.
2. A focused head that does none of these, most of whose logits need content, and that is more focused than random
   heads, is named by what that content does (`content_kinds`): `matching`, `preference` or `content`; else it is
   `mixed`. A head that is not focused is `broad`.

A label is significant if random heads of the same size, reading the same input, do not show it: its measure is above
the threshold of the null model (streams/null.py). `broad` and `mixed` are never significant: random heads are both.
"""

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy.stats import norm, spearmanr

from armillary.errors import ArmillaryError
from armillary.lenses.resting import rests_on

if TYPE_CHECKING:
    from armillary.atlas import Atlas

LABELS = (
    *("self", "previous", "next", "local", "first-token", "induction", "duplicate"),
    *("matching", "preference", "content", "broad", "mixed"),
)
MOST = 0.5
DEVIATIONS = 5.0
"""The threshold is so many standard deviations of the null model above the mean of a head's own draws."""

IN_TEXT = {"self": "self", "previous": "previous", "next": "next", "local": "near", "first-token": "first"}
IN_REPEATS = {"induction": "induction", "duplicate": "duplicate"}
"""Which relation of streams/patterns.py each label is about."""

MEASURES = {
    "self": "self_mass",
    "previous": "prev_mass",
    "next": "next_mass",
    "local": "near_mass",
    "first-token": "first_mass",
    "induction": "induction_score",
    "duplicate": "duplicate_score",
    "matching": "focus",
    "preference": "focus",
    "content": "focus",
    "broad": "focus",
}
"""The column of the heads table that a label rests on."""

BY_CONTENT = ("matching", "preference", "content")
"""What heads are called that need content and do nothing that has a name of its own."""


@dataclass(frozen=True)
class Patterns:
    """Of every head, in the order of the heads table: attention on each label's keys, and what random heads show.

    strength[label] is the share of the focus that goes there; null and threshold have the units of value. Random heads
    are missing (NaN) for families that no adapter knows. `waits` is where most of the focus on tokens said twice rests
    on the first token.
    """

    focus: Float[np.ndarray, "head"]
    waits: Bool[np.ndarray, "head"]
    value: dict[str, Float[np.ndarray, "head"]]
    strength: dict[str, Float[np.ndarray, "head"]]
    null: dict[str, Float[np.ndarray, "head"]]
    threshold: dict[str, Float[np.ndarray, "head"]]


def patterns(atlas: "Atlas") -> Patterns:
    """The patterns of an atlas that has the stream of that name."""
    found = atlas.group("patterns")
    by_head = {str(name): array for name, array in found.data_vars.items() if array.dims == ("layer", "head")}
    flat = {name: array.to_numpy().reshape(-1) for name, array in by_head.items()}
    focus = flat["text_focus"]
    value, strength, waits = {}, {}, np.zeros(focus.shape, bool)
    causal = all(layer["causal"] for layer in atlas.attrs["anatomy"]["layers"])
    for label, relation in IN_TEXT.items():
        if causal and label == "next":
            continue
        value[label] = flat[f"text_{relation}_mass"]
        strength[label] = _share(value[label] - flat[f"text_{relation}_chance"], focus)
    if "repeat_focus" in flat:
        # what rests on the first token is left aside: a head that finds nothing to copy waits there
        rest = 1 - flat["repeat_first_mass"]
        resting = (flat["repeat_first_mass"] - flat["repeat_first_chance"]).clip(min=0)
        moved, waits = flat["repeat_focus"] - resting, resting > MOST * flat["repeat_focus"]
        for label, relation in IN_REPEATS.items():
            value[label] = flat[f"repeat_{relation}_mass"]
            share = _share(value[label] - flat[f"repeat_{relation}_chance"], moved)
            strength[label] = np.where(_share(moved, rest) >= MOST, share, np.minimum(share, _share(moved, rest)))
    null, threshold = _null(atlas, focus.shape)
    value |= dict.fromkeys((*BY_CONTENT, "broad"), focus)
    strength["broad"] = 1 - focus
    return Patterns(focus, waits, value, strength, null, threshold)


def _share(part: Float[np.ndarray, "head"], whole: Float[np.ndarray, "head"]) -> Float[np.ndarray, "head"]:
    return np.asarray(np.divide(part, whole, out=np.zeros_like(part), where=whole > 1e-9))


def _null(
    atlas: "Atlas", shape: tuple[int, ...]
) -> tuple[dict[str, Float[np.ndarray, "head"]], dict[str, Float[np.ndarray, "head"]]]:
    """Mean over a head's draws, and the larger of its own largest draw and DEVIATIONS above that mean.

    The standard deviation is that of draws within heads, over all heads of the layer.
    """
    names = {label: f"text_{relation}_mass" for label, relation in IN_TEXT.items()}
    names |= {label: f"repeat_{relation}_mass" for label, relation in IN_REPEATS.items()}
    names |= dict.fromkeys((*BY_CONTENT, "broad"), "text_focus")
    missing = {label: np.full(shape, np.nan) for label in names}
    if not atlas.has("null"):
        return missing, dict(missing)
    found = atlas.group("null")
    null, threshold = dict(missing), dict(missing)
    for label, name in names.items():
        if name in found:
            draws = found[name].transpose("layer", "draw", "head").to_numpy()
            middle = draws.mean(1)
            deviation = np.sqrt(draws.var(1, ddof=1).mean(-1, keepdims=True))
            null[label] = middle.reshape(-1)
            threshold[label] = np.maximum(draws.max(1), middle + DEVIATIONS * deviation).reshape(-1)
    return null, threshold


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """focus, near_mass, next_mass (where any layer sees both sides), induction_score and duplicate_score."""
    if not atlas.has("patterns"):
        return pd.DataFrame()
    found = patterns(atlas)
    table = pd.DataFrame({"focus": found.focus, "near_mass": found.value["local"]})
    if "next" in found.value:
        table["next_mass"] = found.value["next"]
    for label in IN_REPEATS:
        if label in found.value:
            table[MEASURES[label]] = found.value[label]
    return table


def content_kinds(table: pd.DataFrame) -> list[str]:
    """What content does in each head's logits, where shares are known: of the share that is not positional, `matching`
    if more than half is cvec-cvec, `preference` if more than half is mean-cvec and pos-cvec (a query without content
    prefers the same keys whatever it is), else `content`.

    A share is negative where its terms work against the others. 'More than half' is then half of the sum of absolute
    values: a part that outweighs all others together. So at most one part does, and with shares that are not
    negative it is half of their sum.
    """
    if "preference_share" not in table:
        return [""] * len(table)
    matching, preference, mixed = (
        table[name].to_numpy(float) for name in ("content_share", "preference_share", "mixed_share")
    )
    parts = np.stack([matching, preference, mixed - preference])
    most = parts > MOST * np.abs(parts).sum(0)
    kind = np.select([np.isnan(parts).any(0), most[0], most[1]], ["", "matching", "preference"], "content")
    return [str(one) for one in kind]


def label_columns(atlas: "Atlas", table: pd.DataFrame) -> pd.DataFrame:
    """label, also, significant (missing without a null model), first_label, second_label and rests_on of every head.

    also: what else the head does, in text if the label is about tokens said twice and there if it is about text; random
    heads do not show it. first_label is the head's own, or the nearest one where it is mixed; second_label the nearest
    other. `table` holds the columns of the other lenses, in the same order.
    """
    if not atlas.has("patterns"):
        return pd.DataFrame()
    found, kinds = patterns(atlas), content_kinds(table)
    rows: list[dict[str, Any]] = []
    for head in range(len(found.focus)):
        if np.isnan(found.focus[head]):  # no attention was seen there, as in a layer of another kind
            rows.append({**dict.fromkeys(("label", "also", "first_label", "second_label"), ""), "significant": pd.NA})
            continue
        strength = {label: float(values[head]) for label, values in found.strength.items()}
        if kinds[head]:
            strength[kinds[head]] = float(np.clip(1 - table["positional_share"].iloc[head], 0, 1))
        beyond = {label: bool(value[head] > found.threshold[label][head]) for label, value in found.value.items()}
        asked = not np.isnan(found.threshold["broad"][head])
        label, also = _label(strength, bool(found.waits[head]), beyond["broad"])
        ranked = sorted(strength, key=lambda name: (name != label, -strength[name], LABELS.index(name)))
        rows.append(
            {
                "label": label,
                "also": also if also and (beyond[also] or not asked) else "",
                "significant": label not in ("broad", "mixed") and beyond[label] if asked else pd.NA,
                "first_label": ranked[0],
                "second_label": ranked[1],
            }
        )
    return pd.DataFrame(rows).astype({"significant": "boolean"}).assign(rests_on=rests_on(atlas))


def _label(strength: dict[str, float], waits: bool, beyond_random: bool) -> tuple[str, str]:
    """The two rules, in their order: the label, and what else is so or nothing."""
    holds = {label for label, value in strength.items() if value > MOST}
    repeated = next((label for label in IN_REPEATS if label in holds), "")
    order = ("broad", "self", "previous", "next", "first-token", "local")
    text = next((label for label in order if label in holds), "")
    if repeated and not waits:
        return repeated, text if text != "broad" else ""
    if not text:
        text = next((kind for kind in BY_CONTENT if kind in holds and beyond_random), "mixed")
    return text, repeated


SUPPORT: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("self", "previous", "next", "local"), "positional_share", "most"),
    (("self", "previous", "next", "local"), "high_freq_share", "most"),
    (("self", "previous", "next", "local"), "r", "positive"),
    (("self",), "argmax_ratio", "most"),
    (("self",), "self_cosine", "positive"),
    (("previous",), "previous_cosine", "positive"),
    (("induction", "duplicate", "matching"), "content_share", "most"),
    (("preference",), "preference_share", "most"),
    (("duplicate", "matching"), "qk_align_z", "aligned"),
)
"""What other lenses should say of a head with these labels: (labels, measure, more than half / above 0 / aligned)."""


def sure(heads: pd.DataFrame) -> pd.Series:
    """Whether each label is significant and, where verify-heads checked it, held; missing without a null model."""
    failed = heads["check"] == "fails" if "check" in heads else pd.Series(data=False, index=heads.index)
    return heads["significant"].astype("boolean") & ~failed.fillna(value=False).astype("boolean")


def label_counts(atlas: "Atlas") -> pd.DataFrame:
    """A row for every label that occurs: label, heads, sure ones, and how many in each layer.

    Sure are labels that are significant and whose check, if there was one, did not fail.
    """
    if "label" not in atlas.heads or atlas.heads["label"].isna().all():
        raise ArmillaryError("this atlas has no labels: scan with the stream patterns")
    label = pd.Categorical(atlas.heads["label"], LABELS, ordered=True)
    heads = atlas.heads.assign(label=label, sure=sure(atlas.heads).astype("Int64"))
    groups = heads.groupby("label", observed=True)
    table = pd.DataFrame({"heads": groups.size(), "sure": groups["sure"].sum(min_count=1)})
    layers = heads.groupby(["label", "layer"], observed=True).size().unstack(fill_value=0)
    layers.columns = [f"layer {layer}" for layer in layers.columns]
    table = pd.concat([table, layers], axis=1).reset_index()
    return table.assign(label=table["label"].astype(str), sure=table["sure"].astype("Int64"))


def more_facts(atlas: "Atlas") -> pd.DataFrame:
    """Heads of which more is known than a label: also, rests_on, check; a label that is not sure has a '?'.

    A first-token head that rests on position 0, as its name says, is left out, and so are checks that hold.
    """
    heads = atlas.heads
    table = heads[["layer", "head", "label", *(name for name in ("also", "rests_on", "check") if name in heads)]]
    blank = pd.Series(data=None, index=heads.index, dtype="str")
    keys = heads.get("rests_on", blank)
    keys = keys.mask((heads["label"] == "first-token") & (keys == "position 0").fillna(value=False))
    said = heads.get("also", blank).notna() | keys.notna() | (heads.get("check", blank) == "fails").fillna(value=False)
    label = heads["label"].where(
        sure(heads).fillna(value=True) | heads["label"].isin(["broad", "mixed"]), heads["label"] + "?"
    )
    return table.assign(label=label)[said.to_numpy(bool)].reset_index(drop=True)


def evidence_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every head, label and measure: value, what random heads show (null, threshold), and whether it holds.

    role 'rule': what the label rests on; `strength` is the share of the focus (or of the logits) that it explains. Of
    matching, preference and content, each head has the one that its logits are made of.
    role 'support': what another lens says of the head's own label; it decides nothing.
    """
    if not atlas.has("patterns"):
        return pd.DataFrame(
            columns=["layer", "head", "label", "role", "measure", "value", "null", "threshold", "strength", "holds"]
        )
    heads, found = atlas.heads, patterns(atlas)
    parts = []
    kinds = np.array(content_kinds(heads))
    for label in LABELS[:-1]:
        asked = kinds == label if label in BY_CONTENT else np.ones(len(heads), bool)
        if label in BY_CONTENT and asked.any():
            strength = (1 - heads["positional_share"].astype(float)).clip(0, 1).to_numpy()
        elif label in found.strength:
            strength = found.strength[label]
        else:
            continue
        rows = heads[["layer", "head"]].assign(label=label, role="rule", measure=MEASURES[label])
        rows = rows.assign(value=found.value[label], null=found.null[label], threshold=found.threshold[label])
        beyond = found.value[label] > found.threshold[label] if label in BY_CONTENT else True
        parts.append(rows.assign(strength=strength, holds=(strength > MOST) & beyond)[asked])
    parts += [_support(heads, labels, measure, kind) for labels, measure, kind in SUPPORT if measure in heads]
    table = pd.concat([part for part in parts if not part.empty], ignore_index=True)
    return table.sort_values(["layer", "head"], kind="stable", ignore_index=True)


def _support(heads: pd.DataFrame, labels: tuple[str, ...], measure: str, kind: str) -> pd.DataFrame:
    own = heads[heads["label"].isin(labels) & heads[measure].notna()]
    least = {"most": MOST, "positive": 0.0, "aligned": float(norm.isf(0.01 / 2 / max(1, len(heads))))}[kind]
    value = own[measure].astype(float)
    rows = own[["layer", "head", "label"]].assign(role="support", measure=measure, value=value)
    return rows.assign(null=np.nan, threshold=least, strength=np.nan, holds=value > least)


STORIES: tuple[tuple[str, str, str, str], ...] = (
    ("high_freq_share", "prev_mass", "+", "fast frequencies tell neighbours apart"),
    ("positional_share", "argmax_ratio", "+", "position alone finds the token itself"),
    ("r", "mean_distance", "-", "a spectrum with positive mean passes late tokens"),
    ("qk_align_z", "content_share", "+", "W_q and W_k that agree compare content"),
    ("eta", "entropy_norm", "-", "a wide spectrum makes sharp attention"),
    ("focus", "qk_fro", "+", "large weights make sharp attention"),
)
"""Measures of different lenses that should tell the same story: (a, b, sign of their correlation, why)."""


def agreement_table(atlas: "Atlas") -> pd.DataFrame:
    """Rank correlations over heads of measures that should agree: a, b, expected, heads, correlation, low, high,
    verdict, why.

    verdict: 'agrees' where the whole interval has the expected sign, 'contradicts' where it excludes that sign, else
    'open'. In models that normalise q and k, measures of W_q W_k' are those of the effective product.
    low and high bound the correlation with 95 % confidence as if heads were independent, which they are only in part
    (Fisher's z with Bonett and Wright's variance). A pair that the atlas lacks, or that does not vary, is left out.
    """
    heads, rows = atlas.heads, []
    for first, second, expected, why in STORIES:
        a, b = (EFFECTIVE[name] if EFFECTIVE.get(name) in heads else name for name in (first, second))
        if a not in heads or b not in heads:
            continue
        both = heads[[a, b]].astype(float).dropna()
        if len(both) < 4 or both[a].nunique() < 2 or both[b].nunique() < 2:
            continue
        rank = float(spearmanr(both[a], both[b]).statistic)
        centre = np.arctanh(np.clip(rank, -0.999999, 0.999999))
        reach = 1.96 * sqrt((1 + rank**2 / 2) / (len(both) - 3))
        low, high = float(np.tanh(centre - reach)), float(np.tanh(centre + reach))
        rows.append((a, b, expected, len(both), rank, low, high, _verdict(expected, low, high), why))
    return pd.DataFrame(rows, columns=["a", "b", "expected", "heads", "correlation", "low", "high", "verdict", "why"])


EFFECTIVE = {"qk_fro": "qk_effective_fro", "qk_align_z": "qk_effective_align_z"}
"""What stands for a measure of W_q W_k' where q and k are normalised."""


def _verdict(expected: str, low: float, high: float) -> str:
    """Whether an interval has the expected sign throughout, excludes it, or leaves it open."""
    low, high = (low, high) if expected == "+" else (-high, -low)
    return "agrees" if low > 0 else "contradicts" if high < 0 else "open"
