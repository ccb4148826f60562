"""Wertich §7 and §8: the effect of attention on Gaussian tokens, its rank, and stacks of layers."""

from itertools import pairwise

import numpy as np
from jaxtyping import Float
from scipy.special import softmax
from scipy.stats import chi2, kurtosis, multivariate_normal

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Trend, mean_and_error, variance_and_error
from armillary.theory.bilinear import independent_weights_variance
from armillary.theory.gaussian import combination, entropy, mutual_information
from armillary.theory.softmax import entropy as softmax_entropy

Tokens = Float[np.ndarray, "*batch n d"]
Weights = Float[np.ndarray, "*each d d"]
Attention = Float[np.ndarray, "*batch n n"]
Blocks = Float[np.ndarray, "n n d d"]


def as_blocks(covariance: Float[np.ndarray, "nd nd"], n: int) -> Blocks:
    """S_ij of n tokens from the covariance of all their coordinates."""
    d = len(covariance) // n
    return np.asarray(covariance.reshape(n, d, n, d).swapaxes(1, 2))


def joint(blocks: Blocks) -> Float[np.ndarray, "nd nd"]:
    """The covariance of all coordinates from the blocks S_ij: the inverse of `as_blocks`."""
    n, d = blocks.shape[0], blocks.shape[2]
    return np.asarray(blocks.swapaxes(1, 2).reshape(n * d, n * d))


def gaussian_tokens(
    rng: np.random.Generator, n: int, d: int
) -> tuple[Float[np.ndarray, "n d"], Blocks, Float[np.ndarray, "n n"]]:
    """Means and covariances of n dependent tokens, and rows of fixed attention weights."""
    root = rng.standard_normal((n * d, n * d)) / np.sqrt(n * d)
    covariances = as_blocks(root @ root.T + 0.2 * np.eye(n * d), n)
    return rng.standard_normal((n, d)), covariances, softmax(rng.standard_normal((n, n)), axis=1)


def draw(rng: np.random.Generator, means: Tokens, covariances: Blocks, count: int) -> Float[np.ndarray, "count n d"]:
    noise = rng.standard_normal((count, means.size)) @ np.linalg.cholesky(joint(covariances)).T
    return np.asarray(noise.reshape(count, *means.shape) + means)


def attention(x: Tokens, w_q: Weights, w_k: Weights) -> Attention:
    """softmax of <W_q x_i, W_k x_j>/sqrt(d)."""
    logits = (x @ np.swapaxes(w_q, -1, -2)) @ np.swapaxes(x @ np.swapaxes(w_k, -1, -2), -1, -2)
    return np.asarray(softmax(logits / np.sqrt(x.shape[-1]), axis=-1))


def layer_norm(x: Tokens) -> Tokens:
    return np.asarray((x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True))


def apart(x: Tokens) -> Float[np.ndarray, "*batch"]:
    """|X - mean over tokens| / |X|: 0 if all tokens are equal."""
    return np.asarray(np.linalg.norm(x - x.mean(-2, keepdims=True), axis=(-2, -1)) / np.linalg.norm(x, axis=(-2, -1)))


def stack(rng: np.random.Generator, x: Tokens, layers: int, branch: float | None) -> list[Float[np.ndarray, "batch"]]:
    """`apart` before and after each layer of Xavier weights; branch: of x + branch * attention, normalized."""
    batch, _, d = x.shape
    distances = [apart(x)]
    for _ in range(layers):
        w_q, w_k, w_v = rng.standard_normal((3, batch, d, d)) / np.sqrt(d)
        mixed = attention(x, w_q, w_k) @ x @ w_v
        x = mixed if branch is None else layer_norm(x + branch * mixed)
        distances.append(apart(x))
    return distances


def projection_failure(k: int, eps: float) -> float:
    """P(|Rw|^2 is off |w|^2 by more than a share eps), R Gaussian of k rows: |Rw|^2 k/|w|^2 is chi-squared."""
    return float(chi2.sf(k * (1 + eps), k) + chi2.cdf(k * (1 - eps), k))


