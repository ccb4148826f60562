"""How similar the tokens of a sequence are: mean cosine, and the distance to a matrix whose rows are all the same."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.machine.compiler import serves
from armillary.machine.parallel import in_spans
from armillary.observe.precision import single, wide
from armillary.observe.view import AttentionView, exact_arithmetic
from armillary.streams.attention import ATTENTION
from armillary.streams.declaration import Declaration, Reads
from armillary.streams.moments import POSITIONS
from armillary.streams.stream import State


class TokenSimilarity:
    """For a sequence's kept vectors h_t: the mean cosine over pairs t != t', and |H - 1 mean'|_F / |H|_F; means over
    sequences. The distance is 0 when all tokens are one vector (rank collapse) and 1 when their mean is zero.
    """

    def __init__(self, skip: int) -> None:
        self.skip = skip
        self.dims: dict[str, tuple[str, ...]] = {"token_cosine": (), "rank_one_distance": ()}

    def measure(self, batch: Float[Tensor, "sequence position width"]) -> State:
        h = batch[:, self.skip :]
        t = h.shape[1]
        mean, units, present = _sums(h)
        cosine = (units.square().sum(-1) - present) / (t * (t - 1))
        return {
            "sequences": torch.tensor(float(len(h)), dtype=torch.float64, device=mean.device),
            "token_cosine": cosine.sum(),
            "rank_one_distance": rank_one_distance(h, mean).sum(),
        }

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {name: state[name] / state["sequences"] for name in ("token_cosine", "rank_one_distance")}


class OutputRank:
    """For every head's mixed values z_t = sum_j a_tj v_j, before the output matrix: the mean distance to rank one."""

    def __init__(self, skip: int) -> None:
        self.skip = skip
        self.dims: dict[str, tuple[str, ...]] = {"rank_one_distance": ("head",)}

    def measure(self, batch: AttentionView) -> State:
        mixed = batch.output if batch.output is not None else batch.mixed_values()
        if serves(mixed):
            return self._compiled(single(mixed).contiguous())
        z = mixed[:, self.skip :].transpose(1, 2)  # (sequence, head, token, e)
        distances = rank_one_distance(z.flatten(0, 1)).view(z.shape[:2]).sum(0)
        count = torch.tensor(float(len(z)), dtype=torch.float64, device=distances.device)
        return {"sequences": count, "rank_one_distance": distances}

    def _compiled(self, mixed: Float[Tensor, "sequence token head e"]) -> State:
        """The same sums from one compiled loop."""
        # for start-up: it imports numba, which may be missing
        from armillary.streams.compiled_vectors import add_distances

        distances = np.zeros(mixed.shape[2])
        z = mixed.numpy()
        in_spans(lambda first, last: add_distances((first, last), z, self.skip, distances), len(distances))
        count = torch.tensor(float(len(mixed)), dtype=torch.float64)
        return {"sequences": count, "rank_one_distance": torch.from_numpy(distances)}

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {"rank_one_distance": state["rank_one_distance"] / state["sequences"]}


TOGETHER = 64
"""Tokens processed at once: they stay in the processor's cache, and sums of them are added in float64."""


def rank_one_distance(
    h: Float[Tensor, "sequence token width"], mean: Float[Tensor, "sequence width"] | None = None
) -> Float[Tensor, "sequence"]:
    """|H - 1 mean'|_F / |H|_F of each sequence, H with a row per token; 0 for a matrix of zeros."""
    parts = [single(part) for part in h.split(TOGETHER, 1)]
    if mean is None:
        mean = torch.stack([wide(part).sum(1) for part in parts]).sum(0) / h.shape[1]
    near = mean[:, None].to(parts[0])
    total = torch.stack([wide(part.square().sum(-1)).sum(-1) for part in parts]).sum(0)
    left = torch.stack([wide((part - near).square_().sum(-1)).sum(-1) for part in parts]).sum(0)
    left = left - h.shape[1] * (mean - wide(near[:, 0])).square().sum(-1)
    return (left.clamp(min=0) / total.clamp(min=torch.finfo(torch.float64).tiny)).sqrt()


def _sums(h: Float[Tensor, "sequence token width"]) -> tuple[Tensor, Tensor, Tensor]:
    """The mean vector of each sequence, the sum of its normalized vectors, and the number of nonzero ones."""
    sums, units, present = [], [], []
    for part in (single(part) for part in h.split(TOGETHER, 1)):
        length = part.square().sum(-1).sqrt_()
        inverse = torch.where(length > 0, 1 / length, 0.0)
        sums.append(wide(part).sum(1))
        with exact_arithmetic(part):
            units.append(wide((inverse[:, None] @ part)[:, 0]))
        present.append(wide((length > 0).sum(1)))
    mean, unit, count = (torch.stack(parts).sum(0) for parts in (sums, units, present))
    return mean / h.shape[1], unit, count


TOKENS = Declaration(
    "residual.tokens",
    POSITIONS,
    Reads.RESIDUAL,
    lambda context: TokenSimilarity(context.skip),
    lenses=("positional",),
    plain=True,
)
OUTPUTS = Declaration(
    "attention.output",
    ATTENTION,
    Reads.ATTENTION,
    lambda context: OutputRank(context.skip),
    lenses=("localization",),
    plain=True,
)
