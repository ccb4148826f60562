"""Families in which only some blocks have attention (the others are named and left out), or whose layers differ."""

from copy import copy
from dataclasses import replace

from armillary.anatomy.adapter import Adapter, Config, head_width_of
from armillary.anatomy.description import Growth, QKNorm, Rotary
from armillary.anatomy.families.llama import GEMMA3, LLAMA, MISTRAL, partial_rotary, rotary, window_by_type
from armillary.anatomy.families.llama_like import GRANITE, interleaved_rotary
from armillary.anatomy.rotary import rotary_from
from armillary.anatomy.weights import Dense, Projection, with_gate
from armillary.errors import ArmillaryError

ADAPTERS: list[Adapter] = []


def other_than_full(config: Config, layer: int) -> str:
    """The type of a block that is not full attention."""
    kind = str(config.layer_types[layer])
    kind = {"attention": "full_attention", "mamba": "linear_attention"}.get(kind, kind)  # until transformers 5.3
    if kind not in ("full_attention", "linear_attention", "conv"):
        raise ArmillaryError(
            f"the configuration gives layer {layer} the type {kind!r}; known are full_attention, linear_attention and "
            "conv"
        )
    return "" if kind == "full_attention" else kind


# Qwen3-Next and Qwen3.5: linear attention in most blocks, outputs of the others are gated ------------------------

QWEN3_NEXT = replace(
    LLAMA,
    family="qwen3_next",
    q=Projection("self_attn.q_proj", rows=with_gate),
    position=partial_rotary,
    instead=other_than_full,
    qk_norm=lambda config: QKNorm("rms", "head", config.rms_norm_eps, offset=1.0),
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    mlp=(),
    understands=frozenset({"layer_types", "partial_rotary_factor", "full_attention_interval"}),
)
ADAPTERS.append(QWEN3_NEXT)
ADAPTERS.append(replace(QWEN3_NEXT, family="qwen3_5_text", mlp=LLAMA.mlp))
ADAPTERS.append(replace(QWEN3_NEXT, family="qwen3_5_moe_text"))

# Granite 4: Mamba in most blocks, no rotation unless it is asked for ---------------------------------------------


def granite4_rotary(config: Config, layer: int) -> Rotary | None:
    return rotary(config, layer) if config.position_embedding_type == "rope" else None


ADAPTERS.append(
    replace(
        GRANITE,
        family="granitemoehybrid",
        position=granite4_rotary,
        instead=other_than_full,
        mlp=(),
        understands=GRANITE.understands | {"layer_types", "position_embedding_type"},
        allowed={"position_embedding_type": (None, "rope", "nope")},
    )
)

# LFM2: short convolutions in most blocks -------------------------------------------------------------------------

LFM2 = replace(
    LLAMA,
    family="lfm2",
    o=Projection("self_attn.out_proj"),
    instead=other_than_full,
    qk_norm=lambda config: QKNorm("rms", "head", config.norm_eps),
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    mlp=(Dense("gate", "feed_forward.w1"), Dense("up", "feed_forward.w3"), Dense("down", "feed_forward.w2")),
    understands=frozenset({"layer_types", "full_attn_idxs"}),
)
ADAPTERS.append(LFM2)

# Llama 4 and Ministral 3: logits that grow with the position -----------------------------------------------------


def llama4_rotary(config: Config, layer: int) -> Rotary | None:
    if not config.no_rope_layers[layer]:
        return None
    found = interleaved_rotary(config, layer)
    if found is not None and found.factor != 1 and config.use_qk_norm:
        raise ArmillaryError(
            f"the configuration has a rotary factor of {found.factor!r}, which the norm after the rotation of "
            "llama4_text models undoes: this is not described"
        )
    return found


