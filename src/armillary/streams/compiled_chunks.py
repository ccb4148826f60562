# mypy: disable-error-code="no-untyped-def"
"""The sums of streams/chunks.py in one compiled loop: a token's chunks of q, k and v are read once.

For the rows' sums over the keys they see, sums of the keys' chunks and of their outer products run along the text: keys
that the next row sees are added, keys that it no longer sees are taken away, in float64.

Arrays are flat, and a vector is given by where it begins (unsigned; compiled_rows.py says why). A chunk is two runs of
n numbers, n the number of frequencies. Imported only where numba is. (numba infers the types: chunks are float64.)
"""

import numpy as np

from armillary.machine.compiler import compiled

f8, u8 = np.float64, np.uint64
NAMES = (
    *("q_norm", "self_product", "self_bound", "previous_product", "previous_bound"),
    *("first_product", "other_product", "change"),
)
"""The sums of a head by frequency, in their order; one more takes what nobody reads."""
Q_NORM, SELF, SELF_BOUND, PREVIOUS, PREVIOUS_BOUND, FIRST, OTHER, CHANGE, UNREAD = (u8(i) for i in range(9))


@compiled
def read(vector, at, layout, chunk, to, n):
    """The pairs of channels that each frequency rotates; layout: the first of them, and whether pairs are neighbors."""
    start, interleaved = at + u8(layout[0]), layout[1]
    if interleaved:
        for f in range(n):
            chunk[to + f], chunk[to + n + f] = f8(vector[start + u8(2) * f]), f8(vector[start + u8(2) * f + u8(1)])
    else:
        for f in range(n):
            chunk[to + f] = f8(vector[start + f])
        for f in range(n):
            chunk[to + n + f] = f8(vector[start + n + f])


@compiled
def back(chunk, at, cos, sin, angle, turned, to, n):
    """The chunk turned back by its position's angles."""
    for f in range(n):
        turned[to + f] = chunk[at + f] * cos[angle + f] + chunk[at + n + f] * sin[angle + f]
    for f in range(n):
        turned[to + n + f] = chunk[at + n + f] * cos[angle + f] - chunk[at + f] * sin[angle + f]


@compiled
def add_norm(chunk, at, into, to, n):
    for f in range(n):
        into[to + f] += np.sqrt(chunk[at + f] ** 2 + chunk[at + n + f] ** 2)


@compiled
def add_alignment(q, at, k, key, scale, into, product, bound, n):
    """Add q_f.k_f and |q_f||k_f|."""
    for f in range(n):
        into[product + f] += scale * (q[at + f] * k[key + f] + q[at + n + f] * k[key + n + f])
    for f in range(n):
        lengths = (q[at + f] ** 2 + q[at + n + f] ** 2) * (k[key + f] ** 2 + k[key + n + f] ** 2)
        into[bound + f] += scale * np.sqrt(lengths)


@compiled
def cosine(q, at, k, key, n):
    """The cosine over all channels; 0 if a vector is zero."""
    dot, left, right = np.float32(0), np.float32(0), np.float32(0)
    for c in range(n):
        dot += q[at + c] * k[key + c]
        left += q[at + c] * q[at + c]
        right += k[key + c] * k[key + c]
    lengths = np.sqrt(f8(left) * f8(right))
    return f8(dot) / lengths if lengths > 0 else 0.0


@compiled
def move_key(four, at, sign, first, second, n):
    """Add (sign 1) or take away (sign -1) a key: its four numbers a frequency, and their ten products."""
    for c in range(u8(4) * n):
        first[c] += sign * four[at + c]
    place = u8(0)
    for i in range(u8(4)):
        for j in range(i, u8(4)):
            for f in range(n):
                second[place + f] += sign * four[at + i * n + f] * four[at + j * n + f]
            place += n


@compiled
def add_change(query, number, scale, first, second, along, whole, square, into, other, change, n):
    """Add the mean product with the visible keys, and the squared change of the row-centered logits if frozen."""
    for f in range(n):
        along[f] = query[f] * first[f] + query[n + f] * first[n + f]
    for f in range(n):
        whole[f] = along[f] + query[u8(2) * n + f] * first[u8(2) * n + f] + query[u8(3) * n + f] * first[u8(3) * n + f]
        square[f] = 0.0
    place = u8(0)
    for i in range(u8(4)):
        for j in range(i, u8(4)):
            twice = 1.0 if i == j else 2.0
            for f in range(n):
                square[f] += twice * query[i * n + f] * query[j * n + f] * second[place + f]
            place += n
    for f in range(n):
        into[other + f] += scale * along[f] / number
    for f in range(n):
        into[change + f] += scale * scale * max(square[f] - whole[f] * whole[f] / number, 0.0)


