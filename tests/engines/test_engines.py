"""Engines: the same arrays from one process and several, also when workers die."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import armillary as arm
from armillary.anatomy.samples import sample_config, sample_model
from armillary.atlas.atlas import Atlas
from armillary.engines.engine import Engine
from armillary.engines.inside import Inside
from armillary.progress import Progress
from armillary.scanning.job import Facts, ScanBench, ScanJob, own_gpus
from armillary.streams.declaration import Pass
from same_bits import assert_identical
from workers import SETTINGS, TOKENS, Listener, OrderedLocal, Orders, alive, poisoned, saved_model, trapped, wait_for


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on disk."""
    return saved_model(tmp_path_factory.mktemp("engines") / "model")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Atlas:
    """Its scan by one process."""
    return arm.scan(folder, TOKENS, **SETTINGS)


@pytest.fixture(scope="module")
def two_processes() -> Iterator[OrderedLocal]:
    """Two worker processes, started once for all tests."""
    engine = OrderedLocal(2)
    yield engine
    engine.close()


@pytest.fixture
def pair(two_processes: OrderedLocal) -> OrderedLocal:
    """The two processes, with no orders from another test."""
    two_processes.orders = None
    return two_processes


class TestLocal:
    def test_two_processes_give_the_bits_of_one(
        self, folder: Path, whole: Atlas, pair: OrderedLocal, tmp_path: Path
    ) -> None:
        listener, pair.orders = Listener(), Orders(tmp_path, meet=2)
        assert_identical(whole, arm.scan(folder, TOKENS, engine=pair, progress=listener, **SETTINGS))
        assert len(listener.workers) == 2
        assert os.getpid() not in {worker.process for worker in listener.workers}

    @pytest.mark.slow
    def test_workers_killed_in_the_middle(self, folder: Path, whole: Atlas, pair: OrderedLocal, tmp_path: Path) -> None:
        listener, pair.orders = Listener(), Orders(tmp_path, deaths=((Pass.FIRST, 4), (Pass.SAMPLE, 0)))
        assert_identical(whole, arm.scan(folder, TOKENS, engine=pair, progress=listener, **SETTINGS))
        assert ["SIGKILL" in note for note in listener.deaths] == [True, True]
        assert listener.lost == 2 * TOKENS.shape[1]  # a batch of each

    def test_another_engine_resumes_the_scan(
        self, folder: Path, whole: Atlas, pair: OrderedLocal, tmp_path: Path
    ) -> None:
        class Stop(Progress):
            left = 5

            def advance(self, count: int = 1, worker: object = None) -> None:
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt

        out = tmp_path / "a"
        for engine in (pair, Inside()):
            with pytest.raises(KeyboardInterrupt):
                arm.scan(folder, TOKENS, out=out, resume=True, engine=engine, progress=Stop(), **SETTINGS)
        assert_identical(whole, arm.scan(folder, TOKENS, out=out, resume=True, **SETTINGS))

    def test_the_driver_is_killed_and_leaves_no_orphans(self, folder: Path, whole: Atlas, tmp_path: Path) -> None:
        out = tmp_path / "a"
        np.save(tmp_path / "tokens.npy", TOKENS.numpy())
        code = (
            "import sys, numpy, armillary as arm\n"
            "from armillary.progress import Progress\n"
            "class Say(Progress):\n"
            "    batches = 0\n"
            "    def advance(self, count=1, worker=None):\n"
            "        print(worker.process, flush=True)\n"
            "        self.batches += 1\n"
            "        if self.batches == 6: sys.stdin.read()  # until it is killed\n"
            f"arm.scan({str(folder)!r}, numpy.load({str(tmp_path / 'tokens.npy')!r}), out={str(out)!r}, workers=2,\n"
            f"         progress=Say(), **{SETTINGS})\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as driver:
            assert driver.stdout is not None
            workers = {int(driver.stdout.readline()) for _ in range(6)}
            assert any(map(alive, workers))
            driver.kill()
        wait_for(lambda: not any(map(alive, workers)), "the workers to end")
        assert not (out / "atlas.zarr").exists()
        assert_identical(whole, arm.scan(folder, TOKENS, out=out, resume=True, **SETTINGS))

    def test_a_sequence_that_raises_is_named_and_the_rest_is_kept(self, pair: OrderedLocal, tmp_path: Path) -> None:
        model, out = trapped(tmp_path / "model", "raise RuntimeError('a bad day')"), tmp_path / "a"
        asked: dict[str, Any] = {**SETTINGS, "batch": 2, "trust_remote_code": True}
        with pytest.raises(arm.ArmillaryError) as told:
            arm.scan(model, poisoned(7), out=out, engine=pair, **asked)
        assert "sequence 7 cannot be run" in str(told.value)
        assert "shard 3 (sequences 6 to 7) failed 3 times" in str(told.value)
        assert "RuntimeError: a bad day" in str(told.value)
        kept = {path.name for path in (out / "work").glob("shard-?????")}
        assert {"shard-00000", "shard-00001", "shard-00002"} <= kept
        with pytest.raises(arm.ArmillaryError, match=r"sequence 7 cannot be run: RuntimeError: a bad day"):
            arm.scan(model, poisoned(7), out=out, resume=True, **asked)  # the message is the same in this process

    @pytest.mark.slow
    def test_a_sequence_that_kills_every_worker_is_named(self, pair: OrderedLocal, tmp_path: Path) -> None:
        model, out = trapped(tmp_path / "model", "os.kill(os.getpid(), signal.SIGKILL)"), tmp_path / "a"
        with pytest.raises(arm.ArmillaryError, match="sequence 5 cannot be run") as told:
            arm.scan(model, poisoned(5), out=out, engine=pair, trust_remote_code=True, **{**SETTINGS, "batch": 2})
        assert "SIGKILL" in str(told.value)
        assert {"shard-00000", "shard-00001"} <= {path.name for path in (out / "work").glob("shard-?????")}

    def test_weights_layer_by_layer(self, folder: Path, pair: OrderedLocal, tmp_path: Path) -> None:
        alone = arm.weigh(folder, against="random")
        assert_identical(alone, arm.weigh(folder, against="random", engine=pair, out=tmp_path / "a"))


class TestRefusals:
    def test_a_loaded_model_stays_in_its_process(self) -> None:
        with pytest.raises(arm.ArmillaryError, match="loaded in this process cannot be sent to other workers"):
            arm.scan(sample_model("llama"), TOKENS, workers=2)

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            (dict(workers=0), "at least 1 worker, not 0"),
            (dict(engine="dask"), "no engine 'dask'"),
            (dict(address="auto"), "add `engine=ray`"),
        ],
    )
    def test_invalid_engine_settings(self, asked: dict[str, Any], words: str) -> None:
        with pytest.raises(arm.ArmillaryError, match=words) as error:
            arm.scan(sample_model("llama"), TOKENS, **asked)
        assert [error.value.given] == list(asked.values())
        assert error.value.expected

    def test_a_model_that_workers_cannot_load_is_reported_once(self, pair: OrderedLocal, tmp_path: Path) -> None:
        sample_config("llama").save_pretrained(tmp_path / "m")
        save_file({"x": torch.zeros(1)}, tmp_path / "m" / "model.safetensors")
        with pytest.raises(arm.ArmillaryError, match="has no tensor named"):
            arm.scan(tmp_path / "m", "builtin:random", engine=pair)

    def test_workers_with_other_weights_or_programs_are_refused(self) -> None:
        job = ScanJob("model")
        first = job_facts(0)
        assert job.differences(first, job_facts(0)) == []
        assert job.differences(first, job_facts(1)) == ["it has other weights"]
        other = replace(first, versions={**first.versions, "torch": "1.0"})
        assert job.differences(first, other) == [f"torch 1.0 instead of {first.versions['torch']}"]


