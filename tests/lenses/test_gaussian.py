"""The Gaussian lens: moments by lag are exact, and predictions hold for Gaussian data."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.cli import app
from armillary.lenses import gaussian as lens
from armillary.observe.view import AttentionView
from armillary.streams.pairs import PairMoments
from armillary.streams.registry import DEFAULT_STREAMS
from armillary.streams.similarity import OutputRank, TokenSimilarity
from armillary.streams.stream import Stream
from armillary.theory.gaussian import entropy, shrunk
from conftest import FAMILY_TOKENS, Atlases

TOKENS = torch.randint(3, 99, (14, 20), generator=torch.Generator().manual_seed(0))
ROTARY = ("llama", "gptj", "gpt_neox", "llama/yarn", "phi3/longrope", "qwen3")


def all_views(model: torch.nn.Module) -> dict[int, AttentionView]:
    views: dict[int, AttentionView] = {}
    with torch.no_grad(), arm.Tap(model, lambda view: views.setdefault(view.layer, view)):
        model(input_ids=FAMILY_TOKENS)
    return views


@pytest.mark.parametrize("name", [*ROTARY, "gpt2", "falcon/alibi", "bert/decoder"])
def test_moments_by_lag_equal_two_passes_over_all_products(name: str, atlases: Atlases) -> None:
    """Means, variances and the mean's identity, for every kind of position, against q.k computed directly."""
    table, views = lens.logit_predictions(atlases.family(name)), all_views(sample_model(name))
    np.testing.assert_allclose(table["mean"], table["predicted_mean"], atol=1e-9)
    for layer, view in views.items():
        group = view.heads // view.k.shape[1]
        q, k = view.q.double(), view.k.double().repeat_interleave(group, 1)
        for lag in (0, 1, 4):
            products = view.scale * (q[:, :, 1 + lag :] * k[:, :, 1 : k.shape[2] - lag]).sum(-1)
            part = table[(table["layer"] == layer) & (table["lag"] == lag)]
            np.testing.assert_allclose(part["mean"], products.mean((0, 2)), atol=1e-5)
            np.testing.assert_allclose(part["variance"], products.var((0, 2), correction=0), rtol=1e-4)


def test_merged_equals_unmerged() -> None:
    rng = torch.Generator().manual_seed(0)
    views = []
    for n in (3, 1, 5):
        q, k, v = (torch.randn(n, heads, 9, 4, generator=rng) for heads in (4, 2, 2))
        views.append(AttentionView(q, k, v, scale=0.5))
    q, k, v = (torch.cat([getattr(view, part) for view in views]) for part in "qkv")
    whole = AttentionView(q, k, v, scale=0.5)
    for statistic in (PairMoments((0, 1, 2), (None,), 1, 9), OutputRank(1)):
        parts, once = Stream(statistic), Stream(statistic)
        for view in views:
            parts.update(0, view)
        once.update(0, whole)
        for name, value in once.finish().items():
            torch.testing.assert_close(parts.finish()[name], value, rtol=1e-10, atol=1e-12)


