"""Verifies the tap and the anatomy against the model's own computation, layer by layer."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from armillary.anatomy.description import Alibi, Anatomy
from armillary.anatomy.modes import evaluating
from armillary.anatomy.registry import adapter_for
from armillary.anatomy.source import blocks_name, transformer_of
from armillary.errors import ArmillaryError
from armillary.observe.rebuild import project, rebuilt_logits
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView, row_centered

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Relative error that the model's own rounding explains, by its dtype."""


@dataclass(frozen=True)
class LayerCheck:
    """Errors of one layer, relative to the largest value compared; None if a check does not apply.

    output: the tapped attention times v against the layer's own result (any family). For families with an adapter
    also: logits rebuilt from the weights and the attention input against the tapped ones, on visible keys (up to a
    constant per row with ALiBi, which families write with different constants); values against x W_v; projected:
    the heads' outputs through W_o against the output projection; visible: whether window and direction are as
    declared (checked if there is no padding).
    """

    layer: int
    output: float | None
    logits: float | None = None
    values: float | None = None
    projected: float | None = None
    visible: bool | None = None


@dataclass(frozen=True)
class Verification:
    """Whether the model's outputs are bit for bit the same with the tap, and the errors of each layer."""

    family: str
    identical: bool
    tolerance: float
    declared: int
    layers: tuple[LayerCheck, ...]
    missing: str = ""

    def worst(self, check: str) -> float | None:
        """The largest error of one check over the layers (NaN if one is), or None if it does not apply."""
        errors = [getattr(layer, check) for layer in self.layers if getattr(layer, check) is not None]
        return max(errors, key=lambda error: float("inf") if error != error else error) if errors else None

    @property
    def seen(self) -> int:
        """How many of the declared layers the tap saw."""
        return len({layer.layer for layer in self.layers})

    @property
    def passed(self) -> bool:
        """Whether everything that could be checked agrees; with an adapter, every layer must have been seen."""
        errors = [self.worst(check) for check in ("output", "logits", "values", "projected")]
        computed = [error for error in errors if error is not None]
        agree = bool(computed) and all(error <= self.tolerance for error in computed)
        seen = bool(self.missing) or self.seen == self.declared
        return self.identical and agree and seen and all(layer.visible is not False for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        checks = ("output", "logits", "values", "projected")
        return {
            "passed": self.passed,
            "identical": self.identical,
            "layers_seen": self.seen,
            "layers_declared": self.declared,
            "tolerance": self.tolerance,
            "worst": {check: self.worst(check) for check in checks},
            "layers": [vars(layer) for layer in self.layers],
        }


@torch.no_grad()
def verify(model: nn.Module, tokens: Tensor | None = None, **inputs: Any) -> Verification:
    """Run the model with and without the tap on `tokens` (by default 2 texts of random tokens) and compare."""
    checks: list[LayerCheck] = []
    tap = Tap(model, lambda view: checks.append(_check(tap.anatomy, outputs.remember(view))))
    outputs = _OutputProjections(model, tap.anatomy)
    arguments = _inputs(model, tap.anatomy, tokens, inputs)
    with evaluating(model):
        plain = model(**arguments)
        with tap, outputs:
            tapped = model(**arguments)
    dtype = next(model.parameters()).dtype
    return Verification(
        family=tap.anatomy.family,
        identical=torch.equal(plain[0], tapped[0]),
        tolerance=TOLERANCE.get(dtype, 1e-1),
        declared=len(tap.anatomy.layers),
        layers=tuple(outputs.check(check) for check in checks),
        missing=tap.anatomy.missing,
    )


def _inputs(model: nn.Module, anatomy: Anatomy, tokens: Tensor | None, inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the model: the tokens under the name that its forward takes, and a text to decode."""
    parameters = inspect.signature(model.forward).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    arguments = dict(inputs)
    if "inputs_embeds" not in arguments:
        chosen = _some_tokens(anatomy) if tokens is None else tokens
        name = "input_ids" if "input_ids" in parameters or anything else next(iter(parameters))
        arguments[name] = chosen.to(next(model.parameters()).device)
    inner: Any = transformer_of(model)
    if inner.config.is_encoder_decoder and "decoder_input_ids" in parameters and "input_ids" in arguments:
        arguments.setdefault("decoder_input_ids", arguments["input_ids"])
    return arguments


def _some_tokens(anatomy: Anatomy) -> Tensor:
    if not anatomy.vocabulary:
        raise ArmillaryError("the configuration gives no vocabulary size", advice="pass tokens of your own")
    generator = torch.Generator().manual_seed(0)
    length = min(32, anatomy.max_positions or 32)
    return torch.randint(min(10, anatomy.vocabulary - 1), anatomy.vocabulary, (2, length), generator=generator)


class _OutputProjections:
    """Compares W_o of the anatomy with the results of the output projections."""

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        self._anatomy = anatomy
        self._results: dict[int, Tensor] = {}
        self._mixed: dict[int, Tensor] = {}
        self._handles: list[Any] = []
        self._modules: dict[nn.Module, list[int]] = {}
        adapter = adapter_for(anatomy.family)
        if adapter is not None:
            root = blocks_name(model, adapter)
            for layer in anatomy.layers:
                name = f"{root}{layer.block.removeprefix(adapter.blocks)}.{adapter.o.name}"
                self._modules.setdefault(model.get_submodule(name), []).append(layer.index)

    def __enter__(self) -> None:
        for module, layers in self._modules.items():
            remaining = iter(layers)

            def record(_: nn.Module, args: Any, computed: Tensor, remaining: Any = remaining) -> None:
                self._results[next(remaining)] = computed.detach()

            self._handles.append(module.register_forward_hook(record))

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def remember(self, view: AttentionView) -> AttentionView:
        if view.output is not None and self._modules:
            self._mixed[view.layer] = view.output
        return view

    def check(self, check: LayerCheck) -> LayerCheck:
        """The check with `projected` filled in."""
        computed, z = self._results.get(check.layer), self._mixed.get(check.layer)
        if computed is None or z is None:
            return check
        weights, wide = self._anatomy.weights(check.layer), torch.promote_types(z.dtype, torch.float32)
        total = sum((z[:, :, a].to(wide) @ w.to(wide) for a, w in enumerate(weights.o)), torch.zeros((), dtype=wide))
        if weights.o_bias is not None:
            total = total + weights.o_bias.to(wide)
        error = relative_error(total, computed.reshape(total.shape).to(total))
        return LayerCheck(**{**vars(check), "projected": error})


def _check(anatomy: Anatomy, view: AttentionView) -> LayerCheck:
    seen = view.visible()
    rows = seen.any(-1).any(1) & view.valid_queries  # (batch, query): rows that are not padding
    output = None
    if view.output is not None:
        mixed = view.mixed_values()
        output = relative_error(*(z[rows.expand(z.shape[:2])] for z in (mixed, view.output.to(mixed.dtype))))
    if anatomy.missing or view.x is None or view.keys != view.queries:
        return LayerCheck(view.layer, output)
    layer, weights = anatomy.layers[view.layer], anatomy.weights(view.layer)
    x = view.x.to(torch.promote_types(view.x.dtype, torch.float32))
    v = project(x, weights.v, weights.v_bias)
    v = v if layer.clip_qkv is None else v.clamp(-layer.clip_qkv, layer.clip_qkv)
    compared = seen & rows[:, None, :, None]
    rebuilt, tapped = rebuilt_logits(anatomy, view.layer, x), view.logits()
    if isinstance(layer.position, Alibi):
        rebuilt, tapped = row_centered(rebuilt, compared), row_centered(tapped, compared)
    no_padding = bool(view.valid_queries.all())
    return LayerCheck(
        view.layer,
        output,
        logits=relative_error(rebuilt * compared, tapped * compared),
        values=relative_error(v, view.v.to(v.dtype)),
        visible=bool((seen == declared_visible(layer, view)).all()) if no_padding else None,
    )


def declared_visible(layer: Any, view: AttentionView) -> Tensor:
    """The keys that each query sees according to the anatomy, without padding."""
    i = torch.arange(view.queries, device=view.q.device)[:, None]
    j = torch.arange(view.keys, device=view.q.device)[None, :]
    seen = (j <= i) if layer.causal else torch.ones_like(j <= i)
    return seen if layer.window is None else seen & ((i - j).abs() < layer.window)


def relative_error(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest value of b; NaN if there is one."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
