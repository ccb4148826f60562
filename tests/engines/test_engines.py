"""Engines: the same arrays from one process, several, and a Ray cluster, also when workers die."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import armillary as arm
from armillary.anatomy.samples import sample_config, sample_model
from armillary.atlas.atlas import Atlas
from armillary.engines import opened
from armillary.engines.driving import drive
from armillary.engines.engine import Advanced, Done, Engine, Failed, Lost, Report, Task, Worker
from armillary.engines.inside import Inside
from armillary.engines.local import Local
from armillary.engines.schedule import AHEAD, Schedule
from armillary.progress import Progress
from armillary.scanning.driver import shard_failure
from armillary.scanning.folder import Part, plan
from armillary.scanning.job import ScanJob, own_gpus
from armillary.scanning.passes import plan_further
from armillary.scanning.settings import scan_settings, wanted_of
from armillary.streams.declaration import Pass
from armillary.terminal.progress import Rates
from same_bits import assert_identical

TOKENS = torch.randint(5, 99, (12, 16), generator=torch.Generator().manual_seed(3))
SETTINGS: dict[str, Any] = dict(batch=1, shard=2, second_pass=6)
POISON = 3
"""A token that does not occur in TOKENS."""


class Listener(Progress):
    """Records workers and notes; kills workers at chosen batches."""

    def __init__(self, *kill_at: int, expected: int = 1) -> None:
        self.kill_at, self.expected = kill_at, expected
        self.batches = 0
        self.workers: set[Worker] = set()
        self.notes: list[str] = []
        self.lost = 0

    def advance(self, count: int = 1, worker: object = None) -> None:
        self.lost += max(0, -count)
        if isinstance(worker, Worker):
            self.workers.add(worker)
            self.batches += 1
            if len(self.workers) < self.expected:
                time.sleep(5)  # the driver gives out nothing meanwhile, so that there is work when the others are ready
            if self.batches in self.kill_at:
                os.kill(worker.process, signal.SIGKILL)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on disk."""
    place = tmp_path_factory.mktemp("engines") / "model"
    sample_model("llama").save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def whole(folder: Path) -> Atlas:
    """Its scan by one process."""
    return arm.scan(folder, TOKENS, **SETTINGS)


@pytest.fixture(scope="module")
def pair() -> Iterator[Local]:
    """Two worker processes, started once for all tests."""
    engine = Local(2)
    yield engine
    engine.close()


def trapped(place: Path, what: str) -> Path:
    """A model whose code does something bad on sequences with the token POISON."""
    sample_model("llama").save_pretrained(place)
    config = json.loads((place / "config.json").read_text())
    config |= {"architectures": ["Trapped"], "auto_map": {"AutoModelForCausalLM": "trap.Trapped"}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "trap.py").write_text(
        "import os, signal\n"
        "from transformers import LlamaForCausalLM\n"
        "class Trapped(LlamaForCausalLM):\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.model.register_forward_pre_hook(self.look, with_kwargs=True)\n"
        "    def look(self, module, args, kwargs):\n"
        f"        if (kwargs['input_ids'] == {POISON}).any(): {what}\n"
    )
    return place


def poisoned(*sequences: int) -> torch.Tensor:
    tokens = TOKENS.clone()
    tokens[list(sequences), 5] = POISON
    return tokens


