"""A process that imports torch once and forks for every case: a case costs milliseconds, and may crash or hang.

The program reads a case's number a line from standard input and answers with a line of JSON. A case that is not done in
time is killed with everything it started.
"""

import contextlib
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from armillary.streams.loops import compile_loops
from faults.confining import confined
from faults.outcomes import HANG, SAME, SKIPPED, TRACEBACK, Ended, Outcome

BENCH = Path(__file__).resolve().parents[1]
PREPARE = -1
"""The number that stands for preparing what all cases start from."""
PREPARE_BOUND = 1200.0
PATIENCE = 3.0
"""A case that does not answer in time is tried once more with so many times the bound: a busy machine is no hang."""
MEMORY = 4 << 30
"""Bytes that a case may have: absurd sizes end in a MemoryError, not in a machine that swaps."""


Work = Callable[[], Outcome | list[Outcome] | None]


@dataclass
class Case:
    """One case: its number, its random numbers, a folder of its own, and the folder that `prepare` wrote."""

    number: int
    rng: random.Random
    scratch: Path
    place: Path
    told: int = -1
    free: str = ""
    """Why the process is not confined to its folder, where it is not."""

    def tries(self, what: str) -> str:
        """Say which kind of fault is tried, so that it is known even if the process dies of it."""
        _put(self.told, {"what": what})
        return what


def numbers_of(subject: str, seed: int, number: int) -> random.Random:
    """The random numbers of a case, which depend on nothing else."""
    return random.Random(f"{subject} {seed} {number}")


# the side of the server ---------------------------------------------------------------------------------------


def serve(subject: str, place: str, seed: str) -> None:
    """Answer each number from standard input with how that case ended."""
    module = importlib.import_module(f"faults.{subject}")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if hasattr(module, "warm"):
        module.warm()
    compile_loops(lambda _: None)  # cases have nowhere to keep what they compile
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answered(module, subject, Path(place), int(seed), int(line))), file=answers, flush=True)


def answered(module: Any, subject: str, place: Path, seed: int, number: int) -> dict[str, Any]:
    """Run a case in a fork and wait for it."""
    scratch = place / f"case-{number}"
    case = Case(number, numbers_of(subject, seed, number), scratch, place / "base")
    work = (lambda: module.prepare(case.place)) if number == PREPARE else (lambda: module.run(case))
    bound = PREPARE_BOUND if number == PREPARE else module.BOUND
    began = time.monotonic()
    if number != PREPARE and getattr(module, "CONFINED", False):
        work = partial(in_confinement, case, work)
    for patience in (1.0, PATIENCE):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        case.rng = numbers_of(subject, seed, number)
        outcomes = forked(case, work, patience * bound)
        if outcomes[0]["verdict"] != HANG:
            break
    shutil.rmtree(scratch, ignore_errors=True)
    return {"number": number, "seconds": time.monotonic() - began, "outcomes": outcomes}


def in_confinement(case: Case, work: Work) -> "Outcome | list[Outcome] | None":
    """The work, able to write into the case's own folder alone; left out where root would be free to do harm."""
    case.free = confined(case.scratch)
    if case.free and os.geteuid() == 0:
        return Outcome("", SKIPPED, case.free)
    return work()


def forked(case: Case, work: Work, bound: float) -> list[dict[str, str]]:
    """What `work` returns in a process of its own; a crash, an exception and a hang are outcomes too."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(here)
        case.told = there
        _work(work, case.scratch / "log", there)
    os.close(there)
    try:
        return _awaited(child, here, case.scratch / "log", bound)
    finally:
        os.close(here)


def _work(work: Work, log: Path, answer: int) -> None:
    """The forked process: it ends here, whatever happens."""
    try:
        os.setsid()
        sys.dont_write_bytecode = True  # an import with no room for its compiled file leaves half of one, for everybody
        written = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        found = work() or Outcome("", SAME)
    except BaseException as error:
        found = Outcome("", TRACEBACK, last_lines(error))
    outcomes = found if isinstance(found, list) else [found]
    _put(answer, {"outcomes": [vars(outcome) for outcome in outcomes]})
    os._exit(0)


def _put(answer: int, words: dict[str, Any]) -> None:
    data = (json.dumps(words) + "\n").encode()
    while data:
        data = data[os.write(answer, data) :]


def last_lines(error: BaseException) -> str:
    """The exception, and the place of ours that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "armillary" in frame.filename]
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())[:300]}"


