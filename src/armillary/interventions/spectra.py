"""Surgery on the spectra of W_q and W_k (Wertich): scale them, cut them, or put noise in their place."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.errors import ArmillaryError
from armillary.interventions.chosen import Heads, Touched, restored, tensors_of, touched

Kept = Literal["shape", "norm", "spectrum"]
PARTS = ("q", "k", "v", "o")


@contextmanager
def scaled(
    model: nn.Module, alpha: float, *, layers: Iterable[int] | None = None, heads: Heads = None
) -> Iterator[nn.Module]:
    """All singular values of W_q and W_k times alpha, biases too, so that q.k is multiplied by alpha^2 exactly.

    Where only some of the queries of a shared key head are chosen, W_q alone is multiplied, by alpha^2. A model that
    normalises q and k after the projection would not notice: it is refused.
    """
    if not alpha == alpha or alpha in (float("inf"), float("-inf")):
        raise ArmillaryError(f"a spectrum cannot be scaled by {alpha}: give a finite number")
    found = touched(model, layers, heads)
    if any(one.layer.qk_norm is not None for one in found):
        raise ArmillaryError(
            "this model normalises q and k after the projection, so scaling W_q and W_k changes nothing: "
            "randomise or cut their spectra instead"
        )
    if any(one.layer.clip_qkv is not None for one in found):
        raise ArmillaryError("this model clips q and k, so scaling W_q and W_k does not scale their products")
    factors = [pair for one in found for pair in _scaled_tensors(one, alpha)]

    def change() -> None:
        for tensor, factor in factors:
            tensor.mul_(factor)

    with restored([tensor for tensor, _ in factors], change):
        yield model


def _scaled_tensors(one: Touched, alpha: float) -> list[tuple[Tensor, float]]:
    whole = one.whole_key_heads
    found = []
    for head in one.heads:
        factor = alpha if one.layer.kv_head(head) in whole else alpha**2
        found += [(tensor, factor) for tensor in tensors_of(one.weights, "q", head)]
    for key_head in whole:
        found += [(tensor, alpha) for tensor in tensors_of(one.weights, "k", key_head)]
    return found


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

    A key or value head is cut where all of its queries are chosen.
    """
    if rank < 0:
        raise ArmillaryError(f"a matrix cannot keep {rank} singular values: give 0 or more")
    if keep not in ("top", "rest"):
        raise ArmillaryError(f"keep={keep!r} is not known: it can be 'top' or 'rest'")
    matrices = _matrices(touched(model, layers, heads), parts)

    def change() -> None:
        for matrix in matrices:
            u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
            kept = torch.arange(len(s), device=s.device) < rank
            s = s * (kept if keep == "top" else ~kept)
            matrix.copy_((u * s) @ v)

    with restored(matrices, change):
        yield model


@contextmanager
def randomised(
    model: nn.Module,
    *,
    keep: Kept = "norm",
    parts: Iterable[str] = ("q", "k"),
    seed: int = 0,
    layers: Iterable[int] | None = None,
    heads: Heads = None,
) -> Iterator[nn.Module]:
    """Random matrices in place of the chosen heads' ones. `keep` says what of them stays.

    "shape": Gaussian entries of Xavier variance; "norm": Gaussian with the head's Frobenius norm; "spectrum": the
    head's own singular values between random orthogonal bases. Biases stay.
    """
    if keep not in ("shape", "norm", "spectrum"):
        raise ArmillaryError(f"keep={keep!r} is not known: it can be 'shape', 'norm' or 'spectrum'")
    matrices = _matrices(touched(model, layers, heads), parts)
    generator = torch.Generator().manual_seed(seed)

    def change() -> None:
        for matrix in matrices:
            matrix.copy_(random_matrix(matrix, keep, generator))

    with restored(matrices, change):
        yield model


def random_matrix(matrix: Float[Tensor, "n m"], keep: Kept, generator: torch.Generator) -> Float[Tensor, "n m"]:
    """A random matrix that shares its shape, its norm or its singular values with this one."""
    n, m = matrix.shape
    noise: Tensor = torch.randn(n, m, generator=generator, dtype=torch.float64).to(matrix.device)
    if keep == "shape":
        return noise.mul((2 / (n + m)) ** 0.5)
    if keep == "norm":
        return noise.mul(matrix.double().norm() / noise.norm())
    small = min(n, m)
    left = haar(n, small, generator).to(matrix.device)
    right = haar(m, small, generator).to(matrix.device)
    return left.mul(torch.linalg.svdvals(matrix.double())).mm(right.T)


def haar(n: int, k: int, generator: torch.Generator) -> Float[Tensor, "n k"]:
    """k orthonormal columns, uniformly distributed."""
    q, r = torch.linalg.qr(torch.randn(n, k, generator=generator, dtype=torch.float64))
    signed: Tensor = q * r.diagonal().sign()
    return signed


def _matrices(found: list[Touched], parts: Iterable[str]) -> list[Tensor]:
    """The matrices of these parts, each once: a key or value head where all of its queries are chosen."""
    chosen = tuple(parts)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown or not chosen:
        raise ArmillaryError(f"parts {', '.join(chosen) or '(none)'} are not known: there are {', '.join(PARTS)}")
    matrices = []
    for one in found:
        for part in chosen:
            numbers = one.heads if part in ("q", "o") else one.whole_key_heads
            matrices += [getattr(one.weights, part)[number] for number in numbers]
    if not matrices:
        raise ArmillaryError("the chosen heads share their keys and values with others: choose all heads of a group")
    return matrices
