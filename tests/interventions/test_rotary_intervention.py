"""Rotary frequencies changed in every family: as described, restored to the last bit, and as in transformers."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import armillary as arm
from armillary.anatomy.description import Anatomy, Layer, Rotary, geometric
from armillary.anatomy.samples import DISTINCT, sample_config, sample_model
from armillary.anatomy.versions import PROPORTIONAL, below, installed
from armillary.errors import ArmillaryError
from armillary.interventions import changed_rotary, rotary

ROTARY = [
    name
    for name in DISTINCT
    if any(isinstance(layer.position, Rotary) for layer in arm.describe(sample_config(name)).layers)
]
OTHERS = [name for name in DISTINCT if name not in ROTARY]
FOLLOWING = ["llama/dynamic", "phi3/longrope"]
CHANGES: list[dict[str, Any]] = [
    dict(p=0.5),
    dict(p=0.5, reversed=True),
    dict(p=0.75, base=300),
    dict(base=50.0),
    dict(partial=0.5),
    dict(nope=True),
]


PARTIAL = dict(rope_theta=1e4, partial_rotary_factor=0.5)
TYPED = dict(
    sliding_attention=dict(rope_type="linear", rope_theta=1e3, factor=2.0),
    full_attention=dict(rope_type="dynamic", rope_theta=1e5, factor=2.0),
)
SCALED = [
    ("gemma3_text", TYPED),
    ("phi", dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, **PARTIAL)),
    ("gpt_neox", dict(rope_type="dynamic", factor=2.0, **PARTIAL)),
]
"""Families with a scaling that no sample has: by layer type, and on a part of the channels."""


@cache
def sample(name: str) -> Any:
    return sample_model(name)


def tokens(length: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, 90, (2, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def output(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(ids)[0]
    return logits


def turning(layer: Layer) -> Rotary:
    """The rotary encoding of the layer."""
    assert isinstance(layer.position, Rotary)
    return layer.position


def with_rotary(anatomy: Anatomy, **change: Any) -> Anatomy:
    """The anatomy with every layer's encoding changed."""
    layers = (
        replace(layer, position=changed_rotary(layer.position, **change))
        if isinstance(layer.position, Rotary)
        else layer
        for layer in anatomy.layers
    )
    return replace(anatomy, layers=tuple(layers))


