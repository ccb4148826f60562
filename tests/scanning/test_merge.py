"""Merged parts of a scan give the same atlas as one scan; parts that do not fit raise an error that says why."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.files.atomic import write_with_checksum
from armillary.progress import Progress
from armillary.scanning.merging import merge
from armillary.scanning.scan import scan_part
from same_bits import assert_identical

TOKENS = torch.randint(5, 99, (14, 16), generator=torch.Generator().manual_seed(4))
SETTINGS: dict[str, Any] = dict(batch=2, shard=2, second_pass=6, streams=("positions", "attention", "constituents"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its scan, and the same scan in three parts."""
    place = tmp_path_factory.mktemp("merge")
    sample_model("llama").save_pretrained(place / "model")
    arm.scan(place / "model", TOKENS, out=place / "whole", **SETTINGS)
    for number in (1, 2, 3):
        scan_part(place / "model", TOKENS, part=f"{number}/3", out=place / str(number), **SETTINGS)
    return place


def parts(place: Path, *names: str | int) -> list[Path]:
    return [place / str(name) for name in names]


class TestMerge:
    def test_parts_in_any_order_make_the_same_atlas(self, place: Path, tmp_path: Path) -> None:
        merged = merge(parts(place, 2, 3, 1), out=tmp_path / "a")
        whole = arm.open_atlas(place / "whole")
        assert_identical(whole, merged)
        ours, theirs = dict(whole.attrs), dict(merged.attrs)
        assert ours.pop("finished") <= theirs.pop("finished")
        assert ours == theirs
        assert sorted(path.name for path in (tmp_path / "a").glob("*[!6]")) == ["atlas.zarr", "scan.json"]
        assert all((place / str(number) / "work" / "blocks").exists() for number in (1, 2, 3))

    def test_opening_a_part_raises_an_error(self, place: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match="holds part 2/3 of a scan: merge all its parts into an atlas"):
            arm.open_atlas(place / "2")

    def test_an_interrupted_merge_resumes(self, place: Path, tmp_path: Path) -> None:
        class Stop(Progress):
            def piece_merged(self, index: int) -> None:
                if index == 4:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            merge(parts(place, 1, 2, 3), out=tmp_path / "a", progress=Stop())
        with pytest.raises(arm.ArmillaryError, match="`resume=True` continues it"):
            merge(parts(place, 1, 2, 3), out=tmp_path / "a")
        merged = merge(parts(place, 1, 2, 3), out=tmp_path / "a", resume=True)
        assert_identical(arm.open_atlas(place / "whole"), merged)

    def test_parts_may_be_cut_differently_as_long_as_they_fit(self, place: Path, tmp_path: Path) -> None:
        """7 shards: 1/3 has shards 0 and 1, and 3/7 to 7/7 have one each."""
        for number in (3, 4, 5, 6, 7):
            scan_part(place / "model", TOKENS, part=f"{number}/7", out=tmp_path / str(number), **SETTINGS)
        merged = merge([place / "1", *parts(tmp_path, 7, 6, 5, 4, 3)], out=tmp_path / "a")
        assert_identical(arm.open_atlas(place / "whole"), merged)

    def test_skipped_sequences_and_a_moved_model(self, tmp_path: Path) -> None:
        """Sequences 5 and 11 give NaN; the model was moved after the parts were scanned."""
        tokens = TOKENS.clone()
        tokens[[5, 11], 3] = 3
        settings: dict[str, Any] = {**SETTINGS, "when_nan": "skip", "trust_remote_code": True}
        nan_on_token_3(tmp_path / "old")
        whole = arm.scan(tmp_path / "old", tokens, **settings)
        assert whole.attrs["skipped_blocks"] == [5, 11]
        for number in (1, 2):
            scan_part(tmp_path / "old", tokens, part=f"{number}/2", out=tmp_path / str(number), **settings)
        (tmp_path / "old").rename(tmp_path / "new")
        with pytest.raises(arm.ArmillaryError, match="give it as `model`"):
            merge(parts(tmp_path, 1, 2), out=tmp_path / "a")
        merged = merge(parts(tmp_path, 1, 2), out=tmp_path / "a", model=tmp_path / "new", trust_remote_code=True)
        assert_identical(whole, merged)


def nan_on_token_3(place: Path) -> None:
    """A model whose code gives NaN for sequences with the token 3."""
    sample_model("llama").save_pretrained(place)
    config = json.loads((place / "config.json").read_text())
    config |= {"architectures": ["Odd"], "auto_map": {"AutoModelForCausalLM": "odd.Odd"}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "odd.py").write_text(
        "from transformers import LlamaForCausalLM\n"
        "class Odd(LlamaForCausalLM):\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.model.embed_tokens.register_forward_hook(\n"
        "            lambda m, a, out: out.masked_fill((a[0] == 3).any(1)[:, None, None], float('nan')))\n"
    )


