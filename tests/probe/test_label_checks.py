"""Whether labels name what heads use: computed from the head's block on, kept beside the atlas, shown everywhere."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import DISTINCT, sample_model
from armillary.atlas.atlas import Atlas, open_atlas
from armillary.atlas.verdicts import FILE, keep_verdicts
from armillary.cli import app
from armillary.interventions.attention import attending
from armillary.lenses.constituents import means_of
from armillary.observe.view import AttentionView
from armillary.probe.label_checks import check_heads, sampled_heads
from armillary.probe.removals import REMOVALS, REMOVED_TERMS, Removal
from armillary.probe.resuming import Resumable
from armillary.streams.constituents import TERMS
from handmade import choices, choosing_llama

STREAMS = ("positions", "attention", "constituents", "patterns")
CAUSAL = [name for name in DISTINCT if "/" not in name and hasattr(sample_model(name), "lm_head")]


@pytest.fixture(scope="module")
def choosing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, arm.Atlas]:
    folder = tmp_path_factory.mktemp("choosing")
    model = choosing_llama()
    model.save_pretrained(folder / "model")
    return model, arm.scan(str(folder / "model"), choices(), streams=STREAMS, out=folder / "atlas")


# from a block on ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_every_family_gives_the_same_bits_from_any_block_on(name: str) -> None:
    model = sample_model(name)
    ids = torch.randint(5, 90, (2, 12), generator=torch.Generator().manual_seed(0))
    resumable = Resumable(model, arm.describe(model))
    with torch.no_grad():
        before = resumable.run(ids)
        for block in range(len(arm.describe(model).layers)):
            resumable.try_block(block, before)
            assert torch.equal(resumable.from_block(block).logits, before.logits)
            assert resumable._same[block] == (block > 0)  # and the blocks below were not run
        assert torch.equal(model(input_ids=ids).logits, before.logits)
    assert not any("forward" in vars(module) for module in model.modules())


def test_blocks_below_are_not_computed_and_the_model_is_left_as_it_was() -> None:
    model = sample_model("llama")
    calls: list[int] = []
    for index, block in enumerate(model.model.layers):
        block.mlp.register_forward_hook(lambda *_, index=index: calls.append(index))
    ids = torch.arange(12)[None]
    resumable = Resumable(model, arm.describe(model))
    with torch.no_grad():
        before = resumable.run(ids)
        resumable.try_block(1, before)
        calls.clear()
        resumable.from_block(1)
    assert calls == list(range(1, len(model.model.layers)))


def test_blocks_that_tell_each_other_more_than_they_pass_on_are_all_run() -> None:
    """The second block adds what the first left in a drawer: without running the first, it would be a stale one."""
    model = sample_model("llama")
    drawer: list[torch.Tensor] = []

    def leave(block: Any, args: Any, passed: Any) -> None:
        drawer.append(torch.ones(()) * len(drawer))

    model.model.layers[0].mlp.register_forward_hook(leave)
    model.model.layers[1].mlp.register_forward_hook(lambda *given: given[-1] + drawer.pop())
    ids = torch.arange(12)[None]
    resumable = Resumable(model, arm.describe(model))
    with torch.no_grad():
        before = resumable.run(ids)
        resumable.try_block(1, before)
        again = resumable.from_block(1)
    assert torch.equal(again.logits, before.logits)


def test_losses_are_those_of_the_whole_model(choosing: Any) -> None:
    """Each head's attention is replaced while the whole model runs, by an independent route."""
    atlas = arm.scan(arm.bundled("llama"), "builtin:prose", streams=STREAMS, sequences=8, length=48)
    model = arm.load(arm.bundled("llama"))
    chosen = sampled_heads(atlas, 4)
    table = check_heads(model, atlas, chosen, sequences=4, batch=2)
    anatomy, means = arm.describe(model), means_of(atlas)
    ids = torch.from_numpy(atlas.group("corpus")["tokens"].to_numpy()[:4].astype(np.int64))

    def losses() -> torch.Tensor:
        logits = model(input_ids=ids).logits[:, 1:-1].double()
        return cross_entropy(logits.transpose(1, 2), ids[:, 2:], reduction="none").mean(-1)

    asked = table[~table["label"].isin(["induction", "duplicate"])]
    assert len(asked) > 0
    for row in asked.itertuples():

        def told(view: AttentionView, row: Any = row) -> dict[int, Any]:
            if view.layer != row.layer:
                return {}
            return {row.head: Removal(anatomy, means, view).attention(row.head, row.used)}

        with torch.no_grad():
            before = losses()
            with attending(model, told):
                after = losses()
        assert row.loss_used == pytest.approx(float((after - before).mean()), abs=1e-6)


