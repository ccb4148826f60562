"""The driver: submits tasks to an engine, saves their results, merges them in order, and retries what failed."""

import time
from dataclasses import replace
from typing import Protocol, runtime_checkable

from armillary.engines.engine import TICKETS, Advanced, Begun, Done, Engine, Event, Failed, Lost, Report, Task
from armillary.engines.schedule import Schedule, window_for
from armillary.errors import ArmillaryError
from armillary.progress import Progress


@runtime_checkable
class Work(Protocol):
    """Tasks by position, and how to save and merge their results."""

    def __len__(self) -> int:
        """How many tasks there are."""

    def task(self, position: int) -> Task:
        """The task, with its data."""

    def units(self, position: int) -> int:
        """The size of the task, in the units of the progress."""

    def has(self, position: int) -> bool:
        """Whether its result is on disk."""

    def keep(self, position: int, done: Done) -> None:
        """Write its result to disk."""

    def merge(self, position: int) -> None:
        """Merge its result, which is on disk; called in order of position."""

    def failure(self, position: int, step: int | None, why: str, tries: int) -> ArmillaryError:
        """The error for a task that failed with every worker: at this step, if known."""


def drive(engine: Engine, work: Work, progress: Progress, least: int) -> None:
    """Run all tasks. If this raises, finished results are on disk."""
    try:
        _Drive(engine, work, progress, Schedule(len(work), window_for(engine.workers, least))).run()
    except BaseException:
        engine.drop()
        raise


class _Drive:
    def __init__(self, engine: Engine, work: Work, progress: Progress, schedule: Schedule) -> None:
        self.engine, self.work, self.progress, self.schedule = engine, work, progress, schedule
        self.error: ArmillaryError | None = None
        self.tickets: dict[int, int] = {}
        """Ticket of every running task -> its position."""
        self.counted: dict[int, int] = {}
        """Ticket -> units that were reported as progress."""
        self.probes: dict[int, int | None] = {}
        """Ticket of every task that runs step by step to find the step that kills workers -> the last step begun."""

    def run(self) -> None:
        while True:
            self._merge()  # first: merging makes room in the window
            self._submit_tasks()
            if self.schedule.over:
                return
            if self.error is not None and not self.schedule.running and not self.probes:
                raise self.error
            self._handle(self.engine.wait())

    def _merge(self) -> None:
        for position in self.schedule.in_turn():
            self.work.merge(position)

    def _submit_tasks(self) -> None:
        """Give tasks to all idle workers; skip tasks whose results are on disk."""
        while self.engine.room:
            position = self.schedule.next(time.monotonic())
            if position is None:
                return
            if self.work.has(position):
                self.schedule.arrived(position)
                self.progress.advance(self.work.units(position))
                self.progress.piece_saved()
                self._merge()
            else:
                self._submit(position, self.work.task(position))

    def _submit(self, position: int, task: Task) -> int:
        ticket = next(TICKETS)
        self.tickets[ticket] = position
        self.engine.submit(ticket, task)
        return ticket

    def _handle(self, report: Report) -> None:
        ticket, event = report.ticket, report.event
        if ticket is None or ticket not in self.tickets:
            if isinstance(event, Lost):  # while it was idle, or after another had finished its task
                self.progress.note(f"{report.worker} is gone ({event.why})")
            return
        position = self.tickets[ticket]
        if isinstance(event, Advanced):
            self.counted[ticket] = self.counted.get(ticket, 0) + event.units
            self.progress.advance(event.units, report.worker)
            return
        if isinstance(event, Begun):
            self.probes[ticket] = event.step
            return
        del self.tickets[ticket]
        counted = self.counted.pop(ticket, 0)
        if ticket in self.probes:
            self._probe_ended(position, self.probes.pop(ticket), event)
        elif isinstance(event, Done):
            if self.schedule.arrived(position, time.monotonic()):
                for note in event.notes:
                    self.progress.note(note)
                self.work.keep(position, event)
                if self.work.units(position) != counted:  # a task that reports no steps, or ran fewer than planned
                    self.progress.advance(self.work.units(position) - counted)
                self.progress.piece_saved()
            else:
                self.progress.advance(-counted)  # the same task on another worker was faster
        elif isinstance(event, Failed):
            self.progress.advance(-counted)
            if event.final:
                self.schedule.lost(position)
                self._stop(ArmillaryError(event.message))
            elif not event.retry:
                self.schedule.lost(position)
                self._stop(self.work.failure(position, event.step, event.message, 1))
            elif not self.schedule.lost(position):
                self._stop(self._failure(position, event.step, event.message))
        elif isinstance(event, Lost):
            self.progress.advance(-counted)
            self.progress.note(f"{report.worker} is gone ({event.why}); its task runs again")
            if not self.schedule.lost(position):
                self._probe(position, event.why)

    def _probe(self, position: int, why: str) -> None:
        """Every worker that ran this task died: run it step by step to find the step that kills them."""
        self._stop(self._failure(position, None, why))
        while self.engine.room == 0:
            self._handle(self.engine.wait())
        task = self.work.task(position)
        self.probes[self._submit(position, replace(task, alone=True))] = None

    def _probe_ended(self, position: int, step: int | None, event: Event) -> None:
        if isinstance(event, Lost) and step is not None:
            self.error = self._failure(position, step, event.why)
        elif isinstance(event, Failed):
            self.error = self._failure(position, event.step, event.message)

    def _stop(self, error: ArmillaryError) -> None:
        self.schedule.stop()
        self.error = self.error or error

    def _failure(self, position: int, step: int | None, why: str) -> ArmillaryError:
        return self.work.failure(position, step, why, self.schedule.tries)
