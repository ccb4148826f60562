"""Figures show the numbers of the lenses, and the dossier says what the matrices say."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary import figures
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.samples import sample_model
from armillary.atlas.atlas import Atlas
from armillary.cli import app
from armillary.lenses.decomposition import decompose
from armillary.lenses.geometry import dissect
from armillary.lenses.positional import context_coordinates, positional_arrays
from armillary.probe.dossier import dossier, parse_head
from armillary.probe.terms import TextConstituents, text_constituents
from conftest import Atlases

TEXT = "Return a list of the words in the string, using sep as the delimiter."


@pytest.fixture(scope="module")
def folder(atlases: Atlases) -> Path:
    return atlases.folder(arm.bundled("llama"), length=32, sequences=24, second_pass=24)


@pytest.fixture(scope="module")
def atlas(folder: Path) -> Atlas:
    return arm.open_atlas(folder)


@pytest.fixture(scope="module")
def found(atlas: Atlas) -> TextConstituents:
    model = arm.load(arm.bundled("llama"), dtype=torch.float32)
    return text_constituents(atlas, model, load_tokenizer(arm.bundled("llama")), 1, 1, TEXT)


def run(*arguments: str | Path) -> str:
    shown = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "160"}, catch_exceptions=False)
    assert shown.exit_code == 0
    return shown.output


class TestFigures:
    def test_each_is_drawn_from_its_lens(self, atlas: Atlas) -> None:
        arrays = positional_arrays(atlas)
        np.testing.assert_array_equal(figures.gram_map(arrays, 3).data[0].z, arrays["gram"].sel(layer=3))
        np.testing.assert_array_equal(figures.spiral(arrays, 2).data[0].x, arrays["coordinates"].sel(layer=2)[:, 0])
        assert len(figures.singular_values(arrays).data) == 7
        np.testing.assert_allclose(figures.dct_map(arrays, 1).data[0].z, np.abs(arrays["dct"].sel(layer=1)[:10, :10]))
        documents = atlas.group("corpus")["document"].to_numpy()
        whole = figures.context_gram(decompose(atlas, 2), documents, 2).data[0].z
        assert whole.shape == (31 + 24, 31 + 24)
        np.testing.assert_allclose(whole[:31, :31], arrays["gram"].sel(layer=2), atol=1e-12)
        maps = figures.layer_maps(arrays, {"pos": atlas.layers["pos_norm"].to_numpy()})
        np.testing.assert_allclose(maps.data[1].z.diagonal(), 1)
        ratio = atlas.group("geometry")["argmax_ratio"].to_numpy()
        np.testing.assert_array_equal(figures.argmax_map(ratio).data[0].z, ratio)

    def test_sampled_contexts_sum_with_the_parts_to_the_hidden_states(self, atlas: Atlas) -> None:
        sampled = context_coordinates(atlas, 2)
        assert sampled["coordinates"].shape == (24 * 8, 3)
        model = arm.load(arm.bundled("llama"), dtype=torch.float32)
        tokens = torch.from_numpy(atlas.group("corpus")["tokens"].to_numpy()[:2].copy())
        with torch.no_grad():
            h = model(tokens, output_hidden_states=True).hidden_states[2]
        vectors = atlas.group("sample")["vector"].sel(layer=2).to_numpy()
        at = atlas.group("sample")["position"].to_numpy().tolist()
        np.testing.assert_allclose(vectors[:2], h[:, at], atol=1e-5)
        assert len(figures.contexts(sampled, 2).data[0].x) == 24 * 8

    def test_six_panels_with_tokens_on_the_axes(self, found: TextConstituents) -> None:
        for with_mean in (True, False):
            figure = figures.constituents(found, with_mean=with_mean)
            assert len(figure.data) == 6
            attention = next(trace for trace in figure.data if "attention" in trace.hovertemplate)
            np.testing.assert_allclose(np.nan_to_num(attention.z), found.attention, atol=1e-12)
            assert attention.x[0] == f"0 {found.tokens[0]!r}"
        assert found.main_positional == "mean_mean"  # rotary: position enters through the rotated mean

    def test_a_dissection(self, atlas: Atlas) -> None:
        anatomy = arm.describe(arm.bundled("llama"))
        cut = dissect(atlas, anatomy, 1, 1)
        weights = anatomy.weights(1)
        w = (weights.q[1].double() @ weights.k[1].double().T).numpy() * anatomy.layers[1].scale
        np.testing.assert_allclose(cut.diagonal, w.diagonal())
        assert 0 <= cut.corner_share <= 1
        assert len(figures.dissection(cut, 1, 1).data) == 2

    def test_a_planted_positional_block_is_found(self, atlas: Atlas) -> None:
        """W made of the first right singular vectors of P alone has all its off-diagonal energy in the corner."""
        model = arm.load(arm.bundled("llama"), dtype=torch.float32)
        vectors = np.linalg.svd(decompose(atlas, 0, "input").pos)[2]
        anatomy = arm.describe(model)
        with torch.no_grad():
            for part in ("q", "k"):
                getattr(anatomy.weights(0), part)[2].copy_(torch.from_numpy((vectors[:24].T * 10).copy()))
        assert dissect(atlas, anatomy, 0, 2, k=24).corner_share > 0.75  # not 1: the diagonal is taken out first
        assert dissect(atlas, arm.describe(arm.bundled("llama")), 0, 2, k=24).corner_share < 0.5

    def test_a_page_needs_no_network_and_reads_nothing_as_html(self, found: TextConstituents, tmp_path: Path) -> None:
        figures.write_page(tmp_path / "a.html", "<script>alert(1)</script>", [figures.constituents(found)], "<b>x</b>")
        page = (tmp_path / "a.html").read_text()
        assert "<script>alert(1)" not in page
        assert "<b>x</b>" not in page
        assert 'src="http' not in page


class TestGeometry:
    def test_argmax_ratio_by_hand(self) -> None:
        from armillary.lenses.constituents import means_of

        tokens = torch.randint(5, 99, (6, 12), generator=torch.Generator().manual_seed(0))
        model = sample_model("gpt2")
        atlas = arm.scan(model, tokens)
        means, weights = means_of(atlas), arm.describe(model).weights(1)
        both = means.mean[1] + means.pos[1]
        assert weights.q_bias is not None
        assert weights.k_bias is not None
        q = both @ weights.q[2].double() + weights.q_bias[2].double()
        k = both @ weights.k[2].double() + weights.k_bias[2].double()
        logits = (q @ k.T).numpy()[1:, 1:]
        hits = [np.argmax(logits[t, : t + 1]) == t for t in range(11)]
        assert atlas.heads.query("layer == 1 and head == 2")["argmax_ratio"].item() == pytest.approx(np.mean(hits))

    def test_the_mean_logits_are_the_models(self, atlas: Atlas) -> None:
        """Where both see, the second pass's mean logits equal those of the first."""
        ours = atlas.group("constituents")["mean_logits"].to_numpy()
        theirs = atlas.group("attention")["logit_matrix"].to_numpy()[..., 1:, 1:]
        both = np.isfinite(ours) & np.isfinite(theirs)
        assert both.sum() == 36 * 31 * 32 // 2
        np.testing.assert_allclose(ours[both], theirs[both], atol=1e-4)


