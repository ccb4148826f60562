"""Bao, Hataya and Karakida, Sections 2 and 4 and Appendices A and C: the linearized softmax, and moments of the walk.

Moments are polynomials of Gaussians, so Gauss-Hermite sums give them exactly; walks drawn step by step confirm them.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt

import numpy as np
from jaxtyping import Float
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import softmax

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend, mean_and_error, variance_and_error
from armillary.theory.localization import Spectrum, exact_moments, head_spectrum, limit_moments
from armillary.theory.random_walk import linearized
from armillary.theory.softmax import piecewise_linear

Matrix = Float[np.ndarray, "m n"]
Square = Float[np.ndarray, "d d"]


def anisotropic(rng: np.random.Generator, d: int) -> Square:
    """R'R / d, R uniform in (-2.5, 2.5): the covariance of the steps in the paper's Figure 5."""
    r = rng.uniform(-2.5, 2.5, (d, d))
    return np.asarray(r.T @ r / d)


def symmetric(rng: np.random.Generator, d: int) -> Square:
    w = rng.standard_normal((d, d))
    return np.asarray((w + w.T) / 2)


def spectrum_of(w: Square, sigma: Square | None, scale: float) -> Spectrum:
    """The spectrum of a W that is not factored."""
    return head_spectrum(w, np.eye(len(w)), sigma, scale)


def draw_walks(rng: np.random.Generator, sigma: Square, t: int, count: int) -> Float[np.ndarray, "walk t d"]:
    """Walks of Assumption 1, step by step: x_1 ~ N(0, Sigma), x_(t+1) ~ N(x_t, Sigma)."""
    steps = rng.standard_normal((count, t, len(sigma))) @ np.linalg.cholesky(sigma).T
    return np.asarray(steps.cumsum(1))


def shares(x: Float[np.ndarray, "walk t d"], w: Square, scale: float) -> Float[np.ndarray, "walk t"]:
    """<gamma^i, omega> + 1/T of every walk, omega_i = x_i' W x_T / lambda."""
    return linearized(np.einsum("nid,nd->ni", x, x[:, -1] @ w.T) / scale)


def everywhere(
    label: str,
    measured: Matrix,
    *,
    printed: Matrix | None = None,
    corrected: Matrix | None = None,
    slack: float = 1e-10,
) -> list[Evidence]:
    """Numbers for a whole matrix: the entries where each form is farthest from the measured value."""
    evidence: list[Evidence] = []
    tolerance = slack * float(np.abs(measured).max())
    forms = ((printed, "printed"), (corrected, "corrected"))
    for index in {int(np.abs(measured - form).argmax()) for form, _ in forms if form is not None}:
        values = {name: float(form.flat[index]) for form, name in forms if form is not None}
        row, column = divmod(index, measured.shape[1])
        place = f"{label}, entry ({row + 1}, {column + 1})"
        evidence.append(Number(place, float(measured.flat[index]), tolerance=tolerance, **values))
    return evidence


def gaussian_nodes(dimensions: int) -> tuple[Float[np.ndarray, "node dimension"], Float[np.ndarray, "node"]]:
    """Nodes z and weights p with E f(N(0, I)) = sum p f(z), exact for polynomials f up to degree 5 in each entry."""
    nodes, weights = hermegauss(3)
    z = np.stack(np.meshgrid(*[nodes] * dimensions, indexing="ij"), -1).reshape(-1, dimensions)
    p = np.stack(np.meshgrid(*[weights / weights.sum()] * dimensions, indexing="ij"), -1).reshape(-1, dimensions)
    return z, np.asarray(p.prod(1))


def walk_nodes(sigma: Square, places: Sequence[int]) -> tuple[list[Float[np.ndarray, "node d"]], np.ndarray]:
    """The walk's tokens at these positions (increasing) at the nodes of an exact quadrature, and its weights."""
    d = len(sigma)
    z, weights = gaussian_nodes(d * len(places))
    root, tokens, before, at = np.linalg.cholesky(sigma), [], np.zeros((len(z), d)), 0
    for index, place in enumerate(places):
        before = before + sqrt(place - at) * z[:, d * index : d * (index + 1)] @ root.T
        tokens.append(before)
        at = place
    return tokens, weights


def quadratic(a: Float[np.ndarray, "node d"], w: Square, b: Float[np.ndarray, "node d"]) -> Float[np.ndarray, "node"]:
    return np.asarray(np.einsum("nd,de,ne->n", a, w, b))


