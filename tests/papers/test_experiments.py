"""Experiments as a user meets them: listed, run, shown, and told on one page; verdicts follow from numbers."""

import json
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from typer.testing import CliRunner

from armillary.cli import app
from armillary.errors import ArmillaryError
from armillary.papers.experiments.experiment import (
    Claim,
    Experiment,
    Outcome,
    Settings,
    limited,
    ordered,
    sized,
)
from armillary.papers.experiments.page import lines, write_experiments
from armillary.papers.experiments.registry import experiment, experiments
from armillary.papers.experiments.results import read, read_all, write
from browser import CHROMIUM

PAPERS = ("Song", "Wertich", "Bao", "Barbero")


class TestClaims:
    @pytest.mark.parametrize(
        ("printed", "found", "error", "verdict"),
        [
            (10.0, 8.0, 0.0, "same size"),
            (10.0, 7.0, 0.0, "differs"),
            (10.0, 7.0, 1.6, "same size"),
            (0.5, float("nan"), 0.0, "undecided"),
            (0.99, 0.95, 0.0, "same size"),
            (0.99, 0.8, 0.0, "differs"),
        ],
    )
    def test_of_a_number(self, printed: float, found: float, error: float, verdict: str) -> None:
        assert sized("it is", printed, found, error=error).verdict == verdict

    def test_only_a_number_that_can_be_negative_has_a_direction(self) -> None:
        assert sized("gap", 0.1, 0.02, signed=True).verdict == "same direction"
        assert sized("gap", 0.1, -0.02, signed=True).verdict == "differs"
        assert sized("share", 0.1, 0.02).verdict == "differs"

    @pytest.mark.parametrize(
        ("larger", "smaller", "error", "verdict"),
        [(2.0, 1.0, 0.4, "same direction"), (2.0, 1.0, 0.6, "undecided"), (1.0, 2.0, 0.1, "differs")],
    )
    def test_of_an_order(self, larger: float, smaller: float, error: float, verdict: str) -> None:
        assert ordered("a is above b", larger, smaller, error=error).verdict == verdict

    def test_two_numbers_are_told_apart_and_large_ones_are_written_out(self) -> None:
        assert ordered("", 1.4931, 1.4892, error=0.05).found == "1.493 against 1.489 (difference +0.0039 ± 0.05)"
        assert ordered("", 11963.4, 8192.0).found == "11963 against 8192"
        assert ordered("", 0.96, 9.8e-20).found == "0.96 against 0"
        assert ordered("", 0.0, 0.0).found == "0 against 0"

    @pytest.mark.parametrize(
        ("found", "above", "verdict"),
        [
            (0.8, True, "same direction"),
            (0.8, False, "differs"),
            (0.2, True, "undecided"),
            (-0.8, False, "same direction"),
        ],
    )
    def test_of_a_limit(self, found: float, above: bool, verdict: str) -> None:
        claim = limited("correlation", found, 0.0, above=above, error=0.17)
        assert claim.verdict == verdict
        assert claim.found == f"{found} ± 0.17 (the claim: {'above' if above else 'below'} 0)"

    def test_a_reason_is_given_only_where_one_is_needed(self) -> None:
        assert sized("it is", 1.0, 1.0, why="small").why == ""
        assert sized("it is", 1.0, 3.0, why="small").why == "small"


class TestRegistry:
    def test_every_paper_has_some_and_the_small_ones_fit_in_ninety_minutes(self) -> None:
        found = experiments()
        assert {one.paper for one in found.values()} == set(PAPERS)
        assert sum(one.minutes for one in found.values()) < 90
        quick = [one for one in found.values() if one.quick]
        assert len(quick) >= 10
        assert all(one.question.endswith("?") and one.of and one.needs for one in found.values())

    def test_an_unknown_name_is_told_with_those_there_are(self) -> None:
        with pytest.raises(ArmillaryError, match="there is no experiment 'no': there are song"):
            experiment("no")


def small_outcome(settings: Settings) -> Outcome:
    return Outcome(
        tables={"numbers": pd.DataFrame({"a": [1.5, 2.5], "word": ["x|y", "z"]})},
        figures={"line": go.Figure(go.Scatter(y=[1, 3, 2]), layout={"title": "<i>a line</i>"})},
        claims=[
            Claim("a pipe | in it", "1 (Table 1)", "1.5", "same size"),
            Claim("that", "2", "9", "differs", "it is small"),
        ],
        learned=["Lines go up and down."],
    )


def one(name: str = "song-spiral") -> Experiment:
    known = experiment(name)
    return Experiment(known.name, known.paper, known.of, known.question, small_outcome, 0.1, "nothing")


