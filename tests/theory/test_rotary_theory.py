"""Rotary encodings: schemes, layouts, decay, and heads that work exactly where the formula says."""

from fractions import Fraction
from math import inf, log, pi
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import linprog
from scipy.special import softmax

from armillary.anatomy.description import Rotary, geometric
from armillary.errors import ArmillaryError
from armillary.observe.rebuild import rotate as rotate_torch
from armillary.theory.rotary import (
    constant_decay,
    expected_product,
    gap_law,
    kept_count,
    kept_frequencies,
    nope,
    p_rope,
    partial_rope,
    product,
    random_constant_decay,
    random_positions,
    rope,
    rotate,
    simulated_decay,
    to_half,
)
from armillary.theory.rotary_heads import (
    channel_break,
    channel_head,
    channel_length,
    channel_norm,
    nope_attention,
    norm_needed,
    positional_attention,
    positional_head,
)

Layout = Literal["half", "interleaved"]
LAYOUTS: list[Layout] = ["half", "interleaved"]


def rotation(position: int, g: np.ndarray, layout: str, e: int) -> np.ndarray:
    """R^i as a matrix, block by block."""
    matrix = np.eye(e)
    for f, angle in enumerate(position * g):
        a, b = (f, f + len(g)) if layout == "half" else (2 * f, 2 * f + 1)
        matrix[np.ix_([a, b], [a, b])] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return matrix


