"""How much each rotary frequency contributes to every head's logits, and which frequencies could be frozen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from armillary.anatomy.description import Rotary
from armillary.anatomy.naming import recorded_title
from armillary.errors import ArmillaryError
from armillary.lenses.kinds import LayerKind, layer_kinds
from armillary.lenses.products import over

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

BAND = 3.0
"""A frequency is a band of a head if |q_f||k_f| is at least this many times the head's median."""


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """high_freq_share: share of the logits from frequencies that turn once or more within the text.

    still_share: share from channels that are not rotated. self_cosine, previous_cosine: mean of b_ij / (scale
    |q_i||k_j|) on the diagonal and at distance 1 (Cauchy-Schwarz tightness). rotation_change: squared change of the
    logits if all frequencies were frozen (sum over frequencies), over the logits' sum of squares.
    """
    if not has_rotation(atlas):
        return pd.DataFrame()
    arrays = frequency_arrays(atlas)
    high = np.where(arrays.turns >= 1, arrays.share, 0.0).sum(-1)
    known = np.isfinite(arrays.radians).any(-1)[:, None]
    rotary = atlas.group("rotary")
    columns = {
        "high_freq_share": np.where(known, high, np.nan),
        "still_share": np.where(known & (arrays.still_width > 0)[:, None], arrays.still, np.nan),
        "self_cosine": rotary["self_cosine"].to_numpy(),
        "previous_cosine": rotary["previous_cosine"].to_numpy(),
        "rotation_change": arrays.change.sum(-1),
    }
    return pd.DataFrame({name: values.reshape(-1) for name, values in columns.items()})


def has_frequencies(atlas: "Atlas") -> bool:
    """Whether the atlas has the arrays that this lens reads."""
    return atlas.has("rotary") and atlas.has("attention") and "channel_share" in atlas.group("attention")


def has_rotation(atlas: "Atlas") -> bool:
    """Whether any frequency of the model rotates q and k."""
    return has_frequencies(atlas) and bool(np.nansum(np.abs(atlas.group("rotary")["radians_per_token"].to_numpy())))


def rotary_kinds(atlas: "Atlas") -> list[LayerKind]:
    """The kinds of layers that rotate q and k; layers of one kind have the same frequencies and the same window."""
    return [kind for kind in layer_kinds(atlas) if kind.base is not None]


def kind_frequencies(atlas: "Atlas", kind: LayerKind) -> list[float]:
    """The rotary frequencies of a kind of layer, fastest first, as the model declares them."""
    position = atlas.anatomy.layers[kind.layers[0]].position
    assert isinstance(position, Rotary)
    return list(position.frequencies)


@dataclass(frozen=True)
class FrequencyArrays:
    """Shares and changes of every head and frequency; NaN in layers without rotary encoding.

    radians: angle per token; turns: full circles within the scanned text; share: of the logits; still: the share of
    the channels that are not rotated; change: squared change of the logits if this frequency were frozen, over the
    logits' sum of squares.
    """

    radians: Float[np.ndarray, "layer frequency"]
    turns: Float[np.ndarray, "layer 1 frequency"]
    share: Float[np.ndarray, "layer head frequency"]
    still: Float[np.ndarray, "layer head"]
    still_width: Float[np.ndarray, "layer"]
    change: Float[np.ndarray, "layer head frequency"]


