"""The ten terms of one head's logits on one text, token by token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from armillary.anatomy.layout import entry
from armillary.anatomy.modes import evaluating
from armillary.errors import ArmillaryError
from armillary.lenses.constituents import CONTENT, MIXED, POSITIONAL, means_of
from armillary.observe.tap import Tap
from armillary.streams.constituents import TERMS, LogitParts
from armillary.text.sequences import special_tokens

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


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

    def centered(self, values: Float[np.ndarray, "query key"]) -> Float[np.ndarray, "query key"]:
        """Less the mean over the row's visible keys, which does not change attention; NaN at hidden keys."""
        seen = self.seen(values)
        return np.asarray(seen - np.nanmean(seen, axis=1, keepdims=True))

    def seen(self, values: Float[np.ndarray, "query key"]) -> Float[np.ndarray, "query key"]:
        """The values of visible keys; NaN elsewhere."""
        return np.where(self.visible, values, np.nan)

    def folded(self, *, with_mean: bool = True) -> dict[str, Float[np.ndarray, "query key"]]:
        """positional, content and mixed sums of the terms; without the mean, the four terms that Song shows."""
        if not with_mean:
            return {name: self.terms[name] for name in ("pos_pos", "pos_cvec", "cvec_pos", "cvec_cvec")}
        groups = {"positional": POSITIONAL, "mixed": MIXED, "content": CONTENT}
        return {name: np.sum([self.terms[term] for term in terms], axis=0) for name, terms in groups.items()}


def text_constituents(atlas: "Atlas", model: Any, tokenizer: Any, layer: int, head: int, text: str) -> TextConstituents:
    """The constituents of one head on one text, which may be as long as the atlas's sequences."""
    layers = atlas.anatomy.layers
    if not 0 <= layer < len(layers) or not 0 <= head < layers[layer].heads:
        raise ArmillaryError(
            f"there is no head {layer}.{head}: this model has layers 0 to {len(layers) - 1} "
            f"with heads 0 to {layers[0].heads - 1}"
        )
    before, after = special_tokens(tokenizer, atlas.settings["bos"])
    ids = [*before, *tokenizer(text, add_special_tokens=False)["input_ids"], *after]
    if not 2 <= len(ids) <= atlas.settings["length"]:
        raise ArmillaryError(
            f"the text has {len(ids)} tokens, but with this atlas it may have 2 to "
            f"{atlas.settings['length']}, the positions that were scanned",
            advice="shorten it, or scan with a larger `length`",
        )
    received: list[TextConstituents] = []
    names = tuple(tokenizer.decode([token]) for token in ids)

    def receive(view: Any) -> None:
        if view.layer == layer and not received:
            parts = LogitParts(tap.anatomy, means, view).terms(slice(None))
            terms = {name: term[0, head].cpu().numpy() for name, term in zip(TERMS, parts, strict=True)}
            seen = view.visible().expand(1, view.heads, -1, -1)[0, head].cpu().numpy()
            logits, attention = (m[0, head].double().cpu().numpy() for m in (view.logits(), view.attention()))
            received.append(TextConstituents(names, layer, head, terms, logits, attention, seen))

    tap, means = Tap(model, receive), means_of(atlas)
    if tap.anatomy.missing:
        raise ArmillaryError(tap.anatomy.missing)
    with torch.no_grad(), evaluating(model), tap:
        entry(model)(input_ids=torch.tensor([ids], device=next(model.parameters()).device))
    return received[0]
