"""Workers that do what a test orders: they wait for one another or for the test, or die in the middle of a task.

So a test of what happens when a worker is lost knows what each worker was doing then, however busy the machine is.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from armillary.anatomy.samples import sample_model
from armillary.engines.engine import Advanced, Bench, Event, Job, Task, Worker
from armillary.engines.local import Local
from armillary.engines.ray import Ray
from armillary.progress import Progress
from armillary.scanning.tasks import ShardWork
from armillary.streams.declaration import Pass

TOKENS = torch.randint(5, 99, (12, 16), generator=torch.Generator().manual_seed(3))
SETTINGS: dict[str, Any] = dict(batch=1, shard=2, second_pass=6)
"""Six shards of two batches in the first pass, three in the second."""

POISON = 3
"""A token that does not occur in TOKENS."""

PATIENCE = 600.0
"""Seconds after which a worker gives up waiting; what it waits for takes some seconds on a busy machine."""


@dataclass(frozen=True)
class Orders:
    """What workers do after the first batch of a shard; they leave files in `place`, which exists.

    `meet`: each waits until that many workers have done a batch; `hold`: each waits until the test calls `go`;
    `deaths`: at the shard that begins with this sequence in this pass the first worker to come dies.
    """

    place: Path
    meet: int = 0
    hold: bool = False
    deaths: tuple[tuple[Pass, int], ...] = ()

    def go(self) -> None:
        (self.place / "go").touch()

    def follow(self, work: ShardWork) -> None:
        """Called by a worker after the first batch of a shard."""
        (self.place / f"worker-{os.getpid()}").touch()
        wait_for(lambda: len(list(self.place.glob("worker-*"))) >= self.meet, f"{self.meet} workers")
        if self.hold:
            wait_for((self.place / "go").exists, "the test")
        fatal = self.place / f"death-{work.when.name}-{work.shard.first}"
        if (work.when, work.shard.first) in self.deaths and not fatal.exists():
            fatal.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE:.0f} seconds for {what}")
        time.sleep(0.01)


@dataclass(frozen=True)
class OrderedJob:
    """A job whose workers follow orders."""

    job: Job
    orders: Orders

    @property
    def here_only(self) -> bool:
        return self.job.here_only

    def open(self, number: int, workers: int) -> "OrderedBench":
        return OrderedBench(self.job.open(number, workers), self.orders)

    def differences(self, first: Any, other: Any) -> list[str]:
        return self.job.differences(first, other)


class OrderedBench:
    """A bench that follows orders after the first batch of every shard."""

    def __init__(self, bench: Bench, orders: Orders) -> None:
        self.facts, self._bench, self._orders = bench.facts, bench, orders

    def share(self, data: bytes) -> None:
        self._bench.share(data)

    def run(self, task: Task) -> Iterator[Event]:
        followed = not isinstance(task.work, ShardWork)
        for event in self._bench.run(task):
            yield event
            if isinstance(event, Advanced) and not followed:
                followed = True
                self._orders.follow(task.work)


class OrderedLocal(Local):
    """Local workers that follow `orders`, if there are any."""

    orders: Orders | None = None

    def start(self, job: Job) -> Any:
        return super().start(OrderedJob(job, self.orders) if self.orders else job)


class OrderedRay(Ray):
    """Ray workers that follow `orders`, if there are any."""

    orders: Orders | None = None

    def start(self, job: Job) -> Any:
        return super().start(OrderedJob(job, self.orders) if self.orders else job)

    def know_of_deaths(self, count: int) -> None:
        """Wait until this process knows that so many workers are dead; the others are in the middle of a task."""
        calls = [actor.handle.__ray_ready__.remote() for actor in self._actors]  # fails at once if the actor is dead
        dead, _ = self._ray.wait(calls, num_returns=count, timeout=PATIENCE)
        assert len(dead) == count


class Listener(Progress):
    """Records workers, notes of their deaths, and lost units; calls `then` when `expected` workers have reported."""

    def __init__(self, expected: int = 0, then: Callable[[], None] | None = None) -> None:
        self.expected, self.then = expected, then
        self.workers: set[Worker] = set()
        self.deaths: list[str] = []
        self.lost = 0

    def advance(self, count: int = 1, worker: object = None) -> None:
        self.lost += max(0, -count)
        if isinstance(worker, Worker):
            self.workers.add(worker)
            if self.then is not None and len(self.workers) == self.expected:
                then, self.then = self.then, None
                then()

    def note(self, sentence: str) -> None:
        if "is gone" in sentence:
            self.deaths.append(sentence)


def alive(process: int) -> bool:
    """Whether the process runs: one that has ended may stay in the table until its parent looks."""
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def saved_model(place: Path) -> Path:
    """A small model in a folder."""
    sample_model("llama").save_pretrained(place)
    return place


def trapped(place: Path, what: str) -> Path:
    """A model whose code does something bad on sequences with the token POISON."""
    saved_model(place)
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
    copy_code(place)
    return place


def copy_code(place: Path) -> None:
    """Let transformers copy the model's code to its cache now: two workers that do so at once may read half of it."""
    from transformers.dynamic_module_utils import get_cached_module_file

    get_cached_module_file(str(place), "trap.py")


def poisoned(*sequences: int) -> torch.Tensor:
    """TOKENS with the token POISON in these sequences."""
    tokens = TOKENS.clone()
    tokens[list(sequences), 5] = POISON
    return tokens
