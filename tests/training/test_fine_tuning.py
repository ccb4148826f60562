"""Runs that continue from a model: position changes, only attention trained, LocAteR, what plain transformers loads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_runs import TEXT, config
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm
from armillary.anatomy.description import Alibi, Rotary
from armillary.anatomy.schemes import beyond_transformers
from armillary.training.config import RunConfig, from_dict
from armillary.training.loop import mean_loss
from armillary.training.positions import set_position
from armillary.training.run import read_text, train_run

IDS = torch.arange(5, 25)[None]
SIZES = dict(layers=1, heads=2, width=32)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small llama and a small gpt2, trained for a few steps."""
    place = tmp_path_factory.mktemp("sources")
    folders = {}
    for family in ("llama", "gpt2"):
        chosen = config(place, model=dict(family=family, **SIZES), training=dict(learning_rate=1e-2))
        train_run(chosen, place / family)
        folders[family] = place / family / "model"
    return folders


def tuning(tmp_path: Path, source: Path, *, model: dict[str, Any], **sections: dict[str, Any]) -> RunConfig:
    (tmp_path / "text.txt").write_text(TEXT)
    defaults: dict[str, dict[str, Any]] = {
        "model": {"from": str(source), **model},
        "data": dict(corpus=str(tmp_path / "text.txt")),
        "training": dict(steps=2, batch=2, length=32, warmup=1, learning_rate=1e-2),
        "monitor": dict(every=2, sequences=2),
    }
    return from_dict({name: {**defaults.get(name, {}), **sections.get(name, {})} for name in {*defaults, *sections}})


SCHEMES: dict[str, tuple[dict[str, Any], bool]] = {
    "unchanged": ({}, True),
    "another base": (dict(position="rope", base=500.0), True),
    "p-rope": (dict(position="p-rope", fraction=0.5), True),
    "reversed": (dict(position="reversed", fraction=0.5), False),
    "partial": (dict(position="partial", fraction=0.5), False),
    "none": (dict(position="none"), False),
    "random": (dict(position="random"), False),
    "alibi": (dict(position="alibi"), False),
    "learned": (dict(position="learned"), False),
}
"""A change of llama, and whether transformers can express the result."""


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_of_a_llama_that_exists(tmp_path: Path, sources: dict[str, Path], name: str) -> None:
    change, expressible = SCHEMES[name]
    chosen = tuning(tmp_path, sources["llama"], model=change)
    result = train_run(chosen, tmp_path / "run")
    folder = tmp_path / "run" / "model"
    ours = arm.load(folder, dtype=torch.float32)
    assert arm.verify(ours).passed
    held_out = read_text(chosen).held_out
    assert mean_loss(ours, held_out, 32) == pytest.approx(result["held_out_loss"], abs=1e-6)
    source = arm.load(sources["llama"], dtype=torch.float32)
    assert result["start"]["held_out_before"] == pytest.approx(mean_loss(source, held_out, 32), abs=1e-6)
    assert (result["start"]["held_out_changed"] == result["start"]["held_out_before"]) == (name == "unchanged")
    assert result["held_out_loss"] < result["start"]["held_out_changed"]
    assert bool(beyond_transformers(AutoConfig.from_pretrained(folder))) == (not expressible)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(plain(IDS).logits, ours(IDS).logits) == expressible
        # token by token, with a cache: the schemes know where they are
        ours.config.use_cache = True
        cached = ours(IDS[:, :15], use_cache=True)
        rest = ours(IDS[:, 15:], past_key_values=cached.past_key_values, use_cache=True).logits
        torch.testing.assert_close(rest, ours(IDS).logits[:, 15:], rtol=1e-4, atol=1e-5)
    position = arm.describe(folder).layers[0].position
    if name == "alibi":
        assert isinstance(position, Alibi)
    else:
        assert isinstance(position, Rotary)
        turning = [g != 0 for g in position.frequencies]
        expected = {"p-rope": 4, "reversed": 4, "partial": 4, "none": 0, "learned": 0}.get(name, 8)
        assert sum(turning) == expected


