"""What one head can do with rotary frequencies: look at a fixed distance, or at a token wherever it is.

Distances count back from the query; logits have no factor 1/sqrt(e), so a head with a logit scale s needs norms whose
product is larger by 1/s. Lengths N are numbers of tokens.
"""

from math import atan2, ceil, cos, inf, log, pi, sin, sqrt

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax

from armillary.errors import ArmillaryError
from armillary.theory.rotary import Frequencies, Layout, rotate


def positional_head(
    norm_squared: float | int,
    g: Frequencies,
    *,
    distance: int = 0,
    weights: Frequencies | None = None,
    layout: Layout = "half",
) -> tuple[Float[np.ndarray, "e"], Float[np.ndarray, "e"]]:
    """The q and k that all tokens share in a head that looks `distance` back: k = R^distance q (LEDGER B3, B6).

    distance 0 is a diagonal head, 1 a previous-token head. The logit at distance r is the sum over frequencies of
    |q_f|^2 cos((r - distance) g_f). `weights` say how |q|^2 is divided among the frequencies: by default equally
    among those that are not 0.
    """
    chunks = np.sqrt(norm_squared * _shares(g, weights))
    q = np.concatenate([chunks, 0 * chunks]) if layout == "half" else np.stack([chunks, 0 * chunks], 1).ravel()
    return q, rotate(q, np.array(distance), g, layout)


def positional_attention(
    norm_squared: float | int, g: Frequencies, length: int, *, distance: int = 0, weights: Frequencies | None = None
) -> float:
    """The least attention that head gives to the token at `distance`, over all queries that have one: that of the last.

    1 / (1 + sum exp(-sum_f |q_f|^2 (1 - cos(delta g_f)))), delta = 1 .. N - 1 - distance and 1 .. distance (LEDGER B6).
    """
    gaps = _gaps(g, length, distance, weights)
    return float(1 / (1 + np.exp(-norm_squared * gaps).sum()))


def norm_needed(
    eps: float, g: Frequencies, length: int, *, distance: int = 0, weights: Frequencies | None = None
) -> float:
    """The |q|^2 at which that head's attention is 1 - eps in texts of `length` tokens: more is enough, less is not.

    One frequency needs about 1 / min(1 - cos(delta g)), which near-multiples of 2 pi make huge (delta = 44, 710 for
    g = 1); many together need little, and it hardly grows with the length (LEDGER B6).
    """
    if not 0 < eps < 1:
        raise ArmillaryError(f"attention 1 - {eps} cannot be asked for: give an eps between 0 and 1")
    gaps = _gaps(g, length, distance, weights)
    allowed = log(eps / (1 - eps))
    if not len(gaps) or log(len(gaps)) <= allowed:
        return 0.0
    if gaps.min() <= np.square(np.finfo(float).eps * length * g.max()):  # angles are not known better than that
        raise ArmillaryError(
            "a distance is turned back to where it began by every frequency that carries norm, so no norm is enough: "
            "put norm on a frequency that is not 0 or a multiple of 2 pi over a whole number"
        )
    enough = (log(len(gaps)) - allowed) / gaps.min()
    found = brentq(lambda s: logsumexp(-s * gaps) - allowed, 0.0, enough * (1 + 1e-9), xtol=enough * 1e-15, rtol=1e-14)
    return float(found)


def _gaps(g: Frequencies, length: int, distance: int, weights: Frequencies | None) -> Float[np.ndarray, "key"]:
    """By how much the logit falls, for |q|^2 = 1, at each other key that the last query sees."""
    if not 0 <= distance < length:
        raise ArmillaryError(f"no token of {length} has another {distance} before it: give a longer length")
    delta = np.concatenate([np.arange(1, length - distance), np.arange(1, distance + 1)])
    # 1 - cos as a squared sine: near a multiple of 2 pi the difference would be rounding
    return np.asarray(2 * np.square(np.sin(np.multiply.outer(delta, g) / 2)) @ _shares(g, weights))


def _shares(g: Frequencies, weights: Frequencies | None) -> Frequencies:
    chosen = (g != 0).astype(np.float64) if weights is None else weights
    if len(chosen) != len(g) or (chosen < 0).any() or not chosen.sum() > 0:
        raise ArmillaryError(
            f"the norm cannot be divided among {len(g)} frequencies by these {len(chosen)} weights: give one for each, "
            "none negative, not all 0"
        )
    return np.asarray(chosen / chosen.sum())


def nope_attention(
    w: Float[np.ndarray, "d d"], first: Float[np.ndarray, "d"], token: Float[np.ndarray, "d"], copies: int = 2
) -> Float[np.ndarray, "key"]:
    """Attention of the last token of [first, token, token, ...] with logits x_i' W x_j: why NoPE has no such heads.

    The copies' keys are the same, so each gets the same, less than 1/copies, whatever W is: no head without positions
    puts more than 1/2 on itself or on the token before in every text (LEDGER B5).
    """
    if copies < 1:
        raise ArmillaryError(f"the token cannot stand {copies} times in the text: give 1 or more")
    return np.asarray(softmax(np.array([token @ w @ first] + [token @ w @ token] * copies)))


def channel_length(g: float | int) -> float:
    """The most tokens N among which one frequency can find a target wherever it stands: the largest with g (N-1) < pi.

    Up to there some head gives the target more than half at every distance 0 .. N - 1; from g (N - 1) >= pi on none
    does, whatever its q and keys (LEDGER B10 says so from g (N - 2) >= pi on; the step between is impossible too, as
    the linear program in the tests shows). inf for g = 0.
    """
    if not 0 <= g < pi:
        raise ArmillaryError(f"{g} radians per token is no frequency of a channel: give a number from 0 to below pi")
    return inf if g == 0 else float(ceil(pi / g))


def channel_norm(g: float | int, length: int, eps: float) -> float:
    """The |q| |k| that gives the target 1 - eps at every distance: log((N-1)(1-eps)/eps) / cos(g (N-1)/2), or inf.

    For the head of `channel_head`, whose other keys are 0 (LEDGER B10); g = 0 is what NoPE needs (LEDGER B11).
    """
    if length < 2 or not 0 < eps < 1:
        raise ArmillaryError(f"length {length} and eps {eps}: give at least 2 tokens and an eps between 0 and 1")
    if length > channel_length(g):
        return inf
    return max(0.0, log((length - 1) * (1 - eps) / eps)) / cos(g * (length - 1) / 2)


def channel_head(
    norm: float | int, g: float | int, length: int
) -> tuple[Float[np.ndarray, "2"], Float[np.ndarray, "2"]]:
    """q and the target's key with |q| |k| = norm, aligned at the middle distance (N - 1)/2; other keys are 0."""
    phase, root = g * (length - 1) / 2, sqrt(norm)
    return np.array([root, 0.0]), root * np.array([cos(phase), sin(phase)])


def channel_break(
    q: Float[np.ndarray, "2"], wanted: Float[np.ndarray, "2"], other: Float[np.ndarray, "2"], g: float | int
) -> float:
    """The first distance at which the pair's logit with key `wanted` is no more above that with key `other`.

    Both keys at the same distance r: where q' rho(-g r) (wanted - other) <= 0. 0 if it is so from the start, inf if it
    never is, with g = 0. For the band of the apostrophe head in Gemma 7B, 11963 tokens (LEDGER B17 has 11964).
    """
    lead = wanted - other
    along, across = float(q @ lead), float(q[0] * lead[1] - q[1] * lead[0])
    if along <= 0:
        return 0.0
    return inf if g == 0 else float(ceil((atan2(across, along) + pi / 2) / g))
