"""Labels every head with one word for what it does, and gives the evidence, compared with random heads.

Two rules; 'most' always means more than half. A head is focused if most of its attention is not spread evenly.

1. The label is where most of the focus goes: on repeated random tokens, induction (the token after the other copy) and
   duplicate (the other copy), not counting attention on the first token; in text, self, previous, next, first-token,
   delimiter (punctuation, newlines and special tokens), or local (keys up to NEAR tokens away). The label from text
   comes first for heads whose focus is mostly on the first token even on repeated tokens; the other label is
   then stored as `also`.
2. A focused head with none of these labels, most of whose logits depend on content, and which is more focused than
   random heads, is named by how it uses content (`content_kinds`): `matching`, `preference` or `content`; otherwise it
   is `mixed`. A head that is not focused is `broad`.

A label is significant if random heads of the same size with the same input do not reach it: its measure is above the
threshold of the null model (streams/null.py). `broad` and `mixed` are never significant: random heads are both.
"""

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy.special import ndtri

from armillary.errors import ArmillaryError
from armillary.lenses.resting import rests_on

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

LABELS = (
    *("self", "previous", "next", "local", "first-token", "delimiter", "induction", "duplicate"),
    *("matching", "preference", "content", "broad", "mixed"),
)
MOST = 0.5
DEVIATIONS = 5.0
"""The threshold is this many standard deviations of the null model above the mean of a head's own draws."""

IN_TEXT = {"self": "self", "previous": "previous", "next": "next", "local": "near", "first-token": "first"}
BY_CLASS = {"delimiter": "delimiter"}
"""The same for keys that are known by their token: punctuation, newlines and special tokens, the first key left out."""
IN_REPEATS = {"induction": "induction", "duplicate": "duplicate"}
"""Which relation of streams/patterns.py each label is about."""

MEASURES = {
    "self": "self_mass",
    "previous": "prev_mass",
    "next": "next_mass",
    "local": "near_mass",
    "first-token": "first_mass",
    "delimiter": "punctuation_mass",
    "induction": "induction_score",
    "duplicate": "duplicate_score",
    "matching": "focus",
    "preference": "focus",
    "content": "focus",
    "broad": "focus",
}
"""The column of the heads table that a label is decided by."""

BY_CONTENT = ("matching", "preference", "content")
"""Labels of heads whose logits depend on content and which have no label from the first rule."""


@dataclass(frozen=True)
class Patterns:
    """For every head, in the order of the heads table: attention on each label's keys, and that of random heads.

    strength[label] is the share of the focus on these keys; null and threshold have the units of value and are NaN for
    families without an adapter. `waits`: on repeated random tokens, most of the focus is on the first token.
    """

    focus: Float[np.ndarray, "head"]
    waits: Bool[np.ndarray, "head"]
    value: dict[str, Float[np.ndarray, "head"]]
    strength: dict[str, Float[np.ndarray, "head"]]
    null: dict[str, Float[np.ndarray, "head"]]
    threshold: dict[str, Float[np.ndarray, "head"]]


def patterns(atlas: "Atlas") -> Patterns:
    """The patterns of an atlas that has the stream of that name."""
    arrays = atlas.group("patterns").data_vars
    by_head = {str(name): array for name, array in arrays.items() if array.dims == ("layer", "head")}
    flat = {name: array.to_numpy().reshape(-1) for name, array in by_head.items()}
    focus = flat["text_focus"]
    value, strength, waits = {}, {}, np.zeros(focus.shape, bool)
    causal = all(layer.causal for layer in atlas.anatomy.layers)
    for label, relation in (IN_TEXT | BY_CLASS).items():
        if (causal and label == "next") or f"text_{relation}_mass" not in flat:
            continue
        value[label] = flat[f"text_{relation}_mass"]
        strength[label] = _share(value[label] - flat[f"text_{relation}_chance"], focus)
    if "repeat_focus" in flat:
        # attention on the first token does not count: heads that find nothing to copy put it there
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
    """Null: mean over a head's draws. Threshold: its largest draw, or DEVIATIONS above that mean if this is larger.

    The standard deviation is that of the draws within heads, pooled over all heads of the layer.
    """
    names = {label: f"text_{relation}_mass" for label, relation in (IN_TEXT | BY_CLASS).items()}
    names |= {label: f"repeat_{relation}_mass" for label, relation in IN_REPEATS.items()}
    names |= dict.fromkeys((*BY_CONTENT, "broad"), "text_focus")
    missing = {label: np.full(shape, np.nan) for label in names}
    if not atlas.has("null"):
        return missing, dict(missing)
    draws_by_measure = atlas.group("null")
    null, threshold = dict(missing), dict(missing)
    for label, name in names.items():
        if name in draws_by_measure:
            mean, least = random_threshold(draws_by_measure[name].transpose("layer", "draw", "head").to_numpy())
            null[label], threshold[label] = mean.reshape(-1), least.reshape(-1)
    return null, threshold


