"""Rotary encodings: frequencies, rotation of q and k, and logits by distance.

Pair f of a vector at position i is rotated by i g_f radians, so a logit depends on the distance r = i - j alone,

    (R^i q)'(R^j k) = q' R^(-r) k = sum_f |q_f| |k_f| cos(angle from q_f to k_f - r g_f)        (theory B1),

and a frequency of 0 is a pair without position (NoPE). An encoding is its frequencies, one for each pair, and
channels beyond 2 len(g) are not rotated. Logits here have no factor 1/sqrt(e).
"""

from fractions import Fraction
from typing import Literal

import numpy as np
from jaxtyping import Complex, Float, Int
from scipy.special import gammaln

from armillary.errors import ArmillaryError

Frequencies = Float[np.ndarray, "f"]
Layout = Literal["half", "interleaved"]
"""'half' pairs channel i with i + width/2, 'interleaved' pairs 2i with 2i + 1."""
Vectors = Literal["constant", "gaussian", "repeated"]
FINEST = 10**6
"""A fraction is read as the nearest ratio with a denominator up to this, so that 0.29 means 29/100."""


def rope(width: int, base: float | int = 10_000) -> Frequencies:
    """base^(-2f/width), f = 0 .. width/2 - 1, radians per token: the slowest is base^(-1 + 2/width) (theory B2)."""
    if width < 0 or width % 2:
        raise ArmillaryError(f"{width} channels cannot be rotated in pairs", advice="give an even number")
    if not 1 < base < np.inf:
        raise ArmillaryError(f"base {base} is not above 1", advice="give a number above 1, such as 10000")
    return np.asarray(float(base) ** (-np.arange(0, width, 2) / max(width, 1)))


def p_rope(width: int, p: float | int | Fraction, base: float | int = 10_000, *, reversed: bool = False) -> Frequencies:
    """RoPE with the fastest `kept_count(p)` of its frequencies, the others 0; reversed keeps the slowest instead.

    p = 1 is RoPE and p = 0 is NoPE, to the last bit (theory B20).
    """
    g = rope(width, base)
    return np.where(kept_frequencies(p, len(g), reversed=reversed), g, 0.0)


