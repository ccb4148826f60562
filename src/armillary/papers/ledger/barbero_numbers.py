"""Barbero et al., "Round and round we go!", numbers: what the text says of Gemma's and Llama's frequencies, the printed
p-RoPE, and curves over distance (B12 to B25).

A printed number with d decimals holds within half a unit of the last.
"""

from decimal import Decimal
from fractions import Fraction
from math import ceil, log, pi, sqrt

import numpy as np
from jaxtyping import Complex, Float, Int

from armillary.papers.ledger.barbero_rotary import WIDTHS, angles_turned, one_turn, slowest
from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend, mean_and_error
from armillary.theory.rotary import (
    Frequencies,
    constant_decay,
    gap_law,
    kept_count,
    p_rope,
    pairs,
    partial_rope,
    product,
    random_constant_decay,
    random_positions,
    rope,
    rotate,
    simulated_decay,
    to_half,
)
from armillary.theory.rotary_heads import channel_break


def printed_p_rope(
    x: Float[np.ndarray, "token e"], positions: Int[np.ndarray, "token"], p: float, base: float = 1e4
) -> Float[np.ndarray, "token e"]:
    """The function apply_p_rope of App. D for one head, in numpy: its count of angles, its halves, its infinities."""
    width = x.shape[1]
    wavelength = np.full(width // 2, np.inf)
    count = printed_count(p, width)
    wavelength[:count] = base ** (2 * np.arange(count) / width)
    angle = positions[:, None] / wavelength
    first, second = np.split(x, 2, axis=1)
    return np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], 1
    )