def traces(w: Square, sigma: Square) -> tuple[float, float]:
    """tr(M) and tr(M^2), M = W Sigma."""
    m = w @ sigma
    return float(np.trace(m)), float(np.trace(m @ m))


def logit_product(i: int, j: int, t: int, w: Square, sigma: Square) -> float:
    """E[x_i' W x_T x_j' W x_T] = i j (tr(M)^2 + tr(M^2)) + T min(i, j) tr(W S W' S), for any W."""
    trace, square = traces(w, sigma)
    return i * j * (trace**2 + square) + t * min(i, j) * float(np.trace(w @ sigma @ w.T @ sigma))


def slope_of_softmax(t: int) -> Square:
    """d softmax_i / d omega_j at 0 by a complex step, exact to rounding."""
    step = 1e-30
    powers = np.exp(1j * step * np.eye(t))  # one column for each logit that moves
    return np.asarray((powers / powers.sum(0)).imag / step)


# Section 2: attention, and softmax made linear -------------------------------------------------------------------


def check_L1(rng: np.random.Generator) -> list[Evidence]:
    d, t = 5, 7
    x, w, w_v = rng.standard_normal((d, t)), rng.standard_normal((d, d)), rng.standard_normal((d, d))
    logits = x.T @ w @ x / sqrt(d)
    omega = x.T @ w @ x[:, -1] / sqrt(d)  # Definition 1
    by_row, by_column = softmax(logits, axis=1), softmax(logits, axis=0)
    evidence: list[Evidence] = [
        Number(
            "sum of the weights that make the output of token T",
            float(softmax(omega).sum()),
            printed=float(by_row[:, -1].sum()),
            corrected=float(by_column[:, -1].sum()),
        )
    ]
    output = w_v @ x @ softmax(omega)[:, None]
    return evidence + everywhere(
        "W_V X S(omega) against column T of U",
        output,
        printed=w_v @ x @ by_row[:, -1:],
        corrected=w_v @ x @ by_column[:, -1:],
    )