def random_threshold(
    draws: Float[np.ndarray, "layer draw head"],
) -> tuple[Float[np.ndarray, "layer head"], Float[np.ndarray, "layer head"]]:
    """The mean of each head's draws, and what random heads do not reach."""
    mean = draws.mean(1)
    deviation = np.sqrt(draws.var(1, ddof=1).mean(-1, keepdims=True))
    return mean, np.maximum(draws.max(1), mean + DEVIATIONS * deviation)


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """focus, near_mass, next_mass (unless all layers are causal), induction_score and duplicate_score."""
    if not atlas.has("patterns"):
        return pd.DataFrame()
    measured = patterns(atlas)
    table = pd.DataFrame({"focus": measured.focus, "near_mass": measured.value["local"]})
    if "next" in measured.value:
        table["next_mass"] = measured.value["next"]
    for label in IN_REPEATS:
        if label in measured.value:
            table[MEASURES[label]] = measured.value[label]
    return table


def content_kinds(table: pd.DataFrame) -> list[str]:
    """How each head's logits use content, '' where shares are unknown. Of the share that is not positional: `matching`
    if more than half is cvec-cvec, `preference` if more than half is mean-cvec and pos-cvec (the same keys for every
    query), else `content`.

    Shares are negative where terms cancel, so 'more than half' is taken of the sum of absolute values: the part
    outweighs all others together. At most one part does.
    """
    if "preference_share" not in table:
        return [""] * len(table)
    matching, preference, mixed = (
        table[name].to_numpy(float) for name in ("content_share", "preference_share", "mixed_share")
    )
    parts = np.stack([matching, preference, mixed - preference])
    most = parts > MOST * np.abs(parts).sum(0)
    kind = np.select([np.isnan(parts).any(0), most[0], most[1]], ["", "matching", "preference"], "content")
    return [str(name) for name in kind]


def label_columns(atlas: "Atlas", table: pd.DataFrame) -> pd.DataFrame:
    """label, also, significant (missing without a null model), first_label, second_label and rests_on of every head.

    also: a second label, from text if the label is about repeated random tokens and the other way round, if it is above
    the null model's threshold. first_label is the head's own, or the strongest one where it is mixed; second_label the
    strongest other one. `table` holds the columns of the other lenses, in the same order.
    """
    if not atlas.has("patterns"):
        return pd.DataFrame()
    measured, kinds = patterns(atlas), content_kinds(table)
    rows: list[dict[str, Any]] = []
    for head in range(len(measured.focus)):
        if np.isnan(measured.focus[head]):  # no attention was observed: a layer of another kind
            rows.append({**dict.fromkeys(("label", "also", "first_label", "second_label"), ""), "significant": pd.NA})
            continue
        strength = {label: float(values[head]) for label, values in measured.strength.items()}
        if kinds[head]:
            strength[kinds[head]] = float(np.clip(1 - table["positional_share"].iloc[head], 0, 1))
        above_null = {
            label: bool(value[head] > measured.threshold[label][head]) for label, value in measured.value.items()
        }
        has_null = not np.isnan(measured.threshold["broad"][head])
        label, also = _label(strength, bool(measured.waits[head]), above_null["broad"])
        ranked = sorted(strength, key=lambda name: (name != label, -strength[name], LABELS.index(name)))
        rows.append(
            {
                "label": label,
                "also": also if also and (above_null[also] or not has_null) else "",
                "significant": label not in ("broad", "mixed") and above_null[label] if has_null else pd.NA,
                "first_label": ranked[0],
                "second_label": ranked[1],
            }
        )
    return pd.DataFrame(rows).astype({"significant": "boolean"}).assign(rests_on=rests_on(atlas))