def printed_count(p: float, width: int) -> int:
    """The number of angles that this function rotates."""
    return int(p * width // 2)


def check_B12(rng: np.random.Generator) -> list[Evidence]:
    """The slowest pair followed through 128,000 tokens."""
    tokens = 128_000
    turns = {d: float(angles_turned(float(rope(d)[-1]), tokens)[-1] / (2 * pi)) for d in WIDTHS}
    exact = [Number(f"d = {d}", turns[d], corrected=tokens * slowest(d) / (2 * pi)) for d in (64, 128, 256)]
    off = tuple(abs(turns[d] - 2.04) for d in WIDTHS)
    return [Trend("rotations from 2.04", tuple(f"d = {d}" for d in WIDTHS), off, bound=0.005), *exact]


def check_B13(rng: np.random.Generator) -> list[Evidence]:
    """The 119th frequency of Gemma's heads, and its turn over the context."""
    g = float(rope(256)[118])
    turned = float(angles_turned(g, 8000)[-1])
    return [
        Number("g_119", g, 0.0002, tolerance=0.5e-4),
        Number("radians after 8000 tokens", turned, 1.64, tolerance=0.5e-2),
        Number("the same and pi/2, to one decimal", round(turned, 1), round(pi / 2, 1)),
    ]


def check_B14(rng: np.random.Generator) -> list[Evidence]:
    """The 41st of Llama's 64 frequencies, to the last digit printed."""
    g = rope(128, 500_000)
    return [
        Number("g_41, base 500,000, d = 128", float(g[40]), 0.0001, round(500_000 ** (-40 / 64), 4), tolerance=0.5e-4),
        Number(
            "n of the frequency base^(-n/64) nearest to 0.0001",
            float(np.abs(np.log(g / 1e-4)).argmin()),
            corrected=float(round(64 * log(1e4) / log(500_000))),
        ),
    ]


def check_B15(rng: np.random.Generator) -> list[Evidence]:
    """The number, to the last digit printed, and where it lies among Gemma's frequencies."""
    value = float(Decimal(10_000) ** Decimal("-0.8"))
    above = int((rope(256) > value).sum())
    between = rope(256)[above - 1] > value > rope(256)[above]
    return [
        Number("10,000^-0.8", value, 0.0006, tolerance=0.5e-4),
        Fact("it lies between two frequencies", bool(between), "corrected", f"g_{above} and g_{above + 1}, d 256"),
    ]


def check_B16(rng: np.random.Generator) -> list[Evidence]:
    """The number of tokens until a pair is rotated by one radian."""
    tokens = {d: float(np.argmax(angles_turned(float(rope(d)[-1]), 12_000) >= 1)) for d in WIDTHS}
    off = tuple(abs(tokens[d] / 10_000 - 1) for d in WIDTHS)
    return [
        Number("tokens to a radian, fastest pair", float(np.argmax(angles_turned(float(rope(256)[0]), 9) >= 1)), 1.0),
        Trend("10,000 tokens, slowest pair, relative", tuple(f"d = {d}" for d in WIDTHS), off, bound=0.005),
        *(Number(f"tokens, d = {d}", tokens[d], corrected=float(ceil(1e4 ** (1 - 2 / d)))) for d in (64, 128, 256)),
    ]


def check_B17(rng: np.random.Generator) -> list[Evidence]:
    """The printed vectors of the apostrophe head's band, turned over 20,000 tokens."""
    q, other, first = np.array([-4.1, 11.3]), np.array([11.2, -3.5]), np.array([-2.5, 1.3])
    g, distances = rope(256)[118:119], np.arange(20_000)
    bos, rest = product(q, first, g, distances), product(q, other, g, distances)
    context = slice(0, 8193)
    # the first token is the furthest: the others are at most one token nearer
    overtaken = 1 + int(np.argmax(bos[1:] <= np.maximum.accumulate(rest)[:-1]))
    moved = rng.choice([-0.05, 0.05], (500, 3, 2))
    shaken = [channel_break(q + a, first + b, other + c, float(g[0])) for a, b, c in moved]
    return [
        Number("q.k of tokens that are not BOS", float(q @ other), -85.5, tolerance=0.05),
        Number("q.k with BOS", float(q @ first), 24.9, tolerance=0.05),
        Fact(
            "positive for BOS and negative for others up to 8192 tokens",
            bool((bos[context] > 0).all() and (rest[context] < 0).all()),
            "printed",
            f"least {bos[context].min():.1f}, most {rest[context].max():.1f}",
        ),
        Fact(
            "it breaks in longer texts",
            bool((bos <= rest).any()),
            "printed",
            f"BOS negative from {np.argmax(bos <= 0)}",
        ),
        Number(
            "first distance where BOS is not above another at the same distance",
            float(np.argmax(bos <= rest)),
            corrected=channel_break(q, first, other, float(g[0])),
        ),
        Number(
            "first distance of BOS where a token after it is above it",
            float(overtaken),
            corrected=channel_break(q, first, rotate(other, np.array(1), g), float(g[0])),
        ),
        Fact(
            "the digits printed do not fix it to a token",
            max(shaken) - min(shaken) > 20,
            "corrected",
            f"{min(shaken):.0f} to {max(shaken):.0f} with the last digits rounded up or down",
        ),
    ]


def check_B18(rng: np.random.Generator) -> list[Evidence]:
    """Cauchy and Schwarz over random pairs and distances, chunk by chunk, and one cosine for one chunk."""
    g, draws = rope(16), 20_000
    q, k = rng.standard_normal((2, draws, 16))
    r = rng.integers(0, 10_000, draws)
    chunks = np.conj(pairs(q, 8)) * pairs(rotate(k, -r, g), 8)
    norms, bounds = np.abs(pairs(q, 8)) * np.abs(pairs(k, 8)), np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1)
    start = np.angle(np.conj(pairs(q, 8)) * pairs(k, 8))
    cosines = norms * np.cos(start - r[:, None] * g)
    logits = chunks.real.sum(1)
    aligned = (q * rotate(rotate(q, r, g), -r, g)).sum(1) / (q**2).sum(1)
    cosine_errors = np.abs(bounds * np.cos(start[:, 0] - r * g[0]) - logits)
    return [
        Fact("|q' R^r k| <= |q| |k|", bool((np.abs(logits) <= bounds + 1e-12).all()), "printed", f"{draws} draws"),
        Fact("and for every chunk", bool((np.abs(chunks.real) <= norms + 1e-12).all()), "printed"),
        Number(
            "largest error of |q| |k| cos(theta + g (j-i)), one chunk", float(np.abs(chunks.real - cosines).max()), 0.0
        ),
        Number("share of the bound at the distance where q and k align", float(aligned.min()), 1.0),
        Number(
            "largest error of the sum of cosines, d = 16", float(np.abs(cosines.sum(1) - logits).max()), corrected=0.0
        ),
        Fact(
            "one chunk's angle does not give the logit of d = 16",
            float(cosine_errors.max()) > 1,
            "corrected",
            f"off by {cosine_errors.max():.1f}",
        ),
        Fact("sum |q_k| |k_k| is a tighter bound", bool((norms.sum(1) <= bounds + 1e-12).all()), "corrected"),
    ]


