# mypy: disable-error-code="no-untyped-def"
"""The attention statistics of rows of logits in one compiled loop: each row is read from memory once.

    for every head, text and row
        1 visible    the logits that the row sees; under a mask they are first copied next to each other
        2 places     sums of the logits, of their squares and of the attention by lag, and of the logits by cell
        3 moments    mean of the logits, and sums of powers about it
        4 hits       which keys pass a signal (streams/localization.py)
        5 softmax    exp(logit - largest), and sums of it
        6 centered   the logits minus the row's mean replace the logits

Sums along a row are float32, sums over rows float64. A head's sums do not depend on how heads are divided over threads.

Arrays are flat, and a row is given as where it begins and how long it is, both unsigned: numba counts references for
every slice, and checks every signed index for being negative, which costs more than the sums of a short row.
Imported only where numba is. (numba infers the types: rows are float32, sums float64.)
"""

import math

import numpy as np

from armillary.machine.compiler import compiled
from armillary.machine.intrinsics import doubled, larger, rounded
from armillary.streams.localization import PLACES

NAMES = (
    *("entropy", "entropy_norm", "entropy_rows", "self_mass", "prev_mass", "first_mass", "sink_mass", "mean_distance"),
    *("least_entropy", "logit_pairs", "logit_mean", "logit_m2", "logit_m3", "logit_m4", "logit_square", "bias_sum"),
    *("rho_keys", "rho_rows", "rows"),
)
"""The sums of a head in their order, by their names in the state of AttentionStatistics."""

ENTROPY, ENTROPY_NORM, ENTROPY_ROWS, SELF, PREVIOUS, FIRST, SINK, DISTANCE = range(8)
LEAST, PAIRS, MEAN, M2, M3, M4, SQUARE, BIASED, RHO_KEYS, RHO_ROWS, ROWS = range(8, 19)

f4, f8, u8 = np.float32, np.float64, np.uint64
ZERO, ONE = f4(0.0), f4(1.0)
LOG2E = f4(math.log2(math.e))
LOWEST = f4(-125.0)
"""Exponents below this are raised to it: 2^-125 is negligible, and numbers below the normal ones are slow."""
C1, C2, C3, C4, C5, C6, C7 = (f4(math.log(2) ** k / math.factorial(k)) for k in range(1, 8))
"""The series of 2^x."""


@compiled
def largest(row, at, n):
    top = row[at]
    for j in range(n):
        top = larger(top, row[at + j])
    return top


@compiled
def mean_near(row, at, n):
    """The mean, to float32."""
    total = ZERO
    for j in range(n):
        total += row[at + j]
    return f4(f8(total) / max(f8(n), 1.0))


@compiled
def powers_about(row, at, n, near):
    """Sums of the first four powers of the numbers minus `near`."""
    first, second, third, fourth = ZERO, ZERO, ZERO, ZERO
    for j in range(n):
        off = row[at + j] - near
        square = off * off
        first += off
        second += square
        third += square * off
        fourth += square * square
    return f8(first), f8(second), f8(third), f8(fourth)


@compiled
def soft_sums(row, at, n, top, place, weights):
    """Sums of w = exp(row - top), of w (row - top), and of w times the distance from column `place`; stores w.

    2^x is 2^n 2^f with n a whole number and f from -1/2 to 1/2, where seven terms of the series give seven digits.
    """
    total, gap, distance = ZERO, ZERO, ZERO
    for j in range(n):
        off = row[at + j] - top
        x = larger(off * LOG2E, LOWEST)
        whole = rounded(x)
        f = x - f4(whole)
        w = doubled(ONE + f * (C1 + f * (C2 + f * (C3 + f * (C4 + f * (C5 + f * (C6 + f * C7)))))), whole)
        weights[j] = w
        total += w
        gap += w * off
        distance += w * abs(place - f4(j))
    return f8(total), f8(gap), f8(distance)


