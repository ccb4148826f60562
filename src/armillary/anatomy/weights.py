"""W_q, W_k, W_v and W_o of every head, oriented one way (q = x W_q + b_q), as views of the stored matrices."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.errors import ArmillaryError

Read = Callable[[str], Tensor | None]
"""Returns the stored tensor of that name, or None if there is none (a bias, say)."""

Rows = Callable[[str, int, int, int], int]
"""rows(part, head, heads, kv_heads): the index of this head's run of head_width outputs in the stored matrix."""


def separate(part: str, head: int, heads: int, kv_heads: int) -> int:
    """q, k and v each have a matrix of their own: heads in order."""
    return head


def stacked(part: str, head: int, heads: int, kv_heads: int) -> int:
    """One matrix: all of q, then all of k, then all of v."""
    return {"q": 0, "k": heads, "v": heads + kv_heads}[part] + head


def with_gate(part: str, head: int, heads: int, kv_heads: int) -> int:
    """One matrix: q of head 0, then its output gate, then q of head 1, ..."""
    return 2 * head + (part == "gate")


def per_head(part: str, head: int, heads: int, kv_heads: int) -> int:
    """One matrix: q, k, v of head 0, then of head 1, ..."""
    return 3 * head + "qkv".index(part)


def per_group(part: str, head: int, heads: int, kv_heads: int) -> int:
    """One matrix: for each key head its queries, its key, its value."""
    group = heads // kv_heads
    if part == "q":
        return (head // group) * (group + 2) + head % group
    return head * (group + 2) + group + "kv".index(part)


def in_four_parts(part: str, head: int, heads: int, kv_heads: int) -> int:
    """One matrix in four parts, each with q, v and k of a quarter of the heads (CodeGen)."""
    if heads % 4:
        raise ArmillaryError(f"CodeGen stores its heads in four equal parts, but there are {heads} heads")
    quarter = heads // 4
    return (head // quarter) * 3 * quarter + "qvk".index(part) * quarter + head % quarter


@dataclass(frozen=True)
class NormWeights:
    """Gain and bias of a q or k norm, for each head."""

    weight: tuple[Float[Tensor, "e"], ...]
    bias: tuple[Float[Tensor, "e"], ...] | None


@dataclass(frozen=True)
class Latent:
    """Where q or k (and v) come from a vector c = x down + bias that is divided by its root mean square.

    The first `channels` channels of every head are then multiplied by 1 / rms(c) of the token; all else is linear.
    """

    down: Float[Tensor, "d r"]
    bias: Float[Tensor, "r"] | None
    eps: float
    channels: int


@dataclass(frozen=True)
class LayerWeights:
    """One layer's attention weights: q[a], k[g], v[g] are (d, e), o[a] is (e, d), for head a and key head g.

    q_a = x q[a] + q_bias[a]; the layer adds sum_a z_a o[a] + o_bias to the stream, z_a the head's weighted values, and
    with a gate these times sigmoid(x gate[a] + gate_bias[a]). With a latent, q[a] is the product of the matrices down
    and up, with the norm's gain between them.
    """

    q: tuple[Float[Tensor, "d e"], ...]
    k: tuple[Float[Tensor, "d e"], ...]
    v: tuple[Float[Tensor, "d e"], ...]
    o: tuple[Float[Tensor, "e d"], ...]
    q_bias: tuple[Float[Tensor, "e"], ...] | None = None
    k_bias: tuple[Float[Tensor, "e"], ...] | None = None
    v_bias: tuple[Float[Tensor, "e"], ...] | None = None
    o_bias: Float[Tensor, "d"] | None = None
    q_norm: NormWeights | None = None
    k_norm: NormWeights | None = None
    sinks: Float[Tensor, "head"] | None = None
    relative_bias: Float[Tensor, "bucket head"] | None = None
    gate: tuple[Float[Tensor, "d e"], ...] | None = None
    gate_bias: tuple[Float[Tensor, "e"], ...] | None = None
    q_latent: Latent | None = None
    k_latent: Latent | None = None
    relative_keys: Float[Tensor, "head bucket e"] | None = None
    relative_queries: Float[Tensor, "head bucket e"] | None = None

    def not_finite(self) -> list[str]:
        """The weights that contain NaN or infinity, as 'W_q of head 3'."""
        names = []
        for part, what in (("q", "head"), ("k", "key head"), ("v", "key head"), ("o", "head")):
            for letter, values in (("W", getattr(self, part)), ("b", getattr(self, f"{part}_bias"))):
                if isinstance(values, tuple):
                    names += [f"{letter}_{part} of {what} {a}" for a, value in enumerate(values) if bad(value)]
                elif values is not None and bad(values):
                    names.append(f"{letter}_{part}")
        for a, gate in enumerate(self.gate or ()):
            names += [f"W_gate of head {a}"] if bad(gate) else []
        for name, norm in (("q", self.q_norm), ("k", self.k_norm)):
            if norm is not None:
                names += [f"the {name} norm of head {a}" for a, weight in enumerate(norm.weight) if bad(weight)]
        if self.sinks is not None and bad(self.sinks):
            names += [f"the sink of head {a}" for a, sink in enumerate(self.sinks) if bad(sink)]
        if self.relative_bias is not None and bad(self.relative_bias):
            names.append("the relative bias")
        return names


def bad(tensor: Tensor) -> bool:
    """Whether a tensor contains NaN or infinity; False on the meta device."""
    return not tensor.is_meta and not bool(tensor.isfinite().all())


@dataclass(frozen=True)
class Projection:
    """Where one of q, k, v, o is stored: a name inside the block, and whether as (in, out) or as (out, in)."""

    name: str
    rows: Rows = separate
    transposed: bool = False
    otherwise: str = ""
    """The name where a block that has no weight of the first name stores it."""

    def stored_in(self, read: Read) -> str:
        """The name under which this block stores it."""
        return self.otherwise if self.otherwise and read(f"{self.name}.weight") is None else self.name


@dataclass(frozen=True)
class Dense:
    """One matrix outside attention: gate, up or down, stored alone or as one of `parts` equal runs of outputs."""

    label: str
    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1

    def read(self, read: Read) -> Float[Tensor, "inputs outputs"] | None:
        """The matrix as y = x W, or None if this model has none of that name (no gate, or experts)."""
        weight = read(f"{self.name}.weight")
        if weight is None or weight.dim() != 2:
            return None
        stored(read, f"{self.name}.weight")
        whole = weight if self.transposed else weight.T
        width = whole.shape[1] // self.parts
        return whole.narrow(1, self.part * width, width)


def head_matrices(
    read: Read, at: Projection, part: str, shape: tuple[int, int, int, int]
) -> tuple[tuple[Float[Tensor, "d e"], ...], tuple[Float[Tensor, "e"], ...] | None]:
    """The matrix and bias of every head of q, k or v; shape is (d, head width, heads, key heads)."""
    d, e, heads, kv_heads = shape
    name = at.stored_in(read)
    weight, bias = stored(read, f"{name}.weight"), read(f"{name}.bias")
    starts = [at.rows(part, a, heads, kv_heads) * e for a in range(kv_heads if part in ("k", "v") else heads)]
    out_axis = 1 if at.transposed else 0
    runs = len(starts) if at.rows is separate else 2 * heads if at.rows is with_gate else heads + 2 * kv_heads
    check_shape(f"{name}.weight", weight, 1 - out_axis, d, out_axis, runs * e)
    check_bias(f"{name}.bias", bias, runs * e)
    views = (weight.narrow(out_axis, start, e) for start in starts)
    matrices = tuple(view if at.transposed else view.T for view in views)
    return matrices, None if bias is None else tuple(bias.narrow(0, start, e) for start in starts)


def output_matrices(
    read: Read, at: Projection, shape: tuple[int, int, int, int]
) -> tuple[tuple[Float[Tensor, "e d"], ...], Float[Tensor, "d"] | None]:
    """The output matrix of every head, and the layer's output bias."""
    d, e, heads, _ = shape
    weight, bias = stored(read, f"{at.name}.weight"), read(f"{at.name}.bias")
    in_axis = 0 if at.transposed else 1
    check_shape(f"{at.name}.weight", weight, 1 - in_axis, d, in_axis, heads * e)
    check_bias(f"{at.name}.bias", bias, d)
    views = (weight.narrow(in_axis, a * e, e) for a in range(heads))
    return tuple(view if at.transposed else view.T for view in views), bias


def norm_weights(read: Read, name: str, heads: int, over: str) -> NormWeights:
    """The norm's gain and bias for each head; a name with '{head}' is one norm per head."""
    names = [name.format(head=a) if "{head}" in name else name for a in range(heads)]
    weights, biases = [], []
    for a, norm in enumerate(names):
        weight, bias = stored(read, f"{norm}.weight"), read(f"{norm}.bias")
        if weight.dim() == 2:  # a row per head
            weight = weight[a]
        e = weight.shape[0] // heads if over == "all" else weight.shape[0]
        start = a * e if over == "all" else 0
        weights.append(weight.narrow(0, start, e))
        if bias is not None:
            biases.append(bias.narrow(0, start, e))
    return NormWeights(tuple(weights), tuple(biases) if biases else None)


def stored(read: Read, name: str) -> Tensor:
    """The tensor of that name; raises if it is missing or quantized."""
    tensor = read(name)
    if tensor is None:
        raise ArmillaryError(
            f"the model has no weight {name!r}, which its family should have: "
            "if it has a LoRA, merge it first (merge_and_unload); if it is quantized, load it unquantized"
        )
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        raise ArmillaryError(
            f"{name} is stored in a quantized format ({str(tensor.dtype).removeprefix('torch.')})",
            advice="load the model in float32, float16 or bfloat16",
        )
    return tensor


def check_bias(name: str, bias: Tensor | None, width: int) -> None:
    """Raise if there is a bias that is not a vector of this width."""
    if bias is not None and tuple(bias.shape) != (width,):
        raise ArmillaryError(
            f"{name} has shape {tuple(bias.shape)}, but the configuration asks for ({width},): weights and config.json "
            "do not belong together"
        )


def check_shape(name: str, weight: Tensor, d_axis: int, d: int, out_axis: int, outputs: int) -> None:
    """Raise if a stored matrix does not have the size in the configuration."""
    if weight.dim() != 2 or weight.shape[d_axis] != d or weight.shape[out_axis] != outputs:
        raise ArmillaryError(
            f"{name} has shape {tuple(weight.shape)}, but the configuration asks for {d} on axis {d_axis} "
            f"and {outputs} on axis {out_axis}: weights and config.json do not belong together"
        )


def stack(matrices: tuple[Float[Tensor, "..."], ...]) -> Float[Tensor, "head ..."]:
    """The heads' matrices as one tensor (a copy), for batched algebra."""
    return torch.stack(matrices)