def _label(strength: dict[str, float], waits: bool, beyond_random: bool) -> tuple[str, str]:
    """The two rules, in their order: the label, and a second one for `also`, or ''."""
    holds = {label for label, value in strength.items() if value > MOST}
    repeated = next((label for label in IN_REPEATS if label in holds), "")
    order = ("broad", "self", "previous", "next", "first-token", "delimiter", "local")
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
"""What other lenses should measure for heads with these labels: (labels, measure, more than half/above 0/aligned)."""


def sure(heads: pd.DataFrame) -> pd.Series:
    """Whether each label is significant and its check, if verify-heads ran, did not fail; NA without a null model."""
    failed = heads["check"] == "fails" if "check" in heads else pd.Series(data=False, index=heads.index)
    return heads["significant"].astype("boolean") & ~failed.fillna(value=False).astype("boolean")


def label_counts(atlas: "Atlas") -> pd.DataFrame:
    """A row for every label that occurs: label, number of heads, how many are sure (see `sure`), number per layer."""
    if "label" not in atlas.heads or atlas.heads["label"].isna().all():
        raise ArmillaryError("this atlas has no labels", advice="scan with the stream patterns")
    label = pd.Categorical(atlas.heads["label"], LABELS, ordered=True)
    heads = atlas.heads.assign(label=label, sure=sure(atlas.heads).astype("Int64"))
    groups = heads.groupby("label", observed=True)
    table = pd.DataFrame({"heads": groups.size(), "sure": groups["sure"].sum(min_count=1)})
    layers = heads.groupby(["label", "layer"], observed=True).size().unstack(fill_value=0)
    layers.columns = [f"layer {layer}" for layer in layers.columns]
    table = pd.concat([table, layers], axis=1).reset_index()
    return table.assign(label=table["label"].astype(str), sure=table["sure"].astype("Int64"))


def more_facts(atlas: "Atlas") -> pd.DataFrame:
    """Heads with more facts than a label: also, rests_on, check; a label that is not sure has a '?'.

    Left out are first-token heads that rest on position 0, which says nothing new, and checks that hold.
    """
    heads = atlas.heads
    table = heads[["layer", "head", "label", *(name for name in ("also", "rests_on", "check") if name in heads)]]
    blank = pd.Series(data=None, index=heads.index, dtype="str")
    keys = heads.get("rests_on", blank)
    keys = keys.mask((heads["label"] == "first-token") & (keys == "position 0").fillna(value=False))
    failed = (heads.get("check", blank) == "fails").fillna(value=False)
    has_facts = heads.get("also", blank).notna() | keys.notna() | failed
    label = heads["label"].where(
        sure(heads).fillna(value=True) | heads["label"].isin(["broad", "mixed"]), heads["label"] + "?"
    )
    return table.assign(label=label)[has_facts.to_numpy(bool)].reset_index(drop=True)


