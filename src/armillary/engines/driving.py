"""The driver: gives tasks to an engine, keeps what comes back, merges it in order, and deals with what goes wrong."""

import time
from typing import Protocol, runtime_checkable

from armillary.engines.engine import TICKETS, Advanced, Begun, Done, Engine, Event, Failed, Lost, Report, Task
from armillary.engines.schedule import Schedule, window_for
from armillary.errors import ArmillaryError
from armillary.progress import Progress


@runtime_checkable
class Work(Protocol):
    """Tasks by their position, and what is done with their results."""

    def __len__(self) -> int:
        """How many tasks there are."""

    def task(self, position: int) -> Task:
        """The task, with its data."""

    def has(self, position: int) -> bool:
        """Whether its result is on disk already."""

    def keep(self, position: int, done: Done) -> None:
        """Put its result on disk."""

    def merge(self, position: int) -> None:
        """Its turn has come; the result is on disk."""


def drive(engine: Engine, work: Work, progress: Progress, least: int) -> None:
    """Do all of the work. What was finished is on disk when this raises."""
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
        """The position of every task that is with a worker."""
        self.tokens: dict[int, int] = {}
        """Tokens of a ticket that the progress bar has counted."""
        self.probes: dict[int, int | None] = {}
        """Tickets of tasks that run alone, to find the block that ends workers, and the last block that was begun."""

    def run(self) -> None:
        while True:
            self._merge()  # first: what is merged makes room for what may be given out
            self._give()
            if self.schedule.over:
                return
            if self.error is not None and not self.schedule.running and not self.probes:
                raise self.error
            self._hear(self.engine.wait())

    def _merge(self) -> None:
        for position in self.schedule.in_turn():
            self.work.merge(position)

    def _give(self) -> None:
        """Tasks to all workers that are free; those that are finished already are passed over."""
        while self.engine.room:
            position = self.schedule.next(time.monotonic())
            if position is None:
                return
            task = self.work.task(position)
            if self.work.has(position):
                self.schedule.arrived(position)
                self.progress.found(task.shard)
                self.progress.shard_saved(task.shard)
                self._merge()
            else:
                self._submit(position, task)

    def _submit(self, position: int, task: Task) -> int:
        ticket = next(TICKETS)
        self.tickets[ticket] = position
        self.engine.submit(ticket, task)
        return ticket

    def _hear(self, report: Report) -> None:
        ticket, event = report.ticket, report.event
        if ticket is None or ticket not in self.tickets:
            return
        position = self.tickets[ticket]
        if isinstance(event, Advanced):
            self.tokens[ticket] = self.tokens.get(ticket, 0) + event.tokens
            self.progress.batch_done(event.tokens)
            self.progress.worker_batch(report.worker, event.tokens)
            return
        if isinstance(event, Begun):
            self.probes[ticket] = event.block
            return
        del self.tickets[ticket]
        counted = self.tokens.pop(ticket, 0)
        if ticket in self.probes:
            self._found(position, self.probes.pop(ticket), event)
        elif isinstance(event, Done):
            if self.schedule.arrived(position, time.monotonic()):
                for note in event.notes:
                    self.progress.note(note)
                self.work.keep(position, event)
                self.progress.shard_saved(self.work.task(position).shard)
            else:
                self.progress.batches_lost(counted)  # its twin was faster
        elif isinstance(event, Failed):
            self.progress.batches_lost(counted)
            if event.final:
                self.schedule.lost(position)
                self._stop(ArmillaryError(event.message))
            elif not self.schedule.lost(position):
                self._stop(self._impossible(position, event.block, event.message))
        elif isinstance(event, Lost):
            self.progress.batches_lost(counted)
            self.progress.note(f"{report.worker} is gone ({event.why}); its shard is done again")
            if not self.schedule.lost(position):
                self._probe(position, event.why)

    def _probe(self, position: int, why: str) -> None:
        """Every worker that had this task died: once more, a block at a time, to see which one it is."""
        self._stop(self._impossible(position, None, why))
        while self.engine.room == 0:
            self._hear(self.engine.wait())
        task = self.work.task(position)
        self.probes[self._submit(position, Task(task.round, task.shard, task.data, alone=True))] = None

    def _found(self, position: int, block: int | None, event: Event) -> None:
        if isinstance(event, Lost) and block is not None:
            self.error = self._impossible(position, block, event.why)
        elif isinstance(event, Failed):
            self.error = self._impossible(position, event.block, event.message)

    def _stop(self, error: ArmillaryError) -> None:
        self.schedule.stop()
        self.error = self.error or error

    def _impossible(self, position: int, block: int | None, why: str) -> ArmillaryError:
        task = self.work.task(position)
        if task.round == "layer":
            return ArmillaryError(f"layer {task.shard.index} cannot be done: {why}; the others go on with --resume")
        first, last = task.shard.first, task.shard.last - 1
        which = "" if task.round == "shard" else f" of the round {task.round!r}"
        at = f"block {block}{which} cannot be run" if block is not None else f"blocks {first} to {last}{which} fail"
        return ArmillaryError(
            f"{at}: shard {task.shard.index} (blocks {first} to {last}) was tried {self.schedule.tries} times in vain "
            f"({why}); what was finished is kept: look at that block, or leave its text out; once the cause is gone, "
            "--resume goes on"
        )