class TestResults:
    def test_what_is_written_is_read_and_a_second_run_replaces_it(self, tmp_path: Path) -> None:
        first = write(one(), Settings(), small_outcome(Settings()), tmp_path, 1.0)
        (first.folder / "left over.csv").write_text("")
        again = write(one(), Settings(), small_outcome(Settings()), tmp_path, 2.0)
        assert sorted(path.name for path in again.folder.iterdir()) == ["line.json", "numbers.csv", "result.json"]
        assert read(again.folder).claims == small_outcome(Settings()).claims
        assert list(again.table("numbers")["a"]) == [1.5, 2.5]
        assert again.figure("line").data[0].y == (1, 3, 2)
        assert [path.name for path in tmp_path.iterdir()] == ["song-spiral"]

    def test_a_folder_without_a_result_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(ArmillaryError, match="armillary experiment run song-spiral"):
            read(tmp_path / "song-spiral")


class TestPage:
    @pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium is installed")
    def test_it_counts_verdicts_and_draws_the_figures(self, tmp_path: Path) -> None:
        for name in ("song-spiral", "bao-propagation"):
            write(one(name), Settings(), small_outcome(Settings()), tmp_path / "results", 30.0)
        assert write_experiments(tmp_path / "results", tmp_path / "PAGE.md") == 2
        page = (tmp_path / "PAGE.md").read_text()
        assert "2 experiments (small size), which take some 0 minutes of one core" in page
        assert "4 claims that were put to the test: 2 same size, 2 differs" in page
        assert page.index("### song-spiral") < page.index("### bao-propagation")
        assert "| differs | that | 2 | 9 | it is small |" in page
        assert "a pipe \\| in it" in page
        assert "- Lines go up and down. ([song-spiral](#song-spiral))" in page
        drawn = (tmp_path / "page/figures/song-spiral-line.svg").read_text()
        assert drawn.startswith("<svg")
        assert "page/figures/song-spiral-line.svg" in page

    def test_without_results_it_says_how_to_make_some(self, tmp_path: Path) -> None:
        with pytest.raises(ArmillaryError, match="experiment run --quick"):
            write_experiments(tmp_path, tmp_path / "PAGE.md")


class TestCommands:
    def test_a_newcomers_way(self, tmp_path: Path) -> None:
        runner, out = CliRunner(), ["--out", str(tmp_path / "results")]
        listed = json.loads(runner.invoke(app, ["experiment", "list", "--json"]).stdout)
        assert [row["name"] for row in listed] == list(experiments())
        ran = runner.invoke(app, ["experiment", "run", "wertich-slerp", *out, "--work", str(tmp_path / "work")])
        assert ran.exit_code == 0, ran.output
        shown = runner.invoke(app, ["experiment", "show", "wertich-slerp", *out, "--html", str(tmp_path / "s.html")])
        assert "verdict" in shown.stdout
        assert "plotly" in (tmp_path / "s.html").read_text().lower()
        again = runner.invoke(app, ["experiment", "run", "--quick", "--help"])
        assert again.exit_code == 0

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            (["run"], "no experiment was named"),
            (["run", "nothing"], "there is no experiment 'nothing'"),
            (["run", "song-spiral", "--size", "huge"], "--size"),
            (["show", "song-spiral", "--out", "/nowhere"], "holds no result"),
        ],
    )
    def test_mistakes_are_sentences(self, asked: list[str], said: str) -> None:
        found = CliRunner().invoke(app, ["experiment", *asked])
        assert isinstance(found.exception, ArmillaryError)
        assert said in str(found.exception)


class TestCommittedResults:
    """What EXPERIMENTS.md tells is what the results in the repository say."""

    ROOT = Path(__file__).resolve().parents[2]

    def test_the_page_is_made_from_them(self) -> None:
        found = read_all(self.ROOT / "experiments/results")
        assert [result.name for result in found] == list(experiments())
        page = (self.ROOT / "EXPERIMENTS.md").read_text(encoding="utf-8")
        assert page == "\n".join(lines(found, Path("experiments/figures")))

    def test_addition_is_learned_and_does_not_reach_other_lengths(self) -> None:
        accuracy = read(self.ROOT / "experiments/results/song-addition").table("accuracy")
        inside = accuracy[accuracy["trained"]].groupby(["position", "seed"])["accuracy"].mean()
        assert (inside["rotary"] > 0.95).all()
        assert (inside["learned"] > 0.95).sum() >= 2  # one of three seeds does not learn the longest sums
        assert accuracy[~accuracy["trained"]]["accuracy"].max() < 0.2
