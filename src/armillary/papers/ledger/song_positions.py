"""Song and Zhong on positions: the two-way decomposition, smooth Gram matrices, and Theorem 1 with its proof (F.1)."""

from itertools import pairwise

import numpy as np
from jaxtyping import Complex, Float
from scipy.fft import dct

from armillary.lenses.decomposition import Decomposition
from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number
from armillary.theory.smoothness import (
    centered,
    dct_energy,
    gram,
    low_frequency_bound,
    low_frequency_residual,
    mixed_difference,
    smoothness,
)

States = Float[np.ndarray, "c t d"]
Matrix = Float[np.ndarray, "t t"]


def states(rng: np.random.Generator, c: int = 20, t: int = 12, d: int = 8) -> States:
    """Hidden states with a mean and effects of position, of context, and of their pairs."""
    mean, position, context = rng.normal(size=d), rng.normal(size=(1, t, d)), rng.normal(size=(c, 1, d))
    return np.asarray(3 * mean + position + 2 * context + rng.normal(size=(c, t, d)))


def parts(h: States) -> tuple[Float[np.ndarray, "d"], Float[np.ndarray, "t d"], Float[np.ndarray, "c d"], States]:
    """mu, pos, ctx and resid by (2) to (4)."""
    mu = h.mean((0, 1))
    pos, ctx = h.mean(0) - mu, h.mean(1) - mu
    return mu, pos, ctx, h - mu - pos[None] - ctx[:, None]


def dct_matrix(t: int) -> Matrix:
    """The orthonormal DCT-II, a frequency in every row."""
    return np.asarray(dct(np.eye(t), axis=0, norm="ortho"))


def printed_basis(t: int, k: int) -> Float[np.ndarray, "t k"]:
    """f_s(t) = cos((s - 1/2)(t - 1) pi / T), s = 1..k, as printed in Theorem 1."""
    return np.asarray(np.cos(np.outer(np.arange(t), np.arange(k) + 0.5) * np.pi / t))


def cosine(t: int, frequency: int) -> Float[np.ndarray, "t"]:
    """A vector of the DCT-II, cos(j (t - 1/2) pi / T), of length sqrt(T / 2)."""
    return np.asarray(np.cos(frequency * (np.arange(t) + 0.5) * np.pi / t))


def amplitude(t: int, frequency: int) -> float:
    """2 T sin(j pi / 2T): by what one difference, with the factor T, lengthens that vector."""
    return float(2 * t * np.sin(frequency * np.pi / (2 * t)))


def differenced_cosine(t: int, frequency: int, order: int) -> Float[np.ndarray, "two_t"]:
    """Delta^m of its even reflection: amplitude^m times the cosine, each time moved by pi/2 less half a step."""
    phase = order * (np.pi / 2 - frequency * np.pi / (2 * t))
    place = frequency * (np.arange(2 * t) + 0.5) * np.pi / t
    return np.asarray(amplitude(t, frequency) ** order * np.cos(place + phase))


def gamma(n: int) -> Complex[np.ndarray, "n"]:
    """(17): 1 / (N (1 - exp(-2 pi i (t - 1) / N))), and 1 for t = 1."""
    turns = np.exp(-2j * np.pi * np.arange(1, n) / n)
    return np.concatenate([np.ones(1, dtype=np.complex128), 1 / (n * (1 - turns))])


def fourier(n: int) -> Complex[np.ndarray, "n n"]:
    """F_tt' = exp(-2 pi i (t - 1)(t' - 1) / N)."""
    return np.asarray(np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n))


def reflected(matrix: Matrix) -> Float[np.ndarray, "two_t two_t"]:
    """G~ of (6)."""
    return mixed_difference(matrix, 0)


def centered_gram(rng: np.random.Generator, t: int, d: int = 6) -> Matrix:
    """The Gram matrix of random vectors that sum to zero."""
    vectors = rng.normal(size=(t, d))
    vectors -= vectors.mean(0)
    return np.asarray(vectors @ vectors.T)


