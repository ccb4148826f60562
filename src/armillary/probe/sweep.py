"""Sweep a model's rotary frequencies: the loss of each setting, and the change of the logits predicted by a scan."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Integer

from armillary.anatomy.modes import evaluating
from armillary.atlas.atlas import Atlas
from armillary.errors import ArmillaryError
from armillary.interventions import rotary
from armillary.lenses.rotary import RecommendedP, frequency_arrays, recommended_p, rotary_kinds, truncation_costs
from armillary.probe.trial import predicts
from armillary.progress import Progress
from armillary.theory.rotary import kept_count

SWEPT = ("p", "base", "partial")


@dataclass(frozen=True)
class Sweep:
    """A row per value: the loss in nats per token, and for p the predicted changes of the logits."""

    what: str
    table: pd.DataFrame
    recommended: RecommendedP


def parse_sweep(text: str) -> tuple[str, list[float]]:
    """'p=1,0.75,0.5' as its name and values."""
    name, equals, values = text.partition("=")
    if name.strip() not in SWEPT or not equals:
        raise ArmillaryError(
            f"`sweep={text}` is not known", advice="write it as in p=1,0.75,0.5 (or base=..., partial=...)"
        )
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise ArmillaryError(f"`sweep={text}` has a value that is not a number", advice="write it as in p=1,0.75,0.5")
    return name.strip(), numbers


def check_sweep(model: Any, what: str, values: Sequence[float], *, of_base: float | None = None) -> None:
    """Raise before any long work if a value is invalid, or the model does not predict the next token."""
    if not predicts(model):
        raise ArmillaryError(f"{type(model).__name__} does not predict the next token: a sweep has no loss to compare")
    for value in values:
        setting: dict[str, Any] = {what: value, "of_base": of_base}
        with rotary(model, **setting):
            pass


def sweep(
    model: Any,
    atlas: Atlas,
    what: str,
    values: Sequence[float],
    *,
    of_base: float | None = None,
    batch: int = 8,
    progress: Progress | None = None,
) -> Sweep:
    """The loss of `model` on the atlas's sequences under each setting; for p also with the slowest frequencies.

    predicted_cost and reversed_cost are the relative squared changes of the logits, mean over heads, predicted from
    the atlas's frequency changes; 'reversed' rotates the slowest frequencies in place of the fastest. `of_base` changes
    only the layers with this base; costs and the recommended p are then those of their heads.
    """
    if what not in SWEPT:
        raise ArmillaryError(
            f"{what} cannot be swept", advice=f"there are {', '.join(SWEPT)}", given=what, expected=tuple(SWEPT)
        )
    arrays = frequency_arrays(atlas)
    if not predicts(model):
        raise ArmillaryError(f"{type(model).__name__} does not predict the next token: a sweep has no loss to compare")
    tokens = atlas.group("corpus")["tokens"].to_numpy()
    count = arrays.change.shape[-1]
    layers = [layer for kind in rotary_kinds(atlas) if of_base in (None, kind.base) for layer in kind.layers]
    forward, backward = (
        np.nanmean(truncation_costs(atlas, reversed=reversed)[layers], axis=(0, 1)) for reversed in (False, True)
    )
    rows = []
    for value in (progress or Progress()).each(values, "settings"):
        setting: dict[str, Any] = {what: value}
        with rotary(model, **setting, of_base=of_base):
            row: dict[str, float | int] = {what: value, "loss": block_loss(model, tokens, batch)}
        if what == "p":
            kept = kept_count(value, count)
            with rotary(model, p=value, reversed=True, of_base=of_base):
                row |= {"kept": kept, "reversed_loss": block_loss(model, tokens, batch)}
            row |= {"predicted_cost": float(forward[kept]), "reversed_cost": float(backward[kept])}
        rows.append(row)
    return Sweep(what, pd.DataFrame(rows), recommended_p(atlas, layers=layers))


@torch.no_grad()
def block_loss(model: Any, tokens: Integer[np.ndarray, "sequence token"], batch: int = 8) -> float:
    """Mean negative log-likelihood per predicted token over the sequences, in nats."""
    device = next(model.parameters()).device
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    total = 0.0
    with evaluating(model):
        for start in range(0, len(tokens), batch):
            ids = torch.from_numpy(tokens[start : start + batch].astype(np.int64)).to(device)
            logits, following = model(input_ids=ids, **options).logits[:, :-1].float(), ids[:, 1:]
            total += float(
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum")
            )
    return total / float(tokens.shape[0] * (tokens.shape[1] - 1))
