"""Which tokens pass a signal through attention when tokens are a random walk: the law of Bao et al., corrected.

Tokens are a random walk, x_i = x_{i-1} + N(0, Sigma) from x_0 = 0; the last of T is the query,
omega_i = x_i' W x_T / lambda. To first order softmax is <gamma^i, omega> + 1/T with gamma^i = e_i / T - 1 / T^2, and
token i passes a signal if that is in [0, 1]; rho_i is the probability. Since y = sum_j gamma^i_j x_j and x_T are
jointly Gaussian, with covariances var * Sigma and cov * Sigma, the mean is cov tr(M) / lambda + 1/T and the variance is

    [T var tr(W Sigma W' Sigma) + cov^2 tr(M^2)] / lambda^2,    M = W Sigma, W the paper's W_QK.

The paper has the variance (2 theta^2 + 7/12) tr(M^2) / lambda^2, theta = i / T, in place of
(2 theta^2 - 2 theta + 7/12), and the symmetrized W for a W that is not symmetric (theory L10 to L17).
"""

from dataclasses import dataclass
from math import nan, sqrt
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.special import expit, ndtr

from armillary.errors import ArmillaryError

Regime = Literal["late", "middle", "early", "uniform", "vanishing", ""]

VANISHING = 0.1
"""If rho is below this everywhere, the signal vanishes."""
NEAR_PEAK = 0.5
"""The regime is where rho is at least this share of its peak (the full width at half maximum)."""
PEAK_POINTS = 65


@dataclass(frozen=True)
class Spectrum:
    """The inputs of the law: traces of M = W Sigma, and the divisor lambda of the logits.

    `frobenius` is tr(W Sigma W' Sigma); None means that W is symmetric, where it equals tr(M^2). It is never below
    |tr(M^2)|, and tr(M^2) can be negative when W is not symmetric: then xi and eta do not exist.
    """

    trace: float | int
    square: float | int
    frobenius: float | int | None
    scale: float | int

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ArmillaryError(f"the logit divisor {self.scale} must be above 0, as sqrt(d_head) is")
        if self.asymmetric < abs(self.square) * (1 - 1e-3):  # traces in float32 are not exact
            raise ArmillaryError(
                f"tr(W S W' S) = {self.asymmetric} is below |tr((W S)^2)| = {abs(self.square)}, which no W and "
                "covariance S have; give both traces of the same W, and frobenius unless W is symmetric"
            )

    @property
    def asymmetric(self) -> float | int:
        """tr(W Sigma W' Sigma), which is tr(M^2) for a symmetric W."""
        return self.square if self.frobenius is None else self.frobenius

    @property
    def xi(self) -> float:
        """tr(M) / sqrt(tr(M^2)): at most sqrt(d) in size for a symmetric W; NaN when tr(M^2) is not positive."""
        return self.trace / sqrt(self.square) if self.square > 0 else nan

    @property
    def eta(self) -> float:
        """sqrt(tr(M^2)) / lambda (theory L19); NaN when tr(M^2) is negative."""
        return sqrt(self.square) / self.scale if self.square >= 0 else nan

    @property
    def r(self) -> float:
        """tr(M) / lambda = xi eta: above 2 in size rho is a band of width 1 / |r| at the middle, when eta is small."""
        return self.trace / self.scale


def head_spectrum(
    key: Float[np.ndarray, "d h"],
    query: Float[np.ndarray, "d h"],
    sigma: Float[np.ndarray, "d d"] | None,
    scale: float | int,
) -> Spectrum:
    """The spectrum of W = key query' (logit_i = x_i' key query' x_T / scale) by h x h products; sigma None is I.

    A W that is not factored is key = W, query = I.
    """
    moved = key if sigma is None else sigma @ key
    cross = query.T @ moved
    queries = query.T @ query if sigma is None else query.T @ sigma @ query
    return Spectrum(
        trace=float(np.trace(cross)),
        square=float(np.sum(cross * cross.T)),
        frobenius=float(np.sum((key.T @ moved) * queries)),
        scale=scale,
    )


