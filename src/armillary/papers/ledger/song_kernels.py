"""Song and Zhong on attention: smooth and incoherent parts of the QK matrix, and kernels that factorize."""

from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.integrate import trapezoid
from scipy.special import betainc, gammaln, ndtr, softmax

from armillary.lenses.positional import incoherence
from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, mean_and_error

Vectors = Float[np.ndarray, "n d"]
Matrix = Float[np.ndarray, "d d"]


def unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def check_S21(rng: np.random.Generator) -> list[Evidence]:
    t, near, strength = 256, 8, 6.0
    place = np.arange(t) / t
    waves = rng.normal(size=64) / 0.1
    p = np.concatenate([np.cos(np.outer(place, waves)), np.sin(np.outer(place, waves))], 1) / 8  # unit vectors
    w = strength * (np.eye(128) + 0.05 * rng.normal(size=(128, 128)) / np.sqrt(128))
    smooth = p @ w @ p.T
    rough = np.where(np.eye(t, dtype=bool), smooth, smooth[:, rng.permutation(t)])
    rough = np.where(rough > np.diag(smooth)[:, None], 0.0, rough)
    lipschitz = t * float(np.abs(np.diff(smooth, axis=1)).max())
    hidden = np.triu(np.ones((t, t), dtype=bool), 1)
    gains = []
    for logits in (smooth, rough):
        masked = np.where(hidden, -np.inf, logits)
        rows = [row for row in range(64, t) if masked[row].argmax() == row]
        weights = softmax(masked, axis=1)
        gains.append(float(np.mean([weights[r, r - near : r].mean() * (r + 1) for r in rows])))
        if logits is smooth:
            drop = [smooth[r, r] - smooth[r, r - lag] - lipschitz * lag / t for r in rows for lag in range(near + 1)]
            ratio = [weights[r, r - 1] / weights[r, r] for r in rows]
    return [
        Fact(
            "B_tt - B_t,t-j <= Lip j / T in all rows with (8)",
            bool(max(drop) <= 1e-12),
            "printed",
            f"most {max(drop):.2g}",
        ),
        Fact("neighbor's attention over own >= exp(-Lip / T)", bool(min(ratio) >= np.exp(-lipschitz / t) - 1e-12)),
        Fact("the 8 nearest keys get over twice the uniform weight", gains[0] > 2, "printed", f"{gains[0]:.2f} times"),
        Fact("shuffled, so (8) but not smooth, they do not", gains[1] < 2, "corrected", f"{gains[1]:.2f} times"),
    ]


def mean_absolute_cosine(d: int) -> float:
    """E|cos| of two random directions: Gamma(d/2) / (sqrt(pi) Gamma((d + 1)/2)), nearly sqrt(2 / (pi d))."""
    return float(np.exp(gammaln(d / 2) - gammaln((d + 1) / 2)) / np.sqrt(np.pi))


def largest_absolute_cosine(d: int, pairs: int) -> tuple[float, float]:
    """Mean and standard deviation of the largest of `pairs` independent |cos|, from 1 - (1 - P(|cos| > x))^pairs.

    1 - cos^2 is Beta((d - 1)/2, 1/2), so P(|cos| > x) = I_(1 - x^2)((d - 1)/2, 1/2).
    """
    x = np.linspace(0, 1, 20_001)
    beyond = 1 - (1 - betainc((d - 1) / 2, 0.5, 1 - x**2)) ** pairs
    mean, square = trapezoid(beyond, x), trapezoid(2 * x * beyond, x)
    return float(mean), float(np.sqrt(square - mean**2))


def check_S20(rng: np.random.Generator) -> list[Evidence]:
    d, t, c, blocks = 768, 256, 512, 8  # the width of GPT-2 and BERT
    pos = rng.normal(size=(t, d))
    incoherences = np.array([incoherence(pos, rng.normal(size=(c, d))) for _ in range(blocks)])
    mean, largest = float(incoherences[:, 0].mean()), float(incoherences[:, 1].max())
    expected = mean_absolute_cosine(d)
    # cosines of different pairs are independent two by two, and E cos^2 = 1/d
    error = float(np.sqrt((1 / d - expected**2) / (blocks * t * c)))
    top, spread = largest_absolute_cosine(d, t * c)
    error_of_top = float(spread / np.sqrt(blocks))
    return [
        Number("mean |cos| of random directions, d = 768", mean, printed=0.1, tolerance=0.02),
        Number("largest |cos| of 256 x 4096 pairs, d = 768", largest, printed=0.1, tolerance=0.02),
        Number("mean |cos|, against its law", mean, corrected=expected, error=error),
        Number(
            "largest |cos| of 256 x 512, mean of eight",
            float(incoherences[:, 1].mean()),
            corrected=top,
            error=error_of_top,
        ),
        Number("sqrt(2 / (pi d)) for the mean", expected, corrected=float(np.sqrt(2 / (np.pi * d))), tolerance=1e-4),
    ]