class TestRefusals:
    def test_missing_parts_are_listed(self, place: Path, tmp_path: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match=r"shards 2 to 3 of 7 are in none .*: part 2/3"):
            merge(parts(place, 1, 3), out=tmp_path / "a")
        assert not (tmp_path / "a").exists()

    def test_overlapping_parts(self, place: Path, tmp_path: Path) -> None:
        scan_part(place / "model", TOKENS, part="1/2", out=tmp_path / "half", **SETTINGS)
        with pytest.raises(arm.ArmillaryError, match=r"part 1/[23]\) and .* both hold shards 0 to 1"):
            merge([*parts(place, 1, 2, 3), tmp_path / "half"], out=tmp_path / "a")

    def test_unfinished_and_damaged_parts(self, place: Path, tmp_path: Path) -> None:
        shutil.copytree(place / "2", tmp_path / "2")
        shard = tmp_path / "2" / "work" / "shard-00003"
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        given = [place / "1", tmp_path / "2", place / "3"]
        with pytest.raises(arm.ArmillaryError, match=r"not finished, or was damaged: shard 3 .* `part=2/3`"):
            merge(given, out=tmp_path / "a")
        scan_part(place / "model", TOKENS, part="2/3", out=tmp_path / "2", resume=True, **SETTINGS)
        assert_identical(arm.open_atlas(place / "whole"), merge(given, out=tmp_path / "a"))

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (dict(skip=2), "settings skip: 1 and 2"),
            (dict(corpus=TOKENS.flip(0)), "corpus sha256"),
            (dict(seed_of_model=1), "model weights"),
            (dict(dtype="bfloat16"), "model dtype: float32 and bfloat16"),
        ],
    )
    def test_parts_of_different_scans(self, change: dict[str, Any], words: str, place: Path, tmp_path: Path) -> None:
        settings = {**SETTINGS, **change}
        corpus, seed = settings.pop("corpus", TOKENS), settings.pop("seed_of_model", 0)
        sample_model("llama", seed=seed).save_pretrained(tmp_path / "model")
        scan_part(tmp_path / "model", corpus, part="2/3", out=tmp_path / "2", **settings)
        with pytest.raises(arm.ArmillaryError, match=f"parts of different scans .*{words}"):
            merge([place / "1", tmp_path / "2", place / "3"], out=tmp_path / "a")

    def test_another_model_at_the_old_place(self, place: Path, tmp_path: Path) -> None:
        sample_model("llama", seed=1).save_pretrained(tmp_path / "model")
        with pytest.raises(arm.ArmillaryError, match="has other weights"):
            merge(parts(place, 1, 2, 3), out=tmp_path / "a", model=tmp_path / "model")

    def test_folders_that_are_not_parts(self, place: Path, tmp_path: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match="is one of the parts"):
            merge(parts(place, 1, 2, 3), out=place / "2", overwrite=True)
        with pytest.raises(arm.ArmillaryError, match="holds a finished atlas"):
            merge([place / "whole", place / "1"], out=tmp_path / "a")
        with pytest.raises(arm.ArmillaryError, match="is not a part of a scan"):
            merge([tmp_path], out=tmp_path / "a")
        shutil.copytree(place / "1", tmp_path / "b")
        record = json.loads((tmp_path / "b" / "scan.json").read_text())
        del record["part"]
        write_with_checksum(tmp_path / "b" / "scan.json", [json.dumps(record).encode()])
        with pytest.raises(arm.ArmillaryError, match="holds a whole scan, not a part: finish it with `resume=True`"):
            merge([tmp_path / "b"], out=tmp_path / "a")

    @pytest.mark.parametrize(
        ("part", "words"), [("3", "as in 3/16"), ("0/2", "no part 0/2"), ("1/9", "7 shards cannot")]
    )
    def test_parts_that_make_no_sense(self, part: str, words: str, tmp_path: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match=words):
            scan_part(sample_model("llama"), TOKENS, part=part, out=tmp_path / "a", **SETTINGS)


def test_the_command(place: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from armillary.cli import app

    options = [
        str(place / "model"),
        "--corpus",
        "builtin:random",
        "--sequences",
        "6",
        "--length",
        "16",
        "--shard",
        "2",
    ]
    runner = CliRunner()
    for number in (1, 2):
        result = runner.invoke(app, ["scan", *options, "--part", f"{number}/2", "--out", str(tmp_path / str(number))])
        assert result.exit_code == 0, result.output
        assert f"part {number}/2" in result.output
    result = runner.invoke(app, ["merge", *map(str, parts(tmp_path, 1, 2)), "--out", str(tmp_path / "a")])
    assert result.exit_code == 0, result.output
    whole = arm.scan(place / "model", "builtin:random", sequences=6, length=16, shard=2)
    assert_identical(whole, arm.open_atlas(tmp_path / "a"))
