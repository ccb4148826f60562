"""Sources and attribution are exact: shares add to 1 on each side, parts of the logit add up to the model's own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from armillary.anatomy.other_samples import part_of
from armillary.anatomy.samples import SAMPLES, sample_model, unavailable
from armillary.anatomy.source import describe
from armillary.anatomy.sources import OTHERS, SIDES
from armillary.errors import ArmillaryError
from armillary.observe.rebuild import queries_and_keys
from armillary.observe.sources import Sources
from armillary.observe.tap import Tap
from armillary.observe.verification import _inputs
from armillary.observe.view import row_centered
from armillary.probe.attribution import direct_logits
from armillary.probe.sources import edges_of
from armillary.probe.trial import predicts

ROUNDING = OTHERS.index("rounding")

WITHOUT = {
    "albert": "share modules",
    "albert/groups": "share modules",
    "mpt/clipped": "clips",
    "olmo": "clips",
    "gemma4_text": "per_layer_input_gate",
    "gemma4_text/gemma4": "per_layer_input_gate",
    **{f"{family}/cross": "two streams" for family in ("t5", "mt5", "bart", "whisper")},
}
"""Families whose stream is not split, and a word of the sentence that says why."""

IN_DOUBLE = ("gpt2", "bert", "bloom", "t5", "opt", "deberta-v2", "mpt", "bart/decoder", "gpt_neox", "phi/qk-norm")
"""Families that compute in float64 when they are loaded so; others round their norms to float32."""

ROTATED = ("gpt_neox", "phi/qk-norm")
"""Of these, those whose rotations are rounded to float32: only the value side is in float64."""


def run_of(model: Any, part: str) -> Any:
    """A function that runs the model on one small input."""
    anatomy = Tap(model, part=part).anatomy
    tokens = torch.randint(5, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    given = _inputs(model, anatomy, tokens if anatomy.positions == "tokens" else None, {})
    given = {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    return lambda: model(**given)


def shares(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    model = sample_model(name)
    model = model if dtype == torch.float32 else model.to(dtype)
    sources = Sources(model, describe(model, part=part_of(name)), skip=1)
    with torch.no_grad():
        states = sources.products(run_of(model, part_of(name)))
    assert not any("forward" in vars(module) for module in model.modules())  # the model is as it was
    return [states[layer]["products"] / states[layer]["total"][..., None] for layer in sorted(states)]


FEW = ("llama", "gpt2", "gemma2", "bert", "opt", "gptj", "t5", "olmo2", "deepseek_v3", "albert")
"""One of each norm layout and encoding, and a refused one; the other families are slow tests."""

EVERY = [
    pytest.param(name, marks=() if name in FEW else pytest.mark.slow)
    for name in SAMPLES
    if name != "whisper/decoder"  # which needs a sound
]


@pytest.mark.parametrize("name", EVERY)
def test_the_sources_of_every_family_add_to_one(name: str) -> None:
    if unavailable(name):
        pytest.skip(unavailable(name))
    if name in WITHOUT:
        with pytest.raises(ArmillaryError, match=WITHOUT[name]):
            shares(name, torch.float32)
        return
    for share in shares(name, torch.float32):
        assert torch.allclose(share.sum(-1), torch.ones(()).double(), atol=1e-12)
        assert share[..., ROUNDING].abs().max() < 1e-5  # what is left over is nothing but rounding


@pytest.mark.parametrize("name", IN_DOUBLE)
def test_in_float64_nothing_is_left_over(name: str) -> None:
    for share in shares(name, torch.float64):
        sides = share[SIDES.index("value") :] if name in ROTATED else share
        assert sides[..., ROUNDING].abs().max() < 1e-12
        assert share[..., ROUNDING].abs().max() < 1e-7


def test_the_shares_of_llama_are_those_of_dense_matrices() -> None:
    """By hand: what a head wrote, normed with the token's own scale, as a key of its own; all pairs of tokens."""
    model = sample_model("llama").double()
    tokens = torch.randint(5, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    anatomy = describe(model)
    views: list[Any] = []
    stream: dict[int, torch.Tensor] = {}
    with torch.no_grad(), Tap(model, views.append, lambda point, h: stream.update({point: h})):
        model(input_ids=tokens)
    table, view, layer = edges_of(model, tokens.numpy()), views[2], anatomy.layers[2]
    norm = model.model.layers[2].input_layernorm
    scale = torch.rsqrt(stream[2].square().mean(-1, keepdim=True) + norm.variance_epsilon)
    kept = view.visible().expand(1, view.heads, -1, -1).clone()
    kept[..., :1] = kept[..., :1, :] = False
    b = row_centered(view.logits(), kept)
    weights = replace(anatomy.weights(2), q_bias=None, k_bias=None)
    for writer in (0, 1):
        wrote = views[writer].output[:, :, 3] @ anatomy.weights(writer).o[3]
        _, k = queries_and_keys(layer, weights, wrote * scale * norm.weight, torch.arange(12))
        terms = layer.scale * view.q @ k.repeat_interleave(layer.group, 1).mT
        by_hand = (terms * b).sum((0, 2, 3)) / b.square().sum((0, 2, 3))
        own = table[(table["layer"] == 2) & (table["side"] == "key") & (table["source"] == f"L{writer}H3")]
        assert np.allclose(own["share"], by_hand.detach(), atol=1e-6)  # Llama rounds its norm to float32


def test_a_share_is_the_derivative_of_the_logits_along_what_a_head_wrote() -> None:
    """Against autograd: scale one head's output by 1 + t with all norms frozen, by a model without norms."""
    model = sample_model("gpt2").double()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.forward = torch.nn.Identity().forward  # type: ignore[method-assign]
    tokens = torch.randint(5, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    anatomy = describe(model)
    e, heads = anatomy.layers[0].head_width, anatomy.layers[0].heads
    scale = torch.ones(heads, dtype=torch.float64, requires_grad=True)
    hook = model.transformer.h[0].attn.c_proj.register_forward_pre_hook(
        lambda _, args: (args[0] * scale.repeat_interleave(e),)
    )
    seen: dict[str, torch.Tensor] = {}
    model.transformer.h[0].mlp.forward = lambda x: torch.zeros_like(x)
    grab = model.transformer.h[1].attn.c_attn.register_forward_hook(lambda _, args, out: seen.update(qkv=out))
    model(input_ids=tokens)
    hook.remove(), grab.remove()
    q, k, _ = (part.unflatten(-1, (heads, e)).transpose(1, 2) for part in seen["qkv"].split(heads * e, -1))
    logits = q.detach() @ k.mT * anatomy.layers[1].scale
    kept = torch.ones(12, 12).tril().bool().expand(1, heads, 12, 12).clone()
    kept[..., :1] = kept[..., :1, :] = False
    b = row_centered(logits.detach(), kept)
    by_hand = torch.autograd.grad((b[:, 2] * logits[:, 2]).sum() / b[:, 2].square().sum(), scale)[0]
    del model.transformer.h[0].mlp.forward
    model.transformer.h[0].mlp.c_proj.weight.data.zero_()
    model.transformer.h[0].mlp.c_proj.bias.data.zero_()
    table = edges_of(_without_norms(model), tokens.numpy())
    own = table[(table["layer"] == 1) & (table["head"] == 2) & (table["side"] == "key")].set_index("source")["share"]
    assert np.allclose([own[f"L0H{head}"] for head in range(heads)], by_hand.numpy(), atol=1e-12)


def _without_norms(model: Any) -> Any:
    """The same model with norms that give what they get, as modules that the replay reads."""
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.LayerNorm):
            model.set_submodule(name, torch.nn.Identity())
    return model


PREDICTING = [
    name
    for name in ("gpt2", "llama", "gemma2", "falcon", "bloom", "olmo2", "granite", "cohere", "phi", "gpt_neox", "mpt")
    if name in SAMPLES
]


@pytest.mark.parametrize("name", PREDICTING)
def test_parts_of_the_logit_add_up_to_the_models_own(name: str) -> None:
    model = sample_model(name)
    assert predicts(model)
    tokens = torch.randint(5, 90, (2, 12), generator=torch.Generator().manual_seed(0))
    parts = direct_logits(model, tokens.numpy())
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[:, 1:-1].double()
    own = (logits.gather(-1, tokens[:, 2:, None])[..., 0] - logits.mean(-1)).mean()
    by_source = parts.set_index("source")["direct_logit"]
    assert abs(by_source["rounding"]) < 1e-5 * max(1.0, by_source.abs().max())
    if name != "gemma2":  # whose logits are capped
        assert abs(parts["direct_logit"].sum() - float(own)) < 1e-4 * max(1.0, abs(float(own)))
    assert (by_source.filter(regex=r"L\dH\d").abs() > 0).all()