def frequency_arrays(atlas: "Atlas") -> FrequencyArrays:
    """The arrays of an atlas of a rotary model."""
    if not has_frequencies(atlas):
        kinds = {type(layer.position).__name__ for layer in atlas.anatomy.layers if layer.position}
        if atlas.anatomy.missing:
            raise ArmillaryError(f"rotary frequencies are not known here: {atlas.anatomy.missing}")
        widths = {len(kind_frequencies(atlas, kind)) for kind in rotary_kinds(atlas)}
        if widths:
            if len(widths) > 1:
                raise ArmillaryError("layers of this model rotate unequal numbers of channels, which is not supported")
            raise ArmillaryError("this atlas has no rotary chunks", advice="scan with the streams attention and chunks")
        raise ArmillaryError(
            f"{recorded_title(atlas.attrs['model'])} has no rotary encoding"
            + (f" (its layers have {', '.join(sorted(kinds))})" if kinds else "")
            + ", so there are no frequencies"
        )
    attention, rotary = atlas.group("attention"), atlas.group("rotary")
    channels = attention["channel_share"].to_numpy()
    layers, heads, _ = channels.shape
    radians = rotary["radians_per_token"].to_numpy()
    if not np.nansum(np.abs(radians)):
        name = recorded_title(atlas.attrs["model"])
        raise ArmillaryError(f"all rotary frequencies of {name} are 0: it does not rotate q and k")
    count = radians.shape[1]
    share = np.full((layers, heads, count), np.nan)
    still = np.full((layers, heads), np.nan)
    still_width = np.zeros(layers)
    for layer, described in enumerate(atlas.anatomy.layers):
        if not isinstance(described.position, Rotary):
            continue
        rotated = channels[layer, :, described.position.channels]
        halves = rotated.reshape(heads, 2, count) if described.position.layout == "half" else None
        share[layer] = halves.sum(1) if halves is not None else rotated.reshape(heads, count, 2).sum(-1)
        own = channels[layer, :, : described.head_width]
        still[layer] = np.delete(own, described.position.channels, axis=-1).sum(-1)
        still_width[layer] = described.head_width - 2 * count
    square = attention["logit_square"].to_numpy()[..., None]
    change = rotary["change"].to_numpy() / np.where(square > 0, square, np.nan)  # NaN where all logits are 0
    turns = radians[:, None] * atlas.settings["length"] / (2 * np.pi)
    return FrequencyArrays(radians, turns, share, still, still_width, change)