def check_S1(rng: np.random.Generator) -> list[Evidence]:
    h = states(rng)
    mu, pos, ctx, resid = parts(h)
    sums = {
        "pos over t": pos.sum(0),
        "ctx over c": ctx.sum(0),
        "resid over c": resid.sum(0),
        "resid over t": resid.sum(1),
        "cvec over c": (ctx[:, None] + resid).sum(0),
    }
    rebuilt = float(np.abs(mu + pos[None] + ctx[:, None] + resid - h).max())
    return [
        Number("largest |h - mu - pos - ctx - resid|", rebuilt, printed=0.0),
        *(Number(f"largest sum of {name}", float(np.abs(total).max()), printed=0.0) for name, total in sums.items()),
    ]


def check_S2(rng: np.random.Generator) -> list[Evidence]:
    h = states(rng)
    mu, pos, ctx, resid = parts(h)
    grids = {"pos": np.broadcast_to(pos[None], h.shape), "ctx": np.broadcast_to(ctx[:, None], h.shape), "resid": resid}
    pairs = (("pos", "ctx"), ("pos", "resid"), ("ctx", "resid"))
    cross = {pair: np.einsum("cti,ctj->ij", grids[pair[0]], grids[pair[1]]) for pair in pairs}
    total = float(np.square(h - mu).sum())
    added = len(h) * np.square(pos).sum() + h.shape[1] * np.square(ctx).sum() + np.square(resid).sum()
    cosines = pos @ ctx.T / np.outer(np.linalg.norm(pos, axis=1), np.linalg.norm(ctx, axis=1))
    kept = rng.random(h.shape[:2]) < 0.7  # an incomplete design: means over the remaining entries
    weight = kept[..., None] / kept.sum()
    mean = (weight * h).sum((0, 1))
    gap_pos = np.stack([h[kept[:, t], t].mean(0) for t in range(h.shape[1])]) - mean
    gap_ctx = np.stack([h[c, kept[c]].mean(0) for c in range(len(h))]) - mean
    gap = float(np.abs(np.einsum("ct,ti,ci->i", kept.astype(np.float64), gap_pos, gap_ctx)).max())
    return [
        *(Number(f"largest entry of sum {a} {b}'", float(np.abs(m).max()), printed=0.0) for (a, b), m in cross.items()),
        Number("sum |h - mu|^2", total, printed=float(added)),
        Number("share of resid", float(np.square(resid).sum() / total), Decomposition(mu, pos, ctx, total).shares[2]),
        Fact("single pos_t and ctx_c are not orthogonal", bool(np.abs(cosines).max() > 0.1), "corrected"),
        Fact("with gaps in the design the sums are not 0", gap > 1e-3, "corrected", f"largest {gap:.3g}"),
    ]


def check_S3(rng: np.random.Generator) -> list[Evidence]:
    ratios, repeats, off = [], [], []
    for _ in range(60):
        c, t, d = (int(n) for n in rng.integers(2, 16, 3))
        weight = rng.exponential(size=3)
        noise = rng.normal(size=(c, t, d))
        h = weight[0] * noise + weight[1] * rng.normal(size=(1, t, d)) + weight[2] * rng.normal(size=(c, 1, d))
        mu, pos, _, _ = parts(h)
        center = (h - mu).reshape(c * t, d)
        repeated = np.broadcast_to(pos[None], h.shape).reshape(c * t, d)
        average = np.kron(np.full((c, c), 1 / c), np.eye(t))
        off.append(np.abs(average @ center - repeated).max())
        largest = np.linalg.norm(center, 2)
        ratios.append(np.linalg.norm(repeated, 2) / largest)
        repeats.append(ratios[-1] * largest / (np.sqrt(c) * np.linalg.norm(pos, 2)))
    return [
        Fact("|P| / |M| <= 1 for all draws", bool(max(ratios) <= 1 + 1e-12), "printed", f"largest {max(ratios):.3f}"),
        Number("P is M times an averaging projection: largest difference", float(max(off)), printed=0.0),
        Number(
            "|P| with a column for every (c, t) over sqrt(C) |[pos_1 .. pos_T]|", float(max(repeats)), corrected=1.0
        ),
    ]


