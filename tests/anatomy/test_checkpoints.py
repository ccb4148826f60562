"""A model folder is read the same way by describe, weights, load and scan, or refused by all with the same sentence."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import armillary as arm
from armillary.anatomy.samples import sample_model
from program import complaint, edit_config, run

TOKENS = torch.randint(3, 90, (2, 8))
READERS: dict[str, Callable[[Path], object]] = {
    "describe": arm.describe,
    "weigh": arm.weigh,
    "load": arm.load,
    "scan": lambda folder: arm.scan(folder, TOKENS, streams=("attention",)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    sample_model("llama").save_pretrained(path)
    return path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    path = tmp_path / "sharded"
    sample_model("llama").save_pretrained(path, max_shard_size="40KB")
    return path


def refusal(folder: Path) -> str:
    """The sentence with which every reader refuses the folder; it must be the same."""
    sentences = {}
    for name, read in READERS.items():
        with pytest.raises(arm.ArmillaryError) as refused:
            read(folder)
        sentences[name] = str(refused.value)
    assert len(set(sentences.values())) == 1, sentences
    return sentences["describe"]


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def point_index(folder: Path, shard: str) -> None:
    """An index that puts all tensors of the first shard elsewhere."""
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first = sorted(set(index["weight_map"].values()))[0]
    index["weight_map"] = {name: shard if file == first else file for name, file in index["weight_map"].items()}
    path.write_text(json.dumps(index))


class TestFolders:
    @pytest.mark.parametrize("kind", ["relative", "absolute", "dotted"])
    def test_an_index_that_points_outside(self, sharded: Path, kind: str) -> None:
        first = min(sharded.glob("*.safetensors"))
        outside = sharded.parent / "outside" / first.name
        outside.parent.mkdir()
        shutil.copy(first, outside)  # what it points to exists, and so does a local file of the same name
        names = {"relative": f"../outside/{first.name}", "absolute": str(outside)}
        point_index(sharded, names.get(kind, f"x/../../outside/{first.name}"))
        assert "is not in the model's folder" in refusal(sharded)

    def test_links_inside_the_folder_are_followed_as_the_hubs_cache_needs(self, sharded: Path) -> None:
        blobs = sharded.parent / "blobs"
        blobs.mkdir()
        for number, file in enumerate(sorted(sharded.glob("*"))):
            file.rename(blobs / f"{number}")
            file.symlink_to(Path("..") / "blobs" / f"{number}")
        assert len(arm.describe(sharded).layers) == 3
        assert torch.equal(arm.load(sharded).lm_head.weight, sample_model("llama").lm_head.weight)

    def test_the_same_rule_holds_for_the_hubs_cache(self, sharded: Path, tmp_path: Path) -> None:
        snapshot = tmp_path / "models--someone--thing" / "snapshots" / ("0" * 40)
        shutil.copytree(sharded, snapshot)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
        options: dict[str, Any] = {"cache_dir": str(tmp_path), "local_files_only": True}
        assert arm.load("someone/thing", **options) is not None
        point_index(snapshot, "../../../outside.safetensors")
        with pytest.raises(arm.ArmillaryError, match="is not in the model's folder"):
            arm.load("someone/thing", **options)

    def test_the_file_that_the_configuration_names_is_the_one_that_is_read(self, folder: Path) -> None:
        edit_config(folder, transformers_weights="../elsewhere.safetensors")
        assert "is not in the model's folder" in refusal(folder)
        twice = {name: 2 * tensor for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(twice, folder / "other.safetensors", metadata={"format": "pt"})
        edit_config(folder, transformers_weights="other.safetensors")
        name = "model.layers.0.self_attn.q_proj.weight"
        q = torch.cat(arm.describe(folder).weights(0).q, 1).T
        assert torch.equal(q, twice[name])
        assert torch.equal(arm.load(folder).get_parameter(name), twice[name])

    def test_plain_weights_that_the_configuration_calls_quantized(self, folder: Path) -> None:
        edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
        assert "quantization_config, but its weights are plain numbers" in refusal(folder)

    @pytest.mark.parametrize("size", [0, 1])
    def test_a_bias_of_another_width(self, tmp_path: Path, size: int) -> None:
        sample_model("gpt2").save_pretrained(tmp_path / "gpt2")
        file = tmp_path / "gpt2" / "model.safetensors"
        stored = load_file(file)
        name = next(name for name in stored if name.endswith("attn.c_attn.bias"))
        stored[name] = stored[name][:size].clone()
        save_file(stored, file, metadata={"format": "pt"})
        assert f"attn.c_attn.bias has shape ({size},)" in refusal(tmp_path / "gpt2")

    def test_layers_beyond_the_configuration(self, folder: Path) -> None:
        edit_config(folder, num_hidden_layers=2)
        assert "more layers than its configuration says (model.layers.2.self_attn.k_proj.weight" in refusal(folder)

    def test_a_family_without_adapter_is_checked_too(self, tmp_path: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        from armillary.anatomy.samples import SMALL

        config = AutoConfig.for_model("hyperclovax", **{**SMALL, "num_key_value_heads": 2})
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        edit_config(tmp_path, num_hidden_layers=2)
        for read in (arm.describe, arm.load):
            with pytest.raises(arm.ArmillaryError, match="more layers than its configuration"):
                read(tmp_path)

    @pytest.mark.parametrize("part", ["self_attn.v_proj", "mlp.up_proj", "input_layernorm"])
    def test_a_missing_tensor(self, folder: Path, part: str) -> None:
        edit_weights(folder, lambda weights: weights.pop(f"model.layers.1.{part}.weight"))
        assert part in refusal(folder)

    def test_a_missing_embedding(self, folder: Path) -> None:
        edit_weights(folder, lambda weights: weights.pop("model.embed_tokens.weight"))
        assert "lacks weights that the model needs (model.embed_tokens.weight)" in refusal(folder)

    @pytest.mark.parametrize("part", ["self_attn.o_proj", "mlp.down_proj", "post_attention_layernorm"])
    def test_integers_as_weights(self, folder: Path, part: str) -> None:
        name = f"model.layers.1.{part}.weight"
        edit_weights(folder, lambda weights: weights.update({name: weights[name].to(torch.int32)}))
        said = refusal(folder)
        assert part in said
        assert "quantized" in said

    @pytest.mark.parametrize("part", ["self_attn.q_proj", "mlp.gate_proj"])
    def test_a_wrong_shape(self, folder: Path, part: str) -> None:
        name = f"model.layers.1.{part}.weight"
        edit_weights(folder, lambda weights: weights.update({name: weights[name][:-1].clone()}))
        said = refusal(folder)
        assert part in said
        assert "do not belong together" in said

    def test_buffers_that_old_checkpoints_keep_are_no_mistake(self, folder: Path) -> None:
        extra = {
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
            "model.layers.7.self_attn.rotary_emb.inv_freq": torch.ones(4),
            "model.position_ids": torch.arange(8),
        }
        edit_weights(folder, lambda weights: weights.update(extra))
        for read in READERS.values():
            read(folder)

    def test_a_tensor_in_two_files_or_under_two_names(self, sharded: Path, folder: Path) -> None:
        first, second, *_ = sorted(sharded.glob("*.safetensors"))
        save_file({**load_file(first), **load_file(second)}, second, metadata={"format": "pt"})
        assert "it is unclear which one to read" in refusal(sharded)
        q = "layers.0.self_attn.q_proj.weight"
        edit_weights(folder, lambda weights: weights.update({q: 2 * weights[f"model.{q}"]}))
        assert "under several names" in refusal(folder)

    @pytest.mark.parametrize("name", ["adapter_config.json", "shard-00000-model-00001-of-00001.safetensors"])
    def test_other_weights_that_transformers_would_read(self, folder: Path, name: str) -> None:
        (folder / name).write_text("{}")
        assert name in refusal(folder)


ABSURD = [10**9, 10**30, -1, 0, 1.5, True, "many", [[3]], {"a": 3}, None, 1e308]


AT_ONCE = 50
"""Refusing a folder may take at most this many times as long as reading a good one."""


def processor_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Processor time that it takes to describe and load a good small folder, here and now."""
    place = tmp_path_factory.mktemp("good")
    sample_model("llama").save_pretrained(place)
    return sorted(processor_seconds(lambda: (arm.describe(place), arm.load(place))) for _ in range(3))[1]


