"""Work that is watched by a log: plain lines where there is no terminal, shards of about a minute, whole tables."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.cli import app
from armillary.commands.options import check_shard
from armillary.engines.engine import Worker
from armillary.scanning.folder import LARGEST, shard_size
from armillary.terminal import grid
from armillary.terminal.lines import Lines, duration
from armillary.terminal.progress import ProgressLines

TOKENS = torch.randint(5, 99, (12, 16), generator=torch.Generator().manual_seed(3))


class TestLines:
    def test_one_at_the_start_one_whenever_it_is_time_one_at_the_end(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = ""
        with Lines("heads", "heads", 8, every=0.05) as lines:
            lines.advance(2)
            while said.count("\n") < 3:  # one step that takes long
                time.sleep(0.01)
                said += capsys.readouterr().err
        first, *between, last = (said + capsys.readouterr().err).splitlines()
        assert first == "heads: 8 heads"
        assert len(between) >= 2
        assert all(re.match(r"heads: 2 of 8 heads(, [\d,]+ heads/s)?, \d+:\d\d left$", line) for line in between)
        assert re.fullmatch(r"heads: done in \d+:\d\d", last)

    def test_no_end_is_claimed_of_work_that_failed(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(ValueError, match="broken"), Lines("heads", "heads", 8):
            raise ValueError("broken")
        assert capsys.readouterr().err == "heads: 8 heads\n"

    def test_of_a_scan(self, capsys: pytest.CaptureFixture[str]) -> None:
        told = ProgressLines()
        told.begin("scanning", 4000, "tokens", done=1000, pieces=4, saved=1)
        told.advance(500, Worker(0))
        told.piece_saved()
        assert capsys.readouterr().err == "scanning: 4,000 tokens in 4 shards, 1,000 of them done before\n"
        assert re.match(r"scanning: 1,500 of 4,000 tokens, .* left, 2 of 4 shards saved$", told._lines.line())

    def test_items_are_counted(self, capsys: pytest.CaptureFixture[str]) -> None:
        with ProgressLines("layers") as progress:
            assert list(progress.each([1, 2], "layers")) == [1, 2]
        assert re.fullmatch(r"layers: 2 layers\nlayers: done in \d+:\d\d\n", capsys.readouterr().err)

    def test_times(self) -> None:
        assert [duration(s) for s in (5, 65, 3723)] == ["0:05", "1:05", "1:02:03"]

    def test_every_long_command_says_something(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        sample_model("llama").save_pretrained(model)
        asked = ["--corpus", "builtin:random", "--sequences", "4", "--length", "16", "--shard", "2"]
        for number in (1, 2):
            shown = CliRunner().invoke(
                app, ["scan", str(model), *asked, "--part", f"{number}/2", "--out", str(tmp_path / str(number))]
            )
            assert shown.exit_code == 0, shown.output
        commands = {
            "scanning: 64 tokens in 2 shards": ["scan", str(model), "--out", str(tmp_path / "scan"), *asked],
            "scanning: 64 tokens in (2) shards": [
                *("merge", str(tmp_path / "1"), str(tmp_path / "2"), "--out", str(tmp_path / "merged"))
            ],
            "reading weights: 3 layers": ["weights", str(model), "--out", str(tmp_path / "weights")],
            "settings: 2 settings": ["rope", str(model), "--sweep", "p=1,0.5", *asked[:-2]],
        }
        for said, command in commands.items():
            shown = CliRunner().invoke(app, command)
            assert shown.exit_code == 0, shown.output
            assert re.search(f"^({said})$", shown.stderr, re.MULTILINE), shown.stderr
            assert "done in" in shown.stderr


class TestShards:
    def test_their_size_follows_from_the_model_and_the_length_alone(self) -> None:
        sizes = [shard_size(n, 576, 30, 128) for n in (10**6, 10**8, 10**9)]
        assert sizes[0] == LARGEST
        assert sizes == sorted(sizes, reverse=True)
        assert shard_size(10**8, 576, 30, 4096) <= shard_size(10**8, 576, 30, 128)
        assert shard_size(10**12, 64, 100, 4096) == 1

    def test_they_have_as_many_tokens_as_the_model_is_wide(self) -> None:
        """The sums that a shard leaves are d x d: fewer tokens would be more to write than to compute."""
        for d in (64, 576, 4096):
            assert shard_size(10**11, d, 40, 128) * 128 >= min(d, LARGEST * 128)

    def test_it_is_resolved_before_the_scan_and_kept(self) -> None:
        atlas = arm.scan(sample_model("llama"), TOKENS, streams=("attention",))
        assert atlas.settings["shard"] == LARGEST
        assert arm.scan(sample_model("llama"), TOKENS, streams=("attention",), shard=3).settings["shard"] == 3

    @pytest.mark.parametrize("given", ["0", "-1", "many", "²", "1.5"])
    def test_what_is_no_size(self, given: str) -> None:
        with pytest.raises(typer.BadParameter, match="it should be"):
            check_shard(given)
        assert [check_shard(size) for size in ("auto", "7")] == ["auto", "7"]


class TestTables:
    COLUMNS = tuple(grid.Column(f"layer {i}", ["1", "2"], True) for i in range(60))

    def test_a_pipe_gets_every_column(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("COLUMNS", raising=False)
        grid.print_columns(Console(width=160), list(self.COLUMNS))
        shown = capsys.readouterr().out
        assert "no room" not in shown
        assert shown.splitlines()[-1].count("2") == 60

    def test_a_terminal_gets_what_fits(self, capsys: pytest.CaptureFixture[str]) -> None:
        grid.print_columns(Console(width=80, force_terminal=True), list(self.COLUMNS))
        assert "no room" in capsys.readouterr().out


@pytest.mark.slow
def test_a_program_without_a_terminal_draws_no_bars(tmp_path: Path) -> None:
    sample_model("llama").save_pretrained(tmp_path / "model")
    command = ["scan", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--corpus", "builtin:random"]
    code = f"import sys; sys.argv = ['armillary', *{[*command, '--sequences', '2', '--length', '16']!r}]; "
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}from armillary.cli import main; main()"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "scanning: 32 tokens in 1 shard\n" in ran.stderr
    assert "━" not in ran.stderr
