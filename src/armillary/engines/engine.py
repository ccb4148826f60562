"""The engine interface: tasks, workers, and the events that workers report."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from os import getpid
from typing import Any, Protocol, runtime_checkable

from armillary.engines.packing import Data
from armillary.errors import ArmillaryError

PATIENCE = 1800.0
"""A worker that reports nothing on its task for this many seconds counts as stuck."""


@dataclass(frozen=True)
class Task:
    """A piece of work; only the job's bench knows what `work` is.

    With `alone` its steps run one at a time, to find the one that kills the worker; the results are discarded.
    """

    work: Any
    alone: bool = False


@dataclass(frozen=True)
class Worker:
    """A worker: its number, host and process id (0: a worker that has not started yet)."""

    number: int
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=getpid)

    def __str__(self) -> str:
        return f"worker {self.number}" + (f" ({self.host}, process {self.process})" if self.process else "")


@dataclass(frozen=True)
class Ready:
    """A worker has loaded its model; `facts` is the job's description of it."""

    facts: Any


@dataclass(frozen=True)
class Begun:
    """A worker starts on a step (only reported with `Task.alone`)."""

    step: int


@dataclass(frozen=True)
class Advanced:
    """`units` more units of the task are done."""

    units: int


@dataclass(frozen=True)
class Done:
    """The task is finished: the data to save, by kind of file, in the order of writing."""

    files: dict[str, Data]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failed:
    """The task raised an error. `step`: where it failed, if known.

    final: the user's mistake, said by `message`; retry: whether another worker could do better.
    """

    message: str
    final: bool
    step: int | None = None
    retry: bool = True


@dataclass(frozen=True)
class Lost:
    """The worker is gone; its task must run again."""

    why: str


Event = Ready | Begun | Advanced | Done | Failed | Lost


@dataclass(frozen=True)
class Report:
    """An event of a worker, with the ticket of the task or job that it concerns (None: neither)."""

    worker: Worker
    ticket: int | None
    event: Event


@runtime_checkable
class Bench(Protocol):
    """What a worker runs: it loads the model once, then runs tasks one after the other."""

    facts: Any

    def share(self, data: bytes) -> None:
        """Receive data that later tasks have in common."""

    def run(self, task: Task) -> Iterator[Event]:
        """Run the task and yield its events; the last is Done."""


@runtime_checkable
class Job(Protocol):
    """What to run. It is sent to the workers, unless it is `here_only`: a model that is loaded in this process."""

    @property
    def here_only(self) -> bool:
        """Whether the job can only run in this process."""

    def open(self, number: int, workers: int) -> Bench:
        """Load what worker `number` of `workers` on this machine needs."""

    def differences(self, first: Any, other: Any) -> list[str]:
        """Why results of two benches cannot be merged, from their facts."""


@runtime_checkable
class Engine(Protocol):
    """A set of workers. The driver submits tasks while there is `room`, and waits for reports."""

    workers: int

    def start(self, job: Job) -> Any:
        """Prepare workers for this job and return the facts of the first; workers of an earlier job are reused."""

    def share(self, data: bytes) -> None:
        """Send data to every worker, including those that start later."""

    @property
    def room(self) -> int:
        """How many tasks can be submitted now."""

    def submit(self, ticket: int, task: Task) -> None:
        """Start a task; there must be room. Reports of it carry the ticket."""

    def wait(self) -> Report:
        """Wait for the next report."""

    def drop(self) -> None:
        """Forget all running tasks."""

    def close(self) -> None:
        """End all workers."""


TICKETS = count(1)
"""Numbers for submissions; each is used once, so that late reports of earlier ones are recognized."""


class TaskFailed(Exception):
    """Work on a step raised an error that is not the user's mistake."""

    def __init__(self, message: str, step: int | None) -> None:
        super().__init__(message, step)
        self.message = message
        self.step = step


def failure(error: Exception) -> Failed:
    """The event that reports an error in a worker."""
    if isinstance(error, ArmillaryError):
        return Failed(str(error), final=True)
    if isinstance(error, TaskFailed):
        return Failed(error.message, final=False, step=error.step)
    return Failed(sentence(error), final=False)


def sentence(error: BaseException) -> str:
    """An error's kind and its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def refuse_idle(workers: int, threads: int | None) -> None:
    """Raise if there are no workers or no threads."""
    if workers < 1:
        raise ArmillaryError(f"there must be at least 1 worker, not {workers}", given=workers, expected="1 or more")
    if threads is not None and threads < 1:
        raise ArmillaryError(f"a worker needs at least 1 thread, not {threads}", given=threads, expected="1 or more")


def refuse_here_only(job: Job) -> None:
    """Raise if the job cannot run in other processes."""
    if job.here_only:
        raise ArmillaryError(
            "a model that is loaded in this process cannot be sent to other workers",
            advice="give its folder or hub id, or use one worker",
        )


def refuse_unlike(job: Job, first: Any, other: Any, worker: Worker) -> None:
    """Raise if a worker has a different model, or different package versions, than the first."""
    differences = job.differences(first, other)
    if differences:
        raise ArmillaryError(
            f"{worker} differs from the first worker ({'; '.join(differences)}), so their results cannot be merged",
            advice="give all machines the same files and packages",
        )


def run_task(engine: Engine, task: Task, tries: int = 3) -> Done:
    """Run one task while no other runs, and return its result."""
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
    raise ArmillaryError(f"workers died {tries} times while running {task.work}")