class TestLocal:
    def test_two_processes_give_the_bits_of_one(self, folder: Path, whole: Atlas, pair: Local) -> None:
        listener = Listener()
        assert_identical(whole, arm.scan(folder, TOKENS, engine=pair, progress=listener, **SETTINGS))
        assert len(listener.workers) == 2
        assert os.getpid() not in {worker.process for worker in listener.workers}

    @pytest.mark.slow
    def test_workers_killed_in_the_middle(self, folder: Path, whole: Atlas, pair: Local) -> None:
        listener = Listener(3, 14)
        assert_identical(whole, arm.scan(folder, TOKENS, engine=pair, progress=listener, **SETTINGS))
        assert sum("SIGKILL" in note for note in listener.notes) == 2
        assert listener.lost > 0

    def test_another_engine_resumes_the_scan(self, folder: Path, whole: Atlas, pair: Local, tmp_path: Path) -> None:
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
            "import os, numpy, armillary as arm\n"
            "from armillary.progress import Progress\n"
            "class Say(Progress):\n"
            "    def advance(self, count=1, worker=None): print(worker.process, flush=True)\n"
            f"arm.scan({str(folder)!r}, numpy.load({str(tmp_path / 'tokens.npy')!r}), out={str(out)!r}, workers=2,\n"
            f"         progress=Say(), **{SETTINGS})\n"
        )
        driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        workers = {int(driver.stdout.readline()) for _ in range(6)}
        driver.kill()
        driver.wait()
        driver.stdout.close()
        until = time.monotonic() + 120
        while any(psutil.pid_exists(worker) for worker in workers) and time.monotonic() < until:
            time.sleep(0.02)
        assert not any(psutil.pid_exists(worker) for worker in workers)
        assert not (out / "atlas.zarr").exists()
        assert_identical(whole, arm.scan(folder, TOKENS, out=out, resume=True, **SETTINGS))

    def test_a_sequence_that_raises_is_named_and_the_rest_is_kept(self, pair: Local, tmp_path: Path) -> None:
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
    def test_a_sequence_that_kills_every_worker_is_named(self, pair: Local, tmp_path: Path) -> None:
        model, out = trapped(tmp_path / "model", "os.kill(os.getpid(), signal.SIGKILL)"), tmp_path / "a"
        with pytest.raises(arm.ArmillaryError, match="sequence 5 cannot be run") as told:
            arm.scan(model, poisoned(5), out=out, engine=pair, trust_remote_code=True, **{**SETTINGS, "batch": 2})
        assert "SIGKILL" in str(told.value)
        assert {"shard-00000", "shard-00001"} <= {path.name for path in (out / "work").glob("shard-?????")}

    def test_weights_layer_by_layer(self, folder: Path, pair: Local, tmp_path: Path) -> None:
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
        with pytest.raises(arm.ArmillaryError, match=words):
            arm.scan(sample_model("llama"), TOKENS, **asked)

    def test_a_model_that_workers_cannot_load_is_reported_once(self, pair: Local, tmp_path: Path) -> None:
        sample_config("llama").save_pretrained(tmp_path / "m")
        save_file({"x": torch.zeros(1)}, tmp_path / "m" / "model.safetensors")
        with pytest.raises(arm.ArmillaryError, match="has no tensor named"):
            arm.scan(tmp_path / "m", "builtin:random", engine=pair)

    def test_workers_with_other_weights_or_programs_are_refused(self) -> None:
        job = ScanJob("model")
        first = job_facts(0)
        assert job.differences(first, job_facts(0)) == []
        assert job.differences(first, job_facts(1)) == ["it has other weights"]
        from dataclasses import replace

        other = replace(first, versions={**first.versions, "torch": "1.0"})
        assert job.differences(first, other) == [f"torch 1.0 instead of {first.versions['torch']}"]


def job_facts(seed: int) -> Any:
    from armillary.scanning.job import ScanBench

    return ScanBench(sample_model("llama", seed=seed)).facts


class Dice:
    """An engine that runs tasks in this process, finishes them in random order and loses some."""

    def __init__(self, workers: int, seed: int, losses: float) -> None:
        self.workers = workers
        self._random = random.Random(seed)
        self._losses = losses
        self._running: list[tuple[int, Task]] = []
        self._lost: dict[int, int] = {}

    def start(self, job: Any) -> Any:
        return None

    def share(self, data: bytes) -> None: ...

    @property
    def room(self) -> int:
        return self.workers - len(self._running)

    def submit(self, ticket: int, task: Task) -> None:
        assert self.room
        self._running.append((ticket, task))

    def wait(self) -> Report:
        place = self._random.randrange(len(self._running))
        ticket, task = self._running[place]
        shard, chance = task.work, self._random.random()
        if chance < 0.3:
            return Report(Worker(0), ticket, Advanced(1))
        del self._running[place]
        if chance < 0.3 + self._losses and self._lost.get(shard, 0) < 2:
            self._lost[shard] = self._lost.get(shard, 0) + 1
            events: list[Lost | Failed] = [Lost("dice"), Failed("dice", final=False)]
            return Report(Worker(0), ticket, self._random.choice(events))
        return Report(Worker(0), ticket, Done({"shard": str(shard).encode()}))

    def drop(self) -> None:
        self._running.clear()

    def close(self) -> None: ...


