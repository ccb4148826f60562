"""Timelines: every checkpoint on the same tokens, one store, births; failures, equal weights, kills."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import LlamaConfig, LlamaForCausalLM

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.progress import Progress
from armillary.scanning.checkpoints import find_checkpoints, logged, read_loss, tokens_per_step
from conftest import FAMILY_TOKENS as ALL_TOKENS
from handmade import letters
from hub import commit_of, serving
from program import fresh_python, several

FAMILY_TOKENS = ALL_TOKENS[:8]
SETTINGS: dict[str, Any] = dict(streams=("attention", "patterns", "positions"), batch=4, shard=4)


def save(folder: Path, scale: float) -> None:
    """The sample llama with its first queries scaled."""
    model = sample_model("llama")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(scale)
    model.save_pretrained(folder)


def write_run(folder: Path, scales: dict[int, float]) -> Path:
    """A run's folder as training writes it."""
    for step, scale in scales.items():
        save(folder / "checkpoints" / f"step-{step:08d}", scale)
    rows = [{"step": step, "loss": 5.0 - step / 100, **({"held_out": 4.5} if step == 10 else {})} for step in range(20)]
    (folder / "loss.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.json").write_text(json.dumps({"training": {"batch": 2, "length": 24}}))
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", {0: 1.0, 10: 4.0, 20: 16.0})


