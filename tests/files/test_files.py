"""Writing files: symlinks stay, devices are refused, folders are replaced atomically, one process at a time."""

import errno
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import armillary as arm
from armillary.files import atomic as files
from armillary.files.atomic import remove_leftovers, whole_folder, write_atomically, write_with_checksum
from armillary.files.lock import FolderLock
from armillary.interventions import scaled
from armillary.papers.experiments import results
from armillary.papers.experiments.experiment import Outcome, Settings
from armillary.papers.experiments.registry import experiments
from program import run

NAME = "song-measures"


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "from armillary.cli import main; main()", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


class TestSymlinks:
    def test_the_target_of_a_link_is_written_and_the_link_stays(self, tmp_path: Path) -> None:
        target = tmp_path / "elsewhere" / "page.html"
        target.parent.mkdir()
        target.write_bytes(b"old")
        target.chmod(0o640)
        (tmp_path / "first").symlink_to("elsewhere/page.html")
        (tmp_path / "second").symlink_to("first")
        write_atomically(tmp_path / "second", b"new")
        assert (tmp_path / "second").is_symlink()
        assert (tmp_path / "first").is_symlink()
        assert target.read_bytes() == b"new"
        assert stat.S_IMODE(target.stat().st_mode) == 0o640
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "first", "page.html", "second"]

    def test_a_broken_link_gets_its_file(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "new")
        write_atomically(tmp_path / "link", b"new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "new").read_bytes() == b"new"

    def test_a_link_to_itself_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with pytest.raises(arm.ArmillaryError, match="cannot be written"):
            write_atomically(tmp_path / "loop", b"")

    def test_what_a_merge_adopts_from_a_part_is_never_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "part").write_bytes(b"the part's")
        (tmp_path / "work").symlink_to(tmp_path / "part")
        write_with_checksum(tmp_path / "work", [b"ours"])
        assert (tmp_path / "part").read_bytes() == b"the part's"
        assert files.read_checked(tmp_path / "work") == b"ours"


class TestRefused:
    def test_devices_pipes_sockets_and_folders(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "folder").mkdir()
        (tmp_path / "null").symlink_to("/dev/null")
        with socket.socket(socket.AF_UNIX) as open_socket:
            open_socket.bind(str(tmp_path / "socket"))
            for name, kind in {
                "pipe": "a pipe",
                "folder": "a folder",
                "null": "a device",
                "socket": "a socket",
            }.items():
                before = (tmp_path / name).lstat()
                with pytest.raises(arm.ArmillaryError, match=f"{name} is {kind}: name a file"):
                    write_atomically(tmp_path / name, b"data")
                assert (tmp_path / name).lstat() == before

    def test_an_open_file_by_its_number(self, tmp_path: Path) -> None:
        with (tmp_path / "log").open("wb") as log, pytest.raises(arm.ArmillaryError, match="open file of this process"):
            write_atomically(Path(f"/dev/fd/{log.fileno()}"), b"data")
        assert (tmp_path / "log").read_bytes() == b""

    def test_commands_refuse_before_they_start(self, tmp_path: Path) -> None:
        for path in ("/dev/null", "/dev/stdout", str(tmp_path)):
            told = (command if path == "/dev/stdout" else run)("theory", "--html", path)
            assert (told.returncode, told.stdout) == (2, "")
            assert f"{path} is " in told.stderr
        assert Path("/dev/null").is_char_device()

    def test_a_protected_file_is_not_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "kept").write_bytes(b"kept")
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # to the superuser nothing is protected
        with pytest.raises(arm.ArmillaryError, match="write-protected"):
            write_atomically(tmp_path / "kept", b"")
        assert (tmp_path / "kept").read_bytes() == b"kept"


WRITERS = ("files/atomic.py", "atlas/arrays.py")
"""Files that write to a path themselves; the store of an atlas is renamed when it is whole."""


