"""The localization lens: spectra from weights and data, rho observed and predicted, least entropy."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.cli import app
from armillary.lenses import localization as lens
from armillary.observe.view import AttentionView
from armillary.streams.attention import AttentionStatistics
from armillary.streams.localization import PLACES, least_entropy
from armillary.streams.rows import centered_rows
from armillary.streams.stream import Stream
from armillary.theory.localization import head_spectrum, minimum_entropy, spectrum_regime
from conftest import FAMILY_TOKENS, Atlases


@pytest.mark.parametrize("name", ["llama", "gpt2", "gptj", "falcon", "t5"])
def test_spectra_equal_those_of_dense_weights_and_of_measured_steps(name: str, atlases: Atlases) -> None:
    """xi and eta with Sigma = I, and with Sigma = the measured second moment of x_{t+1} - x_t, computed densely."""
    model = sample_model(name)
    anatomy = arm.describe(model)
    steps: dict[int, torch.Tensor] = {}

    def note(view: arm.AttentionView) -> None:
        assert view.x is not None
        steps.setdefault(view.layer, view.x[:, 1:].double().diff(dim=1))

    with torch.no_grad(), arm.Tap(model, note):
        model(input_ids=FAMILY_TOKENS)
    atlas = atlases.family(name)
    weights_only, measured = lens.weight_spectra(atlas), lens.data_spectra(atlas)
    place = 0
    for layer in anatomy.layers:
        weights = anatomy.weights(layer.index)
        delta = steps[layer.index].flatten(0, 1).numpy()
        sigma = delta.T @ delta / len(delta)
        assert layer.scale is not None
        for head in range(layer.heads):
            q = weights.q[head].double().numpy()
            k = weights.k[layer.kv_head(head)].double().numpy()
            for found, covariance in ((weights_only[place], None), (measured[place], sigma)):
                dense = head_spectrum(k, q, covariance, 1 / layer.scale)
                for part in ("trace", "square", "frobenius", "r"):
                    assert dense.frobenius is not None
                    size = abs(dense.frobenius)
                    assert getattr(found, part) == pytest.approx(getattr(dense, part), rel=1e-4, abs=1e-5 * size)
            row = atlas.heads.iloc[place]
            if weights_only[place].square > 0:
                assert row["regime"] == spectrum_regime(weights_only[place])
            else:
                assert pd.isna(row["regime"])
            assert row["r_data"] == pytest.approx(measured[place].r)
            place += 1


def test_least_entropy_is_the_theorys_and_a_bound(atlases: Atlases) -> None:
    rng = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, 3, 5, 8, generator=rng, dtype=torch.float64)
    seen = torch.ones(2, 1, 5, 8, dtype=torch.bool)
    seen[:, :, 0, 3:] = False
    rows = centered_rows(logits, seen.double(), seen.double().sum(-1))
    found = least_entropy(rows.square, rows.count)
    centered = logits - logits.mean(-1, keepdim=True)
    np.testing.assert_allclose(
        found[:, :, 1:].numpy(), minimum_entropy(centered[:, :, 1:].norm(dim=-1).numpy(), 8), rtol=1e-10
    )
    shown = logits.masked_fill(~seen, -torch.inf).softmax(-1)
    entropy = -(shown * shown.clamp(min=1e-300).log()).sum(-1)
    assert (found <= entropy + 1e-9).all()
    heads = atlases.family("llama").heads
    assert (heads["least_entropy"] <= heads["entropy"] + 1e-9).all()
    assert atlases.family("gpt_oss").heads["least_entropy"].isna().all()  # heads with a learned sink


def test_observed_rho_by_hand() -> None:
    """Rows of the last quarter: (b - mean + 1) / T in [0, 1], counted by the key's place."""
    length, skip = 32, 1
    rng = torch.Generator().manual_seed(2)
    q, k = (4 * torch.randn(3, 2, length, 4, generator=rng) for _ in range(2))
    view = AttentionView(q, k, k, scale=0.5, causal=True)
    stream = Stream(AttentionStatistics(skip, length))
    stream.update(0, view)
    hits, counts = np.zeros((2, PLACES)), np.zeros((2, PLACES))
    for batch in range(3):
        for head in range(2):
            for row in range(24, 32):
                logits = 0.5 * (k[batch, head, skip : row + 1] @ q[batch, head, row]).double().numpy()
                t = len(logits)
                share = (logits - logits.mean() + 1) / t
                for key in range(t):
                    place = key * PLACES // t
                    hits[head, place] += 0 <= share[key] <= 1
                    counts[head, place] += 1
    np.testing.assert_allclose(stream.finish()["rho"][0].numpy(), hits / counts, atol=1e-6)
    assert float(stream.finish()["rho_keys"][0, 0]) == pytest.approx(27.5)


class TestTables:
    def test_propagation_of_every_head(self, atlases: Atlases) -> None:
        atlas = atlases.family("gpt2")
        table = lens.propagation_table(atlas)
        assert len(table) == 18 * PLACES
        for column in ("observed", "predicted", "predicted_data"):
            assert table[column].between(0, 1).all()
        layers = lens.layer_table(atlas)
        regimes = layers[["late", "middle", "early", "uniform", "vanishing"]].to_numpy().sum()
        assert regimes == atlas.heads["xi"].notna().sum() > 0
        assert layers["rank_one_distance"].between(0, 1).all()

    def test_a_text_without_last_tokens_has_no_observed_rho(self, atlases: Atlases) -> None:
        atlas = atlases.family("bert")
        assert lens.propagation_table(atlas)["observed"].isna().all()

    def test_the_error_names_the_missing_stream(self) -> None:
        with pytest.raises(arm.ArmillaryError, match="stream 'attention'"):
            lens.propagation_table(arm.scan(sample_model("gpt2"), FAMILY_TOKENS, streams=("positions",)))

    def test_weights_alone_have_regimes(self) -> None:
        heads = arm.weigh(sample_model("gpt2"), matrices=False).heads
        known = heads[heads["xi"].notna()]
        assert known["regime"].isin(["late", "middle", "early", "uniform", "vanishing"]).all()
        assert len(known) > 0
        assert heads.drop(known.index)["regime"].isna().all()


def test_equal_queries_and_keys_localize() -> None:
    """W_q = W_k with a large trace: attention to itself, the middle regime."""
    model = sample_model("gpt2")
    with torch.no_grad():
        for block in model.transformer.h:
            w = block.attn.c_attn.weight
            w[:, 48:96] = w[:, :48]
    heads = arm.weigh(model, matrices=False).heads
    assert (heads["xi"] > 0).all()
    assert (heads["regime"] == "middle").sum() + (heads["regime"] == "late").sum() == len(heads)
    assert heads["qk_symmetric_share"].min() > 0.999


def test_the_command(tmp_path: Path, atlases: Atlases) -> None:
    atlas, page = atlases.folder(arm.bundled("llama"), length=32, sequences=24), tmp_path / "page.html"
    run = CliRunner().invoke(app, ["localization", str(atlas), "--json", "--html", str(page)])
    assert run.exit_code == 0, run.output
    assert len(json.loads(run.stdout)) == 6
    assert "Which keys propagate a signal" in page.read_text(encoding="utf-8")
    one = CliRunner().invoke(app, ["localization", str(atlas), "--head", "1.2", "--json"])
    assert len(json.loads(one.stdout)) == PLACES
