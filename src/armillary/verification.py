"""Does Armillary see this model right? The tap and the anatomy checked against the model itself, layer by layer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from armillary.anatomy.rebuild import rebuilt_logits
from armillary.errors import ArmillaryError
from armillary.tap import Tap
from armillary.view import AttentionView

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Relative error that the model's own rounding explains, by its dtype."""


@dataclass(frozen=True)
class LayerCheck:
    """Errors of one layer relative to the largest value of what is compared; None where there is no such check.

    output: the tapped attention times v against what the layer computed. logits: those rebuilt from the weights and
    the attention input against the tapped ones, on visible keys.
    """

    layer: int
    output: float | None
    logits: float | None


@dataclass(frozen=True)
class Verification:
    """Whether the tap leaves the model's outputs bit for bit the same, and how far each layer's checks are off."""

    family: str
    identical: bool
    tolerance: float
    layers: tuple[LayerCheck, ...]
    missing: str = ""

    @property
    def worst_output(self) -> float | None:
        return max((check.output for check in self.layers if check.output is not None), default=None)

    @property
    def worst_logits(self) -> float | None:
        return max((check.logits for check in self.layers if check.logits is not None), default=None)

    @property
    def passed(self) -> bool:
        """Whether everything that could be checked agrees, and the logits could be checked."""
        errors = [self.worst_output, self.worst_logits]
        known = [error for error in errors if error is not None]
        return self.identical and bool(known) and max(known) <= self.tolerance


@torch.no_grad()
def verify(model: nn.Module, tokens: Tensor | None = None, **inputs: Any) -> Verification:
    """Run the model with and without the tap on `tokens` (by default 2 texts of random ones) and compare."""
    tap = Tap(model, on_attention=lambda view: checks.append(_check(tap, view)))
    checks: list[LayerCheck] = []
    if tokens is None:
        tokens = _some_tokens(tap)
    given = {"input_ids": tokens.to(next(model.parameters()).device), **inputs}
    if "decoder_input_ids" not in given and tap._config.is_encoder_decoder and hasattr(model, "decoder"):
        given["decoder_input_ids"] = given["input_ids"]
    was_training = model.training
    model.eval()
    try:
        plain = model(**given)
        with tap:
            tapped = model(**given)
    finally:
        model.train(was_training)
    dtype = next(model.parameters()).dtype
    return Verification(
        family=tap.anatomy.family,
        identical=torch.equal(plain[0], tapped[0]),
        tolerance=TOLERANCE.get(dtype, 1e-1),
        layers=tuple(checks),
        missing=tap.anatomy.missing,
    )


def _some_tokens(tap: Tap) -> Tensor:
    if not tap.anatomy.vocabulary:
        raise ArmillaryError("the configuration gives no vocabulary size: pass tokens of your own")
    generator = torch.Generator().manual_seed(0)
    length = min(32, tap.anatomy.max_positions or 32)
    return torch.randint(min(10, tap.anatomy.vocabulary - 1), tap.anatomy.vocabulary, (2, length), generator=generator)


def _check(tap: Tap, view: AttentionView) -> LayerCheck:
    output = None if view.output is None else relative_error(view.mixed_values(), view.output.float())
    logits = None
    if not tap.anatomy.missing and view.x is not None:
        rebuilt = rebuilt_logits(tap.anatomy, view.layer, view.x.float())
        seen = view.visible()
        logits = relative_error(*(row_centred(b, seen) for b in (rebuilt, view.logits())))
    return LayerCheck(view.layer, output, logits)


def relative_error(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest value of b."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def row_centred(logits: Tensor, seen: Tensor) -> Tensor:
    """Logits less their mean over the keys each row sees, zero elsewhere: what is constant in a row cancels in the
    softmax, and families write their ALiBi bias with different constants."""
    kept = logits * seen
    mean = kept.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
    return (logits - mean) * seen
