"""A small random model of every family, for `armillary doctor --verify` and the tests."""

from collections.abc import Mapping
from typing import Any

import torch

from armillary.anatomy.modes import own_random_numbers
from armillary.anatomy.versions import attention_options, refuse_missing_type, refuse_too_old
from armillary.errors import ArmillaryError

# Imports inside functions: transformers takes seconds to import.

SMALL: dict[str, Any] = dict(
    vocab_size=99,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=6,
    intermediate_size=64,
    max_position_embeddings=64,
    initializer_range=0.15,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
GROUPED = dict(num_key_value_heads=2)
GPT_NAMES = dict(n_embd=48, n_layer=3, n_head=6, n_positions=64, n_inner=64)
SLIDING = dict(sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"])

ENCODERS = ("bert", "roberta", "distilbert", "albert", "modernbert")

SAMPLES: Mapping[str, Mapping[str, Any]] = {
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
    "t5": dict(d_model=48, d_kv=10, d_ff=64, num_layers=3, num_heads=6, relative_attention_num_buckets=8),
}


def sample_config(name: str) -> Any:
    """The configuration of a sample: a family, or family/variant."""
    from transformers import AutoConfig

    refuse_missing_type(name.split("/")[0])
    config = AutoConfig.for_model(name.split("/")[0], **{**SMALL, **SAMPLES[name]})
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
    else:
        loader = transformers.AutoModel if name.split("/")[0] in ENCODERS else transformers.AutoModelForCausalLM
        model = loader.from_config(config, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or parameter.abs().max() == 0:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()