def check_T7_1a(rng: np.random.Generator) -> list[Evidence]:
    n, d = 4, 3
    means, covariances, weights = gaussian_tokens(rng, n, d)
    mixed_means, mixed = combination(weights, means, covariances)
    spread = np.kron(weights, np.eye(d))
    printed = sum(weights[0, i] * weights[1, j] * covariances[i, j] for i in range(n) for j in range(n))
    z = np.einsum("ki,cia->cka", weights, draw(rng, means, covariances, 50_000))
    mean, mean_error = mean_and_error(z[:, 0, 0])
    centered = z - mixed_means
    covariance, error = mean_and_error(centered[:, 0, 0] * centered[:, 1, 1])
    off = np.abs(joint(mixed) - spread @ joint(covariances) @ spread.T).max()
    return [
        Number("E of a coordinate of token 0", mean, float(weights[0] @ means[:, 0]), error=mean_error),
        Number("Cov of coordinates of tokens 0 and 1", covariance, float(printed[0, 1]), error=error),
        Number("largest difference from the covariance of the stacked map", float(off), 0.0),
    ]


def check_T7_1b(rng: np.random.Generator) -> list[Evidence]:
    n, d = 4, 3
    means, covariances, weights = gaussian_tokens(rng, n, d)
    means = 2 * means
    z = draw(rng, means, covariances, 50_000).swapaxes(1, 2) @ weights[0]
    mixed_means, mixed = combination(weights, means, covariances)
    variance, error = mean_and_error(np.square(z - mixed_means[0]).sum(1))
    seconds = sum(weights[0, i] * (np.trace(covariances[i, i]) + means[i] @ means[i]) for i in range(n))
    of_mixture = float(seconds - mixed_means[0] @ mixed_means[0])
    return [
        Number("trace of the covariance of token 0", variance, of_mixture, float(np.trace(mixed[0, 0])), error),
        Number("its excess kurtosis", float(kurtosis(z[:, 0])), None, 0.0, float(np.sqrt(24 / len(z)))),
    ]


def check_T7_1c(rng: np.random.Generator) -> list[Evidence]:
    n, d, count = 6, 4, 8000
    scales, excess = (1.0, 0.3, 0.1, 0.03), []
    for scale in scales:
        x = scale * rng.standard_normal((count, n, d))
        weights = attention(x, np.eye(d), np.eye(d))
        typical = weights.mean(0)
        covariances = scale**2 * np.einsum("ij,ab->ijab", np.eye(n), np.eye(d))
        _, fixed = combination(typical, np.zeros((n, d)), covariances)
        formula = float(np.einsum("kkaa->", fixed))
        # against fixed weights on the same draws, so that the spread of x itself cancels
        excess.append(abs(float((weights @ x).var(0).sum() - (typical @ x).var(0).sum())) / formula)
    names = tuple(f"tokens of spread {scale}" for scale in scales)
    return [Trend("share by which the variance exceeds that of fixed weights", names, tuple(excess), 0.01)]


