"""Both ends of a model: what every token enters layer 0 as (E), and what a direction adds to its logit (U), in rows."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.anatomy.tensors import Tensors, rows_of, same_tensor
from armillary.errors import ArmillaryError

ReadRows = Callable[[str, int, int], Tensor]
"""Rows start .. stop - 1 of the stored matrix of that name."""


@dataclass(frozen=True)
class Norm:
    """A norm of the residual stream: whether it takes the mean off, its gain and its bias."""

    centers: bool
    gain: Float[Tensor, "d"]
    bias: Float[Tensor, "d"] | None
    eps: float


@dataclass(frozen=True)
class Ends:
    """`embedded(start, stop)` are rows of E, `unembedded(start, stop)` columns of U, both as (token, d), in float32.

    E is the embedding with its scale and norm, without positions; U the unembedding with the final norm's gain and
    centering: the logits are norm(h) U up to the token's own scale, and a bias. They are read a few rows at a time.
    """

    tokens: int
    width: int
    scale: float
    embedding_norm: Norm | None
    final_norm: Norm | None
    names: tuple[str, str]
    """The stored embedding and unembedding; the same where they are tied."""
    _read: ReadRows

    def embedded(self, start: int, stop: int) -> Float[Tensor, "token d"]:
        rows = self._read(self.names[0], start, stop).cpu().float() * self.scale
        norm = self.embedding_norm
        if norm is not None:
            rows = rows - rows.mean(-1, keepdim=True) if norm.centers else rows
            rows = rows / (rows.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.gain.float()
            rows = rows if norm.bias is None else rows + norm.bias.float()
        return rows

    def unembedded(self, start: int, stop: int) -> Float[Tensor, "token d"]:
        rows = self._read(self.names[1], start, stop).cpu().float()
        norm = self.final_norm
        if norm is not None:
            rows = rows * norm.gain.float()
            rows = rows - rows.mean(-1, keepdim=True) if norm.centers else rows
        return rows


def ends_of(
    model: nn.Module, inner: Any, blocks: str, width: int, read: Callable[[str], Tensor | None], rows: ReadRows
) -> Ends:
    """The ends of a model, loaded or on the meta device; `inner` is its transformers model, `blocks` names its blocks.

    Raises where a token does not enter as a row of one matrix, or logits are not norm(h) times another.
    """
    entering, leaving = inner.get_input_embeddings(), inner.get_output_embeddings()
    if not isinstance(entering, nn.Embedding) or entering.embedding_dim != width:
        raise ArmillaryError("its tokens do not enter as rows of one matrix of the model's width")
    if not isinstance(leaving, nn.Linear) or leaving.in_features != width:
        raise ArmillaryError("it has no output head that multiplies the last residual stream with one matrix")
    named = {id(module): name for name, module in model.named_modules()}
    first, last = (f"{named[id(module)]}.weight" for module in (entering, leaving))
    tied = leaving.weight is entering.weight or bool(getattr(inner.config, "tie_word_embeddings", False))
    before, after = _norms(model, blocks, width)
    return Ends(
        tokens=int(entering.num_embeddings),
        width=width,
        scale=_scale(entering, inner.config),
        embedding_norm=None if before is None else _norm(model, before, width, read),
        final_norm=None if after is None else _norm(model, after, width, read),
        names=(first, first if tied else last),
        _read=rows,
    )


def _norms(model: nn.Module, blocks: str, width: int) -> tuple[str | None, str | None]:
    """The names of the norms beside the list of blocks: of the embeddings, before it, and the final one, after it."""
    parent = blocks.rpartition(".")[0]
    children = list(model.get_submodule(parent).named_children())
    at = next(place for place, (name, _) in enumerate(children) if name == blocks.rpartition(".")[2])

    def norm_among(some: list[tuple[str, nn.Module]]) -> str | None:
        names = [name for name, module in some if _is_norm(module, width)]
        return f"{parent}.{names[-1]}".removeprefix(".") if names else None

    before = [(name, module) for name, module in children[:at] if "embed" in name]
    rest = [entry for entry in children if entry not in before]
    return norm_among(before), norm_among(rest)


def _is_norm(module: nn.Module, width: int) -> bool:
    weight = getattr(module, "weight", None)
    if "norm" not in type(module).__name__.lower():
        return False
    return tuple(weight.shape) == (width,) if isinstance(weight, Tensor) else not list(module.parameters())


def _norm(model: nn.Module, name: str, width: int, read: Callable[[str], Tensor | None]) -> Norm:
    """The norm of that name; what it does with its weight is found by running a copy of it on a few numbers."""
    module = copy.deepcopy(model.get_submodule(name)).to_empty(device="cpu").float()
    x = torch.linspace(1.0, 2.0, width)[None]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        has_gain = any(True for _ in module.parameters())
        offset = float(has_gain and module(x).abs().max() > 0)  # Gemma stores the gain minus one
        if has_gain:
            module.get_parameter("weight").fill_(1.0 - offset)
        centers = bool(module(x).mean().abs() < 1e-3)
    weight, bias = read(f"{name}.weight") if has_gain else torch.ones(width), read(f"{name}.bias")
    if weight is None:
        raise ArmillaryError(f"it has no weight {name}.weight")
    eps = next((float(getattr(module, key)) for key in ("eps", "variance_epsilon") if hasattr(module, key)), 1e-6)
    return Norm(centers, weight.cpu().float() + offset, None if bias is None else bias.cpu(), eps)


def _scale(entering: nn.Embedding, config: Any) -> float:
    """What the model multiplies embeddings with."""
    own = getattr(entering, "scalar_embed_scale", getattr(entering, "embed_scale", None))
    if own is not None:
        return float(config.hidden_size**0.5) if isinstance(own, Tensor) and own.is_meta else float(own)
    if config.model_type in ("gemma", "gemma2"):
        return float(config.hidden_size**0.5)
    return float(getattr(config, "embedding_multiplier", None) or getattr(config, "scale_emb", None) or 1.0)


def stored_ends(empty: nn.Module, inner: Any, blocks: str, width: int, checkpoint: Tensors) -> Ends:
    """The ends of a checkpoint, whose names are those of the model that transformers would make of it (`empty`)."""
    known = checkpoint.names()

    def stored_name(name: str) -> str:
        names = same_tensor(name, known)
        if len(names) != 1:
            raise ArmillaryError(f"its checkpoint has {'several tensors' if names else 'no tensor'} named {name!r}")
        return names[0]

    def read(name: str) -> Tensor | None:
        return checkpoint.read(stored_name(name)) if same_tensor(name, known) else None

    def rows(name: str, start: int, stop: int) -> Tensor:
        tensor = rows_of(checkpoint, stored_name(name), start, stop)
        assert tensor is not None
        return tensor

    return ends_of(empty, inner, blocks, width, read, rows)
