"""What heads with random weights would show in a trained head's place: the null model that labels are held against."""

from dataclasses import replace

import torch
from torch import Tensor

from armillary.anatomy.description import Anatomy
from armillary.anatomy.rebuild import queries_and_keys
from armillary.anatomy.weights import LayerWeights
from armillary.streams.stream import State, Statistic
from armillary.view import AttentionView


class OfRandomHeads:
    """A statistic of heads that read the same input with random W_q and W_k; a result for every draw of the weights.

    Only the head itself is random: it reads what the trained model computed, so draws cost a projection and no run of
    the model. Position biases (ALiBi, T5) stay: what they alone make of a head is nothing that it learned.
    """

    def __init__(self, statistic: Statistic, anatomy: Anatomy, draws: int, seed: int) -> None:
        self.statistic = statistic
        self.anatomy = anatomy
        self.draws = draws
        self.seed = seed
        self.dims: dict[str, tuple[str, ...]] = {name: ("draw", *dims) for name, dims in statistic.dims.items()}

    def measure(self, batch: AttentionView) -> State:
        each = [self.statistic.measure(self._random(batch, draw)) for draw in range(self.draws)]
        return {f"{draw}.{name}": tensor for draw, state in enumerate(each) for name, tensor in state.items()}

    def _random(self, view: AttentionView, draw: int) -> AttentionView:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + view.layer) * 1_009 + draw)
        weights = random_weights(self.anatomy.weights(view.layer), generator)
        assert view.x is not None
        x = view.x.to(torch.promote_types(view.x.dtype, torch.float32))
        positions = torch.arange(view.queries, device=x.device)
        q, k = queries_and_keys(self.anatomy.layers[view.layer], weights, x, positions)
        return replace(view, q=q, k=k, output=None)

    def combine(self, a: State, b: State) -> State:
        found: State = {}
        for draw in range(self.draws):
            both = self.statistic.combine(_of_draw(a, draw), _of_draw(b, draw))
            found |= {f"{draw}.{name}": tensor for name, tensor in both.items()}
        return found

    def finish(self, state: State) -> dict[str, Tensor]:
        each = [self.statistic.finish(_of_draw(state, draw)) for draw in range(self.draws)]
        return {name: torch.stack([found[name] for found in each]) for name in each[0]}


def _of_draw(state: State, draw: int) -> State:
    return {name.removeprefix(f"{draw}."): t for name, t in state.items() if name.startswith(f"{draw}.")}


def random_weights(weights: LayerWeights, generator: torch.Generator) -> LayerWeights:
    """Gaussian W_q, W_k and their biases, each with the Frobenius norm of the trained one; all else as it is."""

    def noise(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        drawn = [torch.randn(tensor.shape, generator=generator) for tensor in tensors]
        return tuple(
            (new * (old.float().norm().cpu() / new.norm())).to(old.device)
            for new, old in zip(drawn, tensors, strict=True)
        )

    return replace(
        weights,
        q=noise(weights.q),
        k=noise(weights.k),
        q_bias=None if weights.q_bias is None else noise(weights.q_bias),
        k_bias=None if weights.k_bias is None else noise(weights.k_bias),
    )