def job_facts(seed: int) -> Facts:
    return ScanBench(sample_model("llama", seed=seed)).facts


class TestDeviceMaps:
    def test_layers_that_wait_on_disk_give_the_same_bits(self, folder: Path, whole: Atlas) -> None:
        """accelerate reads layers 1 and 2 when they run; the tap and the weights per head follow."""
        names = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", "model.layers.0")
        places = {**dict.fromkeys(names, "cpu"), "model.layers.1": "disk", "model.layers.2": "disk"}
        assert_identical(whole, arm.scan(folder, TOKENS, device_map=places, **SETTINGS))

    def test_a_device_and_a_map_contradict_each_other(self, folder: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match="contradict"):
            arm.scan(folder, TOKENS, device="cpu", device_map="auto")

    def test_workers_share_the_gpus_of_a_machine(self) -> None:
        assert [list(own_gpus(number, 2, 8)) for number in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [list(own_gpus(number, 4, 2)) for number in range(4)] == [[0], [1], [0], [1]]
        assert list(own_gpus(0, 2, 0)) == []

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has fewer than two GPUs")
    def test_layers_on_two_gpus(self, folder: Path, whole: Atlas) -> None:
        names = ("model.embed_tokens", "model.rotary_emb", "model.layers.0")
        places = {**dict.fromkeys(names, 0), **dict.fromkeys(("model.layers.1", "model.layers.2"), 1)}
        spread = arm.scan(folder, TOKENS, device_map={**places, "model.norm": 1, "lm_head": 1}, **SETTINGS)
        assert_identical(arm.scan(folder, TOKENS, device="cuda:0", **SETTINGS), spread)
        np.testing.assert_allclose(spread.heads["entropy"], whole.heads["entropy"], rtol=1e-4)

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has fewer than two GPUs")
    def test_a_gpu_for_each_worker(self, folder: Path) -> None:
        alone = arm.scan(folder, TOKENS, device="cuda:0", **SETTINGS)
        assert_identical(alone, arm.scan(folder, TOKENS, device="cuda", workers=2, **SETTINGS))


@pytest.mark.slow
def test_the_scan_of_several_corpora_loads_the_model_once(folder: Path, tmp_path: Path) -> None:
    engine: Engine = Inside()
    arm.scan(folder, TOKENS, engine=engine, out=tmp_path / "a", **SETTINGS)
    bench = engine._bench  # type: ignore[attr-defined]
    arm.scan(folder, TOKENS.flip(0), engine=engine, out=tmp_path / "b", **SETTINGS)
    assert engine._bench is bench  # type: ignore[attr-defined]


def test_the_page_shows_the_numbers_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/scaling.md is what bench/scaling.py --render makes of the records."""
    bench = Path(__file__).resolve().parents[2] / "bench"
    monkeypatch.syspath_prepend(str(bench))
    import scaling_page

    page = scaling_page.PAGE.read_text(encoding="utf-8")
    assert scaling_page.rendered(page) == page
