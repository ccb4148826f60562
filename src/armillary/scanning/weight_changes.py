"""Reads two models of one shape, layer by layer, and computes how their weights differ (lenses/weight_changes.py)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.naming import title
from armillary.anatomy.source import describe
from armillary.anatomy.weights import LayerWeights
from armillary.atlas.arrays import Arrays, labeled
from armillary.errors import ArmillaryError
from armillary.lenses.spectral import random_like
from armillary.lenses.weight_changes import change_table, head_changes, matrix_change
from armillary.progress import Progress
from armillary.streams.stream import stacked

PREFIX = "change."


def change_arrays(
    changed: Anatomy, base: Anatomy, layer: int, *, matrices: bool = True, seed: int = 0, delta: bool = False
) -> dict[str, Tensor]:
    """How one layer differs from the same layer of `base`; with `delta`, `changed` holds the differences themselves."""
    before, after = base.weights(layer), changed.weights(layer)
    difference = after if delta else _difference(after, before)
    _refuse_not_finite(before, "before the change", layer)
    _refuse_not_finite(difference, "in the change", layer)
    noise = random_like(difference, (seed * 1_000_003 + layer + 500_001) % 2**63)
    arrays = {
        f"{PREFIX}{name}": values
        for name, values in head_changes(base.layers[layer], before, difference, noise).items()
    }
    arrays[f"{PREFIX}heads"] = torch.tensor(base.layers[layer].heads)
    del before, after, difference
    pairs = zip(base.matrices(layer), changed.matrices(layer), strict=True) if matrices else ()
    for (name, old), (other, new) in pairs:
        if name != other or old.shape != new.shape:
            raise ArmillaryError(
                f"layer {layer} has {other} of shape {tuple(new.shape)}, the other model {name} of {tuple(old.shape)}",
                advice="compare models of one shape",
            )
        wide = old.double()
        facts = matrix_change(wide, new.double() if delta else new.double() - wide)
        arrays |= {f"{PREFIX}{name}_{fact}": values for fact, values in facts.items()}
        arrays[f"{PREFIX}shape.{name}"] = torch.tensor(old.shape)
    return arrays


def change_group(layers: list[dict[str, Tensor]]) -> tuple[Arrays, dict[str, Any]]:
    """The group 'weight_changes' of an atlas from its layers: arrays, and attributes with heads and shapes."""
    of_change = [
        {name.removeprefix(PREFIX): values for name, values in layer.items() if name.startswith(PREFIX)}
        for layer in layers
    ]
    names = dict.fromkeys(name for layer in of_change for name in layer if name != "heads" and "." not in name)
    arrays: Arrays = {}
    for name in names:
        present = next(layer[name] for layer in of_change if name in layer)
        missing = torch.full((0,) * present.dim() if present.dim() else (), torch.nan, dtype=torch.float64)
        values = stacked([layer.get(name, missing) for layer in of_change], ()).numpy()
        component = f"component_{name.removesuffix('_singular').removesuffix('_squared')}"
        dims = ("layer", "head", component) if name.startswith(("qk_", "ov_")) else ("layer", component)
        arrays[name] = (dims[: values.ndim], values)
    shapes = [
        {name.removeprefix("shape."): values.tolist() for name, values in layer.items() if name.startswith("shape.")}
        for layer in of_change
    ]
    return arrays, {"shapes": shapes, "heads": [int(layer["heads"]) for layer in of_change]}


def weight_changes(
    sources: Sequence[nn.Module | str | Path],
    *,
    matrices: bool = True,
    seed: int = 0,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """How weights change from each source to the next: consecutive checkpoints of a run, or a base and its fine-tunes.

    The rows of `weigh(later, against=earlier).weight_changes`, with the names of the two in the columns `since` and
    `checkpoint`. Folders, hub ids and loaded models; a layer of two of them is in memory at a time.
    """
    if len(sources) < 2:
        raise ArmillaryError(f"{len(sources)} checkpoint given", advice="a change needs two or more")
    names = [_name(source, number) for number, source in enumerate(sources)]
    progress = progress or Progress()
    progress.begin("comparing checkpoints", len(sources) - 1, "changes")
    described = [_described(source, trust_remote_code) for source in sources[:1]]
    tables = []
    for number, source in enumerate(sources[1:], start=1):
        described = [described[-1], _described(source, trust_remote_code)]
        base, changed = described
        refuse_other_shape(changed, base)
        layers = [change_arrays(changed, base, layer.index, matrices=matrices, seed=seed) for layer in base.layers]
        arrays, attributes = change_group(layers)
        table = change_table(labeled(arrays).assign_attrs(attributes))
        table.insert(0, "since", names[number - 1])
        table.insert(1, "checkpoint", names[number])
        tables.append(table)
        progress.advance(1)
    return pd.concat(tables, ignore_index=True)


def _described(source: nn.Module | str | Path, trust_remote_code: bool) -> Anatomy:
    if isinstance(source, nn.Module):
        return describe(source)
    return describe(source, trust_remote_code=trust_remote_code)


def _name(source: nn.Module | str | Path, number: int) -> str:
    return f"{number}" if isinstance(source, nn.Module) else title(str(source))


def refuse_other_shape(changed: Anatomy, base: Anatomy) -> None:
    """Raise if two models do not have the same layers, heads and widths."""
    ours, theirs = (
        {"layers": len(anatomy.layers)}
        | {
            f"{what} of layer {layer.index}": getattr(layer, what)
            for layer in anatomy.layers
            for what in ("heads", "kv_heads", "head_width")
        }
        | {"width": anatomy.d_model}
        for anatomy in (changed, base)
    )
    for what, value in ours.items():
        if theirs.get(what) != value:
            raise ArmillaryError(
                f"the two models have different shapes: {what} is {value} and {theirs.get(what)}",
                advice="give the model that this one was trained from",
                given=value,
                expected=theirs.get(what),
            )


def _difference(after: LayerWeights, before: LayerWeights) -> LayerWeights:
    """W_q, W_k, W_v and W_o after minus before, in float64; biases and norms are left out."""
    q, k, v, o = (
        tuple(
            new.detach().cpu().double() - old.detach().cpu().double()
            for new, old in zip(getattr(after, name), getattr(before, name), strict=True)
        )
        for name in ("q", "k", "v", "o")
    )
    return LayerWeights(q, k, v, o)


def _refuse_not_finite(weights: LayerWeights, where: str, layer: int) -> None:
    bad = weights.not_finite()
    if bad:
        raise ArmillaryError(
            f"layer {layer} holds NaN or infinite numbers {where}, in {', '.join(bad[:3])}",
            advice="repair the checkpoint",
        )