def test_alibi_is_what_bloom_computes() -> None:
    """The bias that a llama gets is that of transformers' own ALiBi, up to a number that is the same for all keys."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    from armillary.anatomy.added_positions import causal_alibi

    theirs = build_alibi_tensor(torch.ones(1, 9), 6, torch.float32).view(6, 1, 9)
    ours = causal_alibi(6, 0, 9, torch.float32)[0]
    visible = torch.ones(9, 9).tril().bool()
    difference = (ours - theirs).masked_fill(~visible, torch.nan)
    for row in range(9):
        assert float(difference[:, row, : row + 1].std(-1, unbiased=False).max()) < 1e-5


def test_learned_positions_of_a_model_that_has_them_stay(tmp_path: Path, sources: dict[str, Path]) -> None:
    chosen = tuning(tmp_path, sources["gpt2"], model=dict(position="learned"))
    start = train_run(chosen, tmp_path / "run")["start"]
    assert start["held_out_before"] == start["held_out_changed"]
    none = tuning(tmp_path, sources["gpt2"], model=dict(position="none"))
    train_run(none, tmp_path / "none")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "none" / "model")
    assert not model.transformer.wpe.weight.any()


def test_only_attention_is_trained(tmp_path: Path, sources: dict[str, Path]) -> None:
    chosen = tuning(
        tmp_path,
        sources["llama"],
        model=dict(position="p-rope", fraction=0.5),
        training=dict(train="attention"),
        regularizer=dict(kind="locater", scale=0.1, mean=0.1),
    )
    train_run(chosen, tmp_path / "run")
    before, after = (AutoModelForCausalLM.from_pretrained(at) for at in (sources["llama"], tmp_path / "run" / "model"))
    changed = {
        name for name, weight in after.state_dict().items() if not torch.equal(weight, before.state_dict()[name])
    }
    assert changed == {f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"}
    rows = (tmp_path / "run" / "loss.jsonl").read_text()
    assert '"penalty"' in rows


@pytest.mark.parametrize(
    ("model", "sections", "message"),
    [
        (dict(layers=3), {}, "model.layers is that of model.from"),
        (dict(norm="post"), {}, "model.norm is that of"),
        (dict(position="sinusoidal"), {}, "does not go with model.from"),
        (dict(position="p-rope"), {}, "needs model.fraction"),
        (dict(position="random", range=8), {}, "32 tokens of a sequence or more"),
        ({}, dict(data=dict(tokenizer="gpt2")), "data.tokenizer is that of"),
        ({}, dict(regularizer=dict(kind="sigma-reparam")), "undoes what a model has learned"),
    ],
)
def test_mistakes(
    tmp_path: Path, sources: dict[str, Path], model: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(arm.ArmillaryError, match=message):
        tuning(tmp_path, sources["llama"], model=model, **sections)


def test_mistakes_that_the_model_shows(tmp_path: Path, sources: dict[str, Path]) -> None:
    with pytest.raises(arm.ArmillaryError, match="no rotary encoding"):
        train_run(tuning(tmp_path, sources["gpt2"], model=dict(position="p-rope", fraction=0.5)), tmp_path / "a")
    with pytest.raises(arm.ArmillaryError, match="has 32 positions"):
        train_run(tuning(tmp_path, sources["gpt2"], model={}, training=dict(length=64)), tmp_path / "b")
    with pytest.raises(arm.ArmillaryError, match="do not fit"):
        train_run(tuning(tmp_path, sources["gpt2"], model=dict(position="random")), tmp_path / "c")
    model = arm.load(sources["llama"], dtype=torch.float32)
    set_position(model, "reversed", fraction=0.5, length=32)
    with pytest.raises(arm.ArmillaryError, match="scheme of its own already"):
        set_position(model, "p-rope", fraction=0.5, length=32)
    with pytest.raises(arm.ArmillaryError, match=r"needs model\.fraction"):
        set_position(model, "p-rope", length=32)
