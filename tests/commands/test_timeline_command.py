"""The commands timeline, compare and report on timelines and several atlases, as people type them."""

import json
from pathlib import Path

import pytest

import armillary as arm
from armillary.training import bundled as bundled_models
from conftest import FAMILY_TOKENS, Atlases
from program import complaint, run
from timelines import story


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("story") / "timeline"
    story(place)
    return place


class TestTimeline:
    def test_it_prints_births_and_changes(self, folder: Path) -> None:
        shown = run("timeline", folder).stdout
        assert "an induction head (L1H0) at step 40" in shown
        assert "Largest changes from one checkpoint to the next" in shown
        assert not (folder / "timeline.html").exists()  # nothing was made

    def test_a_column_and_a_head(self, folder: Path) -> None:
        shown = run("timeline", folder, "--column", "induction_score", "--head", "L1H0").stdout
        assert "0.800" in shown
        assert "L0H0" not in shown
        assert "this timeline has no column 'nonsense'" in complaint("timeline", folder, "--column", "nonsense")
        assert "there is no head 7.7" in complaint("timeline", folder, "--column", "prev_mass", "--head", "7.7")

    def test_json_and_page(self, folder: Path, tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        data = json.loads(run("timeline", folder, "--json", "--html", page).stdout)
        assert data["unit"] == "step"
        assert {row["label"]: row["birth"] for row in data["births"]}["induction"] == 40
        assert page.is_file()
        curve = json.loads(run("timeline", folder, "--json", "--column", "loss").stdout)["curve"]
        assert [row["loss"] for row in curve] == [7.0, 6.0, 5.0, 4.0, 3.0]

    def test_mistakes_are_sentences(self, tmp_path: Path) -> None:
        assert "timeline needs a run's folder" in complaint("timeline")
        assert "without checkpoints" in complaint("timeline", tmp_path)
        assert "give --out" in complaint("timeline", tmp_path / "a", tmp_path / "b")
        assert "has no revisions" in complaint("timeline", tmp_path, "--revisions", "main")
        assert "leave the folder out" in complaint("timeline", "--demo", tmp_path)

    def test_the_bundled_one(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(bundled_models, "bundled", lambda name: {"timeline": folder}[name])
        assert "an induction head" in run("timeline", "--demo").stdout
        assert (tmp_path / "armillary-timeline.html").is_file()


def test_compare_takes_two_timelines(folder: Path, tmp_path: Path) -> None:
    story(tmp_path / "later", later=1)
    shown = run("compare", folder, tmp_path / "later").stdout
    assert "First births by label" in shown
    data = json.loads(run("compare", folder, tmp_path / "later", "--json").stdout)
    assert {row["label"]: row["later"] for row in data["first_births"]}["induction"] == 40
    assert "compare takes two" in complaint("compare", folder, folder, folder)
    assert "is not a timeline" in complaint("compare", folder, tmp_path)


def test_a_report_of_several_atlases(atlases: Atlases, tmp_path: Path) -> None:
    places = [atlases.family(name).path.parent for name in ("llama", "qwen3")]
    third = arm.scan(
        arm.load(_sample(tmp_path)),
        FAMILY_TOKENS,
        out=tmp_path / "third",
        streams=("attention", "patterns", "positions"),
    )
    ran = run("report", *places, third.path.parent, "--out", tmp_path / "series.html")
    assert ran.returncode == 0, ran.stderr
    text = (tmp_path / "series.html").read_text()
    assert "3 atlases side by side" in text
    assert 'data-table="series_labels"' in text


def _sample(place: Path) -> Path:
    from armillary.anatomy.samples import sample_model

    sample_model("mistral").save_pretrained(place / "model")
    return place / "model"
