"""A worker process of the local engine: `python -m armillary.engines.worker NUMBER WORKERS THREADS FOLDER`.

It reads pickled messages from standard input and writes reports to standard output. A thread reads all the time, so
that the worker ends at once when the driver does. Temporary files go into FOLDER, which the driver removes; if the
driver was killed, the worker does.
"""

import os
import pickle
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

from armillary.engines.engine import Ready, Report, Worker, failure
from armillary.machine.temporary import remove_all, remove_at_exit

# Imports inside functions: a worker answers before torch is imported.


def main(number: int, workers: int, threads: int, folder: Path) -> None:
    """Open jobs and run their tasks until standard input ends."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # only the driver reacts to Ctrl-C; it ends us
        signal.signal(ignored, signal.SIG_IGN)
    remove_at_exit(folder)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with reports
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, messages), daemon=True).start()
    worker = Worker(number)
    bench: Any = None
    while True:
        kind, ticket, content = messages.get()
        try:
            if kind == "job":
                import torch

                torch.set_num_threads(threads)
                bench = None  # two models may not fit
                bench = content.open(number, workers)
                _send(out, Report(worker, ticket, Ready(bench.facts)))
            elif kind == "share":
                bench.share(content)
            else:
                for event in bench.run(content):
                    _send(out, Report(worker, ticket, event))
        except Exception as error:
            _send(out, Report(worker, ticket, failure(error)))
            if _is_cuda_error(error):
                return


def _read(stdin: BinaryIO, messages: "queue.SimpleQueue[Any]") -> None:
    try:
        while True:
            messages.put(pickle.load(stdin))
    except BaseException:
        remove_all()
        os._exit(0)  # the driver is gone


def _send(out: BinaryIO, report: Report) -> None:
    pickle.dump(report, out, protocol=5)
    out.flush()


def _is_cuda_error(error: BaseException | None) -> bool:
    """Whether the error is one of CUDA, after which the process cannot use the GPU."""
    while error is not None:
        if "CUDA" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
