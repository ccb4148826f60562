"""Barbero et al., "Round and round we go!", propositions: the encoding and what a head can compute with it (B1 to B11).

A pair of channels is a chunk of the paper; logits have no factor 1/sqrt(d). Numbers and curves are in barbero_numbers.
"""

from decimal import Decimal, localcontext
from math import ceil, cos, pi, sin

import numpy as np
import sympy
from jaxtyping import Float
from scipy.optimize import brentq, linprog
from scipy.special import softmax

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend, mean_and_error, variance_and_error
from armillary.theory.rotary import Frequencies, expected_product, nope, pairs, product, rope, rotate
from armillary.theory.rotary_heads import (
    channel_head,
    channel_length,
    channel_norm,
    nope_attention,
    norm_needed,
    positional_attention,
    positional_head,
)

DIGITS = 120
PI = Decimal(str(sympy.N(sympy.pi, DIGITS + 10)))
WIDTHS = (64, 128, 256, 1024, 16_384)
"""Widths d of a head, up to where theta^(2/d) is nearly 1."""


def one_turn(g: Frequencies) -> Float[np.ndarray, "e e"]:
    """R = rho(g_1) + rho(g_2) + ... along the diagonal, as (2) writes it; pairs are channels (2k-1, 2k)."""
    r = np.zeros((2 * len(g), 2 * len(g)))
    for f, angle in enumerate(g):
        r[2 * f : 2 * f + 2, 2 * f : 2 * f + 2] = [[cos(angle), -sin(angle)], [sin(angle), cos(angle)]]
    return r


def angles_turned(g: float, tokens: int) -> Float[np.ndarray, "token"]:
    """Radians by which a pair is rotated after 0 .. tokens tokens, computed token by token."""
    turned = rotate(np.tile([1.0, 0.0], (tokens + 1, 1)), np.arange(tokens + 1), np.array([g]))
    return np.unwrap(np.arctan2(turned[:, 1], turned[:, 0]))


def slowest(width: int, base: float = 1e4) -> float:
    """theta^(-1 + 2/d), in radians per token."""
    return float(base ** (-1 + 2 / width))


def causal_attention(
    q: Float[np.ndarray, "e"], k: Float[np.ndarray, "e"], g: Frequencies, length: int
) -> Float[np.ndarray, "query key"]:
    """Attention in a text whose tokens all have the same q and k, rotated by position (layout 'half')."""
    positions = np.arange(length)
    queries, keys = (rotate(np.tile(v, (length, 1)), positions, g) for v in (q, k))
    return np.asarray(softmax(np.where(np.tri(length, dtype=bool), queries @ keys.T, -np.inf), axis=1))


def best_lead(g: float, length: int) -> float:
    """The largest guaranteed lead of a target over any other token, target keys u and other keys v in a unit square.

    A linear program: u.e_r - v.e_s >= lead for all distances r != s, e_r the query rotated by distance r. If this is 0
    (the value at u = v = 0), no head finds the target at every position.
    """
    queries = np.stack([np.cos(g * np.arange(length)), np.sin(g * np.arange(length))], 1)
    r, s = np.nonzero(~np.eye(length, dtype=bool))
    rows = np.concatenate([-queries[r], queries[s], np.ones((len(r), 1))], 1)
    solution = linprog([0, 0, 0, 0, -1], rows, np.zeros(len(r)), bounds=[(-1, 1)] * 4 + [(None, None)])
    return float(solution.x[-1])


def closest_return(g: Decimal, largest: int) -> tuple[int, Decimal]:
    """The n in 1 .. largest with n g nearest to a multiple of 2 pi, and how near: a convergent of g/(2 pi)."""
    ratio = g / (2 * PI)
    rest, before, n = ratio % 1, 0, 1
    while rest:
        quotient = int(1 / rest)
        if quotient * n + before > largest:
            break
        rest, before, n = 1 / rest - quotient, n, quotient * n + before
    return n, abs(n * g - 2 * PI * (n * ratio).to_integral_value())


def needed_gap(tokens: int, eps: float) -> float:
    """The lead of one logit over equal others at which softmax gives it 1 - eps, computed on the vector itself."""
    logits = np.zeros(tokens)

    def missing(gap: float) -> float:
        logits[0] = gap
        return float(softmax(logits)[0]) - (1 - eps)

    return float(brentq(missing, 0.0, 60.0, xtol=1e-12))