# what is taken out --------------------------------------------------------------------------------------------------


def test_a_removal_and_its_opposite_take_all_terms_once() -> None:
    for name, other in (
        ("content", "position"),
        ("matching", "all but matching"),
        ("preference", "all but preference"),
    ):
        assert sorted((*REMOVED_TERMS[name], *REMOVED_TERMS[other])) == sorted(TERMS)
    assert set(REMOVED_TERMS) < set(REMOVALS)


def test_heads_that_match_or_prefer_lose_their_attention_without_it(choosing: Any) -> None:
    model, atlas = choosing
    found = check_heads(model, atlas, sampled_heads(atlas, 3), sequences=6).set_index("head")
    assert found["holds"].all()
    assert (found["used"][0], found["rest"][0]) == ("preference", "all but preference")
    assert (found["used"][1], found["rest"][1]) == ("matching", "all but matching")
    assert found["attention_used"][0] > 0.5
    assert found["attention_used"][1] > 0.5
    assert found["keys_used"].isna().all()  # these labels name no keys


# verdicts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(choosing: Any, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(choosing[1].path.parent, tmp_path / "scan")
    return tmp_path / "scan"


def checked(holds: list[Any], labels: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"layer": 0, "head": range(len(holds)), "label": labels, "holds": holds})


def test_verdicts_stand_in_the_heads_table_and_are_not_sure_where_they_fail(copied: Path) -> None:
    labels = ["preference", "matching", "preference"]
    before = {path: path.read_bytes() for path in (copied / "atlas.zarr").rglob("*") if path.is_file()}
    keep_verdicts(open_atlas(copied), checked([True, False, None], labels))
    assert open_atlas(copied).heads["check"].tolist() == ["holds", "fails", "undecided"]
    assert {path: path.read_bytes() for path in before} == before  # nothing in the store
    keep_verdicts(open_atlas(copied), checked([True], labels[:1]))
    assert open_atlas(copied).heads["check"].tolist() == ["holds", "fails", "undecided"]
    told = CliRunner().invoke(app, ["labels", str(copied), "--json"])
    assert told.exit_code == 0, told.output
    said = json.loads(told.output)
    assert {row["label"]: row["sure"] for row in said["labels"]} == {"matching": 0, "preference": 2}
    assert [row["label"] for row in said["more"]] == ["preference", "matching?", "preference"]
    report = CliRunner().invoke(app, ["report", str(copied), "--out", str(copied / "report.html")])
    assert report.exit_code == 0, report.output
    page = (copied / "report.html").read_text()
    assert "of 3 checked labels, 1 failed" in page
    shown = CliRunner().invoke(app, ["show", str(copied), "0.1"])
    assert "its check failed" in shown.output


def test_a_verdict_on_another_label_or_another_atlas_says_nothing(copied: Path) -> None:
    keep_verdicts(open_atlas(copied), checked([False], ["self"]))
    assert open_atlas(copied).heads["check"].isna().all()
    atlas = Atlas(copied / "atlas.zarr")
    atlas.__dict__["attrs"] = {**atlas.attrs, "finished": "later"}
    keep_verdicts(open_atlas(copied), checked([False], ["preference"]))
    assert "check" not in atlas.heads


def test_damaged_verdicts_are_told(copied: Path) -> None:
    keep_verdicts(open_atlas(copied), checked([True], ["preference"]))
    file = copied / FILE
    file.write_bytes(file.read_bytes().replace(b"holds", b"fails"))
    told = CliRunner().invoke(app, ["labels", str(copied)])
    assert "damaged" in str(told.exception)
    file.unlink()
    assert CliRunner().invoke(app, ["labels", str(copied)]).exit_code != 0  # half of it is left
    Path(f"{file}.sha256").unlink()
    assert CliRunner().invoke(app, ["labels", str(copied)]).exit_code == 0


def test_the_command_keeps_what_it_found(copied: Path) -> None:
    told = CliRunner().invoke(app, ["verify-heads", str(copied), "--heads", "2", "--sequences", "2", "--json"])
    assert told.exit_code == 0, told.output
    assert (copied / FILE).is_file()
    assert open_atlas(copied).heads["check"].notna().sum() == 2