def rebuilt(model: nn.Module, ids: torch.Tensor, **change: Any) -> tuple[float, torch.Tensor]:
    """The largest error (relative) of logits rebuilt from the changed description, and the changed model's output."""
    described = with_rotary(arm.describe(model), **change)
    errors: list[float] = []

    def compare(view: arm.AttentionView) -> None:
        seen = view.visible()
        assert view.x is not None
        ours, theirs = arm.rebuilt_logits(described, view.layer, view.x) * seen, view.logits() * seen
        errors.append(float((ours - theirs).abs().max() / theirs.abs().max()))

    with rotary(model, **change), arm.Tap(model, compare):
        changed = output(model, ids)
    assert len(errors) == len(described.layers)
    return max(errors), changed


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Asserts that every buffer and attribute of every module is the same object with the same bits afterward."""
    buffers = dict(model.named_buffers())
    bits = {name: buffer.clone() for name, buffer in buffers.items()}
    settings = {name: copy.copy(vars(module)) for name, module in model.named_modules()}
    saved = list(model.state_dict())
    yield
    assert list(dict(model.named_buffers())) == list(buffers)
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
        assert torch.equal(buffer, bits[name])
    for name, module in model.named_modules():
        assert vars(module).keys() == settings[name].keys()
        assert all(value is settings[name][key] for key, value in vars(module).items())
    assert list(model.state_dict()) == saved


@pytest.mark.parametrize("name", ROTARY)
class TestEveryFamily:
    def test_the_model_computes_what_the_changed_description_says(self, name: str) -> None:
        model, ids = sample(name), tokens()
        anatomy, before = arm.describe(model), output(model, ids)
        several = any(len(turning(layer).frequencies) > 1 for layer in anatomy.layers)
        for change in CHANGES:
            if name in FOLLOWING and "partial" in change:
                continue
            with untouched(model):
                error, changed = rebuilt(model, ids, **change)
            assert error < 1e-5, change
            assert several <= bool((changed - before).abs().max() > 1e-3), change
        assert torch.equal(output(model, ids), before)

    def test_all_frequencies_of_the_own_base_change_no_bit(self, name: str) -> None:
        model, ids = sample(name), tokens()
        before, base = output(model, ids), turning(arm.describe(model).layers[0]).base
        same: list[dict[str, Any]] = [dict(p=1), dict(p=1.0, reversed=True)]
        if name not in ("gemma3_text", "modernbert"):  # there the layer types differ in their bases
            same.append(dict(base=base))
        if name not in FOLLOWING:
            same.append(dict(partial=1))
        for change in same:
            with rotary(model, **change):
                assert torch.equal(output(model, ids), before)

    def test_none_of_the_frequencies_is_no_position(self, name: str) -> None:
        model, ids = sample(name), tokens()
        results = []
        for change in (dict(p=0), dict(p=0.0, reversed=True), dict(nope=True), dict(nope=True, base=77)):
            with untouched(model), rotary(model, **change):
                results.append(output(model, ids))
        assert all(torch.equal(result, results[0]) for result in results)

    def test_an_exception_leaves_it_as_it_was(self, name: str) -> None:
        model, ids = sample(name), tokens()
        before = output(model, ids)

        @rotary(model, p=0.25)
        def fail() -> None:
            output(model, tokens(40))  # dynamic scaling stores the frequencies of a longer text
            raise KeyError

        with untouched(model), pytest.raises(KeyError):
            fail()
        assert torch.equal(output(model, ids), before)


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_without_rotary_encoding_is_refused(name: str) -> None:
    with pytest.raises(ArmillaryError, match=f"this {name.split('/')[0]} model has no rotary encoding"):
        rotary(sample_model(name), p=0.5).__enter__()


def test_without_positions_the_order_of_earlier_tokens_is_lost() -> None:
    config = sample_config("llama")
    config.num_hidden_layers = 1
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = tokens(12)
    shuffled = ids[:, [*torch.randperm(11, generator=torch.Generator().manual_seed(1)).tolist(), 11]]
    for change, lost in ((dict(nope=True), True), (dict(p=0.25), False), (dict(p=0.25, reversed=True), False)):
        with rotary(model, **change):
            apart = (output(model, ids)[:, -1] - output(model, shuffled)[:, -1]).abs().max()
        assert (apart < 1e-5) == lost


class TestDescription:
    def test_both_ends_keep_the_same_count_and_a_whole_split_keeps_each_once(self) -> None:
        whole = Rotary(geometric(10_000.0, 10), "half", 10_000.0)  # 5 frequencies
        for p in (0, 0.2, 0.5, 0.6, 0.99, 1):
            fast, slow = changed_rotary(whole, p=p), changed_rotary(whole, p=p, reversed=True)
            count = int(p * 5 + 1e-9)
            assert fast.frequencies == whole.frequencies[:count] + (0.0,) * (5 - count)
            assert slow.frequencies == (0.0,) * (5 - count) + whole.frequencies[5 - count :]
        fast, rest = changed_rotary(whole, p=0.6), changed_rotary(whole, p=0.4, reversed=True)
        assert tuple(map(sum, zip(fast.frequencies, rest.frequencies, strict=True))) == whole.frequencies

    def test_partial_has_the_whole_range_on_fewer_pairs(self) -> None:
        whole = Rotary(geometric(10_000.0, 16), "interleaved", 10_000.0)
        found = changed_rotary(whole, partial=0.5, base=500.0)
        assert found.frequencies == geometric(500.0, 8) + (0.0,) * 4
        assert found.base == 500
        assert changed_rotary(whole, partial=0).frequencies == changed_rotary(whole, nope=True).frequencies

    @pytest.mark.parametrize("name", ["llama/yarn", "llama/llama3", "gemma3_text", "gpt_oss", *FOLLOWING])
    def test_another_base_is_what_the_configuration_with_that_base_says(self, name: str) -> None:
        config = copy.deepcopy(sample_config(name))  # samples share their settings
        ours = with_rotary(arm.describe(config), base=777.0)
        nested = [value for value in config.rope_parameters.values() if isinstance(value, dict)]
        for parameters in nested or [config.rope_parameters]:
            parameters["rope_theta"] = 777.0
        theirs = arm.describe(config)
        for length in (8, 40):
            for mine, other in zip(ours.layers, theirs.layers, strict=True):
                assert turning(mine).at(length) == turning(other).at(length)

    @pytest.mark.parametrize("name", FOLLOWING)
    def test_frozen_frequencies_stay_frozen_at_every_length(self, name: str) -> None:
        whole = turning(arm.describe(sample_config(name)).layers[0])
        frozen = changed_rotary(whole, p=0.5)
        for length in (1, 16, 17, 60):
            assert frozen.at(length).frequencies == (*whole.at(length).frequencies[:2], 0.0, 0.0)
        assert frozen.frequencies == frozen.at(1).frequencies

    @pytest.mark.parametrize(
        "change",
        [
            {},
            dict(reversed=True),
            dict(p=0.5, nope=True),
            dict(p=0.5, partial=0.5),
            dict(p=1.5),
            dict(p=-0.1),
            dict(partial=2),
            dict(base=1),
            dict(base=float("nan")),
            dict(base=0.5),
        ],
    )
    def test_impossible_changes_are_refused(self, change: dict[str, Any]) -> None:
        model = sample("llama")
        with untouched(model), pytest.raises(ArmillaryError):
            rotary(model, **change).__enter__()

    @pytest.mark.parametrize("name", FOLLOWING)
    def test_a_partial_width_is_refused_where_frequencies_follow_the_length(self, name: str) -> None:
        with pytest.raises(ArmillaryError, match="Use p instead"):
            changed_rotary(turning(arm.describe(sample_config(name)).layers[0]), partial=0.5)


class TestModels:
    def test_one_change_at_a_time(self) -> None:
        for name in ("llama", "gptj", "llama/dynamic"):
            model = sample(name)
            with rotary(model, p=0.5):
                with pytest.raises(ArmillaryError, match="already changed"):
                    rotary(model, base=99.0).__enter__()
                with rotary(model, p=1):  # nothing to change
                    pass
            with rotary(model, base=99.0):
                pass

    def test_frequencies_that_are_not_the_configurations_are_refused(self) -> None:
        model = sample_model("llama")
        model.model.rotary_emb.inv_freq.mul_(2)
        with pytest.raises(ArmillaryError, match="not those that its configuration describes"):
            rotary(model, p=0.5).__enter__()

    def test_a_family_that_no_adapter_knows_is_refused(self) -> None:
        model = sample_model("llama")
        model.config.model_type = "llama_of_tomorrow"
        with pytest.raises(ArmillaryError, match="unknown where"):
            rotary(model, p=0.5).__enter__()

    def test_the_factor_of_yarn_still_scales_frozen_pairs(self) -> None:
        model = sample("llama/yarn")
        views: list[arm.AttentionView] = []
        with rotary(model, nope=True), arm.Tap(model, views.append):
            output(model, tokens())
        anatomy = arm.describe(model)
        bare = replace(anatomy, layers=tuple(replace(layer, position=None) for layer in anatomy.layers))
        assert views[0].x is not None
        torch.testing.assert_close(views[0].logits(), 1.2**2 * arm.rebuilt_logits(bare, 0, views[0].x))

    def test_a_wrapped_and_a_half_precision_model(self) -> None:
        model = sample_model("llama").to(torch.bfloat16)
        wrapped = nn.ModuleDict({"inner": model})
        before = output(model, tokens())
        with rotary(wrapped, p=0.5):
            assert model.model.rotary_emb.inv_freq.dtype == torch.bfloat16
            assert torch.equal(model.model.rotary_emb.inv_freq[2:], torch.zeros(2, dtype=torch.bfloat16))
            assert not torch.equal(output(model, tokens()), before)
        assert torch.equal(output(model, tokens()), before)

    @pytest.mark.parametrize("name", FOLLOWING)
    def test_texts_of_all_lengths_in_one_block(self, name: str) -> None:
        """The output for a length does not depend on the lengths that came before."""
        with rotary(sample_model(name), p=0.5) as model:
            mixed = {length: output(model, tokens(length)) for length in (10, 20, 40)}
        for length, found in mixed.items():
            with rotary(sample_model(name), p=0.5) as model:
                assert torch.equal(output(model, tokens(length)), found)

    def test_buffers_that_longrope_writes_meanwhile_are_removed(self) -> None:
        model = sample_model("phi3/longrope")  # has not seen a long text yet
        with untouched(model), rotary(model, p=0.5):
            output(model, tokens(40))

    @pytest.mark.parametrize("change", [dict(p=0.5), dict(base=50.0), dict(nope=True)])
    @pytest.mark.parametrize(("name", "parameters"), SCALED)
    def test_scalings_of_layer_types_and_of_partial_widths(
        self, name: str, parameters: dict[str, Any], change: dict[str, Any]
    ) -> None:
        config = copy.deepcopy(sample_config(name))
        config.rope_parameters = copy.deepcopy(parameters)
        config.max_position_embeddings = 16
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        with untouched(model):
            error, _ = rebuilt(model, tokens(), **change)
        assert error < 1e-5


@pytest.mark.skipif(below(installed(), PROPORTIONAL), reason=f"transformers has it since {PROPORTIONAL}")
class TestStockProportional:
    """transformers' rope_type "proportional": p is its partial_rotary_factor, counts int(p * width // 2) in floats."""

    @staticmethod
    def proportional(config: Any, p: float) -> Any:
        config = copy.deepcopy(config)
        config.rope_parameters = dict(rope_type="proportional", rope_theta=1e4, partial_rotary_factor=p)
        return config

    @pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.6, 0.75, 1.0])
    def test_ours_and_theirs_are_the_same_to_the_last_bit(self, p: float) -> None:
        model, ids = sample("llama"), tokens()
        theirs = AutoModelForCausalLM.from_config(self.proportional(model.config, p)).eval()
        theirs.load_state_dict(model.state_dict())
        with rotary(model, p=p):
            assert torch.equal(model.model.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq)
            assert torch.equal(output(model, ids), output(theirs, ids))

    @pytest.mark.parametrize(("width", "p", "kept"), [(100, 0.58, 29), (200, 0.29, 29), (10, 0.5, 2)])
    def test_theirs_loses_the_angle_that_rounding_loses(self, width: int, p: float, kept: int) -> None:
        config = sample_config("llama")
        config.num_hidden_layers, config.head_dim = 1, width
        model = AutoModelForCausalLM.from_config(config)
        theirs = AutoModelForCausalLM.from_config(self.proportional(config, p)).model.rotary_emb.inv_freq
        with rotary(model, p=p):
            ours = model.model.rotary_emb.inv_freq
            assert ours.count_nonzero() == kept
            assert theirs.count_nonzero() == int(p * width // 2)
            shared = int(theirs.count_nonzero())
            # the last bit of a power depends on the vector unit that computes a row of that many numbers
            torch.testing.assert_close(ours[:shared], theirs[:shared], rtol=2e-7, atol=0)