def check_T7_2(rng: np.random.Generator) -> list[Evidence]:
    n, d = 4, 2
    means, covariances, weights = gaussian_tokens(rng, n, d)
    mixed_means, mixed = combination(weights, means, covariances)
    own, other, cross = mixed[0, 0], mixed[1, 1], mixed[0, 1]
    both = np.block([[own, cross], [cross.T, other]])
    printed_entropy = float(np.log((2 * np.pi * np.e) ** d * np.linalg.det(own)) / 2)
    printed = float(np.log(np.linalg.det(own) * np.linalg.det(other) / np.linalg.det(both)) / 2)
    z = np.einsum("ki,cia->cka", weights[:2], draw(rng, means, covariances, 40_000))
    log_own = multivariate_normal(mixed_means[0], own).logpdf(z[:, 0])
    log_other = multivariate_normal(mixed_means[1], other).logpdf(z[:, 1])
    log_both = multivariate_normal(mixed_means[:2].ravel(), both).logpdf(z.reshape(-1, 2 * d))
    surprise, surprise_error = mean_and_error(-log_own)
    gain, error = mean_and_error(log_both - log_own - log_other)
    unrelated = covariances * np.eye(n)[:, :, None, None]
    _, after = combination(weights, means, unrelated)
    _, alike = combination(weights[[0, 0]], means, unrelated)
    return [
        Number("H of token 0", surprise, printed_entropy, entropy(own), surprise_error),
        Number("I of tokens 0 and 1", gain, printed, mutual_information(own, other, cross), error),
        Fact(
            "information is not preserved: independent tokens share some afterward",
            mutual_information(after[0, 0], after[1, 1], after[0, 1]) > 1e-3,
        ),
        Fact(
            "two equal rows of weights share infinitely much",
            mutual_information(alike[0, 0], alike[1, 1], alike[0, 1]) == np.inf,
            "corrected",
        ),
    ]


def check_T7_3(rng: np.random.Generator) -> list[Evidence]:
    n, count = 64, 1000
    x, y = (layer_norm(rng.standard_normal((count, n)) * 3 + 1) for _ in range(2))
    w_q, w_k = (rng.standard_normal((count, n, n)) / np.sqrt(n) for _ in range(2))
    logits = ((w_q @ x[:, :, None]) * (w_k @ y[:, :, None])).sum((1, 2))
    variance, error = variance_and_error(logits)
    closed = float(independent_weights_variance(x[0], y[0], n))
    short, short_error = variance_and_error(logits / n)  # the same with vectors of length 1
    return [
        Number("|LayerNorm(x)|, n=64", float(np.linalg.norm(x, axis=1).mean()), 1.0, float(np.sqrt(n))),
        Number("Var<W_q x, W_k y> after it", variance, 1 / n, closed, error),
        Number("the same over d_k: the logits", variance / n, None, 1.0, error / n),
        Number("Var<W_q x, W_k y> for unit vectors", short, None, 1 / n, short_error),
    ]


def check_T7_4(rng: np.random.Generator) -> list[Evidence]:
    cases = [(k, eps) for k in (8, 12, 20, 50, 100, 200) for eps in (0.1, 0.3, 0.5, 0.7, 0.9)]
    failures = np.array([projection_failure(*case) for case in cases])
    k, eps = np.array(cases).T
    plus, minus = (2 * np.exp(-(eps**2 + sign * eps**3) * k / 4) for sign in (1, -1))
    n = 512
    rank = int(np.ceil(np.log(n)))
    w = rng.standard_normal(n)
    r = rng.standard_normal((40, rank, n)) / np.sqrt(rank)
    sharp = np.linalg.norm(np.einsum("ckn,ckm,m->cn", r, r, w, optimize=True) - w, axis=1) / np.linalg.norm(w)
    p = softmax(rng.standard_normal((n, n)), axis=1)
    rank_one_error = np.linalg.norm(np.outer(p @ w, w / (w @ w)) @ w - p @ w) / np.linalg.norm(p @ w)
    first = int(np.argmax(failures > plus))
    return [
        Fact(
            "a projection to k dimensions fails no more often than 2 exp(-(eps^2 + eps^3) k/4)",
            bool((failures <= plus).all()),
            detail=f"k={k[first]:.0f}, eps={eps[first]}: fails with {failures[first]:.3g}, printed {plus[first]:.3g}",
        ),
        Fact(
            "a projection to k dimensions fails no more often than 2 exp(-(eps^2 - eps^3) k/4)",
            bool((failures <= minus).all()),
            "corrected",
        ),
        Fact(
            "for one given w a matrix of rank one does it without error, so that the order of choice matters",
            bool(rank_one_error < 1e-12),
            "corrected",
        ),
        Fact(
            f"a random projection of rank log n does not keep Pw where attention is sharp, n={n}",
            bool(np.median(sharp) > 1),
            "corrected",
            f"median relative error {np.median(sharp):.2f}, about sqrt(n/k) = {np.sqrt(n / rank):.2f}",
        ),
    ]


