"""Multi-head latent attention (DeepSeek): keys and values, and mostly queries, from a normalized vector of low rank.

q = [up_q norm(down_q x)], k = [up_k norm(down_kv x), rotated key that all heads share], v = up_v norm(down_kv x). Given
the token's norm all of it is linear in x, so every head has the matrices W_q, W_k (d x e) and W_v, as products of the
stored ones; the model may as well absorb up_k into q, which gives the same logits.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from armillary.anatomy.adapter import Adapter, Config
from armillary.anatomy.description import Layer, Rotary
from armillary.anatomy.families.llama import LLAMA
from armillary.anatomy.rotary import rotary_from
from armillary.anatomy.weights import Latent, LayerWeights, Projection, Read, check_shape, output_matrices, stored

ADAPTERS: list[Adapter] = []

EPS = 1e-6
"""DeepSeek's norms of the latent vectors leave their epsilon at this default, whatever rms_norm_eps says."""


def shared_rotary(config: Config, layer: int) -> Rotary | None:
    """The last channels of a head are rotated."""
    found = rotary_from(config, layer, head_width=int(config.qk_rope_head_dim), layout=LAYOUT[config.model_type])
    return None if found is None else replace(found, start=int(config.qk_nope_head_dim))


LAYOUT: dict[str, Any] = {"deepseek_v2": "interleaved", "deepseek_v3": "half"}
"""How q and k come out of the rotation; the third version takes pairs apart where rope_interleave is set."""


def mla_scale(config: Config, layer: int) -> float:
    """1 / sqrt(head width), times the square of what yarn scales long contexts by."""
    scale: float = float(config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    settings = config.rope_parameters
    stretch, weight = settings.get("factor"), settings.get("mscale_all_dim", 0)
    if settings.get("rope_type", "default") == "default" or not weight:
        return scale
    more = 1.0 if stretch <= 1 else 0.1 * weight * float(torch.log(torch.tensor(float(stretch)))) + 1.0
    return scale * more * more


class LatentAdapter(Adapter):
    """q, k and v of every head, multiplied out from the stored matrices in float32 or better."""

    def layer(self, config: Config, run: int) -> Layer:
        return replace(
            super().layer(config, run),
            value_width=int(config.v_head_dim),
            latent=True,
            pairs_apart=bool(getattr(config, "rope_interleave", False)) and config.model_type == "deepseek_v3",
        )

    def layer_weights(self, layer: Layer, d_model: int, read: Read) -> LayerWeights:
        assert isinstance(layer.position, Rotary)
        assert layer.value_width is not None
        plain, turned = layer.position.start, layer.position.width
        down, bias, gain = _down(read, "kv_a_proj_with_mqa", "kv_a_layernorm")
        rank = len(gain)
        check_shape("self_attn.kv_a_proj_with_mqa.weight", down.T, 1, d_model, 0, rank + turned)
        latent, shared = down[:, :rank], apart(down[:, rank:], layer.pairs_apart)
        up = _up(read, "kv_b_proj", rank, layer.heads, plain + layer.value_width)
        keys = [latent @ (gain[:, None] * head[:, :plain]) for head in up]
        k_bias = v_bias = None
        if bias is not None:
            low, high = bias[:rank], apart(bias[rank:], layer.pairs_apart)
            k_bias = tuple(torch.cat([low @ (gain[:, None] * head[:, :plain]), high]) for head in up)
            v_bias = tuple(low @ (gain[:, None] * head[:, plain:]) for head in up)
        q, q_bias, q_latent = self._queries(layer, d_model, read)
        o, o_bias = output_matrices(read, self.o, (d_model, layer.value_width, layer.heads, layer.heads))
        return LayerWeights(
            q,
            tuple(torch.cat([key, shared], 1) for key in keys),
            tuple(latent @ (gain[:, None] * head[:, plain:]) for head in up),
            o,
            q_bias,
            k_bias,
            v_bias,
            o_bias,
            q_latent=q_latent,
            k_latent=Latent(latent, None if bias is None else bias[:rank], EPS, plain),
        )

    def _queries(
        self, layer: Layer, d_model: int, read: Read
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None, Latent | None]:
        if read("self_attn.q_a_proj.weight") is None:
            heads = _up(read, "q_proj", d_model, layer.heads, layer.head_width)
            return tuple(_turned_apart(head, layer) for head in heads), None, None
        down, bias, gain = _down(read, "q_a_proj", "q_a_layernorm")
        up = _up(read, "q_b_proj", len(gain), layer.heads, layer.head_width)
        heads = [_turned_apart(gain[:, None] * head, layer) for head in up]
        biases = None if bias is None else tuple(bias @ head for head in heads)
        return tuple(down @ head for head in heads), biases, Latent(down, bias, EPS, layer.head_width)

    def layer_matrices(self, layer: Layer, d_model: int, read: Read) -> Any:
        """W_o and the MLP's matrices; q, k and v have no single matrix."""
        assert layer.value_width is not None
        yield (
            "o",
            torch.cat(output_matrices(read, self.o, (d_model, layer.value_width, layer.heads, layer.heads))[0], 0),
        )
        for dense in self.mlp:
            matrix = dense.read(read)
            if matrix is not None:
                yield dense.label, matrix


def _down(read: Read, name: str, norm: str) -> tuple[Tensor, Tensor | None, Tensor]:
    """The projection to the latent vector, its bias, and the gain of the vector's norm."""
    weight, bias = wide(stored(read, f"self_attn.{name}.weight")), read(f"self_attn.{name}.bias")
    return weight.T, None if bias is None else wide(bias), wide(stored(read, f"self_attn.{norm}.weight"))


def _up(read: Read, name: str, rank: int, heads: int, width: int) -> list[Tensor]:
    """The projection from the latent vector, of every head: (rank, width)."""
    weight = stored(read, f"self_attn.{name}.weight")
    check_shape(f"self_attn.{name}.weight", weight, 1, rank, 0, heads * width)
    return [wide(head).T for head in weight.split(width)]


def wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def apart(columns: Tensor, pairs_apart: bool) -> Tensor:
    """Channels 0, 2, 4, ... then 1, 3, 5, ...: the order in which the model rotates and returns them."""
    return torch.cat([columns[..., 0::2], columns[..., 1::2]], -1) if pairs_apart else columns


def _turned_apart(head: Tensor, layer: Layer) -> Tensor:
    assert isinstance(layer.position, Rotary)
    plain = layer.position.start
    return torch.cat([head[:, :plain], apart(head[:, plain:], layer.pairs_apart)], 1)


DEEPSEEK_V2 = LatentAdapter(
    family="deepseek_v2",
    blocks="layers",
    attention="self_attn",
    # a name that every such model has: queries may have one matrix or two
    q=Projection("self_attn.kv_b_proj"),
    k=Projection("self_attn.kv_b_proj"),
    v=Projection("self_attn.kv_b_proj"),
    o=Projection("self_attn.o_proj"),
    norm="rms",
    kv_heads=lambda config: int(config.num_attention_heads),
    head_width=lambda config: int(config.qk_nope_head_dim + config.qk_rope_head_dim),
    scale=mla_scale,
    position=shared_rotary,
    mlp=LLAMA.mlp,
    understands=frozenset({"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"}),
)
ADAPTERS.append(DEEPSEEK_V2)
ADAPTERS.append(replace(DEEPSEEK_V2, family="deepseek_v3", understands=DEEPSEEK_V2.understands | {"rope_interleave"}))
