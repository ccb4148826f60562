"""The thread that runs the model, one job at a time; jobs whose client has gone are not started, or are cancelled."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from armillary.viewer.guard import Refused
from armillary.viewer.turns import Asker, Turns

T = TypeVar("T")
MOST_WAITING = 128
"""The most jobs that may wait. A page has at most three, so this is enough for forty tabs."""


SUPERSEDED = (409, "superseded: this page has sent a newer request")


class Abandoned(Exception):
    """The client has gone, so the result is not needed."""


class Gone:
    """Set when a job's client has gone; the job checks it between layers."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise Abandoned if the client has gone."""
        if self._event.is_set():
            raise Abandoned


Work = Callable[[Gone], T]
Tell = Callable[[Any, BaseException | None], None]
"""Sends a result, or the error, to the waiting request."""


@dataclass(frozen=True, eq=False)
class Job:
    """Work, the request that it is for, and where its result goes."""

    asker: Asker
    work: Work[Any]
    tell: Tell
    gone: Gone = field(default_factory=Gone)

    def give_up(self, why: BaseException) -> None:
        """Report the error in place of a result; running work ends between two layers."""
        self.gone.set()
        self.tell(None, why)


class Worker:
    """`await worker.do(request, asker, work)` runs work(gone) in the worker's thread and returns its result.

    Tabs take turns. A tab's new request supersedes its waiting or running one of the same kind, which gets status 409,
    which a page ignores.
    """

    def __init__(self) -> None:
        self._waiting: Turns[Job] = Turns(MOST_WAITING)
        self._running: Job | None = None
        self._lock = threading.Condition()  # reentrant: a signal may stop the worker while the same thread holds it
        self.finished = 0
        """Jobs that ran to their end."""
        self.abandoned = 0
        """Jobs that were not started, or were cancelled."""
        threading.Thread(target=self._work, name="armillary viewer", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a job waits or runs."""
        return self._running is not None or len(self._waiting) > 0

    async def do(self, request: Request, asker: Asker, work: Work[T]) -> T:
        """The result of the work, in its turn; raises Abandoned as soon as the client is gone."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if result.done():
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        def tell(value: Any, error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value, error)

        job = Job(asker, work, tell)
        self._put(job)
        leaves = asyncio.ensure_future(_leaving(request))
        waited: set[asyncio.Future[Any]] = {result, leaves}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise Abandoned
            return result.result()
        finally:
            self._forget(job)
            leaves.cancel()
            result.cancel()

    def stop(self) -> None:
        """Cancel every job, so that the process can end."""
        with self._lock:
            while len(self._waiting):
                self._drop(self._waiting.take(), Abandoned())
            if self._running is not None:
                self._running.give_up(Abandoned())

    def _put(self, job: Job) -> None:
        with self._lock:
            superseded, without_room = self._waiting.put(job.asker, job)
            for other in superseded:
                self._drop(other, Refused(*SUPERSEDED))
            for other in without_room:
                self._drop(other, Refused(503, "the model is busy: try again in a moment"))
            if self._running is not None and job.asker.supersedes(self._running.asker):
                self._running.give_up(Refused(*SUPERSEDED))
            self._lock.notify()

    def _forget(self, job: Job) -> None:
        """Remove a job whose client has its answer or has gone."""
        with self._lock:
            job.gone.set()
            self.abandoned += self._waiting.remove(job)

    def _drop(self, job: Job, why: BaseException) -> None:
        """Cancel a waiting job."""
        self.abandoned += 1
        job.give_up(why)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: len(self._waiting) > 0)
                job = self._running = self._waiting.take()
            value, error = None, None
            try:
                job.gone.check()
                value = job.work(job.gone)
            except BaseException as raised:
                error = raised
            with self._lock:
                self._running = None
                self.finished += error is None
                self.abandoned += isinstance(error, Abandoned)
            job.tell(value, error)
            del job, value, error  # a result may be large, and the next job may come much later


async def _leaving(request: Request) -> None:
    """Return when the client closes the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