def frequency_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every head and frequency; in partly rotary models also one for the channels that are not rotated.

    Frequencies are numbered within a layer: with another base the same number is another frequency. kind (window or
    global) and base of the layer, radians, turns (circles within the text), q_norm, k_norm, v_norm, share of the
    logits, self_tightness and previous_tightness (mean q_f.k_f over mean |q_f||k_f|), first_product and other_product
    (mean contribution for the text's first key and for other keys), change (relative squared change of the logits if
    the frequency were frozen).
    """
    arrays, rotary = frequency_arrays(atlas), atlas.group("rotary")
    layers, heads, count = arrays.share.shape
    group = heads // rotary.sizes["kv_head"]
    columns: dict[str, Any] = {
        "radians": np.broadcast_to(arrays.radians[:, None], arrays.share.shape),
        "turns": np.broadcast_to(arrays.turns, arrays.share.shape),
        "q_norm": rotary["q_norm"].to_numpy(),
        **{f"{part}_norm": np.repeat(rotary[f"{part}_norm"].to_numpy(), group, axis=1) for part in ("k", "v")},
        "share": arrays.share,
        **{
            f"{name}_tightness": over(rotary[f"{name}_product"].to_numpy(), rotary[f"{name}_bound"].to_numpy())
            for name in ("self", "previous")
        },
        **{name: rotary[name].to_numpy() for name in ("first_product", "other_product")},
        "change": arrays.change,
    }
    layer, head, frequency = np.meshgrid(*(np.arange(n) for n in (layers, heads, count)), indexing="ij")
    table = pd.DataFrame({"layer": layer.ravel(), "head": head.ravel(), "frequency": frequency.ravel()})
    table = table.assign(**{name: np.asarray(values).ravel() for name, values in columns.items()})
    if arrays.still_width.any():
        layer, head = np.meshgrid(np.arange(layers), np.arange(heads), indexing="ij")
        rest = pd.DataFrame({"layer": layer.ravel(), "head": head.ravel(), "frequency": pd.NA, "radians": 0.0})
        rest = rest.assign(turns=0.0, share=arrays.still.ravel(), change=0.0)
        table = pd.concat([table.astype({"frequency": "Int64"}), rest.astype({"frequency": "Int64"})])
    table = table[table["radians"].notna()]
    kinds = {layer: kind for kind in rotary_kinds(atlas) for layer in kind.layers}
    of_layer = [kinds[int(layer)] for layer in table["layer"]]
    table.insert(2, "kind", [kind.kind for kind in of_layer])
    table.insert(3, "base", [kind.base for kind in of_layer])
    return table.sort_values(["layer", "head", "frequency"], ignore_index=True, kind="stable")


def frequency_grid(table: pd.DataFrame, rows: str, column: str) -> pd.DataFrame:
    """A column of frequency_table as a grid of layers or heads by frequency, mean over the other axis."""
    return table.pivot_table(index=rows, columns="frequency", values=column, aggfunc="mean")


def bands(atlas: "Atlas") -> pd.DataFrame:
    """The frequencies with the largest norms in each head: |q_f||k_f| at least BAND times the head's median.

    times: |q_f||k_f| over the median; share; mean contribution for the first token and for other keys; stable_distance:
    tokens within which the frequency turns by less than a quarter circle.
    """
    table = frequency_table(atlas)
    table = table[table["q_norm"].notna()]
    norm = table["q_norm"] * table["k_norm"]
    median = norm.groupby([table["layer"], table["head"]]).transform("median")
    table = table.assign(times=norm / median, stable_distance=np.pi / 2 / table["radians"].where(table["radians"] > 0))
    columns = [
        "layer",
        "head",
        "kind",
        "base",
        "frequency",
        "radians",
        "turns",
        "times",
        "share",
        "first_product",
        "other_product",
    ]
    selected = table[table["times"] >= BAND][[*columns, "stable_distance"]]
    return selected.sort_values("times", ascending=False, ignore_index=True)


@dataclass(frozen=True)
class RecommendedP:
    """The smallest fraction p of frequencies, fastest first, that must rotate, and the cost of freezing the others.

    kept: number of frequencies that rotate; cost: squared change of the logits over their sum of squares, mean over
    heads; worst_head and worst_cost: the head with the largest cost.
    """

    p: float
    kept: int
    frequencies: int
    cost: float
    worst_head: str
    worst_cost: float


def truncation_costs(atlas: "Atlas", *, reversed: bool = False) -> Float[np.ndarray, "layer head kept"]:
    """cost[..., n]: relative squared change of a head's logits if only the n fastest (or slowest) frequencies rotate.

    A sum over the frozen frequencies, without cross terms between them.
    """
    change = frequency_arrays(atlas).change
    ordered = change if reversed else change[..., ::-1]
    frozen = np.concatenate([np.zeros((*change.shape[:2], 1)), np.cumsum(ordered, axis=-1)], axis=-1)
    return np.asarray(frozen[..., ::-1])


@dataclass(frozen=True)
class TruncationCosts:
    """truncation_costs of one kind of layer: the mean over its heads, and the largest."""

    kind: LayerKind
    mean: Float[np.ndarray, "kept"]
    most: Float[np.ndarray, "kept"]


def costs_by_kind(atlas: "Atlas", kinds: Sequence[LayerKind]) -> list[TruncationCosts]:
    """What freezing the slowest frequencies costs the heads of each of these kinds of layers."""
    costs = truncation_costs(atlas)
    by_kind = [(kind, costs[list(kind.layers)]) for kind in kinds]
    return [TruncationCosts(kind, np.nanmean(own, axis=(0, 1)), np.nanmax(own, axis=(0, 1))) for kind, own in by_kind]


def recommended_p(atlas: "Atlas", share: float = 0.99, layers: Sequence[int] | None = None) -> RecommendedP:
    """The smallest p-RoPE fraction that keeps this share of the logits' variance, mean over the heads of these layers.

    Without `layers`, one p for all layers; use recommended_by_kind where layers have different bases.
    """
    if not 0 < share <= 1:
        raise ArmillaryError(
            f"a share of {share} cannot be kept",
            advice="give a number above 0, at most 1",
            given=share,
            expected="above 0, at most 1",
        )
    costs = truncation_costs(atlas)
    if layers is not None:
        costs = np.where(np.isin(np.arange(len(costs)), layers)[:, None, None], costs, np.nan)
    if np.isnan(costs).all():
        raise ArmillaryError("all heads of these layers have constant logits: p cannot be recommended")
    mean = np.nanmean(costs, axis=(0, 1))
    kept = int(np.argmax(mean <= 1 - share + 1e-12))
    layer, head = np.unravel_index(int(np.nanargmax(costs[..., kept])), costs.shape[:2])
    count = costs.shape[-1] - 1
    worst = float(costs[layer, head, kept])
    return RecommendedP(kept / count, kept, count, float(mean[kept]), f"{layer}.{head}", worst)


def recommended_by_kind(atlas: "Atlas", share: float = 0.99) -> list[tuple[LayerKind, RecommendedP]]:
    """The recommended p of every rotary kind of layer: each base has its own frequencies, and so its own p.

    Kinds in which all heads have constant logits are left out.
    """
    change = frequency_arrays(atlas).change
    varying = [kind for kind in rotary_kinds(atlas) if np.isfinite(change[list(kind.layers)]).any()]
    return [(kind, recommended_p(atlas, share, kind.layers)) for kind in varying]


def recommended_rows(recommended: Sequence[tuple[LayerKind, RecommendedP]]) -> list[dict[str, Any]]:
    """The result of recommended_by_kind as plain data, for JSON."""
    return [
        {"kind": kind.kind, "window": kind.window, "base": kind.base, "layers": list(kind.layers), **vars(best)}
        for kind, best in recommended
    ]
