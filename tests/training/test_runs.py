"""`armillary train`: from a TOML file to a run that resumes exactly, with every position scheme and regularizer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.description import Rotary
from armillary.cli import app
from armillary.training.config import POSITIONS, RunConfig, from_dict, read_config
from armillary.training.run import build, read_text, train_run
from armillary.training.runs import read_run, side_by_side

TEXT = "The quick brown fox jumps over the lazy dog, and the dog looks at the fox. " * 400


def config(tmp_path: Path, **sections: dict[str, Any]) -> RunConfig:
    corpus = tmp_path / "text.txt"
    corpus.write_text(TEXT)
    defaults: dict[str, dict[str, Any]] = {
        "model": dict(family="llama", layers=1, heads=2, width=16),
        "data": dict(corpus=str(corpus)),
        "training": dict(steps=8, batch=4, length=32, warmup=2, learning_rate=3e-3, checkpoint_every=3),
        "monitor": dict(every=4, sequences=2),
    }
    return from_dict({name: {**defaults.get(name, {}), **sections.get(name, {})} for name in {*defaults, *sections}})


SCHEMES = [(family, position) for family, positions in POSITIONS.items() for position in positions]


class TestResume:
    @pytest.mark.parametrize("kind", ["none", "locater", "sigma-reparam"])
    def test_a_killed_run_reaches_the_same_weights(self, tmp_path: Path, kind: str) -> None:
        chosen = config(tmp_path, regularizer=dict(kind=kind, **(dict(scale=0.1) if kind == "locater" else {})))
        train_run(chosen, tmp_path / "whole")

        def stop(step: int, loss: float) -> None:
            if step == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_run(chosen, tmp_path / "killed", stop)
        train_run(chosen, tmp_path / "killed")
        whole, killed = (arm.describe(tmp_path / name / "model") for name in ("whole", "killed"))
        for a, b in zip(whole.weights(0).q, killed.weights(0).q, strict=True):
            assert torch.equal(a, b)
        whole_run, killed_run = (read_run(tmp_path / name) for name in ("whole", "killed"))
        assert whole_run.loss.equals(killed_run.loss)
        assert whole_run.attention.equals(killed_run.attention)
        assert whole_run.result is not None
        assert killed_run.result is not None
        assert whole_run.result["held_out_loss"] == killed_run.result["held_out_loss"]

    @pytest.mark.parametrize("damage", ["deleted", "swapped", "another digit", "half a line"])
    def test_damaged_logs_are_those_of_the_checkpoint_again(self, tmp_path: Path, damage: str) -> None:
        chosen = config(tmp_path)
        train_run(chosen, tmp_path / "whole")

        def stop(step: int, loss: float) -> None:
            if step == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_run(chosen, tmp_path / "killed", stop)
        loss, attention = tmp_path / "killed" / "loss.jsonl", tmp_path / "killed" / "attention.jsonl"
        text = loss.read_text()
        if damage == "deleted":
            loss.unlink()
            attention.unlink()
        elif damage == "swapped":
            loss.write_text(attention.read_text())
            attention.write_text(text)
        else:
            loss.write_text(text.replace("1", "2", 3) if damage == "another digit" else text[:-9])
        train_run(chosen, tmp_path / "killed")
        whole_run, killed_run = (read_run(tmp_path / name) for name in ("whole", "killed"))
        assert whole_run.loss.equals(killed_run.loss)
        assert whole_run.attention.equals(killed_run.attention)

    def test_a_finished_run_is_not_trained_again_and_two_are_not_mixed(self, tmp_path: Path) -> None:
        chosen, steps = config(tmp_path), []
        first = train_run(chosen, tmp_path / "run")
        assert train_run(chosen, tmp_path / "run", lambda step, loss: steps.append(step)) == first
        assert steps == []
        other = replace(chosen, training=replace(chosen.training, seed=1))
        with pytest.raises(arm.ArmillaryError, match="other settings"):
            train_run(other, tmp_path / "run")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(arm.ArmillaryError, match="holds other files"):
            train_run(chosen, tmp_path / "full")

    def test_two_runs_into_one_folder(self, tmp_path: Path) -> None:
        chosen, refused = config(tmp_path), []

        def intrude(step: int, loss: float) -> None:
            with pytest.raises(arm.ArmillaryError, match="another training run is writing"):
                train_run(chosen, tmp_path / "run")
            refused.append(step)

        train_run(chosen, tmp_path / "run", intrude)
        assert refused == list(range(8))
        assert read_run(tmp_path / "run").loss["step"].tolist() == list(range(8))

    def test_a_run_that_cannot_start_leaves_nothing(self, tmp_path: Path) -> None:
        chosen = config(tmp_path, data=dict(corpus=str(tmp_path / "nothing.txt")))
        with pytest.raises(arm.ArmillaryError, match=r"nothing\.txt"):
            train_run(chosen, tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("family", "position"), SCHEMES)
def test_every_position_scheme_trains_loads_and_verifies(tmp_path: Path, family: str, position: str) -> None:
    fraction = {"fraction": 0.5} if position in ("p-rope", "reversed", "partial") else {}
    chosen = config(tmp_path, model=dict(family=family, position=position, **fraction))
    train_run(chosen, tmp_path / "run")
    folder = tmp_path / "run" / "model"
    model = arm.load(folder, dtype=torch.float32)
    assert arm.verify(model).passed
    trained, _ = build(chosen, read_text(chosen))
    where = arm.describe(folder).layers[0].position
    turning = [g != 0 for g in where.frequencies] if isinstance(where, Rotary) else None
    expected = {
        "rope": [True] * 4,
        "random": [True] * 4,
        "p-rope": [True, True, False, False],
        "reversed": [False, False, True, True],
        "partial": [True, True, False, False],
    }
    if family == "llama":
        assert turning == expected.get(position, [False] * 4)
        buffer = trained.model.rotary_emb.inv_freq
        assert isinstance(where, Rotary)
        torch.testing.assert_close(buffer, torch.tensor(where.frequencies), rtol=1e-6, atol=1e-9)
    if position == "none":  # without position, the first layer gives equal tokens equal logits at all positions
        seen: dict[int, torch.Tensor] = {}
        with torch.no_grad(), arm.Tap(model, lambda view: seen.setdefault(view.layer, view.products())):
            model(input_ids=torch.tensor([[5, 7, 5, 9]]))
        torch.testing.assert_close(seen[0][..., 3, 0], seen[0][..., 3, 2])


def test_the_penalty_acts(tmp_path: Path) -> None:
    plain = train_run(config(tmp_path), tmp_path / "plain")
    strong = config(tmp_path, regularizer=dict(kind="locater", scale=10.0, target=0.0, mean=0.0))
    train_run(strong, tmp_path / "strong")
    runs = [read_run(tmp_path / name) for name in ("plain", "strong")]
    table = side_by_side(runs)
    assert table["eigen_scale"][1] < table["eigen_scale"][0]
    assert table["entropy"][1] >= table["entropy"][0] - 1e-3
    assert plain["warnings"] == []
    assert "penalty" in runs[1].loss


class TestConfig:
    @pytest.mark.parametrize(
        ("toml", "message"),
        [
            ("[modle]\n", "no section \\[modle\\]"),
            ("[model]\nlayer = 2\n", "no setting model.layer"),
            ("[model]\nlayers = 'two'\n", "model.layers = 'two' is not a whole number"),
            ("[model]\nlayers = true\n", "model.layers = True is not a whole number"),
            ("[model]\nfamily = 'bert'\n", "there are gpt2, llama, bloom"),
            ("[model]\nfamily = 'gpt2'\nposition = 'rope'\n", "it has learned, none"),
            ("[model]\nposition = 'p-rope'\n", "needs model.fraction"),
            ("[model]\nfraction = 0.5\n", "does not go with"),
            ("[model]\nwidth = 30\n", "cannot be split into 4 heads"),
            ("[model]\nwidth = 12\n", "rotary pairs need"),
            ("[training]\nsteps = 0\n", "1 or more"),
            ("[training]\nlength = 2\n", "4 tokens or more"),
            ("[regularizer]\nkind = 'l2'\n", "there are none, locater, sigma-reparam"),
            ("[regularizer]\nkind = 'locater'\n", "needs regularizer.scale"),
            ("[data]\nheld_out = 1\n", "between 0 and 1"),
            ("[training]\nlearning_rate = -1\n", "learning_rate = -1.0"),
            ("[training]\nlearning_rate = nan\n", "learning_rate = nan"),
            ("[training]\nsteps = 20\nwarmup = 20\n", "below the 20 steps"),
            ("[training]\nseed = -1\n", "0 or more"),
            ("[monitor]\nsequences = 0\n", "1 or more"),
            ("[model]\nmlp = 0\n", "below 1"),
            ("[model]\nbase = 1\n", "decreasing frequencies"),
            ("[model]\nfamily = 'gpt2'\nbase = 500\n", "no effect"),
            ("[regularizer]\nscale = 0.5\n", "has settings but"),
            ("model = 3\n", "must be a section"),
            ("[model\n", "is not TOML"),
        ],
    )
    def test_mistakes_raise_an_error_that_names_them(self, tmp_path: Path, toml: str, message: str) -> None:
        path = tmp_path / "run.toml"
        path.write_text(toml)
        with pytest.raises(arm.ArmillaryError, match=message):
            read_config(path)

    def test_too_little_text_and_then_enough(self, tmp_path: Path) -> None:
        """A run that could not start can be started again with other settings."""
        chosen = config(tmp_path)
        (tmp_path / "text.txt").write_text("short")
        with pytest.raises(arm.ArmillaryError, match="are held out"):
            train_run(chosen, tmp_path / "run")
        better = config(tmp_path, training=dict(steps=6))
        assert train_run(better, tmp_path / "run")["steps"] == 6

    def test_default_settings_write_checkpoints(self) -> None:
        defaults = from_dict({})
        assert defaults.training.checkpoint_every < defaults.training.steps
        assert defaults.training.warmup < defaults.training.steps


def test_p_rope_counts_exactly_where_transformers_loses_an_angle(tmp_path: Path) -> None:
    """`armillary theory B21`: 58 % of 50 frequencies are 29."""
    chosen = config(tmp_path, model=dict(heads=1, width=100, position="p-rope", fraction=0.58))
    model, _ = build(chosen, read_text(chosen))
    assert int((model.model.rotary_emb.inv_freq != 0).sum()) == 29
    position = arm.describe(model).layers[0].position
    assert isinstance(position, Rotary)
    assert sum(g != 0 for g in position.frequencies) == 29


def test_trained_schemes_are_not_undone(tmp_path: Path) -> None:
    from armillary.interventions import rotary
    from armillary.interventions.frequencies import refuse_without_rotary

    chosen = config(tmp_path, model=dict(position="reversed", fraction=0.5))
    model, _ = build(chosen, read_text(chosen))
    with pytest.raises(arm.ArmillaryError, match="would undo"), rotary(model, base=500.0):
        pass
    still, _ = build(config(tmp_path, model=dict(position="none")), read_text(chosen))
    with pytest.raises(arm.ArmillaryError, match="are frozen"):
        refuse_without_rotary(still)


def test_the_commands(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "small.toml").write_text(
        f"[model]\nfamily = 'gpt2'\nlayers = 1\nheads = 2\nwidth = 16\n[data]\ncorpus = '{tmp_path / 'text.txt'}'\n"
        "[training]\nsteps = 6\nbatch = 4\nlength = 32\nwarmup = 2\ncheckpoint_every = 3\n[monitor]\nevery = 3\n"
    )
    run = CliRunner().invoke(app, ["train", str(tmp_path / "small.toml"), "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["steps"] == 6
    assert (tmp_path / "small" / "figure.html").is_file()
    other = CliRunner().invoke(
        app, ["train", str(tmp_path / "small.toml"), "--seed", "1", "--out", str(tmp_path / "other")]
    )
    assert other.exit_code == 0
    page = tmp_path / "runs.html"
    table = CliRunner().invoke(
        app, ["runs", str(tmp_path / "small"), str(tmp_path / "other"), "--json", "--html", str(page)]
    )
    assert [row["seed"] for row in json.loads(table.stdout)] == [0, 1]
    assert "attention entropy" in page.read_text(encoding="utf-8")
    wrong = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert "is not a training run" in str(wrong.exception)
    missing = CliRunner().invoke(app, ["train", str(tmp_path / "none.toml")])
    assert "cannot be read" in str(missing.exception)
    (tmp_path / "bare").write_text("")
    assert "no suffix" in str(CliRunner().invoke(app, ["train", str(tmp_path / "bare")]).exception)
    (tmp_path / "small" / "run.json").write_text("{")
    assert "cannot be read" in str(CliRunner().invoke(app, ["runs", str(tmp_path / "small")]).exception)
