"""Scans: numbers equal those of transformers, and stay the same through kills, resumes, damage and other shards."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import xarray as xr

import armillary as arm
from armillary.anatomy.samples import DISTINCT, sample_config, sample_model
from armillary.engines.inside import Inside
from armillary.progress import Progress
from armillary.scanning.folder import plan
from armillary.scanning.job import ScanJob, anatomy_through
from conftest import Atlases, shared
from same_bits import assert_identical

TOKENS = torch.randint(5, 99, (12, 16), generator=torch.Generator().manual_seed(3))
IN_SHARDS: dict[str, Any] = dict(batch=1, shard=1, streams=("positions", "attention"))


class Forks:
    """Processes to kill, forked from one that has already imported everything (which takes seconds)."""

    CODE = (
        "import os, shutil, signal, sys, threading, pandas, torch, xarray, zarr\n"
        "import armillary as arm, armillary.atlas.atlas, armillary.scanning.scan\n"
        "from armillary.progress import Progress\n"
        "torch.set_num_threads(1)\n"
        "class Doomed(Progress):\n"
        "    def __init__(self, batches, delay):\n"
        "        self.left, self.delay = batches, delay\n"
        "    def advance(self, count=1, worker=None):\n"
        "        self.left -= worker is not None\n"
        "        if self.left == 0:\n"
        "            threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"
        "        if self.left < 0:\n"
        "            threading.Event().wait()  # it dies before it can finish, however late the kill comes\n"
        "for line in sys.stdin:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        exec(line)\n"
        "        os._exit(0)\n"
        "    print(child, flush=True)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
    )

    # return freed memory at once, so that the test measures the scan and not the allocator
    PLAIN: ClassVar = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}

    def __init__(self) -> None:
        self.first = subprocess.Popen(
            [sys.executable, "-c", self.CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.PLAIN},
        )

    def start(self, line: str) -> int:
        """Run a line of Python in a new process; returns its id."""
        assert self.first.stdin is not None
        assert self.first.stdout is not None
        self.first.stdin.write(line + "\n")
        self.first.stdin.flush()
        return int(self.first.stdout.readline())

    def exit_code(self) -> int:
        """Wait for the process to end; returns its exit code."""
        assert self.first.stdout is not None
        return int(self.first.stdout.readline())


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    started = Forks()
    yield started
    started.first.communicate()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a scan that stopped after its tenth shard."""

    class StopAt(Progress):
        def piece_merged(self, index: int) -> None:
            if index == 9:
                raise KeyboardInterrupt

    out = tmp_path_factory.mktemp("interrupted") / "a"
    with pytest.raises(KeyboardInterrupt):
        arm.scan(sample_model("llama"), TOKENS, out=out, **IN_SHARDS, progress=StopAt())
    return out