class TestAbsurdSizes:
    @pytest.mark.parametrize("value", ABSURD, ids=str)
    @pytest.mark.parametrize(
        "key",
        ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "vocab_size"],
    )
    def test_are_refused_at_once(self, folder: Path, key: str, value: object, reading: float) -> None:
        if value is None and key in ("num_key_value_heads", "head_dim"):
            pytest.skip("null is the default here")
        edit_config(folder, **{key: value})

        def refused() -> None:
            for read in (arm.describe, arm.load):
                with pytest.raises(arm.ArmillaryError):
                    read(folder)

        assert processor_seconds(refused) < AT_ONCE * reading

    @pytest.mark.parametrize(
        ("family", "value"),
        [*((family, 10**9) for family in ("gpt2", "qwen2", "gptj", "albert", "bert", "t5")), ("gpt2", 9_999)],
    )
    def test_of_every_size_in_every_kind_of_configuration(
        self, tmp_path: Path, family: str, value: int, reading: float
    ) -> None:
        sample_model(family).save_pretrained(tmp_path)
        before = json.loads((tmp_path / "config.json").read_text())

        def described() -> None:
            with suppress(arm.ArmillaryError):
                arm.describe(tmp_path)

        for key in before:
            if type(before[key]) is int and not key.endswith("_id"):
                (tmp_path / "config.json").write_text(json.dumps({**before, key: value}))
                assert processor_seconds(described) < AT_ONCE * reading, key

    def test_without_weights_too(self) -> None:
        from armillary.anatomy.samples import sample_config

        for change in (
            {"num_hidden_layers": 10**9},
            {"head_dim": 10**9},
            {"num_hidden_layers": 9000, "head_dim": 90_000},
        ):
            config = sample_config("llama")
            for key, value in change.items():
                setattr(config, key, value)
            with pytest.raises(arm.ArmillaryError, match=r"ARMILLARY_LIMITS=off"):
                arm.describe(config)

    def test_the_limit_can_be_lifted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from armillary.anatomy.samples import sample_config

        config = sample_config("gpt2")
        config.num_hidden_layers = 10_001
        monkeypatch.setenv("ARMILLARY_LIMITS", "off")
        assert len(arm.describe(config).layers) == 10_001

    def test_tables_that_do_not_fit_in_memory(self, tmp_path: Path) -> None:
        sample_model("gptj").save_pretrained(tmp_path)
        edit_config(tmp_path, n_positions=10**10)
        for read in (arm.describe, arm.load):
            with pytest.raises(arm.ArmillaryError, match=r"tables of .* GiB"):
                read(tmp_path)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