def llama4_chunk(config: Config, layer: int) -> int | None:
    kind = config.layer_types[layer]
    if kind not in ("full_attention", "chunked_attention"):
        raise ArmillaryError(
            f"the configuration gives layer {layer} the type {kind!r}; known are full_attention and chunked_attention"
        )
    return int(config.attention_chunk_size) if kind == "chunked_attention" else None


def llama4_growth(config: Config, layer: int) -> Growth | None:
    """Only in layers that are not rotated."""
    if not config.attn_temperature_tuning or config.no_rope_layers[layer]:
        return None
    return Growth(float(config.attn_scale), float(config.floor_scale), ahead=1)


ADAPTERS.append(
    replace(
        LLAMA,
        family="llama4_text",
        position=llama4_rotary,
        chunk=llama4_chunk,
        growth=llama4_growth,
        # normalized after the rotation, which is the same as before it: there is no gain
        qk_norm=lambda config: QKNorm("rms", "head", config.rms_norm_eps) if config.use_qk_norm else None,
        qk_normed=lambda config, layer: bool(config.no_rope_layers[layer]),
        mlp=(),
        understands=frozenset(
            {"use_qk_norm", "no_rope_layers", "no_rope_layer_interval", "layer_types"}
            | {"attention_chunk_size", "attn_temperature_tuning", "attn_scale"}
        ),
    )
)


def ministral3_growth(config: Config, layer: int) -> Growth | None:
    beta = config.rope_parameters.get("llama_4_scaling_beta")
    trained = config.rope_parameters.get("original_max_position_embeddings")
    if beta is None or trained is None:
        raise ArmillaryError(
            "the configuration has no rope_parameters.llama_4_scaling_beta or original_max_position_embeddings, by "
            "which ministral3 models scale their queries"
        )
    return Growth(float(beta), float(trained))


ADAPTERS.append(replace(MISTRAL, family="ministral3", growth=ministral3_growth))

# Gemma 4: global layers have other heads, values are normalized ---------------------------------------------------


def gemma4_layer(config: Config, layer: int) -> Config:
    """The configuration of one layer; before transformers 5.15 it is spelled out in the model."""
    if hasattr(config, "per_layer_config"):
        return config.per_layer_config[layer]
    own = copy(config)
    if config.layer_types[layer] == "full_attention":
        own.head_dim = config.global_head_dim or config.head_dim
        own.num_key_value_heads = (
            config.num_global_key_value_heads if config.attention_k_eq_v else config.num_key_value_heads
        )
    return own


def gemma4_rotary(config: Config, layer: int) -> Rotary | None:
    own = gemma4_layer(config, layer)
    return rotary_from(config if hasattr(config, "per_layer_config") else own, layer, head_width=head_width_of(own))


def gemma4_shares_keys(config: Config) -> str:
    shared = getattr(config, "num_kv_shared_layers", 0)
    if not shared:
        return ""
    return (
        f"num_kv_shared_layers={shared}: the last {shared} layers of this gemma4_text model read keys and values of an "
        "earlier layer, so they have no W_k and W_v on their own input; weights per head, and what is computed from "
        "them (spectra, exact constituents, rotary frequencies), are missing, while everything that needs only q, k, v "
        "and hidden states works"
    )


ADAPTERS.append(
    replace(
        GEMMA3,
        family="gemma4_text",
        v=Projection("self_attn.v_proj", otherwise="self_attn.k_proj"),
        at_layer=gemma4_layer,
        beyond=gemma4_shares_keys,
        causal=lambda config: config.use_bidirectional_attention != "all",
        scale=lambda config, layer: 1.0,
        position=gemma4_rotary,
        window=window_by_type,
        qk_norm=lambda config: QKNorm("rms", "head", config.rms_norm_eps),
        value_norm=lambda config: float(config.rms_norm_eps),
        understands=frozenset(
            {"sliding_window", "layer_types", "use_bidirectional_attention", "attention_k_eq_v", "num_kv_shared_layers"}
        ),
        allowed={"use_bidirectional_attention": (None, "vision")},
    )
)