def check_L2(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for t in (2, int(rng.integers(3, 20)), 40):
        evidence.append(Number(f"S(0)_i, T = {t}", float(softmax(np.zeros(t))[0]), printed=1 / t))
        slope, printed = slope_of_softmax(t), np.eye(t) / t - np.ones((t, t)) / t**2
        evidence += everywhere(f"gradient of softmax at 0, T = {t}", slope, printed=printed)
        library = (linearized(np.eye(t)) - linearized(np.zeros((t, t)))).T
        evidence += everywhere(f"and the slopes that armillary uses, T = {t}", slope, corrected=library)
    return evidence


def check_L3(rng: np.random.Generator) -> list[Evidence]:
    t, spreads = 40, (5.0, 1.0, 0.1, 0.01)
    logits = rng.standard_normal((2000, t))
    errors, kept = [], True
    for spread in spreads:
        linear = piecewise_linear(spread * logits)
        errors.append(float(np.abs(softmax(spread * logits, axis=1) - linear).mean() * t))
        clips = np.any((linear == 0) | (linear == 1), axis=1)
        kept &= bool(np.all(np.abs(linear.sum(1) - 1)[~clips] < 1e-12))
        kept &= bool(np.all(linear.sum(1)[clips] > 1 + 1e-12))
    return [
        Trend(
            "mean of |S - S~| over the mean weight 1/T, T = 40",
            tuple(f"logits of standard deviation {spread:g}" for spread in spreads),
            tuple(errors),
            bound=0.01,
        ),
        Fact("S~ sums to 1 where nothing clips, and to more where something does", kept, "corrected"),
    ]


def check_L4(rng: np.random.Generator) -> list[Evidence]:
    sizes = (10, 100, 1000)
    slopes = [slope_of_softmax(t) for t in sizes]
    rest = [slope - np.eye(t) / t for slope, t in zip(slopes, sizes, strict=True)]
    largest = [float(np.abs(one).max()) for one in rest]
    vanishes = all(after < before / 50 for before, after in pairwise(largest))
    evidence: list[Evidence] = [
        Fact("gamma^i - e^i / T vanishes as T grows", vanishes, detail=", ".join(f"{one:.1e}" for one in largest))
    ]
    for t, one, size in zip(sizes, slopes, largest, strict=True):
        evidence.append(Number(f"T^2 times the largest entry of it, T = {t}", size * t**2, corrected=1.0))
        evidence.append(
            Number(f"sum of gamma^i over its entries, T = {t}", float(np.abs(one.sum(1)).max()), corrected=0.0)
        )
    t, level = sizes[0], float(rng.uniform(1, 5))
    theta = np.arange(1, t + 1) / t
    evidence.append(
        Number(
            "<gamma^T, omega> of omega_i = a i, over a: 1 from e^i / T, less 1/2 from the rest",
            float(slopes[0][-1] @ (level * t * theta)) / level,
            corrected=1 - (t + 1) / (2 * t),
        )
    )
    return evidence


# Appendix A: moments ----------------------------------------------------------------------------------------------


def check_L8(rng: np.random.Generator) -> list[Evidence]:
    d = 3
    sigma, w, a, m = anisotropic(rng, d), symmetric(rng, d), rng.standard_normal(d), rng.standard_normal(d)
    z, p = gaussian_nodes(d)
    x = m + z @ np.linalg.cholesky(sigma).T
    form, trace, square = quadratic(x, w, x), *traces(w, sigma)
    at_mean, through = float(m @ w @ m), w @ sigma @ w @ m
    fourth = 2 * square + trace**2 + 4 * m @ through + 2 * trace * at_mean + at_mean**2
    printed = {
        "(11) E[x'Wx]": (p @ form, trace + at_mean),
        "(13) E[a'Wx x'Wx]": (p @ ((x @ w @ a) * form), 2 * a @ through + a @ w @ m * (trace + at_mean)),
        "(14) E[(x'Wx)^2]": (p @ form**2, fourth),
    }
    evidence: list[Evidence] = [
        Number(what, float(measured), printed=float(value), tolerance=1e-9 * (1 + abs(float(fourth))))
        for what, (measured, value) in printed.items()
    ]
    return evidence + everywhere("(12) E[xx']", (p * x.T) @ x, printed=sigma + np.outer(m, m))


def check_L9(rng: np.random.Generator) -> list[Evidence]:
    d, i, j = 3, int(rng.integers(1, 5)), int(rng.integers(6, 10))
    sigma, w = anisotropic(rng, d), symmetric(rng, d)
    trace, square = traces(w, sigma)
    (x, y), p = walk_nodes(sigma, (i, j))
    both = 2 * square + trace**2
    rows: list[tuple[str, np.ndarray, float, float]] = [
        ("(15) E[x_i'Wx_i]", quadratic(x, w, x), (i - 1) * trace, i * trace),
        ("(16) E[(x_i'Wx_i)^2]", quadratic(x, w, x) ** 2, (i**2 - 2 * i + 2) * both, i**2 * both),
        (
            "(17) E[(x_i'Wx_j)^2]",
            quadratic(x, w, y) ** 2,
            (i**2 + i * j - 3 * i - j + 4) * square + (i**2 - 2 * i + 2) * trace**2,
            (i**2 + i * j) * square + i**2 * trace**2,
        ),
        (
            "(18) E[x_i'Wx_j x_j'Wx_j]",
            quadratic(x, w, y) * quadratic(y, w, y),
            (i * j - i - j + 2) * both,
            i * j * both,
        ),
    ]
    return [
        Number(f"{what}, i = {i}, j = {j}", float(p @ value), printed, corrected, tolerance=1e-9 * i * j * both)
        for what, value, printed, corrected in rows
    ]


def check_L10(rng: np.random.Generator) -> list[Evidence]:
    d, i, j, t = 3, 3, 6, 9
    sigma, w = anisotropic(rng, d), symmetric(rng, d)
    trace, square = traces(w, sigma)
    printed = (i * j + (t - 2) * i - j - (t - 4)) * square + (i * j - i - j + 2) * trace**2
    (x, y, last), p = walk_nodes(sigma, (i, j, t))
    any_w = rng.standard_normal((d, d))
    evidence: list[Evidence] = []
    for name, one, form in (("W symmetric", w, printed), ("W not symmetric", any_w, None)):
        evidence.append(
            Number(
                f"E[x_i'Wx_T x_j'Wx_T], i = {i}, j = {j}, T = {t}, {name}",
                float(p @ (quadratic(x, one, last) * quadratic(y, one, last))),
                printed=form,
                corrected=logit_product(i, j, t, one, sigma),
                tolerance=1e-8,
            )
        )
    return evidence


# Lemma 1: mean and variance of <gamma^i, omega> + 1/T --------------------------------------------------------------


def walked_spectrum(rng: np.random.Generator, t: int, count: int) -> tuple[Spectrum, Float[np.ndarray, "walk t"]]:
    """A symmetric W of d = 4 with a trace, and <gamma^i, omega> + 1/T in walks of T tokens."""
    d, scale = 4, 2.0
    w, sigma = symmetric(rng, d) + np.eye(d), anisotropic(rng, d)
    return spectrum_of(w, sigma, scale), shares(draw_walks(rng, sigma, t, count), w, scale)


def over_sizes(measure: Callable[[int], float]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The measure at T = 50, 500, 5000 and 50000."""
    sizes = (50, 500, 5000, 50_000)
    return tuple(f"T = {t}" for t in sizes), tuple(measure(t) for t in sizes)


def check_L11(rng: np.random.Generator) -> list[Evidence]:
    t = 50
    spectrum, values = walked_spectrum(rng, t, 20_000)
    evidence: list[Evidence] = []
    for i in (5, 15, 25, 40, 50):
        mean, error = mean_and_error(values[:, i - 1])
        exact, limit = float(exact_moments(spectrum, t)[0][i - 1]), (i / t - 0.5) * spectrum.r
        room = abs(1 - spectrum.r / 2) / t + 1e-9  # the value of the printed o(1)
        evidence.append(Number(f"mean at i = {i}, T = {t}, up to o(1)", mean, limit, error=error, tolerance=room))
        evidence.append(Number(f"mean at i = {i}, T = {t}", mean, corrected=exact, error=error))
    _, rest = over_sizes(
        lambda t: float(np.abs(exact_moments(spectrum, t)[0] - (np.arange(1, t + 1) / t - 0.5) * spectrum.r).max() * t)
    )
    constant = abs(1 - spectrum.r / 2)
    so = all(abs(one - constant) < 1e-6 * (1 + constant) for one in rest)
    return [*evidence, Fact("the o(1) is (1 - tr(W) / 2 lambda) / T, the same for every token", so)]


def check_L12(rng: np.random.Generator) -> list[Evidence]:
    t = 50
    spectrum, values = walked_spectrum(rng, t, 20_000)
    evidence: list[Evidence] = []
    for i in (5, 15, 25, 40, 50):
        variance, error = variance_and_error(values[:, i - 1])
        evidence.append(
            Number(
                f"variance at i = {i}, T = {t}",
                variance,
                printed=float(limit_moments(spectrum, i / t, printed=True)[1]),
                corrected=float(exact_moments(spectrum, t)[1][i - 1]),
                error=error,
            )
        )

    def apart(t: int, printed: bool) -> float:
        theta = np.arange(1, t + 1) / t
        return float(
            np.abs(exact_moments(spectrum, t)[1] - limit_moments(spectrum, theta, printed=printed)[1]).max()
            / spectrum.eta**2
        )

    evidence.append(
        Trend(
            "largest error of the printed variance, in tr(W^2) / lambda^2", *over_sizes(lambda t: apart(t, True)), 0.01
        )
    )
    evidence.append(Fact("that of 2 theta^2 - 2 theta + 7/12 is below 2 / T", apart(500, False) < 2 / 500, "corrected"))
    t, i = 4000, 1200  # (B2): twice the printed (22) summed over j > i, its factor of tr(W^2)
    j = np.arange(i + 1, t + 1, dtype=np.float64)
    theta = i / t
    evidence.append(
        Number(
            f"(B2) over T^3, its part with tr(W^2), T = {t}, i / T = {theta:g}",
            float(2 * np.sum(i * j + (t - 2) * i - j - (t - 4)) / t**3),
            printed=theta - 2 * theta**2 - theta**3,
            corrected=3 * theta - 2 * theta**2 - theta**3,
            tolerance=10 / t,
        )
    )
    return evidence


def check_L13(rng: np.random.Generator) -> list[Evidence]:
    d, t, i, scale = 6, 50, 15, 2.0
    turning = rng.standard_normal((d, d))
    w, sigma = 0.3 * (symmetric(rng, d) + np.eye(d)) + turning - turning.T, anisotropic(rng, d)
    values = shares(draw_walks(rng, sigma, t, 20_000), w, scale)[:, i - 1]
    whole, half = (exact_moments(spectrum_of(one, sigma, scale), t) for one in (w, (w + w.T) / 2))
    evidence: list[Evidence] = []
    for what, (value, error), moment in (
        ("mean", mean_and_error(values), 0),
        ("variance", variance_and_error(values), 1),
    ):
        numbers = float(half[moment][i - 1]), float(whole[moment][i - 1])
        evidence.append(Number(f"{what} at i = {i}, T = {t}, W not symmetric", value, *numbers, error=error))
    return evidence


def check_L14(rng: np.random.Generator) -> list[Evidence]:
    highest = 0.0
    for d in (2, 3, 6):
        w, root = rng.standard_normal((2, 5000, d, d))
        m = (w + w.transpose(0, 2, 1)) @ (root @ root.transpose(0, 2, 1))
        ratio = np.trace(m, axis1=1, axis2=2) ** 2 / (d * np.einsum("nij,nji->n", m, m))
        highest = max(highest, float(ratio.max()))
    turned = np.array([[0.5, 1.0], [-1.0, 0.5]])
    trace, square = traces(turned, np.eye(2))
    return [
        Fact("tr(W)^2 <= d tr(W^2), W_QK symmetric, 15000 draws", highest <= 1, detail=f"largest ratio {highest:.4f}"),
        Number("the ratio at W = I, d = 6: the bound is reached", spectrum_of(np.eye(6), None, 1.0).xi ** 2 / 6, 1.0),
        Fact(
            "W_QK must be symmetric: [[1/2, 1], [-1, 1/2]] breaks it",
            trace**2 > 2 * square,
            "corrected",
            f"tr(W)^2 = {trace**2:g}, d tr(W^2) = {2 * square:g}",
        ),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="L1",
        paper="Bao",
        place="(1), (2)",
        statement="Attention is softmax applied to each row of the logits X'WX, and token outputs are W_V X A.",
        printed=r"A = S\left(\frac{X^\top W_{QK} X}{\lambda}\right) \text{ by rows}, \quad U = W_V X A",
        corrected=r"A = S\left(\frac{X^\top W_{QK} X}{\lambda}\right) \text{ by columns}",
        remark="Tokens are columns, so the weights of token T's output are column T of A. By rows these do not sum "
        "to 1 and are not the S(omega) of Definition 1.",
        check=check_L1,
    ),
    Entry(
        id="L2",
        paper="Bao",
        place="§2",
        statement="The gradient of the i-th softmax at zero logits is e_i / T - 1 / T^2, and its value is 1 / T.",
        printed=r"\gamma^i = \nabla S(0)_i = \frac{1}{T} e^i - \frac{1}{T^2} 1, "
        r"\quad \gamma_0^i = S(0)_i = \frac{1}{T}",
        check=check_L2,
    ),
    Entry(
        id="L3",
        paper="Bao",
        place="§2",
        statement="Softmax is near its linearization at zero, clipped to [0, 1].",
        printed=r"S(\omega)_i \approx \max\{0, \min\{1, \langle \gamma^i, \omega \rangle + \gamma_0^i\}\}",
        corrected=r"S(\omega)_i = \langle \gamma^i, \omega \rangle + \gamma_0^i + O\left(\frac{|\omega|^2}{T}\right)",
        remark="Good only for logits whose standard deviation is well below 1. Where an entry clips, the result is no "
        "probability vector: it sums to more than 1.",
        check=check_L3,
    ),
    Entry(
        id="L4",
        paper="Bao",
        place="Remark 2",
        statement="For large T the slopes of the i-th softmax select the i-th logit, up to terms that vanish.",
        printed=r"\gamma^i = T^{-1} e^i + o(1), \quad \gamma_i^i = \gamma_0^i = T^{-1} + o(1)",
        corrected=r"\gamma^i = T^{-1} e^i - T^{-2} 1, \quad \sum_\alpha \gamma_\alpha^i = 0",
        remark="True, but 1 / T is itself o(1). The rest is 1 / T^2 in each of T entries and takes the mean of the "
        "logits away: it is not negligible, and makes the -1/2 of Lemma 1.",
        check=check_L4,
    ),
    Entry(
        id="L8",
        paper="Bao",
        place="Lemma 3, (11)-(14)",
        statement="Moments of quadratic forms of a Gaussian vector, up to the fourth order.",
        printed=r"E[(x^\top W x)^2] = 2 \operatorname{tr}(W \Sigma W \Sigma) + \operatorname{tr}(W \Sigma)^2 "
        r"+ 4 m^\top W \Sigma W m + 2 \operatorname{tr}(W \Sigma) m^\top W m + (m^\top W m)^2",
        remark="Shown is (14); the check has all four. W must be symmetric, as assumed.",
        check=check_L8,
    ),
    Entry(
        id="L9",
        paper="Bao",
        place="Lemma 4, (15)-(18)",
        statement="Moments of quadratic forms of two tokens of the random walk.",
        printed=r"E[x_i^\top W x_i] = (i - 1) \operatorname{tr}(W \Sigma), \quad E[(x_i^\top W x_i)^2] = "
        r"(i^2 - 2i + 2) \{2 \operatorname{tr}(W \Sigma W \Sigma) + \operatorname{tr}(W \Sigma)^2\}",
        corrected=r"E[x_i^\top W x_i] = i \operatorname{tr}(W \Sigma), \quad E[(x_i^\top W x_i)^2] = "
        r"i^2 \{2 \operatorname{tr}(W \Sigma W \Sigma) + \operatorname{tr}(W \Sigma)^2\}",
        remark="Shown are (15) and (16); the check has all four. Under Assumption 1 x_i has covariance i Sigma. The "
        "printed (15) is that of a walk from x_1 = 0; (16) would then have (i - 1)^2, so that it fits neither.",
        check=check_L9,
    ),
    Entry(
        id="L10",
        paper="Bao",
        place="(22)",
        statement="The mean product of two logits of the last query, for i <= j <= T.",
        printed=r"E[x_i^\top W x_T x_j^\top W x_T] = (ij + (T-2)i - j - (T-4)) \operatorname{tr}(M^2) "
        r"+ (ij - i - j + 2) \operatorname{tr}(M)^2",
        corrected=r"ij \operatorname{tr}(M)^2 + ij \operatorname{tr}(M^2) "
        r"+ T \min(i, j) \operatorname{tr}(W \Sigma W^\top \Sigma), \quad M = W \Sigma",
        remark="The corrected form holds for a W that is not symmetric too.",
        check=check_L10,
    ),
    Entry(
        id="L11",
        paper="Bao",
        place="Lemma 1, mean",
        statement="The mean of the linearized attention weight is linear along the text, and zero at its middle.",
        printed=r"\mu^i = \left(\frac{i}{T} - \frac{1}{2}\right) \frac{\operatorname{tr}(W)}{\lambda} + o(1)",
        corrected=r"\mu^i = \left(\frac{i}{T} - \frac{T+1}{2T}\right) \frac{\operatorname{tr}(W)}{\lambda} "
        r"+ \frac{1}{T}",
        remark="Holds as printed; the second form is exact at every T.",
        check=check_L11,
    ),
    Entry(
        id="L12",
        paper="Bao",
        place="Lemma 1, variance",
        statement="The variance of the linearized attention weight at token i.",
        printed=r"v^i = \left(\frac{2 i^2}{T^2} + \frac{7}{12}\right) \frac{\operatorname{tr}(W^2)}{\lambda^2} + o(1)",
        corrected=r"v^i = \left(\frac{2 i^2}{T^2} - \frac{2 i}{T} + \frac{7}{12}\right) "
        r"\frac{\operatorname{tr}(W^2)}{\lambda^2} + O\left(\frac{1}{T}\right)",
        remark="The true variance is least at the middle token (1/12), where the printed one is 13 times as large. The "
        "slip is in (B2), whose leading term is 3 T^2 i - 2 T i^2 - i^3 and not T^2 i - 2 T i^2 - i^3.",
        check=check_L12,
    ),
    Entry(
        id="L13",
        paper="Bao",
        place="after Lemma 1",
        statement="For a W_QK that is not symmetric, the symmetrized matrix may stand in its place.",
        printed=r"W_{QK} \to \frac{1}{2}(W_{QK} + W_{QK}^\top)",
        corrected=r"v = \frac{1}{\lambda^2} \left[\left(\theta^2 - \theta + \frac{1}{3}\right) "
        r"\operatorname{tr}(W_{QK} \Sigma W_{QK}^\top \Sigma) "
        r"+ \left(\theta - \frac{1}{2}\right)^2 \operatorname{tr}((W_{QK} \Sigma)^2)\right]",
        remark="The mean is the same, the variance is not: an antisymmetric part adds to it. Compared with the "
        "corrected law of the symmetrized matrix, so that L12 is not counted twice.",
        check=check_L13,
    ),
    Entry(
        id="L14",
        paper="Bao",
        place="(5)",
        statement="The squared trace of W = W_QK Sigma is at most d times the trace of its square.",
        printed=r"\operatorname{tr}(W)^2 \le d \operatorname{tr}(W^2)",
        remark="Needs a symmetric W_QK, as assumed there: the eigenvalues of W are then real.",
        check=check_L14,
    ),
)
