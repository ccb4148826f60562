"""Settings that samples share: few layers and heads, so that a model is made in milliseconds."""

from typing import Any

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
LINEAR = dict(
    linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, pad_token_id=0
)
ROUTED = dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)
LATENT = dict(num_key_value_heads=6, kv_lora_rank=16, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=10)
