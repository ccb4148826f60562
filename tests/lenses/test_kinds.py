"""Window and global layers, each with its own rotary base, are distinguished in tables, figures and reports."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.description import Rotary
from armillary.anatomy.samples import sample_model
from armillary.atlas.atlas import Atlas
from armillary.cli import app
from armillary.errors import ArmillaryError
from armillary.figures.rotary import frequencies_by_kind
from armillary.lenses import rotary as lens
from armillary.lenses.kinds import kind_table, kinds_of, layer_kinds, spans
from armillary.probe.sweep import block_loss, sweep
from armillary.report import report_html
from armillary.report.anatomy import local_and_global, sentences_of
from armillary.report.sentences import stands_out
from conftest import FAMILY_TOKENS, Atlases

WINDOW, GLOBAL = 1e3, 1e5
"""The bases of the sample's layers 0 and 2 (window) and 1 (global)."""


@pytest.fixture(scope="module")
def gemma(atlases: Atlases) -> Atlas:
    return atlases.family("gemma3_text")


def with_layers(atlas: Atlas, length: int | None = None, **changes: Any) -> Any:
    """The atlas with these changes to every layer's description, or with texts of this length."""
    anatomy = replace(atlas.anatomy, layers=tuple(replace(layer, **changes) for layer in atlas.anatomy.layers))
    settings = {**atlas.settings, "length": length or atlas.settings["length"]}
    return SimpleNamespace(anatomy=anatomy, kind=atlas.kind, attrs=atlas.attrs, settings=settings, heads=atlas.heads)


class TestFrequencies:
    def test_rows_name_the_base_and_one_number_is_one_frequency_within_a_base(self, gemma: Atlas) -> None:
        table = lens.frequency_table(gemma)
        assert set(table.loc[table["layer"] == 1, "base"]) == {GLOBAL}
        assert set(table.loc[table["layer"] != 1, "base"]) == {WINDOW}
        assert set(table.loc[table["layer"] == 1, "kind"]) == {"global"}
        assert (table.groupby(["base", "frequency"])["radians"].nunique() == 1).all()
        assert (table.groupby("frequency")["radians"].nunique() == 2).sum() >= 5  # the number alone would mix two bases

    def test_shares_of_a_head_add_to_one_in_every_kind(self, gemma: Atlas) -> None:
        table = lens.frequency_table(gemma)
        sums = table.groupby(["kind", "base", "layer", "head"])["share"].sum()
        assert len(sums) == 18
        assert sums.to_numpy() == pytest.approx(1.0, abs=1e-6)

    def test_every_kind_has_its_own_p(self, gemma: Atlas) -> None:
        change = lens.frequency_arrays(gemma).change
        for (kind, best), layers in zip(lens.recommended_by_kind(gemma, 0.9), ([0, 2], [1]), strict=True):
            assert list(kind.layers) == layers
            costs = [change[layers, :, kept:].sum(-1).mean() for kept in range(change.shape[-1] + 1)]
            assert best.kept == next(kept for kept, cost in enumerate(costs) if cost <= 0.1)
            assert best.cost == pytest.approx(costs[best.kept])
            assert int(best.worst_head.split(".")[0]) in layers

    def test_a_figure_for_every_kind(self, gemma: Atlas) -> None:
        window, everywhere = frequencies_by_kind(lens.frequency_table(gemma))
        assert "window layers (base 1,000)" in window.layout.title.text
        assert list(window.data[0].y) == ["0", "2"]
        assert "global layers (base 100,000)" in everywhere.layout.title.text
        assert list(everywhere.data[0].y) == ["1"]

    def test_the_command_distinguishes_them(self, gemma: Atlas) -> None:
        folder = str(gemma.path.parent)
        found = json.loads(CliRunner().invoke(app, ["frequencies", folder, "--json"]).stdout)
        assert [(best["kind"], best["base"], best["layers"]) for best in found["recommended_p"]] == [
            ("window", WINDOW, [0, 2]),
            ("global", GLOBAL, [1]),
        ]
        assert {row["base"] for row in found["frequencies"]} == {WINDOW, GLOBAL}
        printed = " ".join(CliRunner().invoke(app, ["frequencies", folder]).stdout.split())
        assert "window layers (base 1,000): 0, 2" in printed
        assert "Recommended p of the global layers (base 100,000, linear):" in printed

    def test_a_chunk_of_zeros_has_no_tightness_and_raises_no_warning(self, tmp_path: Path) -> None:
        model = sample_model("llama")
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight[[0, 4]] = 0.0  # the fastest pair of the first key head
        table = lens.frequency_table(arm.scan(model, FAMILY_TOKENS, out=tmp_path / "atlas"))
        silent = table[(table["layer"] == 0) & (table["head"] < 3) & (table["frequency"] == 0)]
        assert (silent["k_norm"] == 0).all()
        assert silent["self_tightness"].isna().all()
        assert table.drop(silent.index)["self_tightness"].notna().all()

    def test_unequal_widths_raise_an_error(self, gemma: Atlas) -> None:
        other = with_layers(gemma)
        first, second, third = gemma.anatomy.layers
        assert isinstance(second.position, Rotary)
        narrow = replace(second, position=replace(second.position, frequencies=(1.0, 0.1)))
        other.anatomy = replace(gemma.anatomy, layers=(first, narrow, third))
        other.has = lambda group: False
        with pytest.raises(ArmillaryError, match="unequal numbers of channels"):
            lens.frequency_arrays(other)