class TestNumbers:
    def test_attention_statistics_equal_eager_transformers(self) -> None:
        """stories15M on tinyshakespeare, T=128, C=32, no special tokens."""
        from transformers import AutoTokenizer

        folder, text = shared("models/stories15M"), shared("corpora/tinyshakespeare.txt")
        atlas = arm.scan(folder, text, length=128, sequences=32, bos="never", streams=("attention",))
        ids = AutoTokenizer.from_pretrained(folder)(text.read_text()[:60_000], add_special_tokens=False).input_ids
        sequences = torch.tensor(ids[: 32 * 128]).view(32, 128)
        assert np.array_equal(atlas.group("corpus")["tokens"], sequences)
        model = arm.load(folder, attn_implementation="eager")
        sums: dict[str, Any] = dict.fromkeys(("entropy", "self_mass", "prev_mass", "first_mass"), 0)
        for batch in sequences.split(8):
            with torch.no_grad():
                a = torch.stack(model(batch, output_attentions=True).attentions).double()[..., 1:, :]
            rows = torch.arange(1, 128)
            sums["entropy"] += -(a * a.clamp(min=1e-300).log()).sum(-1).sum((1, 3))
            sums["self_mass"] += a[..., rows - 1, rows].sum((1, 3))
            sums["prev_mass"] += a[..., rows - 1, rows - 1].sum((1, 3))
            sums["first_mass"] += a[..., 0].sum((1, 3))
        for name, total in sums.items():
            np.testing.assert_allclose(atlas.heads[name], (total / (32 * 127)).flatten(), atol=1e-5)

    def test_hidden_states_equal_transformers(self) -> None:
        model = sample_model("gpt2")
        atlas = arm.scan(model, TOKENS, batch=5, shard=7)
        with torch.no_grad():
            h = torch.stack(model(TOKENS, output_hidden_states=True).hidden_states[:-1]).double()
        residual = atlas.group("residual")
        np.testing.assert_allclose(residual["position_mean"][:3], h.mean(1), atol=1e-6)
        np.testing.assert_allclose(residual["sequence_mean"][:3], h[:, :, 1:].mean(2), atol=1e-6)
        np.testing.assert_allclose(atlas.layers["mean_norm"][:3], h[:, :, 1:].norm(dim=-1).mean((1, 2)), rtol=1e-6)
        covariance = np.cov(h[2, :, 1:].flatten(0, 1).numpy(), rowvar=False, bias=True)
        np.testing.assert_allclose(residual["covariance"][2], covariance, atol=1e-6)

    @pytest.mark.parametrize("name", DISTINCT)
    def test_every_family_scans(self, name: str, atlases: Atlases) -> None:
        atlas = atlases.family(name)
        heads = atlas.heads
        anatomy = arm.describe(sample_config(name))
        assert len(heads) == sum(layer.heads for layer in anatomy.layers)
        assert len(atlas.layers) == len(anatomy.layers) + 1
        assert heads[["entropy", "self_mass", "first_mass", "mean_distance", "logit_mean"]].notna().all(axis=None)
        assert (heads["entropy_norm"] <= 1 + 1e-9).all() or anatomy.layers[0].sinks
        assert atlas.group("input")["lag_covariance"].shape[:2] == (len(anatomy.layers), 4)  # 1, 2, 4, 8 tokens apart

    def test_an_unknown_family_scans(self) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(
            "hyperclovax", vocab_size=99, hidden_size=48, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, intermediate_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )  # fmt: skip
        atlas = arm.scan(AutoModelForCausalLM.from_config(config), TOKENS)
        assert atlas.heads["entropy"].notna().all()
        assert atlas.layers["mean_norm"].notna().all()

    def test_a_model_whose_blocks_cannot_be_found_still_scans(self) -> None:
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(
            "mbart", vocab_size=99, d_model=48, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
        )  # fmt: skip
        model = AutoModel.from_config(config)

        class NotAList(torch.nn.Module):
            def __iter__(self) -> Any:
                return iter(self._modules.values())

        layers, model.encoder.layers = model.encoder.layers, NotAList()
        for i, layer in enumerate(layers):
            model.encoder.layers.add_module(str(i), layer)
        atlas = arm.scan(model, TOKENS)
        assert atlas.heads["entropy"].notna().all()
        assert atlas.layers["mean_norm"].isna().all()

    def test_an_atlas_holds_only_the_requested_streams(self) -> None:
        atlas = arm.scan(sample_model("llama"), TOKENS, streams=("attention",))
        assert set(atlas.tree.children) == {"attention", "corpus", "spectral", "tables"}
        with pytest.raises(arm.ArmillaryError, match="`streams=attention"):
            atlas.group("residual")

    def test_bfloat16_models(self, atlases: Atlases) -> None:
        exact = atlases("llama", TOKENS)
        half = arm.scan(sample_model("llama").to(torch.bfloat16), TOKENS)
        assert half.group("residual")["position_mean"].dtype == np.float64
        np.testing.assert_allclose(half.heads["entropy"], exact.heads["entropy"], rtol=0.05)


