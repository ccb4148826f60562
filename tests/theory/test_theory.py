"""Closed forms against simulation, quadrature, autograd and exact identities; misprints of the papers are refuted."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.linalg import eigvalsh_tridiagonal
from scipy.special import log_softmax
from scipy.special import softmax as probabilities

from armillary.errors import ArmillaryError
from armillary.theory import bilinear, gaussian, softmax
from armillary.theory import random_matrix as rm

seeds = st.integers(0, 10**6)
widths = st.integers(1, 6)


def covariance(rng: np.random.Generator, d: int, noise: float = 0.1) -> np.ndarray:
    root = rng.normal(size=(d, d))
    return root @ root.T / d + noise * np.eye(d)


def assert_mean(draws: np.ndarray, expected: float) -> None:
    """The mean of the draws is the expected one within four standard errors."""
    error = draws.std() / np.sqrt(len(draws))
    assert draws.mean() == pytest.approx(expected, abs=4 * error)


def assert_variance(draws: np.ndarray, expected: float) -> None:
    assert_mean(np.square(draws - draws.mean()), expected)


def misses(draws: np.ndarray, printed: float) -> bool:
    """The printed value is more than ten standard errors from the mean of the draws."""
    return bool(abs(draws.mean() - printed) > 10 * draws.std() / np.sqrt(len(draws)))


class TestGaussian:
    def test_entropy(self) -> None:
        s = covariance(np.random.default_rng(0), 5)
        assert gaussian.entropy(s) == pytest.approx(stats.multivariate_normal(np.zeros(5), s).entropy(), rel=1e-12)
        assert gaussian.entropy(np.diag([1.0, 0.0])) == -np.inf
        # |det L| decides whether a linear map adds entropy (theory T4.2a)
        a = np.random.default_rng(1).normal(size=(5, 5))
        gain = gaussian.entropy(a @ s @ a.T) - gaussian.entropy(s)
        assert gain == pytest.approx(np.linalg.slogdet(a)[1], rel=1e-10)

    def test_cross_entropy_agrees_with_samples(self) -> None:
        rng = np.random.default_rng(2)
        p, q = (rng.normal(size=4), covariance(rng, 4)), (rng.normal(size=4), covariance(rng, 4, 0.5))
        cost = -stats.multivariate_normal(*q).logpdf(rng.multivariate_normal(*p, size=100_000))
        expected = gaussian.cross_entropy(*p, *q)
        assert_mean(cost, expected)
        assert misses(cost, expected + 2)  # the printed form has d/2 more
        assert gaussian.cross_entropy(*p, *p) == pytest.approx(gaussian.entropy(p[1]), rel=1e-12)

    def test_kl_agrees_with_torch(self) -> None:
        rng = np.random.default_rng(3)
        p, q = (rng.normal(size=6), covariance(rng, 6)), (rng.normal(size=6), covariance(rng, 6))
        laws = [torch.distributions.MultivariateNormal(torch.from_numpy(m), torch.from_numpy(s)) for m, s in (p, q)]
        found = gaussian.kl(*p, *q)
        assert found == pytest.approx(float(torch.distributions.kl_divergence(*laws)), rel=1e-10)
        assert found == pytest.approx(gaussian.cross_entropy(*p, *q) - gaussian.entropy(p[1]), rel=1e-10)

    @given(seeds, widths, st.floats(0, 1))
    @settings(deadline=None, max_examples=60)
    def test_kl_is_never_negative_zero_for_equal_laws_and_invariant(self, seed: int, d: int, apart: float) -> None:
        rng = np.random.default_rng(seed)
        p = rng.normal(size=d), covariance(rng, d)
        q = p[0] + apart * rng.normal(size=d), (1 - apart) * p[1] + apart * covariance(rng, d)
        assert gaussian.kl(*p, *q) >= 0
        assert gaussian.kl(*p, *p) == pytest.approx(0, abs=1e-20)
        a = rng.normal(size=(d, d)) + 3 * np.eye(d)
        assume(np.linalg.cond(a) < 1e3)
        mapped = gaussian.kl(*gaussian.linear_map(*p, a), *gaussian.linear_map(*q, a))
        assert mapped == pytest.approx(gaussian.kl(*p, *q), rel=1e-6, abs=1e-12)

    def test_kl_of_laws_without_density(self) -> None:
        flat, full, zero = np.diag([1.0, 0.0]), np.eye(2), np.zeros(2)
        assert gaussian.kl(zero, flat, zero, full) == np.inf
        with pytest.raises(ArmillaryError, match=r"covariance of q .* not positive definite.*shrunk"):
            gaussian.kl(zero, full, zero, flat)

    @pytest.mark.parametrize(("shift", "scale"), [(0.7, 1.0), (0.0, 3.0), (2.5, 0.4)])
    def test_jensen_shannon_in_one_dimension_equals_quadrature(self, shift: float, scale: float) -> None:
        p, q = stats.norm(0, 1), stats.norm(shift, scale)

        def integrand(x: float) -> float:
            logs = np.array([p.logpdf(x), q.logpdf(x)])
            return float(np.exp(logs) @ (logs - np.logaddexp(*logs) + np.log(2)) / 2)

        exact = quad(integrand, -12, 12, limit=200)[0]
        found, error = gaussian.jensen_shannon(
            np.zeros(1), np.eye(1), np.array([shift]), np.array([[scale**2]]), samples=50_000
        )
        assert found == pytest.approx(exact, abs=4 * error)
        assert error < 0.002

    def test_jensen_shannon_lies_between_zero_and_log_two(self) -> None:
        rng = np.random.default_rng(4)
        p, q = (rng.normal(size=4), covariance(rng, 4)), (rng.normal(size=4), covariance(rng, 4))
        assert gaussian.jensen_shannon(*p, *p, samples=1000) == pytest.approx((0, 0), abs=1e-12)
        far = q[0] + 1000, q[1]
        assert gaussian.jensen_shannon(*p, *far, samples=1000) == pytest.approx((np.log(2), 0), abs=1e-12)
        one, its_error = gaussian.jensen_shannon(*p, *q, samples=20_000)
        other, other_error = gaussian.jensen_shannon(*q, *p, samples=20_000, seed=1)
        assert one == pytest.approx(other, abs=4 * np.hypot(its_error, other_error))
        assert 0 < one < np.log(2)
        # a Gaussian in place of the mixture is another number, above log 2 here or elsewhere (theory T2.2f)
        middle = (p[0] + far[0]) / 2, (p[1] + far[1]) / 2
        assert (gaussian.kl(*p, *middle) + gaussian.kl(*far, *middle)) / 2 > np.log(2)

    def test_mutual_information_equals_the_determinants(self) -> None:
        s = covariance(np.random.default_rng(5), 7)
        determinants = [np.linalg.slogdet(block)[1] for block in (s[:3, :3], s[3:, 3:], s)]
        expected = (determinants[0] + determinants[1] - determinants[2]) / 2
        assert gaussian.mutual_information(s[:3, :3], s[3:, 3:], s[:3, 3:]) == pytest.approx(expected, rel=1e-10)

    @given(seeds, widths, widths)
    @settings(deadline=None, max_examples=60)
    def test_mutual_information_is_never_negative_and_invariant(self, seed: int, d: int, f: int) -> None:
        rng = np.random.default_rng(seed)
        s = covariance(rng, d + f, 10.0 ** rng.uniform(-6, 2))
        x, y, xy = s[:d, :d], s[d:, d:], s[:d, d:]
        found = gaussian.mutual_information(x, y, xy)
        assert found >= 0
        assert gaussian.mutual_information(y, x, xy.T) == pytest.approx(found, rel=1e-8)
        assert gaussian.mutual_information(x, y, 0 * xy) == 0
        a, b = rng.normal(size=(d, d)), rng.normal(size=(f, f)) * 1e6
        assume(max(np.linalg.cond(a), np.linalg.cond(b)) < 1e3)
        mapped = gaussian.mutual_information(a @ x @ a.T, b @ y @ b.T, a @ xy @ b.T)
        assert mapped == pytest.approx(found, rel=1e-4, abs=1e-9)

    def test_mutual_information_of_deterministic_and_singular_relations(self) -> None:
        rng = np.random.default_rng(6)
        s, a = covariance(rng, 3), rng.normal(size=(2, 3))
        assert gaussian.mutual_information(s, a @ s @ a.T, s @ a.T) == np.inf
        # directions without variance add nothing: two dimensions turned into six carry what they carried
        x = covariance(rng, 4)
        expected = gaussian.mutual_information(x[:2, :2], x[2:, 2:], x[:2, 2:])
        for _ in range(10):
            a, b = rng.normal(size=(2, 6, 2))
            found = gaussian.mutual_information(a @ x[:2, :2] @ a.T, b @ x[2:, 2:] @ b.T, a @ x[:2, 2:] @ b.T)
            assert found == pytest.approx(expected, rel=1e-8)
        assert gaussian.mutual_information(np.zeros((2, 2)), x[2:, 2:], np.zeros((2, 2))) == 0
        with pytest.raises(ArmillaryError, match=r"above 1.*same samples"):
            gaussian.mutual_information(np.eye(1), np.eye(1), np.array([[1.5]]))

    def test_linear_map_and_combination_equal_the_joint_law(self) -> None:
        """Weights act on the stacked tokens as a Kronecker product with the identity."""
        rng = np.random.default_rng(7)
        tokens, rows, d = 4, 3, 2
        joint, means = covariance(rng, tokens * d), rng.normal(size=(tokens, d))
        weights = probabilities(rng.normal(size=(rows, tokens)), axis=1)
        blocks = joint.reshape(tokens, d, tokens, d).swapaxes(1, 2)
        mean, cov = gaussian.combination(weights, means, blocks)
        stacked_mean, stacked = gaussian.linear_map(means.ravel(), joint, np.kron(weights, np.eye(d)))
        np.testing.assert_allclose(mean.ravel(), stacked_mean, rtol=1e-12)
        np.testing.assert_allclose(cov.swapaxes(1, 2).reshape(rows * d, rows * d), stacked, atol=1e-14)
        draws = rng.multivariate_normal(means.ravel(), joint, size=50_000).reshape(-1, tokens, d)
        mixed = np.einsum("i,sid->sd", weights[1], draws)
        for k in range(d):
            assert_mean(mixed[:, k], mean[1, k])
            assert_variance(mixed[:, k], cov[1, 1, k, k])
        same = gaussian.combination(weights[[0, 0]], means, blocks)[1]
        assert gaussian.mutual_information(same[0, 0], same[1, 1], same[0, 1]) == np.inf

    def test_weights_that_depend_on_the_tokens_add_variance(self) -> None:
        """The limit of fixed weights (theory T7.1c): iid standard tokens, softmax of their own products."""
        rng = np.random.default_rng(8)
        x = rng.normal(size=(40_000, 6, 4))
        weights = probabilities(np.einsum("sd,sid->si", x[:, 0], x), axis=1)
        out = np.einsum("si,sid->sd", weights, x)[:, 0]
        fixed = np.einsum("ij,ab->ijab", np.eye(6), np.eye(4))
        _, cov = gaussian.combination(weights.mean(0, keepdims=True), np.zeros((6, 4)), fixed)
        assert out.var() > 2 * cov[0, 0, 0, 0]

    def test_shrunk_keeps_the_trace_and_makes_positive_definite(self) -> None:
        s = np.diag([4.0, 2.0, 0.0])
        np.testing.assert_allclose(gaussian.shrunk(s, 0.5), np.diag([3.0, 2.0, 1.0]))
        np.testing.assert_array_equal(gaussian.shrunk(s, 0), s)
        with pytest.raises(ArmillaryError, match=r"amount=1\.5"):
            gaussian.shrunk(s, 1.5)

    def test_effective_rank_and_isotropy(self) -> None:
        assert gaussian.effective_rank(3 * np.eye(7)) == pytest.approx(7)
        assert gaussian.isotropy(3 * np.eye(7)) == pytest.approx(1)
        rng = np.random.default_rng(9)
        a = rng.normal(size=(50, 2))
        assert gaussian.effective_rank(np.outer(a[:, 0], a[:, 0])) == pytest.approx(1)
        q, _ = np.linalg.qr(a)
        assert gaussian.effective_rank(q @ q.T) == pytest.approx(2)
        for _ in range(10):  # singular by one direction, and that to rounding only
            a = rng.normal(size=(50, 49))
            assert gaussian.isotropy(a @ a.T) == 0
        assert gaussian.isotropy(np.diag([1.0, 4.0])) == pytest.approx(0.8)
        assert np.isnan(gaussian.effective_rank(np.zeros((2, 2))))
        assert np.isnan(gaussian.isotropy(np.zeros((2, 2))))


class TestBilinear:
    def test_moments_of_a_form_with_non_symmetric_c_and_cross_covariance(self) -> None:
        rng = np.random.default_rng(0)
        d, c = 4, np.random.default_rng(1).normal(size=(4, 4))
        mean, s = rng.normal(size=2 * d), covariance(rng, 2 * d)
        draws = rng.multivariate_normal(mean, s, size=400_000)
        x, y = draws[:, :d], draws[:, d:]
        values = ((x @ c) * y).sum(1)
        s_x, s_y, s_yx = s[:d, :d], s[d:, d:], s[d:, :d]
        expected = bilinear.bilinear_mean(c, mean[:d], mean[d:], s_yx)
        assert_mean(values, float(expected))
        assert misses(values, float(mean[:d] @ c @ mean[d:] + np.trace(c @ s_yx.T)))  # printed: S_xy
        assert_variance(values, float(bilinear.bilinear_variance(c, mean[:d], mean[d:], s_x, s_y, s_yx)))
        independent = bilinear.bilinear_variance(c, mean[:d], mean[d:], s_x, s_y, 0 * s_yx)
        assert misses(np.square(values - values.mean()), float(independent))

    def test_the_narrow_form_equals_the_wide_one(self) -> None:
        """C = A B' of rank e: moments from q = A'x, k = B'y alone."""
        rng = np.random.default_rng(2)
        d, e = 9, 3
        a, b = rng.normal(size=(d, e)), rng.normal(size=(d, e))
        mean, s = rng.normal(size=2 * d), covariance(rng, 2 * d)
        s_x, s_y, s_yx = s[:d, :d], s[d:, d:], s[d:, :d]
        q, k, kq = mean[:d] @ a, mean[d:] @ b, b.T @ s_yx @ a
        wide = bilinear.bilinear_mean(a @ b.T, mean[:d], mean[d:], s_yx)
        assert bilinear.product_mean(q, k, kq) == pytest.approx(float(wide), rel=1e-12)
        wide = bilinear.bilinear_variance(a @ b.T, mean[:d], mean[d:], s_x, s_y, s_yx)
        narrow = bilinear.product_variance(q, k, a.T @ s_x @ a, b.T @ s_y @ b, kq)
        assert narrow == pytest.approx(float(wide), rel=1e-12)

    @given(seeds, widths)
    @settings(deadline=None, max_examples=40)
    def test_variance_is_positive_and_the_same_either_way_round(self, seed: int, e: int) -> None:
        rng = np.random.default_rng(seed)
        mean, s = rng.normal(size=2 * e), covariance(rng, 2 * e, 1e-3)
        q, k, s_q, s_k, s_kq = mean[:e], mean[e:], s[:e, :e], s[e:, e:], s[e:, :e]
        found = bilinear.product_variance(q, k, s_q, s_k, s_kq)
        assert found > 0
        assert bilinear.product_variance(k, q, s_k, s_q, s_kq.T) == pytest.approx(float(found), rel=1e-12)

    def test_leading_dimensions(self) -> None:
        rng = np.random.default_rng(3)
        lags, heads, e = 2, 3, 4
        means = rng.normal(size=(2, heads, e))
        s = np.array([[covariance(rng, 2 * e) for _ in range(heads)] for _ in range(lags)])
        s_q, s_k, s_kq = s[..., :e, :e], s[..., e:, e:], s[..., e:, :e]
        mean = bilinear.product_mean(means[0], means[1], s_kq)  # the means of a head are those at every lag
        variance = bilinear.product_variance(means[0], means[1], s_q, s_k, s_kq)
        assert mean.shape == variance.shape == (lags, heads)
        for at in np.ndindex(lags, heads):
            q, k = means[0, at[1]], means[1, at[1]]
            assert mean[at] == pytest.approx(float(bilinear.product_mean(q, k, s_kq[at])), rel=1e-12)
            one = bilinear.product_variance(q, k, s_q[at], s_k[at], s_kq[at])
            assert variance[at] == pytest.approx(float(one), rel=1e-12)

    def test_a_token_with_itself(self) -> None:
        rng = np.random.default_rng(4)
        c, mean, s = rng.normal(size=(5, 5)), rng.normal(size=5), covariance(rng, 5)
        x = rng.multivariate_normal(mean, s, size=200_000)
        values = ((x @ c) * x).sum(1)
        assert_mean(values, bilinear.self_pair_mean(c, mean, s))
        assert_variance(values, bilinear.self_pair_variance(c, mean, s))
        half = (c + c.T) / 2
        expected = 2 * np.trace(half @ s @ half @ s) + 4 * mean @ half @ s @ half @ mean
        assert bilinear.self_pair_variance(c, mean, s) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("cosine", [0.0, 0.5, 0.9])
    def test_random_weights(self, cosine: float) -> None:
        """Independent weights lose the angle between x and y; tied and symmetric ones keep it (theory T6.48b)."""
        rng = np.random.default_rng(5)
        n, draws, scale = 12, 30_000, 0.4
        x, y = np.zeros((2, n))
        x[0], y[0], y[1] = 1.5, cosine, np.sqrt(1 - cosine**2)
        a, b = rng.normal(scale=scale, size=(2, draws, n, n))
        ax, ay, by = a @ x, a @ y, b @ y
        independent, tied = (ax * by).sum(1), (ax * ay).sum(1)
        symmetric = (ay @ x + np.einsum("i,sij,j->s", y, a, x, optimize=True)) / np.sqrt(2)
        assert_mean(independent, 0)
        assert_variance(independent, float(bilinear.independent_weights_variance(x, y, n, scale**2)))
        assert_mean(tied, float(bilinear.tied_weights_mean(x, y, n, scale**2)))
        assert_variance(tied, float(bilinear.tied_weights_variance(x, y, n, scale**2)))
        assert_variance(symmetric, float(bilinear.symmetric_weights_variance(x, y, n, scale**2)))
        assert bilinear.independent_weights_variance(x, y, n) == pytest.approx(1.5**2 / n)
        assert bilinear.tied_weights_mean(x, y, n) == pytest.approx(1.5 * cosine)
        assert bilinear.symmetric_weights_variance(x, y, n) == pytest.approx(1.5**2 * (1 + cosine**2) / n)

    def test_kurtosis_of_a_product(self) -> None:
        rng = np.random.default_rng(6)
        values = np.array([1.0, 0.8, 0.5, 0.5, 0.3])
        products = (rng.normal(size=(60, 20_000, 5)) * rng.normal(size=(60, 20_000, 5))) @ values
        assert_mean(stats.kurtosis(products, axis=1), float(bilinear.excess_kurtosis_of_product(values)))
        assert bilinear.excess_kurtosis_of_product(np.array([[2.0, 0.0], [1.0, 1.0]])) == pytest.approx([6, 3])
        n = 200
        product = np.linalg.svd(rng.normal(size=(n, n)) @ rng.normal(size=(n, n)), compute_uv=False)
        assert bilinear.excess_kurtosis_of_product(product) == pytest.approx(18 / n, rel=0.05)


