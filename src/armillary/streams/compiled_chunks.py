# mypy: disable-error-code="no-untyped-def"
"""The sums of streams/chunks.py in one compiled loop: a token's chunks of q, k and v are read once.

For the rows' sums over the keys they see, sums of the keys' chunks and of their outer products run along the text: keys
that the next row sees are added, keys that it no longer sees are taken away, in float64.
Imported only where numba is. (numba infers the types: chunks are float64[2, frequency].)
"""

import numpy as np

from armillary.machine.compiler import compiled

f8 = np.float64
Q_NORM, SELF, SELF_BOUND, PREVIOUS, PREVIOUS_BOUND, FIRST, OTHER, CHANGE = range(8)
NAMES = (
    *("q_norm", "self_product", "self_bound", "previous_product", "previous_bound"),
    *("first_product", "other_product", "change"),
)
"""The sums by frequency, in their order."""


@compiled
def read(vector, layout, chunk):
    """The pairs of channels that each frequency rotates; layout: the first of them, and whether pairs are neighbors."""
    start, interleaved = layout
    count = chunk.shape[1]
    first, second = chunk[0], chunk[1]
    if interleaved:
        for f in range(count):
            first[f], second[f] = f8(vector[start + 2 * f]), f8(vector[start + 2 * f + 1])
    else:
        left, right = vector[start : start + count], vector[start + count : start + 2 * count]
        for f in range(len(left)):
            first[f], second[f] = f8(left[f]), f8(right[f])


@compiled
def back(chunk, cos, sin, turned):
    """The chunk turned back by its position's angles."""
    a, b, c, d = chunk[0], chunk[1], turned[0], turned[1]
    for f in range(len(a)):
        c[f] = a[f] * cos[f] + b[f] * sin[f]
        d[f] = b[f] * cos[f] - a[f] * sin[f]


@compiled
def add_norm(chunk, into):
    a, b = chunk[0], chunk[1]
    for f in range(len(a)):
        into[f] += np.sqrt(a[f] * a[f] + b[f] * b[f])


@compiled
def add_alignment(q, k, scale, product, bound):
    """Add q_f.k_f and |q_f||k_f|."""
    a, b, c, d = q[0], q[1], k[0], k[1]
    for f in range(len(a)):
        product[f] += scale * (a[f] * c[f] + b[f] * d[f])
        bound[f] += scale * np.sqrt((a[f] * a[f] + b[f] * b[f]) * (c[f] * c[f] + d[f] * d[f]))


@compiled
def cosine(q, k):
    """The cosine over all channels; 0 if a vector is zero."""
    dot, left, right = np.float32(0), np.float32(0), np.float32(0)
    for c in range(len(q)):
        dot += q[c] * k[c]
        left += q[c] * q[c]
        right += k[c] * k[c]
    lengths = np.sqrt(f8(left) * f8(right))
    return f8(dot) / lengths if lengths > 0 else 0.0


@compiled
def move_key(rotated, frozen, sign, first, second):
    """Add (sign 1) or take away (sign -1) a key: its four numbers (a, b, -c, -d), and their ten products."""
    a, b, c, d = rotated[0], rotated[1], frozen[0], frozen[1]
    s0, s1, s2, s3 = first[0], first[1], first[2], first[3]
    for f in range(len(a)):
        s0[f] += sign * a[f]
        s1[f] += sign * b[f]
        s2[f] -= sign * c[f]
        s3[f] -= sign * d[f]
    p00, p11, p22, p33, p01 = second[0], second[1], second[2], second[3], second[4]
    for f in range(len(a)):
        p00[f] += sign * a[f] * a[f]
        p11[f] += sign * b[f] * b[f]
        p22[f] += sign * c[f] * c[f]
        p33[f] += sign * d[f] * d[f]
        p01[f] += sign * a[f] * b[f]
    p02, p03, p12, p13, p23 = second[5], second[6], second[7], second[8], second[9]
    for f in range(len(a)):
        p02[f] -= sign * a[f] * c[f]
        p03[f] -= sign * a[f] * d[f]
        p12[f] -= sign * b[f] * c[f]
        p13[f] -= sign * b[f] * d[f]
        p23[f] += sign * c[f] * d[f]


