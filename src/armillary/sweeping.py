"""A rotary model with other frequencies, one setting after the other: the loss of each, beside what a scan foretold."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Integer

from armillary.atlas import Atlas
from armillary.errors import ArmillaryError
from armillary.interventions import rotary
from armillary.interventions.trial import predicts
from armillary.lenses.rotary import RecommendedP, frequency_arrays, recommended_p, rotary_kinds, truncation_costs
from armillary.modes import evaluating
from armillary.theory.rotary import kept_count

SWEPT = ("p", "base", "partial")


@dataclass(frozen=True)
class Sweep:
    """A row per value: the loss in nats per token, and for p what the frequency shares foretold, both ways round."""

    what: str
    table: pd.DataFrame
    recommended: RecommendedP


def parse_sweep(text: str) -> tuple[str, list[float]]:
    """'p=1,0.75,0.5' as its name and values."""
    name, equals, values = text.partition("=")
    if name.strip() not in SWEPT or not equals:
        raise ArmillaryError(f"--sweep {text} is not known: write it as in p=1,0.75,0.5 (or base=..., partial=...)")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise ArmillaryError(f"--sweep {text} has something that is no number: write it as in p=1,0.75,0.5")
    return name.strip(), numbers


def check_sweep(model: Any, what: str, values: Sequence[float], *, of_base: float | None = None) -> None:
    """Raise before any long work if a value makes no encoding, or the model predicts nothing."""
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
    track: Callable[[Sequence[float], str], Any] = lambda values, what: values,
) -> Sweep:
    """The loss of `model` on the atlas's own blocks under each setting; p is also tried from the slow end.

    predicted_cost and reversed_cost are the relative squared changes of the logits, mean over heads, that the atlas's
    frequency changes foretell; 'reversed' lets the slowest frequencies turn in place of the fastest. `of_base` changes
    only the layers that turn with this base; costs and the recommended p are then those of their heads.
    """
    if what not in SWEPT:
        raise ArmillaryError(f"{what} cannot be swept: there are {', '.join(SWEPT)}")
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
    for value in track(values, "settings"):
        with rotary(model, **{what: value, "of_base": of_base}):
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
    """Mean negative log-likelihood per predicted token over the blocks, in nats."""
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
