"""A small random model of every family, for `armillary doctor --verify` and the tests."""

from collections.abc import Mapping
from typing import Any

import torch

from armillary.anatomy.modes import own_random_numbers
from armillary.anatomy.other_samples import OTHER
from armillary.anatomy.sample_sizes import GPT_NAMES, GROUPED, LATENT, LINEAR, ROUTED, SLIDING
from armillary.anatomy.sample_sizes import SMALL as SMALL
from armillary.anatomy.similar_samples import SIMILAR, WHOLE
from armillary.anatomy.versions import attention_options, refuse_missing_type, refuse_too_old
from armillary.errors import ArmillaryError

# Imports inside functions: transformers takes seconds to import.

ENCODERS = ("bert", "roberta", "distilbert", "albert", "modernbert", "xlm-roberta", "camembert", "electra")

DISTINCT: Mapping[str, Mapping[str, Any]] = {
    # family, or family/variant: settings on top of SMALL
    "gpt2": GPT_NAMES,
    "gpt2/inverse-layer-scale": {**GPT_NAMES, "scale_attn_by_inverse_layer_idx": True},
    "gpt_neo": dict(
        attention_types=[[["global", "local"], 1], [["global"], 1]], num_layers=3, num_heads=6, window_size=5
    ),
    "gpt_neox": dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)),
    "gptj": {**GPT_NAMES, "rotary_dim": 4},
    "codegen": {**GPT_NAMES, "n_head": 4, "num_attention_heads": 4, "rotary_dim": 4},
    "bert": {},
    "bert/decoder": dict(is_decoder=True),
    "roberta": dict(max_position_embeddings=66, pad_token_id=1),
    "distilbert": dict(dim=48, n_layers=3, n_heads=6, hidden_dim=64),
    "albert": dict(embedding_size=16),
    "albert/groups": dict(embedding_size=16, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2),
    "modernbert": dict(
        local_attention=8,
        layer_types=SLIDING["layer_types"],
        attention_bias=True,
        cls_token_id=3,
        sep_token_id=4,
    ),
    "opt": dict(ffn_dim=64, word_embed_proj_dim=48),
    "bloom": dict(n_layer=3, n_head=6),
    "falcon": dict(multi_query=True, bias=True),
    "falcon/grouped": dict(new_decoder_architecture=True, num_kv_heads=2),
    "falcon/alibi": dict(alibi=True, multi_query=False, new_decoder_architecture=False),
    "mpt": dict(d_model=48, n_layers=3, n_heads=6, max_seq_len=64, expansion_ratio=2),
    "mpt/clipped": dict(
        d_model=48, n_layers=3, n_heads=8, max_seq_len=64, expansion_ratio=2, attn_config=dict(clip_qkv=1.0)
    ),
    "llama": GROUPED,
    "llama/yarn": {
        **GROUPED,
        "rope_parameters": dict(
            rope_type="yarn",
            rope_theta=1e4,
            factor=4.0,
            original_max_position_embeddings=16,
            attention_factor=1.2,
        ),
    },
    "llama/llama3": dict(
        attention_bias=True,
        rope_parameters=dict(
            rope_type="llama3",
            rope_theta=1e4,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "llama/dynamic": dict(
        max_position_embeddings=16, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)
    ),
    "mistral": {**GROUPED, "sliding_window": 5},
    "qwen2": {**GROUPED, **SLIDING, "use_sliding_window": True},
    "qwen3": {**GROUPED, "head_dim": 12},
    "gemma": {**GROUPED, "head_dim": 12},
    "gemma2": {
        **GROUPED,
        **SLIDING,
        "head_dim": 12,
        "query_pre_attn_scalar": 7,
        "attn_logit_softcapping": 0.7,
    },
    "gemma3_text": {
        **GROUPED,
        **SLIDING,
        "head_dim": 12,
        "rope_parameters": {
            "sliding_attention": dict(rope_type="default", rope_theta=1e3),
            "full_attention": dict(rope_type="linear", rope_theta=1e5, factor=2.0),
        },
    },
    "phi": {
        **GROUPED,
        "rope_parameters": dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
    },
    "phi/qk-norm": dict(qk_layernorm=True),
    "phi3": {**GROUPED, "sliding_window": 7},
    "phi3/longrope": dict(
        original_max_position_embeddings=16,
        rope_parameters=dict(
            rope_type="longrope",
            rope_theta=1e4,
            short_factor=[1.0, 1.1, 1.2, 1.3],
            long_factor=[1.0, 2.0, 3.0, 4.0],
            original_max_position_embeddings=16,
            factor=4.0,
        ),
    ),
    "olmo2": GROUPED,
    "stablelm": {**GROUPED, "use_qkv_bias": True},
    "stablelm/qk-norm": {**GROUPED, "qk_layernorm": True},
    "starcoder2": {**GROUPED, "sliding_window": 9},
    "gpt_oss": {
        **GROUPED,
        **SLIDING,
        "head_dim": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "rope_parameters": dict(
            rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, truncate=False
        ),
    },
    "qwen3_next": {
        **GROUPED,
        "head_dim": 8,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        **LINEAR,
        **ROUTED,
        "shared_expert_intermediate_size": 16,
    },
    "llama4_text": {
        **GROUPED,
        "head_dim": 8,
        "no_rope_layers": [1, 0, 1],
        "attention_chunk_size": 7,
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        "floor_scale": 4,
        "attn_scale": 0.5,
        "num_local_experts": 2,
        "intermediate_size_mlp": 32,
    },
    "gemma4_text": {
        **GROUPED,
        "head_dim": 8,
        "global_head_dim": 12,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 99,
    },
    "mpnet": dict(max_position_embeddings=66, pad_token_id=1),
    "deberta-v2": dict(
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=6,
        max_relative_positions=30,
        position_biased_input=False,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    "deepseek_v3": {
        **LATENT,
        "q_lora_rank": 20,
        "attention_bias": True,
        "rope_interleave": True,
        "n_routed_experts": 2,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 1,
        "first_k_dense_replace": 2,
        "moe_intermediate_size": 16,
        "rope_parameters": dict(
            rope_type="yarn",
            rope_theta=1e4,
            factor=4.0,
            original_max_position_embeddings=16,
            mscale=1.0,
            mscale_all_dim=0.7,
        ),
    },
    "t5": dict(d_model=48, d_kv=10, d_ff=64, num_layers=3, num_heads=6, relative_attention_num_buckets=8),
}
"""Samples that differ in how attention is computed; what holds for these is tested on each of them."""

SAMPLES: Mapping[str, Mapping[str, Any]] = {
    **DISTINCT,
    **SIMILAR,
    **{f"{family}/{outer}": settings for family, models in WHOLE.items() for outer, settings in models.items()},
    **OTHER,
}
"""All samples. The similar ones differ from a distinct one in names and settings, which verification checks."""


def sample_config(name: str) -> Any:
    """The configuration of a sample: a family, or family/variant."""
    from transformers import AutoConfig

    family, _, variant = name.partition("/")
    refuse_missing_type(family)
    if variant in WHOLE.get(family, {}):  # a model for several kinds of input, of which the family is the text part
        refuse_missing_type(variant)
        outer = WHOLE[family][variant]
        text = {**SMALL, **SAMPLES[family], "model_type": family}
        config = AutoConfig.for_model(variant, text_config=text, **outer)
    else:
        config = AutoConfig.for_model(family, **{**SMALL, **SAMPLES[name]})
    config.use_cache = False
    return config


def unavailable(name: str) -> str:
    """Why the installed transformers cannot run this sample with a tap; empty if it can."""
    try:
        config = sample_config(name)
        config._attn_implementation = attention_options(config).get("attn_implementation", "sdpa")
        refuse_too_old(config)
    except ArmillaryError as error:
        return error.problem
    return ""


@own_random_numbers()
def sample_model(name: str, *, attention: str | None = None, seed: int = 0) -> Any:
    """A random model of that sample; biases and gains are random too, so that no term of the logits is zero."""
    import transformers

    config = sample_config(name)
    torch.manual_seed(seed)
    options = attention_options(config) if attention is None else {"attn_implementation": attention}
    if name == "t5":
        model = transformers.T5EncoderModel._from_config(config, **options)
    elif name in OTHER:
        model = transformers.AutoModel.from_config(config, **options)
    else:
        whole = type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        generates = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and name.split("/")[0] not in ENCODERS
        loader = transformers.AutoModelForCausalLM if generates else transformers.AutoModel
        loader = transformers.AutoModelForImageTextToText if whole else loader
        model = loader.from_config(config, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or parameter.abs().max() == 0:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()
