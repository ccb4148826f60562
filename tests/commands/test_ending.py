"""SIGTERM ends the program with code 143, and neither its temporary folders nor its workers stay behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import armillary as arm
from armillary.machine.temporary import remove_folder, temporary_folder

PROGRAM = "from armillary.cli import main; main()"
WITHIN = 300.0
"""Seconds that anything here may take on a busy machine."""

LIBRARY = """
import armillary as arm
from armillary import cli

@cli.app.command()
def scan_without_out() -> None:
    arm.scan(arm.bundled("llama"), "builtin:random", sequences=4000)

@cli.app.command()
def weigh_without_out() -> None:
    while True:
        arm.weigh(arm.bundled("llama"))

cli.main()
"""


def until(holds: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Wait until something holds while the process runs."""
    end = time.monotonic() + WITHIN
    while not holds():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)


def folders(place: Path) -> list[Path]:
    return list(place.rglob("armillary-*"))


def children(process: int) -> list[int]:
    """The processes that this one started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process:
            found.append(int(stat.parent.name))
    return found


def started(place: Path, program: str, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "TMPDIR": str(place), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


SCAN = ("scan", str(arm.bundled("llama")), "--corpus", "builtin:random", "--sequences", "4000")
COMMANDS = {
    "scan that spills to disk": (PROGRAM, *SCAN, "--device-map", "auto"),
    "scan with two workers that spill": (PROGRAM, *SCAN, "--device-map", "auto", "--workers", "2"),
    "scan without a folder": (LIBRARY, "scan-without-out"),
    "weights without a folder": (LIBRARY, "weigh-without-out"),
}


ALWAYS = "scan that spills to disk"
"""The one that `make test` tries; the others are slow tests."""


@pytest.mark.parametrize(
    "name", [name if name == ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_sigterm_cleans_up(tmp_path: Path, name: str) -> None:
    program, *arguments = COMMANDS[name]
    place = tmp_path / "tmp"
    place.mkdir()
    out = ["--out", str(tmp_path / "out")] if arguments[0] == "scan" else []
    spills = "spill" in name
    workers = 2 if "two workers" in name else 0
    process = started(place, program, *arguments, *out)
    try:
        until(lambda: len(folders(place)) >= max(1, workers * (1 + spills)), process)
        if out:
            until(lambda: any((tmp_path / "out").rglob("scan.json")), process)
        working = children(process.pid)
        assert len(working) >= workers
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN) == 143
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        assert "armillary: stopped" in said
        assert folders(place) == []
        assert not [child for child in working if Path(f"/proc/{child}").exists()]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_workers_clean_up_when_the_whole_group_is_told_to_end_or_the_driver_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A batch system tells every process at once; a killed driver can do nothing, so its workers do."""
    arguments = [*SCAN, "--device-map", "auto", "--workers", "2", "--out", str(tmp_path / "out")]
    process = started(tmp_path, PROGRAM, *arguments)
    try:
        until(lambda: len(folders(tmp_path)) >= 4, process)
        working = children(process.pid)
        if number == signal.SIGTERM:
            for one in (*working, process.pid):
                os.kill(one, number)
        else:
            process.kill()
        assert process.wait(WITHIN) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
        end = time.monotonic() + WITHIN
        while folders(tmp_path) and time.monotonic() < end:
            time.sleep(0.02)
        assert folders(tmp_path) == []
    finally:
        process.kill()
        process.communicate()


def test_a_temporary_folder_is_the_users_own() -> None:
    place = temporary_folder()
    assert place.stat().st_mode & 0o777 == 0o700
    (place / "file").touch()
    remove_folder(place)
    assert not place.exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(arm.ArmillaryError, match="set TMPDIR"):
        temporary_folder()


IN_A_FINALIZER = """
import os, signal, time
from armillary import cli

class Finalized:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # the handler runs here, where Python drops what it raises

@cli.app.command()
def finalize() -> None:
    Finalized()
    time.sleep(60)

cli.main()
"""


def test_a_signal_that_meets_a_finalizer_is_not_lost() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_FINALIZER, "finalize"], capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert ended.returncode == 143, ended.stderr
    assert "Traceback" not in ended.stderr
