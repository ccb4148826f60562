"""The singular values of a matrix of independent noise, and thresholds for outliers.

A matrix has sides n and m, in either order, and entries of mean 0 and variance s^2. Squared singular values are of
order s^2 m, except in `MarchenkoPastur` and `fit_variance`, which divide them by the larger side.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import gammaincinv

from armillary.errors import ArmillaryError

Values = Float[np.ndarray, "*batch"] | float | int
Array = Float[np.ndarray, "*batch"]

BISECTIONS = 55
"""Halvings of [0, pi] that exhaust float64."""
GAMMA_SHAPE, GAMMA_SCALE, GAMMA_SHIFT = 46.446, 0.186054, 9.84801
"""The Tracy-Widom law for beta = 1 is about that of a gamma variable minus a shift: Chiani, Distribution of the largest
eigenvalue for real Wishart and Gaussian random matrices and a simple approximation for the Tracy-Widom distribution,
J. Multivariate Analysis 129 (2014) 69-81, table 1 (arXiv 1209.3394)."""


@dataclass(frozen=True)
class MarchenkoPastur:
    """The limit law of the squared singular values of noise, divided by the larger side; its mean is the variance.

    density sqrt((b - x)(x - a)) / (2 pi s^2 r x) on [a, b] = s^2 (1 -+ sqrt r)^2, r = smaller side / larger side.
    The paper does not divide (theory T2.5c, T2.5d).
    """

    ratio: float | int
    variance: float | int

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ArmillaryError(
                f"ratio={self.ratio}",
                advice="expected smaller side / larger side, in (0, 1].",
                given=self.ratio,
                expected="above 0, at most 1",
            )
        _check_variance(self.variance)

    @property
    def lower(self) -> float:
        """a: the lower edge."""
        return float(self.variance * (1 - np.sqrt(self.ratio)) ** 2)

    @property
    def upper(self) -> float:
        """b: the upper edge."""
        return float(self.variance * (1 + np.sqrt(self.ratio)) ** 2)

    @property
    def median(self) -> float:
        return float(self.quantile(0.5))

    def density(self, x: Values) -> Array:
        """The density; 0 at the edges and beyond."""
        x = np.asarray(x, dtype=np.float64)
        inside = (x > self.lower) & (x < self.upper)
        at = np.where(inside, x, self.variance)
        root = np.sqrt(np.clip((self.upper - at) * (at - self.lower), 0, None))
        return np.where(inside, root / (2 * np.pi * self.variance * self.ratio * at), 0.0)

    def cdf(self, x: Values) -> Array:
        """The share of values up to x, in closed form."""
        x = np.clip(np.asarray(x, dtype=np.float64), self.lower, self.upper)
        return self._mass(np.sqrt(x - self.lower), np.sqrt(self.upper - x))

    def quantile(self, p: Values) -> Array:
        """The value that a share p lies below: bisection over phi in x = a + (b - a) sin^2(phi/2)."""
        p = np.asarray(p, dtype=np.float64)
        if not np.all((p >= 0) & (p <= 1)):
            raise ArmillaryError(
                f"quantile of p={p}", advice="expected a share from 0 to 1.", given=p, expected="0 to 1"
            )
        span = np.sqrt(self.upper - self.lower)
        low, high = np.zeros_like(p), np.full_like(p, np.pi)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self._mass(span * np.sin(middle / 2), span * np.cos(middle / 2)) < p
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        # The cdf is flat at the edges, where rounding would stop the search early.
        high = np.where(p == 1, np.pi, np.where(p == 0, 0.0, high))
        return np.asarray(self.lower + np.square(span * np.sin(high / 2)))

    def _mass(self, from_lower: Values, to_upper: Values) -> Array:
        """The cdf from sqrt(x - a) and sqrt(b - x), by angles, which are accurate at the edges."""
        phi = 2 * np.arctan2(from_lower, to_upper)
        psi = 2 * np.arctan2(from_lower * np.sqrt(self.upper), to_upper * np.sqrt(self.lower))
        r = self.ratio
        mass = from_lower * to_upper / self.variance + (1 + r) * phi - (1 - r) * psi
        return np.asarray(np.clip(mass / (2 * np.pi * r), 0, 1))


def fit_variance(values: Float[np.ndarray, "n"], ratio: float | int) -> float:
    """The entries' variance from the bulk: median of the squared singular values over that of the law of variance 1.

    All min(n, m) values, divided by the larger side. Outliers shift the median by half their number of ranks, whatever
    their size: 3 % of them raise the fit by 2.6 % at 300 x 600. 0 for a matrix of zeros.
    """
    if not len(values):
        raise ArmillaryError(
            "A variance cannot be fitted to no values", advice="give all squared singular values of a matrix."
        )
    return float(np.median(values) / MarchenkoPastur(ratio, 1.0).median)


def quarter_circle_density(x: Values, scale: float | int = 1) -> Array:
    """sqrt(4 c^2 - x^2) / (pi c^2) on [0, 2 c]: singular values of a square n x n matrix of noise, c = s sqrt n.

    Those of a symmetric matrix, the moduli of its eigenvalues, have the same law (theory T2.5e).
    """
    x = np.asarray(x, dtype=np.float64) / scale
    root = np.sqrt(np.clip(4 - np.square(x), 0, None))
    return np.where(x >= 0, root / (np.pi * scale), 0.0)


def quarter_circle_cdf(x: Values, scale: float | int = 1) -> Array:
    """The share of singular values up to x: (u sqrt(4 - u^2) + 4 arcsin(u/2)) / (2 pi), u = x/c."""
    u = np.clip(np.asarray(x, dtype=np.float64) / scale, 0, 2)
    return np.asarray((u * np.sqrt(4 - np.square(u)) + 4 * np.arcsin(u / 2)) / (2 * np.pi))


def quarter_circle_mean(scale: float | int = 1) -> float:
    """8/(3 pi) c = 0.849 c; the paper has c (theory T6.29)."""
    return float(8 / (3 * np.pi) * scale)


def tracy_widom_quantile(p: float | int) -> float:
    """Quantile of the Tracy-Widom law for beta = 1, by Chiani's gamma approximation (see GAMMA_SHAPE).

    Within 0.01 of the exact ones from 0.05 to 0.99.
    """
    if not 0 < p < 1:
        raise ArmillaryError(f"p={p}", advice="expected a probability between 0 and 1; the law has no end points.")
    return float(gammaincinv(GAMMA_SHAPE, p) * GAMMA_SCALE - GAMMA_SHIFT)


def largest_mean(n: int, m: int, variance: float | int) -> float:
    """Mean of the largest squared singular value, s^2 (center - 1.2065 width), which tends to s^2 (sqrt n + sqrt m)^2.

    Center and width are Johnstone's (theory T6.12).
    """
    center, width = _johnstone(n, m, variance)
    return center + (GAMMA_SHAPE * GAMMA_SCALE - GAMMA_SHIFT) * width


def largest_quantile(n: int, m: int, variance: float | int, p: float | int) -> float:
    """The value that the largest squared singular value of noise stays below with probability p."""
    center, width = _johnstone(n, m, variance)
    return center + tracy_widom_quantile(p) * width


def outlier_threshold(n: int, m: int, variance: float | int, false_positive: float | int = 0.01) -> float:
    """The squared singular value that a matrix of noise exceeds, by one value or more, with this probability.

    Asymptotic: at 64 x 4096 a threshold for 5 % is exceeded by 4.2 % of matrices, at 8 x 4096 by 3.4 %.
    """
    return largest_quantile(n, m, variance, 1 - false_positive)


def spike_location(strength: Values, n: int, m: int, variance: float | int) -> Array:
    """The squared singular value of noise + theta u v' of the spike: (theta^2 + s^2 n)(theta^2 + s^2 m)/theta^2.

    u, v unit vectors. A theta up to `spike_threshold` is not visible: then this is the edge s^2 (sqrt n + sqrt m)^2
    (Benaych-Georges and Nadakuditi, J. Multivariate Analysis 111 (2012) 120-135).
    """
    visible = np.maximum(np.square(np.asarray(strength, dtype=np.float64)), spike_threshold(n, m, variance) ** 2)
    return np.asarray((visible + variance * n) * (visible + variance * m) / visible)


def spike_threshold(n: int, m: int, variance: float | int) -> float:
    """The least theta that is visible: s (n m)^(1/4)."""
    _check_sides(n, m)
    _check_variance(variance)
    return float(np.sqrt(variance) * (n * m) ** 0.25)


def spike_strength(squared_singular_value: Values, n: int, m: int, variance: float | int) -> Array:
    """The inverse of `spike_location`: theta, below the singular value itself; NaN below the edge."""
    edge = spike_threshold(n, m, variance) ** 2
    sum_of_roots = np.asarray(squared_singular_value, dtype=np.float64) - variance * (n + m)
    with np.errstate(invalid="ignore"):
        root = np.sqrt((sum_of_roots - 2 * edge) * (sum_of_roots + 2 * edge))
    return np.asarray(np.sqrt(np.where(sum_of_roots >= 2 * edge, (sum_of_roots + root) / 2, np.nan)))


def alignment_z(product_trace: float | int, norm_q: float | int, norm_k: float | int, d: int, e: int) -> float:
    """tr(W_q'W_k) sqrt(d e) / (|W_q|_F |W_k|_F): standard normal if two d x e matrices are unrelated.

    It holds for any spectra (theory T6.17, T6.34); NaN if one is zero.
    """
    norms = norm_q * norm_k
    return float(product_trace * np.sqrt(d * e) / norms) if norms > 0 else np.nan


def xavier_variance(rows: int, columns: int) -> float:
    """2 / (rows + columns): the variance of entries that Xavier's initialization draws."""
    _check_sides(rows, columns)
    return 2 / (rows + columns)


def _johnstone(n: int, m: int, variance: float | int) -> tuple[float, float]:
    """Center and width: s^2 c^2 and s^2 c (1/sqrt(m - 1) + 1/sqrt n)^(1/3), c = sqrt(m - 1) + sqrt n, for m >= n.

    Johnstone, On the distribution of the largest eigenvalue in principal components analysis, Ann. Statist. 29 (2001).
    """
    _check_sides(n, m)
    _check_variance(variance)
    small, large = np.sqrt(min(n, m)), np.sqrt(max(n, m, 2) - 1)
    center = small + large
    return float(variance * center**2), float(variance * center * (1 / small + 1 / large) ** (1 / 3))


def _check_sides(n: int, m: int) -> None:
    if min(n, m) < 1:
        raise ArmillaryError(f"A matrix of {n} x {m}: both sides must be at least 1.")


def _check_variance(variance: float | int) -> None:
    if not 0 < variance < np.inf:
        raise ArmillaryError(
            f"variance={variance}: the entries' variance must be positive and finite (a zero matrix has no law)."
        )
