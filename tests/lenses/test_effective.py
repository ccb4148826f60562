"""q/k norms: the effective product against the dense computation, the observed scale, and the fit of localization."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import DISTINCT, sample_model
from armillary.anatomy.weights import stack
from armillary.atlas.atlas import Atlas
from armillary.cli import app
from armillary.lenses import localization as lens
from armillary.lenses.effective import effective_product
from armillary.lenses.labels import _verdict, agreement_table
from armillary.lenses.products import layer_spectra
from armillary.observe.rebuild import latent_factor, queries_and_keys
from armillary.report import report_html
from armillary.theory.localization import head_spectrum
from conftest import FAMILY_TOKENS, Atlases

NORMED = [
    "qwen3",
    "gemma3_text",
    "olmo2",
    "phi/qk-norm",
    "stablelm/qk-norm",
    "qwen3_next",
    "llama4_text",
    "gemma4_text",
]
"""RMS norm over a head, Gemma's 1 + weight, RMS over all heads, layer norm over a head, a layer norm for each
head; gated, without a gain in some layers, and over heads of several widths."""


def dense_parts(model: object, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """N(x W) g of q and k for every head as matrices (head, d, e), from the norm's own definition, without 1 / rms."""
    anatomy = arm.describe(model)
    weights = anatomy.weights(layer)
    norm = anatomy.layers[layer].qk_norm
    assert norm is not None
    parts = []
    for matrices, gains in ((weights.q, weights.q_norm), (weights.k, weights.k_norm)):
        assert gains is not None
        q = stack(matrices).double()  # (head, d, e): row i is the image of the unit vector i
        if norm.kind == "layer":
            q = q - (q.mean(-1, keepdim=True) if norm.over == "head" else q.mean((0, 2), keepdim=True))
        parts.append((q * (stack(gains.weight).double() + norm.offset)[:, None]).numpy())
    return parts[0], parts[1]


@pytest.mark.parametrize("name", NORMED)
def test_the_effective_product_is_the_dense_one_with_gains_and_norms(name: str) -> None:
    model = sample_model(name)
    anatomy = arm.describe(model)
    x = torch.randn(1, 200_000, anatomy.d_model, generator=torch.Generator().manual_seed(0))
    for layer in anatomy.layers[:1]:
        found = effective_product(layer, anatomy.weights(layer.index))
        q, k = dense_parts(model, layer.index)
        for head in range(layer.heads):
            dense = found.norm_scale[head] * q[head] @ k[layer.kv_head(head)].T
            singular = np.linalg.svd(dense, compute_uv=False)
            assert found.qk.trace[head] == pytest.approx(np.trace(dense), abs=1e-9 * singular[0])
            assert found.qk.frobenius[head] == pytest.approx(np.linalg.norm(dense))
            assert found.qk.singular[head, 0] == pytest.approx(singular[0])
            assert found.qk.square[head] == pytest.approx(np.trace(dense @ dense), abs=1e-9 * singular[0] ** 2)
        weights = anatomy.weights(layer.index)
        projected = x[0].double() @ weights.q[0].double()
        if layer.qk_norm is not None and layer.qk_norm.over == "head":
            centered = projected - projected.mean(-1, keepdim=True) if layer.qk_norm.kind == "layer" else projected
            other = x[0].double() @ weights.k[0].double()
            other = other - other.mean(-1, keepdim=True) if layer.qk_norm.kind == "layer" else other
            rms = [float(part.square().mean().sqrt()) for part in (centered, other)]
            assert found.norm_scale[0] == pytest.approx(1 / (rms[0] * rms[1]), rel=0.01)  # x of unit covariance


@pytest.mark.parametrize("name", [name for name in DISTINCT if name not in NORMED and name != "deepseek_v3"])
def test_without_norms_the_effective_product_is_the_raw_one(name: str) -> None:
    anatomy = arm.describe(sample_model(name))
    layer = anatomy.layers[0]
    assert layer.qk_norm is None
    raw, effective = layer_spectra(layer, anatomy.weights(0)), effective_product(layer, anatomy.weights(0))
    assert (effective.norm_scale == 1).all()
    for part in ("singular", "trace", "frobenius", "square"):
        np.testing.assert_allclose(getattr(effective.qk, part), getattr(raw.qk, part), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(effective.align_z, raw.align_z, rtol=1e-6)


def test_models_without_norms_have_no_effective_columns(atlases: Atlases) -> None:
    columns = map(str, atlases.family("llama").heads)
    assert not [column for column in columns if "effective" in column or "norm_scale" in column]


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "olmo2", "stablelm/qk-norm"])
def test_the_scale_is_the_one_observed(name: str, atlases: Atlases) -> None:
    """Mean 1 / rms over the kept tokens, by hand."""
    model, atlas = sample_model(name), atlases.family(name)
    anatomy = arm.describe(model)
    inputs: dict[int, Any] = {}
    with torch.no_grad(), arm.Tap(model, lambda view: inputs.setdefault(view.layer, view.x)):
        model(input_ids=FAMILY_TOKENS)
    for layer in anatomy.layers:
        x, weights, norm = inputs[layer.index][:, 1:].double(), anatomy.weights(layer.index), layer.qk_norm
        assert norm is not None
        over = (-1,) if norm.over == "head" else (1, 3)
        means = []
        for matrices, biases in ((weights.q, weights.q_bias), (weights.k, weights.k_bias)):
            raw = x[:, None] @ stack(matrices).double()
            raw = raw if biases is None else raw + stack(biases).double()[:, None]
            raw = raw - raw.mean(over, keepdim=True) if norm.kind == "layer" else raw
            rms = (raw.square().mean(over, keepdim=True) + norm.eps).sqrt().expand(raw.shape[0], raw.shape[1], -1, 1)
            means.append((1 / rms).mean((0, 2, 3)).numpy())
        expected = [means[0][a] * means[1][layer.kv_head(a)] for a in range(layer.heads)]
        rows = atlas.heads[atlas.heads["layer"] == layer.index]
        np.testing.assert_allclose(rows["qk_norm_scale"].to_numpy(float), expected, rtol=1e-4)
        q, k = dense_parts(model, layer.index)
        dense = [np.linalg.norm(q[a] @ k[layer.kv_head(a)].T) * expected[a] for a in range(layer.heads)]
        np.testing.assert_allclose(rows["qk_effective_fro"].to_numpy(float), dense, rtol=1e-4)


