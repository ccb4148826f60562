# mypy: disable-error-code="no-untyped-def"
"""The loop over heads, texts and rows of a tile of logits, around the sums of a row in compiled_rows.py.

Under a mask the logits that a row sees are first copied next to each other. At the end of a row its logits are replaced
by their differences from the row's mean.
Imported only where numba is.
"""

import numpy as np

from armillary.machine.compiler import compiled
from armillary.streams.compiled_rows import (
    BIASED,
    ROWS,
    ZERO,
    add_attention,
    add_by_lag,
    add_logits,
    add_places,
    f4,
    f8,
    scatter_by_lag,
    scatter_places,
    square_about_mean,
    u8,
)

FLUSH = 16
"""Sums by lag of this many rows are float32 before they are added in float64."""


@compiled
def gather(row, at, width, seen, b, h, i, values, keys):
    """Copy what is seen of a row to `values`, with its columns to `keys`; return how many there are."""
    count = 0
    for j in range(width):
        if seen[b, h, i, j]:
            values[count] = row[at + j]
            keys[count] = j
            count += 1
    return u8(count)


@compiled
def center(row, at, first, last, mean, begin, end):
    """In columns begin to end: the logits from first to last minus their mean, and zero elsewhere."""
    for j in range(begin, min(first, end)):
        row[at + j] = ZERO
    start, stop = max(first, begin), min(last, end)
    if start < stop:
        for j in range(stop - start):
            row[at + start + j] -= mean
    for j in range(max(last, begin), end):
        row[at + j] = ZERO


@compiled
def center_gathered(row, at, width, values, keys, begin, end, mean):
    """The same for all columns of a row under a mask."""
    for j in range(width):
        row[at + j] = ZERO
    for n in range(begin, end):
        row[at + keys[n]] = values[n] - mean


@compiled
def flush(buffer, at, n, into, to):
    """Add float32 sums to float64 ones and set them to zero."""
    for j in range(n):
        into[to + j] += f8(buffer[at + j])
        buffer[at + j] = ZERO


@compiled
def flush_cells(column, width, cells, into, to):
    """Add sums by column to the cells of the columns, and set them to zero."""
    for j in range(width):
        into[to + cells[j]] += f8(column[j])
        column[j] = ZERO


