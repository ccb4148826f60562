"""Change the spectra of W_q and W_k (Wertich): scale them, truncate them, or replace them by noise."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.errors import ArmillaryError
from armillary.interventions.chosen import ChosenHeads, Heads, choose_heads, restored, tensors_of
from armillary.observe.precision import wide

Kept = Literal["shape", "norm", "spectrum"]
PARTS = ("q", "k", "v", "o")


@contextmanager
def scaled(
    model: nn.Module, alpha: float, *, layers: Iterable[int] | None = None, heads: Heads = None
) -> Iterator[nn.Module]:
    """Multiply W_q and W_k, with their biases, by alpha, so that q.k is multiplied by alpha^2 exactly.

    If only some of the queries of a shared key head are chosen, W_q alone is multiplied, by alpha^2. Models that
    normalize q and k after the projection are refused, since scaling would have no effect.
    """
    if not alpha == alpha or alpha in (float("inf"), float("-inf")):
        raise ArmillaryError(
            f"a spectrum cannot be scaled by {alpha}",
            advice="give a finite number",
            given=alpha,
            expected="a finite number",
        )
    chosen = choose_heads(model, layers, heads)
    if any(layer.layer.qk_norm is not None for layer in chosen):
        raise ArmillaryError(
            "this model normalizes q and k after the projection, so scaling W_q and W_k changes nothing",
            advice="randomize or cut their spectra instead",
        )
    if any(layer.layer.clip_qkv is not None for layer in chosen):
        raise ArmillaryError("this model clips q and k, so scaling W_q and W_k does not scale their products")
    factors = [scaling for layer in chosen for scaling in _scaled_tensors(layer, alpha)]

    def change() -> None:
        for tensor, factor in factors:
            tensor.mul_(factor)

    with restored([tensor for tensor, _ in factors], change):
        yield model


def _scaled_tensors(chosen: ChosenHeads, alpha: float) -> list[tuple[Tensor, float]]:
    key_heads = chosen.whole_key_heads
    scalings = []
    for head in chosen.heads:
        factor = alpha if chosen.layer.kv_head(head) in key_heads else alpha**2
        scalings += [(tensor, factor) for tensor in tensors_of(chosen.weights, "q", head)]
    for key_head in key_heads:
        scalings += [(tensor, alpha) for tensor in tensors_of(chosen.weights, "k", key_head)]
    return scalings


@contextmanager
def cut(
    model: nn.Module,
    rank: int,
    *,
    keep: Literal["top", "rest"] = "top",
    parts: Iterable[str] = ("q", "k"),
    layers: Iterable[int] | None = None,
    heads: Heads = None,
) -> Iterator[nn.Module]:
    """Keep the `rank` largest singular values of every chosen head's matrix, or (keep="rest") all but those.

    A key or value head is cut only if all of its queries are chosen.
    """
    if rank < 0:
        raise ArmillaryError(
            f"a matrix cannot keep {rank} singular values", advice="give 0 or more", given=rank, expected="0 or more"
        )
    if keep not in ("top", "rest"):
        raise ArmillaryError(
            f"keep={keep!r} is not known", advice="it can be 'top' or 'rest'", given=keep, expected=("top", "rest")
        )
    matrices = _matrices(choose_heads(model, layers, heads), parts)

    def change() -> None:
        for matrix in matrices:
            u, s, v = torch.linalg.svd(wide(matrix), full_matrices=False)
            top = torch.arange(len(s), device=s.device) < rank
            s = s * (top if keep == "top" else ~top)
            matrix.copy_((u * s) @ v)

    with restored(matrices, change):
        yield model


@contextmanager
def randomized(
    model: nn.Module,
    *,
    keep: Kept = "norm",
    parts: Iterable[str] = ("q", "k"),
    seed: int = 0,
    layers: Iterable[int] | None = None,
    heads: Heads = None,
) -> Iterator[nn.Module]:
    """Replace the matrices of the chosen heads by random ones; `keep` is what they have in common.

    "shape": Gaussian entries of Xavier variance; "norm": Gaussian with the head's Frobenius norm; "spectrum": the
    head's own singular values with random orthogonal bases. Biases do not change.
    """
    if keep not in ("shape", "norm", "spectrum"):
        raise ArmillaryError(
            f"keep={keep!r} is not known",
            advice="it can be 'shape', 'norm' or 'spectrum'",
            given=keep,
            expected=("shape", "norm", "spectrum"),
        )
    matrices = _matrices(choose_heads(model, layers, heads), parts)
    generator = torch.Generator().manual_seed(seed)

    def change() -> None:
        for matrix in matrices:
            matrix.copy_(random_matrix(matrix, keep, generator))

    with restored(matrices, change):
        yield model


def random_matrix(matrix: Float[Tensor, "n m"], keep: Kept, generator: torch.Generator) -> Float[Tensor, "n m"]:
    """A random matrix with the shape, the norm or the singular values of `matrix`."""
    (n, m), exact = matrix.shape, wide(matrix)
    noise: Tensor = torch.randn(n, m, generator=generator, dtype=torch.float64).to(exact.device)
    if keep == "shape":
        return noise.mul((2 / (n + m)) ** 0.5)
    if keep == "norm":
        return noise.mul(exact.norm() / noise.norm())
    small = min(n, m)
    left = haar(n, small, generator).to(exact.device)
    right = haar(m, small, generator).to(exact.device)
    return left.mul(torch.linalg.svdvals(exact)).mm(right.T)


def haar(n: int, k: int, generator: torch.Generator) -> Float[Tensor, "n k"]:
    """k orthonormal columns, uniformly distributed."""
    q, r = torch.linalg.qr(torch.randn(n, k, generator=generator, dtype=torch.float64))
    signed: Tensor = q * r.diagonal().sign()
    return signed


def _matrices(chosen: list[ChosenHeads], parts: Iterable[str]) -> list[Tensor]:
    """The matrices of these parts, each once; of key and value heads those whose queries are all chosen."""
    names = tuple(parts)
    unknown = [part for part in names if part not in PARTS]
    if unknown or not names:
        raise ArmillaryError(
            f"parts {', '.join(names) or '(none)'} are not known", advice=f"there are {', '.join(PARTS)}"
        )
    matrices = []
    for layer in chosen:
        for part in names:
            numbers = layer.heads if part in ("q", "o") else layer.whole_key_heads
            matrices += [getattr(layer.weights, part)[number] for number in numbers]
    if not matrices:
        raise ArmillaryError(
            "the chosen heads share their keys and values with others", advice="choose all heads of a group"
        )
    return matrices
