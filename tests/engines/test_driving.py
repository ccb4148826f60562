"""The driver and its schedule: tasks are merged in order whatever happens to the workers."""

import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.engines.driving import drive
from armillary.engines.engine import Advanced, Done, Failed, Lost, Report, Task, Worker
from armillary.engines.schedule import AHEAD, Schedule
from armillary.progress import Progress
from armillary.scanning.driver import shard_failure
from armillary.scanning.folder import Part, plan
from armillary.scanning.job import ScanBench
from armillary.scanning.passes import plan_further
from armillary.scanning.settings import scan_settings, wanted_of
from armillary.streams.declaration import Pass
from armillary.terminal.progress import Rates
from workers import TOKENS, Listener


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

    @pytest.mark.parametrize("ticket", [None, -1], ids=["idle", "with a task that another finished"])
    def test_the_death_of_a_worker_is_told_whatever_it_did(self, ticket: int | None) -> None:
        class Dying(Dice):
            dead = False

            def wait(self) -> Report:
                if self.dead:
                    return super().wait()
                self.dead = True
                return Report(Worker(1, "here", 17), ticket, Lost("its machine is gone"))

        work, listener = Numbers(3, set()), Listener()
        drive(Dying(2, 0, 0.0), work, listener, 4)
        assert listener.deaths == ["worker 1 (here, process 17) is gone (its machine is gone)"]
        assert len(work.merged) == 3

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
        anatomy = ScanBench(sample_model("llama")).anatomy
        chosen = scan_settings(length=24, sequences=40, streams=("positions", "patterns"), second_pass=6)
        tokens = TOKENS.numpy().repeat(2, 1)[:, :24]
        plan = plan_further(wanted_of(chosen), anatomy, tokens, {}, sample=6, seed=0)
        shipped = pickle.loads(pickle.dumps(plan.for_workers()))
        assert plan.to_run(anatomy) == shipped.to_run(anatomy) == [Pass.SAMPLE, Pass.REPEATS]
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


def test_parts_are_runs_of_shards_that_cover_all() -> None:
    every = plan(101, 7)
    for of in range(1, len(every) + 1):
        parts = [Part(number, of).shards(every) for number in range(1, of + 1)]
        assert [shard for part in parts for shard in part] == list(every)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


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