def check_S5(rng: np.random.Generator) -> list[Evidence]:
    t = int(rng.integers(20, 40))
    g = gram(rng.normal(size=(t, 5)))
    s, place = np.arange(t)[:, None], np.arange(t)[None] + 0.5
    f = np.sqrt(2 / t) * np.cos(s * place * np.pi / t)
    f[0] /= np.sqrt(2)
    energy = np.square(f @ g @ f.T)
    shares = [energy[:k, :k].sum() / energy.sum() for k in range(1, t + 1)]
    ours = [float(dct_energy(g, k)) for k in range(1, t + 1)]
    return [
        Number("largest entry of F F' - I", float(np.abs(f @ f.T - np.eye(t)).max()), printed=0.0),
        Number("sum of squared frequencies", float(energy.sum()), printed=float(np.square(g).sum())),
        Number(
            "largest difference of r_K from dct_energy", float(np.abs(np.subtract(shares, ours)).max()), printed=0.0
        ),
        Fact("r_K rises with K", bool(np.diff(shares, prepend=0.0).min() >= 0)),
        Number("r_T", float(shares[-1]), printed=1.0),
    ]


def check_S4(rng: np.random.Generator) -> list[Evidence]:
    pos = parts(states(rng))[1]
    unit = pos / np.linalg.norm(pos, axis=1, keepdims=True)
    angle = 2 * np.pi * np.arange(11) / 11
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    return [
        Number("|sum of pos_t / |pos_t||", float(np.linalg.norm(unit.sum(0))), printed=0.0),
        Number("|sum of pos_t|, not normalized", float(np.linalg.norm(pos.sum(0))), corrected=0.0),
        Number("largest row sum of the centered G", float(np.abs(centered(gram(pos)).sum(1)).max()), corrected=0.0),
        Number("|sum| on a closed circle", float(np.linalg.norm(circle.sum(0))), corrected=0.0),
    ]


def smooth_function(t: int, width: float, turn: float) -> Matrix:
    """f(x, y) = exp(-a (x - y)^2) + cos(b x) cos(b y) / 2 at x, y = 1/T .. 1."""
    x = np.arange(1, t + 1) / t
    return np.asarray(np.exp(-width * np.subtract.outer(x, x) ** 2) + np.outer(np.cos(turn * x), np.cos(turn * x)) / 2)


def smooth_derivative(t: int, width: float, turn: float, order: int) -> Matrix:
    """d_x^m d_y^m f, m = 1 or 2."""
    x = np.arange(1, t + 1) / t
    apart = np.subtract.outer(x, x) ** 2
    bell = np.exp(-width * apart)
    if order == 1:
        return np.asarray(
            (2 * width - 4 * width**2 * apart) * bell + turn**2 / 2 * np.outer(np.sin(turn * x), np.sin(turn * x))
        )
    fourth = (16 * width**4 * apart**2 - 48 * width**3 * apart + 12 * width**2) * bell
    return np.asarray(fourth + turn**4 / 2 * np.outer(np.cos(turn * x), np.cos(turn * x)))


def check_S10(rng: np.random.Generator) -> list[Evidence]:
    width, turn = float(rng.uniform(2, 4)), float(rng.uniform(1, 3))
    sizes = (64, 128, 256)
    grams = [smooth_function(t, width, turn) for t in sizes]
    evidence: list[Evidence] = []
    for order in (1, 2, 3):
        growth = float(np.log2(smoothness(grams[2], order) / smoothness(grams[1], order)))
        name = f"exponent of T with which max |Delta^({order},{order})| grows"
        evidence.append(Number(name, growth, printed=0.0, corrected=2.0 * (order - 1), tolerance=0.1))
    for order in (1, 2):
        errors = []
        for t, g in zip(sizes, grams, strict=True):
            inside = mixed_difference(g, order)[order:t, order:t]
            errors.append(float(np.abs(inside - smooth_derivative(t, width, turn, order)[order:, order:]).max()))
        name = f"away from the mirror, order {order} nears the derivative as 1/T or faster"
        nears = all(finer < 0.6 * coarser for coarser, finer in pairwise(errors))
        evidence.append(Fact(name, nears, "corrected", ", ".join(f"{e:.3g}" for e in errors)))
    return evidence