def _awaited(child: int, answer: int, log: Path, bound: float) -> list[dict[str, str]]:
    """All that a case said of itself, or how it ended without a word."""
    until, data, status = time.monotonic() + bound, b"", None
    while status is None:
        left = until - time.monotonic()
        if left <= 0 or not select.select([answer], [], [], left)[0]:
            _end(child)
            return _told(_said(data), HANG, f"no answer within {bound:.0f} s")
        part = os.read(answer, 1 << 16)
        data += part
        if not part or (b'"outcomes"' in data and data.endswith(b"\n")):
            status = _end(child)
    said = _said(data)
    if "outcomes" not in said:
        log_end = log.read_text(errors="replace")[-300:] if log.is_file() else ""
        return _told(said, TRACEBACK, f"the process died (status {status}): {log_end}")
    return [{**one, "what": one["what"] or said.get("what", "")} for one in said["outcomes"]]


def _said(data: bytes) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for line in data.splitlines():
        said |= json.loads(line)
    return said


def _told(said: dict[str, Any], verdict: str, words: str) -> list[dict[str, str]]:
    return [{"what": said.get("what", ""), "verdict": verdict, "told": words}]


def _end(child: int) -> int:
    """Kill what is left of a case, and its process; how that ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# the side of the campaign -------------------------------------------------------------------------------------


class Server:
    """The program above, as the campaign sees it. It is started again if it dies."""

    def __init__(self, subject: str, place: Path, seed: int) -> None:
        self._subject, self._place, self._seed = subject, place, seed
        self._process: subprocess.Popen[str] | None = None

    def ask(self, number: int) -> list[Ended]:
        """How a case ended; one that tries several things tells of each."""
        if self._process is None:
            self._process = self._started()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{number}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            gone = self.close()
            outcome = Outcome("", TRACEBACK, f"the server of cases died with {gone}")
            return [Ended(self._subject, self._seed, number, outcome, 0.0)]
        found = json.loads(line)
        seconds = found["seconds"] / len(found["outcomes"])
        return [Ended(self._subject, self._seed, number, Outcome(**one), seconds) for one in found["outcomes"]]

    def _started(self) -> "subprocess.Popen[str]":
        code = "import sys, faults.serving as s; s.serve(*sys.argv[1:])"
        source = Path(importlib.import_module("armillary").__file__ or "").parents[1]
        paths = os.pathsep.join([str(BENCH), str(source), os.environ.get("PYTHONPATH", "")])
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", code, self._subject, str(self._place), str(self._seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **one_thread, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"},
        )
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"the server of cases for {self._subject} did not start: {process.wait()}")
        return process

    def close(self) -> int | None:
        """End the program, if it runs, and close its pipes; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(BrokenPipeError), process:  # closes the pipes and waits
            pass
        return process.returncode


def tried(subject: str, numbers: list[int], place: Path, seed: int) -> Iterator[Ended]:
    """How these cases of a subject end, in the order in which they do."""
    jobs = min(importlib.import_module(f"faults.{subject}").JOBS, len(numbers))
    first = Server(subject, place, seed)
    [prepared] = first.ask(PREPARE)
    if prepared.outcome.verdict != SAME:
        raise SystemExit(f"{subject}: what the cases start from could not be made: {prepared.outcome.told}")
    waiting: SimpleQueue[int] = SimpleQueue()
    for number in numbers:
        waiting.put(number)
    ended: SimpleQueue[Ended | None] = SimpleQueue()

    def feed(server: Server) -> None:
        try:
            while True:
                for one in server.ask(waiting.get_nowait()):
                    ended.put(one)
        except Empty:
            server.close()
        finally:
            ended.put(None)

    servers = [first, *(Server(subject, place, seed) for _ in range(jobs - 1))]
    for server in servers:
        threading.Thread(target=feed, args=(server,), daemon=True).start()
    running = len(servers)
    while running:
        one = ended.get()
        if one is None:
            running -= 1
        else:
            yield one