def check_B1(rng: np.random.Generator) -> list[Evidence]:
    """Matrix powers of the block-diagonal matrix beside the closed forms."""
    g = rope(16, 100.0)
    r, apart, powers, orthogonal = one_turn(g), 0.0, 0.0, 0.0
    for _ in range(50):
        i, j = (int(n) for n in rng.integers(0, 200, 2))
        q, k = rng.standard_normal((2, 16))
        at_i, at_j = np.linalg.matrix_power(r, i), np.linalg.matrix_power(r, j)
        logit = (at_i @ q) @ (at_j @ k)
        relative = q @ np.linalg.matrix_power(r, j - i) @ k
        chunks = product(q, k, g, np.array([i - j]), "interleaved")[0]
        apart = max(apart, float(abs(logit - relative)), float(abs(logit - chunks)))
        powers = max(powers, float(np.abs(at_i - one_turn(i * g)).max()))
        orthogonal = max(orthogonal, float(np.abs(at_i.T @ at_i - np.eye(16)).max()))
    return [
        Number("largest difference between the three forms of the logit, 50 draws", apart, 0.0),
        Number("largest entry of rho(g)^i - rho(i g)", powers, 0.0),
        Number("largest entry of (R^i)' R^i - 1", orthogonal, 0.0),
    ]


def check_B2(rng: np.random.Generator) -> list[Evidence]:
    """The slowest pair followed for 100,000 tokens, and its turns counted."""
    tokens, theta, width = 100_000, 1e4, 256
    turns = float(angles_turned(float(rope(width)[-1]), tokens)[-1] / (2 * pi))
    return [
        Number("g_(d/2), d = 256", float(rope(width)[-1]), theta ** (-(width - 2) / width)),
        Trend(
            "g_(d/2) taken as 1/theta, relative",
            tuple(f"d = {d}" for d in WIDTHS),
            tuple(float(abs(rope(d)[-1] * theta - 1)) for d in WIDTHS),
            bound=0.01,
        ),
        Number(
            "rotations of the slowest pair in 100,000 tokens, d = 256",
            turns,
            tokens / theta,
            tokens * slowest(width) / (2 * pi),
        ),
    ]


def check_B3(rng: np.random.Generator) -> list[Evidence]:
    """Random queries and distances, every key at its own position."""
    hits, draws, least, gap_error = 0, 200, np.inf, 0.0
    for _ in range(draws):
        width, i = 2 * int(rng.integers(1, 33)), int(rng.integers(1, 300))
        r, g, q = int(rng.integers(0, i + 1)), rope(width), rng.standard_normal(width)
        logits = rotate(np.tile(rotate(q, np.array(r), g), (i + 1, 1)), np.arange(i + 1), g) @ rotate(q, np.array(i), g)
        hits += int(logits.argmax()) == i - r
        lead = np.delete(logits[i - r] - logits, i - r)
        least = min(least, float(lead.min()))
        delta = np.delete(np.arange(i + 1) - (i - r), i - r)
        formula = 2 * np.sin(np.multiply.outer(delta, g) / 2) ** 2 @ np.abs(pairs(q, len(g))) ** 2
        gap_error = max(gap_error, float(np.abs(lead - formula).max()))
    q, g = rng.standard_normal(8), rope(8)
    wrong = product(q, rotate(q, np.array(-5), g), g, np.arange(21))
    return [
        Fact("with the key R^r q the logit is largest at distance r", hits == draws, "printed", f"{hits} of {draws}"),
        Fact("its lead over every other key is positive", least > 1e-10, "printed", f"least lead {least:.2g}"),
        Number("largest error of the lead sum |q_k|^2 (1 - cos(delta g_k))", gap_error, corrected=0.0),
        Fact("the text's R^(-r) q has its largest logit elsewhere", int(wrong.argmax()) != 5, "corrected", "d 8, r 5"),
    ]


def check_B4(rng: np.random.Generator) -> list[Evidence]:
    """Gaussian pairs at four distances; and one vector as both, which does have a mean."""
    width, draws = 64, 20_000
    g, evidence = rope(width), list[Evidence]()
    for r in (0, 1, 100, 10_000):
        q, k = rng.standard_normal((2, draws, width))
        turned = rotate(k, np.array(-r), g)
        logits = (q * turned).sum(1)
        mean, error = mean_and_error(logits)
        evidence.append(Number(f"mean logit at distance {r}, d = 64", mean, 0.0, error=error))
        variance, error = variance_and_error(logits)
        evidence.append(Number(f"its variance at distance {r}", variance, corrected=float(width), error=error))
        if r == 100:
            zero, both = np.zeros(width), (k * turned).sum(1)
            mean, error = mean_and_error(both)
            trace = float(expected_product(g, np.array([r]), zero, zero, np.eye(width))[0])
            evidence.append(Number("mean logit at distance 100 where q = k", mean, corrected=trace, error=error))
    return evidence


