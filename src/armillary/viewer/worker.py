"""One thread that works with the model, a job at a time; a job whose client has gone is not begun, or is given up."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from armillary.viewer.guard import Refused

T = TypeVar("T")
MOST_WAITING = 8
"""More jobs than this in the queue, and the next one is refused."""


class Abandoned(Exception):
    """The client has gone: nobody waits for the result."""


class Gone:
    """Whether anybody still waits for a job; work looks at it between layers."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise Abandoned if nobody waits any more."""
        if self._event.is_set():
            raise Abandoned


Work = Callable[[Gone], T]
Tell = Callable[[Any, BaseException | None], None]
"""Gives a result, or why there is none, to whoever waits."""


class Worker:
    """`await worker.do(request, work)` runs work(gone) in the worker's thread and gives its result."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Work[Any], Gone, Tell]] = deque()
        self._running: dict[Gone, Tell] = {}
        self._lock = threading.Condition()  # reentrant: a signal may stop the worker while the same thread holds it
        self.finished = 0
        """Jobs that ran to their end."""
        self.abandoned = 0
        """Jobs that were not begun, or were given up."""
        threading.Thread(target=self._work, name="armillary viewer", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a job waits or runs."""
        return bool(self._running)

    async def do(self, request: Request, work: Work[T]) -> T:
        """The result of the work, in its turn; Abandoned as soon as the client is gone."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        gone = Gone()

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

        self._put(work, gone, tell)
        leaves = asyncio.ensure_future(_leaving(request))
        waited: set[asyncio.Future[Any]] = {result, leaves}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise Abandoned
            return result.result()
        finally:
            gone.set()
            leaves.cancel()
            result.cancel()

    def stop(self) -> None:
        """Give up every job, so that the process can end."""
        with self._lock:
            for gone, tell in list(self._running.items()):
                gone.set()
                tell(None, Abandoned())

    def _put(self, work: Work[Any], gone: Gone, tell: Tell) -> None:
        """Into the queue, from which those whose client has gone are taken first."""
        with self._lock:
            for job in [job for job in self._jobs if job[1].is_set()]:
                self._jobs.remove(job)
                self._running.pop(job[1], None)
                self.abandoned += 1
            if len(self._jobs) >= MOST_WAITING:
                raise Refused(503, "the model is busy: try again in a moment")
            self._jobs.append((work, gone, tell))
            self._running[gone] = tell
            self._lock.notify()

    def _ended(self, gone: Gone) -> None:
        with self._lock:
            self._running.pop(gone, None)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: len(self._jobs) > 0)
                work, gone, tell = self._jobs.popleft()
            try:
                gone.check()
                value = work(gone)
                self.finished += 1
                self._ended(gone)
                tell(value, None)
            except BaseException as error:
                self.abandoned += isinstance(error, Abandoned)
                self._ended(gone)
                tell(None, error)


async def _leaving(request: Request) -> None:
    """Return when the client closes the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