@compiled
def add_places(row, at, n, shift, near, lags, once, twice, columns, column):
    """Add the logits to the sums of their lags (from `once`, and squared from `twice` on) and of their columns.

    near: what logits of each lag are near to, which is taken from them first; or nothing.
    """
    if len(near) > 0:
        for j in range(n):
            logit = row[at + j] + shift
            off = logit - near[once + j]
            lags[once + j] += off
            lags[twice + j] += off * off
            columns[column + j] += logit
    else:
        for j in range(n):
            logit = row[at + j] + shift
            lags[once + j] += logit
            lags[twice + j] += logit * logit
            columns[column + j] += logit


@compiled
def scatter_places(row, keys, at, n, shift, near, lags, once, twice, columns):
    """The same for keys that are not consecutive; `keys` are their columns."""
    for j in range(n):
        logit, key = row[at + j] + shift, keys[at + j]
        off = logit - near[once + key] if len(near) > 0 else logit
        lags[once + key] += off
        lags[twice + key] += off * off
        columns[key] += logit


@compiled
def gathered_distance(weights, keys, n, place):
    """The sum of the weights times the distance from column `place`, for keys that are not consecutive."""
    distance = ZERO
    for j in range(n):
        distance += weights[j] * abs(place - f4(keys[j]))
    return f8(distance)


@compiled
def count_between(row, at, n, low, high):
    count = 0
    for j in range(n):
        count += (row[at + j] >= low) & (row[at + j] <= high)
    return count


@compiled
def add_hits(row, at, n, mean, hits, h):
    """Count, by place, the keys whose logit minus the mean lies in [-1, n - 1]."""
    low, high = f4(mean - 1.0), f4(mean + f8(n) - 1.0)
    before = u8(0)
    for place in range(PLACES):
        after = (u8(place + 1) * n + u8(PLACES - 1)) // u8(PLACES)
        hits[h, 0, place] += count_between(row, at + before, after - before, low, high)
        hits[h, 1, place] += f8(after - before)
        before = after


@compiled
def least_entropy(square, number):
    """streams/localization.py, least_entropy, of one row."""
    if number < 2:
        return 0.0
    others = number - 1.0
    gap = math.sqrt(max(square, 0.0) * number / others)
    odds = math.log(others) - gap
    small = math.exp(-abs(odds))
    chance = (1.0 if odds > 0 else small) / (1.0 + small)
    return max(odds, 0.0) + math.log1p(small) + gap * chance


@compiled
def add_moments(sums, h, n, mean, m2, m3, m4):
    """Join the powers of one row, about its own mean, with those of the rows before (power_sums.combine_moments)."""
    a, a2, a3 = sums[h, PAIRS], sums[h, M2], sums[h, M3]
    shift = mean - sums[h, MEAN]
    share = shift / (a + n)
    fourth = share**3 * shift * a * n * (a * a - a * n + n * n) + 6.0 * share**2 * (a * a * m2 + n * n * a2)
    sums[h, M4] += m4 + fourth + 4.0 * share * (a * m3 - n * a3)
    sums[h, M3] += m3 + share**2 * shift * a * n * (a - n) + 3.0 * share * (a * m2 - n * a2)
    sums[h, M2] += m2 + share * shift * a * n
    sums[h, MEAN] += share * n
    sums[h, PAIRS] = a + n