def exact_moments(spectrum: Spectrum, t: int) -> tuple[Float[np.ndarray, "t"], Float[np.ndarray, "t"]]:
    """Mean and variance of <gamma^i, omega> + 1/T for i = 1..T, exact at every T (theory L10 to L13)."""
    if t < 1:
        raise ArmillaryError(f"a walk of {t} tokens: it needs at least 1")
    i = np.arange(1, t + 1, dtype=np.float64)
    cov = i / t - (t + 1) / (2 * t)
    var = i * (i - 1) / t**2 - i / t + (t + 1) * (2 * t + 1) / (6 * t**2)  # T times the variance of y
    return cov * spectrum.r + 1 / t, _variance(spectrum, var, cov)


def limit_moments(
    spectrum: Spectrum, theta: Float[np.ndarray, "*n"] | float | int, *, printed: bool = False
) -> tuple[Float[np.ndarray, "*n"], Float[np.ndarray, "*n"]]:
    """Mean and variance at theta = i / T for T -> infinity; the error at finite T is O(1/T).

    Mean (theta - 1/2) tr(M) / lambda; variance [(theta^2 - theta + 1/3) tr(W S W' S) + (theta - 1/2)^2 tr(M^2)] /
    lambda^2, which is (2 theta^2 - 2 theta + 7/12) tr(M^2) / lambda^2 for a symmetric W. `printed` gives the paper's
    (2 theta^2 + 7/12), with the symmetrized W; it is wrong for all theta > 0 (theory L12, L13).
    """
    theta = np.asarray(theta, dtype=np.float64)
    offset = theta - 0.5
    if printed:
        symmetrized = (spectrum.square + spectrum.asymmetric) / 2
        variance = np.asarray((2 * theta**2 + 7 / 12) * symmetrized / spectrum.scale**2)
    else:
        variance = _variance(spectrum, np.asarray(offset**2 + 1 / 12), np.asarray(offset))
    return np.asarray(offset * spectrum.r), variance