def check_B5(rng: np.random.Generator) -> list[Evidence]:
    """Random heads on [first, token, token, ...]; the copies share what the first token leaves."""

    def attention(copies: int) -> Float[np.ndarray, "key"]:
        first, token = rng.standard_normal((2, 6))
        return nope_attention(rng.standard_normal((6, 6)), first, token, copies)

    shares = np.array([attention(2) for _ in range(2000)])
    several = [float(copies * attention(copies)[-1]) for copies in (3, 5, 10) for _ in range(200)]
    short = 0.5 - shares[:, 1:].max(1)
    return [
        Number("largest difference between the two copies", float(np.abs(shares[:, 1] - shares[:, 2]).max()), 0.0),
        Fact(
            "a_33 and a_32 are below 1/2, by half of what the first token gets",
            bool((shares[:, 0] > 0).all() and np.abs(short - shares[:, 0] / 2).max() < 1e-12),
            "printed",
            f"least shortfall {shares[:, 0].min() / 2:.2g} of 2000 heads",
        ),
        Fact(
            "with m copies each gets at most 1/m", max(several) <= 1 + 1e-12, "corrected", f"most {max(several):.6f}/m"
        ),
    ]


def check_B6(rng: np.random.Generator) -> list[Evidence]:
    """Heads built as in the proof, their whole attention matrix."""
    evidence = list[Evidence]()
    for name, g, length in (("g = 1", np.array([1.0]), 64), ("all of d = 256", rope(256), 400)):
        for distance, pattern in ((0, "diagonal"), (1, "previous-token")):
            enough = True
            for eps in (0.05, *10 ** -rng.uniform(1, 8, 3)):
                norm = 1.0001 * norm_needed(float(eps), g, length, distance=distance)
                head = causal_attention(*positional_head(norm, g, distance=distance), g, length)
                enough &= bool((np.diagonal(head, -distance) > 1 - eps).all())
            evidence.append(Fact(f"{pattern} attention above 1 - eps, {name}, N = {length}", enough, "printed"))
            norm = norm_needed(0.05, g, length, distance=distance)
            least = causal_attention(*positional_head(norm, g, distance=distance), g, length)
            evidence.append(
                Number(
                    f"least {pattern} attention at |psi|^2 = {norm:.4g}, {name}",
                    float(np.diagonal(least, -distance).min()),
                    corrected=positional_attention(norm, g, length, distance=distance),
                    tolerance=1e-8,
                )
            )
    one, many = ([norm_needed(0.05, g, n) for n in (16, 512, 8192)] for g in (np.array([1.0]), rope(256)))
    far = np.cos(np.arange(1, 16))
    self_attention = float(causal_attention(*positional_head(20.0, np.array([1.0])), np.array([1.0]), 16)[-1, -1])
    slip = float(1 / (1 + np.exp(20.0 * far - 1).sum()))
    return [
        *evidence,
        Fact(
            "one frequency needs ever larger norms for longer texts, all of d = 256 do not",
            one[2] > 1e4 * one[1] > 1e6 * one[0] and many[2] < 1.01 * many[0],
            "corrected",
            f"|psi|^2 from N 16 to 8192: {one[0]:.3g} to {one[2]:.3g}, {many[0]:.4g} to {many[2]:.4g}",
        ),
        Fact(
            "the proof's 4th line is not a_ii",
            abs(self_attention - slip) > 0.01,
            "corrected",
            f"{slip:.2g} for {self_attention:.2g}",
        ),
    ]