def partial_rope(width: int, fraction: float | int | Fraction, base: float | int = 10_000) -> Frequencies:
    """All of RoPE's range, from 1 to about 1/base, on a fraction of the pairs; the others 0.

    Not p-RoPE, which keeps the spacing and drops the slow end (theory B22). Pairs keep their channels, so in the layout
    'half' this is partial rotary encoding up to a permutation of channels.
    """
    pairs_kept = kept_count(fraction, width // 2)
    return np.concatenate([rope(2 * pairs_kept, base), np.zeros(width // 2 - pairs_kept)])


def nope(width: int) -> Frequencies:
    """No positions: every frequency is 0."""
    return np.zeros(width // 2)


def kept_count(p: float | int | Fraction, count: int) -> int:
    """floor(p count) in exact arithmetic, p read as a ratio.

    In floats 0.58 * 100 // 2 is 28, one angle less than 29 (theory B21). The effective fraction is this over count.
    """
    if not 0 <= p <= 1:
        raise ArmillaryError(f"a fraction of {p} of the frequencies cannot be kept", advice="give a number from 0 to 1")
    return int(Fraction(p).limit_denominator(FINEST) * count)


def kept_frequencies(p: float | int | Fraction, count: int, *, reversed: bool = False) -> tuple[bool, ...]:
    """Which of `count` frequencies, fastest first, are kept: the first kept_count(p), or the last."""
    kept = kept_count(p, count)
    flags = (True,) * kept + (False,) * (count - kept)
    return flags[::-1] if reversed else flags


def random_positions(count: int, limit: int, seed: int) -> Int[np.ndarray, "count"]:
    """`count` of the positions 1 .. limit, drawn without replacement, in order (randomized RoPE, theory B24)."""
    if not 0 <= count <= limit:
        raise ArmillaryError(f"{count} different positions cannot be drawn from 1 to {limit}: use a larger limit")
    return np.sort(np.random.default_rng(seed).choice(limit, count, replace=False)) + 1


def rotate(
    x: Float[np.ndarray, "*batch e"],
    positions: Int[np.ndarray, "..."],
    g: Frequencies,
    layout: Layout = "half",
) -> Float[np.ndarray, "*batch e"]:
    """R^i x at every position i (which broadcasts against the batch): pair f rotated by i g_f."""
    rotated = pairs(x, len(g), layout) * np.exp(1j * np.multiply.outer(positions, g))
    parts = np.stack([rotated.real, rotated.imag], -2 if layout == "half" else -1)
    return np.concatenate([parts.reshape(*x.shape[:-1], 2 * len(g)), x[..., 2 * len(g) :]], -1)


def pairs(x: Float[np.ndarray, "*batch e"], count: int, layout: Layout = "half") -> Complex[np.ndarray, "*batch f"]:
    """The first 2 count channels as complex numbers, one for each pair."""
    if 2 * count > x.shape[-1]:
        raise ArmillaryError(f"{count} frequencies rotate {2 * count} channels, but the vectors have {x.shape[-1]}")
    if layout == "half":
        return np.asarray(x[..., :count] + 1j * x[..., count : 2 * count])
    return np.asarray(x[..., : 2 * count : 2] + 1j * x[..., 1 : 2 * count : 2])


def to_half(width: int) -> Int[np.ndarray, "width"]:
    """The order of channels that makes the layout 'interleaved' the layout 'half': x[..., to_half(width)]."""
    return np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])


def product(
    q: Float[np.ndarray, "e"],
    k: Float[np.ndarray, "e"],
    g: Frequencies,
    distances: Int[np.ndarray, "r"],
    layout: Layout = "half",
) -> Float[np.ndarray, "r"]:
    """q' R^(-r) k: the logit of one pair of vectors at every distance (Figure 9 for a random pair)."""
    chunks = np.conj(pairs(q, len(g), layout)) * pairs(k, len(g), layout)
    unrotated = q[2 * len(g) :] @ k[2 * len(g) :]
    return np.asarray((np.exp(-1j * np.multiply.outer(distances, g)) @ chunks).real + unrotated)


def constant_decay(g: Frequencies, distances: Int[np.ndarray, "*r"]) -> Float[np.ndarray, "*r"]:
    """q.k / e of two all-ones vectors by distance: the mean of cos(r g_f). It falls, not monotonically (theory B23).

    The same curve is E[q.k] / e for one Gaussian vector as both q and k (theory B4), and the correlation, over draws of
    an independent Gaussian pair, between its logits at two distances that differ by r: such a pair does not decay
    (Figure 9).
    """
    return np.asarray(np.cos(np.multiply.outer(distances, g)).mean(-1))


def expected_product(
    g: Frequencies,
    distances: Int[np.ndarray, "r"],
    mean_q: Float[np.ndarray, "e"],
    mean_k: Float[np.ndarray, "e"],
    cross: Float[np.ndarray, "e e"] | None = None,
    layout: Layout = "half",
) -> Float[np.ndarray, "r"]:
    """E[q' R^(-r) k] = mu_q' R^(-r) mu_k + Tr(R^(-r) Cov(k, q)), cross = Cov(k, q) (theory B4).

    It is 0 at every distance for independent vectors of mean 0: no decay, and a standard deviation of sqrt(e).
    """
    of_means = product(mean_q, mean_k, g, distances, layout)
    if cross is None:
        return of_means
    order = np.arange(2 * len(g)) if layout == "half" else to_half(2 * len(g))
    first, second = np.split(order, 2)
    same = cross[first, first] + cross[second, second]
    across = cross[first, second] - cross[second, first]
    angle = np.multiply.outer(distances, g)
    unrotated = np.trace(cross[2 * len(g) :, 2 * len(g) :])
    return np.asarray(of_means + np.cos(angle) @ same - np.sin(angle) @ across + unrotated)


def gap_law(r: int, count: int, limit: int) -> Float[np.ndarray, "limit"]:
    """P(gap = m), m = 1 .. limit, between random positions r places apart: C(m-1, r-1) C(L-m, N-r) / C(L, N).

    Its mean is r (L + 1)/(N + 1) (theory B24).
    """
    if not 1 <= r < count <= limit:
        raise ArmillaryError(f"two of {count} positions from 1 to {limit} cannot be {r} places apart")
    m = np.arange(1, limit + 1)
    fits = (m >= r) & (limit - m >= count - r)
    law = np.zeros(limit)
    law[fits] = np.exp(
        _log_choose(m[fits] - 1, r - 1) + _log_choose(limit - m[fits], count - r) - _log_choose(limit, count)
    )
    return np.asarray(law / law.sum())


def _log_choose(n: Int[np.ndarray, "m"] | int, k: int) -> Float[np.ndarray, "*m"]:
    return np.asarray(gammaln(np.asarray(n) + 1.0) - gammaln(k + 1.0) - gammaln(np.asarray(n) - k + 1.0))


def random_constant_decay(
    g: Frequencies, distances: Int[np.ndarray, "r"], count: int, limit: int
) -> Float[np.ndarray, "r"]:
    """The mean of `constant_decay` over random positions, by the number of places between the tokens (Figure 8 a)."""
    by_gap = constant_decay(g, np.arange(limit + 1))
    return np.array([by_gap[0] if r == 0 else gap_law(int(r), count, limit) @ by_gap[1:] for r in distances])


def simulated_decay(
    vectors: Vectors, g: Frequencies, count: int, *, limit: int | None = None, draws: int = 1, seed: int = 0
) -> Float[np.ndarray, "draw count"]:
    """Logits of the last of `count` tokens with the keys 0, 1, .. places before it (Figures 2, 8, 9), draw by draw.

    'constant': all-ones vectors, over e. 'gaussian': a fresh standard normal key for each token, over sqrt(e);
    'repeated': one q and one k for all. With a limit, each draw has its own random positions from 1 .. limit.
    """
    if vectors not in ("constant", "gaussian", "repeated"):
        raise ArmillaryError(
            f"there are no {vectors!r} vectors", advice="there are 'constant', 'gaussian' and 'repeated' ones"
        )
    random, e = np.random.default_rng(seed), 2 * len(g)
    logits = np.empty((draws, count))
    for draw in range(draws):
        positions = np.arange(count)
        if limit is not None:
            positions = random_positions(count, limit, int(random.integers(1 << 32)))
        gaps = positions[-1] - positions[::-1]
        if vectors == "constant":
            logits[draw] = constant_decay(g, gaps)
        else:
            q, k = random.standard_normal(e), random.standard_normal((count if vectors == "gaussian" else 1, e))
            logits[draw] = rotate(np.broadcast_to(k, (count, e)), -gaps, g) @ q / np.sqrt(e)
    return logits
