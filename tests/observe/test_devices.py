"""No tensor is assumed to be on the CPU: everything that runs a model gives the same numbers on a second device.

The device (second_device.py) computes on the CPU and raises when its tensors meet the CPU's. docs/devices.md says what
this tests and what it does not.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import armillary as arm
from armillary import interventions
from armillary.anatomy.devices import input_device, moved
from armillary.anatomy.identity import fingerprint
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.other_samples import part_of
from armillary.anatomy.samples import SAMPLES, sample_model
from armillary.interventions.attention import attending
from armillary.observe.view import AttentionView
from armillary.probe.attention_map import attention_map
from armillary.probe.label_checks import check_heads
from armillary.probe.rotary_tokens import token_frequencies
from armillary.probe.sweep import sweep
from armillary.probe.terms import text_constituents
from armillary.probe.trial import trial
from armillary.streams.registry import OPTIONS
from armillary.training.config import from_dict
from armillary.training.monitor import snapshot
from armillary.training.regularizers import LocAteR
from armillary.training.run import train_run
from armillary.viewer.live import LiveModel
from armillary.viewer.worker import Gone
from program import complaint, fresh_python, run
from second_device import OnSecond, operations, second_device, without_float64

TEXT = "def the function returns the value of the function"
TOKENIZER = load_tokenizer(arm.bundled("llama"))
TOKENS = torch.randint(5, 60, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["float64", "no float64"])
def limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """The device with float64, as CUDA has it, and without, as Apple's mps."""
    with without_float64() if request.param == "no float64" else nullcontext():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rotary model of two layers, small enough to be slow, with a tokenizer."""
    place = tmp_path_factory.mktemp("small") / "model"
    shape = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=32
    )
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(TOKENIZER), max_position_embeddings=1100, initializer_range=0.2, **shape)
    LlamaForCausalLM(config).save_pretrained(place)
    TOKENIZER.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def models(folder: Path) -> tuple[Any, Any]:
    """The model on the CPU, and on the second device."""
    return arm.load(folder), arm.load(folder, device=second_device(), dtype="float32")


@pytest.fixture(scope="module")
def atlas(folder: Path) -> arm.Atlas:
    streams = ("positions", "attention", "constituents", "patterns", "chunks")
    return arm.scan(folder, "builtin:prose", sequences=4, length=24, streams=streams)


def same(numbers: Callable[[Any], Any], models: tuple[Any, Any]) -> None:
    """What a function computes from a model is the same on both devices."""
    ours, theirs = numbers(models[0]), numbers(models[1])
    assert np.isfinite(np.asarray(ours, dtype=float)).any()
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


# the device itself -------------------------------------------------------------------------------------------------


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    there, here = torch.ones(3, device=second_device()), torch.ones(3)
    assert isinstance(there, OnSecond)
    assert (there + 1 + torch.tensor(2.0)).tolist() == [4, 4, 4]  # a number may come from anywhere
    assert there[torch.tensor([0, 2])].shape == (2,)  # and so may indices
    for operation in (torch.add, torch.dot, lambda a, b: torch.cat([a, b])):
        for pair in ((there, here), (here, there)):
            with pytest.raises(RuntimeError, match="two devices"):
                operation(*pair)
    with pytest.raises(RuntimeError, match="generator of the device cpu"):
        torch.randn(3, device=second_device(), generator=torch.Generator())
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    with without_float64(), pytest.raises(TypeError, match=r"no torch.float64"):
        there.double()
    assert there.cpu().numpy().tolist() == [1, 1, 1]


def test_the_model_really_runs_there(models: tuple[Any, Any]) -> None:
    assert all(isinstance(parameter, OnSecond) for parameter in models[1].parameters())
    ids = TOKENS.to(second_device())
    with torch.no_grad():
        assert operations(lambda: models[1](ids)) > 100
    assert fingerprint(models[0]) == fingerprint(models[1])


# what runs a model -------------------------------------------------------------------------------------------------


def test_every_stream_of_a_scan(models: tuple[Any, Any], limits: None) -> None:
    """But for sources, which need derivatives: torch has no queue of them for a device that is made in Python."""
    streams = tuple(name for name in OPTIONS if name != "sources")
    atlases = [arm.scan(model, TOKENS, streams=streams) for model in models]
    for table in ("heads", "layers"):
        ours, theirs = (getattr(atlas, table).select_dtypes("number") for atlas in atlases)
        assert list(ours) == list(theirs)
        for column in ours:
            np.testing.assert_allclose(theirs[column], ours[column], rtol=2e-3, atol=2e-4, err_msg=column)


FEW = ("modernbert", "falcon/alibi", "t5")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in SAMPLES],
)
def test_families(name: str) -> None:
    model, part = moved(sample_model(name), second_device()), part_of(name)
    assert arm.verify(model, part=part).passed
    if arm.describe(model).positions == "tokens":  # a scan reads text
        assert not arm.scan(model, TOKENS, streams=("positions", "attention", "constituents")).heads.empty
    with without_float64():
        assert arm.verify(model, part=part).passed


@pytest.mark.slow
def test_long_sequences_in_tiles(models: tuple[Any, Any]) -> None:
    tokens = torch.randint(5, 90, (1, 1030), generator=torch.Generator().manual_seed(0))

    def entropies(model: Any) -> Any:
        return arm.scan(model, tokens, streams=("attention",), batch=1).heads["entropy"].to_numpy()

    same(entropies, models)


LABELED = pd.DataFrame(
    {"layer": [0, 1, 1], "head": [0, 1, 2], "label": ["previous", "content", "induction"], "significant": True}
)
"""Heads to check, whatever they do."""

PATHS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "map": lambda model, tokenizer, atlas: attention_map(model, tokenizer, TEXT, weights="output").attention,
    "show": lambda model, tokenizer, atlas: text_constituents(atlas, model, tokenizer, 1, 0, TEXT).attention,
    "frequencies": lambda model, tokenizer, atlas: token_frequencies(model, tokenizer, 1, 0, TEXT).q,
    "rope": lambda model, tokenizer, atlas: sweep(model, atlas, "p", [1.0, 0.5]).table["loss"],
    "verify-heads": lambda model, tokenizer, atlas: check_heads(model, atlas, LABELED, sequences=2).select_dtypes(
        "number"
    ),
    "weights": lambda model, tokenizer, atlas: arm.weigh(model, matrices=False).heads["qk_fro"],
    "monitor": lambda model, tokenizer, atlas: list(snapshot(model, TOKENS).summary().values()),
    "locater": lambda model, tokenizer, atlas: float(LocAteR(model, 1.0, 1.0, 0.5)().detach()),
}


@pytest.mark.parametrize("name", PATHS)
def test_what_commands_compute(name: str, models: tuple[Any, Any], atlas: arm.Atlas, limits: None) -> None:
    same(lambda model: PATHS[name](model, TOKENIZER, atlas), models)


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": lambda model, atlas: interventions.scaled(model, 1.5, heads=[(1, 2)]),
    "cut": lambda model, atlas: interventions.cut(model, 2),
    "random, same norm": lambda model, atlas: interventions.randomized(model, keep="norm"),
    "random, same spectrum": lambda model, atlas: interventions.randomized(model, keep="spectrum"),
    "without position": lambda model, atlas: interventions.without(model, "position", atlas),
    "without content": lambda model, atlas: interventions.without(model, "content", atlas),
    "other frequencies": lambda model, atlas: interventions.rotary(model, p=0.5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name: str, models: tuple[Any, Any], atlas: arm.Atlas, limits: None) -> None:
    def losses(model: Any) -> list[float | None]:
        runs = trial(model, TOKENIZER, TEXT, lambda m: CHANGES[name](m, atlas))
        return [runs.before.loss, runs.after.loss]

    same(losses, models)
    before, after = losses(models[1])
    assert abs((before or 0) - (after or 0)) > 1e-5  # the change reached the model's own weights or outputs


def test_replaced_attention(models: tuple[Any, Any], limits: None) -> None:
    def uniform(view: AttentionView) -> dict[int, torch.Tensor]:
        seen = view.visible()[:, 0].expand(len(view.q), -1, -1)
        return {0: seen / seen.sum(-1, keepdim=True)}

    def logits(model: Any) -> Any:
        ids = TOKENS.to(input_device(model))
        with torch.no_grad(), attending(model, uniform):
            changed = model(ids).logits
        with torch.no_grad():
            assert (model(ids).logits - changed).abs().max() > 1e-3
        return changed.cpu()

    same(logits, models)


def test_the_viewers_model(models: tuple[Any, Any], atlas: arm.Atlas, limits: None) -> None:
    def parts(model: Any) -> Any:
        live = LiveModel(model, TOKENIZER, atlas)
        shown = live.run(TEXT, 1, Gone(), entropies=True)
        assert live.frequencies(shown, 1, 0) is not None
        return live.head(shown, 1, 0).attention

    same(parts, models)


RUN = {
    "model": {"layers": 1, "width": 16, "heads": 2},
    "data": {"documents": 40},
    "training": {"steps": 2, "batch": 2, "length": 16, "checkpoint_every": 1},
    "monitor": {"every": 2, "sequences": 2},
}
THERE = """
import json, sys
from pathlib import Path
from armillary.training.config import from_dict
from armillary.training.run import train_run
from second_device import operations, second_device, without_float64

