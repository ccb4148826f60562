"""The rotary lens: shares that add to 1, changes by hand, heads and frequencies of real models, and the sweep."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.description import Rotary
from armillary.anatomy.samples import DISTINCT, sample_config, sample_model
from armillary.cli import app
from armillary.interventions import rotary
from armillary.lenses import rotary as lens
from armillary.observe.view import row_centered
from armillary.probe.sweep import block_loss, parse_sweep, sweep
from armillary.streams.chunks import pairs
from conftest import FAMILY_TOKENS, Atlases, shared

TOKENS = torch.randint(3, 99, (6, 18), generator=torch.Generator().manual_seed(0))
STREAMS = ("attention", "chunks")
ROTARY = [
    name
    for name in DISTINCT
    if len(
        {
            layer.position.width
            for layer in arm.describe(sample_config(name)).layers
            if isinstance(layer.position, Rotary)
        }
    )
    == 1
]
"""Samples whose layers rotate equally many channels."""


@pytest.mark.parametrize("name", ROTARY)
def test_shares_add_to_one_and_changes_equal_those_of_frozen_frequencies(name: str, atlases: Atlases) -> None:
    """Against every pair of every row, with frequencies frozen one at a time in the logits themselves."""
    model, atlas = sample_model(name), atlases.family(name)
    table = lens.frequency_table(atlas)
    sums = table.groupby(["layer", "head"])["share"].sum()
    np.testing.assert_allclose(sums, 1 - atlas.heads["share_bias"].fillna(0).to_numpy()[: len(sums)], atol=1e-6)
    views: dict[int, arm.AttentionView] = {}
    with torch.no_grad(), arm.Tap(model, lambda view: views.setdefault(view.layer, view)):
        model(input_ids=FAMILY_TOKENS)
    view, layer = views[0], arm.describe(model).layers[0]
    if not isinstance(layer.position, Rotary):
        return
    length = FAMILY_TOKENS.shape[1]
    position = layer.position.at(length)
    from dataclasses import replace

    from armillary.observe.rebuild import rotate

    plain, back = replace(position, factor=1.0), -torch.arange(length)
    q, k = view.q.double(), view.k.double().repeat_interleave(layer.group, 1)
    visible = view.visible().clone()
    visible[..., :1] = False
    visible = visible.expand(len(q), -1, -1, -1).clone()
    visible[:, :, :1] = False
    logits = view.scale * q @ k.mT
    bottom = row_centered(logits, visible).square().sum((0, 2, 3))
    rotated = [pairs(position, part) for part in (q, k)]
    frozen = [pairs(position, rotate(plain, part, back)) for part in (q, k)]
    change = (
        atlas.group("rotary")["change"].to_numpy()[0] / atlas.group("attention")["logit_square"].to_numpy()[0][:, None]
    )
    part = table[table["layer"] == 0]
    for f in (0, len(position.frequencies) - 1):
        term = view.scale * rotated[0][..., f, :] @ rotated[1][..., f, :].mT
        frozen_term = view.scale * frozen[0][..., f, :] @ frozen[1][..., f, :].mT
        expected = row_centered(term - frozen_term, visible).square().sum((0, 2, 3)) / bottom
        np.testing.assert_allclose(change[:, f], expected, rtol=1e-4, atol=1e-7)
        share = (term * row_centered(logits, visible)).sum((0, 2, 3)) / bottom
        np.testing.assert_allclose(part[part["frequency"] == f]["share"], share, rtol=1e-4, atol=1e-6)


def test_tightness_and_products_by_hand(atlases: Atlases) -> None:
    model, atlas = sample_model("llama"), atlases("llama", TOKENS, streams=STREAMS)
    views: dict[int, arm.AttentionView] = {}
    with torch.no_grad(), arm.Tap(model, lambda view: views.setdefault(view.layer, view)):
        model(input_ids=TOKENS)
    view = views[1]
    q, k = view.q.double(), view.k.double().repeat_interleave(3, 1)
    cosine = torch.nn.functional.cosine_similarity(q, k, dim=-1)[:, :, 1:].mean((0, 2))
    previous = torch.nn.functional.cosine_similarity(q[:, :, 2:], k[:, :, 1:-1], dim=-1).mean((0, 2))
    heads = atlas.heads[atlas.heads["layer"] == 1]
    np.testing.assert_allclose(heads["self_cosine"], cosine, rtol=1e-5)
    np.testing.assert_allclose(heads["previous_cosine"], previous, rtol=1e-5)
    rotary_arrays = atlas.group("rotary").sel(layer=1)
    products = view.scale * (q @ k.mT)
    first = products[:, :, 1:, 0].mean((0, 2))
    np.testing.assert_allclose(rotary_arrays["first_product"].sum("frequency"), first, rtol=1e-4, atol=1e-6)
    rows = [products[:, :, i, 1 : i + 1].mean(-1) for i in range(1, 18)]
    np.testing.assert_allclose(
        rotary_arrays["other_product"].sum("frequency"), torch.stack(rows).mean((0, 1)), rtol=1e-4, atol=1e-6
    )
    table = lens.frequency_table(atlas)
    assert (table["self_tightness"].abs() <= 1).all()


def test_channels_that_are_not_rotated_have_their_own_row(atlases: Atlases) -> None:
    atlas = atlases.family("gpt_neox")
    table = lens.frequency_table(atlas)
    rest = table[table["frequency"].isna()]
    assert len(rest) == 18
    assert rest["share"].abs().max() > 0.01
    np.testing.assert_allclose(atlas.heads["still_share"], rest["share"])
    assert atlases.family("llama").heads["still_share"].isna().all()


def test_frequencies_are_those_of_the_texts_length() -> None:
    """If the scaling depends on the length, the table has the frequencies for the scanned length."""
    model = sample_model("llama/dynamic")
    tokens = torch.randint(3, 99, (4, 64), generator=torch.Generator().manual_seed(1))
    table = lens.frequency_table(arm.scan(model, tokens, streams=STREAMS))
    expected = arm.describe(model).layers[0].position.at(64).frequencies  # type: ignore[union-attr]
    np.testing.assert_allclose(table["radians"][: len(expected)], expected, rtol=1e-6)


class TestRecommendation:
    def test_costs_fall_to_zero_when_all_frequencies_rotate(self, atlases: Atlases) -> None:
        atlas = atlases("llama", TOKENS, streams=STREAMS)
        costs = lens.truncation_costs(atlas)
        assert (np.diff(costs, axis=-1) <= 1e-12).all()
        assert costs[..., -1].max() == 0
        np.testing.assert_allclose(costs[..., 0], lens.truncation_costs(atlas, reversed=True)[..., 0])
        all_of_it = lens.recommended_p(atlas, share=1.0)
        assert all_of_it.p == 1
        some = lens.recommended_p(atlas, share=0.5)
        assert some.kept <= all_of_it.kept
        assert some.cost <= 0.5 + 1e-9
        assert some.worst_cost >= some.cost
        with pytest.raises(arm.ArmillaryError, match="cannot be kept"):
            lens.recommended_p(atlas, share=0.0)

    def test_a_model_without_rotary_encoding_raises_an_error(self, atlases: Atlases) -> None:
        atlas = atlases.family("gpt2")
        with pytest.raises(arm.ArmillaryError, match="no rotary encoding"):
            lens.frequency_table(atlas)
        assert atlas.heads["high_freq_share"].isna().all()
        with pytest.raises(arm.ArmillaryError, match=r"Alibi"):
            lens.recommended_p(atlases.family("bloom"))
        bare = arm.scan(sample_model("llama"), TOKENS, streams=("attention",))
        with pytest.raises(arm.ArmillaryError, match="attention and chunks"):
            lens.frequency_table(bare)


class TestRealModels:
    @pytest.mark.parametrize("name", [pytest.param("stories15M", marks=pytest.mark.slow), "llama"])
    def test_previous_token_heads_use_high_frequencies(
        self, name: str, atlases: Atlases, record_property: Callable[..., None]
    ) -> None:
        heads = atlases.trained(name).heads
        correlation = float(spearmanr(heads["high_freq_share"], heads["prev_mass"]).statistic)
        record_property("rank_correlation", correlation)
        assert correlation > (0.6 if name == "stories15M" else 0.35)
        top = heads.sort_values("prev_mass").tail(3)["high_freq_share"]
        assert top.mean() > heads["high_freq_share"].mean() + 0.5 * heads["high_freq_share"].std()

    @pytest.mark.slow
    def test_the_sweep_on_stories(self, tmp_path: Path) -> None:
        """p = 1 is the model's own loss; freezing frequencies with small shares costs less than with large ones."""
        folder, page = shared("models/stories15M"), tmp_path / "page.html"
        corpus = shared("corpora/tinystories-sample-cs336.txt")
        asked = ["rope", str(folder), "--corpus", str(corpus), "--length", "64", "--sequences", "12"]
        run = CliRunner().invoke(app, [*asked, "--sweep", "p=1,0.75,0.5,0", "--json", "--html", str(page)])
        assert run.exit_code == 0, run.output
        rows = {row["p"]: row for row in json.loads(run.stdout)["settings"]}
        assert rows[1]["loss"] == rows[1]["reversed_loss"]
        assert rows[1]["predicted_cost"] == 0
        assert rows[0.75]["predicted_cost"] < 0.01 < rows[0.75]["reversed_cost"]
        assert rows[0.75]["loss"] < rows[1]["loss"] + 0.02
        assert rows[0.75]["reversed_loss"] > rows[1]["loss"] + 0.2
        assert rows[0.5]["loss"] < rows[0.5]["reversed_loss"]
        assert rows[0]["loss"] == pytest.approx(rows[0]["reversed_loss"])
        assert "p-RoPE with the fastest or the slowest frequencies" in page.read_text(encoding="utf-8")


