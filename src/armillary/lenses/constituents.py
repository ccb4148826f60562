"""What makes a head's logits: position, content or their mixture, over the corpus and for one text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float

from armillary.errors import ArmillaryError
from armillary.streams.constituents import TERMS, LogitParts, Means
from armillary.theory.smoothness import dct_energy

if TYPE_CHECKING:
    from armillary.atlas import Atlas

POSITIONAL = tuple(term for term in TERMS if "cvec" not in term)
CONTENT = ("cvec_cvec",)
PREFERENCE = ("mean_cvec", "pos_cvec")
MIXED = tuple(term for term in TERMS if "cvec" in term and term not in CONTENT)


def head_columns(atlas: "Atlas") -> pd.DataFrame:
    """share_* of every head, and their folds: positional (no cvec, and the bias), content (cvec-cvec), mixed.

    preference_share is the part of mixed in which the key alone brings content: the same keys for every query.
    """
    if not atlas.has("constituents"):
        return pd.DataFrame()
    found = atlas.group("constituents")
    table = pd.DataFrame({f"share_{term}": found[f"share_{term}"].to_numpy().reshape(-1) for term in TERMS})
    for name, terms in (
        ("positional", POSITIONAL),
        ("content", CONTENT),
        ("mixed", MIXED),
        ("preference", PREFERENCE),
    ):
        table[f"{name}_share"] = table[[f"share_{term}" for term in terms]].sum(axis=1, skipna=False)
    positions = [layer["position"] for layer in atlas.attrs["anatomy"]["layers"] for _ in range(layer["heads"])]
    biased = [position is not None and position["kind"] in ("Alibi", "RelativeBias") for position in positions]
    table["share_bias"] = table["share_bias"].where(np.array(biased))  # where a model has no bias, its share is missing
    table["constituent_error"] = found["error"].to_numpy().reshape(-1)
    geometry = atlas.group("geometry")
    table["argmax_ratio"] = geometry["argmax_ratio"].to_numpy().reshape(-1)
    table["pwp_energy_10"] = geometry["pwp_energy"].sel(frequencies=10).to_numpy().reshape(-1)
    table["qk_energy_10"] = qk_energy(atlas, 10).reshape(-1)
    return table


def qk_energy(atlas: "Atlas", k: int) -> Float[np.ndarray, "layer head"]:
    """Low-frequency share of the mean logits over kept positions, those behind a causal mask included."""
    return dct_energy(atlas.group("constituents")["mean_logits"].to_numpy(), k)


@dataclass(frozen=True)
class TextConstituents:
    """One head on one text: the ten terms of its logits, their sum, and its attention; (query, key) each."""

    tokens: tuple[str, ...]
    layer: int
    head: int
    terms: dict[str, Float[np.ndarray, "query key"]]
    logits: Float[np.ndarray, "query key"]
    attention: Float[np.ndarray, "query key"]
    visible: Bool[np.ndarray, "query key"]

    @property
    def main_positional(self) -> str:
        """The term without content that varies most along the rows."""

        def variation(term: str) -> float:
            rows = [self.terms[term][i][seen] for i, seen in enumerate(self.visible)]
            return float(sum(np.square(row - row.mean()).sum() for row in rows if len(row)))

        return max(POSITIONAL, key=variation)

    def folded(self, *, with_mean: bool = True) -> dict[str, Float[np.ndarray, "query key"]]:
        """positional, content and mixed sums of the terms; without the mean, the four terms that Song shows."""
        if not with_mean:
            return {name: self.terms[name] for name in ("pos_pos", "pos_cvec", "cvec_pos", "cvec_cvec")}
        groups = {"positional": POSITIONAL, "mixed": MIXED, "content": CONTENT}
        return {name: np.sum([self.terms[term] for term in terms], axis=0) for name, terms in groups.items()}


def means_of(atlas: "Atlas") -> Means:
    """Mean and positional part of the attention input, from an atlas."""
    if not atlas.has("input") or "positions" not in atlas.settings["streams"]:
        raise ArmillaryError(
            "this atlas lacks the means of the attention input, which constituents need: scan with "
            "--streams positions,constituents,..."
        )
    mean = torch.from_numpy(atlas.group("input")["position_mean"].to_numpy())
    return Means(mean, atlas.settings["skip"])


def text_constituents(atlas: "Atlas", model: Any, tokenizer: Any, layer: int, head: int, text: str) -> TextConstituents:
    """The constituents of one head on one text; a text may be as long as the atlas's blocks."""
    from armillary.corpus import special_tokens
    from armillary.layout import entry
    from armillary.modes import evaluating
    from armillary.tap import Tap

    layers = atlas.attrs["anatomy"]["layers"]
    if not 0 <= layer < len(layers) or not 0 <= head < layers[layer]["heads"]:
        raise ArmillaryError(
            f"there is no head {layer}.{head}: this model has layers 0 to {len(layers) - 1} "
            f"with heads 0 to {layers[0]['heads'] - 1}"
        )
    before, after = special_tokens(tokenizer, atlas.settings["bos"])
    ids = [*before, *tokenizer(text, add_special_tokens=False)["input_ids"], *after]
    if not 2 <= len(ids) <= atlas.settings["length"]:
        raise ArmillaryError(
            f"the text has {len(ids)} tokens, but with this atlas it may have 2 to {atlas.settings['length']}, the "
            "positions that were scanned: shorten it, or scan with a larger --length"
        )
    found: list[TextConstituents] = []
    names = tuple(tokenizer.decode([token]) for token in ids)

    def receive(view: Any) -> None:
        if view.layer == layer and not found:
            parts = LogitParts(tap.anatomy, means, view)
            terms = {
                name: term[0, head].cpu().numpy() for name, term in zip(TERMS, parts.terms(slice(None)), strict=True)
            }
            seen = view.visible().expand(1, view.heads, -1, -1)[0, head].cpu().numpy()
            logits, attention = (m[0, head].double().cpu().numpy() for m in (view.logits(), view.attention()))
            found.append(TextConstituents(names, layer, head, terms, logits, attention, seen))

    tap, means = Tap(model, receive), means_of(atlas)
    if tap.anatomy.missing:
        raise ArmillaryError(tap.anatomy.missing)
    with torch.no_grad(), evaluating(model), tap:
        entry(model)(input_ids=torch.tensor([ids], device=next(model.parameters()).device))
    return found[0]