@compiled
def add_logits(row, at, skipped, n, shift, late, sums, hits, h):
    """Moments and hits of the kept logits, those after `skipped`, plus `shift`. Returns their mean and the sum of
    squares of the whole row about its mean, both without `shift`."""
    kept, number = at + skipped, f8(n - skipped)
    near, mean = ZERO, 0.0
    s1, s2 = 0.0, 0.0
    if number > 0:
        near = mean_near(row, kept, n - skipped)
        s1, s2, s3, s4 = powers_about(row, kept, n - skipped, near)
        d = s1 / number  # the rounding error of `near`
        mean = f8(near) + d
        square = max(s2 - number * d * d, 0.0)
        cube, fourth = s3 - 3 * d * s2 + 2 * number * d**3, s4 - 4 * d * s3 + 6 * d * d * s2 - 3 * number * d**4
        add_moments(sums, h, number, mean + shift, square, cube, fourth)
        sums[h, SQUARE] += square
        if late:
            add_hits(row, kept, n - skipped, mean, hits, h)
            sums[h, RHO_KEYS] += number
            sums[h, RHO_ROWS] += 1.0
    p1, p2, _, _ = powers_about(row, at, skipped, near)
    return mean, s2 + p2 - (s1 + p1) ** 2 / max(f8(n), 1.0)


@compiled
def square_about_mean(row, at, n):
    """The sum of squares about the mean."""
    first, second, _, _ = powers_about(row, at, n, mean_near(row, at, n))
    return second - first * first / max(f8(n), 1.0)


@compiled
def add_softmax(sums, h, number, total, gap, distance, top, near, sinks):
    """Entropy, masses and distance of a row; near: weights of its own key, the previous and the first one.

    A sink is one more outcome. Returns what the weights are multiplied with to be the attention.
    """
    own, before, first = near
    scale = 1.0
    if len(sinks) > 0:
        sink = sinks[h]
        new = max(top, sink)
        less, extra = math.exp(top - new), math.exp(sink - new)
        gap = less * (gap + (top - new) * total) + extra * (sink - new)
        total = less * total + extra
        distance, own, before, first = distance * less, own * less, before * less, first * less
        sums[h, SINK] += extra / total
        scale = less
    entropy = max(math.log(total) - gap / total, 0.0)
    sums[h, ENTROPY] += entropy
    sums[h, DISTANCE] += distance / total
    sums[h, SELF] += own / total
    sums[h, PREVIOUS] += before / total
    sums[h, FIRST] += first / total
    if number > 1:
        sums[h, ENTROPY_NORM] += entropy / math.log(number)
        sums[h, ENTROPY_ROWS] += 1.0
    return scale / total


@compiled
def at_column(weights, n, column):
    """The weight at a column; 0 outside."""
    return f8(weights[column]) if 0 <= column < n else 0.0


@compiled
def of_key(weights, keys, n, key):
    """The weight of a key; 0 if it is not among the keys."""
    for j in range(n):
        if keys[j] == key:
            return f8(weights[j])
    return 0.0


@compiled
def add_attention(row, at, n, square, shift, own, first, keys, masked, weights, sinks, sums, h):
    """Entropies, masses and distance of a row; own, first: columns of its own key and of the text's first. Under a mask
    `keys` are the columns of the row's logits. Returns what `weights` are multiplied with to be the attention."""
    if n == 0:
        sums[h, SINK] += 1.0 if len(sinks) > 0 else 0.0
        return ZERO
    sums[h, LEAST] += least_entropy(square, f8(n))
    top = largest(row, at, n)
    total, gap, distance = soft_sums(row, at, n, top, f4(own), weights)
    if masked:
        distance = gathered_distance(weights, keys, n, f4(own))
        near = (of_key(weights, keys, n, own), of_key(weights, keys, n, own - 1), of_key(weights, keys, n, first))
    else:
        near = (at_column(weights, n, own), at_column(weights, n, own - 1), at_column(weights, n, first))
    return f4(add_softmax(sums, h, f8(n), total, gap, distance, f8(top) + shift, near, sinks))


@compiled
def add_by_lag(weights, first, n, scale, lags, at):
    """Add the attention on keys first to n to the sums of their lags."""
    for j in range(first, n):
        lags[at + j] += weights[j] * scale


@compiled
def scatter_by_lag(weights, keys, first, n, scale, lags, at):
    """The same for keys that are not consecutive; `keys` are their columns."""
    for j in range(first, n):
        lags[at + keys[j]] += weights[j] * scale
