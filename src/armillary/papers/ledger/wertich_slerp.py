"""Wertich, §5.2.3 and §5.2.4: softmax along great circles. Derivatives are taken by a complex step."""

import numpy as np
from jaxtyping import Float, Inexact
from scipy.spatial.distance import jensenshannon
from scipy.special import logsumexp
from scipy.special import softmax as probabilities

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend
from armillary.papers.ledger.wertich_softmax import STEP, cross_entropy, directions, worst
from armillary.theory import softmax

TIMES = np.linspace(0, 1, 101)


def orthogonal_pair(rng: np.random.Generator, n: int) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Two random unit vectors at a right angle."""
    v, w = np.linalg.qr(rng.normal(size=(n, 2)))[0].T
    return v, w


def great_circle(
    v: Float[np.ndarray, "n"], w: Float[np.ndarray, "n"], t: Inexact[np.ndarray, "*time"]
) -> Inexact[np.ndarray, "*time n"]:
    """v turned toward w by t times their angle, for complex t too: cos(t a) v + sin(t a) u, u at right angles to v."""
    length = np.linalg.norm(v)
    across = w - v * (v @ w) / length**2
    turn = np.asarray(t)[..., None] * np.arccos(v @ w / (length * np.linalg.norm(w)))
    return np.asarray(np.cos(turn) * v + np.sin(turn) * across * length / np.linalg.norm(across))


def circle_velocity(v: Float[np.ndarray, "n"], w: Float[np.ndarray, "n"]) -> Float[np.ndarray, "time n"]:
    """d/dt of `great_circle` at TIMES."""
    return np.asarray(great_circle(v, w, TIMES + 1j * STEP).imag / STEP)


def off_sinusoid(values: Float[np.ndarray, "time"]) -> float:
    """How far values at TIMES are from the nearest a cos(pi t / 2 + b) + c: largest residual over their range."""
    angle = np.pi / 2 * TIMES
    basis = np.stack([np.ones_like(angle), np.cos(angle), np.sin(angle)], axis=1)
    residual = values - basis @ np.linalg.lstsq(basis, values)[0]
    return float(np.abs(residual).max() / np.ptp(values))


def kl_along(
    target: Float[np.ndarray, "n"], v: Float[np.ndarray, "n"], w: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "time"]:
    """KL(softmax target || softmax slerp(v, w, t)) at TIMES."""
    return np.asarray(cross_entropy(probabilities(target), softmax.slerp(v, w, TIMES)) - softmax.entropy(target))


def jsd(v: Float[np.ndarray, "*#batch n"], w: Float[np.ndarray, "*#batch n"]) -> Float[np.ndarray, "*batch"]:
    """Jensen-Shannon divergence of the softmax of two vectors, in nats."""
    return np.asarray(jensenshannon(*np.broadcast_arrays(probabilities(v, -1), probabilities(w, -1)), axis=-1) ** 2)


# The path


def check_T5_2h(rng: np.random.Generator) -> list[Evidence]:
    v, w = directions(rng, 2, 6)
    angle = np.arccos(v @ w)
    t = TIMES[:, None]
    printed = (np.sin((t - 1) * angle) * v + np.sin(t * angle) * w) / np.sin(angle)
    measured = great_circle(v, w, TIMES)
    return [
        *worst("an entry of v turned toward w", measured, printed, corrected=softmax.slerp(v, w, TIMES)),
        Number("<path(0), v>, by its definition 1", float(measured[0] @ v), printed=float(printed[0] @ v)),
    ]


def check_T5_2i(rng: np.random.Generator) -> list[Evidence]:
    evidence: list[Evidence] = []
    for angle in (np.pi / 2, float(rng.uniform(0.4, 1.2)), float(rng.uniform(1.9, 2.7))):
        v, across = orthogonal_pair(rng, 6)
        w = np.cos(angle) * v + np.sin(angle) * across
        middle = softmax.slerp(v, w, 0.5)
        one, two = np.linalg.lstsq(np.stack([v, w], axis=1), middle)[0].tolist()
        evidence += [
            Number(
                f"lambda_1^2 + lambda_2^2, angle {np.degrees(angle):.1f} deg, t = 1/2",
                one**2 + two**2,
                printed=1.0,
                corrected=1 - 2 * one * two * float(v @ w),
            ),
            Number("|SLERP| there", float(np.linalg.norm(middle)), corrected=1.0),
        ]
    return evidence


# What cross-entropy does along it


def check_T5_5(rng: np.random.Generator) -> list[Evidence]:
    v, w = directions(rng, 2, 16)
    target = probabilities(w)
    measured = cross_entropy(target, great_circle(v, w, TIMES + 1j * STEP)).imag / STEP
    difference = target - probabilities(softmax.slerp(v, w, TIMES), -1)
    printed = (difference * softmax.slerp_derivative(v, w, TIMES)).sum(-1)
    return [*worst("dH/dt, n = 16", measured, printed, corrected=-printed)]


def check_T5_7(rng: np.random.Generator) -> list[Evidence]:
    v, w = directions(rng, 2, 8)
    right, angle = orthogonal_pair(rng, 8), np.pi / 2 * TIMES[:, None]
    at_right_angle = np.pi / 2 * (np.cos(angle) * right[1] - np.sin(angle) * right[0])
    t = float(rng.uniform(0.3, 1))
    return [
        *worst("dSLERP/dt (5.9)", circle_velocity(v, w), printed=softmax.slerp_derivative(v, w, TIMES)),
        *worst("dSLERP/dt at a right angle (5.10)", circle_velocity(*right), printed=at_right_angle),
        Number(f"cos(t + pi/2), t = {t:.3f}", float(np.cos(t + np.pi / 2)), corrected=-float(np.sin(t))),
    ]


def check_T5_13(rng: np.random.Generator) -> list[Evidence]:
    v, w = rng.normal(size=(2, 100, 1))
    angle = np.pi / 2 * TIMES
    size = np.hypot(v, w)
    return [
        *worst(
            "w_i cos(t pi/2) - v_i sin(t pi/2)",
            np.cos(angle) * w - np.sin(angle) * v,
            printed=size * np.cos(angle + np.arctan(-v / w)),
            corrected=size * np.cos(angle + np.arctan2(v, w)),
        )
    ]


def check_T5_15(rng: np.random.Generator) -> list[Evidence]:
    v, w = rng.normal(size=(2, 10_000))
    measured = np.cos(np.arctan(-v / w))
    return [
        *worst("cos(arctan(-v_i / w_i))", measured, printed=1 / np.sqrt((v / w) ** 2 + 1)),
        Fact("it lies in [0, pi/2]", bool((measured >= 0).all() and (measured <= np.pi / 2).all())),
        Fact("it lies in [0, 1]", bool((measured <= 1).all()), "corrected", f"largest of 10000: {measured.max():.6f}"),
    ]


def check_T5_17(rng: np.random.Generator) -> list[Evidence]:
    axes = np.eye(3)
    evidence: list[Evidence] = [
        Number(
            "largest distance of H(t) from any a cos(pi t / 2 + b) + c, share of its range, e_1 to e_2, n = 3",
            off_sinusoid(kl_along(axes[1], axes[0], axes[1])),  # H(t) less a constant
            printed=0.0,
        )
    ]
    v, w = orthogonal_pair(rng, 16)
    path, target = softmax.slerp(v, w, TIMES), probabilities(w)
    linear = path @ target
    entropies = -np.log(probabilities(path, -1)) @ target
    index = int(rng.integers(len(TIMES)))
    evidence.append(
        Number(
            f"H(t), n = 16, t = {TIMES[index]:.2f}",
            float(entropies[index]),
            corrected=float(logsumexp(path[index]) - linear[index]),
        )
    )
    evidence.append(Number("the same of <softmax(w), v(t)>, n = 16", off_sinusoid(linear), corrected=0.0))
    sizes = (4, 16, 64, 256)
    means = []
    for n in sizes:
        pairs = [orthogonal_pair(rng, n) for _ in range(40)]
        means.append(float(np.mean([off_sinusoid(kl_along(w, v, w)) for v, w in pairs])))
    regimes = tuple(f"n = {n}, l = 1" for n in sizes)
    evidence.append(Trend("mean distance from the nearest sinusoid, 40 pairs", regimes, tuple(means), bound=2e-3))
    n, radius = 16, 1e-3
    v, w = radius * directions(rng, 2, n)
    unit = n / radius**2
    evidence.append(
        Number(
            "KL(softmax w || softmax v) n / l^2, n = 16, l = 0.001, any angle",
            float(kl_along(w, v, w)[0] * unit),
            corrected=float(softmax.kl_small_radius(w, v) * unit),
            tolerance=5e-3,
        )
    )
    return evidence


def check_T5_18(rng: np.random.Generator) -> list[Evidence]:
    axes = np.eye(3)
    evidence: list[Evidence] = [
        Number(
            "largest distance of KL(t) from any a cos(pi t / 2 + b) + c, share of its range, e_1 to e_2, n = 3",
            off_sinusoid(kl_along(axes[1], axes[0], axes[1])),
            printed=0.0,
        ),
        Number("the same of JSD(t)", off_sinusoid(jsd(axes[1], softmax.slerp(axes[0], axes[1], TIMES))), printed=0.0),
    ]
    v, w = orthogonal_pair(rng, 8)
    path = softmax.slerp(v, w, TIMES)
    p, q = probabilities(v), probabilities(path, -1)
    crossed = cross_entropy(p, path)
    evidence += worst(
        "KL(softmax v || softmax v(t)), n = 8, l = 1",
        (p * np.log(p / q)).sum(-1),
        printed=crossed - softmax.entropy(w),
        corrected=crossed - softmax.entropy(v),
    )
    n, radius = 16, 1e-2
    v, w = radius * directions(rng, 2, n)
    unit = n / radius**2
    evidence.append(
        Number(
            "JSD(softmax w || softmax v) n / l^2, n = 16, l = 0.01, any angle",
            float(jsd(w, v) * unit),
            corrected=float(softmax.jsd_small_radius(w, v) * unit),
            tolerance=5e-3,
        )
    )
    return evidence


def check_T5_19b(rng: np.random.Generator) -> list[Evidence]:
    regimes, errors = [], []
    for n, radius in ((16, 5.0), (16, 1.0), (64, 1.0), (256, 1.0), (1024, 1.0)):
        lost = 1 - softmax.entropy(radius * directions(rng, 200, n)) / np.log(n)
        regimes.append(f"n = {n}, l = {radius:g}")
        errors.append(float(lost.mean()))
    n = 1024
    v = directions(rng, 200, n)
    deficit = np.log(n) - softmax.entropy(v)
    evidence: list[Evidence] = [Trend("mean of 1 - H / log n", tuple(regimes), tuple(errors), bound=1e-3)]
    closed = np.log(n) - softmax.entropy_small_radius(v)
    for name, value in (("1/2 Var_i(v_i)", float(closed.mean())), ("l^2 / (2n)", 0.5 / n)):
        what = f"mean of log n - H beside {name}, n = {n}, l = 1"
        evidence.append(Number(what, float(deficit.mean()), corrected=value, tolerance=0.01 * value))
    return evidence


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "T5.2h",
        "Wertich",
        "§5.2.3",
        "The weight of the first vector in spherical interpolation.",
        r"\lambda_1(t) = \frac{\sin((t - 1)\theta)}{\sin \theta}",
        check_T5_2h,
        corrected=r"\lambda_1(t) = \frac{\sin((1 - t)\theta)}{\sin \theta}",
        remark="As printed the path begins at -v; §5.2.4 prints the right sign.",
    ),
    Entry(
        "T5.2i",
        "Wertich",
        "§5.2.3",
        "The weights of spherical interpolation have Euclidean norm 1.",
        r"\|\lambda\|_2 = 1",
        check_T5_2i,
        corrected=r"\lambda_1^2 + \lambda_2^2 + 2 \lambda_1 \lambda_2 \cos \theta = 1",
        remark="The interpolated vector has norm 1, the weights only at a right angle.",
    ),
    Entry(
        "T5.5",
        "Wertich",
        "(5.4), (5.5)",
        "The derivative of the cross-entropy along the path from v to w.",
        r"\frac{dH}{dt} = \sum_{i=1}^n (\operatorname{Sm}(w)_i - \operatorname{Sm}(v(t))_i) \frac{dv_i(t)}{dt}",
        check_T5_5,
        corrected=r"\frac{dH}{dt} = \sum_{i=1}^n (\operatorname{Sm}(v(t))_i - \operatorname{Sm}(w)_i) "
        r"\frac{dv_i(t)}{dt}",
        remark="The sign is the opposite one of T5.2a.",
    ),
    Entry(
        "T5.7",
        "Wertich",
        "(5.6)-(5.11)",
        "The derivative of spherical interpolation, and its form at a right angle.",
        r"\frac{d\operatorname{SLERP}(v, w, t)}{dt} = \frac{\theta}{\sin \theta} "
        r"(\cos(t\theta) w - \cos((1 - t)\theta) v)",
        check_T5_7,
        remark="The identity quoted for (5.10), cos(t + pi/2) = sin t, has the wrong sign, but the one that is used, "
        "cos((1 - t) pi/2) = sin(t pi/2), is right.",
    ),
    Entry(
        "T5.13",
        "Wertich",
        "(5.12)-(5.14), (5.16)",
        "A cosine and a sine of the same frequency make one cosine, with this phase.",
        r"w_i \cos\left(\frac{\pi t}{2}\right) - v_i \sin\left(\frac{\pi t}{2}\right) = \sqrt{w_i^2 + v_i^2} "
        r"\cos\left(\frac{\pi t}{2} + \arctan\left(-\frac{v_i}{w_i}\right)\right)",
        check_T5_13,
        corrected=r"w_i \cos\left(\frac{\pi t}{2}\right) - v_i \sin\left(\frac{\pi t}{2}\right) = "
        r"\sqrt{w_i^2 + v_i^2} \cos\left(\frac{\pi t}{2} + \operatorname{atan2}(v_i, w_i)\right)",
        remark="Two slips: the sign of the phase, and arctan, which forgets the sign of w_i.",
    ),
    Entry(
        "T5.15",
        "Wertich",
        "(5.15)",
        "The cosine of that phase, and bounds on it.",
        r"0 \le \cos\left(\arctan\left(-\frac{v_i}{w_i}\right)\right) = "
        r"\frac{1}{\sqrt{\left(\frac{v_i}{w_i}\right)^2 + 1}} \le \frac{\pi}{2}",
        check_T5_15,
        remark="True and loose: a cosine is at most 1.",
    ),
    Entry(
        "T5.17",
        "Wertich",
        "Conjecture of §5.2.4, (5.17)",
        "Between orthogonal unit vectors the cross-entropy is a sinusoid in t, of frequency pi/2.",
        r"H(\operatorname{Sm}(w) | \operatorname{Sm}(\operatorname{SLERP}(v, w, t))) = "
        r"a \cos\left(\frac{\pi}{2} t + b\right) + c",
        check_T5_17,
        corrected=r"H(t) = \log \sum_i \exp v_i(t) - \langle \operatorname{Sm}(w), v(t) \rangle, \quad "
        r"D_{KL}(\operatorname{Sm}(w) \| \operatorname{Sm}(v)) = \frac{1}{2} \operatorname{Var}_i(w_i - v_i) + O(l^3)",
        remark="Only the inner product is a sinusoid, the log-sum-exp is not: the proof takes Sm(v(t)) for constant. A "
        "fit gets better with n and with a smaller radius, where the law of the second order holds at any angle.",
    ),
    Entry(
        "T5.18",
        "Wertich",
        "Corollary, (5.18), (5.19)",
        "The KL and the Jensen-Shannon divergence along the path are sinusoids in t too.",
        r"D_{KL}(\operatorname{Sm}(v) \| \operatorname{Sm}(v(t))) = "
        r"H(\operatorname{Sm}(v) | \operatorname{Sm}(v(t))) - H(\operatorname{Sm}(w)) = "
        r"a \cos\left(\frac{\pi}{2} t + b\right) + c",
        check_T5_18,
        corrected=r"D_{KL}(\operatorname{Sm}(v) \| \operatorname{Sm}(v(t))) = "
        r"H(\operatorname{Sm}(v) | \operatorname{Sm}(v(t))) - H(\operatorname{Sm}(v)), \quad "
        r"JSD \approx \frac{1}{8} \operatorname{Var}_i(w_i - v_i)",
        remark="(5.19) subtracts the entropy of the other end of the path. The sinusoid is off as in T5.17.",
    ),
    Entry(
        "T5.19b",
        "Wertich",
        "§5.2.4",
        "The entropy of softmax of a random vector on a sphere is very close to log n.",
        r"H(\operatorname{Sm}(v)) \approx \log n",
        check_T5_19b,
        corrected=r"\log n - H(\operatorname{Sm}(v)) \approx \frac{1}{2} \operatorname{Var}_i(v_i) \approx "
        r"\frac{l^2}{2n}",
        remark="For l^2 well below n.",
    ),
)