def check_T7_4b(rng: np.random.Generator) -> list[Evidence]:
    d, spreads = 32, (3.0, 1.0, 0.3, 0.1)

    def singular_values(n: int, spread: float) -> Float[np.ndarray, "n"]:
        x, w = rng.standard_normal((n, d)), rng.standard_normal((2, d, d)) / np.sqrt(d)
        logits = (x @ w[0]) @ (x @ w[1]).T
        return np.asarray(np.linalg.svd(softmax(spread * logits / logits.std(), axis=1), compute_uv=False))

    def for_most(values: Float[np.ndarray, "n"]) -> int:
        shares = np.square(values).cumsum() / np.square(values).sum()
        return int(np.searchsorted(shares, 0.9)) + 1

    n = 256
    spectra = [singular_values(n, spread) for spread in spreads]
    kept = int(np.ceil(np.log(n)))
    left = tuple(float(np.square(values[kept:]).sum() / np.square(values).sum()) for values in spectra)
    ranks = [int((values > n * np.finfo(np.float64).eps * values[0]).sum()) for values in spectra[:3]]
    few, many = (np.mean([for_most(singular_values(size, 1.0)) for _ in range(3)]) for size in (64, 512))
    return [
        Trend(
            "share of squared singular values beyond the first log n, n=256",
            tuple(f"logits of spread {spread}" for spread in spreads),
            left,
            0.02,
        ),
        Fact("the rank itself is full", all(rank == n for rank in ranks), "corrected", f"{ranks} of {n}"),
        Fact(
            "at logits of spread 1 what holds 90 % grows faster than log n",
            bool(many / few > 1.5 * np.log(512) / np.log(64)),
            "corrected",
            f"from {few:.1f} values at n=64 to {many:.1f} at n=512",
        ),
    ]


def check_T7_5(rng: np.random.Generator) -> list[Evidence]:
    n = 400
    evidence: list[Evidence] = []
    for share in (1 / 20, 1 / 10):
        squares = np.exp(-np.arange(n) / (n / 5))
        squares *= share * n / squares.sum()
        v = rng.standard_normal((5000, n))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        length, error = mean_and_error(np.sqrt(np.square(v) @ squares))
        name = f"mean length of Av for a unit v, sum sigma^2 = {share:.2g} n"
        evidence.append(Number(name, length, 0.1, float(np.sqrt(share)), error, tolerance=0.005))
    return evidence


def check_T7_6(rng: np.random.Generator) -> list[Evidence]:
    n, d, layers, count = 8, 16, 40, 40
    x = 6 * np.eye(n, d) + 0.05 * rng.standard_normal((count, n, d))
    twice = 2 * np.eye(d)  # W_v too: with |W_v| = 1 the tokens would merge after all, in some e^36 layers
    distance = [np.linalg.norm(x[:, 0] - x[:, 1], axis=1) / np.linalg.norm(x[:, 0], axis=1)]
    to_others = []
    for _ in range(layers):
        weights = attention(x, twice, twice)
        to_others.append(float((weights * (1 - np.eye(n))).sum(-1).max()))
        x = weights @ x @ twice
    distance.append(np.linalg.norm(x[:, 0] - x[:, 1], axis=1) / np.linalg.norm(x[:, 0], axis=1))
    (start, _), (between, error) = (mean_and_error(one) for one in distance)
    ratios = []
    for _ in range(300):
        tokens, weights = rng.standard_normal((6, 5)), softmax(2 * rng.standard_normal((6, 6)), axis=1)
        w_v = rng.standard_normal((5, 5))
        tau = np.abs(weights[:, None] - weights[None]).sum(-1).max() / 2
        after = weights @ tokens @ w_v
        diameters = [np.linalg.norm(one[:, None] - one[None], axis=-1).max() for one in (tokens, after)]
        ratios.append(diameters[1] / (np.linalg.norm(w_v, 2) * tau * diameters[0]))
    return [
        Number(f"distance of two tokens in units of their length after {layers} layers", between, 0.0, start, error),
        Fact(
            "attention to others vanishes from layer to layer, so that no later layer brings them together",
            sum(to_others) < 1e-9 and all(b < a or b == 0 for a, b in pairwise(to_others)),
            "corrected",
            ", ".join(f"{share:.1g}" for share in to_others[:5]) + " in the first five layers",
        ),
        Fact(
            "diam(A X W_v) <= |W_v| tau(A) diam(X)",
            bool(max(ratios) <= 1),
            "corrected",
            f"at most {max(ratios):.3f} of it in 300 draws",
        ),
    ]


