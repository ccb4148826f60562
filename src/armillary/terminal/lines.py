"""Progress for a log: where standard error is not a terminal, a plain line a minute while work runs."""

import sys
import threading
import time

EVERY = 60.0
"""Seconds between two lines."""


class Lines:
    """Prints a line at the start, one a minute (also while a single step takes long), and one at the end.

    With `total` 0 (unknown size) a line has the time so far and `also`.
    """

    def __init__(self, what: str, unit: str, total: int = 0, *, every: float = EVERY) -> None:
        self.what, self.unit, self.every = what, unit, every
        self.done = self.total = self._before = 0
        self.also = ""
        """Added at the end of the next lines."""
        self._begun = self._since = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        if total:
            self.begin(total)

    def __enter__(self) -> "Lines":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        if exception[0] is None:
            self.say(f"{self.what}: done in {duration(time.monotonic() - self._begun)}")

    def begin(self, total: int, done: int = 0, also: str = "") -> None:
        """Begin work of `total` units, of which `done` are already done; other work may have come before."""
        self.total, self.done, self._before, self._since = total, done, done, time.monotonic()
        before = f", {done:,} of them done before" if done else ""
        self.say(f"{self.what}: {total:,} {self.unit}{also}{before}")

    def advance(self, count: int) -> None:
        self.done += count

    def say(self, sentence: str) -> None:
        """Print a line."""
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()

    def line(self) -> str:
        """'scanning: 1,024 of 8,192 tokens, 310 tokens/s, 0:23 left, ...'."""
        now = time.monotonic()
        also = f", {self.also}" if self.also else ""
        if not self.total:
            return f"{self.what}: running for {duration(now - self._begun)}{also}"
        rate = (self.done - self._before) / max(1e-9, now - self._since)
        speed = f", {rate:,.0f} {self.unit}/s" if rate >= 1 else ""
        left = f", {duration((self.total - self.done) / rate)} left" if rate > 0 else ""
        return f"{self.what}: {self.done:,} of {self.total:,} {self.unit}{speed}{left}{also}"

    def _tick(self) -> None:
        while not self._ended.wait(self.every):
            self.say(self.line())


def duration(seconds: float | int) -> str:
    """1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def is_terminal() -> bool:
    """Whether standard error is a terminal, on which bars can be drawn."""
    return sys.stderr.isatty()
