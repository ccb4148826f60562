"""How one head uses its rotary frequencies on one text, token by token."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from armillary.anatomy.description import Rotary
from armillary.anatomy.layout import entry
from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView
from armillary.streams.chunks import pairs


@dataclass(frozen=True)
class TokenFrequencies:
    """One head on one text: the norms of its chunks of q and k, by token and frequency."""

    tokens: tuple[str, ...]
    q: Float[np.ndarray, "token frequency"]
    k: Float[np.ndarray, "token frequency"]


def token_frequencies(model: Any, tokenizer: Any, layer: int, head: int, text: str) -> TokenFrequencies:
    """Run one text and return the norms of one head's chunks (Barbero's Figures 5 and 6)."""
    anatomy = describe(model)
    described = anatomy.layers[layer]
    if not isinstance(described.position, Rotary):
        raise ArmillaryError(f"layer {layer} of this {anatomy.family} model has no rotary encoding")
    rotary = described.position
    ids = tokenizer(text, return_tensors="pt")["input_ids"].to(next(model.parameters()).device)
    anatomy.check_length(ids.shape[1])
    norms: dict[str, Float[np.ndarray, "token frequency"]] = {}

    def keep(view: AttentionView) -> None:
        if view.layer == layer:
            for name, part in (("q", view.q[0, head]), ("k", view.k[0, described.kv_head(head)])):
                norms[name] = pairs(rotary, part.float()).norm(dim=-1).cpu().double().numpy()

    with torch.no_grad(), evaluating(model), Tap(model, keep):
        entry(model)(input_ids=ids)
    names = tuple(tokenizer.decode([token]) for token in ids[0].tolist())
    return TokenFrequencies(names, norms["q"], norms["k"])