def check_T7_7(rng: np.random.Generator) -> list[Evidence]:
    batch, n, d = 6, 32, 64
    unit = rng.standard_normal((batch, n, d)) / np.sqrt(d)
    plain = [float(np.mean(value)) for value in stack(rng, layer_norm(unit), 6, None)]
    layers = (0, 8, 24, 40)
    skipping = stack(rng, layer_norm(unit), layers[-1], 1.0)
    strong = stack(rng, layer_norm(unit), 16, 2.0)
    evidence: list[Evidence] = [
        Trend("tokens apart, no skip", tuple(f"layer {i}" for i in range(7)), tuple(plain), 1e-9),
        Trend(
            "tokens apart, skip and LayerNorm",
            tuple(f"layer {i}" for i in layers),
            tuple(float(np.mean(skipping[i])) for i in layers),
            1e-3,
        ),
    ]
    for branch, found, first, last in ((1.0, skipping, 24, 40), (2.0, strong, 8, 16)):
        factor, error = mean_and_error((found[last] / found[first]) ** (1 / (last - first)))
        closed = float(1 / np.sqrt(1 + branch**2))
        evidence.append(Number(f"factor per layer, branch {branch}", factor, None, closed, error, tolerance=0.02))
    depth = 32
    scaled = stack(rng, layer_norm(unit), depth, float(1 / np.sqrt(depth)))
    evidence.append(
        Fact(
            "with a branch of 1/sqrt(depth) tokens stay apart",
            bool(np.min(scaled[-1]) > 0.5),
            "corrected",
            f"{np.mean(scaled[-1]):.3f} after {depth} layers",
        )
    )
    return evidence