class Numbers:
    """Work that saves results in a dictionary and merges them into a list; counts how many wait."""

    def __init__(self, count: int, there: set[int]) -> None:
        self.shards = plan(count, 1)
        self.kept: dict[int, Any] = {index: str(index).encode() for index in there}
        self.merged: list[bytes] = []
        self.most = 0

    def __len__(self) -> int:
        return len(self.shards)

    def task(self, position: int) -> Task:
        return Task(position)

    def units(self, position: int) -> int:
        return 1

    def failure(self, position: int, step: int | None, why: str, tries: int) -> arm.ArmillaryError:
        return shard_failure(self.shards[position], Pass.FIRST, step, why, tries)

    def has(self, position: int) -> bool:
        return position in self.kept

    def keep(self, position: int, done: Done) -> None:
        assert position not in self.kept
        self.kept[position] = done.files["shard"]
        self.most = max(self.most, len(self.kept) - len(self.merged))

    def merge(self, position: int) -> None:
        self.merged.append(self.kept[position])


class TestDriver:
    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(1, 40), st.integers(1, 9), st.integers(0, 10_000), st.floats(0, 0.5), st.sets(st.integers(0, 39))
    )
    def test_results_are_merged_in_order_whatever_happens(
        self, count: int, workers: int, seed: int, losses: float, there: set[int]
    ) -> None:
        work = Numbers(count, {index for index in there if index < count})
        drive(Dice(workers, seed, losses), work, Progress(), 4)
        assert work.merged == [str(index).encode() for index in range(count)]
        if not there:
            assert work.most <= max(4, AHEAD * workers)

    def test_the_first_task_may_be_the_last_to_finish(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # nothing is late: no task is given out twice

        class FirstLast(Dice):
            def wait(self) -> Report:
                self._running.sort(key=lambda held: -held[1].work)
                ticket, task = self._running.pop(0)
                return Report(Worker(0), ticket, Done({"shard": str(task.work).encode()}))

        work = Numbers(9, set())  # one more than the window of two workers: it opens only by merging the first
        drive(FirstLast(2, 0, 0.0), work, Progress(), AHEAD)
        assert len(work.merged) == 9

    def test_a_task_that_always_fails_ends_the_work_but_what_runs_is_kept(self) -> None:
        class Always(Dice):
            def wait(self) -> Report:
                for place, (ticket, task) in enumerate(self._running):
                    if task.work == 2:
                        del self._running[place]
                        return Report(Worker(0), ticket, Failed("no", final=False, step=2))
                return super().wait()

        work = Numbers(20, set())
        with pytest.raises(arm.ArmillaryError, match=r"sequence 2 cannot be run: shard 2 .* failed 3 times \(no\)"):
            drive(Always(4, 0, 0.0), work, Progress(), 4)
        assert {0, 1, 3} <= set(work.kept)

    def test_no_task_runs_too_far_ahead(self) -> None:
        schedule = Schedule(100, window=5)
        assert [schedule.next(0.0) for _ in range(6)] == [0, 1, 2, 3, 4, None]
        for task in (4, 2, 1):
            schedule.arrived(task, 1.0)
        assert list(schedule.in_turn()) == []
        assert schedule.next(1.0) is None
        schedule.lost(0)
        assert schedule.next(1.0) == 0
        schedule.arrived(0, 2.0)
        assert list(schedule.in_turn()) == [0, 1, 2]
        assert [schedule.next(2.0) for _ in range(4)] == [5, 6, 7, None]

    def test_a_late_task_is_given_out_twice_and_merged_once(self) -> None:
        schedule = Schedule(8, window=8)
        assert [schedule.next(0.0) for _ in range(8)] == list(range(8))
        for task in range(1, 7):
            schedule.arrived(task, 10.0)
        assert schedule.next(15.0) is None  # not late yet: the others took 10
        assert schedule.next(25.0) == 0
        assert schedule.next(25.0) == 7
        assert schedule.next(25.0) is None  # nothing runs three times
        assert schedule.lost(0)  # one of the two dies: the other still works on it
        assert schedule.arrived(0, 30.0)
        assert not schedule.arrived(0, 40.0)
        assert schedule.arrived(7, 41.0)
        assert schedule.lost(7)  # the twin of a finished task may die
        assert list(schedule.in_turn()) == list(range(8))
        assert schedule.over

    def test_workers_get_the_drivers_plan_without_its_tokens(self) -> None:
        anatomy = job_facts(0).anatomy
        chosen = scan_settings(length=24, sequences=40, streams=("positions", "patterns"), second_pass=6)
        tokens = TOKENS.numpy().repeat(2, 1)[:, :24]
        plan = plan_further(wanted_of(chosen), anatomy, tokens, {}, sample=6, seed=0)
        shipped = pickle.loads(pickle.dumps(plan.for_workers()))
        assert plan.to_run(anatomy) == shipped.to_run(anatomy) == [Pass.SAMPLE, Pass.NULL, Pass.REPEATS]
        for when in plan.to_run(anatomy):
            assert len(plan.tokens[when])
            assert plan.streams(when, anatomy).keys() == shipped.streams(when, anatomy).keys()
        assert shipped.tokens == {}
        assert shipped.tracked_tokens == plan.tracked_tokens

    def test_rates_of_workers_in_words(self) -> None:
        rates = Rates()
        rates.add(Worker(0), 100)
        assert rates.words() == ""
        rates.add(Worker(1), 100)
        assert rates.words().startswith("per worker ")
        for number in range(9):
            rates.add(Worker(number), 100)
        assert rates.words().startswith("9 workers, each ")


class TestRay:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        if find_spec("ray") is None:
            pytest.skip("the package ray is not installed")

    @pytest.mark.slow
    def test_two_workers_one_of_them_killed(
        self, folder: Path, whole: Atlas, capfd: pytest.CaptureFixture[str]
    ) -> None:
        listener = Listener(4)
        with opened("ray", 2) as engine:
            assert_identical(whole, arm.scan(folder, TOKENS, engine=engine, progress=listener, **SETTINGS))
            assert sum("its process died" in note for note in listener.notes) == 1
            assert_identical(arm.weigh(folder), arm.weigh(folder, engine=engine))
        told = capfd.readouterr()
        assert "ray" not in told.out + told.err.replace(str(folder), "")  # Ray's own messages do not reach the user

    @pytest.mark.slow
    def test_two_nodes_on_one_machine(self, folder: Path, whole: Atlas) -> None:
        """Each node has room for one worker, so both work."""
        listener = Listener(expected=2)
        with ray_cluster(1, 1) as (address, _):
            atlas = arm.scan(folder, TOKENS, engine="ray", workers=2, address=address, progress=listener, **SETTINGS)
        assert_identical(whole, atlas)
        assert len(listener.workers) == 2

    @pytest.mark.slow
    def test_when_a_node_dies_the_other_goes_on_with_the_same_bits(self, folder: Path, whole: Atlas) -> None:
        with ray_cluster(1, 1) as (address, tell):
            listener = Breaking(4, lambda: tell("node"))
            atlas = arm.scan(folder, TOKENS, engine="ray", workers=2, address=address, progress=listener, **SETTINGS)
        assert_identical(whole, atlas)
        assert listener.broken
        assert any("is gone" in note for note in listener.notes)

    @pytest.mark.slow
    def test_when_no_node_is_left_it_ends_with_a_sentence_and_can_be_resumed(
        self, folder: Path, whole: Atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ray_cluster(0, 2) as (address, tell):

            def break_all() -> None:
                monkeypatch.setattr("armillary.engines.ray.START_WITHIN", 20.0)
                tell("node")
                tell("node")

            asked: dict[str, Any] = dict(engine="ray", workers=2, address=address, progress=Breaking(4, break_all))
            begun = time.monotonic()
            with pytest.raises(arm.ArmillaryError, match=r"no room for 2 workers .* continue with `resume=True`"):
                arm.scan(folder, TOKENS, out=tmp_path / "scan", **asked, **SETTINGS)
            assert time.monotonic() - begun < 400
        assert_identical(whole, arm.scan(folder, TOKENS, out=tmp_path / "scan", resume=True, **SETTINGS))

    @pytest.mark.slow
    @pytest.mark.parametrize("what", ["gcs", "head"])
    def test_when_the_head_dies_it_ends_in_bounded_time(self, tmp_path: Path, what: str) -> None:
        """In a process of its own: left alone, Ray would end it after a minute with exit code 1 and no message of ours.

        "gcs" is what a driver on another machine sees of it. With "head" this machine's raylet goes too; if that
        happens while an object is read from its store, Ray ends the process at once, and nothing can be said.
        """
        (tmp_path / "tmp").mkdir()
        program = [sys.executable, "-c", "from armillary.cli import main; main()"]
        asked = ["scan", str(arm.bundled("llama")), "--corpus", "builtin:random", "--sequences", "8000"]
        with ray_cluster(1, 1) as (address, tell):
            where = ["--engine", "ray", "--workers", "2", "--address", address, "--out", str(tmp_path / "out")]
            with subprocess.Popen(
                [*program, *asked, *where],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
            ) as driver:
                end = time.monotonic() + 400
                while not list(tmp_path.glob("out/**/*.sha256")):
                    assert driver.poll() is None, driver.communicate()
                    assert time.monotonic() < end
                    time.sleep(0.1)
                tell(what)
                said = driver.communicate(timeout=200)[1]
        assert "Traceback" not in said
        if what == "gcs" or driver.returncode != 1:
            assert driver.returncode == 2, said
            assert "armillary: the Ray cluster has not answered for 30 seconds" in said
            assert not list((tmp_path / "tmp").glob("armillary-*"))


class Breaking(Listener):
    """Calls `breaks` after `at` batches."""

    def __init__(self, at: int, breaks: Callable[[], None]) -> None:
        super().__init__(expected=2)
        self.at, self.breaks, self.broken = at, breaks, False

    def advance(self, count: int = 1, worker: object = None) -> None:
        super().advance(count, worker)
        if self.batches >= self.at and not self.broken:
            self.broken = True
            self.breaks()


CLUSTER = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster

def patiently(make):  # Ray gives a node thirty seconds to start, which a busy machine may not have
    for left in reversed(range(10)):
        try:
            return make()
        except Exception:
            if not left:
                raise

head = dict(num_cpus=int(sys.argv[1]), include_dashboard=False)
cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
nodes = [patiently(lambda: cluster.add_node(num_cpus=1)) for _ in range(int(sys.argv[2]))]
print(cluster.address, flush=True)
for line in sys.stdin:
    what = line.strip()
    if what == "gcs":
        cluster.head_node.kill_gcs_server(check_alive=False)
    else:
        cluster.remove_node(cluster.head_node if what == "head" else nodes.pop(), allow_graceful=False)
    print("done", flush=True)
cluster.shutdown()
"""


@contextmanager
def ray_cluster(head: int, nodes: int) -> Iterator[tuple[str, Callable[[str], None]]]:
    """A cluster whose head has room for `head` workers, and `nodes` nodes with room for one each; in its own process.

    Its address, and a function that kills the head's process ("gcs"), the head with its worker ("head") or a node.
    """
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(head), str(nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        assert cluster.stdin is not None
        out, into = cluster.stdout, cluster.stdin

        def tell(what: str) -> None:
            into.write(f"{what}\n")
            into.flush()
            assert out.readline().strip() == "done"

        try:
            yield next(line.strip() for line in out if ":" in line), tell
        finally:
            cluster.communicate()


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


def test_parts_are_runs_of_shards_that_cover_all() -> None:
    every = plan(101, 7)
    for of in range(1, len(every) + 1):
        parts = [Part(number, of).shards(every) for number in range(1, of + 1)]
        assert [shard for part in parts for shard in part] == list(every)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_page_shows_the_numbers_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/scaling.md is what bench/scaling.py --render makes of the records."""
    bench = Path(__file__).resolve().parents[2] / "bench"
    monkeypatch.syspath_prepend(str(bench))
    import scaling_page

    page = scaling_page.PAGE.read_text(encoding="utf-8")
    assert scaling_page.rendered(page) == page


def test_simulated_workers_obey_the_drivers_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty workers that fail once an hour: everything is merged, and no more than the window waits."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "bench"))
    from scheduler import Cluster, simulate

    calm = simulate(Cluster("calm", workers=50, blocks=20_000, failures=0.0, stragglers=0.0))
    rough = simulate(Cluster("rough", workers=50, blocks=20_000, failures=1.0))
    assert calm.ideal_hours < calm.hours < 1.25 * calm.ideal_hours
    assert calm.lost_share == calm.twice_share == 0
    assert rough.failures > 0
    assert rough.lost_share > 0
    assert rough.most_waiting <= 4 * 50
    assert rough.hours > calm.hours
