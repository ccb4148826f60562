"""Hub ids: through huggingface_hub's cache and variables, downloaded where they are missing, of one revision."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from hub import COMMIT, cached, commit_of, serving
from program import several
from stored import write_adapter


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The small model as one file, and another one in shards."""
    root = tmp_path_factory.mktemp("models")
    model = sample_model("llama")
    model.save_pretrained(root / "one")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(2)
    model.save_pretrained(root / "shards", max_shard_size="20KB")
    (root / "shards" / "pytorch_model.bin").write_bytes(b"never downloaded")
    return {"one": root / "one", "shards": root / "shards"}


def test_a_cached_model_while_offline(folders: dict[str, Path], tmp_path: Path) -> None:
    cached(tmp_path / "home", "someone/tiny", folders["one"])
    write_adapter(tmp_path / "lora", sample_model("llama"))
    cached(tmp_path / "home", "someone/lora", tmp_path / "lora")
    done, adapted, told, missing = several(
        [
            ["weights", "someone/tiny", "-o", str(tmp_path / "atlas"), "--no-matrices"],
            ["weights", "someone/tiny", "-o", str(tmp_path / "adapted"), "--no-matrices", "--adapter", "someone/lora"],
            ["inspect", "someone/tiny", "--weights", "--json"],
            ["weights", "someone/else", "-o", str(tmp_path / "none")],
        ],
        HF_HOME=str(tmp_path / "home"),
        HF_HUB_OFFLINE="1",
    )
    assert done.returncode == 0, done.stderr
    atlas, plain = arm.open_atlas(tmp_path / "atlas"), arm.weigh(folders["one"], matrices=False)
    np.testing.assert_array_equal(atlas.heads["qk_fro"], plain.heads["qk_fro"])
    assert atlas.attrs["model"]["name"] == "someone/tiny"
    assert atlas.attrs["model"]["revision"] == COMMIT
    assert adapted.returncode == 0, adapted.stderr
    merged = arm.weigh(folders["one"], matrices=False, adapter=tmp_path / "lora").heads["qk_fro"]
    np.testing.assert_array_equal(arm.open_atlas(tmp_path / "adapted").heads["qk_fro"], merged)
    assert (merged != plain.heads["qk_fro"]).all()
    assert json.loads(told.stdout)["notes"] == ["all weights are finite"]
    assert missing.returncode == 2
    assert "someone/else is neither a folder here nor a model with config.json" in missing.stderr


def test_one_revision_is_downloaded_whole_and_nothing_else(folders: dict[str, Path], tmp_path: Path) -> None:
    repositories = {("someone/tiny", "main"): folders["one"], ("someone/tiny", "v2"): folders["shards"]}
    line = ["weights", "someone/tiny", "--no-matrices", "--revision"]
    scan = ["scan", "someone/tiny", "--corpus", "builtin:random", "--limit", "2", "--length", "12"]
    with serving(repositories) as (address, downloaded):
        done, unknown, scanned, shown = several(
            [
                [*line, "v2", "-o", str(tmp_path / "v2")],
                [*line, "v3", "-o", str(tmp_path / "v3")],
                [*scan, "--streams", "patterns", "--revision", "v2", "-o", str(tmp_path / "scan")],
                ["verify-heads", str(tmp_path / "scan"), "--heads", "1", "--limit", "1"],
            ],
            HF_HOME=str(tmp_path / "home"),
            HF_ENDPOINT=address,
            HF_HUB_OFFLINE="0",
        )
    assert done.returncode == 0, done.stderr
    names = {path.rpartition("/")[2] for path in downloaded}
    shards = {path.name for path in folders["shards"].glob("*.safetensors")}
    assert {"config.json", "model.safetensors.index.json", *shards} <= names
    assert not {"pytorch_model.bin", "model.safetensors"} & names  # of another format, and of another revision
    assert unknown.returncode == 2
    assert "at revision v3" in unknown.stderr
    atlas, plain = arm.open_atlas(tmp_path / "v2"), arm.weigh(folders["shards"], matrices=False)
    assert atlas.attrs["model"]["revision"] == commit_of("someone/tiny", "v2")
    np.testing.assert_array_equal(atlas.heads["qk_fro"], plain.heads["qk_fro"])
    assert scanned.returncode == 0, scanned.stderr
    assert arm.open_atlas(tmp_path / "scan").attrs["model"]["revision"] == commit_of("someone/tiny", "v2")
    assert "other weights" not in shown.stderr  # the atlas's revision, though the command names none
    assert shown.returncode == 0 or "no head of this atlas has a label" in shown.stderr