def check_B7(rng: np.random.Generator) -> list[Evidence]:
    """Nearest returns among 10^30 multiples, from continued fractions; and that no ratio of pi is algebraic."""
    with localcontext(prec=DIGITS):
        algebraic = [Decimal(base) ** (Decimal(-2 * f) / 256) for base in (10_000, 500_000) for f in range(0, 128, 8)]
        ratios = [Decimal(int(a)) / int(b) for a, b in rng.integers(1, 10_000, (30, 2))]
        least = float(min(closest_return(g, 10**30)[1] for g in algebraic + ratios))
        n, near = closest_return(Decimal(1), 2000)
        quarter = closest_return(PI / 2, 10)
    turned = np.arange(1, 2001) % (2 * pi)
    brute = np.minimum(turned, 2 * pi - turned)
    turns, tokens = sympy.symbols("m n", integer=True, nonzero=True)
    return [
        Fact(
            "2 pi m/n is not algebraic, m and n not 0", (2 * sympy.pi * turns / tokens).is_algebraic is False, "printed"
        ),
        Fact(
            "no n up to 10^30 comes back, for 32 angles of RoPE and 30 ratios",
            least > 1e-60,
            "printed",
            f"the nearest is {least:.2g} off, known to {DIGITS} digits",
        ),
        Number("nearest return of g = 1 among n <= 2000", float(brute.min()), corrected=float(near)),
        Number("and its n", float(brute.argmin() + 1), corrected=float(n)),
        Fact("pi/2, not algebraic, comes back", quarter[0] == 4 and quarter[1] < 1e-100, "corrected", "n = 4"),
    ]


def check_B8(rng: np.random.Generator) -> list[Evidence]:
    """The pigeonhole argument carried out: a small step among the first multiples, then as many as it takes."""
    reached, tried, furthest = 0, 0, 0
    with localcontext(prec=60):
        for numerator, denominator in rng.integers(1, 1000, (20, 2)):
            g = Decimal(int(numerator)) / int(denominator)
            for near in (1e-1, 1e-2, 1e-3):
                first = np.arange(1, ceil(2 * pi / near) + 1)
                n = int(first[np.abs((first * float(g) + pi) % (2 * pi) - pi).argmin()])
                step = n * g - 2 * PI * (n * g / (2 * PI)).to_integral_value()
                target = Decimal(float(rng.uniform(0, 2 * pi)))
                multiple = n * int(target / step)
                miss = multiple * g - target
                miss -= 2 * PI * (miss / (2 * PI)).to_integral_value()
                tried, reached, furthest = tried + 1, reached + (abs(miss) <= near), max(furthest, abs(multiple))
    counts = (10, 1000, 100_000)
    gaps = [float(np.diff(np.sort(np.arange(count + 1) % (2 * pi)), append=2 * pi).max()) for count in counts]
    visited = np.unique(np.round(np.exp(0.5j * pi * np.arange(1000)), 6))
    return [
        Fact(
            "a multiple comes as near to any angle as asked, for random ratios g",
            reached == tried,
            "printed",
            f"{reached} of {tried}, |n| up to {furthest:.2g}",
        ),
        Fact(
            "the largest gap left by n = 0 .. N falls, g = 1",
            gaps[0] > 50 * gaps[1] and gaps[1] > 10 * gaps[2],
            "printed",
            ", ".join(f"N {count}: {gap:.2g}" for count, gap in zip(counts, gaps, strict=True)),
        ),
        Fact("g = pi/2 visits four points: g/(2 pi) has to be irrational", len(visited) == 4, "corrected"),
    ]


def check_B9(rng: np.random.Generator) -> list[Evidence]:
    """Every entry that is not the largest, in random vectors and in near ties of two."""
    logits = rng.standard_normal((20_000, 6)) * rng.uniform(0.1, 20, (20_000, 1))
    logits[:2000, 2:], logits[:2000, 1] = -1e3, logits[:2000, 0] + 10 ** -rng.uniform(1, 6, 2000)
    attention = np.asarray(softmax(logits, axis=1))
    largest = float(attention[logits < logits.max(1, keepdims=True)].max())
    return [
        Fact("attention of a logit below another is at most 1/2", largest <= 0.5, "printed", f"most {largest:.9f}"),
        Fact("it is below 1/2", largest < 0.5, "corrected"),
    ]


