"""What steers attention while a model trains: the penalty LocAteR, and sigma-Reparam as a baseline.

LocAteR (Bao, Hataya and Karakida, Section 6) adds kappa1 tr(W'W) + kappa2 (tr W - target)^2 to the loss, W = W_q W_k'
the d x d matrix of a head, so that logit_ij = scale x_i' W x_j. The paper writes it for one head and trains models with
one head per layer. Here it is summed over heads and layers, not averaged: how hard a head is pulled does not depend on
how many others there are. Its gradients are 2 kappa1 W_q W_k'W_k + 2 kappa2 (tr W - target) W_k for W_q, and with q and
k exchanged for W_k; the mean term is misprinted in the paper (LEDGER L28, L29).
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

from armillary.anatomy.adapter import Adapter, adapter_for
from armillary.anatomy.description import Anatomy, Layer
from armillary.anatomy.source import describe, transformer_of
from armillary.anatomy.weights import Projection, bad, head_matrices
from armillary.errors import ArmillaryError
from armillary.layout import find_stack
from armillary.theory.localization import localising_target

LOCALISING_R = 5.0
"""tr(W) / lambda of the target 'localise': attention in a band of a fifth of the text (LEDGER L30)."""

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
    of a token with itself, lambda = 1 / logit scale. The target 'localise' is 5 lambda in each layer: r = 5 is where
    attention localises, which needs |r| > 2. The paper's is target=1.0, which does not (LEDGER L30); any number can be
    given. The trace at the minimum falls short of it: W has e = head width eigenvalues `locater_minimiser(scale, mean,
    e, target)` and else zeros (LEDGER L31 with the rank e in place of d).

    Only W_q and W_k count: no biases, no rotation (W is then the matrix of a token's logit with itself), and no norm of
    q and k (where there is one, the size of W does not reach the logits, and the penalty is a kind of weight decay).
    Layers that share their weights count once. Weights in half precision are summed in float32. Each call asks the
    model's modules for their weights, so moving, loading or reparametrising them needs no new penalty.
    """

    def __init__(
        self, model: Any, scale: float | int, mean: float | int, target: str | float | int = "localise"
    ) -> None:
        for name, value in (("scale", scale), ("mean", mean)):
            if not (isfinite(value) and value >= 0):
                raise ArmillaryError(f"{name}={value} was given to LocAteR; it must be a finite number, 0 or more")
        if target != "localise" and (isinstance(target, str) or not isfinite(target)):
            raise ArmillaryError(
                f"target={target!r} was given to LocAteR; it can be 'localise' or a finite number (1.0 in the paper)"
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
                assert layer.scale is not None  # an adapter knows it
                chosen = localising_target(LOCALISING_R, 1 / layer.scale) if target == "localise" else target
                self.targets[layer.index] = float(chosen)

    def __call__(self) -> Float[Tensor, ""]:
        """The penalty, with gradients back to W_q and W_k."""
        parts = []
        for layer, heads in self._heads.items():
            trace, frobenius = heads.terms()
            parts.append(self.scale * frobenius.sum() + self.mean * (trace - self.targets[layer]).square().sum())
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()

    @torch.no_grad()
    def terms(self) -> dict[int, Terms]:
        """tr W and tr(W'W) of every head now, by layer, without gradients; layers that share weights appear once."""
        return {layer: heads.terms() for layer, heads in self._heads.items()}

    def belongs_to(self, model: nn.Module) -> bool:
        """Whether the penalised matrices are in this model, which may be wrapped."""
        first = next(iter(self._heads.values())).q.module
        return any(module is first for module in model.modules())


@dataclass(frozen=True)
class _Runs:
    """Which runs of e outputs of a module's weight are the heads'."""

    module: Any
    numbers: tuple[int, ...]
    e: int
    transposed: bool

    def read(self) -> Float[Tensor, "run e d"]:
        """The runs as rows, by one view or one copy for all: a view per head would cost a whole matrix in backward."""
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
    """Where one layer keeps the queries and keys of its heads."""

    q: _Runs
    k: _Runs

    def terms(self) -> Terms:
        if self.q.module is self.k.module:  # fused: read once for both
            both = _Runs(self.q.module, self.q.numbers + self.k.numbers, self.q.e, self.q.transposed)
            q, k = both.read().split([len(self.q.numbers), len(self.k.numbers)])
        else:
            q, k = self.q.read(), self.k.read()
        with torch.autocast(q.device.type, enabled=False):  # bfloat16 would lose the traces
            return head_terms(q, k)


def _stored_heads(adapter: Adapter, layer: Layer, d: int, block: nn.Module) -> _StoredHeads:
    shape = (d, layer.head_width, layer.heads, layer.kv_heads)

    def read(name: str) -> Tensor | None:
        return _own(block, name)

    def runs(at: Projection, part: str, count: int) -> _Runs:
        try:
            head_matrices(read, at, part, shape)  # says what is wrong with a weight that cannot be used
        except ArmillaryError as error:
            raise ArmillaryError(f"in layer {layer.index} ({layer.block}): {error}") from error
        numbers = tuple(at.rows(part, head, layer.heads, layer.kv_heads) for head in range(count))
        return _Runs(block.get_submodule(at.name), numbers, layer.head_width, at.transposed)

    return _StoredHeads(runs(adapter.q, "q", layer.heads), runs(adapter.k, "k", layer.kv_heads))


def _own(block: nn.Module, name: str) -> Tensor | None:
    """A weight that its module keeps under its own name, plain or parametrised (a LoRA keeps it elsewhere)."""
    path, _, leaf = name.rpartition(".")
    try:
        module = block.get_submodule(path)
    except AttributeError:
        return None
    if leaf not in module._parameters and not parametrize.is_parametrized(module, leaf):
        return None
    found: Tensor | None = getattr(module, leaf)
    return found


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

    The loss that it logs has the penalty in it; the loss of an evaluation has not. Each optimizer step sees the penalty
    once, however many batches it accumulates.
    """

    penalty: LocAteR
    _penalised: Any = None

    def __init__(self, *args: Any, penalty: LocAteR, **kwargs: Any) -> None:
        self.penalty = penalty
        super().__init__(*args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Tensor | int | None = None
    ) -> Any:
        trainer: Any = super()
        loss, outputs = trainer.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if model.training:
            if model is not self._penalised and not self.penalty.belongs_to(model):
                raise ArmillaryError(
                    "the penalty was made for another model than the one that is trained: make it of this one"
                )
            self._penalised = model
            loss = loss + self.penalty() / self._batches_to_share(num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _batches_to_share(self, num_items_in_batch: Tensor | int | None) -> int:
        """1 where the Trainer divides each loss by the batches of a step; their number where it takes the sum."""
        trainer: Any = self
        summed = getattr(trainer, "loss_is_scaled_for_ga", None)
        if summed is None:
            counted = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
            summed = counted or trainer.compute_loss_func is not None
        return int(trainer.current_gradient_accumulation_steps) if summed else 1


# sigma-Reparam --------------------------------------------------------------------------------------------------


class SigmaReparam(nn.Module):
    """W_hat = (gamma / sigma(W)) W, sigma(W) the largest singular value and gamma a learned number, 1 at first.

    u and v are the singular vectors of the first W; each forward in training turns them by one power iteration, and
    sigma = u' W v with u and v held fixed for the gradient. They are saved with the weights, so a run resumes exactly.
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
        with torch.autocast(weight.device.type, enabled=False):  # bfloat16 would blur sigma
            if self.training:
                with torch.no_grad():
                    self.u.copy_(normalize(weight @ self.v, dim=0))
                    self.v.copy_(normalize(self.u @ weight, dim=0))
            u, v = self.u.clone(), self.v.clone()  # the next forward may turn them before this one's backward
            return weight * (self.gamma / (u @ (weight @ v)))


def sigma_reparam(model: Any, *, only: str = "all") -> None:
    """Reparametrise linear layers in place as Zhai et al. (2023): W_hat = (gamma / sigma(W)) W, gamma = 1 at first.

    'all' takes every Linear and Conv1D of the blocks, as published; 'attention' the projections to q, k, v and back. A
    fused matrix has one sigma. Embeddings and the word predictor stay as they are. Every sigma becomes 1, so the model
    computes something else than before: this is for training from scratch. Make the optimizer afterwards (gamma is a
    new parameter), call this before loading a state_dict to resume from, and `merge_sigma_reparam` before saving a
    folder, describing or scanning: until then the parameters have other names.
    """
    if only not in ("all", "attention"):
        raise ArmillaryError(f"only={only!r} is not known: it can be 'all' or 'attention'")
    found = dict(_linear_layers(model, only))
    for name, module in found.items():
        if parametrize.is_parametrized(module, "weight"):
            raise ArmillaryError(f"{name} is reparametrised already: merge_sigma_reparam(model) undoes it first")
        weight = module._parameters.get("weight")
        if weight is None or not weight.is_floating_point():
            raise ArmillaryError(f"{name} has no plain weight: merge a LoRA, or load the model unquantised")
        if bad(weight) or not weight.any():
            raise ArmillaryError(
                f"the weight of {name} is zero or not finite, so its largest singular value cannot be 1"
            )
    for module in found.values():
        parametrize.register_parametrization(module, "weight", SigmaReparam(module.weight))


def merge_sigma_reparam(model: nn.Module) -> None:
    """Put W_hat in place of W, as evaluation sees it, and make the parameters plain again, under their old names.

    A model in training can be saved by merging a copy: merge_sigma_reparam(copy.deepcopy(model)).
    """
    found = [module for module in model.modules() if _is_sigma(module)]
    if not found:
        raise ArmillaryError(f"this {type(model).__name__} has no layer that sigma_reparam changed: nothing to merge")
    for module in found:
        module.get_submodule("parametrizations").eval()  # a power iteration now would give another W_hat
        # torch takes the property 'weight' from the module's class, which copies of the module share
        shared: Any = type(module)
        module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))
        parametrize.remove_parametrizations(module, "weight")


def _is_sigma(module: nn.Module) -> bool:
    if not parametrize.is_parametrized(module, "weight"):
        return False
    chain: Any = module.get_submodule("parametrizations.weight")
    return isinstance(chain[0], SigmaReparam)


def _linear_layers(model: Any, only: str) -> Iterator[tuple[str, Any]]:
    """The linear layers of the blocks, or of their attention alone, by name; those that layers share come once."""
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