class TestShow:
    def test_the_dossier(self, folder: Path, found: TextConstituents, tmp_path: Path) -> None:
        shown = run("show", folder, "1.1", "--text", TEXT, "--html", tmp_path / "a.html")
        assert "mean - mean" in shown
        assert "looks at" in shown
        assert (tmp_path / "a.html").stat().st_size > 1_000_000
        told = dossier(arm.open_atlas(folder), 1, 1, found)
        last = told.looks.iloc[-1]
        j = int(found.attention[-1].argmax())
        assert last["looks at"] == f"{j} {found.tokens[j]!r}"
        row = found.logits[-1]
        spoken = last[[c for c in told.looks.columns if c.startswith("for it")]].sum()
        assert spoken == pytest.approx(row[j] - row.mean(), abs=1e-3)

    def test_without_a_text_no_model_is_needed(self, folder: Path) -> None:
        assert "Head 0.5" in run("show", folder, "0.5")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["9.0"], "no head 9.0: this model has layers 0 to 5 with heads 0 to 5"),
            (["one"], "write LAYER.HEAD"),
            (["0.0", "--html", "x.html"], "give one with --text"),
            (["0.0", "--text", "word " * 200], "may have 2 to 32"),
            (["0.0", "--text", "a b", "--model", "nowhere/at/all"], "name it with `model`"),
        ],
    )
    def test_mistakes(self, folder: Path, arguments: list[str], said: str) -> None:
        with pytest.raises(arm.ArmillaryError, match=said):
            run("show", folder, *arguments)

    def test_another_model_is_refused(self, folder: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match="other weights"):
            run("show", folder, "0.0", "--text", "a b", "--model", arm.bundled("gpt2"))

    def test_names_of_heads(self) -> None:
        assert parse_head("12.7") == (12, 7)

    def test_json_of_a_figure_holds_its_data(self, found: TextConstituents) -> None:
        assert json.loads(figures.constituents(found).to_json())["data"]
