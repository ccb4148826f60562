"""Heads built from rotary frequencies: attention to a fixed distance, or to a token at any distance.

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
    """The q and k that all tokens share in a head that attends `distance` back: k = R^distance q (theory B3, B6).

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
    """The least attention of that head to the token at `distance`, over all queries: that of the last query.

    1 / (1 + sum exp(-sum_f |q_f|^2 (1 - cos(delta g_f)))), delta = 1 .. N - 1 - distance and 1 .. distance (theory B6).
    """
    gaps = _gaps(g, length, distance, weights)
    return float(1 / (1 + np.exp(-norm_squared * gaps).sum()))


def norm_needed(
    eps: float, g: Frequencies, length: int, *, distance: int = 0, weights: Frequencies | None = None
) -> float:
    """The |q|^2 at which that head's attention is 1 - eps in texts of `length` tokens: more is enough, less is not.

    One frequency needs about 1 / min(1 - cos(delta g)), which near-multiples of 2 pi make huge (delta = 44, 710 for
    g = 1); many together need little, and it hardly grows with the length (theory B6).
    """
    if not 0 < eps < 1:
        raise ArmillaryError(f"attention 1 - {eps} is not possible", advice="give an eps between 0 and 1")
    gaps = _gaps(g, length, distance, weights)
    allowed = log(eps / (1 - eps))
    if not len(gaps) or log(len(gaps)) <= allowed:
        return 0.0
    if gaps.min() <= np.square(np.finfo(float).eps * length * g.max()):  # the accuracy of the angles
        raise ArmillaryError(
            "at some distance every frequency with norm has made full turns, so no norm is enough",
            advice="put norm on a frequency that is not 0 or a multiple of 2 pi over a whole number",
        )
    enough = (log(len(gaps)) - allowed) / gaps.min()
    root = brentq(lambda s: logsumexp(-s * gaps) - allowed, 0.0, enough * (1 + 1e-9), xtol=enough * 1e-15, rtol=1e-14)
    return float(root)


def _gaps(g: Frequencies, length: int, distance: int, weights: Frequencies | None) -> Float[np.ndarray, "key"]:
    """How far the logit of each other key of the last query is below that of the target, for |q|^2 = 1."""
    if not 0 <= distance < length:
        raise ArmillaryError(f"no token of {length} has another {distance} before it", advice="give a longer length")
    delta = np.concatenate([np.arange(1, length - distance), np.arange(1, distance + 1)])
    # 1 - cos as a squared sine, which is accurate near multiples of 2 pi
    return np.asarray(2 * np.square(np.sin(np.multiply.outer(delta, g) / 2)) @ _shares(g, weights))


def _shares(g: Frequencies, weights: Frequencies | None) -> Frequencies:
    chosen = (g != 0).astype(np.float64) if weights is None else weights
    if len(chosen) != len(g) or (chosen < 0).any() or not chosen.sum() > 0:
        raise ArmillaryError(
            f"the norm cannot be divided among {len(g)} frequencies by these {len(chosen)} weights",
            advice="give one for each, none negative, not all 0",
        )
    return np.asarray(chosen / chosen.sum())


def nope_attention(
    w: Float[np.ndarray, "d d"], first: Float[np.ndarray, "d"], token: Float[np.ndarray, "d"], copies: int = 2
) -> Float[np.ndarray, "key"]:
    """Attention of the last token of [first, token, token, ...] with logits x_i' W x_j: why NoPE has no such heads.

    The copies have the same key, so each gets the same attention, below 1/copies, for any W: no head without positions
    gives more than 1/2 to itself or to the previous token in every text (theory B5).
    """
    if copies < 1:
        raise ArmillaryError(f"the token cannot occur {copies} times in the text", advice="give 1 or more")
    return np.asarray(softmax(np.array([token @ w @ first] + [token @ w @ token] * copies)))


def channel_length(g: float | int) -> float:
    """The most tokens N among which one frequency can find a target at any distance: the largest with g (N-1) < pi.

    Up to this N some head gives the target more than half at every distance 0 .. N - 1; from g (N - 1) >= pi on none
    does, for any q and keys (theory B10 says so from g (N - 2) >= pi on; the step between is impossible too, as
    the linear program in the tests shows). inf for g = 0.
    """
    if not 0 <= g < pi:
        raise ArmillaryError(
            f"{g} radians per token is not a frequency of a channel", advice="give a number from 0 to below pi"
        )
    return inf if g == 0 else float(ceil(pi / g))


def channel_norm(g: float | int, length: int, eps: float) -> float:
    """The |q| |k| that gives the target 1 - eps at every distance: log((N-1)(1-eps)/eps) / cos(g (N-1)/2), or inf.

    For the head of `channel_head`, whose other keys are 0 (theory B10); g = 0 is what NoPE needs (theory B11).
    """
    if length < 2 or not 0 < eps < 1:
        raise ArmillaryError(
            f"length {length} and eps {eps}", advice="give at least 2 tokens and an eps between 0 and 1"
        )
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
    q: Float[np.ndarray, "2"], target: Float[np.ndarray, "2"], other: Float[np.ndarray, "2"], g: float | int
) -> float:
    """The first distance at which the pair's logit with key `target` is no longer above that with key `other`.

    Both keys at the same distance r: where q' rho(-g r) (target - other) <= 0. 0 if that holds at once, inf if it
    never does (g = 0). For the band of the apostrophe head in Gemma 7B, 11963 tokens (theory B17 has 11964).
    """
    lead = target - other
    along, across = float(q @ lead), float(q[0] * lead[1] - q[1] * lead[0])
    if along <= 0:
        return 0.0
    return inf if g == 0 else float(ceil((atan2(across, along) + pi / 2) / g))
