"""The program as tests run it: its exit code, what it prints, and the one sentence that a user's mistake gets."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

Ran = subprocess.CompletedProcess[str]


def process(*arguments: str | Path) -> Ran:
    """The program in a process of its own, which takes seconds to import torch."""
    command = [sys.executable, "-m", "armillary", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=None, check=False)


def run(*arguments: str | Path) -> Ran:
    """The program in this process: its exit code and what it prints. What it does not catch fails the test."""
    from armillary.cli import main

    argv, out, said, code = ["armillary", *map(str, arguments)], StringIO(), StringIO(), 0
    with patch.object(sys, "argv", argv), patch.dict(os.environ), redirect_stdout(out), redirect_stderr(said):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return subprocess.CompletedProcess(argv, code, out.getvalue(), said.getvalue())


def several(lines: list[list[str]], **environment: str) -> list[Ran]:
    """Several command lines in one process of its own, with these environment variables."""
    code = (
        "import json, sys; from program import run\n"
        "done = [run(*line) for line in json.loads(sys.argv[1])]\n"
        "print(json.dumps([[d.args, d.returncode, d.stdout, d.stderr] for d in done]))"
    )
    return [Ran(*result) for result in fresh_python(code, json.dumps(lines), **environment)]


def fresh_python(code: str, *arguments: str, **environment: str) -> Any:
    """The JSON that this code prints last in a process of its own, which can import what tests share."""
    tests = str(Path(__file__).parent)
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, **environment, "PYTHONPATH": path}
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=variables)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def complaint(*arguments: str | Path, using: Callable[..., Ran] = run) -> str:
    """What the command says; it must be one sentence and exit code 2."""
    ran = using(*arguments)
    assert ran.returncode == 2, ran
    assert "Traceback" not in ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith("armillary: ")]
    assert len(lines) == 1, ran.stderr
    assert not ran.stdout
    return lines[0]


def edit_config(folder: Path, **changes: object) -> None:
    """Write other values into a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
