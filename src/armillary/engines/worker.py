"""A worker process of the local engine: `python -m armillary.engines.worker NUMBER WORKERS THREADS FOLDER`.

Pickled messages come on standard input, reports leave on standard output. A thread reads all the time, so that the
end of the driver ends the worker at once, whatever it is doing. Temporary files go into FOLDER, which the driver
removes; if the driver was killed, the worker does.
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
from armillary.temporary import remove_all, remove_at_exit


def main(number: int, workers: int, threads: int, folder: Path) -> None:
    """Open jobs and do their tasks until there is nobody to give any."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # what is sent to all processes is for the driver, which ends us
        signal.signal(ending, signal.SIG_IGN)
    remove_at_exit(folder)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the reports
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, messages), daemon=True).start()
    worker = Worker(number)
    bench: Any = None
    while True:
        kind, ticket, given = messages.get()
        try:
            if kind == "job":
                import torch

                torch.set_num_threads(threads)
                bench = None  # two models may not fit
                bench = given.open(number, workers)
                _tell(out, Report(worker, ticket, Ready(bench.facts)))
            elif kind == "share":
                bench.share(given)
            else:
                for event in bench.run(given):
                    _tell(out, Report(worker, ticket, event))
        except Exception as error:
            _tell(out, Report(worker, ticket, failure(error)))
            if _spoilt(error):
                return


def _read(given: BinaryIO, messages: "queue.SimpleQueue[Any]") -> None:
    try:
        while True:
            messages.put(pickle.load(given))
    except BaseException:
        remove_all()
        os._exit(0)  # the driver is gone


def _tell(out: BinaryIO, report: Report) -> None:
    pickle.dump(report, out, protocol=5)
    out.flush()


def _spoilt(error: BaseException | None) -> bool:
    """After an error on a GPU nothing works in the process any more."""
    while error is not None:
        if "CUDA" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
