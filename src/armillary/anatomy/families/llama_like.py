"""Families that differ from Llama or Qwen in a few words: mixtures of experts, layers without rotation, other pairs."""

from dataclasses import replace

from armillary.anatomy.adapter import Adapter, Config, head_width_of
from armillary.anatomy.description import QKNorm, Rotary
from armillary.anatomy.families.llama import (
    GEMMA2,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    SLIDING_BY_TYPE,
    partial_rotary,
    rms_per_head,
    rotary,
    window_by_type,
    window_everywhere,
)
from armillary.anatomy.rotary import rotary_from
from armillary.anatomy.weights import Dense

ADAPTERS: list[Adapter] = []


def interleaved_rotary(config: Config, layer: int) -> Rotary | None:
    return rotary_from(config, layer, head_width=head_width_of(config), layout="interleaved")


def partial_interleaved_rotary(config: Config, layer: int) -> Rotary | None:
    return rotary_from(config, layer, head_width=head_width_of(config), layout="interleaved", partial=True)


def clip_of(config: Config) -> float | None:
    return None if config.clip_qkv is None else float(config.clip_qkv)


UP_DOWN = (Dense("up", "mlp.up_proj"), Dense("down", "mlp.down_proj"))
FUSED_GATE = (
    Dense("gate", "mlp.gate_up_proj", part=0, parts=2),
    Dense("up", "mlp.gate_up_proj", part=1, parts=2),
    Dense("down", "mlp.down_proj"),
)

# Llama with other words -----------------------------------------------------------------------------------------

ADAPTERS.append(replace(LLAMA, family="arcee", mlp=UP_DOWN))
ADAPTERS.append(replace(LLAMA, family="seed_oss", understands=frozenset({"attention_out_bias"})))
ADAPTERS.append(replace(LLAMA, family="helium", position=interleaved_rotary))
ADAPTERS.append(replace(LLAMA, family="ernie4_5", position=interleaved_rotary))
ADAPTERS.append(replace(LLAMA, family="ernie4_5_moe", position=interleaved_rotary, mlp=()))
ADAPTERS.append(
    replace(
        LLAMA,
        family="apertus",
        qk_norm=rms_per_head,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        mlp=UP_DOWN,
    )
)
ADAPTERS.append(
    replace(
        LLAMA,
        family="nemotron",
        norm="layer",
        position=partial_rotary,
        mlp=UP_DOWN,
        understands=frozenset({"partial_rotary_factor"}),
    )
)
ADAPTERS.append(replace(LLAMA, family="eurobert", causal=lambda config: False))

# Granite: a scale of its own ------------------------------------------------------------------------------------

GRANITE = replace(
    LLAMA,
    family="granite",
    scale=lambda config, layer: float(config.attention_multiplier),
    understands=frozenset({"attention_multiplier"}),
)
ADAPTERS.append(GRANITE)
ADAPTERS.append(replace(GRANITE, family="granitemoe", mlp=()))
ADAPTERS.append(
    replace(  # a setting that transformers 5.1 to 5.3 stores and does not read
        GRANITE, family="granitemoeshared", mlp=(), understands=GRANITE.understands | {"position_embedding_type"}
    )
)

# Mistral and Qwen with experts ----------------------------------------------------------------------------------

ADAPTERS.append(replace(MISTRAL, family="mixtral", mlp=()))
ADAPTERS.append(
    replace(LLAMA, family="ministral", window=window_by_type, understands=frozenset({"sliding_window", "layer_types"}))
)
ADAPTERS.append(replace(QWEN2, family="qwen2_moe", mlp=(), understands=QWEN2.understands | {"qkv_bias"}))
ADAPTERS.append(
    replace(
        QWEN3,
        family="qwen3_moe",
        mlp=(),
        window=window_everywhere,
        understands=frozenset({"sliding_window", "use_sliding_window", "max_window_layers"}),
    )
)
ADAPTERS.append(replace(QWEN3, family="dots1", mlp=()))

