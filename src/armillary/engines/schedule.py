"""Decides which task runs next and which result is merged next; no processes, no clock."""

from collections import deque
from collections.abc import Iterator
from statistics import median

TRIES = 3
"""A task that fails this often is given up."""

AHEAD = 4
"""How many tasks per worker may run ahead of the first that is not merged."""

LATE = 2.0
"""A task is given to a second worker when it takes this many times the median time."""

USUAL = 5
"""The median time is used once this many tasks have finished."""


class Schedule:
    """Tasks 0 .. count - 1 start in order and are merged in order, in whatever order they finish.

    A task starts only if it is fewer than `window` places after the first that is not merged, so at most `window`
    results wait on disk. Lost tasks come first. If nothing else can start, a late task is given to a second worker:
    both compute the same bits, so the first to finish is used. `now` is the time of any clock.
    """

    def __init__(self, count: int, window: int, tries: int = TRIES) -> None:
        self.count = count
        self.window = window
        self.tries = tries
        self.merged = 0
        """Tasks 0 .. merged - 1 are merged."""
        self.stopped = False
        self._next = 0
        self._running: dict[int, list[float]] = {}  # when it was started, once or twice
        self._to_retry: list[int] = []
        self._waiting: set[int] = set()
        self._losses: dict[int, int] = {}
        self._times: deque[float] = deque(maxlen=64)

    @property
    def over(self) -> bool:
        """Whether everything is merged."""
        return self.merged == self.count

    @property
    def waiting(self) -> int:
        """How many results wait to be merged."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many tasks are running."""
        return len(self._running)

    def next(self, now: float) -> int | None:
        """The task to start now, or None."""
        if self.stopped:
            return None
        if self._to_retry:
            task = self._to_retry.pop(0)
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
        """The first task that has run too long with only one worker."""
        if len(self._times) < USUAL:
            return None
        limit = LATE * median(self._times)
        late = (task for task, starts in self._running.items() if len(starts) == 1 and now - starts[0] > limit)
        return min(late, default=None)

    def lost(self, task: int, *, counts: bool = True) -> bool:
        """The task failed with one worker. False if it used up its tries and no other worker runs it."""
        starts = self._running.get(task)
        if starts is None:
            return True  # another worker finished it
        starts.pop()
        self._losses[task] = self._losses.get(task, 0) + counts
        if starts:
            return True
        del self._running[task]
        if self._losses[task] >= self.tries:
            return False
        self._to_retry.append(task)
        self._to_retry.sort()
        return True

    def arrived(self, task: int, now: float | None = None) -> bool:
        """The task finished; False if it had finished before. Without `now` its time is not counted."""
        starts = self._running.pop(task, None)
        if starts is None:
            return False
        if now is not None:
            self._times.append(now - starts[0])
        self._losses.pop(task, None)
        self._waiting.add(task)
        return True

    def in_turn(self) -> Iterator[int]:
        """The tasks to merge now, in order; each counts as merged once the next is requested."""
        while self.merged in self._waiting:
            yield self.merged
            self._waiting.discard(self.merged)
            self.merged += 1

    def stop(self) -> None:
        """Start no more tasks; running ones may finish."""
        self.stopped = True


def window_for(workers: int, least: int) -> int:
    """AHEAD tasks per worker, so that one slow task does not block the others; at least `least`."""
    return max(least, AHEAD * workers)
