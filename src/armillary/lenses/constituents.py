"""How much of a head's logits is due to position, to content, or to both: the share_* columns."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from armillary.anatomy.description import Alibi, Disentangled, RelativeBias
from armillary.errors import ArmillaryError
from armillary.streams.constituents import TERMS, Means
from armillary.theory.smoothness import dct_energy

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

POSITIONAL = tuple(term for term in TERMS if "cvec" not in term)
CONTENT = ("cvec_cvec",)
PREFERENCE = ("mean_cvec", "pos_cvec")
MIXED = tuple(term for term in TERMS if "cvec" in term and term not in CONTENT)


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """share_* of every head, and their sums: positional (terms without cvec, and the bias), content (cvec-cvec), mixed.

    preference_share is the part of mixed in which only the key has content, so all queries prefer the same keys.
    """
    if not atlas.has("constituents"):
        return pd.DataFrame()
    arrays = atlas.group("constituents")
    table = pd.DataFrame({f"share_{term}": arrays[f"share_{term}"].to_numpy().reshape(-1) for term in TERMS})
    for name, terms in (
        ("positional", POSITIONAL),
        ("content", CONTENT),
        ("mixed", MIXED),
        ("preference", PREFERENCE),
    ):
        table[f"{name}_share"] = table[[f"share_{term}" for term in terms]].sum(axis=1, skipna=False)
    positions = [layer.position for layer in atlas.anatomy.layers for _ in range(layer.heads)]
    biased = [isinstance(position, Alibi | RelativeBias | Disentangled) for position in positions]
    table["share_bias"] = table["share_bias"].where(np.array(biased))  # missing where a layer has no bias
    table["constituent_error"] = arrays["error"].to_numpy().reshape(-1)
    geometry = atlas.group("geometry")
    table["argmax_ratio"] = geometry["argmax_ratio"].to_numpy().reshape(-1)
    table["pwp_energy_10"] = geometry["pwp_energy"].sel(frequencies=10).to_numpy().reshape(-1)
    table["qk_energy_10"] = qk_energy(atlas, 10).reshape(-1)
    return table


def qk_energy(atlas: "Atlas", k: int) -> Float[np.ndarray, "layer head"]:
    """Low-frequency share of the mean logits over kept positions, including those behind the causal mask."""
    return dct_energy(atlas.group("constituents")["mean_logits"].to_numpy(), k)


def means_of(atlas: "Atlas") -> Means:
    """Mean and positional part of the attention input, from an atlas."""
    if not atlas.has("input") or "positions" not in atlas.settings["streams"]:
        raise ArmillaryError(
            "this atlas lacks the means of the attention input, which constituents need",
            advice="scan with `streams=positions,constituents,...`",
        )
    mean = torch.from_numpy(atlas.group("input")["position_mean"].to_numpy())
    return Means(mean, atlas.settings["skip"])


def logit_parts(heads: pd.DataFrame) -> pd.DataFrame:
    """The parts of each head's logits: rotated mean, positional vectors, bias, mixed, content; they add to 1."""
    vectors = heads["share_mean_pos"] + heads["share_pos_mean"] + heads["share_pos_pos"]
    parts = {
        "rotated mean": heads["share_mean_mean"],
        "positional vectors": vectors,
        "bias": heads["share_bias"].fillna(0.0).where(vectors.notna()),
        "mixed": heads["mixed_share"],
        "content": heads["content_share"],
    }
    return pd.DataFrame(parts).astype(float)


def parts_by_layer(heads: pd.DataFrame) -> pd.DataFrame:
    """The parts of the logits of each layer, mean over its heads."""
    return logit_parts(heads).groupby(heads["layer"]).mean()