def check_S8(rng: np.random.Generator) -> list[Evidence]:
    t, k = int(rng.integers(48, 81)), 8
    g = cosine(t, 1)
    q = np.linalg.qr(printed_basis(t, k))[0]
    left = g - q @ (q.T @ g)
    least = float(left @ left / t)  # (I - Q Q') cuts away whatever B gives
    evidence: list[Evidence] = []
    for order, factor in ((4, 8), (6, 8), (6, 4)):
        bound = 6 / (factor * k) ** order * float(np.abs(differenced_cosine(t, 1, order)).max()) ** 2
        name = f"G = g g', g the lowest cosine, k = {k}, m = {order}: some B meets 6/({factor}k)^m |Delta|"
        evidence.append(Fact(name, least <= bound, "printed", f"every B leaves {least:.3g} or more, bound {bound:.3g}"))
    matrix = np.outer(g, g)
    numeric, closed = smoothness(matrix, 2), float(np.abs(differenced_cosine(t, 1, 2)).max()) ** 2
    return [
        *evidence,
        Number("max |Delta^(2,2) G~|", numeric, corrected=closed, tolerance=1e-5),
        Number("what the first k vectors of the DCT-II leave", low_frequency_residual(matrix, k), corrected=0.0),
    ]


def two_cosines(t: int, k: int, order: int, share: float, factor: int) -> float:
    """Left over right side of Theorem 1 for G = v v', v = g_1 + eps g_k, eps = share (a_1/a_k)^m, the DCT-II as basis.

    Frequency k is the first that is cut off. For every B the left is at least eps |g_1||g_k| / T = eps / 2, the block
    of G between kept and cut frequencies; the right is (max |Delta^m v|)^2, in closed form since eps may be 1e-40.
    """
    epsilon = share * (amplitude(t, 1) / amplitude(t, k)) ** order
    steps = differenced_cosine(t, 1, order) + epsilon * differenced_cosine(t, k, order)
    return float(epsilon / 2 / (6 / (factor * k) ** order * np.abs(steps).max() ** 2))


