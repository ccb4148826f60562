"""Every position scheme with every norm layout trains, and loads in plain transformers wherever that can express it."""

from pathlib import Path

import pytest
import torch
from test_runs import SCHEMES, config
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm
from armillary.anatomy.placing import placer_of
from armillary.anatomy.samples import sample_model
from armillary.anatomy.schemes import beyond_transformers
from armillary.interventions import randomly_placed
from armillary.training.loop import mean_loss
from armillary.training.models import build
from armillary.training.run import read_text, train_run

BEYOND = {"reversed", "partial", "random"}
"""Schemes that transformers cannot express."""
IDS = torch.arange(5, 25)[None]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("family", "position"), SCHEMES)
def test_it_trains_and_loads(tmp_path: Path, family: str, position: str, norm: str) -> None:
    fraction = {"fraction": 0.5} if position in ("p-rope", "reversed", "partial") else {}
    heads = dict(heads=4, kv_heads=2, width=32) if family == "llama" else {}
    chosen = config(
        tmp_path,
        model=dict(family=family, position=position, norm=norm, **fraction, **heads),
        training=dict(steps=2, warmup=1),
        monitor=dict(every=2),
    )
    result = train_run(chosen, tmp_path / "run")
    folder = tmp_path / "run" / "model"
    ours = arm.load(folder, dtype=torch.float32)
    assert arm.verify(ours).passed
    assert mean_loss(ours, read_text(chosen).held_out, 32) == pytest.approx(result["held_out_loss"], abs=1e-6)
    otherwise = beyond_transformers(AutoConfig.from_pretrained(folder))
    expected = position in BEYOND or (family == "llama" and (norm == "post" or position == "none"))
    assert bool(otherwise) == expected
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        same = torch.equal(plain(IDS).logits, ours(IDS).logits)
    assert same == (not expected)


class TestNormsAfterTheSums:
    def test_the_residual_stream_is_normalized(self, tmp_path: Path) -> None:
        for family in ("llama", "opt", "gpt2"):
            chosen = config(tmp_path, model=dict(family=family, norm="post", layers=2, width=32))
            model, _ = build(chosen, read_text(chosen))
            anatomy = arm.describe(model)
            assert anatomy.norm_place == "after"
            streams: list[torch.Tensor] = []
            with torch.no_grad(), arm.Tap(model, None, lambda layer, h, into=streams: into.append(h)):  # type: ignore[misc]
                model(IDS)
            for stream in streams[1:]:  # the gains are 1 before training
                torch.testing.assert_close(stream.square().mean(-1).sqrt(), torch.ones(1, 20), rtol=1e-2, atol=1e-2)

    def test_bloom_sums_normalized_vectors(self, tmp_path: Path) -> None:
        """Its first norm is over the whole residual stream: the block does not see how long its input is."""
        for norm, invariant in (("post", True), ("pre", False)):
            chosen = config(tmp_path, model=dict(family="bloom", norm=norm, width=32))
            model, _ = build(chosen, read_text(chosen))
            outputs = []
            for scale in (1.0, 3.0):
                hook = model.transformer.word_embeddings_layernorm.register_forward_hook(
                    lambda module, args, output, by=scale: by * output
                )
                with torch.no_grad():
                    outputs.append(model(IDS).logits)
                hook.remove()
            assert torch.allclose(outputs[0], outputs[1], atol=1e-3) == invariant


class TestRandomPositions:
    def test_draws_depend_on_seed_and_step_alone(self, tmp_path: Path) -> None:
        chosen = config(tmp_path, model=dict(position="random", range=100))
        model, _ = build(chosen, read_text(chosen))
        placer = placer_of(model)
        assert placer is not None
        draws = []
        for step in (3, 4, 3):
            placer.begin(step)
            draws.append((placer.positions(True, 2, 0, 32), placer.positions(True, 2, 0, 32)))
        assert (draws[0][0] == draws[2][0]).all()
        assert (draws[0][1] == draws[2][1]).all()
        assert (draws[0][0] != draws[1][0]).any()
        assert (draws[0][0] != draws[0][1]).any()
        for drawn in (draws[0][0][0], placer.positions(False, 1, 0, 32)[0]):
            assert len(set(drawn.tolist())) == 32
            assert list(drawn) == sorted(drawn)
            assert 0 <= min(drawn) <= max(drawn) < 100
        with pytest.raises(arm.ArmillaryError, match="cut the text to 32 tokens"):
            placer.positions(False, 1, 0, 33)

    def test_unsorted_draws_have_no_order(self, tmp_path: Path) -> None:
        chosen = config(tmp_path, model=dict(position="random", sorted=False))
        model, _ = build(chosen, read_text(chosen))
        placer = placer_of(model)
        assert placer is not None
        assert list(placer.scheme.places) != sorted(placer.scheme.places)

    def test_for_a_while(self) -> None:
        model = arm.load(arm.bundled("llama"), dtype=torch.float32)
        with torch.no_grad():
            before = model(IDS).logits
            with randomly_placed(model, range=60, length=20):
                inside = model(IDS).logits
                assert arm.verify(model, tokens=IDS.repeat(2, 1)).passed
                with pytest.raises(arm.ArmillaryError, match="already"), randomly_placed(model, range=60, length=20):
                    pass
            with randomly_placed(model, range=20, length=20):  # sorted draws of all positions are 0, 1, 2, ...
                assert torch.equal(model(IDS).logits, before)
            assert torch.equal(model(IDS).logits, before)
        assert not torch.allclose(before, inside)
        bloom = sample_model("bloom")
        with pytest.raises(arm.ArmillaryError, match="no rotary or learned"), randomly_placed(bloom, range=9, length=9):
            pass