class TestSpecialFiles:
    @pytest.mark.parametrize("make", [make_pipe, make_socket, make_device])
    @pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json", "tokenizer.json"])
    def test_is_refused_by_name(self, folder: Path, name: str, make: Callable[[Path], None]) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        assert name in refusal(folder)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_a_folder_in_the_place_of_a_file(self, folder: Path, name: str) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()
        refusal(folder)

    def test_a_pipe_as_gguf_file(self, tmp_path: Path) -> None:
        make_pipe(tmp_path / "model.gguf")
        for place in (tmp_path, tmp_path / "model.gguf"):
            for read in (arm.describe, arm.load):
                with pytest.raises(arm.ArmillaryError):
                    read(place)


class TestPickles:
    def pickled(self, folder: Path, **options: Any) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = sample_model("llama").state_dict()
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin", **options)
        return weights

    @pytest.mark.parametrize("zipped", [True, False])
    def test_are_refused_by_all_and_converted_on_demand(self, folder: Path, zipped: bool) -> None:
        weights = self.pickled(folder, _use_new_zipfile_serialization=zipped)
        assert f"armillary convert {folder}" in refusal(folder)
        assert run("convert", folder).returncode == 0
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert torch.equal(tensor, weights[name])
        for read in READERS.values():
            read(folder)
        assert "there is nothing to do" in complaint("convert", folder)

    def test_into_another_folder_with_all_other_files(self, folder: Path, tmp_path: Path) -> None:
        self.pickled(folder)
        (folder / "tokenizer_config.json").write_text("{}")
        (folder / "optimizer.pt").write_bytes(b"x")
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        out = arm.convert(folder, out=tmp_path / "new")
        names = {path.name for path in out.iterdir()}
        assert names == {"config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors"}
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        assert torch.equal(arm.load(out).lm_head.weight, sample_model("llama").lm_head.weight)

    def test_shards_stay_shards(self, folder: Path) -> None:
        weights = self.pickled(folder)
        (folder / "pytorch_model.bin").unlink()
        names = list(weights)
        parts = {"pytorch_model-1.bin": names[:9], "pytorch_model-2.bin": names[9:]}
        for file, part in parts.items():
            torch.save({name: weights[name] for name in part}, folder / file)
        index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        assert "armillary convert" in refusal(folder)
        arm.convert(folder)
        assert sorted(path.name for path in folder.glob("*.safetensors")) == [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ]
        assert torch.equal(arm.load(folder).lm_head.weight, weights["lm_head.weight"])

    def test_an_index_of_pickles_that_points_outside(self, folder: Path) -> None:
        self.pickled(folder)
        (folder / "pytorch_model.bin").rename(folder.parent / "w.bin")
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "../w.bin"}}))
        with pytest.raises(arm.ArmillaryError, match="is not in the model's folder"):
            arm.convert(folder)

    def test_tied_weights_become_copies(self, folder: Path) -> None:
        weights = self.pickled(folder)
        shared = weights["model.embed_tokens.weight"]
        torch.save({**weights, "lm_head.weight": shared, "part": shared[3:5]}, folder / "pytorch_model.bin")
        arm.convert(folder)
        found = load_file(folder / "model.safetensors")
        assert torch.equal(found["lm_head.weight"], shared)
        assert torch.equal(found["part"], shared[3:5])

    @pytest.mark.parametrize(
        "content",
        [
            [1, 2],
            {},
            {"state_dict": {"a": torch.ones(2)}},
            {"a": torch.ones(1).expand(10**12)},
            {"a": torch.eye(3).to_sparse()},
            {f"{i}": x for i in range(50) for x in [torch.ones(10_000)]} | {"b": torch.ones(1)},
        ],
        ids=["list", "empty", "nested", "expanded", "sparse", "large"],
    )
    def test_other_contents_are_refused(self, folder: Path, content: object) -> None:
        self.pickled(folder)
        if isinstance(content, dict) and "b" in content:
            one = torch.ones(10_000)
            content = {f"{i}": one for i in range(50)}  # one storage under many names
        torch.save(content, folder / "pytorch_model.bin")
        with pytest.raises(arm.ArmillaryError):
            arm.convert(folder)
        assert not list(folder.glob("*.safetensors"))
        assert not list(folder.glob(".*"))

    def test_a_model_on_the_hub_that_has_only_pickles(self, folder: Path, tmp_path: Path) -> None:
        self.pickled(folder)
        snapshot = tmp_path / "models--someone--thing" / "snapshots" / ("0" * 40)
        shutil.copytree(folder, snapshot)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
        with pytest.raises(arm.ArmillaryError, match="armillary convert"):
            arm.load("someone/thing", cache_dir=str(tmp_path), local_files_only=True)

    def test_a_configuration_without_a_family(self, folder: Path) -> None:
        settings = json.loads((folder / "config.json").read_text())
        del settings["model_type"]
        (folder / "config.json").write_text(json.dumps(settings))
        assert "no model_type" in refusal(folder)