def check_S9(rng: np.random.Generator) -> list[Evidence]:
    known = {factor: two_cosines(50, 49, 24, 1.0, factor) for factor in (8, 4)}
    largest = {8: 0.0, 4: 0.0}
    for _ in range(1000):
        t = int(rng.integers(4, 80))
        k, order, share = int(rng.integers(1, t)), int(rng.integers(1, 40)), float(10 ** rng.uniform(-1, 1))
        for factor in largest:
            largest[factor] = max(largest[factor], two_cosines(t, k, order, share, factor))
    smooth = 0.0
    for _ in range(60):
        t = int(rng.integers(16, 48))
        weights = rng.normal(size=(4, t - 1)) * np.exp(-rng.uniform(0.1, 2) * np.arange(1, t))
        vectors = weights @ dct_matrix(t)[1:]
        k, order = int(rng.integers(1, t)), int(rng.integers(1, 4))
        g = centered(vectors.T @ vectors)
        rounding = 1e-13 * float(np.abs(g).max())  # with nothing cut off, only rounding error remains
        smooth = max(smooth, (low_frequency_residual(g, k) - rounding) / low_frequency_bound(g, k, order))
    sizes = range(4, 601)
    product = min(
        float((amplitude(t, 1) * 2 * t * np.sin(j * np.pi / (2 * t)) / (8 * j)).min())
        for t in sizes
        for j in [np.arange(1, 2 * t // 3 + 1)]
    )
    return [
        Fact("T = 50, k = 49, m = 24, two cosines: 6/(8k)^m", known[8] <= 1, "printed", f"left/right {known[8]:.3g}"),
        Fact("T = 50, k = 49, m = 24, two cosines: 6/(4k)^m", known[4] <= 1, "corrected", f"left/right {known[4]:.3g}"),
        Fact("1000 pairs of cosines: 6/(8k)^m", largest[8] <= 1, "printed", f"largest left/right {largest[8]:.3g}"),
        Fact("1000 pairs of cosines: 6/(4k)^m", largest[4] <= 1, "corrected", f"largest left/right {largest[4]:.3g}"),
        Fact("60 smooth random G: 6/(4k)^m", smooth <= 1, "corrected", f"largest left/right {smooth:.3g}"),
        Fact("a_1 a_k >= 8k for k <= 2T/3, T = 4..600: 8k will do there", product >= 1, "corrected", f"{product:.5f}"),
    ]


def check_S11(rng: np.random.Generator) -> list[Evidence]:
    t, k = 64, 8
    v = 1 + 1e-5 * rng.choice([-1.0, 1.0], t)
    g, low = np.outer(v, v), dct_matrix(t)[:k]
    kept = low.T @ (low @ v)
    left = float(np.linalg.norm(kept) * np.linalg.norm(v - kept) / t)  # the block of G between kept and cut
    bound = low_frequency_bound(g, k)
    again = centered(g)
    return [
        Fact(
            "without G 1 = 0 every B breaks the bound, m = 1",
            left > bound,
            "printed",
            f"left {left:.3g} or more, bound {bound:.3g}",
        ),
        Fact("and the same G, centered, keeps it", low_frequency_residual(again, k) <= low_frequency_bound(again, k)),
    ]


def check_S19(rng: np.random.Generator) -> list[Evidence]:
    d, t = 64, np.arange(1, 65)
    i = np.arange(d)
    even = i % 2 == 0

    def table(exponents: Float[np.ndarray, "d"]) -> Float[np.ndarray, "t d"]:
        angle = t[:, None] / 10000.0**exponents
        return np.where(even, np.sin(angle), np.cos(angle))

    grams = {"printed": table(2 * i / d), "corrected": table((i - i % 2) / d)}
    grams = {name: rows @ rows.T for name, rows in grams.items()}
    waves = 10000.0 ** (-np.arange(d // 2) * 2 / d)  # Vaswani et al.: wavelengths 2 pi to 10000 * 2 pi
    lag = int(rng.integers(1, 32))
    spread = {name: max(float(np.ptp(np.diag(g, j))) for j in range(40)) for name, g in grams.items()}
    here = (5, 5 + lag)
    return [
        Number(
            f"<pos_6, pos_{6 + lag}> of the fixed encoding",
            float(np.cos(waves * lag).sum()),
            printed=float(grams["printed"][here]),
            corrected=float(grams["corrected"][here]),
        ),
        Number("variation of <pos_t, pos_t+j> over t", 0.0, printed=spread["printed"], corrected=spread["corrected"]),
    ]


def check_S6(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for n in (15, 32):
        x, f = rng.normal(size=n), fourier(n)
        right = gamma(n) * (f @ (n * (x - np.roll(x, 1))))
        right[0] += x.sum()
        a = rng.normal(size=(n, n))
        back = f.conj() @ (f @ a @ f.T) @ f.conj().T / n**2
        evidence += [
            Number(f"N = {n}: largest difference of the two sides of (16)", float(np.abs(f @ x - right).max()), 0.0),
            Number(f"N = {n}: largest error of the inversion (15)", float(np.abs(back - a).max()), 0.0),
        ]
    return evidence


def check_S7(rng: np.random.Generator) -> list[Evidence]:
    sizes = (8, 16, 64, 256, 2 * int(rng.integers(20, 500)))
    least, largest, mirrored = [], [], []
    for n in sizes:
        modulus = np.abs(gamma(n))
        t = np.arange(2, n // 2 + 2)
        times = modulus[t - 1] * (t - 1)
        least.append(float(times[:-1].min() * 8))
        largest.append(float(times.max() * 4))
        mirrored.append(float(np.abs(modulus[t - 1] - modulus[n - t + 1]).max()))
    far = float(np.abs(gamma(4096)[1]))
    return [
        Number("largest | |gamma_(N-t+2)| - |gamma_t| |", max(mirrored), printed=0.0),
        Fact(
            "|gamma_t| 8 (t - 1) <= 1",
            min(least) <= 1,
            "printed",
            f"at every 1 < t <= N/2 it is {min(least):.3f} or more",
        ),
        Fact(
            "|gamma_t| 4 (t - 1) <= 1, t <= N/2 + 1",
            max(largest) <= 1 + 1e-9,
            "corrected",
            f"largest {max(largest):.3f}",
        ),
        Number("|gamma_2| at N = 4096", far, printed=None, corrected=1 / (2 * np.pi), tolerance=1e-6),
    ]


def check_S23(rng: np.random.Generator) -> list[Evidence]:
    t = int(rng.integers(8, 14))
    n, small = 2 * t, centered_gram(rng, t)
    f, g = fourier(n), gamma(n)
    generic = centered(rng.normal(size=(n, n)))
    evidence: list[Evidence] = []
    for order in (1, 2):
        for name, a in (("any symmetric A, A 1 = 0", generic + generic.T), ("A = G~", reflected(small))):
            step = a
            for _ in range(order):
                down = step - np.roll(step, 1, axis=0)
                step = n**2 * (down - np.roll(down, 1, axis=1))
            hat, right = f @ a @ f.T, np.outer(g, g) ** order * (f @ step @ f.T)
            evidence.append(Number(f"{name}, m = {order}, relative error", _relative(right, hat), printed=0.0))
        with_t = np.outer(g, g) ** order * (f @ mixed_difference(small, order) @ f.T)
        name = f"m = {order}, with T^2 of (7) for N^2: 4^m times the right side, relative error"
        evidence.append(Number(name, _relative(4**order * with_t, hat), corrected=0.0))
    return evidence


def check_S24(rng: np.random.Generator) -> list[Evidence]:
    t, k = int(rng.integers(9, 15)), 4
    g, f, n = centered_gram(rng, t), fourier(2 * t), 2 * t
    hat = f @ reflected(g) @ f.T

    def truncated(kept: list[int]) -> Complex[np.ndarray, "t t"]:
        rows = f.conj()[:t, kept]
        return np.asarray(rows @ hat[np.ix_(kept, kept)] @ rows.T / n**2)

    printed = truncated([*range(k), *range(n - k, n)])
    corrected = truncated([*range(k), *range(n - k + 1, n)])
    low = dct_matrix(t)[:k]
    q = np.linalg.qr(printed_basis(t, k))[0]

    def off_span(matrix: Complex[np.ndarray, "t t"]) -> float:
        return float(np.linalg.norm(matrix - q @ (q.T @ matrix)) / np.linalg.norm(matrix))

    return [
        Number("printed I: imaginary part, relative", _relative(printed.real, printed), printed=0.0),
        Number("printed I: part outside the printed f_s, relative", off_span(printed), printed=0.0),
        Number("corrected I: part outside the printed f_s, relative", off_span(corrected), printed=0.0),
        Number("corrected I: imaginary part, relative", _relative(corrected.real, corrected), corrected=0.0),
        Number(
            "corrected I: distance to P_k G P_k", _relative(low.T @ (low @ g @ low.T) @ low, corrected), corrected=0.0
        ),
    ]


def _relative(
    value: Float[np.ndarray, "n n"] | Complex[np.ndarray, "n n"], reference: Complex[np.ndarray, "n n"]
) -> float:
    return float(np.abs(value - reference).max() / np.abs(reference).max())


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="S1",
        paper="Song",
        place="(2)-(4)",
        statement="Hidden states are a global mean plus an effect of position, one of context, and a rest; each sums "
        "to zero over its own index.",
        printed=r"h_{c,t} = \mu + \text{pos}_t + \text{ctx}_c + \text{resid}_{c,t}, \quad \sum_t \text{pos}_t = "
        r"\sum_c \text{ctx}_c = \sum_c \text{resid}_{c,t} = \sum_t \text{resid}_{c,t} = 0",
        check=check_S1,
        remark="The paper calls ctx + resid cvec; it sums to zero over contexts at every position.",
    ),
    Entry(
        id="S2",
        paper="Song",
        place="§1.2",
        statement="As in a two-way analysis of variance, the parts are orthogonal over all contexts and positions and "
        "their sums of squares add up.",
        printed=r"\sum_{c,t} \|h_{c,t} - \mu\|^2 = C \sum_t \|\text{pos}_t\|^2 + T \sum_c \|\text{ctx}_c\|^2 + "
        r"\sum_{c,t} \|\text{resid}_{c,t}\|^2",
        check=check_S2,
        remark="Orthogonal in the sum over the grid, as d x d cross moments too; a single pos_t and ctx_c may point "
        "the same way. Every context must have all T positions: with gaps the sums are no longer zero.",
    ),
    Entry(
        id="S3",
        paper="Song",
        place="§3.1",
        statement="The relative norm of the positional basis lies between 0 and 1.",
        printed=r"0 \le \frac{\|P\|_{op}}{\|M\|_{op}} \le 1",
        check=check_S3,
        remark="P has the column pos_t for every pair (c, t), so that it is M times an averaging projection. With T "
        "columns only, the ratio is smaller by the square root of C.",
    ),
    Entry(
        id="S5",
        paper="Song",
        place="§3.2",
        statement="The two-dimensional DCT-II of the Gram matrix is orthogonal, and the share of energy in the first K "
        "frequencies is well defined.",
        printed=r"\hat{G} = \tilde{F} G \tilde{F}^\top, \quad r_K = \frac{\sum_{i,j \le K} \hat{G}_{ij}^2}{\sum_{i,j} "
        r"\hat{G}_{ij}^2}",
        check=check_S5,
    ),
    Entry(
        id="S4",
        paper="Song",
        place="§3.3",
        statement="Positional vectors of unit length sum to zero by definition.",
        printed=r"\|\text{pos}_t\| = 1 \text{ for all } t, \text{ so by definition } \sum_t \text{pos}_t = 0",
        check=check_S4,
        corrected=r"\sum_t \text{pos}_t = 0 \text{ before normalizing; for the Gram matrix of unit vectors } G 1 = 0 "
        r"\text{ must be assumed or imposed by centering}",
        remark="Dividing each vector by its own length undoes the zero sum. Both hold on a closed circle.",
    ),
    Entry(
        id="S10",
        paper="Song",
        place="after (7)",
        statement="If the Gram matrix samples a smooth function, its mixed differences of every order near the "
        "function's derivatives, and so stay bounded.",
        printed=r"G_{t,t'} = f(t/T, t'/T) \Rightarrow [\Delta^{(m,m)} \tilde{G}]_{t,t'} \approx \partial_x^m "
        r"\partial_y^m f(t/T, t'/T)",
        check=check_S10,
        corrected=r"\max |\Delta^{(m,m)} \tilde{G}| \sim T^{2(m-1)} \text{ unless the normal derivatives of } f "
        r"\text{ vanish at } 0 \text{ and } 1",
        remark="The even reflection has a kink at the mirror. Only m = 1 stays bounded for any smooth f; away from the "
        "mirror higher orders do near the derivative. So Theorem 1 is in general useful with m = 1, at a rate 1/k.",
    ),
    Entry(
        id="S8",
        paper="Song",
        place="Theorem 1, basis",
        statement="A smooth Gram matrix is near the span of the k vectors cos((s - 1/2)(t - 1) pi / T).",
        printed=r"f_s(t) = \cos \frac{(s - 1/2)(t - 1) \pi}{T}, \quad s = 1, \dots, k",
        check=check_S8,
        corrected=r"f_s(t) = \cos \frac{(s - 1)(t - 1/2) \pi}{T}, \quad s = 1, \dots, k",
        remark="The roles of position and frequency are swapped in the proof. For G = g g', g the lowest cosine of the "
        "DCT-II, every B leaves about 0.018 with eight printed vectors, whatever the smoothness; the DCT-II leaves 0.",
    ),
    Entry(
        id="S9",
        paper="Song",
        place="Theorem 1, constant",
        statement="What k low-frequency vectors leave of G is at most 6/(8k)^m times its largest mixed difference.",
        printed=r"\frac{1}{T} \|G - F_{\le k} B (F_{\le k} B)^\top\|_{op} \le \frac{6}{(8k)^m} \|\Delta^{(m,m)} "
        r"\tilde{G}\|_{\max}",
        check=check_S9,
        corrected=r"\frac{1}{T} \|G - P_k G P_k\|_{op} \le \frac{6}{(4k)^m} \|\Delta^{(m,m)} \tilde{G}\|_{\max}, \quad "
        r"G 1 = 0, \quad P_k \text{ the first } k \text{ vectors of the DCT-II}",
        remark="With the DCT-II basis; broken by two cosines, the lowest and the first that is cut off, for k near T "
        "and m above 16. For k <= 2T/3 the printed constant stands. The proof uses Lemma 2 (S7) and differences with "
        "2T, where (7) has T.",
    ),
    Entry(
        id="S11",
        paper="Song",
        place="Theorem 1, hypothesis",
        statement="Theorem 1 needs vectors that sum to zero.",
        printed=r"\sum_t \text{pos}_t = 0, \text{ that is } G 1 = 0",
        check=check_S11,
        remark="Without it a constant plus a roughness of 1e-5 breaks the bound, the larger one with 4k included. "
        "Center the normalized vectors first.",
    ),
    Entry(
        id="S19",
        paper="Song",
        place="App. B.1",
        statement="The fixed sinusoidal encoding has the exponent 2i/d in dimension i, sine if i is even and cosine if "
        "it is odd.",
        printed=r"[\text{pos}_t]_i = \sin \frac{t}{10000^{2i/d}} \; (i = 2k), \quad \cos \frac{t}{10000^{2i/d}} \; "
        r"(i = 2k + 1)",
        check=check_S19,
        corrected=r"[\text{pos}_t]_i = \sin \frac{t}{10000^{i/d}} \; (i = 2k), \quad \cos \frac{t}{10000^{(i-1)/d}} \; "
        r"(i = 2k + 1)",
        remark="In the original, 2i/d counts pairs, and both of a pair share a frequency. As printed they do not, "
        "wavelengths reach nearly 10000 squared, and the Gram matrix is no longer a function of t - t'.",
    ),
    Entry(
        id="S6",
        paper="Song",
        place="Lemma 1, (15)-(17)",
        statement="The discrete Fourier transform of a vector is that of its periodic difference times gamma_t, plus "
        "the sum at frequency zero; the two-dimensional transform is inverted by (15).",
        printed=r"\hat{x}_t = \gamma_t (F \Delta x)_t + 1\{t = 1\} \sum_{t'} x_{t'}",
        check=check_S6,
    ),
    Entry(
        id="S7",
        paper="Song",
        place="Lemma 2",
        statement="gamma_t is at most 1/(8(t - 1)) in modulus.",
        printed=r"|\gamma_{N-t+2}| = |\gamma_t| \le \frac{1}{8 (t - 1)}, \quad 1 < t \le N/2",
        check=check_S7,
        corrected=r"|\gamma_t| \le \frac{1}{4 (t - 1)}, \quad 1 < t \le N/2 + 1; \quad |\gamma_t| \approx "
        r"\frac{1}{2 \pi (t - 1)} \text{ for } t \ll N",
        remark="Broken at every t. sin(x/2) >= x/pi gives |1 - exp(ix)| >= 2x/pi, printed 4x/pi: at x = pi, 4 for 2.",
    ),
    Entry(
        id="S23",
        paper="Song",
        place="App. F.1",
        statement="The two-dimensional transform of a symmetric matrix with zero row sums is that of its mixed "
        "difference between powers of Gamma.",
        printed=r"\hat{A} = F A F^\top = \Gamma^m F (\Delta^{(m,m)} A) F^\top \Gamma^m",
        check=check_S23,
        remark="With differences times N as the appendix defines them. With (7), which has T = N/2, the right side is "
        "4^m too small.",
    ),
    Entry(
        id="S24",
        paper="Song",
        place="Lemma 3, (19)-(20)",
        statement="Keeping the frequencies I in the transform of the reflected G gives a real Gram matrix of the k "
        "printed low-frequency vectors.",
        printed=r"I = \{1, \dots, k\} \cup \{2T - k + 1, \dots, 2T\}, \quad N^{-2} [F^* \hat{A}_{I,I} (F^*)^\top]_{1:T,"
        r"1:T} = F_{\le k} B (F_{\le k} B)^\top",
        check=check_S24,
        corrected=r"I = \{1, \dots, k\} \cup \{2T - k + 2, \dots, 2T\}, \quad N^{-2} [F^* \hat{A}_{I,I} (F^*)^\top]_"
        r"{1:T,1:T} = P_k G P_k",
        remark="The printed set has one negative frequency too many, so that the result is complex; P_k projects on "
        "the first k vectors of the DCT-II.",
    ),
)
