# mypy: disable-error-code="no-untyped-def"
"""What one head reads in one text, in one compiled loop over its attention (looks.py: the same in numpy).

Imported only where numba is.
"""

import numpy as np

from armillary.machine.compiler import compiled

f4, f8, u8 = np.float32, np.float64, np.uint64
ZERO = f4(0.0)


@compiled
def look(attention, by_lag, seen, skip, local, before, following, by_key, by_relation, by_row, pairs):
    """Add to by_key (4, key), by_relation (2, 2), by_row (2, row) and pairs (2, local, local), which come as zeros.

    local: the number of every position's token; before: that of the token before it; following: the next position with
    the same token. The sums of a row are float64.
    """
    length = len(local)
    for i in range(skip, length):
        number = 0
        for j in range(length):
            number += seen[i, j]
        if number == 0:
            continue
        even, query = f4(1.0 / number), local[i]
        moved, focused = 0.0, 0.0
        for j in range(skip, length):
            if not seen[i, j]:
                continue
            a, usual = attention[i, j], by_lag[i - j + length - 1]
            by_key[0, j] += f8(a)
            by_key[1, j] += f8(usual)
            if following[j] > i:
                by_key[2, j] += f8(a)
                by_key[3, j] += f8(usual)
            if j < i:
                if local[j] == query:
                    by_relation[0, 0] += f8(a)
                    by_relation[0, 1] += f8(usual)
                if before[j] == query:
                    by_relation[1, 0] += f8(a)
                    by_relation[1, 1] += f8(usual)
            moved += f8(max(a - usual, ZERO))
            focused += f8(max(a - max(even, usual), ZERO))
            pairs[0, query, local[j]] += f8(a)
            pairs[1, query, local[j]] += f8(usual)
        by_row[0, i], by_row[1, i] = moved, focused


@compiled
def strongest(pairs, places, gains):
    """Fill `places` with the flat places of the largest positive gains pairs[0] - pairs[1], largest first, ties by
    order, and `gains` with one more gain than places. Returns how many places there are."""
    most = len(gains)
    attention, usual = pairs[0].reshape(-1), pairs[1].reshape(-1)
    count = 0
    for place in range(len(attention)):
        gain = attention[place] - usual[place]
        if gain <= 0.0 or (count == most and gain <= gains[most - 1]):
            continue
        at = min(count, most - 1)
        while at > 0 and gains[at - 1] < gain:
            gains[at] = gains[at - 1]
            if at < most - 1:
                places[at] = places[at - 1]
            at -= 1
        gains[at] = gain
        if at < most - 1:
            places[at] = place
        count = min(count + 1, most)
    return min(count, most - 1)
