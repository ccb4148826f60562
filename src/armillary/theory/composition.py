"""How large the product of two matrices is if their bases are unrelated."""

import numpy as np
from jaxtyping import Float

Traces = tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]
"""tr M and tr M^2 of symmetric matrices."""


def product_moments(m: Traces, n: Traces, d: int) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Mean and standard deviation of tr(M U N U') over random orthogonal U, for symmetric d x d matrices M and N.

    The mean is tr M tr N / d, the variance 2 (tr M^2 - (tr M)^2 / d) (tr N^2 - (tr N)^2 / d) / ((d - 1) (d + 2)).
    """
    spreads = [np.maximum(0.0, square - trace**2 / d) for trace, square in (m, n)]
    return np.asarray(m[0] * n[0] / d), np.sqrt(2 * spreads[0] * spreads[1] / ((d - 1) * (d + 2)))