@pytest.fixture(scope="module")
def finished(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> arm.Timeline:
    out = tmp_path_factory.mktemp("timelines") / "whole"
    return arm.timeline(run_folder, corpus=FAMILY_TOKENS, out=out, keep_atlases=True, **SETTINGS)


def files(store: Path) -> dict[str, bytes]:
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


class Notes(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, sentence: str) -> None:
        self.said.append(sentence)


class TestTheStore:
    def test_every_number_is_the_one_of_a_scan_of_that_checkpoint(
        self, finished: arm.Timeline, run_folder: Path, tmp_path: Path
    ) -> None:
        for step in (0, 10, 20):
            folder = run_folder / "checkpoints" / f"step-{step:08d}"
            atlas = arm.scan(folder, FAMILY_TOKENS, out=tmp_path / str(step), **SETTINGS)
            ours, theirs = finished.at(step), atlas.heads
            assert ours["label"].to_list() == theirs["label"].fillna("").to_list()
            for name in finished.measures:
                np.testing.assert_array_equal(
                    ours[name].to_numpy(), theirs[name].to_numpy(np.float32, na_value=np.nan), err_msg=name
                )
            layers = finished.layers.sel(checkpoint=step)
            for name in map(str, layers.data_vars):
                np.testing.assert_array_equal(
                    layers[name].to_numpy(), atlas.layers[name].to_numpy(np.float32, na_value=np.nan)
                )
            kept = arm.open_atlas(finished.path.parent / "atlases" / folder.name)
            assert kept.attrs["model"]["weights"] == atlas.attrs["model"]["weights"]

    def test_it_opens_without_us(self, finished: arm.Timeline) -> None:
        heads = xr.open_zarr(finished.path, group="heads", consolidated=False)
        assert heads["checkpoint"].to_numpy().tolist() == [0, 10, 20]
        assert heads["entropy"].dims == ("checkpoint", "layer", "head")
        assert str(heads["label"].sel(checkpoint=20, layer=0, head=0).item()) in arm.open_timeline(finished.path).labels
        tree = xr.open_datatree(finished.path, engine="zarr", consolidated=False)
        assert {node.path for node in tree.children.values()} >= {"/heads", "/layers", "/checkpoints", "/log"}

    def test_losses_and_tokens_are_those_of_the_run(self, finished: arm.Timeline) -> None:
        table = finished.checkpoints
        assert table["checkpoint"].to_list() == [0, 10, 20]
        assert table["tokens"].to_list() == [0, 480, 960]
        assert table["logged_loss"].to_list() == pytest.approx([5.0, 4.9, 4.81])
        assert table["held_out_loss"].to_list()[1:] == pytest.approx([4.5, 4.5])
        assert np.isnan(table["held_out_loss"].iloc[0])
        assert finished.log is not None
        assert len(finished.log) == 20

    def test_curves_of_heads_layers_and_losses(self, finished: arm.Timeline) -> None:
        whole = finished.curve("entropy")
        assert whole.index.name == "step"
        one = finished.curve("entropy", head="L1H2")
        np.testing.assert_array_equal(one["L1H2"], whole["L1H2"])
        assert list(finished.curve("entropy", layer=2).columns) == [f"L2H{head}" for head in range(6)]
        assert "layer 0" in finished.curve("pos_share")
        assert list(finished.curve("logged_loss").columns) == ["logged_loss"]
        with pytest.raises(arm.ArmillaryError, match="no column 'entrpy'"):
            finished.curve("entrpy")
        with pytest.raises(arm.ArmillaryError, match="there is no head L9H0"):
            finished.curve("entropy", head="L9H0")

    def test_only_chosen_columns(self, run_folder: Path, tmp_path: Path) -> None:
        small = arm.timeline(
            run_folder, corpus=FAMILY_TOKENS, out=tmp_path / "small", columns=["entropy", "pos_share"], **SETTINGS
        )
        assert set(map(str, small.heads.data_vars)) == {"entropy", "label", "significant", "birth"}
        assert list(small.layers.data_vars) == ["pos_share"]
        assert not (small.path.parent / "atlases").exists()
        with pytest.raises(arm.ArmillaryError, match="there is no column 'nonsense'"):
            arm.timeline(run_folder, corpus=FAMILY_TOKENS, out=tmp_path / "no", columns=["nonsense"], **SETTINGS)


class TestSources:
    def test_steps_are_read_from_names_else_order_counts(self, tmp_path: Path) -> None:
        named = find_checkpoints(["a/step-100", "b/step-20"]).checkpoints
        assert [(c.name, c.step) for c in named] == [("step-20", 20), ("step-100", 100)]
        plain = find_checkpoints(["pythia-70m", "pythia-14m"]).checkpoints
        assert [(c.name, c.step) for c in plain] == [("pythia-70m", None), ("pythia-14m", None)]
        same = find_checkpoints(["a/model", "b/model"]).checkpoints
        assert [c.name for c in same] == ["0-model", "1-model"]
        hub = find_checkpoints(["someone/tiny"], ["step10", "step2", "step0"]).checkpoints
        assert [(c.revision, c.step) for c in hub] == [("step0", 0), ("step2", 2), ("step10", 10)]
        for wrong, said in (
            (([], None), "needs a run's folder"),
            ((["someone/tiny"], []), "is empty"),
            ((["someone/tiny", "b"], ["main"]), "one hub id"),
            (([tmp_path], ["main"]), "has no revisions"),
            (([tmp_path], None), "without checkpoints"),
        ):
            with pytest.raises(arm.ArmillaryError, match=said):
                find_checkpoints(*wrong)

    def test_a_finished_model_later_than_the_last_checkpoint_is_one_more(
        self, run_folder: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        shutil.copytree(run_folder, run)
        save(run / "model", 20.0)
        (run / "result.json").write_text(json.dumps({"steps": 30}))
        assert [c.step for c in find_checkpoints([run]).checkpoints] == [0, 10, 20, 30]
        (run / "result.json").write_text(json.dumps({"steps": 20}))
        assert [c.step for c in find_checkpoints([run]).checkpoints] == [0, 10, 20]

    def test_what_a_trainer_of_transformers_writes(self, tmp_path: Path) -> None:
        for step in (5, 100):
            save(tmp_path / f"checkpoint-{step}", 1.0)
        assert [c.step for c in find_checkpoints([tmp_path]).checkpoints] == [5, 100]
        assert read_loss(tmp_path) is None
        assert tokens_per_step(tmp_path) is None
        assert logged(None, "loss", 5) is None


class TestFailures:
    def test_a_failed_checkpoint_is_tried_twice_and_recorded_and_the_next_run_tries_it_again(
        self, run_folder: Path, finished: arm.Timeline, tmp_path: Path
    ) -> None:
        run, notes = tmp_path / "run", Notes()
        shutil.copytree(run_folder, run)
        broken = run / "checkpoints" / "step-00000010" / "model.safetensors"
        whole = broken.read_bytes()
        broken.write_bytes(whole[: len(whole) // 2])
        options: Any = dict(corpus=FAMILY_TOKENS, out=tmp_path / "out", progress=notes, **SETTINGS)
        partial = arm.timeline(run, **options)
        assert partial.steps.tolist() == [0, 20]
        (failed,) = partial.attrs["failed"]
        assert failed["name"] == "step-00000010"
        assert failed["why"]
        assert sum("step-00000010 cannot be scanned" in said for said in notes.said) == 2
        broken.write_bytes(whole)
        again = arm.timeline(run, **options)
        assert again.attrs["failed"] == []
        assert files(again.path) == files(finished.path)

    def test_all_failed(self, tmp_path: Path) -> None:
        save(tmp_path / "run" / "checkpoints" / "step-00000000", 1.0)
        (tmp_path / "run/checkpoints/step-00000000/model.safetensors").write_bytes(b"no")
        with pytest.raises(arm.ArmillaryError, match=r"model\.safetensors"):
            arm.timeline(tmp_path / "run", corpus=FAMILY_TOKENS, **SETTINGS)

    def test_another_shape_and_another_tokenizer_are_failures(self, tmp_path: Path) -> None:
        for scale, name in enumerate(("a", "b", "c"), 1):
            save(tmp_path / name, float(scale))
            letters().save_pretrained(tmp_path / name)
        shallow = LlamaConfig(**{**sample_model("llama").config.to_dict(), "num_hidden_layers": 2})
        LlamaForCausalLM(shallow).save_pretrained(tmp_path / "c")
        letters("<s> $A").save_pretrained(tmp_path / "b")
        (tmp_path / "text.txt").write_text("a b c d e f g h i j k l m n o p " * 60)
        result = arm.timeline(
            *(tmp_path / name for name in ("a", "b", "c")),
            corpus=tmp_path / "text.txt",
            out=tmp_path / "out",
            length=16,
            sequences=6,
            **SETTINGS,
        )
        assert {entry["name"]: entry["why"].split(":")[0] for entry in result.attrs["failed"]} == {
            "b": "its tokenizer gives other tokens for this text",
            "c": "it has 2 layers of 6 heads, but a has 3 of 6",
        }

    def test_other_settings_are_refused(self, finished: arm.Timeline, run_folder: Path) -> None:
        with pytest.raises(arm.ArmillaryError, match=r"other settings \(settings skip: was 1, now 2\)"):
            arm.timeline(run_folder, corpus=FAMILY_TOKENS, out=finished.path.parent, skip=2, **SETTINGS)


class TestEqualWeights:
    def test_they_are_scanned_once_and_said(self, run_folder: Path, tmp_path: Path) -> None:
        run, notes = tmp_path / "run", Notes()
        shutil.copytree(run_folder, run)
        checkpoints = run / "checkpoints"
        shutil.copytree(checkpoints / "step-00000000", checkpoints / "step-00000005")
        model = arm.load(checkpoints / "step-00000010")
        model.save_pretrained(checkpoints / "step-00000015", max_shard_size="20KB")  # other files, the same weights
        result = arm.timeline(
            run, corpus=FAMILY_TOKENS, out=tmp_path / "out", progress=notes, keep_atlases=True, **SETTINGS
        )
        assert result.checkpoints["same_as"].fillna("").to_list() == ["", "step-00000000", "", "step-00000010", ""]
        assert result.attrs["notes"] == [
            "step-00000005 has the same weights as step-00000000",
            "step-00000015 has the same weights as step-00000010",
        ]
        assert sum("it is not scanned again" in said for said in notes.said) == 2
        assert len(list((tmp_path / "out" / "atlases").iterdir())) == 3
        np.testing.assert_array_equal(result.curve("entropy").loc[0], result.curve("entropy").loc[5])


class Stopping(Progress):
    """Raises after so many reports, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, count: int = 1, worker: object = None) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_a_stopped_timeline_continues_to_the_same_bits(
    run_folder: Path, finished: arm.Timeline, tmp_path: Path
) -> None:
    options: Any = dict(corpus=FAMILY_TOKENS, out=tmp_path / "out", **SETTINGS)
    for after in (1, 9):
        with pytest.raises(KeyboardInterrupt):
            arm.timeline(run_folder, progress=Stopping(after), **options)
    assert files(arm.timeline(run_folder, **options).path) == files(finished.path)
    assert files(arm.timeline(run_folder, **options).path) == files(finished.path)  # from its own store


def test_new_checkpoints_are_added(run_folder: Path, finished: arm.Timeline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    shutil.move(run / "checkpoints" / "step-00000020", tmp_path / "later")
    options: Any = dict(corpus=FAMILY_TOKENS, **SETTINGS)
    assert arm.timeline(run, **options).steps.tolist() == [0, 10]
    shutil.move(tmp_path / "later", run / "checkpoints" / "step-00000020")
    assert files(arm.timeline(run, **options).path) == files(finished.path)


KILLED = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
import armillary as arm
from armillary.atlas.timelines import store
from armillary.progress import Progress
from armillary.scanning.timeline_folder import TimelineFolder

run, out, tokens, settings = json.loads(sys.argv[1])
options = dict(corpus=torch.tensor(tokens), out=out, **{**settings, "streams": tuple(settings["streams"])})

def die(*anything):
    os.kill(os.getpid(), signal.SIGKILL)

class InAScan(Progress):
    left = 3
    def advance(self, count=1, worker=None):
        self.left -= 1
        if self.left < 0:
            die()

def in_a_scan():
    arm.timeline(run, progress=InAScan(), **options)

def before_the_second_rows_are_saved():
    keep = TimelineFolder.keep
    TimelineFolder.keep = lambda self, rows: die() if rows.facts["step"] else keep(self, rows)
    arm.timeline(run, **options)

def while_the_store_is_written():
    store.write_manifest = die
    arm.timeline(run, **options)

def when_the_store_is_written():
    TimelineFolder.done = die
    arm.timeline(run, **options)

ended = []
for place in (in_a_scan, before_the_second_rows_are_saved, while_the_store_is_written, when_the_store_is_written):
    child = os.fork()
    if child == 0:
        place()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    ended.append([place.__name__, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, sorted(os.listdir(out))])
arm.timeline(run, **options)
print(json.dumps(ended))
"""


@pytest.mark.slow
def test_killed_in_four_places_it_resumes_to_the_same_bits(
    run_folder: Path, finished: arm.Timeline, tmp_path: Path
) -> None:
    """SIGKILL in a scan, between two checkpoints, in the middle of the store, and after it."""
    settings = {**SETTINGS, "streams": list(SETTINGS["streams"])}
    out = tmp_path / "out"
    ended = fresh_python(KILLED, json.dumps([str(run_folder), str(out), FAMILY_TOKENS.tolist(), settings]))
    assert [signal for _, signal, _ in ended] == [9, 9, 9, 9]
    assert ["timeline.zarr" in there for _, _, there in ended] == [False, False, False, True]
    assert files(out / "timeline.zarr") == files(finished.path)
    assert sorted(path.name for path in out.iterdir()) == ["timeline.json", "timeline.json.sha256", "timeline.zarr"]


def test_revisions_of_a_hub_id(run_folder: Path, finished: arm.Timeline, tmp_path: Path) -> None:
    """Through the stand-in of the hub, by the command: the numbers of the folders, and a revision that is missing."""
    folders = {("someone/tiny", f"step{step}"): run_folder / "checkpoints" / f"step-{step:08d}" for step in (0, 10, 20)}
    line = ["timeline", "someone/tiny", "--revisions", "step20,step0,step5,step10", "--corpus", "builtin:random"]
    line += [
        "--out",
        str(tmp_path / "out"),
        "--length",
        "24",
        "--limit",
        "8",
        "--streams",
        "attention,patterns",
        "--json",
    ]
    with serving(folders) as (address, _):
        (ran,) = several([line], HF_HOME=str(tmp_path / "home"), HF_ENDPOINT=address)
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(ran.stdout)
    assert [row["checkpoint"] for row in shown["checkpoints"]] == [0, 10, 20]
    assert [entry["name"] for entry in shown["failed"]] == ["step5"]
    timeline = arm.open_timeline(tmp_path / "out")
    weights = [facts["weights"] for facts in timeline.attrs["checkpoints"]]
    assert weights == [facts["weights"] for facts in finished.attrs["checkpoints"]]
    assert [facts["revision"] for facts in timeline.attrs["checkpoints"]] == [
        commit_of("someone/tiny", f"step{step}") for step in (0, 10, 20)
    ]
