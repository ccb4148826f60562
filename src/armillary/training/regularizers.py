"""Regularizers of attention: the penalty LocAteR, and sigma-Reparam as a baseline.

LocAteR (Bao, Hataya and Karakida, Section 6) adds kappa1 tr(W'W) + kappa2 (tr W - target)^2 to the loss, W = W_q W_k'
the d x d matrix of a head, so that logit_ij = scale x_i' W x_j. The paper writes it for one head and trains models with
one head per layer. Here it is summed over heads and layers, not averaged, so the force on a head does not depend on the
number of heads. Its gradients are 2 kappa1 W_q W_k'W_k + 2 kappa2 (tr W - target) W_k for W_q, and with q and
k exchanged for W_k; the mean term is misprinted in the paper (`armillary theory L28`, L29).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import parametrize

from armillary.anatomy.adapter import Adapter
from armillary.anatomy.description import Anatomy, Layer
from armillary.anatomy.layout import find_stack
from armillary.anatomy.registry import adapter_for
from armillary.anatomy.source import describe, transformer_of
from armillary.anatomy.weights import Projection, bad, head_matrices
from armillary.errors import ArmillaryError
from armillary.theory.localization import localizing_target

# Imports inside functions: transformers takes seconds to import.

LOCALIZING_R = 5.0
"""tr(W) / lambda of the target 'localize': attention in a band of a fifth of the text (`armillary theory L30`)."""

# LocAteR --------------------------------------------------------------------------------------------------------


class Terms(NamedTuple):
    """tr W and tr(W'W), the mean and the scale of the eigenspectrum of W = W_q W_k', for every head of a layer."""

    trace: Float[Tensor, "head"]
    frobenius: Float[Tensor, "head"]


def head_terms(q: Float[Tensor, "head e d"], k: Float[Tensor, "key_head e d"]) -> Terms:
    """The terms of every head by e x e products: tr(W'W) = <W_q'W_q, W_k'W_k> and tr W = <W_q, W_k>.

    q and k hold W_q' and W_k'. Each query head counts once, with the key head that it shares.
    """
    shared = (len(k), -1)
    trace = (q.unflatten(0, shared) * k[:, None]).sum((-2, -1))
    frobenius = ((q @ q.mT).unflatten(0, shared) * (k @ k.mT)[:, None]).sum((-2, -1))
    return Terms(trace.flatten(), frobenius.flatten())


class LocAteR:
    """scale tr(W'W) + mean (tr W - target)^2, summed over the heads that the model's anatomy describes.

        penalty = LocAteR(model, scale=1e-3, mean=1e-3)
        loss = model(input_ids=ids, labels=ids).loss + penalty()

    Units: for an x of unit covariance (x is what attention reads, after the norm) r = tr(W) / lambda is the mean logit
    of a token with itself, lambda = 1 / logit scale. The target 'localize' is 5 lambda in each layer: r = 5 is where
    attention localizes, which needs |r| > 2. The paper uses target=1.0, which does not localize (`armillary theory
    L30`). The trace at the minimum is below the target: W has e = head width eigenvalues `locater_minimizer(scale,
    mean, e, target)`, the others are zero (`armillary theory L31` with the rank e in place of d).

    Only W_q and W_k count: no biases, no rotation (W is then the matrix of a token's logit with itself), and no norm of
    q and k (with one, the logits do not depend on the size of W, and the penalty is a kind of weight decay). Layers
    that share their weights count once. Half-precision weights are summed in float32. Each call reads the current
    weights, so the penalty stays valid when they are moved, loaded or reparametrized.
    """

    def __init__(
        self, model: Any, scale: float | int, mean: float | int, target: str | float | int = "localize"
    ) -> None:
        for name, value in (("scale", scale), ("mean", mean)):
            if not (isfinite(value) and value >= 0):
                raise ArmillaryError(
                    f"{name}={value} was given to LocAteR; it must be a finite number, 0 or more",
                    given=value,
                    expected="a finite number, 0 or more",
                )
        if target != "localize" and (isinstance(target, str) or not isfinite(target)):
            raise ArmillaryError(
                f"target={target!r} was given to LocAteR; it can be 'localize' or a finite number (1.0 in the paper)"
            )
        self.scale, self.mean = scale, mean
        self._heads: dict[int, _StoredHeads] = {}
        self.targets: dict[int, float] = {}
        anatomy, adapter, blocks = _blocks(model)
        seen: set[str] = set()
        for layer, block in zip(anatomy.layers, blocks, strict=True):
            if layer.block not in seen:
                seen.add(layer.block)
                self._heads[layer.index] = _stored_heads(adapter, layer, anatomy.d_model, block)
                assert layer.scale is not None  # every adapter sets it
                layer_target = localizing_target(LOCALIZING_R, 1 / layer.scale) if target == "localize" else target
                self.targets[layer.index] = float(layer_target)

    def __call__(self) -> Float[Tensor, ""]:
        """The penalty, with gradients back to W_q and W_k."""
        parts = []
        for layer, heads in self._heads.items():
            trace, frobenius = heads.terms()
            parts.append(self.scale * frobenius.sum() + self.mean * (trace - self.targets[layer]).square().sum())
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()

    @torch.no_grad()
    def terms(self) -> dict[int, Terms]:
        """Current tr W and tr(W'W) of every head, by layer, without gradients; shared layers appear once."""
        return {layer: heads.terms() for layer, heads in self._heads.items()}

    def belongs_to(self, model: nn.Module) -> bool:
        """Whether the penalized matrices belong to this (possibly wrapped) model."""
        first = next(iter(self._heads.values())).q.module
        return any(module is first for module in model.modules())


@dataclass(frozen=True)
class _HeadRows:
    """Which groups of e consecutive output rows of a module's weight belong to the heads."""

    module: Any
    numbers: tuple[int, ...]
    e: int
    transposed: bool

    def read(self) -> Float[Tensor, "head e d"]:
        """All heads in one view or one copy: backward of a view per head would allocate a whole matrix for each."""
        weight = self.module.weight
        rows = (weight.T if self.transposed else weight).unflatten(0, (-1, self.e))
        first, count = self.numbers[0], len(self.numbers)
        if self.numbers == tuple(range(first, first + count)):
            rows = rows.narrow(0, first, count)
        else:
            rows = rows.index_select(0, torch.tensor(self.numbers, device=rows.device))
        full: Tensor = rows.float() if rows.dtype.itemsize < 4 else rows
        return full


@dataclass(frozen=True)
class _StoredHeads:
    """The rows of W_q and W_k of one layer's heads."""

    q: _HeadRows
    k: _HeadRows

    def terms(self) -> Terms:
        if self.q.module is self.k.module:  # fused: read once for both
            fused = _HeadRows(self.q.module, self.q.numbers + self.k.numbers, self.q.e, self.q.transposed)
            q, k = fused.read().split([len(self.q.numbers), len(self.k.numbers)])
        else:
            q, k = self.q.read(), self.k.read()
        with torch.autocast(q.device.type, enabled=False):  # the traces would be inexact in bfloat16
            return head_terms(q, k)


def _stored_heads(adapter: Adapter, layer: Layer, d: int, block: nn.Module) -> _StoredHeads:
    if layer.latent:
        raise ArmillaryError(
            f"W_q and W_k of {adapter.family} models are products of stored matrices (multi-head latent attention), "
            "which LocAteR does not regularize"
        )
    shape = (d, layer.head_width, layer.heads, layer.kv_heads)

    def read(name: str) -> Tensor | None:
        return _stored_weight(block, name)

    def head_rows(at: Projection, part: str, count: int) -> _HeadRows:
        try:
            head_matrices(read, at, part, shape)  # raises if the weight cannot be used
        except ArmillaryError as error:
            raise ArmillaryError(f"in layer {layer.index} ({layer.block}): {error}") from error
        numbers = tuple(at.rows(part, head, layer.heads, layer.kv_heads) for head in range(count))
        return _HeadRows(block.get_submodule(at.name), numbers, layer.head_width, at.transposed)

    return _StoredHeads(head_rows(adapter.q, "q", layer.heads), head_rows(adapter.k, "k", layer.kv_heads))


def _stored_weight(block: nn.Module, name: str) -> Tensor | None:
    """A weight that its module stores itself, plain or parametrized; None otherwise (a LoRA stores it elsewhere)."""
    path, _, leaf = name.rpartition(".")
    try:
        module = block.get_submodule(path)
    except AttributeError:
        return None
    if leaf not in module._parameters and not parametrize.is_parametrized(module, leaf):
        return None
    weight: Tensor | None = getattr(module, leaf)
    return weight


def _blocks(model: Any) -> tuple[Anatomy, Adapter, list[nn.Module]]:
    """The anatomy, its adapter, and the block of every layer."""
    anatomy = describe(transformer_of(model))
    adapter = adapter_for(anatomy.family)
    if adapter is None:
        raise ArmillaryError(anatomy.missing)
    return anatomy, adapter, find_stack(model, anatomy).blocks


class LocAteRTrainerMixin:
    """A transformers Trainer that adds the penalty to the loss it trains on.

        class LocAteRTrainer(LocAteRTrainerMixin, Trainer): ...
        LocAteRTrainer(model=model, args=args, train_dataset=data, penalty=LocAteR(model, scale=1e-3, mean=1e-3))

    The logged training loss includes the penalty; the evaluation loss does not. Each optimizer step adds the penalty
    once, whatever the number of accumulated batches.
    """

    penalty: LocAteR
    _penalized: Any = None

    def __init__(self, *args: Any, penalty: LocAteR, **kwargs: Any) -> None:
        self.penalty = penalty
        super().__init__(*args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Tensor | int | None = None
    ) -> Any:
        trainer: Any = super()
        loss, outputs = trainer.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if model.training:
            if model is not self._penalized and not self.penalty.belongs_to(model):
                raise ArmillaryError(
                    "the penalty belongs to another model than the one in training", advice="make it with this model"
                )
            self._penalized = model
            loss = loss + self.penalty() / self._batches_to_share(num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _batches_to_share(self, num_items_in_batch: Tensor | int | None) -> int:
        """1 if the Trainer averages the losses of a step's batches; the number of batches if it sums them."""
        trainer: Any = self
        summed = getattr(trainer, "loss_is_scaled_for_ga", None)
        if summed is None:
            counted = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
            summed = counted or trainer.compute_loss_func is not None
        return int(trainer.current_gradient_accumulation_steps) if summed else 1


# sigma-Reparam --------------------------------------------------------------------------------------------------


class SigmaReparam(nn.Module):
    """W_hat = (gamma / sigma(W)) W, sigma(W) the largest singular value and gamma a learned scalar, initially 1.

    u and v start as the singular vectors of W; each forward in training updates them by one power iteration, and
    sigma = u' W v with u and v constant for the gradient. They are saved with the weights, so a run resumes exactly.
    """

    u: Float[Tensor, "n"]
    v: Float[Tensor, "m"]

    def __init__(self, weight: Float[Tensor, "n m"]) -> None:
        super().__init__()
        left, _, right = torch.linalg.svd(weight.detach().float(), full_matrices=False)
        self.gamma = nn.Parameter(weight.new_ones(()))
        self.register_buffer("u", left[:, 0].to(weight.dtype))
        self.register_buffer("v", right[0].to(weight.dtype))

    def forward(self, weight: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        with torch.autocast(weight.device.type, enabled=False):  # sigma would be inexact in bfloat16
            if self.training:
                with torch.no_grad():
                    self.u.copy_(normalize(weight @ self.v, dim=0))
                    self.v.copy_(normalize(self.u @ weight, dim=0))
            u, v = self.u.clone(), self.v.clone()  # the next forward may update them before this backward
            return weight * (self.gamma / (u @ (weight @ v)))


def sigma_reparam(model: Any, *, only: str = "all") -> None:
    """Reparametrize linear layers in place as Zhai et al. (2023): W_hat = (gamma / sigma(W)) W, initially gamma = 1.

    'all' takes every Linear and Conv1D of the blocks, as published; 'attention' the projections q, k, v and o. A fused
    matrix has one sigma. Embeddings and unembedding are not changed. Every sigma becomes 1, so the model's output
    changes: this is for training from scratch. Make the optimizer afterward (gamma is a new parameter), call this
    before loading a state_dict to resume from, and `merge_sigma_reparam` before saving, describing or scanning: until
    then the parameters have other names.
    """
    if only not in ("all", "attention"):
        raise ArmillaryError(
            f"only={only!r} is not known",
            advice="it can be 'all' or 'attention'",
            given=only,
            expected=("all", "attention"),
        )
    modules = dict(linear_layers(model, only))
    for name, module in modules.items():
        if parametrize.is_parametrized(module, "weight"):
            raise ArmillaryError(f"{name} is already reparametrized", advice="call merge_sigma_reparam(model) first")
        weight = module._parameters.get("weight")
        if weight is None or not weight.is_floating_point():
            raise ArmillaryError(f"{name} has no plain weight", advice="merge a LoRA, or load the model unquantized")
        if bad(weight) or not weight.any():
            raise ArmillaryError(
                f"the weight of {name} is zero or not finite, so its largest singular value cannot be 1"
            )
    for module in modules.values():
        parametrize.register_parametrization(module, "weight", SigmaReparam(module.weight))


def merge_sigma_reparam(model: nn.Module) -> None:
    """Replace W by W_hat (as in evaluation) and restore plain parameters under their old names.

    A model in training can be saved by merging a copy: merge_sigma_reparam(copy.deepcopy(model)).
    """
    reparametrized = [module for module in model.modules() if _is_sigma(module)]
    if not reparametrized:
        raise ArmillaryError(f"this {type(model).__name__} has no layer that sigma_reparam changed")
    for module in reparametrized:
        module.get_submodule("parametrizations").eval()  # another power iteration would change W_hat
        # torch takes the property 'weight' from the module's class, which copies of the module share
        current: Any = type(module)
        module.__class__ = type(current.__name__, current.__bases__, dict(vars(current)))
        parametrize.remove_parametrizations(module, "weight")


def is_reparametrized(model: nn.Module) -> bool:
    """Whether sigma_reparam changed this model and was not merged yet."""
    return any(_is_sigma(module) for module in model.modules())


def _is_sigma(module: nn.Module) -> bool:
    if not parametrize.is_parametrized(module, "weight"):
        return False
    chain: Any = module.get_submodule("parametrizations.weight")
    return isinstance(chain[0], SigmaReparam)


def linear_layers(model: Any, only: str) -> Iterator[tuple[str, Any]]:
    """The linear layers of the blocks, or of their attention alone, with their names."""
    from transformers.pytorch_utils import Conv1D

    _, adapter, blocks = _blocks(model)
    names = {id(module): name for name, module in model.named_modules()}
    for block in blocks:
        if only == "attention":
            modules = [block.get_submodule(at.name) for at in (adapter.q, adapter.k, adapter.v, adapter.o)]
        else:
            modules = [module for module in block.modules() if isinstance(module, nn.Linear | Conv1D)]
        for module in modules:
            yield names[id(module)], module