def check_S12(rng: np.random.Generator) -> list[Evidence]:
    d, k = 24, 5
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    v, rest = basis[:, :k], basis[:, k:]
    low = v @ rng.normal(size=(k, k)) @ v.T
    (t, t2), (c, c2) = (v @ rng.normal(size=(k, 2))).T, (rest @ rng.normal(size=(d - k, 2))).T

    def sides(diagonal: Matrix) -> tuple[float, float, float]:
        whole = (t + c) @ (low + diagonal) @ (t2 + c2)
        two = t @ (low + diagonal) @ t2 + c @ diagonal @ c2
        return float(whole), float(two), float(two + t @ diagonal @ c2 + c @ diagonal @ t2)

    scalar, other = sides(float(rng.normal()) * np.eye(d)), sides(np.diag(rng.normal(size=d)))
    return [
        Number("h'Wh', D a multiple of I", scalar[0], printed=scalar[1]),
        Number("h'Wh', D any diagonal, with t'Dc' and c'Dt'", other[0], corrected=other[2]),
        Fact(
            "for any diagonal D the cross terms stay",
            abs(other[0] - other[1]) > 1e-6,
            "corrected",
            f"off by {other[0] - other[1]:.3g}",
        ),
    ]


def check_S13(rng: np.random.Generator) -> list[Evidence]:
    d, e = 16, 4
    w = rng.normal(size=(d, e)) @ rng.normal(size=(d, e)).T
    mu, (pos, pos2), (cvec, cvec2) = rng.normal(size=d), rng.normal(size=(2, d)), rng.normal(size=(2, d))
    four = sum(a @ w @ b for a, b in product((pos, cvec), (pos2, cvec2)))
    nine = sum(a @ w @ b for a, b in product((mu, pos, cvec), (mu, pos2, cvec2)))
    return [
        Number("h'W h', mu = 0: the sum of four", float((pos + cvec) @ w @ (pos2 + cvec2)), printed=float(four)),
        Number("with mu: the sum of nine", float((mu + pos + cvec) @ w @ (mu + pos2 + cvec2)), corrected=float(nine)),
    ]


def check_S15(rng: np.random.Generator) -> list[Evidence]:
    t, d, e = 9, 12, 4
    x, value = rng.normal(size=(t, d)), rng.normal(size=d)
    wq, wk = rng.normal(size=(2, d, e)) / np.sqrt(d) * 2
    w = wq @ wk.T / np.sqrt(e)
    causal = np.where(np.tri(t, dtype=bool), x @ wq @ wk.T @ x.T / np.sqrt(e), -np.inf)
    by_definition = softmax(causal, axis=1) @ (x @ value)

    def smoothed(kernel: Float[np.ndarray, "t"]) -> float:
        return float(kernel @ (x @ value) / kernel.sum())

    last = t - 1
    printed, corrected = smoothed(np.exp(x @ w @ x[last])), smoothed(np.exp(x[last] @ w @ x.T))
    z, z2 = x[:2]
    return [
        Number("the head's output at the last token, by (1)", float(by_definition[last]), printed, corrected),
        Number(
            "z'Wz' as <W^q' z, W^k' z'> / sqrt d_head",
            float(z @ w @ z2),
            corrected=float((wq.T @ z) @ (wk.T @ z2) / np.sqrt(e)),
        ),
        Fact("W^q is d x d_head: W^q z has no meaning, W^q' z has", wq.shape == (d, e), "corrected"),
    ]


def log_kernel(w: Matrix, z: Float[np.ndarray, "d"], z2: Float[np.ndarray, "d"]) -> float:
    """log K_W(z, z') = z'Wz'."""
    return float(z @ w @ z2)