def test_prediction_holds_for_gaussian_queries_and_keys(record_property: Callable[..., None]) -> None:
    """Correlated, non-symmetric, with means: predicted and simulated variances agree within 4 standard errors."""
    rng = np.random.default_rng(0)
    e, n = 6, 60_000
    mix = rng.standard_normal((2 * e, 2 * e)) / 2
    both = rng.standard_normal((n, 2 * e)) @ mix + rng.standard_normal(2 * e)
    q, k = (torch.from_numpy(part.copy())[:, None, None] for part in (both[:, :e], both[:, e:]))
    stream = Stream(PairMoments((0,), (None,), 0, 1))
    stream.update(0, AttentionView(q, k, k, scale=1.0))
    found = {name: value[0, 0].numpy() for name, value in stream.finish().items() if name != "scale"}
    from armillary.theory.bilinear import product_mean, product_variance

    mean, cov = both.mean(0), np.cov(both.T, bias=True)
    np.testing.assert_allclose(found["mean_q"][0], mean[:e])
    np.testing.assert_allclose(found["covariance_kq"][0], cov[e:, :e], atol=1e-12)
    products = (both[:, :e] * both[:, e:]).sum(1)
    truth = product_mean(mean[:e], mean[e:], cov[e:, :e])
    assert found["logit_mean"][0] == pytest.approx(float(truth), abs=1e-9)
    variance = product_variance(mean[:e], mean[e:], cov[:e, :e], cov[e:, e:], cov[e:, :e])
    error = np.sqrt(np.var(np.square(products - products.mean())) / n)
    record_property("standard_errors", float((found["logit_variance"][0] - variance) / error))
    assert abs(found["logit_variance"][0] - variance) < 4 * error
    without = product_variance(mean[:e], mean[e:], cov[:e, :e], cov[e:, e:], np.zeros((e, e)))
    assert abs(found["logit_variance"][0] - without) > 4 * error  # the cross-covariance is needed


class TestSimilarity:
    def test_equal_tokens_and_opposite_tokens(self) -> None:
        same = torch.ones(2, 5, 3)
        stream = Stream(TokenSimilarity(skip=1))
        stream.update(0, same)
        assert float(stream.finish()["token_cosine"][0]) == pytest.approx(1)
        assert float(stream.finish()["rank_one_distance"][0]) == pytest.approx(0, abs=1e-7)
        opposite = Stream(TokenSimilarity(skip=0))
        opposite.update(0, torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]))
        assert float(opposite.finish()["token_cosine"][0]) == pytest.approx(-1)
        assert float(opposite.finish()["rank_one_distance"][0]) == pytest.approx(1)

    def test_mean_cosine_equals_all_pairs(self) -> None:
        h = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
        stream = Stream(TokenSimilarity(skip=2))
        stream.update(0, h)
        unit = torch.nn.functional.normalize(h[:, 2:], dim=-1)
        cosines = unit @ unit.mT
        off = ~torch.eye(5, dtype=torch.bool)
        assert float(stream.finish()["token_cosine"][0]) == pytest.approx(float(cosines[:, off].mean()))

    def test_a_head_that_sees_one_value_has_output_of_rank_one(self) -> None:
        v = torch.randn(2, 1, 6, 4, generator=torch.Generator().manual_seed(2))
        q = torch.zeros(2, 1, 6, 4)
        uniform = AttentionView(q, q, v, scale=1.0)  # everybody sees everything alike
        stream = Stream(OutputRank(skip=1))
        stream.update(0, uniform)
        assert float(stream.finish()["rank_one_distance"][0]) == pytest.approx(0, abs=1e-6)