def check_B10(rng: np.random.Generator) -> list[Evidence]:
    """The best head of one frequency by linear programming, shorter and longer than pi/g."""
    lengths = (8, 16, 24, 32, 33, 48)
    leads = tuple(max(0.0, best_lead(0.1, length)) for length in lengths)
    exact = True
    for g in (1.0, 0.3, *rng.uniform(0.15, 2.5, 4)):
        longest = int(channel_length(float(g)))
        exact &= best_lead(float(g), longest) > 1e-6 >= best_lead(float(g), longest + 1)
    i, n, g = 50, 17, np.array([1.0])
    keys = np.zeros((i + 1, 2))
    keys[n] = rotate(np.array([40.0, 0.0]), np.array(i - n), g)
    fixed = softmax(rotate(keys, np.arange(i + 1), g) @ rotate(np.array([1.0, 0.0]), np.array(i), g))[n]
    q, key = channel_head(channel_norm(0.1, 32, 0.05), 0.1, 32)
    least = 1 / (1 + 31 * np.exp(-product(q, key, np.array([0.1]), np.arange(32)).min()))
    return [
        Trend(
            "best lead of a target that may stand anywhere, g = 0.1",
            tuple(f"N = {length}" for length in lengths),
            leads,
            bound=1e-6,
        ),
        Fact("a head exists for N = ceil(pi/g) tokens and for none more, six frequencies", exact, "corrected"),
        Number("least attention of the built head, g = 0.1, N = 32", float(least), corrected=0.95),
        Fact("at one known place a head does attend", bool(fixed > 0.999), "corrected", f"{fixed:.6f} at n 17 of 50"),
    ]