class TestIntervention:
    def test_only_layers_with_the_base_change(self) -> None:
        model = sample_model("gemma3_text")
        tokens = FAMILY_TOKENS.numpy()
        plain = block_loss(model, tokens)
        buffers = {name: value.clone() for name, value in model.named_buffers() if name.endswith("inv_freq")}
        with arm.interventions.rotary(model, nope=True, of_base=WINDOW):
            changed = {name for name, value in model.named_buffers() if name in buffers and not value.any()}
            assert {name.rsplit(".", 1)[-1] for name in changed} == {"sliding_attention_inv_freq"}
            window = block_loss(model, tokens)
        with arm.interventions.rotary(model, nope=True, of_base=GLOBAL):
            everywhere = block_loss(model, tokens)
        with arm.interventions.rotary(model, nope=True):
            both = block_loss(model, tokens)
        assert len({plain, window, everywhere, both}) == 4
        assert block_loss(model, tokens) == plain

    def test_a_base_that_no_layer_has_is_refused(self) -> None:
        with (
            pytest.raises(ArmillaryError, match="has the rotary base 7: there are layers with 1000 and 100000"),
            arm.interventions.rotary(sample_model("gemma3_text"), nope=True, of_base=7),
        ):
            pass

    def test_a_sweep_of_one_base_predicts_the_cost_of_its_layers(self, gemma: Atlas) -> None:
        found = sweep(sample_model("gemma3_text"), gemma, "p", [1.0, 0.5], of_base=GLOBAL)
        change = lens.frequency_arrays(gemma).change[1]
        assert found.table["predicted_cost"].to_numpy() == pytest.approx([0.0, change[:, 3:].sum(-1).mean()])
        assert found.recommended == lens.recommended_p(gemma, layers=[1])


