"""The command line in a fork of this process: as a user runs it, without the seconds that torch takes to import."""

import atexit
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code (minus the signal that ended it) and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def raw(self) -> bool:
        """Whether the user saw the inside of the program."""
        return "Traceback (most recent call last)" in self.err or "Warning: " in self.err or self.code not in (0, 1, 2)

    @property
    def words(self) -> str:
        return " ".join(self.err.split())[-300:]


class Running:
    """A command that runs in a fork."""

    def __init__(self, arguments: list[str], logs: Path, before: Callable[[], None] | None = None) -> None:
        self._out, self._err = logs / "stdout", logs / "stderr"
        for path in (self._out, self._err):
            path.write_bytes(b"")
        self.began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._be(arguments, before)
        self._code: int | None = None

    def _be(self, arguments: list[str], before: Callable[[], None] | None) -> None:
        for path, number in ((self._out, 1), (self._err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["armillary", *arguments]
        code = 1
        try:
            if before is not None:
                before()
            from armillary.cli import main

            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            try:
                sys.stdout.flush()
            except OSError as error:
                os.write(2, f"Exception ignored in stdout: {error}".encode())
                code = 120  # as Python itself
            os._exit(code)

    def ended(self) -> bool:
        """Whether it has; it is not waited for."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def wait(self) -> Ran:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return Ran(self._code, self._out.read_text(errors="replace"), self._err.read_text(errors="replace"))

    def send(self, number: signal.Signals) -> None:
        if not self.ended():
            os.kill(self.pid, number)


def armillary(arguments: list[str], logs: Path, before: Callable[[], None] | None = None) -> Ran:
    """Run a command to its end; `before` is called first, in the command's own process."""
    logs.mkdir(parents=True, exist_ok=True)
    return Running(arguments, logs, before).wait()


def imports() -> None:
    """What commands import; done once, before the forks."""
    import pandas  # noqa: F401
    import torch
    import xarray  # noqa: F401
    import zarr  # noqa: F401
    from transformers.models.gpt2 import modeling_gpt2  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401

    torch.set_num_threads(1)
