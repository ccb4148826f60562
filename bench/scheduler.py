"""A thousand workers that fail, straggle and come back, on the real planner and the real rules of the driver.

A discrete-event simulation: `armillary.scanning.folder.plan` cuts the corpus, `armillary.engines.schedule.Schedule`
decides what is given out and merged; only time is made up. Writes bench/scheduler.json; `bench/scaling.py --render`
shows it.
"""

import heapq
import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from armillary.engines.schedule import Schedule, window_for
from armillary.scanning.folder import MERGE_EVERY, plan

HOUR = 3600.0
RESULTS = Path(__file__).with_name("scheduler.json")


@dataclass(frozen=True)
class Cluster:
    """What is simulated. Times in seconds; a worker fails at random, `failures` times an hour on average.

    `stragglers` of the tasks take `slowdown` times as long; all others vary by 10 %. Once in `outage_every` seconds a
    rack of `rack` workers is lost at once.
    """

    name: str
    workers: int = 1000
    blocks: int = 1_000_000
    shard: int = 64
    block_seconds: float = 8.0
    merge_seconds: float = 0.25
    start_seconds: float = 300.0
    failures: float = 0.02
    stragglers: float = 0.05
    slowdown: float = 4.0
    outage_every: float | None = None
    rack: int = 40
    window: int | None = None
    tries: int = 10**9
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    shards: int
    hours: float
    ideal_hours: float
    failures: int
    lost_share: float
    twice_share: float
    most_waiting: int
    most_tries: int
    driver_busy: float
    workers_busy: float


def simulate(cluster: Cluster) -> Outcome:
    """Events in the order of their time, until everything is merged."""
    shards = plan(cluster.blocks, cluster.shard)
    schedule = Schedule(len(shards), cluster.window or window_for(cluster.workers, MERGE_EVERY), cluster.tries)
    dice = random.Random(cluster.seed)
    events: list[tuple[float, int, str, int, int]] = []  # time, order, kind, worker, life of the worker
    count = 0

    def at(time: float, kind: str, worker: int = 0, life: int = 0) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (time, count, kind, worker, life))

    life = [0] * cluster.workers
    idle: set[int] = set()
    doing: dict[int, tuple[int, float]] = {}  # worker -> task, when it began
    tries: dict[int, int] = {}
    merging, driver_busy, useful, lost, twice, failures, waiting = False, 0.0, 0.0, 0.0, 0.0, 0, 0

    def born(worker: int, now: float) -> None:
        life[worker] += 1
        ready = now + cluster.start_seconds * dice.uniform(0.8, 1.2)
        at(ready, "ready", worker, life[worker])
        if cluster.failures:
            at(ready + dice.expovariate(cluster.failures / HOUR), "dies", worker, life[worker])

    def give(now: float) -> None:
        while idle:
            task = schedule.next(now)
            if task is None:
                return
            worker = idle.pop()
            tries[task] = tries.get(task, 0) + 1
            slow = cluster.slowdown if dice.random() < cluster.stragglers else dice.uniform(0.9, 1.1)
            seconds = (shards[task].last - shards[task].first) * cluster.block_seconds * slow
            doing[worker] = task, now
            at(now + seconds, "done", worker, life[worker])

    def die(worker: int, now: float) -> None:
        nonlocal lost, failures
        failures += 1
        idle.discard(worker)
        if worker in doing:
            task, began = doing.pop(worker)
            lost += now - began
            schedule.lost(task)
        born(worker, now)

    for worker in range(cluster.workers):
        born(worker, 0.0)
    if cluster.outage_every:
        at(dice.expovariate(1 / cluster.outage_every), "outage")
    at(0.0, "tick")
    turn = schedule.in_turn()
    now = 0.0
    while not schedule.over:
        now, _, kind, worker, which = heapq.heappop(events)
        if kind in ("ready", "dies", "done") and which != life[worker]:
            continue
        if kind == "ready":
            idle.add(worker)
        elif kind == "dies":
            die(worker, now)
        elif kind == "outage":
            first = dice.randrange(cluster.workers)
            for one in range(first, min(first + cluster.rack, cluster.workers)):
                die(one, now)
            assert cluster.outage_every
            at(now + dice.expovariate(1 / cluster.outage_every), "outage")
        elif kind == "done":
            task, began = doing.pop(worker)
            useful += now - began
            if not schedule.arrived(task, now):
                twice += now - began
            idle.add(worker)
        elif kind == "merged":
            merging = False
        elif kind == "tick":  # a driver hears of its workers all the time
            at(now + 30.0, "tick")
        waiting = max(waiting, schedule.waiting)
        if not merging:  # asking for the next one also says that the last one is merged
            found = next(turn, None)
            if found is None:
                turn = schedule.in_turn()
            else:
                merging = True
                driver_busy += cluster.merge_seconds
                at(now + cluster.merge_seconds, "merged")
        give(now)
    work = cluster.blocks * cluster.block_seconds * (1 + cluster.stragglers * (cluster.slowdown - 1))
    return Outcome(
        shards=len(shards),
        hours=now / HOUR,
        ideal_hours=(work / cluster.workers + cluster.start_seconds) / HOUR,
        failures=failures,
        lost_share=lost / (useful + lost),
        twice_share=twice / (useful + lost),
        most_waiting=waiting,
        most_tries=max(tries.values()),
        driver_busy=driver_busy / now,
        workers_busy=(useful + lost) / (cluster.workers * now),
    )


PLAIN = Cluster("nothing goes wrong", failures=0.0, stragglers=0.0)
WORST = Cluster("and a rack of 40 is lost every hour", failures=0.2, outage_every=HOUR)
SCENARIOS = [
    PLAIN,
    replace(PLAIN, name="5 % of the tasks take four times as long", stragglers=0.05),
    Cluster("and every worker fails once in 50 hours"),
    Cluster("and every worker fails once in 5 hours", failures=0.2),
    WORST,
    replace(WORST, name="the same, window of 1 task a worker", window=1000),
    replace(WORST, name="the same, window of 2 tasks a worker", window=2000),
    replace(WORST, name="the same, window of 8 tasks a worker", window=8000),
    replace(WORST, name="the same, shards of 16 blocks", shard=16),
    replace(WORST, name="the same, shards of 240 blocks", shard=240),
    replace(WORST, name="the same, merging takes 2 s", merge_seconds=2.0),
]


def main() -> None:
    rows = [{"cluster": asdict(cluster), "outcome": asdict(simulate(cluster))} for cluster in SCENARIOS]
    for row in rows:
        print(row["cluster"]["name"], {key: round(value, 3) for key, value in row["outcome"].items()})
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
