"""Verifies the tap and the anatomy against the model's own computation, layer by layer."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from armillary.anatomy.description import Alibi, Anatomy
from armillary.anatomy.modes import evaluating
from armillary.anatomy.registry import adapter_of
from armillary.anatomy.source import blocks_name, transformer_of
from armillary.errors import ArmillaryError
from armillary.observe.rebuild import cross_terms, gates, parts_of_queries_and_keys, project, rebuilt_logits, values
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView, grouped_products, row_centered

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Relative error that the model's own rounding explains, by its dtype."""


CHECKS = ("output", "logits", "values", "projected", "constituents", "shares")
"""The numbers of a LayerCheck that must be small."""


@dataclass(frozen=True)
class LayerCheck:
    """Errors of one layer, relative to the largest value compared; None if a check does not apply.

    output: the tapped attention times v against the layer's own result (any family). For families with an adapter
    also: logits rebuilt from the weights and the attention input against the tapped ones, on visible keys (up to a
    constant per row with ALiBi, which families write with different constants); values against x W_v; projected:
    the heads' outputs through W_o against the output projection; constituents: the terms of mean, position and content
    of x, and the bias, summed, against the tapped logits; shares: how far their shares of these logits are from adding
    to 1, in the worst head; visible: whether window and direction are as declared (checked if there is no padding).
    """

    layer: int
    output: float | None
    logits: float | None = None
    values: float | None = None
    projected: float | None = None
    constituents: float | None = None
    shares: float | None = None
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
        errors = [self.worst(check) for check in CHECKS]
        computed = [error for error in errors if error is not None]
        agree = bool(computed) and all(error <= self.tolerance for error in computed)
        seen = bool(self.missing) or self.seen == self.declared
        return self.identical and agree and seen and all(layer.visible is not False for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "passed": self.passed,
            "identical": self.identical,
            "layers_seen": self.seen,
            "layers_declared": self.declared,
            "tolerance": self.tolerance,
            "worst": {check: self.worst(check) for check in CHECKS},
            "layers": [vars(layer) for layer in self.layers],
        }


@torch.no_grad()
def verify(model: nn.Module, tokens: Tensor | None = None, *, part: str = "", **inputs: Any) -> Verification:
    """Run the model with and without the tap on `tokens` (by default 2 texts of random tokens) and compare.

    part: 'decoder' or 'cross', for those of an encoder-decoder.
    """
    checks: list[LayerCheck] = []
    tap = Tap(model, lambda view: checks.append(_check(tap.anatomy, outputs.remember(view))), part=part)
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
    inner: Any = transformer_of(model)
    main = str(getattr(inner, "main_input_name", "input_ids"))
    if main in OTHER_INPUTS and tokens is None:
        return {**OTHER_INPUTS[main](inner, anatomy), **arguments}
    if "inputs_embeds" not in arguments:
        chosen = _some_tokens(anatomy) if tokens is None else tokens
        name = "input_ids" if "input_ids" in parameters or anything else next(iter(parameters))
        arguments[name] = chosen.to(next(model.parameters()).device)
    if inner.config.is_encoder_decoder and "decoder_input_ids" in parameters and "input_ids" in arguments:
        given = arguments["input_ids"]
        arguments.setdefault(
            "decoder_input_ids", given.flip(1)[:, : max(2, given.shape[1] - 5)] if anatomy.part else given
        )
    return arguments


def _some_tokens(anatomy: Anatomy) -> Tensor:
    if not anatomy.vocabulary:
        raise ArmillaryError("the configuration gives no vocabulary size", advice="pass tokens of your own")
    generator = torch.Generator().manual_seed(0)
    length = min(32, anatomy.max_positions or 32)
    return torch.randint(min(10, anatomy.vocabulary - 1), anatomy.vocabulary, (2, length), generator=generator)


def some_images(model: Any, anatomy: Anatomy) -> dict[str, Tensor]:
    """Two images of noise, of the size in the configuration."""
    size, parameter = model.config.image_size, next(model.parameters())
    high, across = (size, size) if isinstance(size, int) else size
    noise = torch.randn(2, model.config.num_channels, high, across, generator=torch.Generator().manual_seed(0))
    return {"pixel_values": noise.to(parameter)}


def some_sound(model: Any, anatomy: Anatomy) -> dict[str, Tensor]:
    """Two spectrograms of noise of full length, and a few tokens to decode."""
    parameter, generator = next(model.parameters()), torch.Generator().manual_seed(0)
    noise = torch.randn(2, model.config.num_mel_bins, 2 * model.config.max_source_positions, generator=generator)
    tokens = torch.randint(3, model.config.vocab_size, (2, 12), generator=generator)
    return {"input_features": noise.to(parameter), "decoder_input_ids": tokens.to(parameter.device)}


OTHER_INPUTS = {"pixel_values": some_images, "input_features": some_sound}
"""What models that do not read text run on, by the name of their input."""


