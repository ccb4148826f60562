# mypy: disable-error-code="no-untyped-def"
"""Squares of vectors about their mean, in compiled loops that read them twice while they stay in the cache.

The distance of each head's mixed values to a matrix of equal rows (streams/similarity.py), and moments of vectors at
every position (streams/moments.py). Imported only where numba is.
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


CHANNELS = 1024
"""Channels whose squares are summed in float32 before they are added in float64."""


@compiled
def add_positions(span, h, mean, scatter, norm, norm_squared):
    """Set the mean over texts at positions span[0] to span[1], add to the sums there; h: (text, position, width)."""
    texts, positions, width = h.shape
    flat, number = h.reshape(-1), f8(texts)
    near = np.zeros(width, f4)
    for t in range(span[0], span[1]):
        for b in range(texts):
            at = u8((b * positions + t) * width)
            for c in range(u8(width)):
                mean[t, c] += f8(flat[at + c])
        rounding = 0.0
        for c in range(width):
            mean[t, c] /= number
            near[c] = f4(mean[t, c])
            rounding += (mean[t, c] - f8(near[c])) ** 2
        for b in range(texts):
            whole = 0.0
            for start in range(0, width, CHANNELS):
                n = min(CHANNELS, width - start)
                at = u8((b * positions + t) * width + start)
                more = squares_about(flat, at, near[start : start + n], u8(n))
                whole += more[0]
                scatter[t] += more[1]
            norm[t] += np.sqrt(whole)
            norm_squared[t] += whole
        scatter[t] -= number * rounding