def check_S17(rng: np.random.Generator) -> list[Evidence]:
    w, (cq, ck, tq, tk) = rng.normal(size=(20, 20)) / 5, rng.normal(size=(4, 20))
    four = sum(log_kernel(w, a, b) for a, b in product((cq, tq), (ck, tk)))
    return [Number("log K_W(x^q, x^k)", log_kernel(w, cq + tq, ck + tk), printed=float(four))]


def factorization_bound(s: int, incoh: float) -> float:
    """|log K_W - sum log K_W_ab| <= 4 s (2 incoh + incoh^2).

    Of four matrices each has two unwanted terms with one incoherent product and one with two.
    """
    return 4 * s * (2 * incoh + incoh**2)


def largest_log_ratio(bases: tuple[Vectors, Vectors], s: int, draws: int, rng: np.random.Generator) -> float:
    """max |log K_W(x^q, x^k) - sum log K_W_ab| over s-sparse W_ab and x^q, x^k drawn from the extended bases."""

    def drawn(which: int, *shape: int) -> Float[np.ndarray, "*shape d"]:
        base = bases[which]
        return np.asarray(base[rng.integers(0, len(base), shape)] * rng.choice([-1.0, 0.5, 1.0], (*shape, 1)))

    q, k = [[drawn(a, draws) for a in (0, 1)] for _ in range(2)]
    log_ratio = np.zeros(draws)
    for a, b in product((0, 1), repeat=2):
        w = np.einsum(
            "nk,nki,nkj->nij", rng.choice([-1.0, 0.5, 1.0], (draws, s)), drawn(a, draws, s), drawn(b, draws, s)
        )
        log_ratio += np.einsum("ni,nij,nj->n", q[0] + q[1], w, k[0] + k[1], optimize=True)
        log_ratio -= np.einsum("ni,nij,nj->n", q[a], w, k[b], optimize=True)
    return float(np.abs(log_ratio).max())


