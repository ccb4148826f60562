# mypy: disable-error-code="no-untyped-def"
"""The distance of each head's mixed values to a matrix of equal rows (streams/similarity.py), in one compiled loop.

Two passes over a head's vectors, which stay in the cache: their mean, then squares about it.
Imported only where numba is.
"""

import numpy as np

from armillary.machine.compiler import compiled

f4, f8, u8 = np.float32, np.float64, np.uint64
TOGETHER = 64
"""Vectors that are summed in float32 before they are added in float64."""


@compiled
def squares_about(row, at, mean, n):
    """Sums of squares of a vector, and of the vector minus `mean`."""
    whole, left = f4(0), f4(0)
    for c in range(n):
        value = row[at + c]
        off = value - mean[c]
        whole += value * value
        left += off * off
    return f8(whole), f8(left)


@compiled
def add_vector(row, at, part, n):
    for c in range(n):
        part[c] += row[at + c]


@compiled
def add_distances(heads, z, skip, into):
    """Add sqrt(|Z - 1 mean'|^2 / |Z|^2) of heads[0] to heads[1] over texts; z: (text, token, head, e)."""
    texts, tokens, count, width = z.shape
    flat, n, number = z.reshape(-1), u8(width), f8(tokens - skip)
    part, mean, near = np.zeros(width, f4), np.zeros(width), np.zeros(width, f4)
    for h in range(heads[0], heads[1]):
        for b in range(texts):
            mean[:] = 0.0
            for t in range(skip, tokens):
                add_vector(flat, u8((b * tokens + t) * count + h) * n, part, n)
                if (t - skip) % TOGETHER == TOGETHER - 1 or t == tokens - 1:
                    for c in range(width):
                        mean[c] += f8(part[c]) / number
                        part[c] = f4(0)
            rounding = 0.0
            for c in range(width):
                near[c] = f4(mean[c])
                rounding += (mean[c] - f8(near[c])) ** 2
            whole, left = 0.0, 0.0
            for t in range(skip, tokens):
                more = squares_about(flat, u8((b * tokens + t) * count + h) * n, near, n)
                whole += more[0]
                left += more[1]
            if whole > 0.0:
                into[h] += np.sqrt(max(left - number * rounding, 0.0) / whole)
