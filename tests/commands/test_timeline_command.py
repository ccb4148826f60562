"""The commands timeline, compare and report on timelines and several atlases, as people type them."""

import json
import re
from pathlib import Path

import pytest

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.atlas.series import series_changes
from armillary.report.series import largest_sentence
from armillary.training import bundled as bundled_models
from conftest import FAMILY_TOKENS
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


def test_a_report_of_several_atlases(tmp_path: Path) -> None:
    """Three models of one shape; the counts of labels and the largest change are those of the atlases."""
    tokens = FAMILY_TOKENS[:6]
    scanned = []
    for number, family in enumerate(("llama", "mistral", "qwen3")):
        out = tmp_path / str(number)
        scanned.append(arm.scan(sample_model(family), tokens, out=out, streams=("attention", "patterns"), shard=6))
    page = tmp_path / "series.html"
    ran = run("report", *(atlas.path.parent for atlas in scanned), "--out", page)
    assert ran.returncode == 0, ran.stderr
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)[1])  # type: ignore[index]
    table = {column["name"]: column["values"] for column in data["tables"]["series_labels"]["columns"]}
    for number, atlas in enumerate(scanned, 1):
        counts = atlas.heads["label"].value_counts()
        assert table[f"atlas_{number}"] == [counts.get(label, 0) for label in table["label"]]
    changes = series_changes(scanned)
    top = changes.iloc[0]
    values = [
        float(atlas.heads.set_index(["layer", "head"])[top["measure"]].loc[top["layer"], top["head"]])
        for atlas in scanned
    ]
    assert top[["atlas_1", "atlas_2", "atlas_3"]].to_list() == values
    assert top["range"] == max(values) - min(values)
    assert largest_sentence(changes, ["a", "b", "c"]).startswith(f"Over the series, {top['measure']} of head")