class TestQuiet:
    def test_transformers_is_silent_by_default(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        edit_weights(folder, lambda weights: weights.update({"unused.weight": torch.ones(2)}))
        plain = run("inspect", folder, "--verify")
        assert plain.returncode == 0
        assert not plain.stderr
        assert not caplog.records
        asked = run("-v", "inspect", folder, "--verify")
        assert asked.returncode == 0
        assert "Loading weights" in asked.stderr
        assert sum("unused.weight" in record.getMessage() for record in caplog.records) == 1

    def test_the_users_settings_are_restored(self, folder: Path) -> None:
        from transformers.utils import logging

        before = logging.get_verbosity()
        try:
            logging.set_verbosity_warning()
            arm.load(folder)
            assert logging.get_verbosity() == logging.WARNING
            with logging.tqdm(total=1) as bar:
                assert not getattr(bar, "disable", True)
        finally:
            logging.set_verbosity(before)


class TestSmallThings:
    @pytest.mark.parametrize("head", ["².³", "1.²", "٣.٤", "1", "1.2.3", "-1.2", "1."])
    def test_heads_that_are_not_numbers(self, head: str) -> None:
        from armillary.probe.dossier import parse_head

        with pytest.raises(arm.ArmillaryError, match="is not a head"):
            parse_head(head)

    @pytest.mark.parametrize("device", ["meta", "meta:0", "nowhere", "xla", "cuda:99", "²", ""])
    def test_devices_that_cannot_compute(self, folder: Path, tmp_path: Path, device: str) -> None:
        said = complaint("scan", folder, "--corpus", "builtin:random", "--out", tmp_path / "out", "--device", device)
        assert "device" in said

    @pytest.mark.parametrize("base", [-10000.0, 0, float("nan"), float("inf"), 1e400, "x", [], True])
    def test_rotary_bases(self, folder: Path, base: object) -> None:
        edit_config(folder, rope_parameters={"rope_type": "default", "rope_theta": base})
        if base is True:
            pytest.skip("true is one")
        refusal(folder)
