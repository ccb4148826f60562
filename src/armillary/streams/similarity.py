"""How alike the tokens of a sequence are: mean cosine, and the distance to a matrix whose rows are all the same."""

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.streams.stream import State, wide
from armillary.view import AttentionView


class TokenSimilarity:
    """Of a sequence's kept vectors h_t: the mean cosine over pairs t != t', and |H - 1 mean'|_F / |H|_F; means over
    sequences. The distance is 0 when all tokens are one vector (rank collapse) and 1 when their mean is zero.
    """

    def __init__(self, skip: int) -> None:
        self.skip = skip
        self.dims: dict[str, tuple[str, ...]] = {"token_cosine": (), "rank_one_distance": ()}

    def measure(self, batch: Float[Tensor, "sequence position width"]) -> State:
        h = wide(batch[:, self.skip :])
        t = h.shape[1]
        unit = torch.nn.functional.normalize(h, dim=-1)
        cosine = (unit.sum(1).square().sum(-1) - unit.square().sum((1, 2))) / (t * (t - 1))
        return {
            "sequences": torch.tensor(float(len(h)), dtype=torch.float64, device=h.device),
            "token_cosine": cosine.sum(),
            "rank_one_distance": rank_one_distance(h).sum(),
        }

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {name: state[name] / state["sequences"] for name in ("token_cosine", "rank_one_distance")}


class OutputRank:
    """Of every head's mixed values z_t = sum_j a_tj v_j, before the output matrix: the mean distance to rank one."""

    def __init__(self, skip: int) -> None:
        self.skip = skip
        self.dims: dict[str, tuple[str, ...]] = {"rank_one_distance": ("head",)}

    def measure(self, batch: AttentionView) -> State:
        mixed = batch.output if batch.output is not None else batch.mixed_values()
        z = wide(mixed[:, self.skip :]).transpose(1, 2)
        count = torch.tensor(float(len(z)), dtype=torch.float64, device=z.device)
        return {"sequences": count, "rank_one_distance": rank_one_distance(z).sum(0)}

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {"rank_one_distance": state["rank_one_distance"] / state["sequences"]}


def rank_one_distance(h: Float[Tensor, "*batch token width"]) -> Float[Tensor, "*batch"]:
    """|H - 1 mean'|_F / |H|_F, H with a row per token; 0 for a matrix of zeros."""
    total = h.square().sum((-2, -1))
    left = (h - h.mean(-2, keepdim=True)).square().sum((-2, -1))
    return (left / total.clamp(min=torch.finfo(h.dtype).tiny)).sqrt()