done, device = {}, second_device()
with without_float64():
    config, folder = from_dict(json.loads(sys.argv[1])), Path(sys.argv[2])
    used = operations(lambda: done.update(train_run(config, folder, device=device)))
print(json.dumps({"used": used, "held_out_loss": done["held_out_loss"]}))
"""


@pytest.mark.parametrize("kind", ["locater", "sigma-reparam"])
def test_training(kind: str, tmp_path: Path) -> None:
    """On the device in a process of its own: autograd counts the devices at the first backward pass of a process."""
    config = {**RUN, "regularizer": {"kind": kind} | ({"scale": 0.1} if kind == "locater" else {})}
    here = train_run(from_dict(config), tmp_path / "here", device="cpu")
    there = fresh_python(THERE, json.dumps(config), str(tmp_path / "there"))
    assert there["used"] > 1000
    assert there["held_out_loss"] == pytest.approx(here["held_out_loss"], abs=1e-4)
    assert arm.load(tmp_path / "there" / "model").device.type == "cpu"  # what was trained there loads anywhere


def test_a_command_on_the_device(folder: Path, tmp_path: Path) -> None:
    second_device()
    line = ("scan", folder, "--limit", "2", "--length", "16", "--streams", "attention")
    used = operations(lambda: run(*line, "-o", tmp_path / "atlas", "--device", "second", "--dtype", "float32"))
    assert used > 1000
    here = arm.scan(folder, "builtin:prose", sequences=2, length=16, streams=("attention",))
    there = arm.open_atlas(tmp_path / "atlas")
    np.testing.assert_allclose(there.heads["entropy"], here.heads["entropy"], rtol=1e-4)
    ran = run("show", tmp_path / "atlas", "L1H2", "--device", "second")
    assert ran.returncode == 0, ran.stderr
    with without_float64():
        said = complaint("map", folder, "--text", TEXT, "--device", "second", "--dtype", "float64")
    assert "the device second has no float64: give float32, or the device cpu" in said
