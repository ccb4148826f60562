"""What a head writes and matches, in tokens, from the weights: through e x e matrices and rows of the vocabulary.

E is what a token enters layer 0 as, U what a direction adds to its logit (anatomy/ends.py). Nothing of the size
vocabulary x vocabulary is built: the nonzero eigenvalues of E W_v W_o U are those of the e x e matrix W_o (U E) W_v,
and U E, d x d, is summed over rows of the vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from armillary.anatomy.description import Layer
from armillary.anatomy.ends import Ends
from armillary.anatomy.weights import LayerWeights
from armillary.observe.precision import wide

ROWS = 4096
"""Rows of the vocabulary that are read at once."""

EXACT = 1e12
"""U E is computed in float64 if that takes fewer multiplications than this; else rows are multiplied in float32."""

DIRECTIONS, ENDS = 3, 6
"""Directions of every head, and tokens at each of their ends."""

DRAWS = 64
"""Random heads for the copying score. It does not change with the size of weights, so one set serves all heads."""


@dataclass(frozen=True)
class Direction:
    """The strongest directions of W = A B' of every head: singular vectors, and their share of energy."""

    left: Float[Tensor, "head direction d"]
    right: Float[Tensor, "head direction d"]
    share: Float[Tensor, "head direction"]


def directions(a: Sequence[Float[Tensor, "d e"]], b: Sequence[Float[Tensor, "d e"]]) -> Direction:
    """W = A B' of each head, through the triangular factors of A and B."""
    lefts, rights, shares = [], [], []
    for left, right in zip(a, b, strict=True):
        (q, r), (p, s) = torch.linalg.qr(wide(left.cpu())), torch.linalg.qr(wide(right.cpu()))
        u, values, v = torch.linalg.svd(r @ s.T)
        count = min(DIRECTIONS, len(values))
        sign = torch.sign((q @ u[:, :count]).sum(0))  # a direction and its opposite are the same: one is chosen
        sign = torch.where(sign == 0, 1.0, sign)
        lefts.append((q @ u[:, :count] * sign).T)
        rights.append((p @ v[:count].T * sign).T)
        shares.append(values[:count].square() / values.square().sum().clamp(min=torch.finfo(torch.float64).tiny))
    return Direction(torch.stack(lefts), torch.stack(rights), torch.stack(shares))


Scores = Callable[[int, int], Float[Tensor, "token d"]]


def extreme_tokens(
    rows: Scores, tokens: int, along: Float[Tensor, "head direction d"]
) -> Int[Tensor, "head direction two end"]:
    """The tokens furthest along each direction, and furthest against it, furthest first; -1 where there are fewer."""
    flat = along.flatten(0, 1).T.float()
    best: list[tuple[Tensor, Tensor]] = [
        (flat.new_zeros(0, flat.shape[1]), torch.zeros(0, flat.shape[1], dtype=torch.int64))
    ] * 2
    for start in range(0, tokens, ROWS):
        scores = rows(start, min(start + ROWS, tokens)) @ flat
        for side, sign in enumerate((1.0, -1.0)):
            values, places = (sign * scores).topk(min(ENDS, len(scores)), dim=0)
            merged = torch.cat([best[side][0], values]), torch.cat([best[side][1], places + start])
            values, chosen = merged[0].topk(min(ENDS, len(merged[0])), dim=0)
            best[side] = values, merged[1].gather(0, chosen)
    chosen_tokens = torch.full((flat.shape[1], 2, ENDS), -1, dtype=torch.int64)
    for side in range(2):
        chosen_tokens[:, side, : len(best[side][1])] = best[side][1].T
    return chosen_tokens.view(*along.shape[:2], 2, ENDS)


def copying_scores(matrices: Float[Tensor, "head e e"]) -> Float[Tensor, "head"]:
    """sum Re(lambda) / sum |lambda| of each matrix's eigenvalues: 1 if all are positive, -1 if all are negative."""
    values = torch.linalg.eigvals(matrices)
    scores: Tensor = values.real.sum(-1) / values.abs().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    return scores


class VocabularyLens:
    """The lens of one model; U E is computed once, when it is first needed."""

    def __init__(self, ends: Ends, seed: int = 0) -> None:
        self.ends, self.seed = ends, seed
        self._random: dict[int, Float[Tensor, "draw"]] = {}

    @cached_property
    def product(self) -> Float[Tensor, "d d"]:
        """U E: sum over tokens of the outer product of what a direction adds to its logit with what it enters as."""
        ends = self.ends
        exact = float(ends.tokens) * ends.width**2 < EXACT
        total = torch.zeros(ends.width, ends.width, dtype=torch.float64)
        for start in range(0, ends.tokens, ROWS):
            out, into = (rows(start, min(start + ROWS, ends.tokens)) for rows in (ends.unembedded, ends.embedded))
            total += (out.double().T @ into.double()) if exact else (out.T @ into)
        return total

    def copying(self, layer: Layer, weights: LayerWeights) -> Float[Tensor, "head"]:
        """The copying score of every head."""
        through = [self.product @ wide(v.cpu()) for v in weights.v]
        parts = [wide(o.cpu()) @ through[layer.kv_head(head)] for head, o in enumerate(weights.o)]
        return copying_scores(torch.stack(parts))

    def random_copying(self, width: int) -> Float[Tensor, "draw"]:
        """The copying scores of heads of this width with random W_v and W_o."""
        if width not in self._random:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + width)
            d = self.ends.width
            draws = []
            for _ in range(DRAWS):
                v, o = (torch.randn(shape, generator=generator).double() for shape in ((d, width), (width, d)))
                draws.append(o @ (self.product @ v))
            self._random[width] = copying_scores(torch.stack(draws))
        return self._random[width]

    def layer(self, layer: Layer, weights: LayerWeights) -> dict[str, Tensor]:
        """copying_score, copying_random, and of W_v W_o: write_share, and tokens at both ends, read_end and write_end.

        In layer 0 also of W_q W_k' with E: match_share, query_end and key_end.
        """
        ends = self.ends
        of_head = [layer.kv_head(head) for head in range(layer.heads)]
        writes = directions([weights.v[g] for g in of_head], [o.mT for o in weights.o])
        arrays = {
            "copying_score": self.copying(layer, weights),
            "copying_random": self.random_copying(weights.o[0].shape[0]),
            "write_share": writes.share,
            "read_end": extreme_tokens(ends.embedded, ends.tokens, writes.left),
            "write_end": extreme_tokens(ends.unembedded, ends.tokens, writes.right),
        }
        if layer.index == 0:
            arrays |= matches(layer, weights, ends.embedded, ends.tokens)
        return arrays


def matches(layer: Layer, weights: LayerWeights, rows: Scores, tokens: int) -> dict[str, Tensor]:
    """The directions of W_q W_k' with their share of energy, and the tokens, given as rows, at their ends."""
    product = directions(weights.q, [weights.k[layer.kv_head(head)] for head in range(layer.heads)])
    return {
        "match_share": product.share,
        "query_end": extreme_tokens(rows, tokens, product.left),
        "key_end": extreme_tokens(rows, tokens, product.right),
    }