def test_the_scale_of_the_weights_has_no_effect_where_q_and_k_are_normalized() -> None:
    model = sample_model("qwen3")
    before = arm.weigh(model, matrices=False).heads
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.q_proj.weight *= 5.0
    after = arm.weigh(model, matrices=False).heads
    np.testing.assert_allclose(after["qk_fro"].astype(float), 5 * before["qk_fro"].astype(float))
    for column in ("qk_effective_fro", "qk_effective_trace", "r", "eta"):
        np.testing.assert_allclose(after[column].astype(float), before[column].astype(float), rtol=1e-3, err_msg=column)


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "olmo2"])
def test_localization_is_that_of_the_effective_product(name: str, atlases: Atlases) -> None:
    model, atlas = sample_model(name), atlases.family(name)
    anatomy = arm.describe(model)
    heads = atlas.heads
    for layer in anatomy.layers:
        q, k = dense_parts(model, layer.index)
        scale = effective_product(layer, anatomy.weights(layer.index)).norm_scale
        for head in range(layer.heads):
            row = heads[(heads["layer"] == layer.index) & (heads["head"] == head)].iloc[0]
            assert layer.scale is not None
            dense = head_spectrum(k[layer.kv_head(head)], q[head] * scale[head], None, 1 / layer.scale)
            assert row["r"] == pytest.approx(dense.r, rel=1e-6, abs=1e-9)
            if dense.square > 0:
                assert row["eta"] == pytest.approx(dense.eta)
                assert row["xi"] == pytest.approx(dense.xi)
    assert lens.is_effective(atlas)
    assert lens.EFFECTIVE[:40] in report_html(atlas).replace("&#x27;", "'")
    assert "effective" in CliRunner().invoke(app, ["localization", str(atlas.path.parent)]).stdout


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj", "gemma3_text", "falcon"])
def test_a_head_has_a_regime_exactly_where_it_has_xi_and_eta(name: str, atlases: Atlases) -> None:
    heads = atlases.family(name).heads
    for suffix in ("", "_data"):
        defined = heads[f"xi{suffix}"].notna() & heads[f"eta{suffix}"].notna()
        assert (heads[f"regime{suffix}"].notna() == defined).all()
    assert heads["xi"].isna().any() or name not in ("gpt2", "llama")  # some random heads have tr(W^2) < 0


class TestFit:
    def test_a_prediction_that_is_right_fits(self, atlases: Atlases, monkeypatch: pytest.MonkeyPatch) -> None:
        atlas = atlases.family("gpt2")
        rng = np.random.default_rng(0)
        observed = rng.uniform(size=(3, 6, 16))
        predicted = rng.uniform(size=(3, 6, 16))
        predicted[0] = 0.3 + 0.2 * observed[0]
        predicted[1, 0] = 0.5
        monkeypatch.setattr(lens, "rho_curves", lambda atlas: {"observed": observed, "predicted": predicted})
        found = lens.fit_columns(atlas)
        assert found["rho_fit"][:6].to_numpy() == pytest.approx(1.0)
        for i in range(7, 18):
            a, b = observed.reshape(18, 16)[i], predicted.reshape(18, 16)[i]
            assert found["rho_fit"][i] == pytest.approx(np.corrcoef(a, b)[0, 1])
            assert found["rho_error"][i] == pytest.approx(np.sqrt(np.mean((a - b) ** 2)))
        others = [np.corrcoef(observed[0, 0], predicted.reshape(18, 16)[j])[0, 1] for j in range(1, 18) if j != 6]
        assert found["rho_chance"][0] == pytest.approx(np.mean(others))
        assert np.isnan(found["rho_fit"][6])  # flat: nothing to correlate

    def test_table_command_and_report_show_the_fit(self, atlases: Atlases) -> None:
        atlas = atlases.family("gpt2")
        table = lens.propagation_table(atlas)
        rows = table[(table["layer"] == 1) & (table["head"] == 2)]
        row = atlas.heads[(atlas.heads["layer"] == 1) & (atlas.heads["head"] == 2)].iloc[0]
        expected = np.corrcoef(rows["observed"], rows["predicted"])[0, 1]
        assert row["rho_fit"] == pytest.approx(expected, abs=1e-6)
        run = CliRunner().invoke(app, ["localization", str(atlas.path.parent), "--json"])
        assert {"rho_fit", "rho_chance", "rho_error"} <= set(json.loads(run.stdout)[0])
        sentence = lens.fit_sentence(atlas)
        everything = table["observed"]
        explained = 1 - ((everything - table["predicted"]) ** 2).sum() / ((everything - everything.mean()) ** 2).sum()
        assert f"R² over all heads and places {explained:.2f}" in sentence
        assert sentence in " ".join(CliRunner().invoke(app, ["localization", str(atlas.path.parent)]).stdout.split())
        assert sentence in report_html(atlas)

    def test_models_that_see_both_sides_have_none(self, atlases: Atlases) -> None:
        atlas = atlases.family("bert")
        assert "rho_fit" not in atlas.heads
        assert lens.fit_sentence(atlas) == ""