class _OutputProjections:
    """Compares W_o of the anatomy with the results of the output projections."""

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        self._anatomy = anatomy
        self._results: dict[int, Tensor] = {}
        self._mixed: dict[int, Tensor] = {}
        self._handles: list[Any] = []
        self._modules: dict[nn.Module, list[int]] = {}
        adapter = adapter_of(anatomy)
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
            gate = None if view.x is None else gates(self._anatomy.weights(view.layer), view.x)
            self._mixed[view.layer] = view.output if gate is None else view.output * gate
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
    if view.keys_from is not None and view.x is not None:
        return _check_cross(anatomy, view, output, rows)
    if anatomy.missing or view.x is None or view.keys != view.queries:
        return LayerCheck(view.layer, output)
    layer, weights = anatomy.layers[view.layer], anatomy.weights(view.layer)
    x = view.x.to(torch.promote_types(view.x.dtype, torch.float32))
    v = values(layer, weights, x)
    compared = seen & rows[:, None, :, None]
    rebuilt, tapped = rebuilt_logits(anatomy, view.layer, x), view.logits()
    if isinstance(layer.position, Alibi):
        rebuilt, tapped = row_centered(rebuilt, compared), row_centered(tapped, compared)
    constituents, shares = _constituents(anatomy, view, x, compared)
    no_padding = bool(view.valid_queries.all())
    return LayerCheck(
        view.layer,
        output,
        logits=relative_error(rebuilt * compared, tapped * compared),
        values=relative_error(v, view.v.to(v.dtype)),
        constituents=constituents,
        shares=shares,
        visible=bool((seen == declared_visible(layer, view)).all()) if no_padding else None,
    )


def _check_cross(anatomy: Anatomy, view: AttentionView, output: float | None, rows: Tensor) -> LayerCheck:
    """The same for cross-attention, with queries from the decoder and keys and values from the encoder."""
    assert view.x is not None
    assert view.keys_from is not None
    layer, weights = anatomy.layers[view.layer], anatomy.weights(view.layer)
    dtype = torch.promote_types(view.x.dtype, torch.float32)
    x, y = view.x.to(dtype), view.keys_from.to(dtype)
    seen, tapped = view.visible(), view.logits()
    compared = seen & rows[:, None, :, None]
    terms = cross_terms(layer, weights, x, y)
    whole, b = torch.stack(terms).sum(0), row_centered(tapped, compared)
    energy = b.square().sum((0, 2, 3), dtype=torch.float64)
    shares = torch.stack([(term * b).sum((0, 2, 3), dtype=torch.float64) / energy for term in terms]).sum(0)
    rebuilt = grouped_products(project(x, weights.q, weights.q_bias), project(y, weights.k, weights.k_bias)) * (
        layer.scale or 1.0
    )
    return LayerCheck(
        view.layer,
        output,
        logits=relative_error(rebuilt * compared, tapped * compared),
        values=relative_error(values(layer, weights, y), view.v.to(dtype)),
        constituents=relative_error(row_centered(whole, compared), b),
        shares=float((shares - 1).abs().max()),
        visible=bool(seen.all()) if bool(view.valid_queries.all()) else None,
    )


def _constituents(
    anatomy: Anatomy, view: AttentionView, x: Tensor, compared: Tensor
) -> tuple[float | None, float | None]:
    """The errors of the sum of the constituents' terms and of the sum of their shares; None where q, k are clipped."""
    layer, weights = anatomy.layers[view.layer], anatomy.weights(view.layer)
    if layer.clip_qkv is not None:
        return None, None
    mean = x.mean((0, 1), keepdim=True)
    position = x.mean(0, keepdim=True) - mean
    positions = torch.arange(x.shape[1], device=x.device)
    q, k = parts_of_queries_and_keys(layer, weights, (mean, position, x - mean - position), positions)
    terms = [grouped_products(a, b) * (layer.scale or 1.0) for a in q for b in k]
    terms += [] if view.bias is None else [view.bias.to(x.dtype).expand(terms[0].shape)]
    b = row_centered(view.logits(), compared)
    energy = b.square().sum((0, 2, 3), dtype=torch.float64)
    shares = [(term * b).sum((0, 2, 3), dtype=torch.float64) / energy for term in terms]
    whole = torch.stack(terms).sum(0)
    return relative_error(row_centered(whole, compared), b), float((torch.stack(shares).sum(0) - 1).abs().max())


def declared_visible(layer: Any, view: AttentionView) -> Tensor:
    """The keys that each query sees according to the anatomy, without padding."""
    i = torch.arange(view.queries, device=view.q.device)[:, None]
    j = torch.arange(view.keys, device=view.q.device)[None, :]
    seen = (j <= i) if layer.causal else torch.ones_like(j <= i)
    if layer.chunk is not None:
        seen = seen & (i // layer.chunk == j // layer.chunk)
    return seen if layer.window is None else seen & ((i - j).abs() < layer.window)


def relative_error(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest value of b; NaN if there is one."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
