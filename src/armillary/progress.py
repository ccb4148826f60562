"""Who is told while a scan runs: nobody, or a bar on the terminal with tokens per second and the time left."""

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from armillary.engines.engine import Worker
from armillary.lines import Lines, is_terminal
from armillary.shards import Shard

SHOWN_WORKERS = 4
"""With more workers the slowest and the fastest are shown."""


class Progress:
    """Told what happens while a scan runs; this one says nothing."""

    def begin(self, shards: int, finished: int, tokens: int) -> None:
        """A round of so many shards and tokens starts; `finished` shards were there already."""

    def batch_done(self, tokens: int) -> None:
        """A batch of so many tokens went through the model."""

    def worker_batch(self, worker: Worker, tokens: int) -> None:
        """The same, and who did it."""

    def batches_lost(self, tokens: int) -> None:
        """So many tokens must go through the model again: their worker is gone."""

    def found(self, shard: Shard) -> None:
        """A shard was finished before."""

    def shard_done(self, shard: Shard) -> None:
        """A shard is finished, on disk and merged."""

    def shard_saved(self, shard: Shard) -> None:
        """A shard, of any round, is on disk."""

    def note(self, sentence: str) -> None:
        """Something that a person should know."""


class Rates:
    """Tokens per second of every worker, since its first batch of the round was announced."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._tokens: dict[int, int] = {}

    def add(self, worker: Worker, tokens: int) -> None:
        self._tokens[worker.number] = self._tokens.get(worker.number, 0) + tokens

    def words(self) -> str:
        """'per worker 310, 295', or the slowest and the fastest of many; nothing for one worker."""
        passed = max(1e-9, time.monotonic() - self._since)
        rates = [f"{tokens / passed:,.0f}" for _, tokens in sorted(self._tokens.items())]
        if len(rates) < 2:
            return ""
        if len(rates) <= SHOWN_WORKERS:
            return f"per worker {', '.join(rates)}"
        each = sorted(tokens / passed for tokens in self._tokens.values())
        return f"{len(rates)} workers, each {each[0]:,.0f} to {each[-1]:,.0f}"


class ScanLines(Progress):
    """The same for a log: plain lines on standard error."""

    def __init__(self) -> None:
        self._lines = Lines("scanning", "tokens")
        self._rates = Rates()
        self._shards = self._saved = self._each = 0

    def __enter__(self) -> "ScanLines":
        self._lines.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.__exit__(kind, error, trace)

    def begin(self, shards: int, finished: int, tokens: int) -> None:
        self._each, self._rates = tokens // max(1, shards), Rates()
        self._shards, self._saved = shards, finished
        self._lines.begin(tokens, self._each * finished, f" in {shards} shard{'' if shards == 1 else 's'}")
        self._tell()

    def _tell(self) -> None:
        saved = f"{self._saved} of {self._shards} shards saved"
        self._lines.also = ", ".join(filter(None, (saved, self._rates.words())))

    def batch_done(self, tokens: int) -> None:
        self._lines.advance(tokens)
        self._tell()

    def worker_batch(self, worker: Worker, tokens: int) -> None:
        self._rates.add(worker, tokens)

    def batches_lost(self, tokens: int) -> None:
        self._lines.advance(-tokens)

    def found(self, shard: Shard) -> None:
        self._lines.advance(self._each)

    def shard_saved(self, shard: Shard) -> None:
        self._saved += 1
        self._tell()

    def note(self, sentence: str) -> None:
        self._lines.say(sentence)


def scan_progress() -> "ScanBar | ScanLines":
    """A bar on a terminal, lines elsewhere."""
    return ScanBar() if is_terminal() else ScanLines()


class ScanBar(Progress):
    """A bar on standard error, gone when the scan is done."""

    def __init__(self) -> None:
        self._bar = RichProgress(
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
        self._each = 0
        self._rates = Rates()

    def __enter__(self) -> "ScanBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, shards: int, finished: int, tokens: int) -> None:
        self._each = tokens // max(1, shards)
        self._rates = Rates()
        self._task = self._bar.add_task("scan", total=tokens, completed=self._each * finished, rate="")

    def batch_done(self, tokens: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, tokens)
            speed = self._bar.tasks[-1].speed
            told = (f"{speed:,.0f} tokens/s" if speed else "", self._rates.words())
            self._bar.update(self._task, rate="; ".join(filter(None, told)))

    def worker_batch(self, worker: Worker, tokens: int) -> None:
        self._rates.add(worker, tokens)

    def batches_lost(self, tokens: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, -tokens)

    def found(self, shard: Shard) -> None:
        if self._task is not None:
            self._bar.advance(self._task, self._each)

    def shard_done(self, shard: Shard) -> None:
        self._bar.refresh()

    def note(self, sentence: str) -> None:
        self._bar.console.print(escape(sentence), highlight=False)
