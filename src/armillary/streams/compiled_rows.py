# mypy: disable-error-code="no-untyped-def"
"""The attention statistics of rows of logits in one compiled loop: each row is read from memory once.

    for every head, text and row
        1 visible    the logits that the row sees; under a mask they are first copied next to each other
        2 places     sums of the logits and of their squares by lag, and of the logits by cell
        3 moments    mean of the logits, and sums of powers about it
        4 hits       which keys pass a signal (streams/localization.py)
        5 softmax    exp(logit - largest), and sums of it
        6 centered   the logits minus the row's mean replace the logits

Sums along a row are float32, sums over rows float64. A head's sums do not depend on how heads are divided over threads.
Functions take slices and count from 0: numba checks every other index for being negative, which hinders vector units.
Imported only where numba is. (numba infers the types: row is float32[:], sums float64[:].)
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

f4, f8 = np.float32, np.float64
ZERO, ONE = f4(0.0), f4(1.0)
LOG2E = f4(math.log2(math.e))
LOWEST = f4(-125.0)
"""Exponents below this are raised to it: 2^-125 is negligible, and numbers below the normal ones are slow."""
C1, C2, C3, C4, C5, C6, C7 = (f4(math.log(2) ** k / math.factorial(k)) for k in range(1, 8))
"""The series of 2^x."""
FLUSH = 16
"""Sums by lag of this many rows are float32 before they are added in float64."""


@compiled
def largest(row):
    top = row[0]
    for j in range(len(row)):
        top = larger(top, row[j])
    return top


@compiled
def mean_near(row):
    """The mean, to float32."""
    total = ZERO
    for j in range(len(row)):
        total += row[j]
    return f4(f8(total) / max(len(row), 1))


@compiled
def powers_about(row, near):
    """Sums of the first four powers of row - near."""
    first, second, third, fourth = ZERO, ZERO, ZERO, ZERO
    for j in range(len(row)):
        off = row[j] - near
        square = off * off
        first += off
        second += square
        third += square * off
        fourth += square * square
    return f8(first), f8(second), f8(third), f8(fourth)


@compiled
def soft_sums(row, top, place, weights):
    """Sums of w = exp(row - top), of w (row - top), and of w times the distance from column `place`; stores w.

    2^x is 2^n 2^f with n a whole number and f from -1/2 to 1/2, where seven terms of the series give seven digits.
    """
    total, gap, distance = ZERO, ZERO, ZERO
    for j in range(len(row)):
        off = row[j] - top
        x = larger(off * LOG2E, LOWEST)
        n = rounded(x)
        f = x - f4(n)
        w = doubled(ONE + f * (C1 + f * (C2 + f * (C3 + f * (C4 + f * (C5 + f * (C6 + f * C7)))))), n)
        weights[j] = w
        total += w
        gap += w * off
        distance += w * abs(place - f4(j))
    return f8(total), f8(gap), f8(distance)


@compiled
def add_places(row, shift, once, twice, column):
    """Add the logits to the sums of their lags and columns."""
    for j in range(len(row)):
        logit = row[j] + shift
        once[j] += logit
        twice[j] += logit * logit
        column[j] += logit


@compiled
def scatter_places(row, keys, shift, once, twice, column):
    """The same for keys that are not consecutive."""
    for n in range(len(row)):
        logit, j = row[n] + shift, keys[n]
        once[j] += logit
        twice[j] += logit * logit
        column[j] += logit


@compiled
def gathered_distance(weights, keys, place):
    """The sum of the weights times the distance from column `place`, for keys that are not consecutive."""
    distance = ZERO
    for n in range(len(weights)):
        distance += weights[n] * abs(place - f4(keys[n]))
    return f8(distance)


@compiled
def add_hits(row, mean, hits, counts):
    """Count, by place, the keys whose logit minus the mean lies in [-1, number of keys - 1]."""
    low, high = f4(mean - 1.0), f4(mean + len(row) - 1.0)
    before = 0
    for place in range(PLACES):
        after = ((place + 1) * len(row) + PLACES - 1) // PLACES
        part = row[before:after]
        count = 0
        for j in range(len(part)):
            count += (part[j] >= low) & (part[j] <= high)
        hits[place] += count
        counts[place] += after - before
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
def add_moments(sums, n, mean, m2, m3, m4):
    """Join the powers of one row, about its own mean, with those of the rows before (power_sums.combine_moments)."""
    a, a2, a3 = sums[PAIRS], sums[M2], sums[M3]
    shift = mean - sums[MEAN]
    share = shift / (a + n)
    fourth = share**3 * shift * a * n * (a * a - a * n + n * n) + 6.0 * share**2 * (a * a * m2 + n * n * a2)
    sums[M4] += m4 + fourth + 4.0 * share * (a * m3 - n * a3)
    sums[M3] += m3 + share**2 * shift * a * n * (a - n) + 3.0 * share * (a * m2 - n * a2)
    sums[M2] += m2 + share * shift * a * n
    sums[MEAN] += share * n
    sums[PAIRS] = a + n


@compiled
def add_logits(row, skipped, shift, late, sums, hits):
    """Moments and hits of the kept logits, row[skipped:] + shift. Returns the mean of these and the sum of squares of
    the whole row about its mean, both without `shift`."""
    kept = row[skipped:]
    n, near, mean = len(kept), ZERO, 0.0
    s1, s2 = 0.0, 0.0
    if n > 0:
        near = mean_near(kept)
        s1, s2, s3, s4 = powers_about(kept, near)
        d = s1 / n  # the rounding error of `near`
        mean = f8(near) + d
        square = max(s2 - n * d * d, 0.0)
        cube, fourth = s3 - 3 * d * s2 + 2 * n * d**3, s4 - 4 * d * s3 + 6 * d * d * s2 - 3 * n * d**4
        add_moments(sums, f8(n), mean + shift, square, cube, fourth)
        sums[SQUARE] += square
        if late:
            add_hits(kept, mean, hits[0], hits[1])
            sums[RHO_KEYS] += n
            sums[RHO_ROWS] += 1.0
    p1, p2, _, _ = powers_about(row[:skipped], near)
    return mean, s2 + p2 - (s1 + p1) ** 2 / max(len(row), 1)


@compiled
def square_about_mean(row):
    """The sum of squares about the mean."""
    first, second, _, _ = powers_about(row, mean_near(row))
    return second - first * first / max(len(row), 1)


@compiled
def add_softmax(sums, number, total, gap, distance, top, near, sinks):
    """Entropy, masses and distance of a row; near: weights of its own key, the previous and the first one. A sink is one
    more outcome."""
    own, before, first = near
    if len(sinks) > 0:
        new = max(top, sinks[0])
        less, extra = math.exp(top - new), math.exp(sinks[0] - new)
        gap = less * (gap + (top - new) * total) + extra * (sinks[0] - new)
        total = less * total + extra
        distance, own, before, first = distance * less, own * less, before * less, first * less
        sums[SINK] += extra / total
    entropy = max(math.log(total) - gap / total, 0.0)
    sums[ENTROPY] += entropy
    sums[DISTANCE] += distance / total
    sums[SELF] += own / total
    sums[PREVIOUS] += before / total
    sums[FIRST] += first / total
    if number > 1:
        sums[ENTROPY_NORM] += entropy / math.log(number)
        sums[ENTROPY_ROWS] += 1.0


@compiled
def at(weights, column):
    """The weight at a column; 0 outside."""
    return f8(weights[column]) if 0 <= column < len(weights) else 0.0


@compiled
def of_key(weights, keys, key):
    """The weight of a key; 0 if it is not among the keys."""
    for n in range(len(keys)):
        if keys[n] == key:
            return f8(weights[n])
    return 0.0


@compiled
def add_range(row, capped, skipped, shift, off, place, late, lags, column, weights, sink, sums, hits):
    """Add a row of consecutive visible keys; `place` is (column of its own key, column of the text's first key). Returns
    the mean of the kept logits."""
    add_places(row[skipped:], off, lags[0, skipped:], lags[1, skipped:], column[skipped:])
    mean, square = add_logits(row, skipped, shift, late, sums, hits)
    soft = row
    if len(capped) > 0:
        soft = capped
        square = square_about_mean(soft)
    if len(row) > 0:
        sums[LEAST] += least_entropy(square, f8(len(row)))
        top = largest(soft)
        total, gap, distance = soft_sums(soft, top, f4(place[0]), weights)
        near = (at(weights[: len(row)], place[0]), at(weights[: len(row)], place[0] - 1), at(weights[: len(row)], place[1]))
        add_softmax(sums, len(row), total, gap, distance, f8(top) + shift, near, sink)
    return mean


@compiled
def gather(row, seen, values, keys):
    """Copy what is seen of a row to `values`, with its columns to `keys`; return how many there are."""
    count = 0
    for j in range(len(row)):
        if seen[j]:
            values[count] = row[j]
            keys[count] = j
            count += 1
    return count


@compiled
def add_gathered(row, capped, keys, skipped, shift, off, place, late, lags, column, weights, sink, sums, hits):
    """The same for visible keys that are not consecutive; `keys` are their columns."""
    scatter_places(row[skipped:], keys[skipped:], off, lags[0], lags[1], column)
    mean, square = add_logits(row, skipped, shift, late, sums, hits)
    soft = row
    if len(capped) > 0:
        soft = capped
        square = square_about_mean(soft)
    if len(row) > 0:
        sums[LEAST] += least_entropy(square, f8(len(row)))
        top = largest(soft)
        total, gap, _ = soft_sums(soft, top, ZERO, weights)
        distance = gathered_distance(weights[: len(row)], keys, f4(place[0]))
        near = (of_key(weights, keys, place[0]), of_key(weights, keys, place[0] - 1), of_key(weights, keys, place[1]))
        add_softmax(sums, len(row), total, gap, distance, f8(top) + shift, near, sink)
    return mean


@compiled
def center(row, first, last, mean, begin, end):
    """In columns begin to end: the logits from first to last minus their mean, and zero elsewhere."""
    row[begin : max(begin, min(first, end))] = ZERO
    part = row[max(first, begin) : max(first, begin, min(last, end))]
    for j in range(len(part)):
        part[j] -= mean
    row[max(last, begin) : end] = ZERO


@compiled
def center_gathered(row, values, keys, mean):
    """The same for all columns of a row under a mask."""
    row[:] = ZERO
    for n in range(len(values)):
        row[keys[n]] = values[n] - mean


@compiled
def flush(buffer, into):
    """Add float32 sums to float64 ones and set them to zero."""
    for j in range(len(buffer)):
        into[j] += f8(buffer[j])
        buffer[j] = ZERO


@compiled
def flush_cells(column, cells, into):
    """Add sums by column to the cells of the columns, and set them to zero."""
    for j in range(len(column)):
        into[cells[j]] += f8(column[j])
        column[j] = ZERO


@compiled
def dot(row, other):
    total = 0.0
    for j in range(len(row)):
        total += f8(row[j]) * f8(other[j])
    return total


@compiled
def add_row(i, tile, begin, end, logits, soft, seen, shift, middle, sink, sums, hits, buffers):
    """Add row i of a head and text, and replace it by its centered logits; returns the mean of the kept ones."""
    skipped, plain, plain_end, own, first, late, lag = tile
    lags, column, weights, values, soft_values, keys = buffers
    row, off = logits[i], f4(shift[i] - middle)
    start, stop = begin[i], end[i]
    if len(seen) > 0:
        count = gather(row, seen[i], values, keys)
        left_out = 0
        while left_out < count and keys[left_out] < skipped:
            left_out += 1
        capped = soft_values[:0]
        if len(soft) > 0:
            gather(soft[i], seen[i], soft_values, keys)
            capped = soft_values[:count]
        mean = add_gathered(
            values[:count], capped, keys[:count], left_out, shift[i], off, (own + i, first), i >= late,
            lags[:, lag - i : lag - i + len(row)], column, weights, sink, sums, hits,
        )  # fmt: skip
        center_gathered(row, values[left_out:count], keys[left_out:count], f4(mean))
        return mean
    capped = soft_values[:0]
    if len(soft) > 0:
        capped = soft[i, start:stop]
    kept = min(max(start, skipped), stop)
    mean = add_range(
        row[start:stop], capped, kept - start, shift[i], off, (own + i - start, first - start), i >= late,
        lags[:, lag - i + start : lag - i + stop], column[start:stop], weights, sink, sums, hits,
    )  # fmt: skip
    center(row, kept, stop, f4(mean), 0, plain)
    center(row, kept, stop, f4(mean), plain_end, len(row))
    return mean


@compiled
def add_rows(tile, geometry, logits, soft, seen, bias, shift, middle, sink, sums, lags, cells, hits, means, buffers):
    """Add one head's rows of one text."""
    begin, end, row_cell, key_cell = geometry
    lag_buffer, column = buffers[0], buffers[1]
    rows, width, lag = logits.shape[0], logits.shape[1], tile[6]
    for i in range(rows):
        means[i] = add_row(i, tile, begin, end, logits, soft, seen, shift, middle, sink, sums, hits, buffers)
        sums[ROWS] += 1.0
        if len(bias) > 0:
            sums[BIASED] += dot(logits[i], bias[i])
        if i % FLUSH == FLUSH - 1 or i == rows - 1:
            low, high = lag - i, lag - i + width + FLUSH
            flush(lag_buffer[0, low:high], lags[0, low:high])
            flush(lag_buffer[1, low:high], lags[1, low:high])
        if i == rows - 1 or row_cell[i + 1] != row_cell[i]:
            flush_cells(column, key_cell, cells[row_cell[i]])


@compiled
def add_heads(heads, tile, geometry, logits, soft, seen, bias, shift, middle, sinks, sums, lags, cells, hits, means):
    """Add the rows of heads[0] to heads[1] of a tile, text after text: logits (text, head, row, key).

    tile: number of skipped columns; begin and end of the columns that need no centered logits; columns of the first
    row's own key and of the text's first key; the first late row; the place of the first row and column among the lags.
    geometry: begin and end of the keys that each row of a text sees; cells of rows and columns. `soft` (the logits after
    the soft-cap), `seen` and `bias` have no rows where there are none; axes of texts and heads have size 1 where all are
    the same. Logits are `logits` + shift; sums by place are of logits - middle.
    """
    begin, end, row_cell, key_cell = geometry
    width = logits.shape[3]
    keys = np.empty(width, np.int64)
    values = np.empty((3, width), f4)
    buffers = (np.zeros((2, lags.shape[2]), f4), np.zeros(width, f4), values[0], values[1], values[2], keys)
    for h in range(heads[0], heads[1]):
        for b in range(logits.shape[0]):
            ranges = (begin[min(b, len(begin) - 1)], end[min(b, len(end) - 1)], row_cell, key_cell)
            capped = soft[min(b, soft.shape[0] - 1), min(h, soft.shape[1] - 1)]
            mask = seen[min(b, seen.shape[0] - 1), min(h, seen.shape[1] - 1)]
            added = bias[min(b, bias.shape[0] - 1), min(h, bias.shape[1] - 1)]
            add_rows(
                tile, ranges, logits[b, h], capped, mask, added, shift[b, h], middle[h], sinks[h : h + 1], sums[h],
                lags[h], cells[h], hits[h], means[b, h], buffers,
            )  # fmt: skip


@compiled
def add_counts(begin, end, seen, texts, skipped, row_cell, key_cell, lag, lags, cells):
    """Count the kept pairs by lag and by cell: those of `texts` texts if all are alike, else of every text."""
    different = max(len(begin), seen.shape[0])
    alike = texts if different == 1 else 1
    for b in range(different):
        of_text = min(b, len(begin) - 1)
        for i in range(begin.shape[1]):
            row = cells[row_cell[i]]
            for j in range(max(begin[of_text, i], skipped), end[of_text, i]):
                if seen.shape[2] == 0 or seen[min(b, seen.shape[0] - 1), 0, i, j]:
                    lags[lag - i + j] += alike
                    row[key_cell[j]] += alike


@compiled
def add_channels(heads, q, read, into):
    """Add sums over texts and rows of q * read: (text, head, row, channel) to (head, channel)."""
    texts, _, rows, width = q.shape
    part = np.zeros(width, f4)
    for h in range(heads[0], heads[1]):
        for b in range(texts):
            for i in range(rows):
                left, right = q[b, h, i], read[b, h, i]
                for c in range(len(part)):
                    part[c] += left[c] * right[c]
                if i % FLUSH == FLUSH - 1 or i == rows - 1:
                    flush(part, into[h])