def _variance(
    spectrum: Spectrum, var: Float[np.ndarray, "*n"], cov: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    sums = var * spectrum.asymmetric + cov**2 * spectrum.square
    return np.asarray(np.maximum(sums, 0) / spectrum.scale**2)  # below zero only by rounding


def propagation(mean: Float[np.ndarray, "*n"], variance: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """P(0 <= N(mean, variance) <= 1) = 1/2 {erf((1 - mean) / sqrt(2 v)) + erf(mean / sqrt(2 v))} (theory L16).

    At variance 0 its limit: 1 inside (0, 1), 1/2 on 0 and 1, and 0 outside.
    """
    nearer = np.minimum(mean, 1 - mean)  # symmetric about 1/2; the tail is exact from this end
    deviation = np.sqrt(variance)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = ndtr(nearer / deviation) - ndtr((nearer - 1) / deviation)
    return np.asarray(np.where(variance == 0, (1 + np.sign(nearer)) / 2, spread))


def exact_rho(spectrum: Spectrum, t: int) -> Float[np.ndarray, "t"]:
    """rho_i for i = 1..T by the exact mean and variance; the Gaussian law itself is an approximation (d >~ 32)."""
    return propagation(*exact_moments(spectrum, t)) if t != 1 else np.ones(1)  # one token always has all attention


def limit_rho(
    spectrum: Spectrum, theta: Float[np.ndarray, "*n"] | float | int, *, printed: bool = False
) -> Float[np.ndarray, "*n"]:
    """rho(theta) for T -> infinity. It drops the 1/T of the mean, so T must be well above 1 / eta (theory L15)."""
    return propagation(*limit_moments(spectrum, theta, printed=printed))


def spectrum_regime(spectrum: Spectrum) -> Regime:
    """Where rho(theta) is at least half of its peak.

    late: it reaches the end (theta = 1) but not the beginning; early: the reverse; middle: neither; uniform: all of
    [0, 1]; vanishing: the peak is below 0.1. In the limit xi -> +-inf, eta -> 0 these are Lemma 2's: late for
    0 < r <= 2, early for -2 <= r < 0, middle in a band of width 1 / |r| beyond (theory L21). With xi = 0, rho is
    uniform only for small eta, and at the middle for larger ones (theory L22, L32). '' when a trace is NaN or infinite.
    """
    if not np.isfinite([spectrum.r, spectrum.square, spectrum.asymmetric]).all():
        return ""
    # The variance grows away from 1/2 and the mean passes 1/2 at 1/2 + 1 / (2 r), so the peak is between the two.
    half = np.clip(0.5 / spectrum.r, -0.5, 0.5) if spectrum.r else 0.5
    peak = limit_rho(spectrum, 0.5 + half * np.linspace(0, 1, PEAK_POINTS)).max()
    if peak < VANISHING:
        return "vanishing"
    beginning, end = limit_rho(spectrum, np.array([0.0, 1.0])) >= NEAR_PEAK * peak
    if end:
        return "uniform" if beginning else "late"
    return "early" if beginning else "middle"


def regime(xi: float | int, eta: float | int) -> Regime:
    """The regime of a symmetric W with these xi and eta; '' when either is NaN or infinite.

    For a W that is not symmetric use `spectrum_regime`, whose variance is right for it.
    """
    if not np.isfinite(xi) or not np.isfinite(eta):
        return ""
    return spectrum_regime(Spectrum(trace=xi * eta, square=eta * eta, frobenius=None, scale=1.0))


def minimum_entropy(
    norm: Float[np.ndarray, "*n"] | float | int, t: int | Int[np.ndarray, "*#n"]
) -> Float[np.ndarray, "*n"]:
    """The least entropy (nats) of softmax(z) over T logits, centered, with |z|_2 <= norm; it falls from log T to 0.

    One logit is above T - 1 equal ones by a = norm sqrt(T / (T-1)), and the entropy is log(1 + (T-1) e^-a) +
    a (T-1) e^-a / (1 + (T-1) e^-a). The paper's form exceeds log T (theory L26).
    """
    norm, t = np.asarray(norm, dtype=np.float64), np.asarray(t)
    if np.any(t < 1) or np.any(norm < 0):
        raise ArmillaryError(f"{np.min(t)} logits of norm {np.min(norm)}: at least 1 logit and a norm >= 0 are needed")
    others = np.maximum(t - 1, 1)
    gap = np.minimum(norm, 1e300) * np.sqrt(t / others)  # inf * 0 would be NaN
    odds = np.log(others) - gap
    return np.asarray(np.where(t == 1, 0.0, np.logaddexp(0, odds) + gap * expit(odds)))


def locater_minimizer(kappa1: float | int, kappa2: float | int, d: int, target: float | int = 1.0) -> float:
    """w = kappa2 target / (kappa1 + kappa2 d): w I, d x d, minimizes kappa1 tr(W'W) + kappa2 (tr W - target)^2.

    Its trace d w falls short of the target by the factor kappa2 d / (kappa1 + kappa2 d) (theory L31).
    """
    if kappa1 <= 0 or kappa2 < 0:
        raise ArmillaryError(f"kappa1 = {kappa1}, kappa2 = {kappa2}: one minimizer needs kappa1 > 0 and kappa2 >= 0")
    return float(kappa2 * target / (kappa1 + kappa2 * d))


def localizing_target(r: float | int, scale: float | int) -> float:
    """The trace r lambda of W Sigma at which rho is a band of width 1 / |r| at the middle.

    |r| must be above 2; the paper's target 1 is r = 1 / lambda, which does not localize (theory L30).
    """
    if not abs(r) > 2:
        raise ArmillaryError(f"r = {r} does not localize attention: |r| must be above 2 (5 gives a fifth of the text)")
    return float(r * scale)