def check_S16(rng: np.random.Generator) -> list[Evidence]:
    d, s, count = 40, 2, 6
    evidence: list[Evidence] = []
    for overlap in (0.4, 0.1, 0.02, 0.0):
        first, second = np.zeros((2, count, d))
        first[:, : d // 2] = rng.normal(size=(count, d // 2))
        second[:, d // 2 :] = rng.normal(size=(count, d // 2))
        bases = unit(first), unit(second + overlap * rng.normal(size=(count, d)))
        incoh = float(np.abs(bases[0] @ bases[1].T).max())
        most, bound = largest_log_ratio(bases, s, 1000, rng), factorization_bound(s, incoh)
        name = f"incoh {incoh:.3f}: |log ratio| <= 4s(2 incoh + incoh^2)"
        evidence.append(Fact(name, most <= bound + 1e-12, "printed", f"largest {most:.3g}, bound {bound:.3g}"))
    iota = float(rng.uniform(0.05, 0.5))
    b1, b2 = np.eye(d)[0], iota * np.eye(d)[0] + np.sqrt(1 - iota**2) * np.eye(d)[1]
    x, w = b1 + b2, s * np.outer(b1 + b2, b1 + b2)
    sharp = log_kernel(w, x, x) - sum(s * log_kernel(np.outer(a, b), a, b) for a, b in product((b1, b2), repeat=2))
    name = f"W_ab = s b_a b_b', x = b_1 + b_2, incoh {iota:.3f}: log ratio"
    return [*evidence, Number(name, float(sharp), corrected=factorization_bound(s, iota))]


def unwanted_pairs(first: int, second: int) -> int:
    """Of the four noises, each over the four blocks of bases, all but the wanted block: 3 (|B1| + |B2|)^2 pairs."""
    return 3 * (first + second) ** 2


def check_S18(rng: np.random.Generator) -> list[Evidence]:
    grid = product(
        np.unique(np.logspace(0, 12, 25).round()), np.unique(np.logspace(0, 12, 25).round()), np.linspace(0.1, 9, 60)
    )
    first, second, reach = np.array(list(grid)).T  # reach = incoh sqrt(d)
    tail = 2 * np.exp(-((2 * reach) ** 2) / 2)  # subgaussian, beyond 2 incoh
    failure = np.minimum(1, 3 * (first + second) ** 2 * tail)
    printed = 24 * first * second * np.exp(-(reach**2))
    worst = float((failure / printed).max())

    many, one, d, incoh = 150, 1, 64, 0.28
    b1, b2 = unit(rng.normal(size=(many, d))), unit(rng.normal(size=(one, d)))
    both = np.concatenate([b1, b2])
    beyond, mixed = [], []
    for _ in range(150):
        far = np.zeros((2, 2))
        for wanted in product((0, 1), repeat=2):
            over = np.abs(both @ rng.normal(size=(d, d)) @ both.T) / np.sqrt(d) > np.sqrt(2) * incoh
            blocks = np.array(
                [
                    [over[:many, :many].sum(), over[:many, many:].sum()],
                    [over[many:, :many].sum(), over[many:, many:].sum()],
                ]
            )
            blocks[wanted] = 0
            far += blocks
        beyond.append(far.sum())
        mixed.append(far[0, 1] + far[1, 0])
    mean, error = mean_and_error(np.array(beyond, dtype=np.float64))
    single = float(2 * ndtr(-np.sqrt(2 * d) * incoh))
    between, between_error = mean_and_error(np.array(mixed, dtype=np.float64))
    return [
        Fact(
            "failing beyond 2 incoh is at most 24 |B1||B2| exp(-incoh^2 d), all sizes to 1e12",
            worst <= 1 + 1e-12,
            "printed",
            f"largest quotient {worst:.3g}",
        ),
        Number(
            "|B1| = 150, |B2| = 1: unwanted products beyond sqrt(2) incoh, of 3 (|B1| + |B2|)^2",
            mean,
            corrected=unwanted_pairs(many, one) * single,
            error=error,
        ),
        Fact(
            "beyond incoh itself (C = 1) a single pair fails more often than that, incoh sqrt(d) = 6",
            bool(2 * ndtr(-6.0) > 24 * np.exp(-36.0)),
            "corrected",
        ),
        Fact(
            "most lie inside a basis, not in the |B1||B2| pairs between them",
            mean > 10 * (between + between_error),
            "corrected",
            f"{mean:.1f} and {between:.1f} in the mean",
        ),
    ]


def check_S25(rng: np.random.Generator) -> list[Evidence]:
    powers = rng.uniform(0.1, 0.35, 3)
    widths = np.array([768.0, 4096.0, 65536.0])
    evidence: list[Evidence] = []
    for power in powers:
        incoh = widths**-power
        size = widths ** (1 - 2 * power)
        off = float(np.abs(incoh**2 * widths / size - 1).max())
        evidence.append(Number(f"gamma = {power:.2f}: incoh^2 d over d^(1 - 2 gamma), less 1", off, printed=0.0))
        for constant in (1.0, 0.5):  # incoh of the order of d^-gamma, with any constant
            log_sizes = size - np.log(widths)  # |B1||B2| = exp(d^(1-2 gamma)) / d
            reach = 4 / constant  # the constant in O(incoh)
            log_failure = np.log(24) + 2 * log_sizes - (reach * constant * incoh) ** 2 * widths / 2
            name = (
                f"gamma = {power:.2f}, incoh = {constant} d^-gamma, |B1||B2| = exp(d^(1-2 gamma))/d: failure vanishes"
            )
            so = bool(np.all(np.diff(log_failure) < 0) and log_failure[-1] < -20)
            evidence.append(Fact(name, so, "printed", f"ln at d = 65536: {log_failure[-1]:.3g}"))
    return evidence


def check_S14(rng: np.random.Generator) -> list[Evidence]:
    t, d = 12, 16
    h, mu, w = rng.normal(size=(t, d)), 2 * rng.normal(size=d), rng.normal(size=(d, d)) / np.sqrt(d)
    hidden = np.triu(np.ones((t, t), dtype=bool), 1)

    def attention(logits: Float[np.ndarray, "t t"]) -> Float[np.ndarray, "t t"]:
        return np.asarray(softmax(np.where(hidden, -np.inf, logits), axis=1))

    whole, without = (h + mu) @ w @ (h + mu).T, h @ w @ h.T
    bias = mu @ w @ h.T
    of_rows = (h @ w @ mu + mu @ w @ mu)[:, None]
    full = attention(whole)

    def change(logits: Float[np.ndarray, "t t"]) -> float:
        return float(np.abs(full - attention(logits)).max())

    return [
        Number(
            "largest change of an attention weight when mu is dropped", change(without), printed=0.0, tolerance=0.05
        ),
        Number("when h'W mu + mu'W mu is dropped, constant in every row", change(whole - of_rows), printed=0.0),
        Number("when mu is dropped but for mu'W h_j", change(without + bias), corrected=0.0),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="S21",
        paper="Song",
        place="§4.2, (8)",
        statement="If the QK matrix is smooth and a row is largest on the diagonal, the neighbors of the diagonal "
        "also have high logits and attention.",
        printed=r"\arg\max_{t' \le t} B_{t,t'} = t, \; B \text{ smooth} \Rightarrow B_{t,t} - B_{t,t-j} \le "
        r"\text{Lip}(B) \frac{j}{T}",
        check=check_S21,
        remark="Smooth means that the logit varies little from key to key. How many heads of GPT-2 have (8) (43 % in "
        "the paper) is a matter of weights: the argmax ratio of `armillary heads`.",
    ),
    Entry(
        id="S20",
        paper="Song",
        place="§5, Table 1",
        statement="The incoherence of random vectors, against which Table 1 is read, is about 0.1.",
        printed=r"\max_{t,c} \left| \left\langle \frac{\text{pos}_t}{\|\text{pos}_t\|}, \frac{\text{ctx}_c}"
        r"{\|\text{ctx}_c\|} \right\rangle \right| \approx 0.1 \text{ for random vectors}",
        check=check_S20,
        corrected=r"E |\cos| = \frac{\Gamma(d/2)}{\sqrt{\pi} \, \Gamma((d+1)/2)} \approx \sqrt{\frac{2}{\pi d}}, \quad "
        r"\max_{n \text{ pairs}} |\cos| \approx \sqrt{\frac{2 \ln 2n}{d}}",
        remark="The text speaks of the largest cosine, the caption of the mean one. At d = 768 the mean is 0.029 and "
        "the largest of a million pairs about 0.18. The largest is 0.1 for about a hundred pairs; for as many as the "
        "paper has (512 x 6400) only Llama 2 with d = 4096 comes near it, with 0.08. Say which statistic is meant, and "
        "give its own baseline.",
    ),
    Entry(
        id="S12",
        paper="Song",
        place="§5.1",
        statement="If W is a low-rank part on the positional directions plus a multiple of the identity, a logit is a "
        "positional term plus a content term.",
        printed=r"h^\top W h' = t^\top (V L V^\top + D) t' + c^\top D c', \quad t \in \text{span}(V), \; c \perp "
        r"\text{span}(V)",
        check=check_S12,
        remark="Exact for D a multiple of the identity, as assumed; for any other diagonal add t'Dc' + c'Dt'.",
    ),
    Entry(
        id="S13",
        paper="Song",
        place="(10)",
        statement="Without the global mean, a logit is the sum of four constituents: position and content of the query "
        "with position and content of the key.",
        printed=r"h^\top W h' = \text{pos}^\top W \text{pos}' + \text{pos}^\top W \text{cvec}' + \text{cvec}^\top W "
        r"\text{pos}' + \text{cvec}^\top W \text{cvec}', \quad W = W^q (W^k)^\top",
        check=check_S13,
        remark="Printed without the dash of the key vectors. With the global mean there are nine terms.",
    ),
    Entry(
        id="S15",
        paper="Song",
        place="(11)",
        statement="A head is a kernel smoother with weights K_W(x_k, x_t), key first.",
        printed=r"\text{AttnHead}(x_t) = \sum_{k \le t} \frac{K_W(x_k, x_t)}{\sum_{k' \le t} K_W(x_{k'}, x_t)} v(x_k), "
        r"\quad K_W(z, z') = \exp(z^\top W z') = \exp \frac{\langle W^q z, W^k z' \rangle}{\sqrt{d_{head}}}",
        check=check_S15,
        corrected=r"\text{AttnHead}(x_t) = \sum_{k \le t} \frac{K_W(x_t, x_k)}{\sum_{k' \le t} K_W(x_t, x_{k'})} v(x_k)"
        r", \quad K_W(z, z') = \exp \frac{\langle (W^q)^\top z, (W^k)^\top z' \rangle}{\sqrt{d_{head}}}",
        remark="By (1) the query stands first; the two agree for a symmetric W only. W^q is d x d_head, so it must be "
        "transposed.",
    ),
    Entry(
        id="S17",
        paper="Song",
        place="§5.3",
        statement="The kernel of sums is the product of the kernels of all pairs of parts, with one and the same W.",
        printed=r"K_W(x^q, x^k) = K_W(c^q, c^k) K_W(c^q, t^k) K_W(t^q, c^k) K_W(t^q, t^k)",
        check=check_S17,
    ),
    Entry(
        id="S16",
        paper="Song",
        place="Theorem 2, (14)",
        statement="If the parts of W are sparse in two incoherent bases, the kernel factorizes into one kernel for "
        "each part, up to a factor that nears 1 with the incoherence.",
        printed=r"K_W(x^q, x^k) = (1 + O(\text{incoh})) K_{W_{11}}(c^q, c^k) K_{W_{12}}(c^q, t^k) K_{W_{21}}(t^q, c^k) "
        r"K_{W_{22}}(t^q, t^k)",
        check=check_S16,
        remark="Explicitly, the logarithms differ by at most 4s(2 incoh + incoh^2) for s terms in each W_ab, with "
        "equality for W_ab = s b_a b_b' and x = b_1 + b_2.",
    ),
    Entry(
        id="S18",
        paper="Song",
        place="Theorem 2, moreover",
        statement="With subgaussian noise of variance 1/d in every W_ab, the factorization fails with a probability of "
        "at most the order of |B1||B2| exp(-incoh^2 d).",
        printed=r"P\{(14)\} \ge 1 - O(|B_1| |B_2|) \exp(-\text{incoh}^2 d)",
        check=check_S18,
        remark="The printed proof fails, since the noise also meets pairs inside one basis: at a "
        "tolerance C incoh the union bound is 6 (|B1| + |B2|)^2 exp(-C^2 incoh^2 d / 2), which the count here confirms "
        "and which the proof, with pairs between the bases only, misses. But the constant of O(incoh) in (14) is free: "
        "with C = 2 that bound is at most 24 |B1||B2| exp(-incoh^2 d) wherever this is below 1, so the statement, if "
        "not its proof, holds. At C = 1 it would not.",
    ),
    Entry(
        id="S25",
        paper="Song",
        place="Remark 1",
        statement="If incoh is of the order of d^-gamma, gamma below 1/2, the probability is non-trivial for bases of "
        "fewer than exp(d^(1 - 2 gamma)) pairs.",
        printed=r"\text{incoh} \asymp d^{-\gamma}: \quad |B_1| |B_2| = o(\exp(d^{1 - 2\gamma}))",
        check=check_S25,
        remark="incoh^2 d = d^(1 - 2 gamma). Where incoh = c d^-gamma with c below 1, the constant in O(incoh) must be "
        "taken larger, 4/c here; with the constant 2 of S18 the exponent would be c^2 d^(1 - 2 gamma).",
    ),
    Entry(
        id="S14",
        paper="Song",
        place="App. E.2",
        statement="A constant added to all logits does not change attention, hence the global mean has little effect.",
        printed=r"\text{softmax}(B + a) = \text{softmax}(B), \text{ hence } \mu \text{ has little effect}",
        check=check_S14,
        corrected=r"\text{softmax}_j((h_i + \mu)^\top W (h_j + \mu)) = \text{softmax}_j(h_i^\top W h_j + "
        r"\mu^\top W h_j)",
        remark="The terms h_i'W mu and mu'W mu cancel, but mu'W h_j varies over keys: the mean acts as a bias of the "
        "keys and may be dropped only where mu'W h_j is the same for all. Whether it is small in a model is a matter "
        "of its weights: the constituents of `armillary show`.",
    ),
    Entry(
        id="S22",
        paper="Song",
        place="Tables 1-6, Figures 1-34",
        statement="In GPT-2, BERT, BLOOM, Llama 2 and small trained models, the positional basis is of low rank and "
        "low frequency, contexts cluster by document, and the two are incoherent.",
        printed=r"\text{measurements on trained models}",
        check=None,
        remark="Needs trained weights and text.",
        command="armillary scan MODEL --out DIR; armillary layers DIR; armillary heads DIR; armillary show DIR L.H",
    ),
)
