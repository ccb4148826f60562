"""What each rotary frequency is used for, head by head, and which of them could stop turning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from armillary.errors import ArmillaryError
from armillary.lenses.kinds import LayerKind, layer_kinds
from armillary.lenses.products import over
from armillary.naming import recorded_title

if TYPE_CHECKING:
    from armillary.atlas import Atlas

BAND = 3.0
"""A frequency is a band of a head where |q_f||k_f| is so many times the head's median."""


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """high_freq_share: share of the logits by frequencies that turn once or more within the text; other columns too.

    self_cosine, previous_cosine: mean of b_ij / (scale |q_i||k_j|) on the diagonal and at distance 1 (Cauchy-Schwarz
    tightness); rotation_change: what the logits would lose if no frequency turned (sum over frequencies, over the
    logits' own sum of squares).
    """
    if not turns_at_all(atlas):
        return pd.DataFrame()
    found = frequency_arrays(atlas)
    high = np.where(found.turns >= 1, found.share, 0.0).sum(-1)
    known = np.isfinite(found.radians).any(-1)[:, None]
    rotary = atlas.group("rotary")
    columns = {
        "high_freq_share": np.where(known, high, np.nan),
        "still_share": np.where(known & (found.still_width > 0)[:, None], found.still, np.nan),
        "self_cosine": rotary["self_cosine"].to_numpy(),
        "previous_cosine": rotary["previous_cosine"].to_numpy(),
        "rotation_change": found.change.sum(-1),
    }
    return pd.DataFrame({name: values.reshape(-1) for name, values in columns.items()})


def has_frequencies(atlas: "Atlas") -> bool:
    """Whether the scan kept what this lens needs."""
    return atlas.has("rotary") and atlas.has("attention") and "channel_share" in atlas.group("attention")


def turns_at_all(atlas: "Atlas") -> bool:
    """Whether any frequency of the model turns."""
    return has_frequencies(atlas) and bool(np.nansum(np.abs(atlas.group("rotary")["radians_per_token"].to_numpy())))


def rotary_kinds(atlas: "Atlas") -> list[LayerKind]:
    """The kinds of layers that turn q and k: layers of one kind have the same frequencies and see the same keys."""
    return [kind for kind in layer_kinds(atlas) if kind.base is not None]


def kind_frequencies(atlas: "Atlas", kind: LayerKind) -> list[float]:
    """The frequencies that layers of a kind turn with, fastest first, as the model declares them."""
    return list(atlas.attrs["anatomy"]["layers"][kind.layers[0]]["position"]["frequencies"])


