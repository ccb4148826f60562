"""Which task is given out next, and which result is merged next: rules alone, no processes and no clock."""

from collections import deque
from collections.abc import Iterator
from statistics import median

TRIES = 3
"""So often a task may come to nothing before it counts as impossible."""

AHEAD = 4
"""Tasks that may be given out beyond the first that is not merged, for every worker."""

LATE = 2.0
"""A task that others wait for is given to a second worker when it takes so many times the usual time."""

USUAL = 5
"""So many tasks must have finished before there is a usual time."""


class Schedule:
    """Tasks 0 .. count - 1 are given out in order and merged in order, whatever order they finish in.

    A task is given out only while it is fewer than `window` places after the first that is not merged: so many
    results can wait on disk at most. A task that was lost comes first. When nothing else can be given out, a task that
    is late is given out once more: both would give the same bits, so the first to finish will do. `now` is any clock.
    """

    def __init__(self, count: int, window: int, tries: int = TRIES) -> None:
        self.count = count
        self.window = window
        self.tries = tries
        self.merged = 0
        """Tasks 0 .. merged - 1 are merged."""
        self.stopped = False
        self._next = 0
        self._running: dict[int, list[float]] = {}  # when it was given out, once or twice
        self._again: list[int] = []
        self._waiting: set[int] = set()
        self._losses: dict[int, int] = {}
        self._times: deque[float] = deque(maxlen=64)

    @property
    def over(self) -> bool:
        """Whether everything is merged."""
        return self.merged == self.count

    @property
    def waiting(self) -> int:
        """How many results wait for their turn."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many tasks are with workers."""
        return len(self._running)

    def next(self, now: float) -> int | None:
        """The task to give out now, or None if there is none at the moment."""
        if self.stopped:
            return None
        if self._again:
            task = self._again.pop(0)
        elif self._next < min(self.count, self.merged + self.window):
            task = self._next
            self._next += 1
        else:
            late = self._late(now)
            if late is None:
                return None
            task = late
        self._running.setdefault(task, []).append(now)
        return task

    def _late(self, now: float) -> int | None:
        """The first task that one worker has had for too long."""
        if len(self._times) < USUAL:
            return None
        limit = LATE * median(self._times)
        alone = (task for task, given in self._running.items() if len(given) == 1 and now - given[0] > limit)
        return min(alone, default=None)

    def lost(self, task: int, *, counts: bool = True) -> bool:
        """The task came to nothing with one worker. False if it had all its tries and nobody works on it any more."""
        given = self._running.get(task)
        if given is None:
            return True  # its twin has finished
        given.pop()
        self._losses[task] = self._losses.get(task, 0) + counts
        if given:
            return True
        del self._running[task]
        if self._losses[task] >= self.tries:
            return False
        self._again.append(task)
        self._again.sort()
        return True

    def arrived(self, task: int, now: float | None = None) -> bool:
        """The result of the task is there; False if it was there before. Without `now` it took no time."""
        given = self._running.pop(task, None)
        if given is None:
            return False
        if now is not None:
            self._times.append(now - given[0])
        self._losses.pop(task, None)
        self._waiting.add(task)
        return True

    def in_turn(self) -> Iterator[int]:
        """The tasks whose turn to be merged has come; each counts as merged once the next is asked for."""
        while self.merged in self._waiting:
            yield self.merged
            self._waiting.discard(self.merged)
            self.merged += 1

    def stop(self) -> None:
        """Give out nothing more; what runs may finish."""
        self.stopped = True


def window_for(workers: int, least: int) -> int:
    """AHEAD tasks for every worker, so that one slow task does not make the others wait; or `least`."""
    return max(least, AHEAD * workers)
