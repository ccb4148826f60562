"""Samples of families that compute attention as another family does, with other names or settings."""

from collections.abc import Mapping
from typing import Any

from armillary.anatomy.sample_sizes import GROUPED, LATENT, LINEAR, ROUTED, SLIDING

EXPERTS = dict(num_local_experts=2, num_experts_per_tok=1)
HALF = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))
MAMBA = ["attention", "mamba", "attention"]
MIXED = ["full_attention", "linear_attention", "full_attention"]
THREE_WAYS = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 1, 1]))
NO_ROTATION = dict(no_rope_layers=[1, 0, 1])

SIMILAR: Mapping[str, Mapping[str, Any]] = {
    "arcee": {**GROUPED, "head_dim": 8, "attention_bias": True},
    "seed_oss": {**GROUPED, "head_dim": 12, "attention_out_bias": True},
    "helium": {**GROUPED, "head_dim": 8},
    "ernie4_5": {**GROUPED, "head_dim": 12, "use_bias": True},
    "ernie4_5_moe": {**GROUPED, "moe_num_experts": 2, "moe_k": 1, "moe_intermediate_size": 16},
    "apertus": {**GROUPED, "rope_parameters": dict(rope_type="default", rope_theta=1e4)},
    "nemotron": {**GROUPED, **HALF, "head_dim": 8},
    "eurobert": {**GROUPED, "head_dim": 8, "mask_token_id": 3},
    "granite": {**GROUPED, "attention_multiplier": 0.2},
    "granitemoe": {**GROUPED, **EXPERTS, "attention_multiplier": 0.2},
    "granitemoeshared": {**GROUPED, **EXPERTS, "attention_multiplier": 0.2, "shared_intermediate_size": 16},
    "mixtral": {**GROUPED, **EXPERTS, "sliding_window": 5},
    "ministral": {**GROUPED, **SLIDING, "head_dim": 8},
    "qwen2_moe": {
        **GROUPED,
        **SLIDING,
        "use_sliding_window": True,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "qwen3_moe": {
        **GROUPED,
        "head_dim": 12,
        "use_sliding_window": True,
        "sliding_window": 5,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
    },
    "dots1": {
        **GROUPED,
        **SLIDING,
        "head_dim": 12,
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
    },
    "qwen2_vl_text": {**GROUPED, **THREE_WAYS},
    "qwen2_5_vl_text": {**GROUPED, **THREE_WAYS, **SLIDING, "use_sliding_window": True},
    "qwen3_vl_text": {**GROUPED, **THREE_WAYS, "head_dim": 8},
    "qwen3_vl_moe_text": {**GROUPED, **THREE_WAYS, **ROUTED, "head_dim": 8},
    "olmo": {**GROUPED, "clip_qkv": 1.0},
    "olmo3": {**GROUPED, **SLIDING},
    "olmoe": {**GROUPED, "num_experts": 2, "num_experts_per_tok": 1},
    "smollm3": {**GROUPED, **SLIDING, **NO_ROTATION, "use_sliding_window": True},
    "cohere": {**GROUPED, "use_qk_norm": True},
    "cohere2": {**GROUPED, **SLIDING, "head_dim": 8},
    "exaone4": {**GROUPED, **SLIDING},
    "glm": {**GROUPED, **HALF, "head_dim": 8, "attention_bias": True},
    "glm4": {**GROUPED, **HALF, "head_dim": 8, "attention_bias": True},
    "glm4_moe": {
        **GROUPED,
        **HALF,
        "head_dim": 8,
        "attention_bias": True,
        "use_qk_norm": True,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
    },
    "qwen3_5_text": {**GROUPED, **LINEAR, "head_dim": 8, "layer_types": MIXED},
    "qwen3_5_moe_text": {
        **GROUPED,
        **LINEAR,
        **ROUTED,
        "head_dim": 8,
        "layer_types": MIXED,
        "shared_expert_intermediate_size": 16,
    },
    "granitemoehybrid": {
        **GROUPED,
        **EXPERTS,
        "attention_multiplier": 0.2,
        "layer_types": MAMBA,
        "shared_intermediate_size": 16,
        "mamba_n_heads": 4,
        "mamba_d_head": 24,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
    },
    "granitemoehybrid/rope": {
        **GROUPED,
        **EXPERTS,
        "attention_multiplier": 0.2,
        "layer_types": ["attention"] * 3,
        "position_embedding_type": "rope",
        "shared_intermediate_size": 16,
        "mamba_n_heads": 4,
        "mamba_d_head": 24,
    },
    "lfm2": {**GROUPED, "layer_types": ["conv", "full_attention", "full_attention"]},
    "ministral3": {
        **GROUPED,
        "head_dim": 8,
        "sliding_window": 9,
        "rope_parameters": dict(
            rope_type="yarn",
            rope_theta=1e4,
            factor=4.0,
            original_max_position_embeddings=16,
            llama_4_scaling_beta=0.5,
        ),
    },
    "gemma4_text/keys-as-values": {
        **GROUPED,
        "head_dim": 8,
        "global_head_dim": 12,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "hidden_size_per_layer_input": 0,
    },
    "xlm-roberta": dict(max_position_embeddings=66, pad_token_id=1),
    "camembert": dict(max_position_embeddings=66, pad_token_id=1),
    "electra": dict(embedding_size=16),
    "ernie": {},
    "deberta-v2/own-projections": dict(
        relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=12, position_biased_input=True
    ),
    "deberta-v2/plain": dict(relative_attention=False),
    "deepseek_v3/one-query-matrix": {
        **LATENT,
        "q_lora_rank": None,
        "rope_interleave": False,
        "first_k_dense_replace": 3,
    },
    "deepseek_v2": {
        **LATENT,
        "q_lora_rank": 20,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "first_k_dense_replace": 2,
        "moe_intermediate_size": 16,
    },
    "vaultgemma": {**GROUPED, **SLIDING, "head_dim": 12, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 0.7},
}

VISION = dict(
    hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=14
)
WHOLE: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # family of the text part: models that contain it, each with its other settings
    "gemma3_text": {"gemma3": dict(vision_config=VISION, mm_tokens_per_image=1)},
    "gemma4_text": {"gemma4": dict(vision_config={**VISION, "head_dim": 8}, audio_config=None)},
    "qwen3_5_text": {
        "qwen3_5": dict(
            vision_config=dict(hidden_size=16, intermediate_size=16, depth=1, num_heads=2, out_hidden_size=48)
        )
    },
    "qwen2_5_vl_text": {
        "qwen2_5_vl": dict(
            vision_config=dict(hidden_size=16, intermediate_size=16, depth=1, num_heads=2, out_hidden_size=48)
        )
    },
    "qwen3_vl_text": {
        "qwen3_vl": dict(
            vision_config=dict(
                hidden_size=16,
                intermediate_size=16,
                depth=1,
                num_heads=2,
                out_hidden_size=48,
                deepstack_visual_indexes=[0],
            )
        )
    },
    "llama4_text": {
        "llama4": dict(
            pad_token_id=0,
            vision_config={**VISION, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16},
        )
    },
    "llama": {"llava": dict(vision_config={**VISION, "model_type": "clip_vision_model", "projection_dim": 16})},
    "mistral": {"mistral3": dict(vision_config={**VISION, "model_type": "pixtral", "head_dim": 8})},
}
"""Models for text and images: the text part is described, the rest is left alone."""
