"""The engine without workers: tasks run in this process, one at a time."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from armillary.engines.engine import Advanced, Begun, Bench, Event, Job, Report, Task, Worker, failure


class Inside:
    """One task at a time in this process. Required for a loaded model; errors are not retried."""

    workers = 1

    def __init__(self) -> None:
        self._worker = Worker(0)
        self._job: Job | None = None
        self._bench: Bench | None = None
        self._running: tuple[int, Iterator[Event]] | None = None

    def start(self, job: Job) -> Any:
        if self._bench is None or self._job != job:
            self._job = self._bench = None  # two models need not fit into memory
            self._bench = job.open(0, 1)
            self._job = job
        return self._bench.facts

    @property
    def bench(self) -> Bench | None:
        """What runs the tasks, once the engine is started: callers in this process need not ask it by tasks."""
        return self._bench

    def share(self, data: bytes) -> None:
        assert self._bench is not None
        self._bench.share(data)

    @property
    def room(self) -> int:
        return int(self._running is None)

    def submit(self, ticket: int, task: Task) -> None:
        assert self._bench is not None
        self._running = ticket, self._bench.run(task)

    def wait(self) -> Report:
        assert self._running is not None
        ticket, events = self._running
        event: Event | None
        try:
            event = next(events, None)
        except Exception as error:
            event = replace(failure(error), retry=False)  # the same process would fail in the same way
        if event is None:
            raise RuntimeError("a task ended without a Done event")
        if not isinstance(event, Advanced | Begun):
            self._running = None
            events.close()  # type: ignore[attr-defined]
        return Report(self._worker, ticket, event)

    def drop(self) -> None:
        if self._running is not None:
            self._running[1].close()  # type: ignore[attr-defined]
            self._running = None

    def close(self) -> None:
        self.drop()
        self._bench = self._job = None
