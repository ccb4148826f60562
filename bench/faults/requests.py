"""Requests to the viewer, valid and hostile: no answer above 499, nothing told that should not be, the server lives on.

A case is a viewer that is started, asked fifty times, and ended; each request is a run of its own in the counts.
"""

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

from faults import hostile, programs
from faults.hostile import Request
from faults.material import copied
from faults.outcomes import DIFFERENT, HANG, REFUSED, SAME, TRACEBACK, WRONG, Outcome
from faults.serving import Case

REQUESTS = 50
"""In the life of one viewer."""
AT_ONCE = 8
"""Of those, the last so many are sent together."""
COUNT = 20
BOUND = 400.0
SECONDS = 30.0
JOBS = 2
CONFINED = True


def warm() -> None:
    programs.imports()
    import armillary.viewer.server  # noqa: F401


def prepare(place: Path) -> None:
    import armillary as arm

    model = copied(Path(arm.bundled("llama")), place / "model")
    asked = ["--sequences", "4", "--length", "32", "--second-pass", "4"]
    ran = programs.armillary(["scan", str(model), *asked, "--out", str(place / "atlas")], place / "logs")
    assert ran.code == 0, ran.err


class Viewer:
    """A viewer in a fork, and where it listens."""

    def __init__(self, case: Case) -> None:
        (case.scratch / "logs").mkdir()
        asked = ["view", str(case.place / "atlas"), "--no-browser", "--model", str(case.place / "model")]
        self.running = programs.Running(asked, case.scratch / "logs", lambda: os.chdir(case.scratch))
        self.logs = case.scratch / "logs"
        until = time.monotonic() + 120
        found = None
        while found is None:
            assert not self.running.ended(), (self.logs / "stderr").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
            found = re.search(r"http://127\.0\.0\.1:(\d+)/[?#]token=([\w-]+)", (self.logs / "stdout").read_text())
        self.port, self.token = int(found[1]), found[2]
        self.start = self.beginning()

    def beginning(self) -> bytes:
        """What the page is told when it starts."""
        return self.exchange(hostile.valid(self.port, self.token, "start", {})).partition(b"\r\n\r\n")[2]

    def exchange(self, request: Request) -> bytes:
        """All bytes of the answer, until the server closes or a new one would have to be asked for."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as client:
            try:
                for part in request.parts:
                    client.sendall(part)
                    time.sleep(request.pause)
                if request.leaves:
                    return b""
                client.shutdown(socket.SHUT_WR) if request.half_closes else None
                return _all(client)
            except (BrokenPipeError, ConnectionResetError):
                return b""  # it refused before it had read all

    def end(self) -> Outcome | None:
        """Ctrl-C; what is wrong with how it ends, if something is."""
        began = time.monotonic()
        self.running.send(signal.SIGINT)
        while not self.running.ended():
            if time.monotonic() - began > SECONDS:
                return Outcome("Ctrl-C", HANG, f"the viewer still runs after {SECONDS:.0f} s")
            time.sleep(0.02)
        ran = self.running.wait()
        return Outcome("Ctrl-C", TRACEBACK, ran.words) if "Traceback" in ran.err or ran.code != 0 else None


def _all(client: socket.socket) -> bytes:
    data = b""
    while True:
        part = client.recv(1 << 16)
        if not part:
            return data
        data += part


def run(case: Case) -> list[Outcome]:
    viewer = Viewer(case)
    requests = [hostile.drawn(case.rng, viewer.port, viewer.token) for _ in range(REQUESTS)]
    outcomes = [judged(viewer, request) for request in requests[:-AT_ONCE]]
    together: list[Outcome] = []
    threads = [threading.Thread(target=lambda r=r: together.append(judged(viewer, r))) for r in requests[-AT_ONCE:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes += together
    alive = Outcome("alive at the end", SAME)
    if not viewer.start or viewer.beginning() != viewer.start:
        alive = Outcome("alive at the end", DIFFERENT, "the viewer does not answer as it did at first")
    outcomes[-1:] = [outcomes[-1]] if alive.verdict == SAME else [alive]
    said = (viewer.logs / "stderr").read_text(errors="replace")
    if "Traceback" in said:
        outcomes[-1] = Outcome("standard error", TRACEBACK, " ".join(said.split())[-300:])
    return [*outcomes[:-1], viewer.end() or outcomes[-1]]


def judged(viewer: Viewer, request: Request) -> Outcome:
    """How one request was answered."""
    try:
        answer = viewer.exchange(request)
    except TimeoutError:
        return Outcome(request.what, HANG, f"no answer within {SECONDS:.0f} s: {request.words}")
    except OSError as error:
        return Outcome(request.what, WRONG, f"the viewer is not there: {error}: {request.words}")
    return judged_answer(request, answer, viewer.token)


def judged_answer(request: Request, answer: bytes, token: str) -> Outcome:
    """Whether an answer is one that such a request may get."""
    found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    status = int(found[1]) if found else 0
    told = f"{status} for {request.words}"
    if answer and not found:
        return Outcome(request.what, TRACEBACK, f"an answer that is not HTTP: {request.words}")
    if status >= 500 or b"Traceback" in answer:
        return Outcome(request.what, TRACEBACK, f"{told}: {answer[-200:]!r}")
    leaks = [word for word in (token.encode(), b"root:x:", *hostile.PRIVATE) if word in answer]
    if leaks:
        return Outcome(request.what, WRONG, f"{told}: tells {leaks[0]!r}")
    if request.expects == "answer" and status != 200:
        return Outcome(request.what, WRONG, f"{told}: {answer[-200:]!r}")
    if request.expects == "refusal" and 200 <= status < 300:
        return Outcome(request.what, WRONG, f"accepted: {told}")
    return Outcome(request.what, SAME if 200 <= status < 300 else REFUSED, told)
