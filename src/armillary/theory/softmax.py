"""Softmax of random logits, along great circles, for small logits, and its piecewise linear approximation."""

import numpy as np
from jaxtyping import Float
from scipy.special import entr
from scipy.special import softmax as probabilities

from armillary.errors import ArmillaryError

Numbers = Float[np.ndarray, "*#batch"] | float | int
Logits = Float[np.ndarray, "*#batch n"]


def lognormal_mean(mean: Numbers, variance: Numbers) -> Float[np.ndarray, "*batch"]:
    """E exp(x) = exp(mu + s^2/2), x normal; the paper has exp((mu + s^2)/2) (theory T5.1a)."""
    return np.asarray(np.exp(mean + np.divide(variance, 2)))


def lognormal_variance(mean: Numbers, variance: Numbers) -> Float[np.ndarray, "*batch"]:
    """Var exp(x) = (exp(s^2) - 1) exp(2 mu + s^2) (theory T5.1b)."""
    return np.asarray(np.expm1(variance) * np.exp(np.multiply(2, mean) + variance))


def ratio_mean(
    mean_i: Numbers, mean_j: Numbers, variance_i: Numbers, variance_j: Numbers, covariance: Numbers
) -> Float[np.ndarray, "*batch"]:
    """E[p_i/p_j] = exp(mu_i - mu_j + s^2/2), s^2 = s_i^2 + s_j^2 - 2 s_ij, of softmax at jointly normal logits.

    The paper has half of mu_i - mu_j (theory T5.20).
    """
    return lognormal_mean(np.subtract(mean_i, mean_j), _of_difference(variance_i, variance_j, covariance))


def ratio_variance(
    mean_i: Numbers, mean_j: Numbers, variance_i: Numbers, variance_j: Numbers, covariance: Numbers
) -> Float[np.ndarray, "*batch"]:
    """Var(p_i/p_j) = (exp(s^2) - 1) exp(2 (mu_i - mu_j) + s^2), s^2 = s_i^2 + s_j^2 - 2 s_ij (theory T5.21)."""
    return lognormal_variance(np.subtract(mean_i, mean_j), _of_difference(variance_i, variance_j, covariance))


def slerp(
    v: Float[np.ndarray, "n"], w: Float[np.ndarray, "n"], t: Float[np.ndarray, "*time"] | float | int
) -> Float[np.ndarray, "*time n"]:
    """(sin((1 - t) a) v + sin(t a) w) / sin a, a the angle from v to w: from v at 0 to w at 1 (theory T5.2h).

    On the sphere of v and w if they have the same length. The paper has sin((t - 1) a), which starts at -v.
    """
    angle, t = _angle(v, w), np.asarray(t, dtype=np.float64)[..., None]
    return np.asarray(_sine_ratio(1 - t, angle) * v + _sine_ratio(t, angle) * w)


def slerp_derivative(
    v: Float[np.ndarray, "n"], w: Float[np.ndarray, "n"], t: Float[np.ndarray, "*time"] | float | int
) -> Float[np.ndarray, "*time n"]:
    """d slerp / dt = a / sin a (cos(t a) w - cos((1 - t) a) v) (theory T5.7)."""
    angle, t = _angle(v, w), np.asarray(t, dtype=np.float64)[..., None]
    return np.asarray((np.cos(t * angle) * w - np.cos((1 - t) * angle) * v) / np.sinc(angle / np.pi))


def kl_small_radius(w: Logits, v: Logits) -> Float[np.ndarray, "*batch"]:
    """KL(softmax w || softmax v) = 1/2 Var_i(w_i - v_i) to second order in the logits (theory T5.17)."""
    return np.asarray((w - v).var(-1) / 2)


def jsd_small_radius(w: Logits, v: Logits) -> Float[np.ndarray, "*batch"]:
    """JSD(softmax w || softmax v) = 1/8 Var_i(w_i - v_i) to second order in the logits (theory T5.18)."""
    return np.asarray((w - v).var(-1) / 8)


def entropy_small_radius(v: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch"]:
    """Entropy of softmax v = log n - 1/2 Var_i(v_i) to second order in the logits (theory T5.19b)."""
    return np.asarray(np.log(v.shape[-1]) - v.var(-1) / 2)


def entropy(logits: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch"]:
    """Entropy of softmax(logits), natural logarithm; a logit of -inf is a masked key.

    For logits alpha v it falls from log n at alpha = 0 to the log of the number of largest entries as alpha grows:
    to 0 if the largest is unique (theory T5.2g).
    """
    return np.asarray(entr(probabilities(logits, axis=-1)).sum(-1))


def entropy_slope(v: Float[np.ndarray, "*batch n"], alpha: float | int) -> Float[np.ndarray, "*batch"]:
    """d/d alpha of the entropy of softmax(alpha v) = -alpha Var_p(v), p = softmax(alpha v).

    Never positive for alpha > 0; 0 at alpha = 0 and again as alpha grows (theory T5.2g). Finite logits only.
    """
    p = probabilities(alpha * v, axis=-1)
    mean = (p * v).sum(-1, keepdims=True)
    return np.asarray(-alpha * (p * np.square(v - mean)).sum(-1))


def piecewise_linear(logits: Float[np.ndarray, "*batch t"]) -> Float[np.ndarray, "*batch t"]:
    """clip(<gamma^i, w> + 1/T, 0, 1), gamma^i = grad softmax_i(0) = e_i/T - 1/T^2: softmax to first order, clipped.

    <gamma^i, w> = (w_i - mean w)/T (theory L2, L3). Close to softmax only for logits of spread well below 1: if an
    entry is clipped, the sum is no longer 1.
    """
    return np.asarray(np.clip((logits - logits.mean(-1, keepdims=True) + 1) / logits.shape[-1], 0, 1))


def _of_difference(variance_i: Numbers, variance_j: Numbers, covariance: Numbers) -> Float[np.ndarray, "*batch"]:
    """Var(x_i - x_j)."""
    return np.asarray(np.add(variance_i, variance_j) - np.multiply(2, covariance), dtype=np.float64)


def _angle(v: Float[np.ndarray, "n"], w: Float[np.ndarray, "n"]) -> float:
    """The angle between two vectors, accurate at 0 too, where arccos of the cosine is not."""
    lengths = np.linalg.norm(v), np.linalg.norm(w)
    if min(lengths) == 0:
        raise ArmillaryError("slerp needs two vectors that are not zero")
    v, w = v / lengths[0], w / lengths[1]
    angle = 2 * np.arctan2(np.linalg.norm(v - w), np.linalg.norm(v + w))
    if np.pi - angle < 1e-8:
        raise ArmillaryError("slerp between opposite vectors is not unique", advice="go through a third vector")
    return float(angle)


def _sine_ratio(t: Float[np.ndarray, "*time 1"], angle: float) -> Float[np.ndarray, "*time 1"]:
    """sin(t a) / sin a, and t if a = 0."""
    return np.asarray(t * np.sinc(t * angle / np.pi) / np.sinc(angle / np.pi))