# Text parts of Qwen's models for images: on text, their rotation in three directions is the usual one
ADAPTERS.append(replace(QWEN2, family="qwen2_vl_text"))
ADAPTERS.append(replace(QWEN2, family="qwen2_5_vl_text"))
QWEN3_VL = replace(QWEN3, family="qwen3_vl_text", window=lambda config, layer: None, understands=frozenset())
ADAPTERS.append(QWEN3_VL)
ADAPTERS.append(
    replace(
        QWEN3_VL,
        family="qwen3_vl_moe_text",
        mlp=(),
        understands=frozenset({"sliding_window"}),
        allowed={"sliding_window": (None,)},
    )
)

# OLMo: a norm without weights, clipping; from the second on q and k are normalized over all heads ---------------

ADAPTERS.append(replace(LLAMA, family="olmo", norm="layer", clip_qkv=clip_of, understands=frozenset({"clip_qkv"})))
OLMO2 = replace(
    LLAMA,
    family="olmo2",
    norm_place=lambda config: "after",
    qk_norm=lambda config: QKNorm("rms", "all", config.rms_norm_eps),
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)
ADAPTERS.append(OLMO2)
ADAPTERS.append(replace(OLMO2, family="olmo3", window=window_by_type, understands=SLIDING_BY_TYPE))
ADAPTERS.append(
    replace(
        OLMO2,
        family="olmoe",
        norm_place=lambda config: "before",
        mlp=(),
        understands=frozenset({"clip_qkv"}),
        allowed={"clip_qkv": (None,)},  # clipped after the norm, unlike elsewhere
    )
)

# Layers without rotation ----------------------------------------------------------------------------------------


def smollm3_rotary(config: Config, layer: int) -> Rotary | None:
    return rotary(config, layer) if config.no_rope_layers[layer] else None


ADAPTERS.append(
    replace(
        LLAMA,
        family="smollm3",
        position=smollm3_rotary,
        window=window_by_type,
        understands=SLIDING_BY_TYPE | {"no_rope_layers", "no_rope_layer_interval"},
    )
)


def cohere2_rotary(config: Config, layer: int) -> Rotary | None:
    """Only layers with a window are rotated."""
    return interleaved_rotary(config, layer) if window_by_type(config, layer) is not None else None


COHERE = replace(
    LLAMA,
    family="cohere",
    norm="layer",
    position=interleaved_rotary,
    qk_norm=lambda config: QKNorm("layer", "head", config.layer_norm_eps) if config.use_qk_norm else None,
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    understands=frozenset({"use_qk_norm"}),
)
ADAPTERS.append(COHERE)
ADAPTERS.append(
    replace(
        COHERE,
        family="cohere2",
        position=cohere2_rotary,
        window=window_by_type,
        qk_norm=lambda config: None,
        q_norm="",
        k_norm="",
        understands=SLIDING_BY_TYPE
        | {"sliding_window_pattern", "_sliding_window_pattern", "rotary_pct", "position_embedding_type"},
        allowed={"rotary_pct": (1, 1.0), "position_embedding_type": (None, "rope_gptj")},
    )
)


def exaone4_rotary(config: Config, layer: int) -> Rotary | None:
    """With windows, only the layers that have one are rotated."""
    plain = config.sliding_window is None or config.layer_types[layer] == "sliding_attention"
    return rotary(config, layer) if plain else None


ADAPTERS.append(
    replace(
        LLAMA,
        family="exaone4",
        norm_place=lambda config: "after",
        position=exaone4_rotary,
        window=window_by_type,
        qk_norm=rms_per_head,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        understands=SLIDING_BY_TYPE | {"sliding_window_pattern"},
    )
)

# GLM ------------------------------------------------------------------------------------------------------------

GLM = replace(
    LLAMA,
    family="glm",
    position=partial_interleaved_rotary,
    mlp=FUSED_GATE,
    understands=frozenset({"partial_rotary_factor"}),
)
ADAPTERS.append(GLM)
ADAPTERS.append(replace(GLM, family="glm4"))
ADAPTERS.append(
    replace(
        LLAMA,
        family="glm4_moe",
        position=partial_rotary,
        qk_norm=lambda config: rms_per_head(config) if config.use_qk_norm else None,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        mlp=(),
        understands=frozenset({"partial_rotary_factor", "use_qk_norm"}),
    )
)

# Gemma 2 with other norms ---------------------------------------------------------------------------------------

ADAPTERS.append(replace(GEMMA2, family="vaultgemma"))