def check_T8_1(rng: np.random.Generator) -> list[Evidence]:
    n, d = 64, 16
    x, (w_q, w_k) = rng.standard_normal((n, d)), rng.standard_normal((2, d, d)) / np.sqrt(d)

    def logits(alpha: float) -> Float[np.ndarray, "n n"]:
        scaled = []
        for w in (w_q, w_k):
            u, spectrum, v = np.linalg.svd(w)
            scaled.append((u * (alpha * spectrum)) @ v)
        return np.asarray((x @ scaled[0].T) @ (x @ scaled[1].T).T / np.sqrt(d))

    alphas = (0.3, 0.5, 1.0, 2.0, 3.0)
    plain = logits(1.0)
    off = max(float(np.abs(logits(alpha) - alpha**2 * plain).max()) for alpha in alphas)
    entropies = np.array([softmax_entropy(logits(alpha)) for alpha in alphas])  # alpha row
    means = entropies.mean(1) / np.log(n)
    return [
        Number("largest difference of the logits from alpha^2 times the first", off, 0.0),
        Fact(
            "every row's entropy falls with alpha",
            bool((np.diff(entropies, axis=0) < 0).all()),
            detail="mean over log n " + ", ".join(f"{m:.3f} at {a:g}" for a, m in zip(alphas, means, strict=True)),
        ),
    ]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "T7.1a",
        "Wertich",
        "§7.1.1",
        "Mean and covariances of attention outputs whose weights are fixed.",
        r"\mathbb{E}\hat{X}_k = \sum_i \lambda_i^{(k)} \mu_i, \quad "
        r"\operatorname{Cov}[\hat{X}_k, \hat{X}_l] = \sum_{i,j} \lambda_i^{(k)} \lambda_j^{(l)} \Sigma_{ij}",
        check_T7_1a,
    ),
    Entry(
        "T7.1b",
        "Wertich",
        "§7.1.1",
        "A token after attention is a Gaussian mixture model.",
        r"\hat{X}_j = \sum_i \lambda_i^{(j)} X_i \quad \text{is a mixture}",
        check_T7_1b,
        r"\hat{X}_j \sim \mathcal{N}\left( \sum_i \lambda_i^{(j)} \mu_i, "
        r"\sum_{i,k} \lambda_i^{(j)} \lambda_k^{(j)} \Sigma_{ik} \right)",
        "A weighted sum of jointly Gaussian vectors is Gaussian. A mixture with these weights has the covariance "
        "sum lambda_i (S_ii + mu_i mu_i') - mu mu', which is larger.",
    ),
    Entry(
        "T7.1c",
        "Wertich",
        "§7.1.1",
        "The same covariances with weights that softmax computes from the tokens, the dependence left out.",
        r"\operatorname{Cov}[\hat{X}_k, \hat{X}_l] \approx \sum_{i,j} \lambda_i^{(k)} \lambda_j^{(l)} \Sigma_{ij}",
        check_T7_1c,
        remark="Only where logits are small, so that weights hardly depend on the tokens. For independent tokens that "
        "attend by likeness the variance is 11 % higher at spread 0.3 and about 150 % at spread 1.",
    ),
    Entry(
        "T7.2",
        "Wertich",
        "§7.1.2",
        "Entropy and mutual information of attention outputs whose weights are fixed; the latter is not preserved.",
        r"H(\hat{X}_k) = \frac{1}{2} \log\left( (2\pi e)^d |\Sigma_{kk}| \right), \quad "
        r"I(\hat{X}_k; \hat{X}_l) = \frac{1}{2} \log\frac{|\Sigma_{kk}| |\Sigma_{ll}|}{|\Sigma_{\hat{X}_{kl}}|}",
        check_T7_2,
        remark="Two equal rows of weights make the information infinite.",
    ),
    Entry(
        "T7.3",
        "Wertich",
        "§7.1.3",
        "LayerNorm puts tokens on a sphere of radius 1, so that products of queries and keys have variance 1/n.",
        r"l = 1, \quad \langle W_q x, W_k y \rangle \sim \mathcal{N}\left( 0, \frac{l}{n} \right)",
        check_T7_3,
        r"l = \sqrt{n}, \quad \operatorname{Var}\langle W_q x, W_k y \rangle = \frac{\|x\|^2 \|y\|^2}{n} = n",
        "Logits, which are divided by sqrt(d_k), then have variance 1. The printed value is that of unit vectors.",
    ),
    Entry(
        "T7.4",
        "Wertich",
        "§7.2.1, theorem",
        "A matrix of rank of order log n stands in for attention with high probability (after Linformer).",
        r"\Pr(\|\tilde{P}w - Pw\| < \epsilon \|Pw\|) > 1 - 2 e^{-(\epsilon^2 + \epsilon^3) k/4}, \quad k = \log n",
        check_T7_4,
        r"1 - 2 e^{-(\epsilon^2 - \epsilon^3) k/4}",
        "Checked as the tail of the random projection from which it is derived, where the sign is wrong. Read to the "
        "letter, with P~ chosen for a given w, it is empty: P w w'/|w|^2 has rank one and no error. With P~ = P R'R "
        "for random R no sign saves it where attention is sharp: the relative error is about sqrt(n/k).",
    ),
    Entry(
        "T7.4b",
        "Wertich",
        "§7.2.1",
        "The attention matrix has a rank of about log n.",
        r"\operatorname{rank}(P) \approx \Theta(\log n)",
        check_T7_4b,
        remark="Only what flat attention has beyond its first singular value is small. The rank is full, and at logits "
        "of spread 1 the number of values for 90 % of the squares grows like a power of n, not like log n.",
    ),
    Entry(
        "T7.5",
        "Wertich",
        "§7.2.2",
        "A sum of squared singular values of n/20 to n/10 shortens a random vector to about a tenth.",
        r"\sum_i \hat{\sigma}_i^2 \approx \frac{n}{20} - \frac{n}{10} \quad \text{gives} \quad "
        r"\|\hat{A}v\| \approx \frac{\|v\|}{10}",
        check_T7_5,
        r"\mathbb{E}\|\hat{A}v\|^2 = \frac{\|v\|^2}{n} \sum_i \hat{\sigma}_i^2, \quad "
        r"\|\hat{A}v\| \approx 0.22 \|v\| - 0.32 \|v\|",
        "A tenth is what becomes of the squared length. The sums themselves are measured by `armillary weights`.",
    ),
    Entry(
        "T7.6",
        "Wertich",
        "§7.2.3, hypothesis",
        "In a stack of attention layers whose weights have norms up to 2, the laws of all tokens converge to one.",
        r"\|W_q\|, \|W_k\|, \|W_v\| \le 2 \quad \text{implies} \quad p_i^{(l)} \to p \quad \text{for all } i",
        check_T7_6,
        r"\|W_v^{(l)}\| \, \tau(A^{(l)}) \le c < 1 \quad \text{suffices}, \quad "
        r"\tau(A) = \max_{i,j} \frac{1}{2} \sum_k |a_{ik} - a_{jk}|",
        "Counter-example: W_q = W_k = W_v = 2 I and tokens near 6 e_i. Each attends to itself, grows, and attends to "
        "itself the more. (|W_v| = 1 is no counter-example: nothing is seen in 200 layers, but every layer mixes a "
        "little, and the limit is one token.) For random weights see T7.7.",
    ),
    Entry(
        "T7.7",
        "Wertich",
        "§7.2.3, random matrices",
        "In a stack of attention layers with random weights all tokens become one; asked for skip connections too.",
        r"p_i^{(l)} \to p \quad \text{for random } W_q, W_k, W_v",
        check_T7_7,
        remark="Without skip the distance falls faster than exponentially, to rounding in about four layers. With skip "
        "and LayerNorm it falls by about 1/sqrt(1 + a^2) per layer once tokens are close, a the size of the branch; "
        "with a of order 1/sqrt(depth) tokens stay apart.",
    ),
    Entry(
        "T8.1",
        "Wertich",
        "§8.5",
        "Scaling the spectra of W_q and W_k by alpha scales products by its square: attention sharpens or flattens.",
        r"\langle \alpha W_q x, \alpha W_k y \rangle = \alpha^2 \langle W_q x, W_k y \rangle",
        check_T8_1,
        command="armillary intervene MODEL --scale ALPHA",
        remark="That upscaled tokens attend mostly to themselves is a finding about one trained model, not tested.",
    ),
    Entry(
        "T8.2",
        "Wertich",
        "§7.2.2, §8.2-8.5, App. A",
        "Measurements on Mistral-7B: spectra of the weights, traces of W_q'W_k, attention maps.",
        r"\text{spectra, } \operatorname{tr}(W_q^T W_k) \text{ and attention maps of Mistral-7B}",
        None,
        command="armillary weights MODEL --out DIR; armillary map MODEL; armillary intervene MODEL --scale ALPHA",
        remark="Needs the trained weights.",
    ),
)