def evidence_table(atlas: "Atlas", heads: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for every head, label and measure: value, the same of random heads (null, threshold), whether it holds.

    role 'rule': the measure that decides the label; `strength` is the share of the focus (or of the logits) that it
    explains. Of matching, preference and content, each head has only the one from content_kinds.
    role 'support': a measure of another lens for the head's own label; it does not decide it.
    """
    if not atlas.has("patterns"):
        return pd.DataFrame(
            columns=["layer", "head", "label", "role", "measure", "value", "null", "threshold", "strength", "holds"]
        )
    heads, measured = atlas.heads if heads is None else heads, patterns(atlas)
    parts = []
    kinds = np.array(content_kinds(heads))
    for label in LABELS[:-1]:
        selected = kinds == label if label in BY_CONTENT else np.ones(len(heads), bool)
        if label in BY_CONTENT and selected.any():
            strength = (1 - heads["positional_share"].astype(float)).clip(0, 1).to_numpy()
        elif label in measured.strength:
            strength = measured.strength[label]
        else:
            continue
        rows = heads[["layer", "head"]].assign(label=label, role="rule", measure=MEASURES[label])
        rows = rows.assign(value=measured.value[label], null=measured.null[label], threshold=measured.threshold[label])
        above_null = measured.value[label] > measured.threshold[label] if label in BY_CONTENT else True
        parts.append(rows.assign(strength=strength, holds=(strength > MOST) & above_null)[selected])
    parts += [_support(heads, labels, measure, kind) for labels, measure, kind in SUPPORT if measure in heads]
    table = pd.concat([part for part in parts if not part.empty], ignore_index=True)
    return table.sort_values(["layer", "head"], kind="stable", ignore_index=True)


def _support(heads: pd.DataFrame, labels: tuple[str, ...], measure: str, kind: str) -> pd.DataFrame:
    own = heads[heads["label"].isin(labels) & heads[measure].notna()]
    least = {"most": MOST, "positive": 0.0, "aligned": -float(ndtri(0.01 / 2 / max(1, len(heads))))}[kind]
    value = own[measure].astype(float)
    rows = own[["layer", "head", "label"]].assign(role="support", measure=measure, value=value)
    return rows.assign(null=np.nan, threshold=least, strength=np.nan, holds=value > least)


EXPECTED_CORRELATIONS: tuple[tuple[str, str, str, str], ...] = (
    ("high_freq_share", "prev_mass", "+", "fast frequencies tell neighbors apart"),
    ("positional_share", "argmax_ratio", "+", "position alone finds the token itself"),
    ("r", "mean_distance", "-", "a spectrum with positive mean passes late tokens"),
    ("qk_align_z", "content_share", "+", "W_q and W_k that agree compare content"),
    ("eta", "entropy_norm", "-", "a wide spectrum makes sharp attention"),
    ("focus", "qk_fro", "+", "large weights make sharp attention"),
    ("induction_score", "copying_score", "+", "what induction heads find, they write"),
)
"""Measures of different lenses that should be correlated: (a, b, sign of their correlation, why)."""


def agreement_table(atlas: "Atlas") -> pd.DataFrame:
    """Rank correlations over heads of measures that should agree: a, b, expected, heads, correlation, low, high,
    verdict, why.

    verdict: 'agrees' where the whole interval has the expected sign, 'contradicts' where it excludes that sign, else
    'open'. In models that normalize q and k, measures of W_q W_k' are those of the effective product.
    low and high bound the correlation with 95 % confidence as if heads were independent, which they are only in part
    (Fisher's z with Bonett and Wright's variance). A pair that the atlas lacks, or that does not vary, is left out.
    """
    # for start-up: scipy.stats takes 0.3 seconds to import
    from scipy.stats import spearmanr

    heads, rows = atlas.heads, []
    for first, second, expected, why in EXPECTED_CORRELATIONS:
        a, b = (EFFECTIVE[name] if EFFECTIVE.get(name) in heads else name for name in (first, second))
        if a not in heads or b not in heads:
            continue
        both = heads[[a, b]].astype(float).dropna()
        if len(both) < 4 or both[a].nunique() < 2 or both[b].nunique() < 2:
            continue
        rank = float(spearmanr(both[a], both[b]).statistic)
        center = np.arctanh(np.clip(rank, -0.999999, 0.999999))
        reach = 1.96 * sqrt((1 + rank**2 / 2) / (len(both) - 3))
        low, high = float(np.tanh(center - reach)), float(np.tanh(center + reach))
        rows.append((a, b, expected, len(both), rank, low, high, _verdict(expected, low, high), why))
    return pd.DataFrame(rows, columns=["a", "b", "expected", "heads", "correlation", "low", "high", "verdict", "why"])


EFFECTIVE = {"qk_fro": "qk_effective_fro", "qk_align_z": "qk_effective_align_z"}
"""What replaces a measure of W_q W_k' where q and k are normalized."""


def _verdict(expected: str, low: float, high: float) -> str:
    """Whether an interval has the expected sign throughout, excludes it, or leaves it open."""
    low, high = (low, high) if expected == "+" else (-high, -low)
    return "agrees" if low > 0 else "contradicts" if high < 0 else "open"