class TestFrequencies:
    def test_the_numbers_of_the_paper_are_met_where_they_are_right(self) -> None:
        assert rope(256)[118] == pytest.approx(2.053525e-04, rel=1e-6)  # B13
        assert rope(128)[-1] * 10_000 == pytest.approx(1.1548, abs=5e-5)  # B2: not 1/theta
        assert 128_000 * rope(128)[-1] / (2 * pi) == pytest.approx(2.353, abs=5e-4)  # B12: not 2.04
        assert p_rope(256, 0.75)[95] == pytest.approx(1.07e-3, abs=5e-6)  # B22
        assert partial_rope(256, 0.75)[95] == pytest.approx(1.10e-4, abs=5e-7)

    @pytest.mark.parametrize("width", [2, 10, 14, 64, 100, 200, 256])  # 10 and 14: odd counts of frequencies
    def test_all_of_p_rope_is_rope_and_nothing_of_it_is_nope(self, width: int) -> None:
        x = np.random.default_rng(width).standard_normal((7, width))
        positions = np.arange(7) * 1000
        for way in (False, True):
            whole, nothing = p_rope(width, 1, reversed=way), p_rope(width, 0, reversed=way)
            assert np.array_equal(rotate(x, positions, whole), rotate(x, positions, rope(width)))
            assert np.array_equal(nothing, nope(width))
            assert np.array_equal(rotate(x, positions, nothing), x)
        assert np.array_equal(partial_rope(width, 1), rope(width))
        assert np.array_equal(partial_rope(width, 0), nope(width))

    @pytest.mark.parametrize(
        ("width", "p", "kept"), [(100, 0.58, 29), (200, 0.29, 29), (200, 0.57, 57), (200, 0.58, 58)]
    )
    def test_no_angle_is_lost_to_rounding(self, width: int, p: float, kept: int) -> None:
        assert int(p * width // 2) == kept - 1  # the paper's code, B21
        assert kept_count(p, width // 2) == kept
        assert np.count_nonzero(p_rope(width, p)) == kept

    def test_every_hundredth_and_every_quotient_is_counted_exactly(self) -> None:
        for count in range(1, 140):
            assert [kept_count(i / 100, count) for i in range(101)] == [i * count // 100 for i in range(101)]
            assert [kept_count(i / count, count) for i in range(count + 1)] == list(range(count + 1))
        assert kept_count(Fraction(1, 3), 3) == 1

    @given(st.integers(1, 200), st.fractions(0, 1, max_denominator=1000))
    def test_both_ends_keep_the_same_count_and_a_whole_split_keeps_each_once(self, count: int, p: Fraction) -> None:
        fast, slow = kept_frequencies(p, count), kept_frequencies(p, count, reversed=True)
        assert sum(fast) == sum(slow) == p * count // 1
        rest = kept_frequencies(1 - p, count, reversed=True)
        assert not any(a and b for a, b in zip(fast, rest, strict=True))
        assert sum(fast) + sum(rest) == (count if p * count % 1 == 0 else count - 1)

    def test_invalid_arguments_are_refused(self) -> None:
        for mistake in (
            lambda: rope(7),
            lambda: rope(8, 1.0),
            lambda: p_rope(8, 1.01),
            lambda: p_rope(8, float("nan")),
            lambda: random_positions(5, 4, 0),
            lambda: gap_law(0, 4, 9),
            lambda: rotate(np.ones((2, 6)), np.arange(2), rope(8)),
            lambda: norm_needed(0.0, rope(8), 16),
            lambda: norm_needed(0.05, np.array([0.0, pi]), 16),  # back where it began after two tokens
            lambda: norm_needed(0.05, nope(8), 16),
            lambda: positional_attention(1.0, rope(8), 4, distance=4),
            lambda: channel_length(4.0),
            lambda: channel_norm(0.1, 1, 0.05),
        ):
            with pytest.raises(ArmillaryError):
                mistake()


class TestRotation:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_it_is_the_block_diagonal_matrix_and_the_models_own(self, layout: Layout) -> None:
        random, g = np.random.default_rng(0), rope(8, 100.0)
        x, positions = random.standard_normal((5, 11)), np.array([0, 1, 2, 77, 4096])  # 3 channels are not turned
        ours = rotate(x, positions, g, layout)
        byhand = np.stack([rotation(i, g, layout, 11) @ row for i, row in zip(positions, x, strict=True)])
        assert_allclose(ours, byhand, atol=1e-12)
        described = Rotary(geometric(100.0, 8), layout, 100.0)
        theirs = rotate_torch(described, torch.from_numpy(x)[None, None], torch.from_numpy(positions))
        assert_allclose(ours, theirs[0, 0].numpy(), atol=1e-12)

    @pytest.mark.parametrize("g", [rope(12), p_rope(12, 0.5), p_rope(12, 0.5, reversed=True), partial_rope(12, 0.5)])
    def test_both_layouts_agree_after_permutation(self, g: np.ndarray) -> None:
        x, positions = np.random.default_rng(1).standard_normal((6, 12)), np.arange(6) * 31
        order = to_half(12)
        interleaved = rotate(x, positions, g, "interleaved")
        assert np.array_equal(rotate(x[:, order], positions, g, "half"), interleaved[:, order])
        assert not np.allclose(rotate(x, positions, g, "half"), interleaved)

    @settings(max_examples=50, deadline=None)
    @given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.sampled_from(LAYOUTS))
    def test_logits_depend_on_the_distance_only(self, i: int, j: int, shift: int, layout: Layout) -> None:
        random, g = np.random.default_rng(i + j), p_rope(16, 0.75)
        q, k = random.standard_normal((2, 18))
        there = [rotate(q, np.array(i + s), g, layout) @ rotate(k, np.array(j + s), g, layout) for s in (0, shift)]
        assert there[0] == pytest.approx(there[1], abs=1e-9)
        assert there[0] == pytest.approx(product(q, k, g, np.array([i - j]), layout)[0], abs=1e-9)

    def test_the_frozen_part_of_p_rope_does_not_depend_on_distance(self) -> None:
        g, q = p_rope(16, 0.75), np.zeros(16)
        q[[6, 7, 14, 15]] = 1.0  # the pairs of the two dropped frequencies
        assert_allclose(product(q, q, g, np.arange(5000)), 4.0)
        assert np.ptp(product(q, q, rope(16), np.arange(5000))) > 0.5


class TestDecay:
    def test_all_ones_decay_but_not_monotonically(self) -> None:
        g, distances = rope(256), np.array([0, 10, 100, 1000, 10_000, 20_000, 100_000])
        curve = constant_decay(g, distances)
        assert_allclose(curve, [1.0, 0.675, 0.456, 0.193, -0.018, -0.087, -0.002], atol=6e-4)  # B23
        assert_allclose(curve, product(np.ones(256), np.ones(256), g, distances) / 256, atol=1e-12)
        assert np.count_nonzero(np.diff(constant_decay(g, np.arange(2000))) > 0) > 500

    def test_gaussian_vectors_do_not_decay(self) -> None:
        logits = simulated_decay("gaussian", rope(64), 200, draws=1000, seed=2)
        assert np.abs(logits.mean(0)).max() < 5 / np.sqrt(1000)
        assert np.abs(logits.var(0) - 1).max() < 5 * np.sqrt(2.2 / 1000)

    def test_a_repeated_pair_has_the_correlation_of_the_constant_curve(self) -> None:
        g, draws = rope(64), 3000
        logits = simulated_decay("repeated", g, 120, draws=draws, seed=3)
        assert np.abs(logits.mean(0)).max() < 5 / np.sqrt(draws)
        for a, b in [(0, 0), (0, 1), (10, 14), (100, 20), (119, 0)]:
            expected = constant_decay(g, np.array([abs(a - b)]))[0]
            assert (logits[:, a] * logits[:, b]).mean() == pytest.approx(expected, abs=5 * np.sqrt(2.2 / draws))

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_means_and_covariance_give_the_expected_logit(self, layout: Layout) -> None:
        random, e, g = np.random.default_rng(4), 7, rope(6, 50.0)
        mean_q, mean_k = random.standard_normal((2, e))
        cross = random.standard_normal((e, e))  # Cov(k, q)
        distances = np.array([0, 1, 5, 40])
        found = expected_product(g, distances, mean_q, mean_k, cross, layout)
        for r, value in zip(distances, found, strict=True):
            turn = rotation(-r, g, layout, e)
            assert value == pytest.approx(mean_q @ turn @ mean_k + np.trace(turn @ cross), abs=1e-12)
        own = expected_product(g, distances, np.zeros(6), np.zeros(6), np.eye(6), layout)  # q = k, standard normal
        assert_allclose(own / 6, constant_decay(g, distances), atol=1e-12)

    def test_gaps_between_random_positions_have_their_law(self) -> None:
        law = gap_law(100, 512, 4096)
        assert law.sum() == pytest.approx(1)
        assert law @ np.arange(1, 4097) == pytest.approx(100 * 4097 / 513)  # B24
        drawn = np.array([random_positions(12, 30, seed) for seed in range(4000)])
        assert drawn.min() == 1
        assert drawn.max() == 30
        assert (np.diff(drawn, axis=1) > 0).all()
        gaps = drawn[:, 7] - drawn[:, 4]
        counts = np.bincount(gaps, minlength=31)[1:] / 4000
        law = gap_law(3, 12, 30)
        assert np.all(np.abs(counts - law) <= 5 * np.sqrt(law * (1 - law) / 4000) + 1e-12)
        assert np.array_equal(np.flatnonzero(gap_law(3, 9, 9)), [2])  # all positions taken: 3 places are 3 tokens

    def test_a_larger_range_of_positions_decays_faster(self) -> None:
        g, places = rope(256), np.arange(0, 512, 7)
        below_half = []
        for limit in (512, 1024, 4096):
            curve = random_constant_decay(g, places, 512, limit)
            below_half.append(places[np.argmax(curve < 0.5)])
            drawn = simulated_decay("constant", g, 512, limit=limit, draws=40, seed=5)[:, places]
            error = drawn.std(0, ddof=1) / np.sqrt(40)
            assert (np.abs(drawn.mean(0) - curve) <= 5 * error + 1e-12).all()
        assert below_half[0] > below_half[1] > below_half[2]
        assert_allclose(random_constant_decay(g, places, 512, 512), constant_decay(g, places), atol=1e-9)
        spread = simulated_decay("gaussian", g, 64, limit=4096, draws=400, seed=6).std()
        assert spread == pytest.approx(1, abs=5 / np.sqrt(2 * 400))


class TestPositionalHeads:
    @pytest.mark.parametrize("length", [16, 256, 4096])
    @pytest.mark.parametrize("distance", [0, 1, 5])
    @pytest.mark.parametrize("g", [np.array([1.0]), rope(32), p_rope(64, 0.25), rope(32, 500_000)])
    def test_they_attend_exactly_when_the_norm_is_enough(self, length: int, distance: int, g: np.ndarray) -> None:
        eps = 0.05
        needed = norm_needed(eps, g, length, distance=distance)
        for factor, enough in ((1 + 1e-5, True), (1 - 1e-5, False)):
            attention = self.attention(needed * factor, g, length, distance)
            assert (attention > 1 - eps) == enough
            formula = positional_attention(needed * factor, g, length, distance=distance)
            assert attention == pytest.approx(formula, abs=1e-6)

    @staticmethod
    def attention(norm_squared: float, g: np.ndarray, length: int, distance: int) -> float:
        """The least attention at that distance over all queries of a text, with q and k rotated at their positions."""
        q, k = positional_head(norm_squared, g, distance=distance, layout="interleaved")
        positions = np.arange(length)
        queries, keys = (rotate(np.tile(v, (length, 1)), positions, g, "interleaved") for v in (q, k))
        least = 1.0
        for i in range(distance, length) if length <= 256 else [distance, length // 2, length - 2, length - 1]:
            least = min(least, softmax(keys[: i + 1] @ queries[i])[i - distance])
        return least

    def test_one_frequency_needs_huge_norms_and_many_little(self) -> None:
        one = [norm_needed(0.05, np.array([1.0]), n) for n in (16, 64, 512, 8192)]
        assert_allclose(one, [74.4, 1.88e4, 9.29e4, 1.62e9], rtol=5e-3)  # B6
        many = [norm_needed(0.05, rope(256), n) for n in (16, 64, 512, 8192)]
        assert_allclose(many, 106, atol=0.6)

    def test_norm_on_frequencies_that_are_zero_is_wasted(self) -> None:
        g = p_rope(64, 0.25)
        wasted = norm_needed(0.05, g, 64, weights=np.ones(32))
        assert wasted == pytest.approx(4 * norm_needed(0.05, g, 64))

    def test_any_distance_can_be_the_largest(self) -> None:
        random = np.random.default_rng(7)
        for distance in (0, 3, 17):
            weights = random.random(8)
            q, k = positional_head(2.0, rope(16), distance=distance, weights=weights)
            assert product(q, k, rope(16), np.arange(200)).argmax() == distance  # B3

    def test_an_easy_demand_needs_no_norm(self) -> None:
        assert norm_needed(0.75, rope(16), 4) == 0  # uniform attention gives 1/4
        assert norm_needed(0.74, rope(16), 4) > 0
        assert norm_needed(0.05, rope(16), 1) == 0

    def test_without_positions_copies_share(self) -> None:
        random = np.random.default_rng(8)
        for copies in (2, 3, 10):
            for _ in range(200):
                w, first, token = 5 * random.standard_normal((6, 6)), *random.standard_normal((2, 6))
                attention = nope_attention(w, first, token, copies)
                assert attention.sum() == pytest.approx(1)
                assert np.ptp(attention[1:]) == 0
                assert attention[-1] <= 1 / copies  # B5


class TestChannels:
    @pytest.mark.parametrize("g", [1.0, 0.5, 0.1, 0.02, pi / 40, 1.7, 3.0])
    def test_a_head_exists_exactly_up_to_the_length(self, g: float) -> None:
        longest = int(channel_length(g))
        assert g * (longest - 1) < pi <= g * longest
        assert self.margin(g, longest) > 1e-9
        assert self.margin(g, longest + 1) < 1e-9

    @staticmethod
    def margin(g: float, length: int) -> float:
        """The best worst-case lead of the target over any other token, over all target keys u and other keys v.

        A linear program: u.e_r - v.e_s >= m for all r != s, e_r the query's direction seen from distance r.
        """
        seen = np.stack([np.cos(g * np.arange(length)), np.sin(g * np.arange(length))], 1)
        r, s = np.nonzero(~np.eye(length, dtype=bool))
        rows = np.concatenate([-seen[r], seen[s], np.ones((len(r), 1))], 1)
        found = linprog([0, 0, 0, 0, -1], rows, np.zeros(len(r)), bounds=[(-1, 1)] * 4 + [(None, None)])
        return float(found.x[-1])

    @pytest.mark.parametrize(("g", "length"), [(1.0, 4), (0.1, 32), (0.02, 100), (0.0, 1000), (rope(256)[118], 8192)])
    def test_the_constructed_head_reaches_it_exactly_at_its_norm(self, g: float, length: int) -> None:
        for eps in (0.05, 0.4):
            needed = channel_norm(float(g), length, eps)
            for factor, enough in ((1 + 1e-9, True), (1 - 1e-9, False)):
                q, key = channel_head(needed * factor, float(g), length)
                logits = product(q, key, np.array([float(g)]), np.arange(length))
                least = 1 / (1 + (length - 1) * np.exp(-logits.min()))
                assert (least > 1 - eps) == enough

    def test_beyond_its_length_no_norm_is_enough(self) -> None:
        assert channel_norm(0.1, 32, 0.05) < inf
        assert channel_norm(0.1, 33, 0.05) == inf
        assert channel_length(0) == inf
        assert channel_norm(0, 10_000, 0.05) == pytest.approx(log(9999 * 0.95 / 0.05))  # NoPE, B11: 12.15

    def test_the_band_of_gemmas_apostrophe_head_breaks_at_twelve_thousand_tokens(self) -> None:
        q, other, first = np.array([-4.1, 11.3]), np.array([11.2, -3.5]), np.array([-2.5, 1.3])
        g = float(rope(256)[118])
        assert channel_break(q, first, other, g) == 11963  # B17, to one token
        lead = product(q, first - other, np.array([g]), np.arange(12_000))
        assert np.argmax(lead <= 0) == 11963
        assert channel_break(q, other, first, g) == 0
        assert channel_break(q, first, other, 0) == inf
