"""Waiting threads sleep, only in the program, and the user's own settings are kept."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from armillary.machine.parallel import in_parallel, on_cores
from armillary.machine.threads import wait_asleep

DECIDED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS")


def test_what_the_user_has_not_decided_is_set() -> None:
    environment: dict[str, str] = {}
    wait_asleep(environment)
    assert environment == {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", DECIDED)
def test_what_the_user_has_decided_stays(name: str) -> None:
    environment = {name: "7"}
    wait_asleep(environment)
    assert environment[name] == "7"
    assert len(environment) == 2  # the other library's
    same = {"OMP_WAIT_POLICY": "ACTIVE", "OPENBLAS_NUM_THREADS": "2"}
    before = dict(same)
    wait_asleep(same)
    assert same == before


def ran(code: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in DECIDED}
    given = [sys.executable, "-c", code, "--version"]
    return subprocess.run(given, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_program_decides_before_a_numerical_library_is_loaded() -> None:
    """Libraries read their environment when they are loaded."""
    code = (
        "import atexit, json, os, sys; from armillary.cli import main; "
        "early = [m for m in ('torch', 'numpy', 'scipy') if m in sys.modules]; "
        "atexit.register(lambda: print(json.dumps([early, os.environ['OMP_WAIT_POLICY']]))); main()"
    )
    assert json.loads(ran(code).splitlines()[-1]) == [[], "PASSIVE"]


def test_a_library_user_is_left_alone() -> None:
    code = "import armillary, armillary.cli, armillary.scanning.scan, os; print('OMP_WAIT_POLICY' in os.environ)"
    assert ran(code).strip() == "False"
    assert Path(sys.modules["armillary.machine.threads"].__file__ or "").exists()


def test_small_pieces_run_on_one_thread_each_and_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(in_parallel(lambda _: torch.get_num_threads(), range(5))) == [1] * 5
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            list(in_parallel(lambda item: 1 // item, [1, 0, 1]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_threads_that_are_kept_use_one_core_each() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    try:
        for threads in (2, 3, 2):
            torch.set_num_threads(threads)
            on_cores(lambda _: seen.append(torch.get_num_threads()), range(8))
            assert torch.get_num_threads() == threads
        assert seen == [1] * 24
        with pytest.raises(ZeroDivisionError):
            on_cores(lambda item: 1 // item, [1, 0, 1])
        torch.set_num_threads(1)
        on_cores(seen.append, [5])  # in this thread
        assert seen[-1] == 5
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_two_threads_cost_less_than_twice_the_processor_time_of_one() -> None:
    """On a busy machine; the whole table is bench/threads.py."""
    bench = Path(__file__).parents[2] / "bench/threads.py"
    given = [sys.executable, str(bench), "--repeats", "1", "--only", "gaussian"]
    done = subprocess.run(given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
