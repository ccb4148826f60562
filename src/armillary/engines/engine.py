"""What an engine is: it gives tasks to workers and tells what becomes of them, in any order."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from os import getpid
from typing import Any, Protocol, runtime_checkable

from armillary.errors import ArmillaryError
from armillary.packing import Data
from armillary.shards import Shard

PATIENCE = 1800.0
"""Seconds without a word from a worker that has a task, after which it counts as stuck."""


@dataclass(frozen=True)
class Task:
    """A shard of a round (or a layer, as a shard of one), with what the work needs beside the model.

    With `alone` its blocks run one at a time to find the one that ends the worker; nothing is kept.
    """

    round: str
    shard: Shard
    data: Any = None
    alone: bool = False


@dataclass(frozen=True)
class Worker:
    """Who does the work: its number, its host and its process there."""

    number: int
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=getpid)

    def __str__(self) -> str:
        return f"worker {self.number} ({self.host}, process {self.process})"


@dataclass(frozen=True)
class Ready:
    """A worker has its model; `facts` is what the job tells of it."""

    facts: Any


@dataclass(frozen=True)
class Begun:
    """A worker starts on a block (only said of tasks that run alone)."""

    block: int


@dataclass(frozen=True)
class Advanced:
    """So many more tokens of the task went through the model."""

    tokens: int


@dataclass(frozen=True)
class Done:
    """The task is finished: what is to be kept, by kind of file, in the order of writing."""

    files: dict[str, Data]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failed:
    """The work raised an error. `final`: another try would end alike; `block`: the one it fails on, if known."""

    message: str
    final: bool
    block: int | None = None


@dataclass(frozen=True)
class Lost:
    """The worker is gone; what it worked on must be done again."""

    why: str


Event = Ready | Begun | Advanced | Done | Failed | Lost


@dataclass(frozen=True)
class Report:
    """What happened, to whom, and the ticket of the task that it is about, or that of the job (None: of neither)."""

    worker: Worker
    ticket: int | None
    event: Event


@runtime_checkable
class Bench(Protocol):
    """A worker's place: the model is loaded once, tasks come one after the other."""

    facts: Any

    def share(self, data: bytes) -> None:
        """Take what later tasks need and what all of them have in common."""

    def run(self, task: Task) -> Iterator[Event]:
        """Do the task, telling of it; the last event is Done."""


@runtime_checkable
class Job(Protocol):
    """What workers are for. It travels to them, unless it is `here_only`: a model that is loaded in this process."""

    @property
    def here_only(self) -> bool:
        """Whether the work can only be done in this process."""

    def open(self, number: int, workers: int) -> Bench:
        """Load what worker `number` of `workers` on this machine needs."""

    def differences(self, first: Any, other: Any) -> list[str]:
        """Why results of these two benches do not belong together, from their facts."""


@runtime_checkable
class Engine(Protocol):
    """Workers, somewhere. The driver gives tasks while there is `room`, and waits for reports."""

    workers: int

    def start(self, job: Job) -> Any:
        """Have workers ready for this job; the facts of the first of them. Workers of an earlier job are used again."""

    def share(self, data: bytes) -> None:
        """Give this to every worker, also to those that start later."""

    @property
    def room(self) -> int:
        """How many tasks could start at once."""

    def submit(self, ticket: int, task: Task) -> None:
        """Start a task; there must be room. Reports of it carry the ticket."""

    def wait(self) -> Report:
        """The next thing that happens."""

    def drop(self) -> None:
        """Forget all running tasks."""

    def close(self) -> None:
        """End all workers."""


TICKETS = count(1)
"""Every submission has a number of its own, so that a late report of an earlier one is known as such."""


class TaskFailed(Exception):
    """Work on a block raised an error that is not the user's mistake."""

    def __init__(self, message: str, block: int | None) -> None:
        super().__init__(message, block)
        self.message = message
        self.block = block


def failure(error: Exception) -> Failed:
    """The event that tells of an error in a worker."""
    if isinstance(error, ArmillaryError):
        return Failed(str(error), final=True)
    if isinstance(error, TaskFailed):
        return Failed(error.message, final=False, block=error.block)
    return Failed(sentence(error), final=False)


def sentence(error: BaseException) -> str:
    """An error's kind and its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def refuse_idle(workers: int, threads: int | None) -> None:
    """Raise where nobody would work."""
    if workers < 1:
        raise ArmillaryError(f"{workers} workers do no work: give 1 or more")
    if threads is not None and threads < 1:
        raise ArmillaryError(f"workers with {threads} threads do no work: give 1 or more")


def refuse_here_only(job: Job) -> None:
    """Raise if other processes cannot do this job."""
    if job.here_only:
        raise ArmillaryError(
            "a model that is loaded in this process cannot be given to others: name its folder or hub id, or work with "
            "one worker"
        )


def refuse_unlike(job: Job, first: Any, other: Any, worker: Worker) -> None:
    """Raise if a worker has another model, or other programs, than the first one."""
    found = job.differences(first, other)
    if found:
        raise ArmillaryError(
            f"{worker} does not agree with the first worker ({'; '.join(found)}), so their numbers cannot be merged: "
            "give all machines the same files and programs"
        )


def ask(engine: Engine, task: Task, tries: int = 3) -> Done:
    """The result of one task while no other runs."""
    for _ in range(tries):
        while engine.room == 0:
            engine.wait()
        ticket = next(TICKETS)
        engine.submit(ticket, task)
        while True:
            report = engine.wait()
            if report.ticket != ticket:
                continue
            if isinstance(report.event, Done):
                return report.event
            if isinstance(report.event, Failed):
                raise ArmillaryError(report.event.message)
            if isinstance(report.event, Lost):
                break
    raise ArmillaryError(f"workers die whenever they are asked for {task.round} {task.shard.index}")
