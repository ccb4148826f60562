"""The engine of one machine: several processes, each with the model, connected by pipes.

They are separate programs, not started by multiprocessing, so that a script or notebook that scans needs no
`if __name__ == "__main__"` and nothing of this process is copied into them.
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
from armillary.machine.limits import refuse_beyond_memory
from armillary.machine.temporary import remove_folder, temporary_folder

WORKER_BYTES = 2e8
"""Memory of a worker that has imported torch and transformers, before it loads a model."""

STARTS = 3
"""After this many deaths of workers before they are ready, the engine gives up."""


class Local:
    """`workers` processes with `threads` threads each."""

    def __init__(self, workers: int, threads: int = 1, patience: float | int = PATIENCE) -> None:
        refuse_idle(workers, threads)
        refuse_beyond_memory(workers * WORKER_BYTES, f"{workers} worker processes", "use fewer `workers`")
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
        running = {process.number for process in self._processes}
        for number in range(self.workers):
            if number not in running:  # appended one by one, so that Ctrl-C leaves no process unlisted
                self._processes.append(self._spawn(number))
        while self._facts is None:
            self.wait()
        return self._facts

    def _open(self, process: "_Process") -> None:
        process.ready = False
        process.send("job", self._opening, self._job)

    def share(self, data: bytes) -> None:
        self._shared = data
        for process in self._processes:
            if process.ready:
                process.send("share", None, data)

    @property
    def room(self) -> int:
        return sum(process.idle for process in self._processes)

    def submit(self, ticket: int, task: Task) -> None:
        process = next(process for process in self._processes if process.idle)
        process.ticket, process.last_report = ticket, time.monotonic()
        process.send("task", ticket, task)

    def wait(self) -> Report:
        while True:
            try:
                process, report = self._reports.get(timeout=1.0)
            except queue.Empty:
                self._kill_stuck()
                continue
            if process not in self._processes:
                continue  # from a worker that we killed
            process.last_report = time.monotonic()
            if report is None:
                return self._worker_died(process)
            if isinstance(report.event, Ready):
                if report.ticket == self._opening:
                    self._worker_ready(process, report)
            elif report.ticket == self._opening and isinstance(report.event, Failed):
                self._job = None
                raise ArmillaryError(report.event.message)
            elif not isinstance(report.event, Advanced | Begun):
                process.ticket = None
            return report

    def _worker_ready(self, process: "_Process", report: Report) -> None:
        assert isinstance(report.event, Ready)
        assert self._job is not None
        if self._facts is None:
            self._facts = report.event.facts
        else:
            refuse_unlike(self._job, self._facts, report.event.facts, report.worker)
        self._starts = 0
        process.worker, process.ready = report.worker, True
        if self._shared is not None:
            process.send("share", None, self._shared)

    def _worker_died(self, process: "_Process") -> Report:
        why, ticket, worker = process.end(), process.ticket, process.worker
        if not process.ready:
            self._starts += 1
            if self._starts >= STARTS:
                self.close()
                raise ArmillaryError(
                    f"workers die before they have loaded the model ({why})", advice="use fewer workers"
                )
        self._processes[self._processes.index(process)] = self._spawn(process.number)
        return Report(worker, ticket, Lost(why))

    def _kill_stuck(self) -> None:
        for process in self._processes:
            if process.ticket is not None and time.monotonic() - process.last_report > self.patience:
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
        processes, self._processes = self._processes, []
        _end_all(processes)
        self._job = self._facts = self._shared = None
        self._starts = 0


class _Process:
    """One worker process, and the thread that reads its reports."""

    def __init__(
        self, number: int, workers: int, threads: int, reports: "queue.SimpleQueue[tuple[_Process, Report | None]]"
    ) -> None:
        self.number = number
        self.ready = False
        self.ticket: int | None = None
        self.last_report = time.monotonic()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by end)
        self._folder = temporary_folder()  # removed by us, since a killed worker cannot
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

    def send(self, kind: str, ticket: int | None, content: Any) -> None:
        """Send a message; if the worker is gone, the listener reports it."""
        assert self._popen.stdin is not None
        with suppress(OSError):
            pickle.dump((kind, ticket, content), self._popen.stdin, protocol=5)
            self._popen.stdin.flush()

    def kill(self) -> None:
        self._popen.kill()

    def end(self) -> str:
        """Wait for the process to end; returns how it ended."""
        code = self._popen.wait()
        self._listener.join()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        last_line = self._last_error_line()
        self._errors.close()
        remove_folder(self._folder)
        if code < 0:
            name = signal.Signals(-code).name
            return f"ended by {name}" + (", perhaps out of memory" if name == "SIGKILL" else "")
        return f"ended with exit code {code}" + (f": {last_line}" if last_line else "")

    def _last_error_line(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else ""


def _listen(process: _Process, pipe: IO[bytes], reports: "queue.SimpleQueue[tuple[_Process, Report | None]]") -> None:
    try:
        while True:
            reports.put((process, pickle.load(pipe)))
    except Exception:  # the pipe ended, perhaps within a report
        reports.put((process, None))


def _end_all(processes: list[_Process]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.end()


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of a worker: its number of threads, no progress bars, and this process's module path."""
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
