"""Bao, Hataya and Karakida, Sections 4 and 5: the law of signal propagation, its limits, norms and entropy.

Without a normal approximation, the law of the attention weight is computed from its characteristic function.
"""

from itertools import pairwise
from math import exp, log, log1p, pi, sqrt

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import erf

from armillary.papers.ledger.bao_moments import anisotropic, draw_walks, spectrum_of
from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend, mean_and_error
from armillary.theory.localization import Spectrum, exact_rho, limit_rho, minimum_entropy
from armillary.theory.random_walk import random_w, simulate_walks
from armillary.theory.softmax import entropy

T, D = 40, 128
SCALE = sqrt(D)
"""Tokens, width and lambda of the paper's Figure 5."""
NORMAL = 0.04
"""Maximum over tokens of the error of the normal law at d = 128 (`armillary theory L15`, L16)."""
THETA = np.linspace(0, 1, 401)

Vector = Float[np.ndarray, "n"]
Batch = Float[np.ndarray, "draw d d"]


def printed_rho(xi: float, eta: float, theta: Vector) -> Vector:
    """(6) as printed: Phi((theta - 1/2) xi; theta) - Phi((theta - 1/2) xi - 1/eta; theta)."""
    root = np.sqrt(2 * (2 * theta**2 + 7 / 12))
    away = (theta - 0.5) * xi
    return np.asarray((erf(away / root) - erf((away - 1 / eta) / root)) / 2)


def law(xi: float, eta: float) -> Spectrum:
    """The spectrum with these xi and eta, of a symmetric W."""
    return Spectrum(trace=xi * eta, square=eta**2, frobenius=None, scale=1.0)