def test_every_writer_goes_through_files() -> None:
    """Writing to a path by other means would leave half a file, or replace a link."""
    source = Path(arm.__file__).parent
    writes = re.compile(
        r"\.write_text\(|\.write_bytes\(|open\([^)]*[\"'][wx]b?[\"']|\.to_(csv|parquet)\([^i)]|json\.dump\("
    )
    found = [
        f"{path.relative_to(source)}:{number}"
        for path in sorted(source.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if writes.search(line) and path.relative_to(source).as_posix() not in WRITERS
    ]
    assert not found
    saved = [
        path.name
        for path in sorted(source.rglob("*.py"))
        if re.search(r"\w\.save_pretrained\(\w", path.read_text()) and "whole_folder" not in path.read_text()
    ]
    assert not saved


class TestFolders:
    def test_a_failure_leaves_the_old_folder_and_nothing_else(self, tmp_path: Path) -> None:
        with whole_folder(tmp_path / "a") as part:
            (part / "file").write_text("old")
        with pytest.raises(TypeError), whole_folder(tmp_path / "a") as part:
            (part / "file").write_text(None)  # type: ignore[arg-type]
        assert (tmp_path / "a" / "file").read_text() == "old"
        with whole_folder(tmp_path / "a") as part:
            (part / "other").write_text("new")
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["other"]
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        with pytest.raises(arm.ArmillaryError, match="cannot be written"), whole_folder(tmp_path / "a", replace=False):
            pass
        assert (tmp_path / "a" / "other").read_text() == "new"

    def test_leftovers_of_a_kill_are_removed_and_other_files_are_not(self, tmp_path: Path) -> None:
        (tmp_path / ".shard-00001.0a1b2c3d.part").touch()
        (tmp_path / ".model.0a1b2c3d.part").mkdir()
        (tmp_path / ".mine.part").touch()
        remove_leftovers(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [".mine.part"]


class TestExperiments:
    """The result that is there goes only when the new one takes its place."""

    EXPERIMENT = experiments()[NAME]

    def write(self, out: Path, number: float) -> results.Result:
        outcome = Outcome(claims=[], tables={"t": pd.DataFrame({"x": [number]})}, figures={}, learned=[])
        return results.write(self.EXPERIMENT, Settings(), outcome, out, 1.0)

    @pytest.mark.parametrize("killed_at", [1, 2, 3])
    def test_a_kill_at_any_rename_leaves_a_whole_result(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
    ) -> None:
        self.write(tmp_path, 1.0)
        plain, calls = Path.replace, []

        def replace(self: Path, target: Path) -> Path:
            if self.is_dir():
                calls.append(self.name)
                if len(calls) == killed_at:
                    os._exit(9)
            return plain(self, target)

        child = os.fork()
        if child == 0:
            monkeypatch.setattr(Path, "replace", replace)
            self.write(tmp_path, 2.0)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert results.read(tmp_path / NAME).table("t")["x"].tolist() == [1.0]
        assert self.write(tmp_path, 3.0).table("t")["x"].tolist() == [3.0]

    def test_a_result_that_cannot_be_written_leaves_the_old_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, data: bytes) -> None:
            raise arm.ArmillaryError("there is no space left")

        self.write(tmp_path, 1.0)
        monkeypatch.setattr(results, "write_atomically", full)
        with pytest.raises(arm.ArmillaryError, match="no space"):
            self.write(tmp_path, 2.0)
        assert results.read(tmp_path / NAME).table("t")["x"].tolist() == [1.0]
        assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_folder_lock_leaves_no_empty_folders(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "run", "training run"):
        with pytest.raises(arm.ArmillaryError, match="another scan is writing"), FolderLock(tmp_path / "run", "scan"):
            pass
        assert (tmp_path / "run" / "work" / "lock").exists()
    assert not (tmp_path / "run").exists()


def test_two_interventions_into_one_folder(tmp_path: Path) -> None:
    """The second to finish is told; the first one's model stays whole."""
    from armillary.anatomy.samples import sample_model
    from armillary.commands.intervene import _write

    out = tmp_path / "changed"

    def meanwhile(part: Path) -> None:
        _write(sample_model("llama"), lambda model: scaled(model, 2.0), out, lambda place: None)

    with pytest.raises(arm.ArmillaryError, match="cannot be written"):
        _write(sample_model("llama"), lambda model: scaled(model, 3.0), out, meanwhile)
    first = arm.describe(out).weights(0).q[0]
    assert first.allclose(2 * arm.describe(sample_model("llama")).weights(0).q[0])
    assert [path.name for path in tmp_path.iterdir()] == ["changed"]


def test_a_disk_that_also_refuses_to_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only file system refuses the new file, and refuses to remove it."""

    def refuse(*given: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(arm.ArmillaryError, match=r"page\.html cannot be written: Read-only file system"):
        write_atomically(tmp_path / "page.html", b"x")