def test_the_verdict_is_about_the_whole_interval() -> None:
    assert [_verdict("+", 0.1, 0.5), _verdict("+", -0.1, 0.5), _verdict("+", -0.5, -0.1)] == [
        "agrees",
        "open",
        "contradicts",
    ]
    assert [_verdict("-", -0.5, -0.1), _verdict("-", -0.5, 0.1), _verdict("-", 0.1, 0.5)] == [
        "agrees",
        "open",
        "contradicts",
    ]


class _Heads:
    """An atlas with only a heads table."""

    def __init__(self, heads: pd.DataFrame) -> None:
        self.heads = heads


def test_pairs_against_expectation_are_marked(atlases: Atlases) -> None:
    n = np.arange(40.0)
    heads = pd.DataFrame({"r": n, "mean_distance": n, "high_freq_share": n, "prev_mass": n, "focus": n})
    table = agreement_table(_Heads(heads.assign(qk_fro=-n, qk_effective_fro=n)))  # type: ignore[arg-type]
    verdicts = {(row.a, row.b): row.verdict for row in table.itertuples()}
    assert verdicts["r", "mean_distance"] == "contradicts"
    assert verdicts["high_freq_share", "prev_mass"] == "agrees"
    assert verdicts["focus", "qk_effective_fro"] == "agrees"  # with q/k norms, the effective product is used
    atlas: Atlas = atlases.family("llama")
    table = agreement_table(atlas)
    wrong = table[table["verdict"] == "contradicts"]
    text = report_html(atlas)
    assert (f"intervals of {len(wrong)} exclude it" if len(wrong) else "no interval excludes it") in text


def test_folded_matrices_over_rms_give_the_queries() -> None:
    """The norm as the model applies it: with 1 / rms of each token, folded matrices give q, up to the norm's bias."""
    model = sample_model("qwen3")
    anatomy = arm.describe(model)
    layer, weights = anatomy.layers[0], anatomy.weights(0)
    x = torch.randn(2, 5, anatomy.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q, _ = queries_and_keys(layer, weights, x, torch.zeros(5, dtype=torch.long))
    folded, _ = dense_parts(model, 0)
    raw = x[:, None] @ stack(weights.q).double()
    rms = raw.square().mean(-1, keepdim=True).sqrt()
    np.testing.assert_allclose(q.numpy(), (x.numpy()[:, None] @ folded) / rms.numpy(), rtol=1e-3)


def test_a_head_with_zero_weights_raises_no_warning(tmp_path: Path) -> None:
    model = sample_model("qwen3")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[:12] = 0.0
    atlas = arm.scan(model, FAMILY_TOKENS, out=tmp_path / "atlas")
    row = atlas.heads.iloc[0]
    assert row["qk_effective_fro"] == 0
    assert pd.isna(row["xi"])
    assert pd.isna(row["regime"])
    assert report_html(atlas)


def test_latent_channels_are_divided_by_the_norm_of_the_latent() -> None:
    """For x of unit covariance, by drawing such x: the mean of 1 / rms of the latent is near 1 / its rms."""
    model = sample_model("deepseek_v3")
    anatomy = arm.describe(model)
    weights, layer = anatomy.weights(0), anatomy.layers[0]
    assert weights.q_latent is not None
    assert weights.k_latent is not None
    x = torch.randn(1, 20_000, 48, generator=torch.Generator().manual_seed(0))
    factors = [float(latent_factor(latent, x).mean()) for latent in (weights.q_latent, weights.k_latent)]
    q, k = weights.q[2] * factors[0], weights.k[2].clone()
    k[:, :6] *= factors[1]
    expected = float((q @ k.T).norm())
    assert effective_product(layer, weights).qk.frobenius[2] == pytest.approx(expected, rel=0.1)
