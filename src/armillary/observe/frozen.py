"""Norms of the residual stream with the observed scale of each token kept: then they are linear."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.errors import ArmillaryError


def is_norm(module: nn.Module) -> bool:
    """Whether the module is a layer norm or a root-mean-square norm, by the name of its class."""
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())


@dataclass(frozen=True)
class FrozenNorm:
    """y = (x - mean x) * scale_t * gain + bias with each token's observed scale; an RMS norm takes no mean."""

    scale: Float[Tensor, "token 1"]
    centered: bool
    gain: Float[Tensor, "d"] | None
    bias: Float[Tensor, "d"] | None

    def linear(self, x: Float[Tensor, "part token d"], rows: slice) -> Float[Tensor, "part token d"]:
        """The norm of parts of the stream at these positions, without its bias."""
        y = (x - x.mean(-1, keepdim=True) if self.centered else x) * self.scale[rows]
        return y if self.gain is None else y * self.gain


def frozen_norm(name: str, module: nn.Module, x: Float[Tensor, "token d"], y: Float[Tensor, "token d"]) -> FrozenNorm:
    """The norm as it acted on x; an error if y is not x (centered or not) times a number per token and a gain."""
    precision = 64 * torch.finfo(y.dtype).eps
    x, y = x.double(), y.double()
    weight, bias = (_stored(module, part) for part in ("weight", "bias"))
    gains = [None] if weight is None else [weight, 1 + weight]
    shifted = y if bias is None else y - bias
    fits = []
    for centered in (False, True):
        for gain in gains:
            u = x - x.mean(-1, keepdim=True) if centered else x
            u = u if gain is None else u * gain
            scale = (u * shifted).sum(-1, keepdim=True) / u.square().sum(-1, keepdim=True).clamp(min=1e-300)
            error = float((shifted - scale * u).abs().max() / shifted.abs().max().clamp(min=1e-300))
            fits.append((error, FrozenNorm(scale, centered, gain, bias)))
    error, norm = min(fits, key=lambda fit: fit[0])
    if not error <= max(precision, 1e-5):
        raise ArmillaryError(f"{name} ({type(module).__name__}) is not a norm that is linear once its scale is known")
    return norm


def _stored(module: nn.Module, part: str) -> Float[Tensor, "d"] | None:
    tensor = getattr(module, part, None)
    return tensor.detach().double() if isinstance(tensor, Tensor) else None
