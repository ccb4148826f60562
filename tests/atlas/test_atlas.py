"""Atlases: tables with the agreed columns, exports, comparison, and stores that are not ours."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import zarr
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.atlas.arrays import Arrays, new_array, write_group
from armillary.atlas.atlas import Atlas
from armillary.atlas.columns import kind_of
from armillary.atlas.manifest import names_in, write_manifest
from armillary.cli import app
from armillary.lenses.labels import LABELS
from conftest import Atlases

TOKENS = torch.randint(5, 99, (6, 16), generator=torch.Generator().manual_seed(3))
CONTRACT_LAYERS = """
layer pos_share ctx_share resid_share stable_rank screenot_rank relative_norm dct_energy_1 dct_energy_3 dct_energy_5
dct_energy_10 incoherence_mean incoherence_max intra_similarity inter_similarity mean_norm
"""
CONTRACT_HEADS = """
layer head kv_head label entropy entropy_norm self_mass prev_mass first_mass mean_distance positional_share
content_share mixed_share qk_trace qk_fro qk_spec qk_stable_rank qk_align_z xi eta regime high_freq_share
induction_score share_mean_mean share_mean_pos share_mean_cvec share_pos_mean share_cvec_cvec share_bias
"""


@pytest.fixture(scope="module")
def folder(atlases: Atlases) -> Path:
    return atlases.folder("llama", TOKENS)


def run(*arguments: str | Path) -> str:
    shown = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert shown.exit_code == 0
    return shown.output


class TestWriting:
    """Chunks are written without Zarr, which takes ten times as long; any reader of Zarr reads them."""

    @pytest.mark.parametrize("large", [False, True])
    def test_every_file_is_the_one_that_zarr_writes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
    ) -> None:
        rng = np.random.default_rng(0)
        some_missing = rng.normal(size=(4, 3, 5))
        some_missing[2] = np.nan
        arrays: Arrays = {
            "layers": (("layer", "head", "component"), some_missing),
            "single": (("layer", "width"), rng.normal(size=(4, 6)).astype(np.float32)),
            "transposed": (("head", "layer", "width"), rng.normal(size=(5, 3, 4)).T.swapaxes(0, 1)),
            "counts": (("layer", "head", "cell"), rng.integers(0, 3, (4, 3, 2))),
            "zeros": (("layer", "head"), np.zeros((4, 3), np.int64)),
            "flags": (("layer", "head"), rng.random((4, 3)) > 0.5),
            "unknown": (("layer", "head"), np.full((4, 3), np.nan)),
            "number": ((), np.array(2.5)),
            "nothing": (("layer", "sequence"), np.zeros((4, 0))),
        }
        monkeypatch.setattr("armillary.atlas.arrays.LARGE", 1 if large else 1 << 22)
        for name in ("ours", "zarrs"):
            zarr.create_group(tmp_path / name)
        write_group(tmp_path / "ours", "group", arrays, {"about": "a test"})
        group = zarr.open_group(tmp_path / "zarrs", mode="a").require_group("group")
        group.attrs.update({"about": "a test"})
        for name, (dims, values) in arrays.items():
            new_array(group, name, dims, values.shape, values.dtype)[...] = values
        files = {
            store: {name: (tmp_path / store / name).read_bytes() for name in names_in(tmp_path / store)}
            for store in ("ours", "zarrs")
        }
        assert files["ours"] == files["zarrs"]
        assert len([name for name in files["ours"] if name.startswith("group/layers/c/")]) == (3 if large else 1)
        for name, (_, values) in arrays.items():
            np.testing.assert_array_equal(zarr.open_array(tmp_path / "ours", path=f"group/{name}", mode="r"), values)


class TestWhatItIs:
    def test_its_anatomy_is_the_models_without_weights(self, folder: Path) -> None:
        assert arm.open_atlas(folder).anatomy == arm.describe(sample_model("llama"))

    def test_it_knows_what_it_was_made_from(self, folder: Path, tmp_path: Path) -> None:
        assert arm.open_atlas(folder).kind == "scan"
        assert arm.weigh(sample_model("llama"), out=tmp_path / "weights", matrices=False).kind == "weights"

    def test_a_wrong_anatomy_raises_an_error_that_names_the_attribute(self, folder: Path, tmp_path: Path) -> None:
        store = shutil.copytree(folder / "atlas.zarr", tmp_path / "atlas.zarr")
        record = json.loads((store / "zarr.json").read_text())
        record["attributes"]["anatomy"]["layers"][2]["position"]["layout"] = "thirds"
        (store / "zarr.json").write_text(json.dumps(record))
        write_manifest(store)
        with pytest.raises(arm.ArmillaryError, match=r"zarr\.json is not .*, anatomy\.layers\[2\]\.position\.layout"):
            arm.open_atlas(tmp_path)


class TestTables:
    def test_the_columns_are_the_contract(self, folder: Path) -> None:
        atlas = arm.open_atlas(folder)
        assert set(CONTRACT_LAYERS.split()) <= set(atlas.layers.columns)
        assert set(CONTRACT_HEADS.split()) <= set(atlas.heads.columns)

    def test_whole_numbers_words_and_missing_values(self, folder: Path) -> None:
        heads = arm.open_atlas(folder).heads
        assert heads["head"].tolist() == [0, 1, 2, 3, 4, 5] * 3
        assert heads["kv_head"].tolist() == [0, 0, 0, 1, 1, 1] * 3
        assert heads["share_bias"].isna().all()  # a rotary model has no position bias: missing, not zero
        assert set(heads["label"]) <= set(LABELS)

    def test_provenance(self, folder: Path) -> None:
        attrs = arm.open_atlas(folder).attrs
        assert attrs["model"]["family"] == "llama"
        assert len(attrs["model"]["weights"]) == len(attrs["corpus"]["sha256"]) == 64
        assert attrs["settings"]["skip"] == 1
        assert set(attrs["versions"]) >= {"python", "torch", "transformers", "armillary"}
        assert pd.Timestamp(attrs["finished"]).tzinfo is not None

    def test_exports(self, folder: Path, tmp_path: Path) -> None:
        atlas = arm.open_atlas(folder)
        csv, _ = atlas.to_csv(tmp_path)[::-1]
        np.testing.assert_allclose(pd.read_csv(csv)["entropy"], atlas.heads["entropy"])
        parquet = atlas.to_parquet(tmp_path)[1]
        pd.testing.assert_series_equal(pd.read_parquet(parquet)["entropy"], atlas.heads["entropy"])


class TestCommands:
    def test_tables_on_the_terminal(self, folder: Path, atlases: Atlases) -> None:
        shown = run("heads", folder, "--layer", "1", "--sort", "entropy")
        assert len(shown.strip().splitlines()) == 7
        assert "entropy" in shown
        assert "label" in shown
        assert "label" not in run("heads", atlases.folder("llama", TOKENS, streams=("attention",)))  # nothing to show
        chosen = run("heads", folder, "--columns", "head,share_pos_pos", "--layer", "0")
        assert chosen.splitlines()[0].split() == ["head", "share", "pos", "pos"]
        assert len(run("heads", folder, "--columns", "all").strip().splitlines()) >= 19
        assert "mean norm" in run("layers", folder)

    def test_json_and_csv(self, folder: Path) -> None:
        rows = json.loads(run("heads", folder, "--json", "--sort=-entropy"))
        entropies = [row["entropy"] for row in rows]
        assert entropies == sorted(entropies)
        assert rows[0]["share_bias"] is None
        assert rows[0]["layer"] in (0, 1, 2)
        header, *lines = run("layers", folder, "--csv").splitlines()
        assert header.startswith("layer,pos_share")
        assert len(lines) == 4

    def test_unknown_columns_and_layers(self, folder: Path) -> None:
        for arguments, said in (
            (["--sort", "beauty"], "no column 'beauty'"),
            (["--layer", "9"], "no layer 9"),
            (["--columns", "head,truth"], "no column 'truth'"),
        ):
            with pytest.raises(arm.ArmillaryError, match=said):
                run("heads", folder, *arguments)

    def test_scan_and_compare(self, tmp_path: Path) -> None:
        sample_model("gpt2").save_pretrained(tmp_path / "model")
        settings = ("--length", "16", "--sequences", "8", "--streams", "positions,attention")
        for seed in ("0", "1"):
            run(
                "scan",
                tmp_path / "model",
                "--out",
                tmp_path / seed,
                "--corpus",
                "builtin:random",
                "--seed",
                seed,
                *settings,
            )
        found = json.loads(run("compare", tmp_path / "0", tmp_path / "1", "--json"))
        assert "settings seed: was 0, now 1" in found["scans"]
        sizes = [row["size"] for row in found["heads"]]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > 0
        row = found["heads"][0]
        assert row["change"] == pytest.approx(row["b"] - row["a"])
        assert "Heads, largest changes first" in run("compare", tmp_path / "0", tmp_path / "1")

    def test_three_side_by_side(self, folder: Path) -> None:
        rows = json.loads(run("compare", folder, folder, folder, "--json"))["side_by_side"]
        pos = next(row for row in rows if row["measure"] == "pos_share")
        assert pos["tokens (0)"] == pytest.approx(arm.open_atlas(folder).layers["pos_share"][1:].mean())
        assert set(pos) == {"measure", "tokens (0)", "tokens (1)", "tokens (2)"}
        assert "Side by side" in run("compare", folder, folder, folder)
        with pytest.raises(arm.ArmillaryError, match="two folders or more"):
            run("compare", folder)

    def test_several_corpora_give_an_atlas_each(self, tmp_path: Path) -> None:
        sample_model("gpt2").save_pretrained(tmp_path / "model")
        with pytest.raises(arm.ArmillaryError, match="no tokenizer"):
            run("scan", tmp_path / "model", "--out", tmp_path / "a", "--corpus", "builtin:code")
        corpora = ("--corpus", "builtin:random", "--corpus", "builtin:random")
        settings = ("--length", "16", "--sequences", "4", "--streams", "attention")
        run("scan", tmp_path / "model", "--out", tmp_path / "b", *corpora, *settings)
        assert (tmp_path / "b" / "builtin-random" / "atlas.zarr").exists()
        assert (tmp_path / "b" / "builtin-random-2" / "atlas.zarr").exists()

    @pytest.mark.parametrize("option", ["--bos", "--when-nan"])
    def test_choices_that_do_not_exist(self, option: str, tmp_path: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match="it can be"):
            run("scan", tmp_path, "--out", tmp_path / "a", option, "perhaps")


class TestComparison:
    def test_an_atlas_has_not_changed_from_itself(self, folder: Path) -> None:
        found = arm.compare(arm.open_atlas(folder), arm.open_atlas(folder))
        assert found.scans == []
        assert (found.heads["change"] == 0).all()

    def test_models_of_different_shape(self, folder: Path, tmp_path: Path) -> None:
        other = arm.scan(sample_model("albert/groups"), TOKENS)
        with pytest.raises(arm.ArmillaryError, match="do not have the same layers"):
            arm.compare(arm.open_atlas(folder), other)

    def test_the_head_that_was_changed_comes_first(self, folder: Path) -> None:
        model = sample_model("llama")
        arm.describe(model).weights(2).q[4].mul_(6)
        found = arm.compare(arm.open_atlas(folder), arm.scan(model, TOKENS))
        first = found.heads.iloc[0]
        assert (first["layer"], first["head"]) == (2, 4)


class TestForeignStores:
    def test_a_newer_one(self, folder: Path, tmp_path: Path) -> None:
        group = zarr.create_group(tmp_path / "n", attributes={"format": "armillary-atlas", "format_version": 99})
        assert group.attrs["format_version"] == 99
        with pytest.raises(arm.ArmillaryError, match="format version 99; this Armillary reads up to 2"):
            arm.open_atlas(tmp_path / "n")

    def test_one_that_is_not_ours(self, tmp_path: Path) -> None:
        zarr.create_group(tmp_path / "z")
        with pytest.raises(arm.ArmillaryError, match="not one that Armillary wrote"):
            arm.open_atlas(tmp_path / "z")

    def test_nothing_and_an_unfinished_scan(self, tmp_path: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match="there is no folder"):
            arm.open_atlas(tmp_path / "nowhere")
        with pytest.raises(arm.ArmillaryError, match="is not an atlas"):
            arm.open_atlas(tmp_path)
        (tmp_path / "scan.json").write_text("{}")
        with pytest.raises(arm.ArmillaryError, match="`resume=True`"):
            arm.open_atlas(tmp_path)

    def test_a_damaged_one(self, tmp_path: Path) -> None:
        (tmp_path / "zarr.json").write_text("{")
        with pytest.raises(arm.ArmillaryError, match=r"zarr\.json is not JSON"):
            arm.open_atlas(tmp_path)

    def test_atlas_is_what_scan_returns(self) -> None:
        assert isinstance(arm.scan(sample_model("llama"), TOKENS[:2], streams=("positions",)), Atlas)


def test_tables_open_without_zarr_and_as_zarr_reads_them(atlases: Atlases, tmp_path: Path) -> None:
    """An older atlas, whose tables are compressed, opens too."""
    folder = tmp_path / "a"
    shutil.copytree(atlases.folder("llama", TOKENS), folder)
    code = f"import sys, armillary as arm; arm.open_atlas({str(folder)!r}).heads; print('zarr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    plain = arm.open_atlas(folder).heads
    values = folder / "atlas.zarr" / "tables" / "heads" / "values"
    found = np.asarray(zarr.open_array(values, mode="r")[...])
    numbers = [column for column in plain.columns if kind_of("heads", column) != "word"]
    np.testing.assert_array_equal(found, plain[numbers].astype(float).to_numpy())
    shutil.rmtree(values)
    zarr.create_array(values, data=found, chunks=(2, found.shape[1]))
    shutil.rmtree(folder / "atlas.zarr" / "checksums")
    zarr.open_group(folder / "atlas.zarr", mode="r+").attrs["format_version"] = 1
    pd.testing.assert_frame_equal(arm.open_atlas(folder).heads, plain)