def largest_of_noise(n: int, m: int, draws: int, seed: int) -> np.ndarray:
    """Largest squared singular values of n x m standard normal matrices, n <= m, drawn exactly in bidiagonal form."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        diagonal = rng.chisquare(np.arange(m, m - n, -1))
        beside = rng.chisquare(np.arange(n - 1, 0, -1))
        squares = diagonal + np.concatenate([[0], beside])
        crossed = np.sqrt(diagonal[:-1] * beside)
        found.append(eigvalsh_tridiagonal(squares, crossed, select="i", select_range=(n - 1, n - 1))[0])
    return np.array(found)


def squared_singular_values(matrix: np.ndarray) -> np.ndarray:
    return np.square(np.linalg.svd(matrix, compute_uv=False))


def integral(law: rm.MarchenkoPastur, power: int, share: float = 1.0) -> float:
    """x^power under the density from the lower edge over this share of the support, by quadrature over an angle."""
    span = law.upper - law.lower

    def over_angle(angle: float) -> float:
        x = law.lower + span * np.sin(angle / 2) ** 2
        return float((x / law.variance) ** power * law.density(x) * span * np.sin(angle) / 2)

    # A nearly square matrix has a notch at 0, too narrow to be found unless one looks there.
    to = 2 * np.arcsin(np.sqrt(share))
    notch = [at for at in np.sqrt(law.lower / span) * 10.0 ** np.arange(8) if 0 < at < to]
    parts = [quad(over_angle, *ends, epsabs=1e-11, epsrel=1e-11)[0] for ends in pairwise([0, *notch, to])]
    return float(law.variance**power * sum(parts))


class TestMarchenkoPastur:
    @given(st.floats(1e-4, 1), st.floats(1e-6, 1e3))
    @settings(deadline=None, max_examples=60)
    def test_mass_is_one_mean_is_the_variance_and_cdf_inverts_quantile(self, ratio: float, variance: float) -> None:
        law = rm.MarchenkoPastur(ratio, variance)
        p = np.linspace(0, 1, 41)
        x = law.quantile(p)
        np.testing.assert_allclose(law.cdf(x), p, atol=1e-9)
        assert (np.diff(x) > 0).all()
        assert x[[0, -1]] == pytest.approx([law.lower, law.upper], rel=1e-12)
        assert integral(law, 0) == pytest.approx(1, rel=1e-7)
        assert integral(law, 1) == pytest.approx(variance, rel=1e-7)

    @pytest.mark.parametrize("ratio", [1.0, 0.5, 64 / 4096, 1e-4])
    def test_cdf_is_the_integral_of_the_density(self, ratio: float) -> None:
        law = rm.MarchenkoPastur(ratio, 0.3)
        for share in (1e-6, 0.01, 0.3, 0.7, 0.99, 1 - 1e-6):
            at = law.lower + share * (law.upper - law.lower)
            assert law.cdf(at) == pytest.approx(integral(law, 0, share), abs=1e-8)
        assert law.cdf(np.array([-1.0, law.lower, law.upper, 99.0])) == pytest.approx([0, 0, 1, 1], abs=1e-12)

    def test_square_moments_are_the_catalan_numbers(self) -> None:
        law = rm.MarchenkoPastur(1, 1)
        x = law.quantile((np.arange(20_000) + 0.5) / 20_000)
        assert [np.mean(x**k) for k in (1, 2, 3, 4)] == pytest.approx([1, 2, 5, 14], rel=1e-3)

    @pytest.mark.parametrize(("n", "m"), [(64, 1024), (300, 600), (300, 300)])
    def test_noise_follows_the_law(self, n: int, m: int) -> None:
        rng = np.random.default_rng(n + m)
        values = squared_singular_values(rng.uniform(-0.1, 0.1, (n, m))) / m  # not Gaussian: it need not be
        law = rm.MarchenkoPastur(n / m, 0.01 / 3)
        assert stats.kstest(values, law.cdf).statistic < 3 / n  # rigid: far below the 1/sqrt n of independent values
        assert law.median == pytest.approx(float(np.median(values)), rel=0.03)

    def test_impossible_parameters(self) -> None:
        with pytest.raises(ArmillaryError, match=r"ratio=2.*smaller side / larger side"):
            rm.MarchenkoPastur(2, 1)
        with pytest.raises(ArmillaryError, match="variance=0"):
            rm.MarchenkoPastur(0.5, 0)
        with pytest.raises(ArmillaryError, match=r"p=1\.5"):
            rm.MarchenkoPastur(0.5, 1).quantile(1.5)

    @pytest.mark.parametrize(("n", "m"), [(64, 2048), (200, 400), (256, 256)])
    def test_the_fitted_variance_is_that_of_the_noise(self, n: int, m: int) -> None:
        rng = np.random.default_rng(1)
        fits = np.array(
            [rm.fit_variance(squared_singular_values(rng.normal(0, 0.02, (n, m))) / m, n / m) for _ in range(12)]
        )
        assert fits.mean() == pytest.approx(4e-4, rel=0.01)

    def test_a_few_large_outliers_hardly_change_the_fit(self) -> None:
        rng = np.random.default_rng(2)
        noise = rng.normal(size=(300, 600))
        planted = noise + 40 * rng.normal(size=(300, 3)) @ rng.normal(size=(3, 600))
        values, clean = (squared_singular_values(matrix) / 600 for matrix in (planted, noise))
        assert values.mean() > 100
        assert rm.fit_variance(values, 0.5) == pytest.approx(rm.fit_variance(clean, 0.5), rel=0.015)
        assert rm.fit_variance(np.zeros(5), 0.5) == 0


class TestQuarterCircle:
    def test_square_of_the_law_is_marchenko_pastur(self) -> None:
        x = np.linspace(0, 5, 101)
        np.testing.assert_allclose(rm.quarter_circle_cdf(x, 2), rm.MarchenkoPastur(1, 4).cdf(np.square(x)), atol=1e-12)

    def test_density_integrates_to_the_cdf_and_to_the_mean(self) -> None:
        exact = quad(lambda x: float(rm.quarter_circle_density(x, 1.5)), 0, 2)[0]
        assert rm.quarter_circle_cdf(2, 1.5) == pytest.approx(exact, abs=1e-8)
        mean = quad(lambda x: x * float(rm.quarter_circle_density(x, 1.5)), 0, 3)[0]
        assert rm.quarter_circle_mean(1.5) == pytest.approx(mean, abs=1e-7)
        assert rm.quarter_circle_density(np.array([-1.0, 4.0]), 1.5) == pytest.approx([0, 0])

    def test_square_and_symmetric_noise_follow_it(self) -> None:
        noise = np.random.default_rng(3).normal(size=(400, 400))
        for matrix in (noise, (noise + noise.T) / np.sqrt(2)):
            values = np.linalg.svd(matrix, compute_uv=False)
            assert stats.kstest(values, rm.quarter_circle_cdf, (20,)).statistic < 0.01
            assert values.mean() == pytest.approx(rm.quarter_circle_mean(20), rel=0.01)


class TestLargest:
    def test_tracy_widom_quantiles_and_moments(self) -> None:
        known = {0.05: -3.1804, 0.5: -1.2686, 0.95: 0.9793, 0.99: 2.0234}
        for p, value in known.items():
            assert rm.tracy_widom_quantile(p) == pytest.approx(value, abs=0.011)
        x = np.array([rm.tracy_widom_quantile(p) for p in (np.arange(5000) + 0.5) / 5000])
        assert (x.mean(), x.std()) == pytest.approx((-1.2065, 1.268), abs=0.002)

    @pytest.mark.parametrize(("n", "of_n"), [(32, 3.637), (128, 3.865), (512, 3.949)])
    def test_mean_for_square_matrices(self, n: int, of_n: float) -> None:
        """The values of theory T6.12, and simulation: 4 n s^2 only in the limit."""
        assert rm.largest_mean(n, n, 0.25) / (0.25 * n) == pytest.approx(of_n, abs=0.001)
        assert largest_of_noise(n, n, 600, n).mean() == pytest.approx(rm.largest_mean(n, n, 1), rel=0.01)

    @pytest.mark.parametrize(("n", "m"), [(64, 64), (64, 1024), (200, 400)])
    def test_noise_exceeds_the_threshold_with_the_given_probability(self, n: int, m: int) -> None:
        largest = largest_of_noise(n, m, 3000, n * m)
        assert largest.mean() == pytest.approx(rm.largest_mean(m, n, 1), rel=0.005)
        for rate in (0.5, 0.2, 0.05):
            found = (2 * largest > rm.outlier_threshold(n, m, 2, rate)).mean()
            assert found == pytest.approx(rate, abs=0.12 * rate + 4 * np.sqrt(rate / 3000))
        assert (
            rm.outlier_threshold(n, m, 2) == rm.outlier_threshold(m, n, 2, 0.01) == rm.largest_quantile(n, m, 2, 0.99)
        )

    def test_the_sampler_of_these_tests_draws_what_a_matrix_has(self) -> None:
        rng = np.random.default_rng(4)
        dense = np.array([np.linalg.norm(rng.normal(size=(20, 30)), 2) ** 2 for _ in range(1500)])
        assert stats.ks_2samp(dense, largest_of_noise(20, 30, 1500, 5)).pvalue > 0.001

    def test_impossible_parameters(self) -> None:
        with pytest.raises(ArmillaryError, match="0 x 4"):
            rm.largest_mean(0, 4, 1)
        with pytest.raises(ArmillaryError, match="between 0 and 1"):
            rm.outlier_threshold(4, 4, 1, 0)


class TestSpikes:
    @pytest.mark.parametrize("times", [1.5, 2.0, 4.0])
    def test_a_planted_direction_appears_where_predicted(self, times: float) -> None:
        rng = np.random.default_rng(6)
        n, m, s = 300, 600, 0.3
        theta = times * rm.spike_threshold(n, m, s**2)
        top = []
        for _ in range(8):
            u, v = (vector / np.linalg.norm(vector) for vector in (rng.normal(size=n), rng.normal(size=m)))
            top.append(np.linalg.norm(rng.normal(0, s, (n, m)) + theta * np.outer(u, v), 2) ** 2)
        expected = rm.spike_location(theta, n, m, s**2)
        assert np.mean(top) == pytest.approx(float(expected), rel=0.02)
        assert rm.spike_strength(np.array(top), n, m, s**2).mean() == pytest.approx(theta, rel=0.03)
        assert expected > rm.outlier_threshold(n, m, s**2)

    @given(st.integers(1, 500), st.integers(1, 500), st.floats(1e-4, 1e2), st.floats(1.001, 100))
    @settings(deadline=None, max_examples=60)
    def test_strength_inverts_location(self, n: int, m: int, variance: float, times: float) -> None:
        theta = times * rm.spike_threshold(n, m, variance)
        location = rm.spike_location(theta, n, m, variance)
        assert location > variance * (np.sqrt(n) + np.sqrt(m)) ** 2
        assert rm.spike_strength(location, n, m, variance) == pytest.approx(theta, rel=1e-6)
        assert location == pytest.approx(float(rm.spike_location(theta, m, n, variance)), rel=1e-12)

    def test_spikes_below_the_threshold(self) -> None:
        edge = 0.5 * (np.sqrt(30) + np.sqrt(90)) ** 2
        hidden = np.array([0.0, 0.5, 1.0]) * rm.spike_threshold(30, 90, 0.5)
        np.testing.assert_allclose(rm.spike_location(hidden, 30, 90, 0.5), edge)
        assert np.isnan(rm.spike_strength(np.array([0.0, 0.99 * edge]), 30, 90, 0.5)).all()
        assert edge == pytest.approx(rm.MarchenkoPastur(1 / 3, 0.5).upper * 90)


class TestAlignment:
    @pytest.mark.parametrize("steep", [False, True])
    def test_standard_normal_for_unrelated_matrices_whatever_their_spectra(self, steep: bool) -> None:
        rng = np.random.default_rng(7)
        d, e, spectrum = 24, 8, np.exp(-np.arange(8.0) / 2)
        scores = []
        for _ in range(4000):
            q, k = rng.normal(size=(2, d, e))
            if steep:  # the same spectrum, turned at random on both sides
                u, _, v = np.linalg.svd(q, full_matrices=False)
                q = u * spectrum @ v
                u, _, v = np.linalg.svd(k, full_matrices=False)
                k = u * spectrum @ v
            norms = np.linalg.norm(q), np.linalg.norm(k)
            scores.append(rm.alignment_z(float((q * k).sum()), float(norms[0]), float(norms[1]), d, e))
        assert_mean(np.array(scores), 0)
        assert_variance(np.array(scores), 1)
        if not steep:
            assert stats.kstest(scores, "norm").pvalue > 0.001

    def test_a_matrix_with_itself_and_with_nothing(self) -> None:
        assert rm.alignment_z(9.0, 3.0, 3.0, 16, 4) == pytest.approx(8)
        assert np.isnan(rm.alignment_z(0.0, 0.0, 1.0, 16, 4))

    def test_xavier_is_torchs(self) -> None:
        weight = torch.empty(400, 600)
        torch.nn.init.xavier_normal_(weight, generator=torch.Generator().manual_seed(0))
        assert float(weight.var()) == pytest.approx(rm.xavier_variance(400, 600), rel=0.015)


class TestSoftmax:
    def test_lognormal_moments(self) -> None:
        draws = np.exp(np.random.default_rng(0).normal(0.7, 0.6, 400_000))
        assert_mean(draws, float(softmax.lognormal_mean(0.7, 0.36)))
        assert misses(draws, np.exp((0.7 + 0.36) / 2))  # printed
        assert_variance(draws, float(softmax.lognormal_variance(0.7, 0.36)))
        assert softmax.lognormal_mean(np.array([0.0, 1.0]), 2) == pytest.approx(np.exp([1, 2]))

    def test_ratio_of_probabilities(self) -> None:
        rng = np.random.default_rng(1)
        mean, s = np.array([0.9, 0.2, -1.0]), np.array([[0.5, 0.2, 0.1], [0.2, 0.3, 0.0], [0.1, 0.0, 0.4]])
        p = probabilities(rng.multivariate_normal(mean, s, size=400_000), axis=1)
        moments = mean[0], mean[1], s[0, 0], s[1, 1], s[0, 1]
        assert_mean(p[:, 0] / p[:, 1], float(softmax.ratio_mean(*moments)))
        assert_variance(p[:, 0] / p[:, 1], float(softmax.ratio_variance(*moments)))
        assert misses(p[:, 0] / p[:, 1], np.exp((0.7 + 0.4) / 2))  # printed

    @given(seeds, st.integers(2, 8))
    @settings(deadline=None, max_examples=40)
    def test_slerp_runs_on_the_sphere_at_constant_speed(self, seed: int, n: int) -> None:
        rng = np.random.default_rng(seed)
        v, w = (3 * vector / np.linalg.norm(vector) for vector in rng.normal(size=(2, n)))
        angle = np.arccos(np.clip(v @ w / 9, -1, 1))
        assume(0.01 < angle < 3.1)
        t = np.linspace(0, 1, 9)
        path, speed = softmax.slerp(v, w, t), softmax.slerp_derivative(v, w, t)
        np.testing.assert_allclose(path[[0, -1]], [v, w], atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(path, axis=1), 3)
        np.testing.assert_allclose(path @ v / 9, np.cos(t * angle), atol=1e-9)
        np.testing.assert_allclose(np.linalg.norm(speed, axis=1), 3 * angle, rtol=1e-6)
        step = 1e-5
        secant = (softmax.slerp(v, w, t + step) - softmax.slerp(v, w, t - step)) / (2 * step)
        np.testing.assert_allclose(speed, secant, atol=1e-6)

    def test_slerp_at_the_ends_of_its_domain(self) -> None:
        v = np.array([1.0, 2.0])
        np.testing.assert_allclose(softmax.slerp(v, v, 0.3), v)
        np.testing.assert_allclose(softmax.slerp_derivative(v, v, 0.3), 0, atol=1e-15)
        with pytest.raises(ArmillaryError, match="opposite"):
            softmax.slerp(v, -v, 0.5)
        with pytest.raises(ArmillaryError, match="zero"):
            softmax.slerp(v, 0 * v, 0.5)

    def test_laws_of_small_radius_hold_to_second_order(self) -> None:
        """The error falls with the third power of the radius, and what is approximated with the second."""
        rng = np.random.default_rng(2)
        w, v = rng.normal(size=(2, 20, 16))
        for radius in (0.01, 0.001):
            w_, v_ = radius * w, radius * v
            log_p, log_q = log_softmax(w_, axis=1), log_softmax(v_, axis=1)
            p, q = np.exp(log_p), np.exp(log_q)
            log_m = np.log((p + q) / 2)
            kl = (p * (log_p - log_q)).sum(1)
            jsd = ((p * (log_p - log_m)).sum(1) + (q * (log_q - log_m)).sum(1)) / 2
            bound = 2 * radius**3
            np.testing.assert_allclose(softmax.kl_small_radius(w_, v_), kl, atol=bound)
            np.testing.assert_allclose(softmax.jsd_small_radius(w_, v_), jsd, atol=bound)
            np.testing.assert_allclose(softmax.entropy_small_radius(v_), softmax.entropy(v_), atol=bound)
            assert jsd.min() > 4 * bound  # so that the bound says something

    def test_entropy_and_its_limits(self) -> None:
        logits = np.random.default_rng(3).normal(size=(4, 9)) * 3
        np.testing.assert_allclose(softmax.entropy(logits), stats.entropy(probabilities(logits, axis=1), axis=1))
        masked = np.where(np.arange(9) < 5, logits, -np.inf)
        np.testing.assert_allclose(softmax.entropy(masked), softmax.entropy(logits[:, :5]), rtol=1e-12)
        v = np.array([1.0, 3.0, 3.0, -2.0])
        assert softmax.entropy(0 * v) == pytest.approx(np.log(4))
        assert softmax.entropy(1e4 * v) == pytest.approx(np.log(2))

    @pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 5.0])
    def test_entropy_slope_is_autograds(self, alpha: float) -> None:
        v = np.random.default_rng(4).normal(size=(3, 12))
        scale = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
        log_p = torch.log_softmax(scale * torch.from_numpy(v), -1)
        (slope,) = torch.autograd.grad(-(log_p.exp() * log_p).sum(), scale)
        np.testing.assert_allclose(softmax.entropy_slope(v, alpha), slope[:, 0], atol=1e-12)

    def test_piecewise_linear_is_the_clipped_tangent_at_zero(self) -> None:
        t = 7
        tangent = torch.autograd.functional.jacobian(
            lambda w: torch.softmax(w, -1), torch.zeros(t, dtype=torch.float64)
        ).numpy()
        w = np.random.default_rng(5).normal(size=(50, t)) * np.array([[0.1], [6.0]]).repeat(25, 0)
        found = softmax.piecewise_linear(w)
        np.testing.assert_allclose(found, np.clip(w @ tangent + 1 / t, 0, 1), atol=1e-12)
        small, large = found[:25], found[25:]
        np.testing.assert_allclose(small, probabilities(w[:25], axis=1), atol=0.02)
        np.testing.assert_allclose(small.sum(1), 1)
        assert large.sum(1).max() > 1.2  # no probabilities once an entry clips
