"""Progress on standard error: a bar in a terminal, lines in a log."""

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from armillary.progress import Progress
from armillary.terminal.lines import Lines, is_terminal
from armillary.terminal.options import as_options

SHOWN_WORKERS = 4
"""With more workers only the slowest and the fastest rate are shown."""


def shown_progress(what: str = "") -> "ProgressBar | ProgressLines":
    """A bar in a terminal, lines in a log; `what` names the work until it begins."""
    return ProgressBar() if is_terminal() else ProgressLines(what)


class Rates:
    """Units per second of every worker, since the work began."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._counts: dict[object, int] = {}

    def add(self, worker: object, count: int) -> None:
        self._counts[worker] = self._counts.get(worker, 0) + count

    def words(self) -> str:
        """'per worker 310, 295', or the slowest and the fastest of many; '' for one worker."""
        passed = max(1e-9, time.monotonic() - self._since)
        rates = [f"{count / passed:,.0f}" for _, count in sorted(self._counts.items(), key=lambda item: str(item[0]))]
        if len(rates) < 2:
            return ""
        if len(rates) <= SHOWN_WORKERS:
            return f"per worker {', '.join(rates)}"
        sorted_rates = sorted(count / passed for count in self._counts.values())
        return f"{len(rates)} workers, each {sorted_rates[0]:,.0f} to {sorted_rates[-1]:,.0f}"


class ProgressLines(Progress):
    """Plain lines, at least one a minute."""

    def __init__(self, what: str = "") -> None:
        self._lines = Lines(what, "")
        self._rates = Rates()
        self._pieces = self._saved = 0
        self._status = ""

    def __enter__(self) -> "ProgressLines":
        self._lines.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lines.__exit__(*exception)

    def begin(self, what: str, total: int, unit: str, *, done: int = 0, pieces: int = 0, saved: int = 0) -> None:
        self._rates, self._pieces, self._saved = Rates(), pieces, saved
        self._lines.what, self._lines.unit = what, unit
        self._lines.begin(total, done, f" in {pieces} shard{'' if pieces == 1 else 's'}" if pieces else "")
        self._update()

    def _update(self) -> None:
        saved = f"{self._saved} of {self._pieces} shards saved" if self._pieces else ""
        self._lines.also = ", ".join(filter(None, (self._status, saved, self._rates.words())))

    def status(self, words: str) -> None:
        self._status = words
        self._update()

    def advance(self, count: int = 1, worker: object = None) -> None:
        self._lines.advance(count)
        if worker is not None:
            self._rates.add(worker, count)
        self._update()

    def piece_saved(self) -> None:
        self._saved += 1
        self._update()

    def note(self, sentence: str) -> None:
        self._lines.say(as_options(sentence))


class ProgressBar(Progress):
    """A bar with the rate and the time left; it disappears when the work is done."""

    def __init__(self) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TextColumn("{task.fields[status]}"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None
        self._unit = ""
        self._rates = Rates()

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin(self, what: str, total: int, unit: str, *, done: int = 0, pieces: int = 0, saved: int = 0) -> None:
        self._rates, self._unit = Rates(), unit
        shown_unit = "" if unit == what else unit
        self._task = self._bar.add_task(what, total=total, completed=done, rate="", unit=shown_unit, status="")

    def advance(self, count: int = 1, worker: object = None) -> None:
        if self._task is None:
            return
        if worker is not None:
            self._rates.add(worker, count)
        self._bar.advance(self._task, count)
        speed = self._bar.tasks[-1].speed
        rate = f"{speed:,.0f} {self._unit}/s" if speed and speed >= 1 else ""
        self._bar.update(self._task, rate="; ".join(filter(None, (rate, self._rates.words()))))

    def status(self, words: str) -> None:
        if self._task is not None:
            self._bar.update(self._task, status=words)

    def piece_merged(self, index: int) -> None:
        self._bar.refresh()

    def note(self, sentence: str) -> None:
        self._bar.console.print(escape(as_options(sentence)), highlight=False)