def test_the_loss_at_p_1_is_the_models_own_and_zero_is_nope(atlases: Atlases) -> None:
    model, atlas = sample_model("llama"), atlases("llama", TOKENS, streams=STREAMS)
    found = sweep(model, atlas, "p", [1.0, 0.5, 0.0])
    own = block_loss(model, TOKENS.numpy())
    assert found.table["loss"][0] == own
    with torch.no_grad():
        theirs = float(model(input_ids=TOKENS, labels=TOKENS).loss)
    assert own == pytest.approx(theirs, rel=1e-5)
    with rotary(model, nope=True):
        assert found.table["loss"][2] == block_loss(model, TOKENS.numpy())
    assert list(found.table["kept"]) == [4, 2, 0]
    assert list(sweep(model, atlas, "base", [1e4, 1e6]).table.columns) == ["base", "loss"]


def test_the_commands_and_their_mistakes(tmp_path: Path, atlases: Atlases) -> None:
    atlas = atlases.folder(arm.bundled("llama"), length=32, sequences=24)
    page = tmp_path / "page.html"
    asked = ["frequencies", str(atlas)]
    whole = CliRunner().invoke(app, [*asked, "--json", "--html", str(page)])
    found = json.loads(whole.stdout)
    assert len(found["frequencies"]) == 36 * 12
    (best,) = found["recommended_p"]
    assert 0 < best["p"] <= 1
    assert best["kind"] == "global"
    assert "Which frequencies the layers use" in page.read_text(encoding="utf-8")
    text = "Return the value of <b>the key</b>."
    one = CliRunner().invoke(app, [*asked, "--head", "1.2", "--text", text, "--html", str(page)])
    assert "Recommended p" in one.stdout
    assert "<b>the key" not in page.read_text(encoding="utf-8").replace("\\u003cb\\u003e", "")
    for arguments, said in (
        ([*asked, "--text", "a"], "give --head and --html"),
        (["rope", str(arm.bundled("gpt2"))], "no rotary encoding"),
        (["rope", str(arm.bundled("llama")), "--sweep", "q=1"], "write it as in p=1"),
        (["rope", str(arm.bundled("llama")), "--sweep", "p=one"], "not a number"),
    ):
        assert said in str(CliRunner().invoke(app, arguments).exception)
    assert parse_sweep("base=1e4,1e6") == ("base", [1e4, 1e6])
