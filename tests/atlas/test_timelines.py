"""The store of a timeline: births by their definition, changes, comparisons, damage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import armillary as arm
from armillary.atlas.timelines.births import birth_indices, births_table, largest_changes
from armillary.atlas.timelines.rows import from_bytes, to_bytes
from armillary.atlas.timelines.store import thinned, write_timeline
from armillary.scanning.timeline_folder import rows_in
from timelines import ABOUT, STEPS, story, story_rows

WORDS = ("broad", "previous", "induction", "")


class TestBirths:
    def test_of_a_story(self, tmp_path: Path) -> None:
        births = story(tmp_path).births
        told = {(row.layer, row.head): (row.label, row.birth, row.label_before) for row in births.itertuples()}
        assert told == {
            (0, 0): ("previous", 20, "previous"),  # at 10 it has the label, which is not significant yet
            (1, 0): ("induction", 40, "mixed"),
            (1, 1): ("first-token", 40, "local"),  # it was one from the start, but not at 20
        }
        assert births["birth"].is_monotonic_increasing

    @given(
        st.lists(
            st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([0.0, 1.0, np.nan])), min_size=2, max_size=2),
            min_size=1,
            max_size=6,
        )
    )
    def test_by_the_definition(self, told: list[list[tuple[str, float]]]) -> None:
        labels = np.array([[[word for word, _ in row]] for row in told], object)
        sure = np.array([[[value for _, value in row]] for row in told])
        index = birth_indices(labels, sure)
        for head in range(2):
            lasting = [
                at
                for at in range(len(told))
                if all(
                    told[later][head][0] == told[-1][head][0] != "" and told[later][head][1] == 1
                    for later in range(at, len(told))
                )
            ]
            assert index[0, head] == (min(lasting) if lasting else -1)
        table = births_table(labels, sure, np.arange(len(told)) * 5)
        assert len(table) == (index >= 0).sum()
        assert (table["before"].isna() == (table["birth"] == 0)).all()

    def test_what_has_no_null_model_is_not_born(self, tmp_path: Path) -> None:
        rows = [row.under() for row in story_rows()]
        for row in rows:
            row.heads["significant"][:] = np.nan
        write_timeline(tmp_path, rows, ABOUT)
        assert arm.open_timeline(tmp_path).births.empty


def test_the_largest_changes_are_those_of_all(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {"entropy": random.normal(size=(5, 2, 2)), "self_mass": 100 * random.normal(size=(5, 2, 2))}
    columns["self_mass"][2, 0, 0] = np.nan
    table = largest_changes(columns, np.array(STEPS), most=6)
    every = [
        (abs(b - a) / np.nanstd(values), name, layer, head, STEPS[at])
        for name, values in columns.items()
        for (at, layer, head), a in np.ndenumerate(values[:-1])
        if np.isfinite(a) and np.isfinite(b := values[at + 1, layer, head])
    ]
    expected = sorted(every, reverse=True)[:6]
    assert table["size"].to_list() == pytest.approx([size for size, *_ in expected])
    assert list(table["measure"]) == [name for _, name, *_ in expected]
    assert list(table["before"]) == [before for *_, before in expected]
    assert largest_changes({}, np.array(STEPS)).empty


class TestTheStore:
    def test_the_same_rows_give_the_same_bytes_also_when_read_back(self, tmp_path: Path) -> None:
        first = story(tmp_path / "a")
        (tmp_path / "b").mkdir()
        rows = [from_bytes(to_bytes(row)) for row in rows_in(first).values()]
        log = {name: first.group("log")[name].to_numpy() for name in ("step", "loss")}
        write_timeline(tmp_path / "b", rows, ABOUT, log)
        a, b = (
            {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()}
            for f in (tmp_path / "a", tmp_path / "b")
        )
        assert a == b

    def test_damage_is_an_error_that_names_the_array(self, tmp_path: Path) -> None:
        timeline = story(tmp_path)
        assert arm.check(tmp_path).whole
        chunk = next((timeline.path / "heads" / "induction_score").rglob("c/*/*/*"))
        data = bytearray(chunk.read_bytes())
        data[-1] ^= 1
        chunk.write_bytes(data)
        with pytest.raises(arm.ArmillaryError, match=r"heads/induction_score of .* is damaged"):
            _ = arm.open_timeline(tmp_path).heads
        checked = arm.check(tmp_path)
        assert (checked.kind, checked.whole) == ("timeline", False)
        assert [damage.array for damage in checked.damage] == ["heads/induction_score"]
        (timeline.path / "zarr.json").write_text("{}")
        with pytest.raises(arm.ArmillaryError, match="damaged"):
            arm.open_timeline(tmp_path)

    def test_what_is_no_timeline(self, tmp_path: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match="there is no folder"):
            arm.open_timeline(tmp_path / "no")
        with pytest.raises(arm.ArmillaryError, match="is not a timeline"):
            arm.open_timeline(tmp_path)
        (tmp_path / "timeline.json").write_text("{}")
        with pytest.raises(arm.ArmillaryError, match="is not finished"):
            arm.open_timeline(tmp_path)

    def test_a_timeline_without_steps_counts_checkpoints(self, tmp_path: Path) -> None:
        write_timeline(tmp_path, [row.under(step=None) for row in story_rows()], ABOUT)
        timeline = arm.open_timeline(tmp_path)
        assert timeline.unit == "checkpoint"
        assert timeline.steps.tolist() == [0, 1, 2, 3, 4]
        assert timeline.at(3)["label"].to_list()[2] == "induction"
        with pytest.raises(arm.ArmillaryError, match="there is no checkpoint 40"):
            timeline.at(40)

    def test_a_long_log_is_thinned_to_means(self) -> None:
        log = {"step": np.arange(1000), "loss": np.arange(1000.0), "held_out": np.full(1000, np.nan)}
        short = thinned(log, 10)
        assert short["step"].tolist() == list(range(0, 1000, 100))
        assert short["loss"].tolist() == [49.5 + 100 * i for i in range(10)]
        assert np.isnan(short["held_out"]).all()


class TestTwo:
    def test_births_side_by_side_and_differences_of_curves(self, tmp_path: Path) -> None:
        a, b = story(tmp_path / "a"), story(tmp_path / "b", later=1)
        compared = arm.compare(a, b)
        assert compared.scans == []
        first = {row["label"]: row for row in compared.first_births.to_dict("records")}["induction"]
        assert [first[name] for name in ("first_a", "heads_a", "first_b", "heads_b", "later")] == [40, 1, 80, 1, 40]
        heads = {(row["layer"], row["head"]): row for row in compared.births.to_dict("records")}[0, 0]
        assert [heads[name] for name in ("birth_a", "birth_b", "later")] == [20, 40, 20]
        top = compared.curves.iloc[0]
        assert (top["layer"], top["head"], top["at"]) == (1, 0, 40)
        assert top["measure"] in ("induction_score", "prev_mass")
        assert abs(top["difference"]) == pytest.approx(0.78 if top["measure"] == "induction_score" else 0.39, abs=1e-6)
        spread = np.std([t.heads[top["measure"]].to_numpy().astype(float) for t in (a, b)])
        assert top["size"] == pytest.approx(abs(top["difference"]) / spread)
        assert compared.curves.set_index(["layer", "head", "measure"]).loc[(1, 0, "prev_mass"), "final"] == 0

    def test_with_itself_nothing_differs(self, tmp_path: Path) -> None:
        a = story(tmp_path)
        compared = arm.compare(a, a)
        assert compared.curves.empty
        assert compared.births["later"].to_list() == [0, 0, 0]

    def test_other_texts_shapes_and_kinds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        a = story(tmp_path / "a")
        other = story(tmp_path / "b", about={"corpus": {"name": "tokens", "sha256": "another"}})
        assert arm.compare(a, other).scans == ["the text differs"]
        rows = [row.under(step=None) for row in story_rows()]
        write_timeline(_made(tmp_path / "c"), rows, ABOUT)
        with pytest.raises(arm.ArmillaryError, match=r"counts steps and .* counts checkpoints"):
            arm.compare(a, arm.open_timeline(tmp_path / "c"))
        wide: Any = [
            type(row)(
                row.facts,
                {name: np.repeat(values, 2, axis=1) for name, values in row.heads.items()},
                {name: np.repeat(values, 2, axis=1) for name, values in row.words.items()},
                row.layers,
            )
            for row in story_rows()
        ]
        write_timeline(_made(tmp_path / "d"), wide, ABOUT)
        compared = arm.compare(a, arm.open_timeline(tmp_path / "d"))
        assert compared.births.empty
        assert compared.curves.empty
        assert "only first births are compared" in compared.scans[0]
        assert compared.first_births.set_index("label")["heads_b"].to_dict() == {
            "previous": 2,
            "induction": 2,
            "first-token": 2,
        }


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