class TestSameBits:
    def test_with_or_without_a_folder(self, atlases: Atlases) -> None:
        assert_identical(arm.scan(sample_model("llama"), TOKENS), atlases("llama", TOKENS))

    @pytest.mark.slow
    def test_resumed_after_an_interruption_in_the_middle_of_a_shard(self, tmp_path: Path) -> None:
        class Stop(Progress):
            def __init__(self, batches: int) -> None:
                self.left = batches

            def advance(self, count: int = 1, worker: object = None) -> None:
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt

        model = sample_model("llama")
        whole = arm.scan(model, TOKENS, batch=1, shard=2)
        for batches in (3, 4, 2):
            with pytest.raises(KeyboardInterrupt):
                arm.scan(model, TOKENS, batch=1, shard=2, out=tmp_path / "a", resume=True, progress=Stop(batches))
        resumed = arm.scan(model, TOKENS, batch=1, shard=2, out=tmp_path / "a", resume=True)
        assert_identical(whole, resumed)
        assert sorted(path.name for path in (tmp_path / "a").glob("*[!6]")) == ["atlas.zarr", "scan.json"]

    def test_killed_five_times(self, tmp_path: Path, forks: Forks) -> None:
        """kill -9 at random moments, then --resume: the arrays equal those of an uninterrupted run bit for bit."""
        sample_model("llama").save_pretrained(tmp_path / "model")
        settings: dict[str, Any] = dict(sequences=24, length=16, batch=1, shard=1, second_pass=8)
        model, out = str(tmp_path / "model"), str(tmp_path / "a")
        scan = f"arm.scan({model!r}, 'builtin:random', out={out!r}, resume=True, **{settings}"
        rng = random.Random(0)
        for _ in range(5):
            forks.start(f"{scan}, progress=Doomed({rng.randint(1, 3)}, {0.03 * rng.random()}))")
            assert forks.exit_code() == -signal.SIGKILL
        assert not (tmp_path / "a" / "atlas.zarr").exists()
        forks.start(f"{scan})")
        assert forks.exit_code() == 0
        whole = arm.scan(tmp_path / "model", "builtin:random", **settings)
        assert_identical(whole, arm.open_atlas(tmp_path / "a"))

    @pytest.mark.parametrize("kind", ["shard", "series", "merged"])
    def test_a_damaged_shard_is_detected_and_computed_again(
        self, kind: str, interrupted: Path, tmp_path: Path, atlases: Atlases
    ) -> None:
        model, whole = sample_model("llama"), atlases("llama", TOKENS, **IN_SHARDS)
        shutil.copytree(interrupted, tmp_path / "a")
        damaged = sorted((tmp_path / "a" / "work").glob(f"{kind}-?????"))[-1]
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        assert_identical(whole, arm.scan(model, TOKENS, out=tmp_path / "a", resume=True, **IN_SHARDS))

    def test_a_full_disk_loses_no_finished_shard(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(file: int) -> None:
            if "shard-00004" in os.readlink(f"/proc/self/fd/{file}"):
                raise OSError(errno.ENOSPC, "No space left on device")

        class Count(Progress):
            computed = 0

            def advance(self, count: int = 1, worker: object = None) -> None:
                self.computed += worker is not None

        model, count = sample_model("llama"), Count()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(arm.ArmillaryError, match=r"no space left.*shard-00004"):
                arm.scan(model, TOKENS, out=tmp_path / "a", **IN_SHARDS)
        resumed = arm.scan(model, TOKENS, out=tmp_path / "a", resume=True, progress=count, **IN_SHARDS)
        assert count.computed == 12 - 4
        assert_identical(arm.scan(model, TOKENS, **IN_SHARDS), resumed)

    def test_files_without_a_record_are_not_trusted(self, tmp_path: Path) -> None:
        """A kill between clearing the record and the work of another scan must not mix the two."""

        class Stop(Progress):
            def piece_merged(self, index: int) -> None:
                if index == 3:
                    raise KeyboardInterrupt

        model, out = sample_model("llama"), tmp_path / "a"
        with pytest.raises(KeyboardInterrupt):
            arm.scan(model, TOKENS[:6], out=out, progress=Stop(), **IN_SHARDS)
        (out / "work" / "atlas.zarr").mkdir()  # and half a store
        (out / "scan.json").unlink()
        other = TOKENS[:6].flip(0)
        assert_identical(arm.scan(model, other, out=out, **IN_SHARDS), arm.scan(model, other, **IN_SHARDS))

    def test_arrays_of_a_scan_without_a_folder_stay_readable(self) -> None:
        entropy = arm.scan(sample_model("llama"), TOKENS, streams=("attention",)).tree["attention/entropy"]
        assert (entropy.to_numpy() > 0).all()

    def test_when_nan_may_change_on_resume(self, tmp_path: Path) -> None:
        model, bad = sample_model("llama"), TOKENS.clone()
        bad[7, 3] = 3
        with torch.no_grad():
            model.model.embed_tokens.weight[3] = torch.inf
        with pytest.raises(arm.ArmillaryError, match="`when_nan=skip`"):
            arm.scan(model, bad, out=tmp_path / "a", **IN_SHARDS)
        resumed = arm.scan(model, bad, out=tmp_path / "a", resume=True, when_nan="skip", **IN_SHARDS)
        assert resumed.attrs["skipped_blocks"] == [7]

    def test_shards_cover_the_sequences_once(self) -> None:
        covered = [sequence for shard in plan(101, 7) for sequence in range(shard.first, shard.last)]
        assert covered == list(range(101))


class TestMemory:
    def test_peak_does_not_grow_with_the_number_of_sequences(self, tmp_path: Path, forks: Forks) -> None:
        sample_model("llama").save_pretrained(tmp_path / "model")

        def peak(sequences: int) -> int:
            """The peak memory of a scan, in kB."""
            forks.start(
                "from armillary.lenses import decomposition; decomposition.IN_MEMORY = 0; "  # a bounded convenience
                f"arm.scan({str(tmp_path / 'model')!r}, 'builtin:random', out={str(tmp_path / str(sequences))!r}, "
                f"sequences={sequences}, length=16, batch=64, shard=64)"
                # not ru_maxrss: that is inherited from the process that started this one
                f"; shutil.copy('/proc/self/status', {str(tmp_path / 'status')!r})"
            )
            assert forks.exit_code() == 0
            status = (tmp_path / "status").read_text().splitlines()
            return int(next(line.split()[1] for line in status if line.startswith("VmHWM")))

        grown = peak(1024) - peak(64)
        assert grown < 2.5 * (1024 - 64)  # kB: less than the vectors that a scan stores for every sequence


class TestRefusals:
    def test_two_scans_into_one_folder(self, tmp_path: Path) -> None:
        model, refused = sample_model("llama"), []

        class Intruder(Progress):
            def advance(self, count: int = 1, worker: object = None) -> None:
                with pytest.raises(arm.ArmillaryError, match="another scan is writing"):
                    arm.scan(sample_model("llama"), TOKENS, out=tmp_path / "a", resume=True)
                refused.append(count)

        arm.scan(model, TOKENS, out=tmp_path / "a", progress=Intruder())
        assert refused

    def test_a_folder_with_a_scan_or_an_atlas_or_other_files(self, tmp_path: Path) -> None:
        class Stop(Progress):
            def advance(self, count: int = 1, worker: object = None) -> None:
                raise KeyboardInterrupt

        model, out = sample_model("llama"), tmp_path / "a"
        with pytest.raises(KeyboardInterrupt):
            arm.scan(model, TOKENS, out=out, progress=Stop())
        with pytest.raises(arm.ArmillaryError, match="`resume=True` continues it"):
            arm.scan(model, TOKENS, out=out)
        with pytest.raises(arm.ArmillaryError, match="settings skip: was 1, now 2"):
            arm.scan(model, TOKENS, out=out, skip=2, resume=True)
        with pytest.raises(arm.ArmillaryError, match="model weights"):
            arm.scan(sample_model("llama", seed=1), TOKENS, out=out, resume=True)
        with pytest.raises(arm.ArmillaryError, match="corpus sha256"):
            arm.scan(model, TOKENS.flip(0), out=out, resume=True)
        arm.scan(model, TOKENS, out=out, overwrite=True)
        with pytest.raises(arm.ArmillaryError, match="holds a finished atlas"):
            arm.scan(model, TOKENS, out=out)
        arm.scan(model, TOKENS, out=out, resume=True)  # the same scan, finished: nothing to do
        with pytest.raises(arm.ArmillaryError, match="holds a finished atlas"):
            arm.scan(model, TOKENS, out=out, skip=2, resume=True)
        arm.scan(model, TOKENS, out=out, skip=2, overwrite=True)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "thesis.tex").write_text("years of work")
        with pytest.raises(arm.ArmillaryError, match="holds other files"):
            arm.scan(model, TOKENS, out=tmp_path / "b")
        assert (tmp_path / "b" / "thesis.tex").exists()

    def test_an_out_that_is_a_file_or_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(arm.ArmillaryError, match="is a file"):
            arm.scan(sample_model("llama"), TOKENS, out=tmp_path / "file")
        with pytest.raises(arm.ArmillaryError, match="cannot be written"):
            arm.scan(sample_model("llama"), TOKENS, out="/sys/armillary")

    @pytest.mark.parametrize("when", ["stop", "skip"])
    def test_a_nan_is_named_by_layer_and_sequence(self, when: str, tmp_path: Path) -> None:
        model = sample_model("llama")
        bad = TOKENS.clone()
        bad[7, 3] = bad[9, 5] = 3  # a token that only these two sequences have
        with torch.no_grad():
            model.model.embed_tokens.weight[3] = 1e3
        layer = model.model.layers[1]
        layer.register_forward_hook(lambda m, a, out: torch.where(a[0].abs().amax((1, 2), True) > 500, torch.nan, out))
        if when == "stop":
            with pytest.raises(arm.ArmillaryError, match="layer 1 of sequence 7 gives NaN"):
                arm.scan(model, bad, batch=4, out=tmp_path / "a")
            return
        atlas = arm.scan(model, bad, batch=4, shard=4, when_nan="skip", out=tmp_path / "a")
        assert atlas.attrs["skipped_blocks"] == [7, 9]
        kept = np.delete(np.arange(12), [7, 9])
        assert np.array_equal(atlas.group("corpus")["tokens"], bad[kept])
        alone = arm.scan(model, bad, batch=4, shard=1, when_nan="skip")  # a shard with no sequence left
        assert alone.attrs["skipped_blocks"] == [7, 9]
        clean = arm.scan(model, bad[kept])
        np.testing.assert_allclose(atlas.heads["entropy"], clean.heads["entropy"], rtol=1e-10)
        np.testing.assert_allclose(
            atlas.group("residual")["sequence_mean"], clean.group("residual")["sequence_mean"], atol=1e-6
        )

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (dict(skip=15), "`skip=15` leaves too little"),
            (dict(batch=0), "`batch=0` is too small"),
            (dict(streams=("positions", "magic")), "no stream 'magic'"),
            (dict(lenght=4), "no parameter 'lenght'"),
        ],
    )
    def test_settings_that_make_no_sense(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(arm.ArmillaryError, match=words):
            arm.scan(sample_model("llama"), TOKENS, **settings)

    def test_tokens_and_devices_that_do_not_fit(self, tmp_path: Path) -> None:
        model = sample_model("llama")
        with pytest.raises(arm.ArmillaryError, match="vocabulary is 0 to 98"):
            arm.scan(model, TOKENS + 50)
        with pytest.raises(arm.ArmillaryError, match="whole numbers of shape"):
            arm.scan(model, TOKENS.float())
        with pytest.raises(arm.ArmillaryError, match="without a tokenizer"):
            arm.scan(model, "builtin:prose")
        with pytest.raises(arm.ArmillaryError, match="65 tokens"):
            arm.scan(sample_model("gpt2"), torch.full((2, 65), 7))
        model.save_pretrained(tmp_path / "model")
        with pytest.raises(arm.ArmillaryError, match="no device 'cuda:7'"):
            arm.scan(tmp_path / "model", "builtin:random", device="cuda:7")
        with pytest.raises(arm.ArmillaryError, match="no dtype 'int3'"):
            arm.scan(tmp_path / "model", "builtin:random", dtype="int3")


def test_the_store_opens_with_xarray_alone(atlases: Atlases) -> None:
    tree = xr.open_datatree(atlases.folder("llama", TOKENS) / "atlas.zarr", engine="zarr", consolidated=False)
    assert tree["attention/entropy"].dims == ("layer", "head")
    assert tree["residual/position_mean"].sel(layer=3, position=5).shape == (48,)
    assert tree.attrs["settings"]["length"] == 16


def test_weights_of_a_model_in_this_process_are_read_where_they_are() -> None:
    """Unless it is in training mode: reading must not depend on what some adapters do when the mode changes."""
    model = sample_model("llama").eval()
    own = arm.describe(model).weights(1)
    for training in (False, True):
        model.train(training)
        engine = Inside()
        read = anatomy_through(engine, engine.start(ScanJob(model))).weights(1)
        for part in ("q", "k", "v", "o"):
            for ours, theirs in zip(getattr(read, part), getattr(own, part), strict=True):
                assert torch.equal(ours, theirs)
                assert (ours.data_ptr() == theirs.data_ptr()) != training
                assert not ours.requires_grad
        assert model.training == training