def true_rho(eigenvalues: Vector, t: int, scale: float) -> Float[np.ndarray, "t"]:
    """rho_i of a symmetric W with no normal approximation, from the eigenvalues e of W Sigma.

    <gamma^i, omega> is a quadratic form of Gaussians, with characteristic function prod (1 - 2 i s c e + s^2 e^2
    (v - c^2))^(-1/2), c and v / T the covariance of sum_j gamma^i_j x_j with x_T and its variance, for Sigma = 1. The
    probability of [-1/T, 1 - 1/T] is the inverse Fourier sum over midpoints s.
    """
    place = np.arange(1, t + 1)
    gamma = np.eye(t) / t - 1 / t**2
    c = gamma @ place
    v = t * np.sum(gamma @ np.minimum.outer(place, place) * gamma, 1)
    width = 0.05 / np.sqrt((v + c**2) * (eigenvalues @ eigenvalues))
    nodes = max(200, 20_000 // len(eigenvalues))  # with few eigenvalues the function decays slowly
    s = np.arange(0.5, nodes)[None] * width[:, None]
    scaled = s[..., None] * eigenvalues
    factors = 1 - 2j * c[:, None, None] * scaled + (v - c**2)[:, None, None] * scaled**2
    log_phi = -np.log(factors).sum(-1) / 2
    ends = np.exp(1j * s * scale / t) - np.exp(-1j * s * scale * (1 - 1 / t))
    return np.asarray((np.exp(log_phi) * ends / (1j * s)).real.sum(1) * width / pi)


def relative_spread(rho: Vector) -> float:
    return float((rho.max() - rho.min()) / rho.max())


def new_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


# The law at finite T: Figure 5 -----------------------------------------------------------------------------------


def check_L15(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    theta = np.arange(1, T + 1) / T
    missed = []
    for mean, scale in ((0.1, 0.1), (0.5, 0.5), (1.0, 0.3)):
        w = random_w(D, mean, scale, new_seed(rng))
        spectrum = spectrum_of(w, None, SCALE)
        simulated, error = simulate_walks(w, None, T, SCALE, 8000, new_seed(rng))
        printed, exact = printed_rho(spectrum.xi, spectrum.eta, theta), exact_rho(spectrum, T)
        at = int(np.abs(printed - exact).argmax())
        missed.append(float(np.abs(printed - simulated).mean()))
        evidence.append(
            Number(
                f"rho_i, i = {at + 1}, eigenvalues of mean {mean:g} and scale {scale:g}",
                float(simulated[at]),
                printed=float(printed[at]),
                corrected=float(exact[at]),
                error=float(error[at]),
                tolerance=NORMAL,
            )
        )
        evidence.append(
            Fact(
                f"the exact moments give rho within 0.012 on average over tokens, mean {mean:g}, scale {scale:g}",
                bool(np.abs(exact - simulated).mean() < 0.012),
                "corrected",
            )
        )
    detail = ", ".join(f"{one:.3f}" for one in missed)
    return [*evidence, Fact("(6) is within 0.05 of walks on average over tokens", max(missed) < 0.05, detail=detail)]


def check_L16(rng: np.random.Generator) -> list[Evidence]:
    widths, errors = (2, 8, 32, 128, 256), []
    for d in widths:
        eigenvalues = rng.normal(2 / sqrt(d), 1, d)  # xi eta is about 2, eta about 1, at every d
        spectrum = spectrum_of(np.diag(eigenvalues), None, sqrt(d))
        errors.append(float(np.abs(exact_rho(spectrum, T) - true_rho(eigenvalues, T, sqrt(d))).mean()))
    w = np.diag(rng.normal(0.7, 1, 8))
    simulated, error = simulate_walks(w, None, T, sqrt(8), 20_000, new_seed(rng))
    true = true_rho(np.diag(w).copy(), T, sqrt(8))
    return [
        Trend(
            "mean error over tokens, exact mean and variance", tuple(f"d = {d}" for d in widths), tuple(errors), 0.01
        ),
        *(
            Number(
                f"rho_{i} by inversion, d = 8",
                float(simulated[i - 1]),
                corrected=float(true[i - 1]),
                error=float(error[i - 1]),
            )
            for i in (1, 10, 20, 30, 40)
        ),
    ]


def check_L17(rng: np.random.Generator) -> list[Evidence]:
    w, sigma = random_w(D, 0.2, 0.2, new_seed(rng)), anisotropic(rng, D)
    simulated, error = simulate_walks(w, sigma, T, SCALE, 16_000, new_seed(rng))
    true = true_rho(np.linalg.eigvals(w @ sigma).real, T, SCALE)
    normal, without = (exact_rho(spectrum_of(w, one, SCALE), T) for one in (sigma, None))
    evidence: list[Evidence] = []
    for i in (5, 15, 20, 25, 35):
        numbers = {"measured": float(simulated[i - 1]), "error": float(error[i - 1])}
        evidence.append(Number(f"rho_{i} from the eigenvalues of W_QK Sigma", printed=float(true[i - 1]), **numbers))
        evidence.append(
            Number(f"rho_{i} by the normal law", corrected=float(normal[i - 1]), tolerance=NORMAL, **numbers)
        )
    far, near = (float(np.abs(one - simulated).mean()) for one in (without, normal))
    detail = f"mean error over tokens {far:.3f}, with Sigma {near:.3f}"
    return [*evidence, Fact("leaving Sigma out misses by more", far > 3 * near, "corrected", detail)]


def check_L18(rng: np.random.Generator) -> list[Evidence]:
    spread = random_w(D, 0.0, 1.0, new_seed(rng))
    spread -= np.trace(spread) / D * np.eye(D)  # the mean is fixed, and not only expected

    def w_of(mean: float, scale: float) -> Float[np.ndarray, "d d"]:
        return mean * np.eye(D) + scale * spread

    means = (1e-4, 0.1, 0.5, 1.0)
    widths = [float(exact_rho(spectrum_of(w_of(mean, 0.05), None, SCALE), T).mean()) for mean in means]
    place, scales = np.arange(0.5, T) / T, (1.0, 0.5, 0.0)
    band = (place > 0.5) & (place < 0.5 + 1 / (0.5 * SCALE))
    laws = [exact_rho(spectrum_of(w_of(0.5, scale), None, SCALE), T) for scale in scales]
    within = [float(rho[band].sum() / rho.sum()) for rho in laws]
    evidence: list[Evidence] = [
        Fact(
            "the share of tokens that pass falls as the mean rises, 0.0001, 0.1, 0.5, 1",
            bool(np.all(np.diff(widths) < 0)),
            detail=", ".join(f"{one:.3f}" for one in widths),
        ),
        Fact(
            "more of rho is in the band of width lambda / tr(W) as the scale falls, 1, 0.5, 0, at mean 0.5",
            bool(np.all(np.diff(within) > 0)),
            detail=", ".join(f"{one:.3f}" for one in within),
        ),
    ]
    x, lost = draw_walks(rng, np.eye(D), T, 100), []
    for mean in (0.5, 0.1, 0.02, 1e-4):
        rows = [entropy(x @ w_of(mean, scale) @ x.transpose(0, 2, 1) / SCALE).mean(1) for scale in scales]
        gains = [mean_and_error(after - before) for before, after in pairwise(rows)]  # in the same walks
        evidence.append(
            Fact(
                f"entropy rises as the scale falls, 1, 0.5, 0, at mean {mean:g}",
                all(gain > 8 * error for gain, error in gains),
                detail=", ".join(f"{row.mean():.2f}" for row in rows) + f"; log T = {log(T):.2f}",
            )
        )
        lost.append(1 - float(rows[-1].mean()) / log(T))
    regimes = tuple(f"tr(W) / lambda = {mean * SCALE:.3g}" for mean in (0.5, 0.1, 0.02, 1e-4))
    evidence.append(Trend("share of log T that the entropy falls short of, at scale 0", regimes, tuple(lost), 0.05))
    low = f"entropy is {1 - lost[0]:.0%} of log T at scale 0, and less at others"
    return [*evidence, Fact("localized attention has low entropy (mean 0.5)", lost[0] > 0.5, "corrected", low)]


# xi, eta and Lemma 2 ---------------------------------------------------------------------------------------------


def check_L19(rng: np.random.Generator) -> list[Evidence]:
    spectrum = spectrum_of(random_w(16, 0.5, 0.3, new_seed(rng)), None, 4.0)
    caption = sqrt(spectrum.square) / spectrum.scale**2
    rho = float(limit_rho(spectrum, 0.7, printed=True))
    return [
        Number("tr(W) / lambda as xi eta", spectrum.r, spectrum.xi * caption, spectrum.xi * spectrum.eta),
        Number(
            "rho(0.7) from the moments of Lemma 1, by (6) with this eta",
            rho,
            printed=float(printed_rho(spectrum.xi, caption, np.array([0.7]))[0]),
            corrected=float(printed_rho(spectrum.xi, spectrum.eta, np.array([0.7]))[0]),
        ),
    ]


def check_L20(rng: np.random.Generator) -> list[Evidence]:
    curves = {128.0: 1.28, 512.0: 5.12}  # xi and xi eta of Figure 3's caption
    widest = max(spectrum_of(w, None, SCALE).xi for w in (np.eye(D), random_w(D, 1.0, 0.1, new_seed(rng))))
    needed = ", ".join(f"xi = {xi:g} needs d >= {xi**2:.0f}" for xi in curves)
    return [
        Number(
            "eta at which xi eta = 5.12, xi = 512", curves[512.0] / 512, printed=0.02, corrected=curves[128.0] / 128
        ),
        Number("xi eta at xi = 512 and the text's eta", 512 * 0.02, printed=curves[512.0]),
        Fact(
            f"no symmetric W of d = {D} has the xi that Figure 3 shows",
            widest <= SCALE + 1e-9 and widest < min(curves),
            "corrected",
            f"at most {widest:.2f}; {needed}",
        ),
    ]


def check_L21(rng: np.random.Generator) -> list[Evidence]:
    eta = 1e-7
    evidence: list[Evidence] = []
    for r in (1.0, 4.0, -1.0, -4.0):
        ends = sorted((0.5, 0.5 + 1 / r))
        edges = [end for end in ends if 0 <= end <= 1]
        inside, early = rng.uniform(max(ends[0], 0), min(ends[1], 1)), rng.uniform(0, 0.499)
        outside = early if r > 0 else 1 - early  # on the side of 1/2 that the band is not
        for theta in (*edges, float(inside), float(outside)):
            on_edge = min(abs(theta - end) for end in ends) < 1e-12
            evidence.append(
                Number(
                    f"rho({theta:.4g}) at eta = {eta:g}, xi eta = {r:g}",
                    float(printed_rho(r / eta, eta, np.array([theta]))[0]),
                    printed=float(ends[0] <= theta <= ends[1]),
                    corrected=0.5 if on_edge else float(ends[0] < theta < ends[1]),
                    tolerance=1e-6,
                )
            )
    band = limit_rho(law(4 / eta, eta), np.array([0.4, 0.5, 0.6, 0.75, 0.8]))
    so = bool(np.allclose(band, [0, 0.5, 1, 0.5, 0], atol=1e-6))
    return [*evidence, Fact("the same with the corrected variance, r = 4", so, "corrected")]


def check_L22(rng: np.random.Generator) -> list[Evidence]:
    sizes = (1.0, 0.1, 0.01, 1e-6)
    steep = tuple(float(np.abs(np.gradient(printed_rho(xi, 1.0, THETA), THETA)).max()) for xi in sizes)
    d, t, walks = 64, 80, 50_000
    w = random_w(d, 0.0, 1.0, new_seed(rng))
    w = w - np.trace(w) / d * np.eye(d)
    w *= sqrt(d / np.sum(w**2))  # xi = 0, eta = 1
    simulated, error = simulate_walks(w, None, t, sqrt(d), walks, new_seed(rng))
    true, middle = true_rho(np.linalg.eigvalsh(w), t, sqrt(d)), t // 2 - 1
    evidence: list[Evidence] = [
        Trend("largest |rho'(theta)| of (6) as printed, eta = 1", tuple(f"xi = {xi:g}" for xi in sizes), steep, 1e-3),
        Number(
            "rho of the middle token less rho of the last, tr(W) = 0, eta = 1",
            float(simulated[middle] - simulated[-1]),
            printed=0.0,
            corrected=float(true[middle] - true[-1]),
            error=float(error[middle] + error[-1]),  # of one walk both: at most the sum
        ),
    ]
    for theta in (0.0, 0.25, 0.5, 1.0):
        eta = float(rng.uniform(0.5, 2))
        flat = erf(1 / (eta * sqrt(2 * (2 * (theta - 0.5) ** 2 + 1 / 12)))) / 2
        evidence.append(
            Number(f"rho({theta:g}) at xi = 0", float(limit_rho(law(0.0, eta), theta)), corrected=float(flat))
        )
    return evidence


def check_L32(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    sizes = (0.1, 1.0, 10.0)
    for xi in (0.0, 1.0):
        for name, spreads in (
            ("(6) as printed", [relative_spread(printed_rho(xi, eta, THETA)) for eta in sizes]),
            ("the corrected variance", [relative_spread(limit_rho(law(xi, eta), THETA)) for eta in sizes]),
        ):
            evidence.append(
                Fact(
                    f"rho varies along the text by less than a fifth for every eta, xi = {xi:g}, {name}",
                    max(spreads) < 0.2,
                    detail=", ".join(f"{one:.2f} at eta = {eta:g}" for one, eta in zip(spreads, sizes, strict=True)),
                )
            )
    large, small = float(rng.uniform(1e3, 1e4)), float(rng.uniform(1e-3, 1e-2))
    evidence.append(
        Number(
            "relative spread at xi = 0, eta above 1000",
            relative_spread(limit_rho(law(0.0, large), THETA)),
            printed=0.0,
            corrected=1 - sqrt(1 / 7),
            tolerance=1e-5,
        )
    )
    both = relative_spread(limit_rho(law(small, small), THETA))
    return [*evidence, Fact("it vanishes where xi and eta both do", both < 0.02, "corrected", f"{both:.1e}")]


def check_L23(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for xi in (0.0, float(rng.uniform(-10, 10)), 11.0):
        for name, least in (("printed", 7 / 12), ("corrected", 1 / 12)):
            peaks, bounded = [], True
            for eta in (1e1, 1e3, 1e5, 1e7):
                rho = printed_rho(xi, eta, THETA) if name == "printed" else limit_rho(law(xi, eta), THETA)
                peaks.append(float(rho.max()))
                bounded &= peaks[-1] <= 1 / (eta * sqrt(2 * pi * least)) + 1e-15  # an interval times the density
            so = bounded and peaks[-1] < 2e-7
            evidence.append(
                Fact(
                    f"max rho <= 1 / (eta sqrt(2 pi c)) -> 0, xi = {xi:.3g}, {name} variance",
                    so,
                    detail=", ".join(f"{one:.1e}" for one in peaks),
                )
            )
    return evidence


# Section 5: norms and entropy ------------------------------------------------------------------------------------


def draw_matrices(rng: np.random.Generator, d: int, count: int) -> tuple[Batch, Batch]:
    """Symmetric W_QK, from indefinite ones to nearly the identity, and covariances, from anisotropic to nearly I."""
    w, root = rng.standard_normal((2, count, d, d))
    near = rng.uniform(0, 3, (2, count, 1, 1)) * np.eye(d)
    return w + w.transpose(0, 2, 1) + 4 * near[0], root @ root.transpose(0, 2, 1) / d + near[1] + 0.05 * np.eye(d)


def trace(m: Batch) -> Vector:
    return np.asarray(np.trace(m, axis1=1, axis2=2))


def squared_trace(w: Batch, sigma: Batch) -> Vector:
    """tr((W_QK Sigma)^2), at least 0."""
    m = w @ sigma
    return np.asarray(np.einsum("nij,nji->n", m, m))


def never_above(label: str, small: Vector, large: Vector, form: str = "corrected") -> Fact:
    """small <= large over all draws."""
    ratio = float((small / large).max())
    return Fact(
        label, ratio <= 1 + 1e-12, "printed" if form == "printed" else "corrected", f"largest ratio {ratio:.4f}"
    )


def check_L24(rng: np.random.Generator) -> list[Evidence]:
    w, sigma = draw_matrices(rng, 5, 4000)
    d = 16
    identity = np.eye(d)
    left, spectral = d / sqrt(d), float(np.linalg.norm(identity, 2))
    traced, of_w, of_sigma = np.abs(trace(w @ sigma)), np.linalg.norm(w, 2, (1, 2)), np.linalg.norm(sigma, 2, (1, 2))
    frobenius = np.linalg.norm(w, axis=(1, 2))
    return [
        Fact("the first link at W_QK = Sigma = I_16", left <= spectral, detail=f"{left:g} <= {spectral:g}"),
        Fact(
            "the last link, the induced 1-norm, at I_16",
            bool(np.linalg.norm(identity) <= np.linalg.norm(identity, 1)),
            detail=f"{np.linalg.norm(identity):g} <= {np.linalg.norm(identity, 1):g}",
        ),
        never_above("|W_QK|_2 <= |W_QK|_F", of_w, frobenius, "printed"),
        never_above("|tr W| <= sqrt(d) |Sigma|_2 |W_QK|_F", traced, sqrt(5) * of_sigma * frobenius),
        never_above("|tr W| <= tr(Sigma) |W_QK|_2", traced, trace(sigma) * of_w),
        never_above("|W_QK|_F <= sum of |entries|", frobenius, np.abs(w).sum((1, 2))),
    ]


def check_L25(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for d in (2, 5, 9):
        w, sigma = draw_matrices(rng, d, 1)
        values = np.linalg.eigvals((w @ sigma)[0])
        printed = float(d * squared_trace(w, sigma)[0] - trace(w @ sigma)[0] ** 2)
        variance = float(d**2 * values.real.var())
        evidence.append(Number(f"d^2 Var(w_i), d = {d}", variance, printed, tolerance=1e-9 * (1 + abs(printed))))
        evidence.append(Number(f"the imaginary part of w_i, d = {d}", float(np.abs(values.imag).max()), 0.0))
    return evidence


def printed_bound(nu: float, t: int) -> float:
    """(9) as printed."""
    return log1p(t * exp(-nu)) + nu * exp(-nu / 2) / (1 / t + exp(-nu))


def least_entropy(rng: np.random.Generator, t: int, nu: float) -> float:
    """The smallest entropy of softmax over centered logits of norm nu, by BFGS from many starts."""

    def value_and_slope(z: np.ndarray) -> tuple[float, np.ndarray]:
        centered = z - z.mean()
        size = float(np.linalg.norm(centered))
        direction = centered / size
        logits = nu * direction
        log_p = logits - logits.max()
        log_p = log_p - log(np.exp(log_p).sum())
        p = np.exp(log_p)
        slope = -p * (log_p - p @ log_p)  # of the entropy in the logits; its sum is 0
        return float(-p @ log_p), nu / size * (slope - direction * (direction @ slope))

    starts = rng.standard_normal((6, t)) + 2 * np.eye(t)[rng.integers(t, size=6)]
    return min(float(minimize(value_and_slope, start, jac=True, method="BFGS").fun) for start in starts)


def check_L26(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for t, nu in ((10, 1.0), (10, 3.0), (10, 6.0), (40, 5.0)):
        least = least_entropy(rng, t, nu)
        exact = float(minimum_entropy(nu, t))
        evidence.append(
            Number(f"least entropy, T = {t}, nu = {nu:g}", least, printed_bound(nu, t), corrected=exact, tolerance=1e-6)
        )
    sizes = (10, 1000, 10**6)
    above = tuple(printed_bound(3.0, t) - float(minimum_entropy(3.0, t)) for t in sizes)
    evidence.append(Trend("how far (9) is above it, nu = 3, nats", tuple(f"T = {t}" for t in sizes), above, 0.1))
    norms = np.linspace(0, 40, 801)
    bounds = np.array([printed_bound(float(norm), 40) for norm in norms])
    peak, most = float(norms[bounds.argmax()]), float(bounds.max())
    evidence.append(
        Fact(
            "(9) is never above log T, T = 40", most <= log(40), detail=f"{most:.2f} at nu = {peak:.2f} > {log(40):.2f}"
        )
    )
    falls = bool(np.all(np.diff(minimum_entropy(norms, 40)) < 0))
    evidence.append(Fact("the least entropy falls for all nu, and has no peak", falls, "corrected"))
    strong, long = 12.0, 10**6
    limit = log1p(long * exp(-strong)) + strong * exp(-strong) / (1 / long + exp(-strong))
    least = float(minimum_entropy(strong, long))
    evidence.append(Number("for large T, e^-nu in place of e^(-nu/2), nu = 12", least, corrected=limit, tolerance=1e-4))
    return evidence


def check_L27(rng: np.random.Generator) -> list[Evidence]:
    w, sigma = draw_matrices(rng, 5, 4000)
    scale, inverse = np.sqrt(squared_trace(w, sigma)), np.linalg.inv(sigma)
    frobenius, spectral = np.linalg.norm(w, axis=(1, 2)), np.linalg.norm(w, 2, (1, 2))
    mixed = np.diag([1.0, -1.0])
    definite = w @ w
    return [
        never_above(
            "|tr W_QK| <= |Sigma^-1|_F sqrt(tr W^2)",
            np.abs(trace(w)),
            np.linalg.norm(inverse, axis=(1, 2)) * scale,
            "printed",
        ),
        Fact(
            "|tr W_QK| >= |W_QK|_2 at diag(1, -1)",
            bool(abs(np.trace(mixed)) >= np.linalg.norm(mixed, 2)),
            detail=f"{abs(np.trace(mixed)):g} >= {np.linalg.norm(mixed, 2):g}",
        ),
        never_above(
            "|W_QK|_2 <= |tr W_QK| for semidefinite W_QK", np.linalg.norm(definite, 2, (1, 2)), trace(definite)
        ),
        never_above("|W_QK|_2 <= |W_QK|_F", spectral, frobenius),
        never_above("|W_QK|_F <= |Sigma^-1|_2 sqrt(tr W^2)", frobenius, np.linalg.norm(inverse, 2, (1, 2)) * scale),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="L15",
        paper="Bao",
        place="(6), Figure 5",
        statement="The law (6) with the printed variance gives how often a token passes its signal in simulated walks.",
        printed=r"\rho(\theta) = \Phi\left(\left(\theta - \frac{1}{2}\right) \xi; \theta\right) "
        r"- \Phi\left(\left(\theta - \frac{1}{2}\right) \xi - \frac{1}{\eta}; \theta\right), \quad "
        r"\Phi(z; \theta) = \frac{1}{2} \operatorname{erf} \frac{z}{\sqrt{2 (2 \theta^2 + \frac{7}{12})}}",
        corrected=r"\Phi(z; \theta) = \frac{1}{2} \operatorname{erf} "
        r"\frac{z}{\sqrt{2 (2 \theta^2 - 2 \theta + \frac{7}{12})}}",
        remark="(6) also leaves out 1 / T, which is right only where eta T is large; the corrected numbers here have "
        "the exact mean and variance at T = 40. What is left, up to 0.04 at a token, is that the law is not normal.",
        check=check_L15,
    ),
    Entry(
        id="L16",
        paper="Bao",
        place="§4, before Lemma 1",
        statement="The attention weight is taken as normal, so that rho follows from its mean and variance.",
        printed=r"\rho_i \approx \frac{1}{2} \left\{\operatorname{erf}\left(\frac{1 - \mu^i}{\sqrt{2 v^i}}\right) "
        r"+ \operatorname{erf}\left(\frac{\mu^i}{\sqrt{2 v^i}}\right)\right\}",
        remark="With the true mean and variance the error falls with d, below 0.03 on average from d = 32 on. "
        "With the printed variance it stays (L12, L15).",
        check=check_L16,
    ),
    Entry(
        id="L17",
        paper="Bao",
        place="Figure 5, bottom",
        statement="With steps of any covariance Sigma the law is the same, of the matrix W = W_QK Sigma.",
        printed=r"W = W_{QK} \Sigma",
        remark="It is the substitution that holds, and it is exact; with the printed variance the law misses here "
        "as in L15.",
        check=check_L17,
    ),
    Entry(
        id="L18",
        paper="Bao",
        place="§5, A2, Figure 5",
        statement="Attention localizes with a smaller scale and a larger mean of the eigenvalues, a smaller scale at a "
        "fixed mean raises the entropy, and so both collapses are avoided together.",
        printed=r"\operatorname{tr}(W^2) \to \min, \operatorname{tr}(W) \text{ fixed}: "
        r"\text{ localized, and high entropy}",
        corrected=r"\text{width} \approx \frac{\lambda}{|\operatorname{tr}(W)|}, \quad "
        r"\text{entropy near } \log T \text{ only for } |\operatorname{tr}(W)| \ll \lambda",
        remark="The first two parts hold. The third does only for small tr(W) / lambda: the smallest scale brings the "
        "entropy near log T only where attention is not localized. At tr(W) / lambda = 5.7 it is 40% of log T.",
        check=check_L18,
    ),
    Entry(
        id="L19",
        paper="Bao",
        place="Figure 2, caption",
        statement="The scale eta is the root of tr(W^2) over lambda squared.",
        printed=r"\eta = \frac{\sqrt{\operatorname{tr}(W^2)}}{\lambda^2}",
        corrected=r"\eta = \frac{\sqrt{\operatorname{tr}(W^2)}}{\lambda}",
        remark="The text after (6) has lambda; only this makes xi eta = tr(W) / lambda, and (6) the law of Lemma 1.",
        check=check_L19,
    ),
    Entry(
        id="L20",
        paper="Bao",
        place="Figure 3, §4",
        statement="At xi = 512, eta = 0.02 the product xi eta is 5.12.",
        printed=r"\xi = 512, \quad \eta = 0.02, \quad \xi \eta = 5.12",
        corrected=r"\xi = 512, \quad \eta = 0.01, \quad \xi \eta = 5.12",
        remark="The caption's products are of eta = 0.01 for both curves. And |xi| <= sqrt(d), so that the two curves "
        "need d of 16384 and 262144; d = 128 allows 11.3.",
        check=check_L20,
    ),
    Entry(
        id="L21",
        paper="Bao",
        place="Lemma 2.1, 2.2",
        statement="As xi grows and eta vanishes with xi eta = r, rho becomes the indicator of a closed interval from "
        "the middle of the text, of length 1 / |r| where |r| > 2.",
        printed=r"\rho(\theta) \to 1 \text{ for } \frac{1}{2} \le \theta \le \frac{1}{2} + \frac{1}{r}",
        corrected=r"\rho(\theta) \to 1 \text{ for } \frac{1}{2} < \theta < \frac{1}{2} + \frac{1}{r}, \quad "
        r"\rho\left(\frac{1}{2}\right) \to \frac{1}{2}",
        remark="Right inside and outside of the interval, with either variance. On its ends rho is 1/2, not 1 (at the "
        "far end, where xi eta = r and not only tends to it).",
        check=check_L21,
    ),
    Entry(
        id="L22",
        paper="Bao",
        place="Lemma 2.3",
        statement="For a fixed eta, rho becomes flat along the text as xi vanishes.",
        printed=r"|\xi| \to 0: \quad |\rho'(\theta)| \to 0",
        corrected=r"\xi = 0: \quad \rho(\theta) = \frac{1}{2} \operatorname{erf} "
        r"\frac{1}{\eta \sqrt{2 c(\theta)}}, \quad c = 2 \left(\theta - \frac{1}{2}\right)^2 + \frac{1}{12}",
        remark="The variance depends on theta, so rho does: it peaks at the middle. The statement fails for (6) as "
        "printed too. The proof takes the factor xi out of a term without it.",
        check=check_L22,
    ),
    Entry(
        id="L32",
        paper="Bao",
        place="§4, A1",
        statement="For |xi| <= 1 rho is about uniform along the text whatever eta is.",
        printed=r"|\xi| \le 1: \quad \rho(\theta) \approx \text{const}",
        corrected=r"\xi = 0, \eta \to \infty: \quad \frac{\max \rho - \min \rho}{\max \rho} \to 1 - \sqrt{\frac{1}{7}}",
        remark="Uniform only where xi and eta both vanish. The text says 'relatively uniformly'; the check reads this "
        "as a spread below a fifth of the peak, and finds up to 0.7.",
        check=check_L32,
    ),
    Entry(
        id="L23",
        paper="Bao",
        place="Lemma 2.4",
        statement="For a fixed xi, rho vanishes everywhere as eta grows.",
        printed=r"\eta \to \infty: \quad \rho(\theta) \to 0",
        remark="At the rate 1 / eta, with either variance.",
        check=check_L23,
    ),
    Entry(
        id="L24",
        paper="Bao",
        place="(7)",
        statement="The trace of W bounds the norms of W_QK from below, in one chain.",
        printed=r"\frac{|\operatorname{tr}(W)|}{\sqrt{d} \|\Sigma\|_2} \le \|W_{QK}\|_2 "
        r"\le \|W_{QK}\|_F \le \|W_{QK}\|_1",
        corrected=r"\frac{|\operatorname{tr}(W)|}{\sqrt{d} \|\Sigma\|_2} \le \|W_{QK}\|_F, \quad "
        r"\frac{|\operatorname{tr}(W)|}{\operatorname{tr}(\Sigma)} \le \|W_{QK}\|_2",
        remark="The identity breaks the first link, and the last one for the induced 1-norm; the last holds for the "
        "sum of absolute entries.",
        check=check_L24,
    ),
    Entry(
        id="L25",
        paper="Bao",
        place="(8)",
        statement="The variance of the eigenvalues of W follows from tr(W^2) and tr(W).",
        printed=r"d^2 V[w_i] = d \operatorname{tr}(W^2) - \operatorname{tr}(W)^2",
        remark="For a symmetric W_QK, where the eigenvalues are real.",
        check=check_L25,
    ),
    Entry(
        id="L26",
        paper="Bao",
        place="(9)",
        statement="A lower bound of attention entropy for logits of norm nu, with a peak in nu.",
        printed=r"\ln(1 + T e^{-\nu}) + \frac{\nu e^{-\nu / 2}}{T^{-1} + e^{-\nu}}",
        corrected=r"\ln(1 + (T-1) b) + \frac{\nu \sqrt{T (T-1)} b}{1 + (T-1) b}, \quad "
        r"b = e^{-\nu \sqrt{\frac{T}{T-1}}}",
        remark="The printed bound exceeds log T, the most that entropy can be. The true minimum falls for all nu; for "
        "large T it is (9) with e^(-nu) in place of e^(-nu/2). Logits have 1 / lambda, which nu must then have too.",
        check=check_L26,
    ),
    Entry(
        id="L27",
        paper="Bao",
        place="(10)",
        statement="The scale of W bounds the trace of W_QK from above, and this its spectral norm.",
        printed=r"\|\Sigma^{-1}\|_F \sqrt{\operatorname{tr}(W^2)} \ge |\operatorname{tr}(W_{QK})| \ge \|W_{QK}\|_2",
        corrected=r"\|\Sigma^{-1}\|_2 \sqrt{\operatorname{tr}(W^2)} \ge \|W_{QK}\|_F \ge \|W_{QK}\|_2",
        remark="The first inequality holds. The second fails for diag(1, -1), and holds for semidefinite W_QK. What "
        "the argument needs, a bound of the spectral norm by tr(W^2), is true.",
        check=check_L27,
    ),
)