@compiled
def add_masked_row(flat, at, width, where, tile, soft, seen, shift, off, lag, sinks, sums, hits, buffers):
    """Add a row under a mask; where: text, head and row, the text and head of the mask. Returns the mean."""
    b, h, i = where
    skipped, own, first, late = tile[0], np.int64(tile[3]) + i, tile[4], i >= tile[5]
    lags, column, weights, values, soft_values, keys, near = buffers
    of_text, of_head = min(b, seen.shape[0] - 1), min(h, seen.shape[1] - 1)
    n = gather(flat, at, width, seen, of_text, of_head, i, values, keys)
    left_out = u8(0)
    while left_out < n and keys[left_out] < skipped:
        left_out += u8(1)
    scatter_places(values, keys, left_out, n - left_out, off, near, lags, lag, lag + u8(len(lags) // 3), column)
    mean, square = add_logits(values, u8(0), left_out, n, shift, late, sums, hits, h)
    if len(soft) > 0:
        gather(soft, at, width, seen, of_text, of_head, i, soft_values, keys)
        square = square_about_mean(soft_values, u8(0), n)
        scale = add_attention(soft_values, u8(0), n, square, shift, own, first, keys, True, weights, sinks, sums, h)
    else:
        scale = add_attention(values, u8(0), n, square, shift, own, first, keys, True, weights, sinks, sums, h)
    scatter_by_lag(weights, keys, left_out, n, scale, lags, lag + u8(len(lags) // 3 * 2))
    center_gathered(flat, at, width, values, keys, left_out, n, f4(mean))
    return mean


@compiled
def add_row(flat, at, width, start, stop, where, tile, soft, shift, off, lag, sinks, sums, hits, buffers):
    """Add a row that sees the columns start to stop. Returns the mean of the kept logits."""
    _, h, i = where
    late = i >= tile[5]
    lags, column, weights, _, _, keys, near = buffers
    kept = min(max(start, u8(tile[0])), stop)
    once = lag + kept
    add_places(flat, at + kept, stop - kept, off, near, lags, once, once + u8(len(lags) // 3), column, kept)
    mean, square = add_logits(flat, at + start, kept - start, stop - start, shift, late, sums, hits, h)
    own, first = np.int64(tile[3]) + i - np.int64(start), tile[4] - np.int64(start)
    if len(soft) > 0:
        square = square_about_mean(soft, at + start, stop - start)
        scale = add_attention(
            soft, at + start, stop - start, square, shift, own, first, keys, False, weights, sinks, sums, h
        )
    else:
        scale = add_attention(
            flat, at + start, stop - start, square, shift, own, first, keys, False, weights, sinks, sums, h
        )
    add_by_lag(weights, kept - start, stop - start, scale, lags, lag + start + u8(len(lags) // 3 * 2))
    center(flat, at, kept, stop, f4(mean), u8(0), u8(tile[1]))
    center(flat, at, kept, stop, f4(mean), u8(tile[2]), width)
    return mean


@compiled
def add_rows(
    flat, shape, where, tile, geometry, soft, seen, bias, shift, middle, sinks, sums, lags, cells, hits, means, buffers
):
    """Add the rows of one head and text."""
    b, h = where
    rows, width = shape[2], u8(shape[3])
    begin, end, row_cell, key_cell = geometry
    of_text, count = min(b, len(begin) - 1), u8(lags.shape[2])
    flat_lags, flat_cells = lags.reshape(-1), cells.reshape(-1)
    for i in range(rows):
        at, lag = u8((b * shape[1] + h) * rows + i) * width, u8(tile[6] - i)
        here, off = (b, h, i), f4(shift[b, h, i] - middle[h])
        if seen.shape[2] > 0:
            mean = add_masked_row(
                flat, at, width, here, tile, soft, seen, shift[b, h, i], off, lag, sinks, sums, hits, buffers
            )
        else:
            start, stop = u8(begin[of_text, i]), u8(end[of_text, i])
            mean = add_row(
                flat, at, width, start, stop, here, tile, soft, shift[b, h, i], off, lag, sinks, sums, hits, buffers
            )
        means[b, h, i] = mean
        sums[h, ROWS] += 1.0
        if bias.shape[2] > 0:
            total = 0.0
            for j in range(width):
                added = bias[min(b, bias.shape[0] - 1), min(h, bias.shape[1] - 1), i, j]
                total += f8(flat[at + j]) * f8(added)
            sums[h, BIASED] += total
        if i % FLUSH == FLUSH - 1 or i == rows - 1:
            span = min(width + u8(FLUSH), count - lag)
            for part in range(u8(3)):
                flush(buffers[0], part * count + lag, span, flat_lags, (u8(h) * u8(3) + part) * count + lag)
        if i == rows - 1 or row_cell[i + 1] != row_cell[i]:
            to = u8(h * cells.shape[1] + row_cell[i]) * u8(cells.shape[2])
            flush_cells(buffers[1], width, key_cell, flat_cells, to)


@compiled
def add_heads(
    heads, tile, geometry, logits, soft, seen, bias, near, shift, middle, sinks, sums, lags, cells, hits, means
):
    """Add the rows of heads[0] to heads[1] of a tile, text after text: logits (text, head, row, key).

    tile: number of skipped columns; begin and end of the columns that need no centered logits; columns of the first
    row's own key and of the text's first key; the first late row; the place of the first row and column among the lags.
    geometry: begin and end of the keys that each row of a text sees; cells of rows and columns. `soft` (logits after a
    soft-cap, flat), `seen` and `bias` are empty where there are none; axes of texts and heads have size 1 where all
    are the same. Logits are `logits` + shift; sums by place are of logits - middle, and by lag of what is left of them
    after `near` (head, lag), or with no lags.
    """
    width = logits.shape[3]
    scratch = (
        *(np.zeros(3 * lags.shape[2], f4), np.zeros(width, f4)),
        *(np.empty(width, f4), np.empty(width, f4), np.empty(width, f4), np.empty(width, np.uint64)),
    )
    flat = logits.reshape(-1)
    for h in range(heads[0], heads[1]):
        buffers = (*scratch, near[h])
        for b in range(logits.shape[0]):
            add_rows(
                flat, logits.shape, (b, h), tile, geometry, soft, seen, bias, shift, middle, sinks, sums, lags, cells,
                hits, means, buffers,
            )  # fmt: skip


@compiled
def add_counts(begin, end, seen, texts, skipped, row_cell, key_cell, lag, lags, cells):
    """Count the kept pairs by lag and by cell: those of `texts` texts if all are alike, else of every text."""
    different = max(len(begin), seen.shape[0])
    alike = texts if different == 1 else 1
    for b in range(different):
        of_text = min(b, len(begin) - 1)
        for i in range(begin.shape[1]):
            first, last = u8(max(begin[of_text, i], skipped)), u8(end[of_text, i])
            cell = row_cell[i]
            if seen.shape[2] > 0:
                for j in range(first, last):
                    if seen[min(b, seen.shape[0] - 1), 0, i, j]:
                        lags[u8(lag - i) + j] += alike
                        cells[cell, key_cell[j]] += alike
            elif first < last:
                for j in range(last - first):
                    lags[u8(lag - i) + first + j] += alike
                for j in range(last - first):
                    cells[cell, key_cell[first + j]] += alike


@compiled
def add_channels(heads, q, read, into):
    """Add sums over texts and rows of q * read: (text, head, row, channel) to (head, channel)."""
    texts, count, rows, width = q.shape
    part, left, right, total = np.zeros(width, f4), q.reshape(-1), read.reshape(-1), into.reshape(-1)
    for h in range(heads[0], heads[1]):
        for b in range(texts):
            for i in range(rows):
                at = u8((b * count + h) * rows + i) * u8(width)
                for c in range(u8(width)):
                    part[c] += left[at + c] * right[at + c]
                if i % FLUSH == FLUSH - 1 or i == rows - 1:
                    flush(part, u8(0), u8(width), total, u8(h * width))
