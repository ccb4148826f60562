"""Full disks, folders that cannot be written, folders that vanish: every command that writes gives a clear error.

Full is real: the system refuses files above a few bytes (RLIMIT_FSIZE), as it does at the end of a quota. Read-only is
real too, also for root: nothing can be made below /proc, or below what is a file.
"""

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.errors import ArmillaryError
from armillary.progress import Progress
from armillary.training.config import from_dict
from armillary.training.run import train_run
from conftest import Atlases
from program import process, run

TEXT = "def the function returns"


@contextmanager
def full_disk(room: int = 1000) -> Iterator[None]:
    """No file may grow beyond `room` bytes.

    Python's import writes compiled modules without looking at how much was written: it would leave them cut off, for
    everybody who uses this environment. So none are written meanwhile.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with patch.object(sys, "dont_write_bytecode", True):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def places(atlases: Atlases, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("disks")
    (base / "run.toml").write_text(
        "[model]\nlayers = 1\nheads = 2\nwidth = 8\n[data]\ndocuments = 40\n"
        "[training]\nsteps = 2\nlength = 16\nbatch = 2\n"
    )
    sample_model("llama").save_pretrained(base / "sample")
    return {
        "MODEL": str(arm.bundled("llama")),
        "SAMPLE": str(base / "sample"),
        "ATLAS": str(atlases.family("llama").path.parent),
        "CONFIG": str(base / "run.toml"),
    }


WRITERS = [
    "report ATLAS --out OUT",
    "map MODEL --text TEXT --html OUT",
    "intervene MODEL --scale 1.5 --text TEXT --html OUT",
    "intervene SAMPLE --scale 1.5 --out OUT",
    "theory B5 --html OUT",
    "frequencies ATLAS --html OUT",
    "gaussian ATLAS --html OUT",
    "localization ATLAS --html OUT",
    "experiment show song-gram --html OUT",
    "weights SAMPLE --no-matrices --out OUT",
    "scan SAMPLE --corpus builtin:random --length 16 --sequences 4 --streams attention --out OUT",
    "train CONFIG --out OUT",
]


def told(line: str, places: dict[str, str], out: str) -> str:
    """The one sentence of a command that cannot write."""
    words = [{**places, "OUT": out, "TEXT": TEXT}.get(word, word) for word in line.split()]
    ran = run(*words)
    assert ran.returncode == 2, ran
    lines = [line for line in ran.stderr.splitlines() if line.startswith("armillary: ")]
    assert len(lines) == 1, ran.stderr
    return lines[0]


@pytest.mark.parametrize("line", WRITERS)
class TestPlaces:
    def test_a_full_disk(self, line: str, places: dict[str, str], tmp_path: Path) -> None:
        with full_disk():
            said = told(line, places, str(tmp_path / "out"))
        assert "no space left" in said or "too large" in said, said

    @pytest.mark.parametrize("parent", ["/proc", "FILE"])
    def test_a_place_that_cannot_be_written_to(
        self, line: str, parent: str, places: dict[str, str], tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("x")
        out = str(tmp_path / "file" / "out") if parent == "FILE" else "/proc/nothing/out"
        said = told(line, places, out)
        assert "/proc/nothing" in said or str(tmp_path / "file") in said
        assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("kind", ["to_csv", "to_parquet"])
def test_tables_on_a_full_disk(atlases: Atlases, kind: str, tmp_path: Path) -> None:
    atlas = atlases.family("llama")
    with full_disk(), pytest.raises(ArmillaryError, match="no space left"):
        getattr(atlas, kind)(tmp_path / "tables")
    with pytest.raises(ArmillaryError, match="cannot be written"):
        getattr(atlas, kind)("/proc/nothing/tables")
    assert [path.name for path in tmp_path.rglob("*.*")] == []


def test_results_printed_to_a_full_disk(atlases: Atlases) -> None:
    command = [sys.executable, "-m", "armillary", "heads", str(atlases.family("llama").path.parent), "--csv"]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "armillary: there is no space left: make room, then run it again\n"


class Vanishing(Progress):
    """Removes a folder as soon as a shard is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def piece_merged(self, index: int) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def test_the_folder_of_a_scan_vanishes(tmp_path: Path) -> None:
    tokens = torch.randint(5, 99, (8, 12), generator=torch.Generator().manual_seed(3))
    out = tmp_path / "out"
    with pytest.raises(ArmillaryError, match="out"):
        arm.scan(sample_model("llama"), tokens, out=out, shard=2, batch=2, progress=Vanishing(out))


def test_the_folder_of_a_run_vanishes(tmp_path: Path) -> None:
    config = from_dict(
        {
            "model": {"layers": 1, "heads": 2, "width": 8},
            "data": {"documents": 40},
            "training": {"steps": 4, "length": 16, "batch": 2},
        }
    )
    with pytest.raises(ArmillaryError, match="out"):
        train_run(config, tmp_path / "out", lambda step, loss: shutil.rmtree(tmp_path / "out", ignore_errors=True))


def test_the_program_reports_what_the_machine_refuses(tmp_path: Path) -> None:
    """Whatever no one foresaw, here a name that no file system takes."""
    said = process("heads", "x" * 5000).stderr
    assert said.startswith("armillary: xxx")
    assert "cannot be used: File name too long" in said
    assert "Traceback" not in said
