"""Llama and similar families: rotary, RMS norm before attention (mostly), separate or fused projections."""

from dataclasses import replace

from armillary.anatomy.adapter import Adapter, Config, head_width_of
from armillary.anatomy.description import QKNorm, Rotary
from armillary.anatomy.post_norm import is_post_norm
from armillary.anatomy.rotary import rotary_from
from armillary.anatomy.weights import Dense, Projection, stacked
from armillary.errors import ArmillaryError

ADAPTERS: list[Adapter] = []


def rotary(config: Config, layer: int) -> Rotary | None:
    return rotary_from(config, layer, head_width=head_width_of(config))


def partial_rotary(config: Config, layer: int) -> Rotary | None:
    return rotary_from(config, layer, head_width=head_width_of(config), partial=True)


def window_everywhere(config: Config, layer: int) -> int | None:
    return getattr(config, "sliding_window", None)


def window_by_type(config: Config, layer: int) -> int | None:
    """The window of layers that config.layer_types calls sliding."""
    kind = config.layer_types[layer]
    if kind not in ("full_attention", "sliding_attention"):
        raise ArmillaryError(
            f"the configuration gives layer {layer} the type {kind!r}; known are full_attention and sliding_attention"
        )
    if kind == "sliding_attention" and config.sliding_window is None:
        raise ArmillaryError(f"the configuration gives layer {layer} a sliding window, but sliding_window is null")
    return int(config.sliding_window) if kind == "sliding_attention" else None


def rms_per_head(config: Config) -> QKNorm:
    return QKNorm("rms", "head", config.rms_norm_eps)


LLAMA = Adapter(
    family="llama",
    blocks="layers",
    attention="self_attn",
    q=Projection("self_attn.q_proj"),
    k=Projection("self_attn.k_proj"),
    v=Projection("self_attn.v_proj"),
    o=Projection("self_attn.o_proj"),
    norm="rms",
    norm_place=lambda config: "after" if is_post_norm(config) else "before",
    position=rotary,
    mlp=(Dense("gate", "mlp.gate_proj"), Dense("up", "mlp.up_proj"), Dense("down", "mlp.down_proj")),
)
ADAPTERS.append(LLAMA)

MISTRAL = replace(
    LLAMA,
    family="mistral",
    window=window_everywhere,
    understands=frozenset({"sliding_window"}),
)
ADAPTERS.append(MISTRAL)

SLIDING_BY_TYPE = frozenset({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"})
QWEN2 = replace(LLAMA, family="qwen2", window=window_by_type, understands=SLIDING_BY_TYPE)
ADAPTERS.append(QWEN2)
QWEN3 = replace(QWEN2, family="qwen3", qk_norm=rms_per_head, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
ADAPTERS.append(QWEN3)

GEMMA = replace(
    LLAMA,
    family="gemma",
    understands=frozenset({"use_bidirectional_attention"}),
    allowed={"use_bidirectional_attention": (None, False)},  # the model's code follows it only in part
)
ADAPTERS.append(GEMMA)

GEMMA2 = replace(
    GEMMA,
    family="gemma2",
    scale=lambda config, layer: float(config.query_pre_attn_scalar**-0.5),
    softcap=lambda config, layer: float(config.attn_logit_softcapping) if config.attn_logit_softcapping else None,
    window=window_by_type,
    understands=GEMMA.understands
    | SLIDING_BY_TYPE
    | {"query_pre_attn_scalar", "attn_logit_softcapping", "sliding_window_size"},
)
ADAPTERS.append(GEMMA2)
GEMMA3 = replace(
    GEMMA2,
    family="gemma3_text",
    causal=lambda config: not config.use_bidirectional_attention,
    softcap=lambda config, layer: None,  # in the configuration, but the model's code never applies it
    qk_norm=lambda config: QKNorm("rms", "head", config.rms_norm_eps, offset=1.0),
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    understands=GEMMA2.understands | {"_sliding_window_pattern", "sliding_window_pattern", "rope_local_base_freq"},
    allowed={"attn_logit_softcapping": (None,)},
)
ADAPTERS.append(GEMMA3)

ADAPTERS.append(
    replace(
        MISTRAL,
        family="starcoder2",
        norm="layer",
        mlp=(Dense("up", "mlp.c_fc"), Dense("down", "mlp.c_proj")),
        understands=MISTRAL.understands | {"scale_attn_weights"},
        allowed={"scale_attn_weights": (True,)},
    )
)

ADAPTERS.append(
    replace(
        LLAMA,
        family="gpt_oss",
        mlp=(),  # experts
        window=window_by_type,
        sinks="self_attn.sinks",
        understands=SLIDING_BY_TYPE,
    )
)

PHI3_FUSED = Projection("self_attn.qkv_proj", rows=stacked)
ADAPTERS.append(
    replace(
        MISTRAL,
        family="phi3",
        position=partial_rotary,
        q=PHI3_FUSED,
        k=PHI3_FUSED,
        v=PHI3_FUSED,
        mlp=(
            Dense("gate", "mlp.gate_up_proj", part=0, parts=2),
            Dense("up", "mlp.gate_up_proj", part=1, parts=2),
            Dense("down", "mlp.down_proj"),
        ),
        understands=MISTRAL.understands | {"partial_rotary_factor", "full_attn_mod"},
    )
)

ADAPTERS.append(
    replace(
        LLAMA,
        family="phi",
        position=partial_rotary,
        o=Projection("self_attn.dense"),
        norm="layer",
        mlp=(Dense("up", "mlp.fc1"), Dense("down", "mlp.fc2")),
        qk_norm=lambda config: QKNorm("layer", "head", config.layer_norm_eps) if config.qk_layernorm else None,
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        understands=frozenset({"qk_layernorm", "partial_rotary_factor"}),
    )
)

ADAPTERS.append(
    replace(
        LLAMA,
        family="stablelm",
        position=partial_rotary,
        norm="layer",
        qk_norm=lambda config: QKNorm("layer", "head", config.layer_norm_eps) if config.qk_layernorm else None,
        q_norm="self_attn.q_layernorm.norms.{head}",
        k_norm="self_attn.k_layernorm.norms.{head}",
        understands=frozenset({"qk_layernorm", "use_qkv_bias", "partial_rotary_factor", "rotary_scaling_factor"}),
        allowed={"rotary_scaling_factor": (1.0,)},
    )
)
