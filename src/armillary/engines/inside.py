"""The engine without workers: tasks run in this process, one at a time."""

from collections.abc import Iterator
from typing import Any

from armillary.engines.engine import Advanced, Begun, Bench, Event, Failed, Job, Report, Task, Worker, failure


class Inside:
    """One task at a time, here. A loaded model can only be used this way; an error is not tried again."""

    workers = 1

    def __init__(self) -> None:
        self._worker = Worker(0)
        self._job: Job | None = None
        self._bench: Bench | None = None
        self._running: tuple[int, Iterator[Event]] | None = None

    def start(self, job: Job) -> Any:
        if self._bench is None or self._job != job:
            self._job, self._bench = job, job.open(0, 1)
        return self._bench.facts

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
            told = failure(error)
            event = Failed(told.message if told.final else _with_block(told), final=True)
        if event is None:
            raise RuntimeError("a task ended without saying that it was done")
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


def _with_block(told: Failed) -> str:
    where = "" if told.block is None else f"block {told.block} cannot be run: "
    return f"{where}{told.message}; what was finished is kept, and --resume goes on once the cause is gone"
