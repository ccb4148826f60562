"""The progress of a scan on the terminal: tokens per second and the time left."""

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from armillary.scanning import Progress as ScanProgress
from armillary.shards import Shard


class ScanBar(ScanProgress):
    """A bar on standard error, gone when the scan is done."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("scanning"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tokens"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "ScanBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, shards: int, finished: int, tokens: int) -> None:
        done = tokens * finished // max(1, shards)
        self._task = self._bar.add_task("scan", total=tokens, completed=done, rate="")

    def batch_done(self, tokens: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, tokens)
            speed = self._bar.tasks[-1].speed
            self._bar.update(self._task, rate=f"{speed:,.0f} tokens/s" if speed else "")

    def shard_done(self, shard: Shard) -> None:
        self._bar.refresh()

    def note(self, sentence: str) -> None:
        self._bar.console.print(escape(sentence), highlight=False)