def check_B19(rng: np.random.Generator) -> list[Evidence]:
    """Cosines and dot products of Gaussian pairs."""
    widths, spread, evidence = (4, 16, 64, 256, 4096), list[float](), list[Evidence]()
    for width in widths:
        q, k = rng.standard_normal((2, 1000 if width > 256 else 10_000, width))
        dots = (q * k).sum(1)
        cosines = dots / np.linalg.norm(q, axis=1) / np.linalg.norm(k, axis=1)
        spread.append(float(np.sqrt(np.mean(cosines**2))))
        if width == 256:
            mean, error = mean_and_error(cosines**2)
            evidence.append(Number("mean cosine^2, d = 256", mean, corrected=1 / width, error=error))
            mean, error = mean_and_error(dots**2)
            evidence.append(Number("mean (q.k)^2, d = 256", mean, corrected=float(width), error=error))
    return [
        Trend(
            "q.k as a share of |q| |k|, root mean square", tuple(f"d = {d}" for d in widths), tuple(spread), bound=0.02
        ),
        *evidence,
    ]


def check_B20(rng: np.random.Generator) -> list[Evidence]:
    """The printed function beside matrix powers, beside no rotation, and beside the frequencies that it should keep."""
    width, positions = 16, np.arange(40)
    x, order, r = rng.standard_normal((40, width)), to_half(width), one_turn(rope(width))
    byhand = np.stack([np.linalg.matrix_power(r, int(i)) @ row for i, row in zip(positions, x, strict=True)])
    all_kept = printed_p_rope(x[:, order], positions, 1.0)
    part = printed_p_rope(x, positions, 0.75)
    angles = np.angle(pairs(printed_p_rope(np.ones((1, width)), np.array([1]), 0.75), 8)[0]) - pi / 4
    q, k = rng.standard_normal((2, 1, width))
    logits = [
        float((printed_p_rope(q, np.array([s + 7]), 0.75) * printed_p_rope(k, np.array([s]), 0.75)).sum())
        for s in (0, 5, 900)
    ]
    return [
        Number("largest difference of p = 1 from (3)", float(np.abs(all_kept - byhand[:, order]).max()), 0.0),
        Number("largest difference of p = 0 from x", float(np.abs(printed_p_rope(x, positions, 0.0) - x).max()), 0.0),
        Number("angles that p = 0.75 turns, of 8", float((np.abs(angles) > 1e-12).sum()), 6.0),
        Number("largest difference of them from the first g_k", float(np.abs(angles - p_rope(width, 0.75)).max()), 0.0),
        Number(
            "largest difference from our p-RoPE",
            float(np.abs(part - rotate(x, positions, p_rope(16, 0.75))).max()),
            0.0,
        ),
        Number("range of the logits at one distance, p = 0.75", float(np.ptp(logits)), 0.0),
    ]