@compiled
def read_keys(g, b, k, v, shapes, cos, sin, layout, skip, four, keys, values, n):
    """A key head's numbers of every token of a text: rotated (a, b), and minus what they are unrotated (-c, -d)."""
    key_heads, tokens, e, ev = shapes
    chunk = np.empty(u8(2) * n)
    for t in range(tokens):
        at, of_token = u8((b * key_heads + g) * tokens + t), u8(t) * u8(4) * n
        read(k, at * u8(e), layout, four, of_token, n)
        back(four, of_token, cos, sin, u8(t) * n, four, of_token + u8(2) * n, n)
        for f in range(u8(2) * n):
            four[of_token + u8(2) * n + f] *= -1.0
        if t >= skip:
            add_norm(four, of_token, keys, u8(g) * n, n)
            read(v, at * u8(ev), layout, chunk, u8(0), n)
            add_norm(chunk, u8(0), values, u8(g) * n, n)


@compiled
def add_query(h, t, q, at, k, key, e, skip, four, own, scale, query, sums, cosines, n):
    """Add a query's norms, its products with its own, the previous and the first key, and their cosines."""
    to, before = u8(h) * u8(9) * n, own - u8(4) * n
    add_norm(query, u8(0), sums, to + Q_NORM * n, n)
    add_alignment(query, u8(0), four, own, scale, sums, to + SELF * n, to + SELF_BOUND * n, n)
    add_alignment(query, u8(0), four, u8(0), scale, sums, to + FIRST * n, to + UNREAD * n, n)
    cosines[h, 0] += cosine(q, at, k, key, e)
    if t > skip:
        add_alignment(query, u8(0), four, before, scale, sums, to + PREVIOUS * n, to + PREVIOUS_BOUND * n, n)
        cosines[h, 1] += cosine(q, at, k, key - e, e)


@compiled
def add_key_head(
    g, b, q, k, v, shapes, group, cos, sin, layout, skip, begin, end, scale, sums, keys, values, cosines, rows, n
):
    """Add one text of key head g and the heads that read it."""
    key_heads, tokens, e, _ = shapes
    four, query, first, second = (
        np.empty(u8(tokens * 4) * n),
        np.empty(u8(4) * n),
        np.zeros(u8(4) * n),
        np.zeros(u8(10) * n),
    )
    along, whole, square = np.empty(n), np.empty(n), np.empty(n)
    read_keys(g, b, k, v, shapes, cos, sin, layout, skip, four, keys, values, n)
    seen_from, seen_to = begin[0], begin[0]
    for t in range(skip, tokens):
        while seen_to < end[t - skip]:
            move_key(four, u8(seen_to) * u8(4) * n, 1.0, first, second, n)
            seen_to += 1
        while seen_from < begin[t - skip]:
            move_key(four, u8(seen_from) * u8(4) * n, -1.0, first, second, n)
            seen_from += 1
        number, key = f8(max(end[t - skip] - begin[t - skip], 0)), u8((b * key_heads + g) * tokens + t) * u8(e)
        for h in range(g * group, (g + 1) * group):
            at, to = u8((b * key_heads * group + h) * tokens + t) * u8(e), u8(h) * u8(9) * n
            read(q, at, layout, query, u8(0), n)
            back(query, u8(0), cos, sin, u8(t) * n, query, u8(2) * n, n)
            add_query(h, t, q, at, k, key, u8(e), skip, four, u8(t) * u8(4) * n, scale, query, sums, cosines, n)
            if number > 0:
                add_change(
                    query, number, scale, first, second, along, whole, square, sums, to + OTHER * n, to + CHANGE * n, n
                )
                rows[h] += 1.0


@compiled
def add_key_heads(heads, q, k, v, cos, sin, layout, skip, begin, end, scale, sums, keys, values, cosines, rows):
    """Add all texts of key heads heads[0] to heads[1]: q, k, v are (text, head, token, channel).

    cos, sin: (token, frequency). begin, end: the kept keys that each kept row of a text sees; neither decreases. sums:
    (head, NAMES and one more, frequency); keys and values: norms of k and v; cosines of q with its own key and the
    previous; rows that see a key.
    """
    texts, group = q.shape[0], q.shape[1] // k.shape[1]
    shapes, n = (k.shape[1], k.shape[2], k.shape[3], v.shape[3]), u8(cos.shape[1])
    flat = (q.reshape(-1), k.reshape(-1), v.reshape(-1), cos.reshape(-1), sin.reshape(-1))
    into = (sums.reshape(-1), keys.reshape(-1), values.reshape(-1))
    for g in range(heads[0], heads[1]):
        for b in range(texts):
            at = min(b, len(begin) - 1)
            add_key_head(
                g, b, flat[0], flat[1], flat[2], shapes, group, flat[3], flat[4], layout, skip, begin[at], end[at],
                scale, into[0], into[1], into[2], cosines, rows, n,
            )  # fmt: skip
