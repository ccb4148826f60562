"""GPT-2 and what followed it: OPT, GPT-Neo, GPT-J, CodeGen, GPT-NeoX, BLOOM, MPT, Falcon."""

from dataclasses import replace

from armillary.anatomy.adapter import Adapter, Config, head_width_of
from armillary.anatomy.bias import alibi_slopes, alibi_slopes_mpt
from armillary.anatomy.description import Alibi, Rotary, geometric
from armillary.anatomy.rotary import rotary_from
from armillary.anatomy.weights import Dense, Projection, in_four_parts, per_group, per_head, stacked
from armillary.errors import ArmillaryError

ADAPTERS: list[Adapter] = []

# GPT-2 ----------------------------------------------------------------------------------------------------------


def gpt2_scale(config: Config, layer: int) -> float:
    scale = head_width_of(config) ** -0.5 if config.scale_attn_weights else 1.0
    return float(scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale)


GPT2_FUSED = Projection("attn.c_attn", rows=stacked, transposed=True)
ADAPTERS.append(
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
        # only eager attention with reorder_and_upcast_attn bypasses the interface
        watched_as="gpt2",
    )
)

# OPT ------------------------------------------------------------------------------------------------------------

ADAPTERS.append(
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


ADAPTERS.append(
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
        watched_as="gpt_neo",
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
    watched_as="gptj",
)
ADAPTERS.append(GPTJ)

CODEGEN_FUSED = Projection("attn.qkv_proj", rows=in_four_parts)
ADAPTERS.append(replace(GPTJ, family="codegen", q=CODEGEN_FUSED, k=CODEGEN_FUSED, v=CODEGEN_FUSED))

# GPT-NeoX -------------------------------------------------------------------------------------------------------


def neox_rotary(config: Config, layer: int) -> Rotary | None:
    return rotary_from(config, layer, head_width=head_width_of(config), partial=True)


NEOX_FUSED = Projection("attention.query_key_value", rows=per_head)
ADAPTERS.append(
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
    watched_as="bloom",
)
ADAPTERS.append(BLOOM)

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


MPT_FUSED = Projection("attn.Wqkv", rows=stacked)
ADAPTERS.append(
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
        watched_as="mpt",
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


FALCON_FUSED = Projection("self_attention.query_key_value", rows=per_group)
ADAPTERS.append(
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
        watched_as="falcon",
    )
)