def check_B11(rng: np.random.Generator) -> list[Evidence]:
    """A target with a logit gap over all others, without positions."""
    length, places = 64, np.arange(64)
    q, keys = rng.standard_normal(2), np.zeros((length, length, 2))
    keys[places, places] = 5 * q / (q @ q)
    target_attention = softmax(rotate(keys, places, nope(2)) @ q, axis=1)[places, places]
    gaps, many = (5, 10, 15, 20, 30, 40), 10_000
    missed = tuple(float(softmax(np.append(np.zeros(many - 1), float(gap)))[:-1].sum()) for gap in gaps)
    evidence: list[Evidence] = [
        Number("difference of the target's attention between its 64 places", float(np.ptp(target_attention)), 0.0),
        Trend(f"attention it misses among {many} tokens", tuple(f"gap {gap}" for gap in gaps), missed, bound=1e-9),
    ]
    for tokens in (100, many, 100_000):
        formula = channel_norm(0.0, tokens, 0.05)
        evidence.append(Number(f"gap for 0.95 among {tokens} tokens", needed_gap(tokens, 0.05), corrected=formula))
    target_shares = [float(softmax(np.append(np.zeros(tokens - 1), 10.0))[-1]) for tokens in (100, many, 1_000_000)]
    detail = ", ".join(f"{share:.3f}" for share in target_shares) + " of 100, 10^4, 10^6 tokens"
    return [
        *evidence,
        Fact(
            "a gap of 10 is not enough for ever",
            target_shares[0] > 0.99 and target_shares[2] < 0.05,
            "corrected",
            detail,
        ),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "B1",
        "Barbero",
        "(2)-(3)",
        "The logit of a rotated query and a rotated key depends on their distance only, and is a sum over pairs of "
        "channels, each turned at its own frequency.",
        r"(R^i q_i)^\top (R^j k_j) = q_i^\top R^{j-i} k_j = \sum_k (q_i^{(k)})^\top \rho(g_k)^{j-i} k_j^{(k)}",
        check_B1,
        remark="Chunk k is the channels [2k-1, 2k]; the text prints [k, k+1], which would overlap.",
    ),
    Entry(
        "B2",
        "Barbero",
        "§2.1",
        "The slowest pair turns by about 1/theta rotations for each token.",
        r"g_{d/2} = \theta^{-(d-2)/d} \approx \theta^{-1} \text{, approximately } 1/\theta \text{ rotations per token}",
        check_B2,
        corrected=r"\theta^{-1+2/d} \text{ radians} = \frac{\theta^{-1+2/d}}{2\pi} \text{ rotations per token}",
        remark="The unit is radians (as in §1): a rotation is 2 pi of them. The exponent is right, and taking it as "
        "-1 is off by theta^(2/d) - 1, which fades with d but is still a third at d = 64.",
    ),
    Entry(
        "B3",
        "Barbero",
        "Prop. 3.1",
        "For every query that is not zero and every distance there is a key whose logit is largest at that distance.",
        r"k = R^r q: \quad q^\top R^{j-i} k = \sum_k \|q^{(k)}\|^2 \cos((j-i+r) g_k)",
        check_B3,
        remark="Under the causal mask 0 <= r <= i, where the text has any integer r. The lead over the key delta "
        "tokens away is sum |q_k|^2 (1 - cos(delta g_k)), which can be tiny. App. A.1 says before the proof that the "
        "query is turned by -r; the proof turns it by r, and only that is right.",
    ),
    Entry(
        "B4",
        "Barbero",
        "Prop. 3.2",
        "Independent standard normal queries and keys have an expected logit of 0 at every distance.",
        r"\mathbb{E}_{q, k \sim N(0, I)} [q^\top R^r k] = 0",
        check_B4,
        remark="The variance is d at every distance. Independence is needed: for q = k the mean is Tr R^r. In "
        "general it is mu_q' R^r mu_k + Tr(R^r Cov(k, q)). The proof writes rho(g_k) where it means its power r.",
    ),
    Entry(
        "B5",
        "Barbero",
        "Prop. 5.2",
        "A head without positions cannot look at itself or at the token before: a repeated token gets below 1/2.",
        r"\alpha_{3,3} = \frac{1}{\exp(a_{3,1} - a_{3,3}) + 2} < \frac{1}{2}",
        check_B5,
        remark="On [bos, x, x] the two copies share what bos leaves; m copies get below 1/m each.",
    ),
    Entry(
        "B6",
        "Barbero",
        "Theorem 5.3",
        "A head with rotary positions can look at itself, or at the token before, to any precision in texts of up to N "
        "tokens.",
        r"\sup_{\|\psi\|^2 \to \infty} \frac{1}{1 + \sum_{k<i} \exp(\|\psi\|^2 (\cos((k-i) g) - 1))} = 1",
        check_B6,
        remark="sup stands for lim, and the line before it drops a bracket: exp(|psi|^2 cos - 1). The norm that "
        "suffices solves sum over delta of exp(-sum_k |psi_k|^2 (1 - cos(delta g_k))) = eps/(1 - eps): huge for one "
        "frequency once a distance is near a multiple of 2 pi, nearly free of N for many frequencies. A previous-token "
        "head has the term delta = 1 twice, and so needs more.",
    ),
    Entry(
        "B7",
        "Barbero",
        "Lemma A.1",
        "Multiples of a frequency that is rational, or algebraic, and not zero never come back to a multiple of 2 pi.",
        r"n g \equiv 0 \pmod{2\pi} \text{ only when } n = 0 \text{, for } g \ne 0 \text{ algebraic}",
        check_B7,
        remark="It follows from pi being transcendental. RoPE's frequencies are algebraic and mostly not rational: "
        "they need the lemma's second sentence. They come close: 710 tokens at 1 radian each.",
    ),
    Entry(
        "B8",
        "Barbero",
        "Lemma A.2",
        "The multiples of an irrational rotation come as near as one likes to every angle.",
        r"\{ n g \pmod{2\pi} : n \in \mathbb{Z} \} \text{ is dense in } [0, 2\pi]",
        check_B8,
        remark="The lemma names no condition, the sentence before it does: g/(2 pi) irrational, which every "
        "algebraic g but 0 fulfills. g = pi/2 visits four points.",
    ),
    Entry(
        "B9",
        "Barbero",
        "Lemma A.3",
        "A logit that is below another gets at most half of the attention.",
        r"a_i < a_j \text{ for some } j \Rightarrow \alpha_i \le \frac{1}{2}",
        check_B9,
        remark="It gets less than half: at most the logistic function of a_i - a_j.",
    ),
    Entry(
        "B10",
        "Barbero",
        "Theorem 6.1",
        "With one rotary frequency, no head can attend to a target token in texts that are long enough.",
        r"d = 2 \text{, } N \text{ large enough}: \text{no } \alpha_{i,n} > 1 - \epsilon "
        r"\text{ for any } \epsilon > 0, 1 \le n \le N",
        check_B10,
        corrected=r"\text{some head has } \alpha_{i,n} > \frac{1}{2} \text{ for every } n \iff g (N-1) < \pi",
        remark="The place of the target has to be free: for one known place a head exists at every length. For a "
        "target anywhere the limit is exact, by linear programming over all heads: N = ceil(pi/g) tokens, none more. "
        "Up to there |q| |k| = log((N-1)(1-eps)/eps) / cos(g (N-1)/2) is enough, with other keys 0.",
    ),
    Entry(
        "B11",
        "Barbero",
        "§6",
        "A head without positions can attend to a target token wherever it stands.",
        r"\alpha_{i,n} > 1 - \epsilon \text{ for any } \epsilon > 0 \text{ and any } n \text{, with NoPE}",
        check_B11,
        corrected=r"a_{i,n} - a_{i,j} \ge \log \frac{(N-1)(1-\epsilon)}{\epsilon}",
        remark="True of the place; of the length only with logits that grow as log N. Any bounded gap disperses, with "
        "every encoding.",
    ),
)
