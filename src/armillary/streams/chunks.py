"""How long the two-dimensional chunks of q, k and v are that each rotary frequency turns."""

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Rotary
from armillary.streams.stream import State, wide
from armillary.view import AttentionView


class ChunkNorms:
    """Mean length of every frequency's chunk of q, k and v (v, which is not rotated, as control), kept positions.

    `rotary` is each layer's encoding; a layer without one is not measured.
    """

    def __init__(self, rotary: tuple[Rotary | None, ...], skip: int) -> None:
        self.rotary = rotary
        self.skip = skip
        self.dims: dict[str, tuple[str, ...]] = {
            "q_norm": ("head", "frequency"),
            "k_norm": ("kv_head", "frequency"),
            "v_norm": ("kv_head", "frequency"),
        }

    def measure(self, batch: AttentionView) -> State:
        tokens = batch.q.shape[0] * (batch.queries - self.skip)
        rotary = self.rotary[batch.layer]
        assert rotary is not None
        sums = {f"{name}_norm": self._sum(rotary, getattr(batch, name)) for name in ("q", "k", "v")}
        return {"tokens": torch.tensor(float(tokens), dtype=torch.float64, device=batch.q.device), **sums}

    def _sum(self, rotary: Rotary, vectors: Float[Tensor, "batch head token e"]) -> Float[Tensor, "head frequency"]:
        chunks = pairs(rotary, wide(vectors[:, :, self.skip :]))
        return chunks.square().sum(-1).sqrt().sum((0, 2))

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {name: state[name] / state["tokens"] for name in ("q_norm", "k_norm", "v_norm")}


def pairs(rotary: Rotary, vectors: Float[Tensor, "*dims e"]) -> Float[Tensor, "*dims frequency 2"]:
    """The rotated channels as pairs, one for each frequency."""
    turned = vectors[..., : rotary.width]
    frequencies = len(rotary.frequencies)
    if rotary.layout == "interleaved":
        return turned.reshape(*turned.shape[:-1], frequencies, 2)
    return turned.reshape(*turned.shape[:-1], 2, frequencies).transpose(-1, -2)
