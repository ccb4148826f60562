"""An atlas has one model: hashes cover every byte of the weights and config.json."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import armillary as arm
from armillary.anatomy.identity import config_hash, fingerprint, folder_identity, tensor_hash
from armillary.anatomy.loading import load_for
from armillary.anatomy.samples import sample_model
from armillary.files import hashes as file_hashes
from armillary.files.hashes import file_hash
from armillary.progress import Progress
from armillary.scanning import weights as weighing

TOKENS = torch.arange(96).reshape(6, 16) % 90


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARMILLARY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sample_model("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change_embeddings(folder: Path) -> None:
    """Every eighth number of the embeddings, which the sampled hash of old did not see."""
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if "embed_tokens" in name)
    tensors[name].view(-1)[4::8] += 0.5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class StopAfterAShard(Progress):
    def piece_merged(self, index: int) -> None:
        raise KeyboardInterrupt


class TestLoadedModels:
    def test_every_element_counts(self) -> None:
        model = sample_model("gpt2")
        before, seen = fingerprint(model), set()
        for name, parameter in model.named_parameters():
            for place in {0, parameter.numel() // 2, parameter.numel() - 1}:
                with torch.no_grad():
                    kept = parameter.view(-1)[place].clone()
                    parameter.view(-1)[place] = torch.nextafter(kept, torch.tensor(9.0))
                    seen.add(fingerprint(model))
                    assert fingerprint(model) != before, name
                    parameter.view(-1)[place] = kept
        assert fingerprint(model) == before

    def test_type_names_and_shapes_count_but_not_order_mode_or_tap(self) -> None:
        model = sample_model("llama")
        before = fingerprint(model)
        assert fingerprint(model.train()) == before
        with arm.Tap(model, lambda view: None):
            assert fingerprint(model) == before
        assert fingerprint(sample_model("llama")) == before
        assert fingerprint(sample_model("llama").to(torch.bfloat16)) != before
        one, other = nn.ParameterDict(), nn.ParameterDict()
        one["a"], one["b"] = torch.ones(2, 3), torch.zeros(2)
        other["b"], other["a"] = torch.zeros(2), torch.ones(2, 3)
        assert fingerprint(one) == fingerprint(other)
        other["a"] = torch.ones(3, 2)
        assert fingerprint(one) != fingerprint(other)

    def test_the_bytes_are_those_of_the_dimensions_in_order(self) -> None:
        tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
        assert tensor_hash(tensor.T) == tensor_hash(tensor.T.contiguous())
        assert tensor_hash(tensor.T) != tensor_hash(tensor)
        for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64):
            changed = tensor.to(dtype)
            before = tensor_hash(changed)
            changed[4, 6] = 0 if changed[4, 6] else 1
            assert tensor_hash(changed) != before
        assert tensor_hash(torch.tensor(1.0)) != tensor_hash(torch.tensor(2.0))
        assert tensor_hash(torch.empty(0))

    def test_pieces_join(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tensor = torch.randn(1000)
        whole = tensor_hash(tensor)
        monkeypatch.setattr("armillary.anatomy.identity.CHUNK", 36)
        assert tensor_hash(tensor) == whole

    def test_a_model_that_is_partly_on_the_disk(self, folder: Path, tmp_path: Path) -> None:
        whole = arm.load(folder)
        places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
        layers = {f"model.layers.{i}": "disk" for i in range(len(whole.model.layers))}
        offloaded = arm.load(folder, device_map={**places, **layers}, offload_folder=str(tmp_path / "spill"))
        assert any(parameter.is_meta for parameter in offloaded.parameters())
        assert fingerprint(offloaded) == fingerprint(whole)

    def test_saved_and_loaded_again_it_is_the_same(self, folder: Path) -> None:
        model, loaded = sample_model("llama"), arm.load(folder)
        assert (fingerprint(model), config_hash(model)) == (fingerprint(loaded), config_hash(loaded))


class TestScans:
    def stopped(self, folder: Path, out: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            arm.scan(folder, TOKENS, out=out, shard=2, progress=StopAfterAShard())
        assert (out / "work" / "shard-00000").exists()

    def test_a_changed_model_does_not_resume(self, folder: Path, tmp_path: Path) -> None:
        self.stopped(folder, tmp_path / "a")
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        change_embeddings(copy)
        with pytest.raises(arm.ArmillaryError, match="model weights: was"):
            arm.scan(copy, TOKENS, out=tmp_path / "a", shard=2, resume=True)
        arm.scan(folder, TOKENS, out=tmp_path / "a", shard=2, resume=True)

    def test_a_changed_configuration_does_not_resume(self, folder: Path, tmp_path: Path) -> None:
        self.stopped(folder, tmp_path / "a")
        change_config(folder, rms_norm_eps=1e-3)
        with pytest.raises(arm.ArmillaryError, match="model config: was"):
            arm.scan(folder, TOKENS, out=tmp_path / "a", shard=2, resume=True)

    def test_the_command_ends_with_two(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from armillary.cli import main

        self.stopped(folder, tmp_path / "a")
        change_embeddings(folder)
        words = ["scan", folder, "--corpus", "builtin:random", "--out", tmp_path / "a", "--resume", "--length", 16]
        monkeypatch.setattr("sys.argv", ["armillary", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "model weights: was" in capsys.readouterr().err

    def test_parts_of_two_models_are_not_merged(self, folder: Path, tmp_path: Path) -> None:
        parts = [tmp_path / "1", tmp_path / "2"]
        arm.scan_part(folder, TOKENS, part="1/2", out=parts[0], shard=2)
        kept = tmp_path / "kept"
        shutil.copytree(folder, kept)
        change_embeddings(folder)
        arm.scan_part(folder, TOKENS, part="2/2", out=parts[1], shard=2)
        with pytest.raises(arm.ArmillaryError, match="parts of different scans"):
            arm.merge(parts, out=tmp_path / "merged")
        arm.scan_part(kept, TOKENS, part="2/2", out=parts[1], shard=2, overwrite=True)
        with pytest.raises(arm.ArmillaryError, match="other weights"):
            arm.merge(parts, out=tmp_path / "merged", model=folder)
        arm.merge(parts, out=tmp_path / "merged", model=kept)

    def test_a_text_runs_only_with_the_scanned_model(self, folder: Path, tmp_path: Path) -> None:
        recorded = arm.scan(folder, TOKENS, out=tmp_path / "a").attrs["model"]
        load_for(recorded, str(folder))
        del recorded["config"]
        with pytest.raises(arm.ArmillaryError, match="earlier Armillary"):
            load_for(recorded, str(folder))
        recorded = arm.open_atlas(tmp_path / "a").attrs["model"]
        change_config(folder, rms_norm_eps=1e-3)
        with pytest.raises(arm.ArmillaryError, match=r"another config\.json"):
            load_for(recorded, str(folder))
        change_embeddings(folder)
        with pytest.raises(arm.ArmillaryError, match="other weights"):
            load_for(recorded, str(folder))


class TestFolders:
    def test_a_copy_is_the_same_and_a_changed_one_is_not(self, folder: Path, tmp_path: Path) -> None:
        before = folder_identity(folder)
        shutil.copytree(folder, tmp_path / "copy")
        assert folder_identity(tmp_path / "copy") == before
        change_config(tmp_path / "copy", _name_or_path="elsewhere", transformers_version="9")
        assert folder_identity(tmp_path / "copy") == before
        change_config(tmp_path / "copy", rms_norm_eps=1e-3)
        assert folder_identity(tmp_path / "copy") != before
        times = (folder / "model.safetensors").stat()
        change_embeddings(folder)
        os.utime(folder / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
        assert folder_identity(folder) != before

    def test_weights_do_not_resume_with_another_model(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stopping(self: Any, position: int) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(weighing._Layers, "merge", stopping)
            with pytest.raises(KeyboardInterrupt):
                arm.weigh(folder, out=tmp_path / "w")
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        shutil.copytree(tmp_path / "w", tmp_path / "v")
        arm.weigh(copy, out=tmp_path / "w", resume=True)  # elsewhere, but the same
        change_embeddings(copy)
        with pytest.raises(arm.ArmillaryError, match="model weights: was"):
            arm.weigh(copy, out=tmp_path / "v", resume=True)

    def test_a_checkpoint_that_changes_while_its_layers_are_read(self, folder: Path, tmp_path: Path) -> None:
        class Change(Progress):
            saved = 0

            def piece_saved(self) -> None:
                self.saved += 1
                if self.saved == 1:
                    change_embeddings(folder)

        with pytest.raises(arm.ArmillaryError, match="changed while its layers were read"):
            arm.weigh(folder, out=tmp_path / "w", progress=Change())
        assert not (tmp_path / "w").exists()


class TestCache:
    def settled(self, path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
        path.write_bytes(text)
        monkeypatch.setattr(file_hashes, "SETTLED", -1.0)
        return file_hash(path)

    def test_a_file_is_read_once(self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = self.settled(tmp_path / "file", b"numbers", monkeypatch)
        (entry,) = (cache / "hashes").iterdir()
        with monkeypatch.context() as patch:
            patch.setattr(hashlib, "file_digest", None)  # would fail
            assert file_hash(tmp_path / "file") == first
        for damage in (b"", b"[]", b'{"state": 1}', entry.read_bytes().replace(first[:8].encode(), b"00000000")):
            entry.write_bytes(damage)
            assert file_hash(tmp_path / "file") == first
        assert not [path for path in tmp_path.iterdir() if path.name not in ("file", "cache")]

    def test_a_change_that_sets_the_time_back_is_seen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "file"
        first = self.settled(file, b"numbers", monkeypatch)
        times = file.stat()
        time.sleep(0.02)
        with file.open("r+b") as opened:
            opened.write(b"N")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        now = file.stat()
        assert (now.st_size, now.st_mtime_ns, now.st_ino) == (times.st_size, times.st_mtime_ns, times.st_ino)
        assert file_hash(file) != first

    def test_a_file_that_changed_just_now_is_not_cached(
        self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_hashes, "SETTLED", 3600.0)  # however slow this machine is
        (tmp_path / "file").write_bytes(b"numbers")
        file_hash(tmp_path / "file")
        assert not cache.exists()

    def test_no_cache_and_one_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = self.settled(tmp_path / "file", b"numbers", monkeypatch)
        for place in ("", "/proc/nowhere", str(tmp_path / "file")):
            monkeypatch.setenv("ARMILLARY_CACHE", place)
            assert file_hash(tmp_path / "file") == first
