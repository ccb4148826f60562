"""The null model of labels: the same statistics for heads with random weights in place of the trained heads."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from armillary.anatomy.description import Anatomy, Disentangled
from armillary.anatomy.weights import LayerWeights
from armillary.observe.precision import single
from armillary.observe.rebuild import distance_terms, queries_and_keys
from armillary.observe.view import AttentionView
from armillary.streams.declaration import Context, Declaration, Pass, Reads
from armillary.streams.patterns import PATTERNS, Masses, repeat_masses, text_masses
from armillary.streams.stream import State, Statistic


class OfRandomHeads:
    """A statistic of heads with random W_q and W_k on the same input; a result for every draw of the weights.

    Only the head is random: its input comes from the trained model, so a draw costs a projection and no forward pass.
    Position biases (ALiBi, T5) stay, because a pattern that comes from the bias alone is not learned by the head.
    """

    def __init__(self, statistic: Statistic, anatomy: Anatomy, draws: int, seed: int) -> None:
        self.statistic = statistic
        self.anatomy = anatomy
        self.draws = draws
        self.seed = seed
        self.dims: dict[str, tuple[str, ...]] = {name: ("draw", *dims) for name, dims in statistic.dims.items()}

    def measure(self, batch: AttentionView) -> State:
        states = [self.statistic.measure(view) for view in self._views(batch)]
        return {f"{draw}.{name}": tensor for draw, state in enumerate(states) for name, tensor in state.items()}

    def _views(self, view: AttentionView) -> Iterator[AttentionView]:
        """The view with q and k of random heads, one for every draw."""
        layer, trained = self.anatomy.layers[view.layer], self.anatomy.weights(view.layer)
        assert view.x is not None
        x, positions = single(view.x), torch.arange(view.queries, device=view.x.device)
        for draw in range(self.draws):
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + view.layer) * 1_009 + draw)
            weights = random_weights(trained, generator)
            q, k = queries_and_keys(layer, weights, x, positions)
            bias = view.bias
            if isinstance(layer.position, Disentangled):  # what random heads make of the distances
                by_query, by_key = distance_terms(layer, weights, q, k, positions)
                bias = by_query + by_key
            yield replace(view, q=q, k=k, bias=bias, output=None)

    def combine(self, a: State, b: State) -> State:
        combined: State = {}
        for draw in range(self.draws):
            both = self.statistic.combine(_of_draw(a, draw), _of_draw(b, draw))
            combined |= {f"{draw}.{name}": tensor for name, tensor in both.items()}
        return combined

    def finish(self, state: State) -> dict[str, Tensor]:
        results = [self.statistic.finish(_of_draw(state, draw)) for draw in range(self.draws)]
        return {name: torch.stack([result[name] for result in results]) for name in results[0]}


def _of_draw(state: State, draw: int) -> State:
    return {name.removeprefix(f"{draw}."): t for name, t in state.items() if name.startswith(f"{draw}.")}


def random_weights(weights: LayerWeights, generator: torch.Generator) -> LayerWeights:
    """Gaussian W_q, W_k and their biases, each with the Frobenius norm of the trained one; all else unchanged."""

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


DRAWS = 4
"""Random heads drawn for every trained head."""

READ = 4
"""Sequences that random heads read. A threshold is set by the spread between draws, which are heads of other weights;
with more sequences each draw is known better, and the spread hardly changes (docs/design.md)."""


def _of_random_heads(masses: Masses | None, context: Context) -> OfRandomHeads | None:
    """None for families without an adapter, whose weights cannot be replaced, and where `masses` does not apply."""
    if masses is None or context.anatomy.missing:
        return None
    return OfRandomHeads(masses, context.anatomy, DRAWS, context.seed)


IN_TEXT = Declaration(
    "null.text",
    PATTERNS,
    Reads.ATTENTION,
    lambda context: _of_random_heads(text_masses(context), context),
    lenses=("labels",),
    when=Pass.SAMPLE,
    sequences=READ,
)
IN_REPEATS = Declaration(
    "null.repeat",
    PATTERNS,
    Reads.ATTENTION,
    lambda context: _of_random_heads(repeat_masses(context), context),
    lenses=("labels",),
    when=Pass.REPEATS,
    sequences=READ,
)