def check_B21(rng: np.random.Generator) -> list[Evidence]:
    """The printed count beside p d/2 in exact arithmetic, on a grid of hundredths."""
    widths, hundredths = (10, 64, 256, 4096, 65_536), range(101)
    off = [max(abs(2 * printed_count(i / 100, d) / d - i / 100) for i in hundredths) for d in widths]
    lost = exact = 0
    for width in (10, 64, 100, 128, 200, 256):
        floors = [Fraction(i, 100) * width // 2 for i in hundredths]
        lost += sum(printed_count(i / 100, width) != floors[i] for i in hundredths)
        exact += [kept_count(i / 100, width // 2) for i in hundredths] == floors
    return [
        Trend("the share of angles that turn, from p", tuple(f"d = {d}" for d in widths), tuple(off), bound=1e-4),
        Fact("kept_count is floor(p d/2) for six widths and all hundredths", exact == 6, "corrected"),
        Fact("the printed code loses an angle to rounding", lost > 0, "corrected", f"{lost} of {6 * 101}"),
    ]


def check_B22(rng: np.random.Generator) -> list[Evidence]:
    """How far p-RoPE's rotation is from RoPE's and from NoPE's, and which frequencies it keeps."""
    width, distances = 64, rng.integers(1, 5000, 50)
    shares = np.linspace(0, 1, 9)

    def turns(g: Frequencies) -> Complex[np.ndarray, "r f"]:
        return np.asarray(np.exp(1j * np.multiply.outer(distances, g)))

    to_rope = [float(np.linalg.norm(turns(p_rope(width, float(p))) - turns(rope(width)))) for p in shares]
    to_nope = [float(np.linalg.norm(turns(p_rope(width, float(p))) - 1)) for p in shares]
    kept, d = p_rope(256, 0.75), 256
    slow, partial = float(kept[kept > 0].min()), partial_rope(d, 0.75)
    return [
        Fact(
            "nearer to RoPE and further from NoPE with every step of p",
            bool((np.diff(to_rope) < 0).all() and (np.diff(to_nope) > 0).all()),
            "printed",
            "Frobenius norms of the difference, nine p",
        ),
        Number("distance of p = 1 from RoPE and p = 0 from NoPE", to_rope[-1] + to_nope[0], 0.0),
        Number("frequencies that 0.75-RoPE keeps, d = 256", float(np.count_nonzero(kept)), 3 * d / 8),
        Number("the slowest of them, g_(3d/8)", slow, 1e4 ** (-2 * (3 * d / 8 - 1) / d)),
        Fact(
            "partial rotary encoding is another: it keeps the slow end",
            bool(partial[partial > 0].min() < slow / 5),
            "corrected",
            f"slowest {partial[partial > 0].min():.2g} and {slow:.2g}",
        ),
    ]


def check_B23(rng: np.random.Generator) -> list[Evidence]:
    """All-ones vectors by octave of distance, Gaussian ones by distance."""
    g, d, draws = rope(256), 256, 3000
    far = np.arange(8192)
    curve = rotate(np.ones((len(far), d)), -far, g).sum(1) / d
    octaves = [float(curve[1 << n : 2 << n].mean()) for n in range(13)]
    rises = int((np.diff(curve[:2000]) > 0).sum())
    late = constant_decay(g, np.arange(2**16, 2**17, 5))
    evidence: list[Evidence] = [
        Fact(
            "all-ones: the mean over each octave of distances is below the last",
            bool((np.diff(octaves) < 0).all()),
            "printed",
            ", ".join(f"{2**n}: {octaves[n]:.2f}" for n in range(0, 13, 3)),
        ),
        Number(
            "largest difference from the closed form",
            float(np.abs(curve - constant_decay(g, far)).max()),
            corrected=0.0,
        ),
        Fact("not step by step", rises > 200, "corrected", f"{rises} of the first 2000 steps rise"),
        Fact("nor for ever", float(np.abs(late).max()) > 0.15, "corrected", f"up to {np.abs(late).max():.2f} at 10^5"),
    ]
    q, k = rng.standard_normal((2, draws, d))
    start = (q * k).sum(1) / sqrt(d)
    for r in (10, 1000, 10_000):
        logits = (q * rotate(k, np.array(-r), g)).sum(1) / sqrt(d)
        mean, error = mean_and_error(logits)
        evidence.append(Number(f"Gaussian: mean logit at {r}", mean, 0.0, error=error))
        mean, error = mean_and_error(logits**2)
        evidence.append(Number(f"Gaussian: mean square at {r}, 1 at every distance", mean, 1.0, error=error))
        mean, error = mean_and_error(start * logits)
        expected = float(constant_decay(g, np.array([r]))[0])
        evidence.append(Number(f"one pair: covariance of distances 0 and {r}", mean, corrected=expected, error=error))
    return evidence


def check_B24(rng: np.random.Generator) -> list[Evidence]:
    """Random positions from longer and longer ranges, for all-ones and Gaussian vectors."""
    g, count, limits, draws = rope(256), 512, (512, 1024, 4096, 16_384), 30
    below, last, evidence = list[int](), list[float](), list[Evidence]()
    for limit in limits:
        curves = simulated_decay("constant", g, count, limit=limit, draws=draws, seed=int(rng.integers(1 << 32)))
        below.append(int(np.argmax(curves.mean(0) < 0.5)))
        last.append(float(curves[:, -1].mean()))
        mean, error = mean_and_error(curves[:, 64])
        expected = float(random_constant_decay(g, np.array([64]), count, limit)[0])
        evidence.append(Number(f"all-ones, 64 places apart, L = {limit}", mean, corrected=expected, error=error))
        logits = simulated_decay("gaussian", g, 64, limit=limit, draws=100, seed=int(rng.integers(1 << 32)))
        for label, power, printed in (("mean", 1, 0.0), ("mean square", 2, 1.0)):
            mean, error = mean_and_error((logits**power).mean(1))
            evidence.append(Number(f"Gaussian: {label}, L = {limit}", mean, printed, error=error))
    gaps = np.array([random_positions(count, 4096, int(seed))[[100, 200]] for seed in rng.integers(0, 1 << 32, 300)])
    mean, error = mean_and_error(np.diff(gaps, axis=1)[:, 0].astype(float))
    law = float(gap_law(100, count, 4096) @ np.arange(1, 4097))
    return [
        Fact(
            "the all-ones curve is below 1/2 sooner for every larger L",
            bool((np.diff(below) < 0).all()),
            "printed",
            ", ".join(f"L {limit}: {place} places" for limit, place in zip(limits, below, strict=True)),
        ),
        *evidence,
        Number("mean gap of positions 100 places apart, L = 4096", mean, corrected=100 * 4097 / 513, error=error),
        Number("mean of the law of gaps", law, corrected=100 * 4097 / 513, tolerance=1e-6),
        Fact(
            "not all are at 0 at the last of 512 places", last[0] > 0.2 > last[-1], "corrected", f"L 512: {last[0]:.2f}"
        ),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "B12",
        "Barbero",
        "§6",
        "With base 10,000 the slowest pair completes about 2.04 rotations in 128k tokens.",
        r"\frac{128000}{2 \pi \cdot 10000} \approx 2.04",
        check_B12,
        corrected=r"\frac{N \theta^{-1+2/d}}{2\pi}",
        remark="2.04 takes g_(d/2) as 1/theta, which is its limit for wide heads. At Llama's d = 128 it is 2.35.",
    ),
    Entry(
        "B13",
        "Barbero",
        "App. E.1",
        "The 119th frequency of Gemma's heads is about 0.0002, and 8000 tokens turn it by about a quarter of a "
        "rotation.",
        r"g_{119} = 10000^{-2(119-1)/256} \approx 0.0002, \quad 8000 g_{119} \approx 1.64 \approx \frac{\pi}{2}",
        check_B13,
    ),
    Entry(
        "B14",
        "Barbero",
        "App. C",
        "The bands of large norm in Llama 3.1 begin at a frequency of about 0.0001.",
        r"500000^{-40/64} \approx 0.0001",
        check_B14,
        corrected=r"500000^{-40/64} \approx 0.0003, \quad 500000^{-45/64} \approx 0.0001",
        remark="Corrected, it is nearer to Gemma's 0.0006, with which the text compares it.",
    ),
    Entry(
        "B15",
        "Barbero",
        "App. C",
        "The bands of large norm in Gemma begin at a frequency of about 0.0006.",
        r"10000^{-0.8} \approx 0.0006",
        check_B15,
    ),
    Entry(
        "B16",
        "Barbero",
        "§1, §5",
        "The fastest pair turns by a radian for each token; the slowest needs about 10,000 tokens for one.",
        r"g_1 = 1, \quad g_{d/2} \approx \frac{1}{10000}",
        check_B16,
        corrected=r"\frac{1}{g_{d/2}} = \theta^{1-2/d}",
        remark="10,000 is the limit for wide heads; at d = 64 it is a quarter less.",
    ),
    Entry(
        "B17",
        "Barbero",
        "App. E.1",
        "In the slow band of the apostrophe head BOS gets a large positive logit and other tokens a large negative "
        "one; this lasts for Gemma's context and breaks in longer texts.",
        r"q^\top k_{\text{notBOS}} \approx -85.5, \quad q^\top k_{\text{BOS}} \approx +24.9",
        check_B17,
        remark="At the same distance the lead of BOS ends at 11963 tokens. But "
        "BOS is the first token, so the others are nearer by at least one, and then it is 11964. BOS's own logit is "
        "negative some 700 tokens before that. The vectors are printed with one decimal, which leaves the break open "
        "by dozens of tokens.",
    ),
    Entry(
        "B18",
        "Barbero",
        "§4, App. E.1",
        "A logit is at most the product of the norms, chunk by chunk too, with equality where query and key align.",
        r"q_i^\top R^{j-i} k_j = \|q_i\| \|k_j\| \cos(\theta_{i,j} + g_{i,j}) \le \|q_i\| \|k_j\|",
        check_B18,
        remark="With g_ij = (j - i) g the cosine is exact for one chunk. For more it is a sum of one for each chunk, "
        "whence the tighter bound sum_k |q_k| |k_k|.",
    ),
    Entry(
        "B19",
        "Barbero",
        "App. E.1",
        "Gaussian queries and keys of 256 dimensions have a dot product very close to 0, being nearly orthogonal.",
        r"q, k \sim N(0, I_{256}): \quad q^\top k \approx 0",
        check_B19,
        corrected=r"\mathbb{E} \cos^2 = \frac{1}{d}, \quad \mathbb{E} (q^\top k)^2 = d",
        remark="Read as a share of |q| |k|, the bound that the section compares with: the cosine, 1/16 at d = 256, "
        "fades as 1/sqrt(d). The dot product itself does not: its standard deviation is sqrt(d) = 16, and 1 after "
        "the usual scaling.",
    ),
    Entry(
        "B20",
        "Barbero",
        "App. D, apply_p_rope",
        "The printed function is RoPE for p = 1, NoPE for p = 0, and between them turns the fastest fraction p.",
        r"p = 1: R^i x, \quad p = 0: x, \quad \text{else } g_1, \ldots, g_{p d/2}",
        check_B20,
        remark="Its pairs are the channels (i, i + d/2): (3) after a fixed permutation. Its input is [B, L, N, H], not "
        "[B, L] as the comment says, and its first assignment to timescale has no effect.",
    ),
    Entry(
        "B21",
        "Barbero",
        "App. D, apply_p_rope",
        "The printed function turns p d/2 angles.",
        r"\text{int}(p \cdot d \,//\, 2) = \frac{p d}{2}",
        check_B21,
        corrected=r"\lfloor p d / 2 \rfloor",
        remark="It rounds down, so that the fraction in effect is below p by up to 2/d, and in floating-point "
        "numbers it may lose one more: 0.58 of 50 angles are 28. An odd d fails.",
    ),
    Entry(
        "B22",
        "Barbero",
        "§6.1",
        "p-RoPE lies between NoPE and RoPE, nearer to RoPE for larger p; 0.75-RoPE keeps the first three quarters of "
        "the frequencies.",
        r"p = 0.75: g_1, \ldots, g_{3d/8}",
        check_B22,
        remark="Partial rotary encoding with the same count is another scheme: its frequencies go down to about "
        "1/theta. The perplexities of Table 2 are B25.",
    ),
    Entry(
        "B23",
        "Barbero",
        "Figures 2 and 9",
        "Logits of all-ones vectors decay with distance, those of Gaussian vectors do not.",
        r"\frac{1}{d} 1^\top R^r 1 = \frac{2}{d} \sum_k \cos(r g_k) \text{ decays in } r",
        check_B23,
        remark="It decays octave by octave up to about theta tokens, not step by step, and then wanders about 0 as "
        "far as 0.2. One Gaussian pair (Figure 9) wanders too: over draws, its logits at two distances have this "
        "same curve as their covariance.",
    ),
    Entry(
        "B24",
        "Barbero",
        "App. B.3, Figure 8",
        "With random positions a larger range L makes the all-ones curve decay faster and does nothing to Gaussian "
        "ones.",
        r"N \text{ positions from } 1 \ldots L: \text{ larger } L \text{, faster decay}",
        check_B24,
        remark="Places r apart are r (L+1)/(N+1) positions apart on average. That all curves come to 0 in the end is "
        "loose: with L = 512 the last of 512 places is still at 0.2.",
    ),
    Entry(
        "B25",
        "Barbero",
        "Figures 3-7 and 10-19, Tables 2-5",
        "Gemma and Llama use slow frequencies most, positional heads use fast ones, and 0.75-RoPE has the lowest "
        "perplexity.",
        r"\text{mean norms } \|q^{(k)}\|, \|k^{(k)}\| \text{ by frequency; perplexities}",
        None,
        remark="It needs trained weights. The arithmetic in the same sections is B13 to B17.",
        command="armillary frequencies DIR, armillary rope MODEL --sweep p=1,0.75,0.25,0, armillary train",
    ),
)