@dataclass(frozen=True)
class FrequencyArrays:
    """Shares and changes of every head and frequency; NaN in layers without rotary encoding.

    radians: turned per token; turns: whole circles within the scanned text; share: of the logits; still: the share of
    the channels that never turn; change: squared change of the logits if this frequency stood still, over theirs.
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
        kinds = {layer["position"]["kind"] for layer in atlas.attrs["anatomy"]["layers"] if layer["position"]}
        if atlas.attrs["anatomy"]["missing"]:
            raise ArmillaryError(f"rotary frequencies are not known here: {atlas.attrs['anatomy']['missing']}")
        if "Rotary" in kinds:
            widths = {len(kind_frequencies(atlas, kind)) for kind in rotary_kinds(atlas)}
            if len(widths) > 1:
                raise ArmillaryError("the layers of this model turn unequal numbers of channels: that is not measured")
            raise ArmillaryError("this atlas has no rotary chunks: scan with the streams attention and chunks")
        raise ArmillaryError(
            f"{recorded_title(atlas.attrs['model'])} has no rotary encoding"
            + (f" (its layers have {', '.join(sorted(kinds))})" if kinds else "")
            + ": there are no frequencies to look at"
        )
    attention, rotary = atlas.group("attention"), atlas.group("rotary")
    channels = attention["channel_share"].to_numpy()
    layers, heads, width = channels.shape
    radians = rotary["radians_per_token"].to_numpy()
    if not np.nansum(np.abs(radians)):
        name = recorded_title(atlas.attrs["model"])
        raise ArmillaryError(f"no frequency of {name} turns: it has no rotary encoding in use")
    count = radians.shape[1]
    share = np.full((layers, heads, count), np.nan)
    still = np.full((layers, heads), np.nan)
    still_width = np.zeros(layers)
    for layer, described in enumerate(atlas.attrs["anatomy"]["layers"]):
        if not described["position"] or described["position"]["kind"] != "Rotary":
            continue
        turned = channels[layer, :, : 2 * count]
        split = turned.reshape(heads, 2, count) if described["position"]["layout"] == "half" else None
        share[layer] = split.sum(1) if split is not None else turned.reshape(heads, count, 2).sum(-1)
        still[layer] = channels[layer, :, 2 * count :].sum(-1)
        still_width[layer] = width - 2 * count
    square = attention["logit_square"].to_numpy()[..., None]
    change = rotary["change"].to_numpy() / np.where(square > 0, square, np.nan)  # a head without logits has no shares
    turns = radians[:, None] * atlas.settings["length"] / (2 * np.pi)
    return FrequencyArrays(radians, turns, share, still, still_width, change)


def frequency_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every head and frequency; in partly rotary models also one for the channels that never turn.

    Frequencies are counted within a layer: the same number is another one where the base is another. kind (window or
    global) and base of the layer, radians, turns (circles within the text), q_norm, k_norm, v_norm, share of the
    logits, self_tightness and previous_tightness (mean q_f.k_f over mean |q_f||k_f|), first_product and other_product
    (mean contribution for the text's first key and for other keys), change (relative squared change of the logits if it
    stood still).
    """
    found, rotary = frequency_arrays(atlas), atlas.group("rotary")
    layers, heads, count = found.share.shape
    group = heads // rotary.sizes["kv_head"]
    arrays: dict[str, Any] = {
        "radians": np.broadcast_to(found.radians[:, None], found.share.shape),
        "turns": np.broadcast_to(found.turns, found.share.shape),
        "q_norm": rotary["q_norm"].to_numpy(),
        **{f"{part}_norm": np.repeat(rotary[f"{part}_norm"].to_numpy(), group, axis=1) for part in ("k", "v")},
        "share": found.share,
        **{
            f"{name}_tightness": over(rotary[f"{name}_product"].to_numpy(), rotary[f"{name}_bound"].to_numpy())
            for name in ("self", "previous")
        },
        **{name: rotary[name].to_numpy() for name in ("first_product", "other_product")},
        "change": found.change,
    }
    layer, head, frequency = np.meshgrid(*(np.arange(n) for n in (layers, heads, count)), indexing="ij")
    table = pd.DataFrame({"layer": layer.ravel(), "head": head.ravel(), "frequency": frequency.ravel()})
    table = table.assign(**{name: np.asarray(values).ravel() for name, values in arrays.items()})
    if found.still_width.any():
        layer, head = np.meshgrid(np.arange(layers), np.arange(heads), indexing="ij")
        rest = pd.DataFrame({"layer": layer.ravel(), "head": head.ravel(), "frequency": pd.NA, "radians": 0.0})
        rest = rest.assign(turns=0.0, share=found.still.ravel(), change=0.0)
        table = pd.concat([table.astype({"frequency": "Int64"}), rest.astype({"frequency": "Int64"})])
    table = table[table["radians"].notna()]
    kinds = {layer: kind for kind in rotary_kinds(atlas) for layer in kind.layers}
    of_layer = [kinds[int(layer)] for layer in table["layer"]]
    table.insert(2, "kind", [kind.kind for kind in of_layer])
    table.insert(3, "base", [kind.base for kind in of_layer])
    return table.sort_values(["layer", "head", "frequency"], ignore_index=True, kind="stable")


