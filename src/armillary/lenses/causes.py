"""Labels meet causes: whether heads with a label matter more than others, against labels permuted within layers."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

PERMUTATIONS = 10_000
LEVEL = 0.05
"""A label differs if so few permutations differ as much, divided by the number of labels (Bonferroni)."""

WELL_CORRELATED = 0.7
"""Below this rank correlation with exact ablation, estimates are said not to order heads."""


def measured_effect(heads: pd.DataFrame, prefix: str = "") -> str:
    """The column to compare heads by: exact effects if all heads have them, else estimates; '' without `ablate`."""
    exact, estimate = f"{prefix}ablation_loss", f"{prefix}gradient_loss"
    if exact in heads and heads[exact].notna().all():
        return exact
    return estimate if estimate in heads and heads[estimate].notna().any() else ""


def label_causes(atlas: "Atlas", seed: int = 0) -> pd.DataFrame:
    """A row for every label and effect (on text, on repeated random tokens)."""
    heads = atlas.heads
    effects = [effect for prefix in ("", "repeat_") if (effect := measured_effect(heads, prefix))]
    if not effects:
        raise ArmillaryError("the heads of this atlas were not ablated", advice="run `armillary ablate` first")
    if "label" not in heads or heads["label"].isna().all():
        raise ArmillaryError("this atlas has no labels", advice="scan with the stream patterns")
    return pd.DataFrame([row for effect in effects for row in _of_effect(heads, effect, seed)])


def _of_effect(heads: pd.DataFrame, effect: str, seed: int) -> list[dict[str, Any]]:
    known = heads[heads[effect].notna() & heads["label"].notna()]
    layers, values = known["layer"].to_numpy(), known[effect].to_numpy(float)
    labels = list(dict.fromkeys(known["label"]))
    member = {label: (known["label"] == label).to_numpy() for label in labels}
    generator = np.random.default_rng(seed)
    order = np.argsort(layers, kind="stable")
    permuted = np.array([_within_layers(layers, values, order, generator) for _ in range(PERMUTATIONS)])
    rows = []
    for label in labels:
        own = member[label]
        others = ~own & np.isin(layers, layers[own])
        null, mean = permuted[:, own].mean(1), values[own].mean()
        spread = null.std()
        if spread < 1e-12 * max(1e-300, np.abs(values).max()) or not others.any():
            rows.append(_row(label, effect, own, mean, values[others], np.nan, np.nan, "no comparison"))
            continue
        p = float((1 + (np.abs(null - null.mean()) >= abs(mean - null.mean())).sum()) / (1 + PERMUTATIONS))
        verdict = "no difference" if p >= LEVEL / len(labels) else "more" if mean > null.mean() else "less"
        rows.append(_row(label, effect, own, mean, values[others], (mean - null.mean()) / spread, p, verdict))
    return rows


def _row(
    label: str, effect: str, own: np.ndarray, mean: float, others: np.ndarray, z: float, p: float, verdict: str
) -> dict[str, Any]:
    return {
        "label": label,
        "effect": effect,
        "heads": int(own.sum()),
        "mean": mean,
        "others": others.mean() if len(others) else np.nan,
        "z": z,
        "p": p,
        "verdict": verdict,
    }


def _within_layers(
    layers: np.ndarray, values: np.ndarray, order: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """The values permuted among the heads of each layer."""
    shuffled = np.lexsort((generator.random(len(values)), layers))
    permuted = np.empty_like(values)
    permuted[order] = values[shuffled]
    return permuted


def estimate_agreement(heads: pd.DataFrame, prefix: str = "") -> tuple[float, int]:
    """Rank correlation of estimates (gradient_loss) with exact effects (ablation_loss), and over how many heads."""
    names = [f"{prefix}gradient_loss", f"{prefix}ablation_loss"]
    if not all(name in heads for name in names):
        return float("nan"), 0
    both = heads[names].dropna().astype(float)
    correlation = both[names[0]].corr(both[names[1]], method="spearman") if len(both) > 2 else float("nan")
    return float(correlation), len(both)
