"""The engine of one machine: several processes, each with the model, fed through pipes.

They are started as programs of their own, not by multiprocessing, so that a script or a notebook that scans needs no
`if __name__ == "__main__"`, and nothing of this process is copied into them.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from armillary.engines.engine import (
    PATIENCE,
    TICKETS,
    Advanced,
    Begun,
    Failed,
    Job,
    Lost,
    Ready,
    Report,
    Task,
    Worker,
    refuse_here_only,
    refuse_idle,
    refuse_unlike,
)
from armillary.errors import ArmillaryError
from armillary.limits import refuse_beyond_memory
from armillary.temporary import remove_folder, temporary_folder

WORKER = 2e8
"""Bytes of a worker that has imported torch and transformers, before it loads a model."""

STARTS = 3
"""So often a worker may die before it is ready."""


class Local:
    """`workers` processes with `threads` threads each."""

    def __init__(self, workers: int, threads: int = 1, patience: float | int = PATIENCE) -> None:
        refuse_idle(workers, threads)
        refuse_beyond_memory(workers * WORKER, f"{workers} worker processes", "ask for fewer (--workers)")
        self.workers = workers
        self.threads = threads
        self.patience = float(patience)
        self._job: Job | None = None
        self._shared: bytes | None = None
        self._facts: Any = None
        self._processes: list[_Process] = []
        self._reports: queue.SimpleQueue[tuple[_Process, Report | None]] = queue.SimpleQueue()
        self._opening = 0
        self._starts = 0

    def start(self, job: Job) -> Any:
        if self._job is None or self._job != job:
            refuse_here_only(job)
            self.drop()
            self._job, self._opening, self._facts, self._shared = job, next(TICKETS), None, None
            for process in self._processes:
                self._open(process)
        there = {process.number for process in self._processes}
        for number in range(self.workers):
            if number not in there:
                self._processes.append(
                    self._spawn(number)
                )  # one by one: Ctrl-C in between leaves none that is not known
        while self._facts is None:
            self.wait()
        return self._facts

    def _open(self, process: "_Process") -> None:
        process.ready = False
        process.tell("job", self._opening, self._job)

    def share(self, data: bytes) -> None:
        self._shared = data
        for process in self._processes:
            if process.ready:
                process.tell("share", None, data)

    @property
    def room(self) -> int:
        return sum(process.idle for process in self._processes)

    def submit(self, ticket: int, task: Task) -> None:
        process = next(process for process in self._processes if process.idle)
        process.ticket, process.heard = ticket, time.monotonic()
        process.tell("task", ticket, task)

    def wait(self) -> Report:
        while True:
            try:
                process, report = self._reports.get(timeout=1.0)
            except queue.Empty:
                self._end_stuck()
                continue
            if process not in self._processes:
                continue  # of a worker that was ended by us
            process.heard = time.monotonic()
            if report is None:
                return self._died(process)
            if isinstance(report.event, Ready):
                if report.ticket == self._opening:
                    self._greet(process, report)
            elif report.ticket == self._opening and isinstance(report.event, Failed):
                self._job = None
                raise ArmillaryError(report.event.message)
            elif not isinstance(report.event, Advanced | Begun):
                process.ticket = None
            return report

    def _greet(self, process: "_Process", report: Report) -> None:
        assert isinstance(report.event, Ready)
        assert self._job is not None
        if self._facts is None:
            self._facts = report.event.facts
        else:
            refuse_unlike(self._job, self._facts, report.event.facts, report.worker)
        self._starts = 0
        process.worker, process.ready = report.worker, True
        if self._shared is not None:
            process.tell("share", None, self._shared)

    def _died(self, process: "_Process") -> Report:
        why, ticket, worker = process.end(), process.ticket, process.worker
        if not process.ready:
            self._starts += 1
            if self._starts >= STARTS:
                self.close()
                raise ArmillaryError(f"workers end before they have loaded the model ({why}): use fewer workers")
        self._processes[self._processes.index(process)] = self._spawn(process.number)
        return Report(worker, ticket, Lost(why))

    def _end_stuck(self) -> None:
        for process in self._processes:
            if process.ticket is not None and time.monotonic() - process.heard > self.patience:
                process.kill()

    def _spawn(self, number: int) -> "_Process":
        process = _Process(number, self.workers, self.threads, self._reports)
        self._open(process)
        return process

    def drop(self) -> None:
        busy = [process for process in self._processes if process.ticket is not None]
        self._processes = [process for process in self._processes if process.ticket is None]
        _end_all(busy)  # the next start replaces them

    def close(self) -> None:
        ended, self._processes = self._processes, []
        _end_all(ended)
        self._job = self._facts = self._shared = None
        self._starts = 0


class _Process:
    """One worker, and the thread that listens to it."""

    def __init__(
        self, number: int, workers: int, threads: int, reports: "queue.SimpleQueue[tuple[_Process, Report | None]]"
    ) -> None:
        self.number = number
        self.ready = False
        self.ticket: int | None = None
        self.heard = time.monotonic()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by end)
        self._folder = temporary_folder()  # the worker's own: it may be killed, and then it removes nothing itself
        arguments = (str(number), str(workers), str(threads), str(self._folder))
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "armillary.engines.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**worker_environment(threads), "TMPDIR": str(self._folder)},
        )
        self.worker = Worker(number, process=self._popen.pid)
        assert self._popen.stdout is not None
        self._listener = threading.Thread(target=_listen, args=(self, self._popen.stdout, reports), daemon=True)
        self._listener.start()

    @property
    def idle(self) -> bool:
        return self.ready and self.ticket is None

    def tell(self, kind: str, ticket: int | None, given: Any) -> None:
        """Send a message; if the worker is gone, the listener has told or will tell."""
        assert self._popen.stdin is not None
        with suppress(OSError):
            pickle.dump((kind, ticket, given), self._popen.stdin, protocol=5)
            self._popen.stdin.flush()

    def kill(self) -> None:
        self._popen.kill()

    def end(self) -> str:
        """Wait for its end; how it ended."""
        code = self._popen.wait()
        self._listener.join()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        said = self._last_words()
        self._errors.close()
        remove_folder(self._folder)
        if code < 0:
            name = signal.Signals(-code).name
            return f"ended by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
        return f"ended with exit code {code}" + (f": {said}" if said else "")

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else ""


def _listen(process: _Process, pipe: IO[bytes], reports: "queue.SimpleQueue[tuple[_Process, Report | None]]") -> None:
    try:
        while True:
            reports.put((process, pickle.load(pipe)))
    except Exception:  # the end of the pipe, or half a report
        reports.put((process, None))


def _end_all(processes: Iterable[_Process]) -> None:
    ended = list(processes)
    for process in ended:
        process.kill()
    for process in ended:
        process.end()


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of a worker: so many threads, no bars, and this process's way to find modules."""
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TQDM_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
