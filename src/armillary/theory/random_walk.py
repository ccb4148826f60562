"""Simulates attention over random walks: how often each token passes its signal, and the gradient of W_QK."""

from math import sqrt

import numpy as np
from jaxtyping import Float

from armillary.errors import ArmillaryError

WALKS_AT_ONCE = 1 << 14


def linearized(logits: Float[np.ndarray, "*batch t"]) -> Float[np.ndarray, "*batch t"]:
    """<gamma^i, omega> + 1/T = (omega_i - mean(omega) + 1) / T: softmax to first order in the logits."""
    return np.asarray((logits - logits.mean(-1, keepdims=True) + 1) / logits.shape[-1])


def simulate_walks(
    w: Float[np.ndarray, "d d"],
    sigma: Float[np.ndarray, "d d"] | None,
    t: int,
    scale: float | int,
    walks: int,
    seed: int,
) -> tuple[Float[np.ndarray, "t"], Float[np.ndarray, "t"]]:
    """How often <gamma^i, omega> + 1/T is in [0, 1], i = 1..T, and the standard errors of these frequencies.

    Given x_T, a walk is a bridge, and the logits see only its component along W x_T: omega_i is (i/T) x_T' W x_T +
    |Sigma^(1/2) W x_T| times a bridge of one dimension. The law is the same, with d + T draws instead of d T.
    """
    if walks < 1:
        raise ArmillaryError(f"{walks} walks: a frequency needs at least 1")
    if sigma is not None:
        values, vectors = np.linalg.eigh(sigma)
        if values[0] < -1e-9 * values[-1]:
            raise ArmillaryError(f"sigma is not a covariance: its least eigenvalue is {values[0]:.3g}; it must be >= 0")
        root = vectors * np.sqrt(np.maximum(values, 0))
        w = root.T @ w @ root
    random, hits = np.random.default_rng(seed), np.zeros(t)
    along = np.arange(1, t + 1) / t
    for start in range(0, walks, WALKS_AT_ONCE):
        count = min(WALKS_AT_ONCE, walks - start)
        last = sqrt(t) * random.standard_normal((count, len(w)))
        direction = last @ w.T
        bridge = random.standard_normal((count, t)).cumsum(1)
        bridge -= along * bridge[:, -1:]
        logits = along * np.sum(last * direction, 1)[:, None] + np.linalg.norm(direction, axis=1)[:, None] * bridge
        share = linearized(logits / scale)
        hits += ((share >= 0) & (share <= 1)).sum(0)
    smoothed = (hits + 1) / (walks + 2)  # so that frequencies of 0 and 1 have an error
    return hits / walks, np.sqrt(smoothed * (1 - smoothed) / walks)


def random_w(d: int, mean: float | int, scale: float | int, seed: int) -> Float[np.ndarray, "d d"]:
    """A symmetric W in a random basis with d eigenvalues drawn from N(mean, scale^2), as in the paper's Figure 5."""
    random = np.random.default_rng(seed)
    values = random.normal(mean, scale, d)
    basis, upper = np.linalg.qr(random.standard_normal((d, d)))
    basis = basis * np.sign(np.diag(upper))  # uniform over the rotations
    return np.asarray((basis * values) @ basis.T)


def qk_gradient_terms(
    x: Float[np.ndarray, "d t"],
    y: Float[np.ndarray, "d"],
    w_qk: Float[np.ndarray, "d d"],
    w_v: Float[np.ndarray, "d d"],
    w_f: Float[np.ndarray, "d d"],
    scale: float | int,
) -> Float[np.ndarray, "3 d d"]:
    """The terms (19), (20), (21) whose sum is the gradient of one walk: X G P G' omega x', X G P g0 x', X G q x'.

    All over lambda, with G and g0 the slopes and offsets of softmax clipped to [0, 1], P = A'A and
    q = A'(W_F x_T - y), A = W_F W_V X (theory L5, L6). The first two are of one order in T (theory L7).
    """
    t, last = x.shape[1], x[:, -1]
    omega = x.T @ w_qk @ last / scale
    share = linearized(omega)
    unclipped = (share >= 0) & (share <= 1)
    slopes = (np.eye(t) / t - 1 / t**2) * unclipped
    offsets = unclipped / t + (share > 1)
    values = w_f @ w_v @ x
    errors = values.T @ np.stack([values @ (slopes.T @ omega), values @ offsets, w_f @ last - y], 1)
    return np.asarray(np.einsum("dk,e->kde", x @ slopes @ errors, last) / scale)


def qk_gradient(
    x: Float[np.ndarray, "d t"],
    y: Float[np.ndarray, "d"],
    w_qk: Float[np.ndarray, "d d"],
    w_v: Float[np.ndarray, "d d"],
    w_f: Float[np.ndarray, "d d"],
    scale: float | int,
) -> Float[np.ndarray, "d d"]:
    """The gradient in W_QK of 1/2 |y - W_F (W_V X S~(omega) + x_T)|^2 for one walk (equation 3; theory L5)."""
    return np.asarray(qk_gradient_terms(x, y, w_qk, w_v, w_f, scale).sum(0))