class TestLayers:
    def test_measures_of_isotropic_noise(self) -> None:
        """Embeddings drawn as white noise: full effective rank, isotropy near 1, no information between tokens."""
        model = sample_model("gpt2")
        with torch.no_grad():
            model.transformer.wpe.weight.zero_()
            model.transformer.wte.weight.normal_(generator=torch.Generator().manual_seed(3))
            model.transformer.h[0].ln_1.weight.fill_(1.0)
            model.transformer.h[0].ln_1.bias.zero_()
        tokens = torch.randint(3, 99, (60, 30), generator=torch.Generator().manual_seed(4))
        atlas = arm.scan(model, tokens, streams=("positions", "attention", "covariance", "lags"))
        row = lens.layer_table(atlas, shrinkage=0.0).iloc[0]
        d = atlas.anatomy.d_model
        assert row["radius"] == pytest.approx(d**0.5, rel=0.01)
        assert row["radius_spread"] < 0.01
        assert 0.5 * d < row["effective_rank"] <= d - 1 + 1e-6  # layer norm takes one direction
        assert row["mi_1"] < 0.2
        assert row["mi_1"] >= 0

    def test_entropy_is_that_of_the_shrunk_covariance(self, atlases: Atlases) -> None:
        atlas = atlases("llama", TOKENS)
        covariance = atlas.group("input")["covariance"].sel(layer=1).to_numpy()
        for amount in (0.05, 0.5):
            assert lens.layer_table(atlas, shrinkage=amount)["entropy"][1] == pytest.approx(
                entropy(shrunk(covariance, amount))
            )
        assert lens.layer_table(atlas)["mixed_tokens"].notna().all()

    def test_copied_tokens_share_everything(self) -> None:
        rng = np.random.default_rng(0)
        cov = np.cov(rng.standard_normal((500, 4)).T)
        assert lens.token_information(cov, cov, cov, 0.0, 4) == np.inf
        assert lens.token_information(cov, cov, np.zeros((4, 4)), 0.0, 4) == pytest.approx(0, abs=1e-12)
        more, less = (lens.token_information(cov, cov, 0.9 * cov, shrink, 4) for shrink in (0.0, 0.3))
        assert more == pytest.approx(-0.5 * 4 * np.log(1 - 0.81))
        assert less < more

    def test_unrelated_tokens_show_the_floor_and_learned_positions_do_no_harm(self) -> None:
        """Information is that of the pairs themselves: never an error, and for random tokens about the floor."""
        tokens = torch.randint(3, 99, (64, 16), generator=torch.Generator().manual_seed(5))
        streams = ("positions", "covariance", "lags")
        atlas = arm.scan(sample_model("gpt2"), tokens, streams=streams)
        table = lens.layer_table(atlas, shrinkage=0.0, components=6)
        assert table["mi_1"].notna().all()
        found = atlas.group("input").sel(layer=0)
        for name in ("earlier", "later"):
            values = np.linalg.eigvalsh(found[f"lag_covariance_{name}"].to_numpy()[0])
            assert values.min() > -1e-8 * values.max()  # products of single precision, added in double
        rows = lens.layer_table(arm.scan(sample_model("llama"), tokens, streams=streams), 0.0)
        assert rows["mi_4"][0] == pytest.approx(rows["mi_floor"][0], rel=0.5)

    def test_the_error_names_the_missing_streams(self, atlases: Atlases) -> None:
        atlas = atlases("llama", TOKENS)
        with pytest.raises(arm.ArmillaryError, match=f"`streams={','.join(DEFAULT_STREAMS)},lags"):
            lens.logit_predictions(atlas)
        bare = arm.scan(sample_model("llama"), TOKENS, streams=("positions",))
        with pytest.raises(arm.ArmillaryError, match="`streams=positions,covariance"):
            lens.layer_table(bare)
        for wrong in (dict(shrinkage=1.5), dict(components=0)):
            with pytest.raises(arm.ArmillaryError, match=r"shrinkage|components"):
                lens.layer_table(atlas, **wrong)


@pytest.mark.slow
def test_a_real_model_side_by_side(record_property: Callable[..., None], tmp_path: Path, atlases: Atlases) -> None:
    """On stories15M the Gaussian formula explains nearly all differences of the logits' variances between tokens."""
    out = atlases.trained("stories15M").path.parent
    run = CliRunner().invoke(app, ["gaussian", str(out), "--json"])
    rows = json.loads(run.stdout)
    fits = [row["variance_fit"] for row in rows]
    record_property("explained_fraction", str([round(fit, 3) for fit in fits]))
    assert min(fits) > 0.85
    assert rows[0]["self_variance_ratio"] > 1.5  # a token with itself: norms fix what a Gaussian leaves free
    assert [row["mi_1"] > row["mi_8"] for row in rows] == [True] * 6
    page = tmp_path / "page.html"
    one = CliRunner().invoke(app, ["gaussian", str(out), "--head", "1.2", "--html", str(page), "--json"])
    assert [row["lag"] for row in json.loads(one.stdout)] == [0, 1, 2, 4, 8, 16]
    assert "Mutual information of two tokens by distance" in page.read_text(encoding="utf-8")
    wrong = CliRunner().invoke(app, ["gaussian", str(out), "--head", "9.9"])
    assert "no head 9.9" in str(wrong.exception)
