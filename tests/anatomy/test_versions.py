"""Older versions of transformers: what they lack is said in one sentence, and is all that is missing."""

from typing import Any

import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

import armillary as arm
from armillary.anatomy.samples import SAMPLES, sample_config, sample_model, unavailable
from armillary.anatomy.versions import (
    PROPORTIONAL,
    SINCE,
    SOFTCAP,
    attention_options,
    below,
    installed,
    refuse_missing_type,
    refuse_too_old,
)
from armillary.machine.quiet import quiet


def config_of(name: str, implementation: str = "sdpa") -> Any:
    config = sample_config(name)
    config._attn_implementation = implementation
    return config


def test_versions_are_compared_as_numbers() -> None:
    assert below("5.9.0", "5.15")
    assert below("5.4.0.dev0", "5.5")
    assert not below("5.15.0", "5.15")
    assert not below("6.0", "5.15")
    assert installed() == transformers.__version__


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("t5", "5.14.0", "5.15.0"), ("modernbert", "5.6.2", "5.7.0"), ("gpt2/inverse-layer-scale", "5.3.0", "5.4.0")],
)
def test_what_cannot_be_observed_says_since_when(name: str, old: str, new: str) -> None:
    with pytest.raises(arm.ArmillaryError, match=f"can be observed since transformers .*, and {old} is installed") as e:
        refuse_too_old(config_of(name), old)
    assert e.value.advice == f"install transformers>={new.removesuffix('.0')}"
    refuse_too_old(config_of(name), new)
    refuse_too_old(config_of("gpt2"), old)


def test_a_soft_cap_is_never_left_out() -> None:
    """Below 5.21 transformers runs Gemma 2 under sdpa without its soft-cap, and says nothing."""
    with pytest.raises(arm.ArmillaryError, match=r"a soft-cap of its logits, which transformers 5\.20\.0 leaves out"):
        refuse_too_old(config_of("gemma2"), "5.20.0")
    refuse_too_old(config_of("gemma2", "eager"), "5.20.0")
    refuse_too_old(config_of("gemma2"), SOFTCAP)
    assert attention_options(config_of("gemma2"), "5.20.0") == {"attn_implementation": "eager"}
    assert attention_options(config_of("gemma2"), SOFTCAP) == attention_options(config_of("llama"), "5.1.0") == {}
    assert sample_model("gemma2").config._attn_implementation == "eager"  # in every version


def test_a_type_that_this_version_does_not_have() -> None:
    with pytest.raises(arm.ArmillaryError, match=f"transformers {installed()} has no gpt9 models: install a newer"):
        refuse_missing_type("gpt9")


@pytest.mark.parametrize("name", sorted(name for name in SAMPLES if name.split("/")[0] in {*SINCE, "gpt2"}))
def test_the_tap_agrees_with_the_table(name: str) -> None:
    """Here and now: a sample can be tapped if and only if the table says so."""
    if unavailable(name):
        with pytest.raises(arm.ArmillaryError) as refused:
            arm.Tap(sample_model(name))
        assert refused.value.problem == unavailable(name)
    else:
        assert arm.verify(sample_model(name)).passed


def test_proportional_exists_since_the_version_that_is_named() -> None:
    assert ("proportional" in ROPE_INIT_FUNCTIONS) is not below(installed(), PROPORTIONAL)


def test_an_unknown_scaling_names_the_version() -> None:
    config = sample_config("llama")
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(arm.ArmillaryError, match=f"rope_type='spiral'; transformers {installed()} knows default, "):
        arm.describe(config)


def test_bars_are_off_inside_and_back_afterward() -> None:
    """By the hook that transformers has since 5.4, or by the switch that it had before."""

    def shown() -> bool:
        with logging.tqdm(total=1) as bar:
            return isinstance(bar, logging.tqdm_lib.tqdm) and not bar.disable

    assert shown()
    with quiet(always=True):
        assert not shown()
    assert shown()
