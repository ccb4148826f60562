"""GPT-2 and what followed it: OPT, GPT-Neo, GPT-J, CodeGen, GPT-NeoX, BLOOM, MPT, Falcon."""

import sys
from dataclasses import replace
from typing import Any

from torch import Tensor

from armillary.anatomy.adapter import Adapter, Config, head_width_of, register
from armillary.anatomy.bias import alibi_slopes, alibi_slopes_mpt
from armillary.anatomy.description import Alibi, Rotary, geometric
from armillary.anatomy.rotary import rotary_from
from armillary.anatomy.weights import Dense, Projection, in_four_parts, per_group, per_head, stacked
from armillary.errors import ArmillaryError
from armillary.view import AttentionView, split_mask
from armillary.watch import masked, watch_method, watch_projection

# GPT-2 ----------------------------------------------------------------------------------------------------------


def gpt2_scale(config: Config, layer: int) -> float:
    scale = head_width_of(config) ** -0.5 if config.scale_attn_weights else 1.0
    return float(scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale)


def read_gpt2_upcast(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> AttentionView:
    return AttentionView(q, k, v, float(module.scaling), **masked(mask, k.shape[2]))


GPT2_FUSED = Projection("attn.c_attn", rows=stacked, transposed=True)
register(
    Adapter(
        family="gpt2",
        blocks="h",
        attention="attn",
        q=GPT2_FUSED,
        k=GPT2_FUSED,
        v=GPT2_FUSED,
        o=Projection("attn.c_proj", transposed=True),
        mlp=(Dense("up", "mlp.c_fc", transposed=True), Dense("down", "mlp.c_proj", transposed=True)),
        norm="layer",
        scale=gpt2_scale,
        positions_added=lambda config: "learned",
        hard_limit=True,
        understands=frozenset({"scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"}),
        # eager attention with reorder_and_upcast_attn does not ask the interface
        watch=watch_method("_upcast_and_reordered_attn", read_gpt2_upcast, heads_first=False),
    )
)

# OPT ------------------------------------------------------------------------------------------------------------

register(
    Adapter(
        family="opt",
        blocks="decoder.layers",
        attention="self_attn",
        q=Projection("self_attn.q_proj"),
        k=Projection("self_attn.k_proj"),
        v=Projection("self_attn.v_proj"),
        o=Projection("self_attn.out_proj"),
        mlp=(Dense("up", "fc1"), Dense("down", "fc2")),
        norm="layer",
        norm_place=lambda config: "before" if config.do_layer_norm_before else "after",
        positions_added=lambda config: "learned",
        hard_limit=True,
    )
)

# GPT-Neo --------------------------------------------------------------------------------------------------------


def gpt_neo_window(config: Config, layer: int) -> int | None:
    if config.attention_layers[layer] not in ("global", "local"):
        raise ArmillaryError(
            f"the configuration gives layer {layer} the type {config.attention_layers[layer]!r}; "
            "known are global and local"
        )
    return int(config.window_size) if config.attention_layers[layer] == "local" else None


def read_gpt_neo(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> AttentionView:
    queries, keys = q.shape[2], k.shape[2]
    allowed = module.bias[:, :, keys - queries : keys, :keys]
    if mask is not None:
        allowed = allowed & split_mask(mask, keys)[0]
    return AttentionView(q, k, v, 1.0, mask=allowed)


register(
    Adapter(
        family="gpt_neo",
        blocks="h",
        attention="attn.attention",
        q=Projection("attn.attention.q_proj"),
        k=Projection("attn.attention.k_proj"),
        v=Projection("attn.attention.v_proj"),
        o=Projection("attn.attention.out_proj"),
        mlp=(Dense("up", "mlp.c_fc"), Dense("down", "mlp.c_proj")),
        norm="layer",
        scale=lambda config, layer: 1.0,
        positions_added=lambda config: "learned",
        hard_limit=True,
        window=gpt_neo_window,
        understands=frozenset({"attention_types", "attention_layers", "window_size"}),
        watch=watch_method("_attn", read_gpt_neo),
    )
)

# GPT-J and CodeGen ----------------------------------------------------------------------------------------------


def interleaved_rotary(config: Config, layer: int) -> Rotary:
    if not isinstance(config.rotary_dim, int) or not 0 < config.rotary_dim <= head_width_of(config):
        raise ArmillaryError(
            f"the configuration has rotary_dim={config.rotary_dim!r}, which the {config.model_type} adapter does not "
            f"understand (expected the number of rotated channels, of {head_width_of(config)} that a head has)"
        )
    return Rotary(geometric(10000.0, config.rotary_dim), "interleaved", 10000.0)


def read_scaled(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> AttentionView:
    return AttentionView(q, k, v, 1 / float(module.scale_attn), **masked(mask, k.shape[2]))


GPTJ = Adapter(
    family="gptj",
    blocks="h",
    attention="attn",
    q=Projection("attn.q_proj"),
    k=Projection("attn.k_proj"),
    v=Projection("attn.v_proj"),
    o=Projection("attn.out_proj"),
    mlp=(Dense("up", "mlp.fc_in"), Dense("down", "mlp.fc_out")),
    norm="layer",
    position=interleaved_rotary,
    hard_limit=True,
    understands=frozenset({"rotary_dim", "rotary", "scale_attn_weights"}),
    allowed={"rotary": (True,), "scale_attn_weights": (True,)},
    watch=watch_method("_attn", read_scaled),
)
register(GPTJ)

CODEGEN_FUSED = Projection("attn.qkv_proj", rows=in_four_parts)
register(replace(GPTJ, family="codegen", q=CODEGEN_FUSED, k=CODEGEN_FUSED, v=CODEGEN_FUSED))

# GPT-NeoX -------------------------------------------------------------------------------------------------------


def neox_rotary(config: Config, layer: int) -> Rotary | None:
    return rotary_from(config, layer, head_width=head_width_of(config), partial=True)


NEOX_FUSED = Projection("attention.query_key_value", rows=per_head)
register(
    Adapter(
        family="gpt_neox",
        blocks="layers",
        attention="attention",
        q=NEOX_FUSED,
        k=NEOX_FUSED,
        v=NEOX_FUSED,
        o=Projection("attention.dense"),
        mlp=(Dense("up", "mlp.dense_h_to_4h"), Dense("down", "mlp.dense_4h_to_h")),
        norm="layer",
        position=neox_rotary,
        understands=frozenset({"rotary_pct", "rotary_emb_base", "partial_rotary_factor"}),
    )
)

# BLOOM ----------------------------------------------------------------------------------------------------------


def read_bloom(module: Any, arguments: dict[str, Any], fused: Tensor) -> AttentionView:
    q, k, v = fused.unflatten(-1, (module.num_heads, 3, -1)).permute(3, 0, 2, 1, 4)
    alibi = arguments["alibi"].unflatten(0, (q.shape[0], q.shape[1])) * module.beta
    mask = arguments["attention_mask"]
    allowed = None if mask is None else split_mask(mask, k.shape[2])[0]
    return AttentionView(q, k, v, float(module.inv_norm_factor), mask=allowed, bias=alibi)


BLOOM_FUSED = Projection("self_attention.query_key_value", rows=per_head)
BLOOM = Adapter(
    family="bloom",
    blocks="h",
    attention="self_attention",
    q=BLOOM_FUSED,
    k=BLOOM_FUSED,
    v=BLOOM_FUSED,
    o=Projection("self_attention.dense"),
    mlp=(Dense("up", "mlp.dense_h_to_4h"), Dense("down", "mlp.dense_4h_to_h")),
    norm="layer",
    position=lambda config, layer: Alibi(alibi_slopes(config.num_attention_heads)),
    max_positions=lambda config: None,
    understands=frozenset({"offset_alibi"}),
    watch=watch_projection("query_key_value", "dense", read_bloom),
)
register(BLOOM)

# MPT ------------------------------------------------------------------------------------------------------------


def mpt_scale(config: Config, layer: int) -> float:
    return float(config.attn_config.softmax_scale or head_width_of(config) ** -0.5)


def mpt_position(config: Config, layer: int) -> Alibi:
    """transformers computes MPT in one way, whatever attn_config says."""
    computed = {
        "attn_type": "multihead_attention",
        "qk_ln": False,
        "prefix_lm": False,
        "alibi": True,
        "alibi_bias_max": 8,
    }
    for key, expected in computed.items():
        value = getattr(config.attn_config, key, expected)
        if value != expected:
            raise ArmillaryError(
                f"the configuration has attn_config.{key}={value!r}, which the mpt adapter does not understand "
                f"(expected {expected!r})"
            )
    return Alibi(alibi_slopes_mpt(config.num_attention_heads, float(config.attn_config.alibi_bias_max)))


def read_mpt(module: Any, arguments: dict[str, Any], fused: Tensor) -> AttentionView:
    if module.clip_qkv:
        fused = fused.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = fused.unflatten(-1, (3, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    hidden, bias = arguments.get("attention_mask"), arguments.get("position_bias")
    bias = None if bias is None else bias[None, :, -q.shape[2] :, -k.shape[2] :].to(q.dtype)
    mask = None if hidden is None else ~hidden
    return AttentionView(q, k, v, float(module.softmax_scale), mask=mask, bias=bias)


MPT_FUSED = Projection("attn.Wqkv", rows=stacked)
register(
    Adapter(
        family="mpt",
        blocks="blocks",
        attention="attn",
        q=MPT_FUSED,
        k=MPT_FUSED,
        v=MPT_FUSED,
        o=Projection("attn.out_proj"),
        mlp=(Dense("up", "ffn.up_proj"), Dense("down", "ffn.down_proj")),
        norm="layer",
        scale=mpt_scale,
        position=mpt_position,
        clip_qkv=lambda config: float(config.attn_config.clip_qkv) if config.attn_config.clip_qkv else None,
        max_positions=lambda config: int(config.max_seq_len),
        hard_limit=True,
        understands=frozenset({"attn_config"}),
        watch=watch_projection("Wqkv", "out_proj", read_mpt),
    )
)

# Falcon ---------------------------------------------------------------------------------------------------------


def falcon_kv_heads(config: Config) -> int:
    if config.new_decoder_architecture:
        return int(config.num_kv_heads)
    return 1 if config.multi_query else int(config.num_attention_heads)


def falcon_position(config: Config, layer: int) -> Alibi | Rotary | None:
    """Falcon scales its ALiBi bias together with the logits."""
    if config.alibi:
        slopes = alibi_slopes(config.num_attention_heads)
        return Alibi(tuple(slope * head_width_of(config) ** -0.5 for slope in slopes))
    return rotary_from(config, layer, head_width=head_width_of(config))


def read_falcon(module: Any, arguments: dict[str, Any], fused: Tensor) -> AttentionView:
    q, k, v = (part.transpose(1, 2) for part in module._split_heads(fused))
    alibi, mask = arguments["alibi"], arguments["attention_mask"]
    if alibi is None:
        rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
        q, k = rotate(q, k, *arguments["position_embeddings"])
    if module.new_decoder_architecture:
        group = module.num_heads // module.num_kv_heads
        k, v = k[:, ::group], v[:, ::group]
    fields = masked(mask, k.shape[2])
    fused_kernel = module.config._attn_implementation == "sdpa" and not arguments.get("output_attentions")
    if alibi is not None and not fused_kernel:
        # the mask carries the ALiBi bias already; this branch of the model's code adds it a second time
        again = alibi.reshape(q.shape[0], module.num_heads, 1, -1) * module.inv_norm_factor
        fields["bias"] = again if fields["bias"] is None else fields["bias"] + again
    return AttentionView(q, k, v, float(module.inv_norm_factor), causal=mask is None, **fields)


FALCON_FUSED = Projection("self_attention.query_key_value", rows=per_group)
register(
    replace(
        BLOOM,
        family="falcon",
        q=FALCON_FUSED,
        k=FALCON_FUSED,
        v=FALCON_FUSED,
        kv_heads=falcon_kv_heads,
        position=falcon_position,
        max_positions=lambda config: int(config.max_position_embeddings),
        understands=frozenset(
            {
                "alibi",
                "multi_query",
                "num_kv_heads",
                "n_head_kv",
                "num_ln_in_parallel_attn",
                "parallel_attn",
                "rotary",
            }
        ),
        watch=watch_projection("query_key_value", "dense", read_falcon),
    )
)