def bands(atlas: "Atlas") -> pd.DataFrame:
    """The frequencies on which a head spends most of its norm: |q_f||k_f| at least BAND times the head's median.

    With how many times that is (`times`), the frequency's share, what it contributes for the first token and for other
    keys, and the distance within which the band is a stable channel (a quarter turn).
    """
    table = frequency_table(atlas)
    table = table[table["q_norm"].notna()]
    norm = table["q_norm"] * table["k_norm"]
    median = norm.groupby([table["layer"], table["head"]]).transform("median")
    table = table.assign(times=norm / median, stable_distance=np.pi / 2 / table["radians"].where(table["radians"] > 0))
    kept = [
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
    found = table[table["times"] >= BAND][[*kept, "stable_distance"]]
    return found.sort_values("times", ascending=False, ignore_index=True)


@dataclass(frozen=True)
class RecommendedP:
    """The smallest fraction p of frequencies, fastest first, that must turn, and what stopping the others costs.

    cost: squared change of the logits over their own, mean over heads; worst_head: the head that loses most, and what.
    """

    p: float
    kept: int
    frequencies: int
    cost: float
    worst_head: str
    worst_cost: float


def truncation_costs(atlas: "Atlas", *, reversed: bool = False) -> Float[np.ndarray, "layer head kept"]:
    """cost[..., n]: relative squared change of a head's logits if only the n fastest (or slowest) frequencies turned.

    Sums over the frequencies that stop; what two of them change together is left out.
    """
    change = frequency_arrays(atlas).change
    ordered = change if reversed else change[..., ::-1]
    stopped = np.concatenate([np.zeros((*change.shape[:2], 1)), np.cumsum(ordered, axis=-1)], axis=-1)
    return np.asarray(stopped[..., ::-1])


def recommended_p(atlas: "Atlas", share: float = 0.99, layers: Sequence[int] | None = None) -> RecommendedP:
    """The smallest p-RoPE fraction that keeps this share of the logits' variance, mean over the heads of these layers.

    Without `layers` it is one p for all, which says little where layers turn with different bases: recommended_by_kind.
    """
    if not 0 < share <= 1:
        raise ArmillaryError(f"a share of {share} cannot be kept: give a number above 0, at most 1")
    costs = truncation_costs(atlas)
    if layers is not None:
        costs = np.where(np.isin(np.arange(len(costs)), layers)[:, None, None], costs, np.nan)
    if np.isnan(costs).all():
        raise ArmillaryError("no head of these layers has logits that vary: there is no share to keep")
    mean = np.nanmean(costs, axis=(0, 1))
    kept = int(np.argmax(mean <= 1 - share + 1e-12))
    layer, head = np.unravel_index(int(np.nanargmax(costs[..., kept])), costs.shape[:2])
    count = costs.shape[-1] - 1
    worst = float(costs[layer, head, kept])
    return RecommendedP(kept / count, kept, count, float(mean[kept]), f"{layer}.{head}", worst)


def recommended_by_kind(atlas: "Atlas", share: float = 0.99) -> list[tuple[LayerKind, RecommendedP]]:
    """The recommended p of every kind of layer that turns: each base has its own frequencies, and so its own p.

    A kind none of whose heads has logits that vary is left out.
    """
    change = frequency_arrays(atlas).change
    varying = [kind for kind in rotary_kinds(atlas) if np.isfinite(change[list(kind.layers)]).any()]
    return [(kind, recommended_p(atlas, share, kind.layers)) for kind in varying]


def recommended_rows(found: Sequence[tuple[LayerKind, RecommendedP]]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {"kind": kind.kind, "window": kind.window, "base": kind.base, "layers": list(kind.layers), **vars(best)}
        for kind, best in found
    ]


@dataclass(frozen=True)
class TokenFrequencies:
    """One head on one text: the lengths of its chunks of q and k, token by token, frequency by frequency."""

    tokens: tuple[str, ...]
    q: Float[np.ndarray, "token frequency"]
    k: Float[np.ndarray, "token frequency"]


def token_frequencies(model: Any, tokenizer: Any, layer: int, head: int, text: str) -> TokenFrequencies:
    """Run one text and look at one head's chunks (Barbero's Figures 5 and 6)."""
    import torch

    from armillary.anatomy.description import Rotary
    from armillary.anatomy.source import describe
    from armillary.layout import entry
    from armillary.modes import evaluating
    from armillary.streams.chunks import pairs
    from armillary.tap import Tap
    from armillary.view import AttentionView

    anatomy = describe(model)
    here = anatomy.layers[layer]
    if not isinstance(here.position, Rotary):
        raise ArmillaryError(f"layer {layer} of this {anatomy.family} model has no rotary encoding")
    rotary = here.position
    ids = tokenizer(text, return_tensors="pt")["input_ids"].to(next(model.parameters()).device)
    anatomy.check_length(ids.shape[1])
    seen: dict[str, Float[np.ndarray, "token frequency"]] = {}

    def keep(view: AttentionView) -> None:
        if view.layer == layer:
            for name, part in (("q", view.q[0, head]), ("k", view.k[0, here.kv_head(head)])):
                seen[name] = pairs(rotary, part.float()).norm(dim=-1).cpu().double().numpy()

    with torch.no_grad(), evaluating(model), Tap(model, keep):
        entry(model)(input_ids=ids)
    names = tuple(tokenizer.decode([token]) for token in ids[0].tolist())
    return TokenFrequencies(names, seen["q"], seen["k"])