@compiled
def add_change(rotated, frozen, number, scale, first, second, other, change):
    """Add the mean product with the visible keys, and the squared change of the row-centered logits if frozen."""
    a, b, c, d = rotated[0], rotated[1], frozen[0], frozen[1]
    s0, s1, s2, s3 = first[0], first[1], first[2], first[3]
    p00, p11, p22, p33, p01 = second[0], second[1], second[2], second[3], second[4]
    p02, p03, p12, p13, p23 = second[5], second[6], second[7], second[8], second[9]
    for f in range(len(a)):
        x, y, z, w = a[f], b[f], c[f], d[f]
        along = x * s0[f] + y * s1[f]
        whole = along + z * s2[f] + w * s3[f]
        square = x * x * p00[f] + y * y * p11[f] + z * z * p22[f] + w * w * p33[f]
        square += 2 * (x * (y * p01[f] + z * p02[f] + w * p03[f]) + y * (z * p12[f] + w * p13[f]) + z * w * p23[f])
        other[f] += scale * along / number
        change[f] += scale * scale * max(square - whole * whole / number, 0.0)


@compiled
def add_key_head(g, b, q, k, v, cos, sin, layout, skip, begin, end, scale, sums, keys, values, cosines, rows):
    """Add one text of key head g and the heads that read it."""
    group, tokens, count = q.shape[1] // k.shape[1], k.shape[2], cos.shape[1]
    rotated, frozen = np.empty((tokens, 2, count)), np.empty((tokens, 2, count))
    chunk, turned = np.empty((2, count)), np.empty((2, count))
    first, second = np.zeros((4, count)), np.zeros((10, count))
    for t in range(tokens):
        read(k[b, g, t], layout, rotated[t])
        back(rotated[t], cos[t], sin[t], frozen[t])
        if t >= skip:
            add_norm(rotated[t], keys[g])
            read(v[b, g, t], layout, chunk)
            add_norm(chunk, values[g])
    seen_from, seen_to = begin[0], begin[0]
    for t in range(skip, tokens):
        while seen_to < end[t - skip]:
            move_key(rotated[seen_to], frozen[seen_to], 1.0, first, second)
            seen_to += 1
        while seen_from < begin[t - skip]:
            move_key(rotated[seen_from], frozen[seen_from], -1.0, first, second)
            seen_from += 1
        number = max(end[t - skip] - begin[t - skip], 0)
        for h in range(g * group, (g + 1) * group):
            of_head = sums[h]
            read(q[b, h, t], layout, chunk)
            back(chunk, cos[t], sin[t], turned)
            add_norm(chunk, of_head[Q_NORM])
            add_alignment(chunk, rotated[t], scale, of_head[SELF], of_head[SELF_BOUND])
            add_alignment(chunk, rotated[0], scale, of_head[FIRST], of_head[-1])
            cosines[h, 0] += cosine(q[b, h, t], k[b, g, t])
            if t > skip:
                add_alignment(chunk, rotated[t - 1], scale, of_head[PREVIOUS], of_head[PREVIOUS_BOUND])
                cosines[h, 1] += cosine(q[b, h, t], k[b, g, t - 1])
            if number > 0:
                add_change(chunk, turned, f8(number), scale, first, second, of_head[OTHER], of_head[CHANGE])
                rows[h] += 1.0


@compiled
def add_key_heads(heads, q, k, v, cos, sin, layout, skip, begin, end, scale, sums, keys, values, cosines, rows):
    """Add all texts of key heads heads[0] to heads[1]: q, k, v are (text, head, token, channel).

    begin, end: the kept keys that each kept row of a text sees; neither decreases. sums: (head, NAMES and one more,
    frequency); keys and values: norms of k and v; cosines of q with its own key and the previous; rows that see a key.
    """
    for g in range(heads[0], heads[1]):
        for b in range(q.shape[0]):
            at = min(b, len(begin) - 1)
            add_key_head(
                g, b, q, k, v, cos, sin, layout, skip, begin[at], end[at], scale, sums, keys, values, cosines, rows
            )  # fmt: skip