class TestAnatomy:
    def test_kinds_of_layers(self, gemma: Atlas) -> None:
        window, everywhere = layer_kinds(gemma)
        assert (window.kind, window.window, window.base, window.layers) == ("window", 5, WINDOW, (0, 2))
        assert (everywhere.kind, everywhere.window, everywhere.base) == ("global", None, GLOBAL)
        assert not window.alone
        heads = gemma.heads
        assert heads.groupby("layer")["layer_kind"].first().to_list() == ["window", "global", "window"]
        assert heads.groupby("layer")["rotary_base"].first().to_list() == [WINDOW, GLOBAL, WINDOW]

    def test_layers_without_rotary_encoding_are_a_kind_of_their_own(self, gemma: Atlas) -> None:
        layers = gemma.anatomy.layers
        rotary, plain = kinds_of([layers[1], replace(layers[1], position=None), layers[1]])
        assert (rotary.layers, plain.layers, plain.base) == ((0, 2), (1,), None)
        assert plain.name == "global layers (no rotary encoding)"
        everywhere = sentences_of(with_layers(gemma, position=None, window=None))
        assert any("no position encoding in attention at all" in said for said in everywhere)

    def test_the_report_says_what_inspect_knows(self, gemma: Atlas) -> None:
        said = " ".join(sentences_of(gemma))
        assert "3 layers of 6 heads of width 12; they share 2 key and value heads" in said
        assert "Layers 0, 2 see the last 5 tokens and have rotary encoding with base 1,000." in said
        assert "Layer 1 sees all tokens before and has rotary encoding with base 100,000 (linear)." in said
        assert "q and k are normalized (root mean square over each head" in said
        assert "never binds" not in said
        assert "Layers 0, 2 see the last 5 tokens" in report_html(gemma)

    @pytest.mark.parametrize(("length", "idle"), [(4, True), (5, True), (6, False)])
    def test_the_report_mentions_a_window_that_never_binds(self, gemma: Atlas, length: int, idle: bool) -> None:
        said = " ".join(sentences_of(with_layers(gemma, length=length)))
        assert (f"The window of 5 tokens hides no key here: the sequences have {length} tokens" in said) == idle

    def test_caps_sinks_and_other_encodings(self, atlases: Atlases) -> None:
        for family, words in {
            "gemma2": "soft-capped at 0.7",
            "gpt_oss": "has a learned sink",
            "bloom": "ALiBi",
            "gpt2": "The embeddings have learned positions.",
            "modernbert": "8 tokens to either side",
            "mpt/clipped": "clipped at 1",
        }.items():
            atlas = atlases.family(family)
            window = atlas.anatomy.layers[0].window
            expected = words if window is None or family != "modernbert" else f"{window - 1} tokens to either side"
            assert expected in " ".join(sentences_of(atlas)), family

    def test_local_and_global_layers_compared(self, gemma: Atlas) -> None:
        table = kind_table(gemma)
        heads = gemma.heads
        for kind, layers in (("window", [0, 2]), ("global", [1])):
            own = heads[heads["layer"].isin(layers)]
            (row,) = table[table["kind"] == kind].to_dict("records")
            assert row["positional_share"] == pytest.approx(own["positional_share"].mean())
            assert row["heads"] == len(own)
        counted = table.assign(positional_share=[0.3, 0.06], induction_heads=[0, 4])
        assert local_and_global(counted) == (
            "Position explains 30\u00a0% of the logits in window layers and 6\u00a0% in global ones, mean over heads; "
            "of 4 induction heads all are in global layers."
        )
        assert local_and_global(table[table["kind"] == "window"]) == ""

    def test_the_first_screen_distinguishes_the_kinds(self, gemma: Atlas) -> None:
        window, everywhere = (kind for kind, _ in lens.recommended_by_kind(gemma))
        best = [lens.RecommendedP(p, kept, 6, 0.004, "0.0", 0.1) for p, kept in ((0.5, 3), (1 / 3, 2))]
        found = stands_out(gemma.heads, gemma.layers, [(window, best[0]), (everywhere, best[1])])
        assert found.text.endswith(
            "in the window layers (base 1,000) freezing the slowest 3 of 6 rotary frequencies changes the logits by "
            "0.4\u00a0%, in the global layers (base 100,000, linear) the slowest 4 of 6 by 0.4\u00a0%."
        )
        none = lens.RecommendedP(1.0, 6, 6, 0.0, "0.0", 0.0)
        said = stands_out(gemma.heads, gemma.layers, [(window, none), (everywhere, best[1])]).text
        assert "none of 6 rotary frequencies can be frozen at little cost, in the global" in said
        assert said.endswith("rotary frequencies changes the logits by 0.4\u00a0%.")

    def test_spans(self) -> None:
        assert spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
        assert spans([3]) == "3"


def test_one_kind_needs_no_table(atlases: Atlases) -> None:
    atlas = atlases.family("llama")
    assert [kind.name for kind in layer_kinds(atlas)] == ["all layers"]
    assert isinstance(kind_table(atlas), pd.DataFrame)
    assert 'data-table="kinds"' not in report_html(atlas)
    assert np.unique(atlas.heads["layer_kind"]).tolist() == ["global"]
