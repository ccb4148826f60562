"""How the tap reads families that bypass transformers' attention interface.

An adapter names its entry here in `watched_as`; similar families share one.
"""

import sys
from typing import Any

from torch import Tensor

from armillary.errors import ArmillaryError
from armillary.observe.view import AttentionView, split_mask
from armillary.observe.watch import Watch, masked, watch_method, watch_parts, watch_projection


def read_gpt2_upcast(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> AttentionView:
    scale = getattr(module, "scaling", None)
    if scale is None:  # before transformers 5.4
        scale = module.head_dim**-0.5 if module.scale_attn_weights else 1.0
        scale = scale / (module.layer_idx + 1) if module.scale_attn_by_inverse_layer_idx else scale
    return AttentionView(q, k, v, float(scale), **masked(mask, k.shape[2]))


def read_gpt_neo(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> AttentionView:
    queries, keys = q.shape[2], k.shape[2]
    allowed = module.bias[:, :, keys - queries : keys, :keys]
    if mask is not None:
        allowed = allowed & split_mask(mask, keys)[0]
    return AttentionView(q, k, v, 1.0, mask=allowed)


def read_scaled(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> AttentionView:
    return AttentionView(q, k, v, 1 / float(module.scale_attn), **masked(mask, k.shape[2]))


def read_bloom(module: Any, arguments: dict[str, Any], fused: Tensor) -> AttentionView:
    q, k, v = fused.unflatten(-1, (module.num_heads, 3, -1)).permute(3, 0, 2, 1, 4)
    alibi = arguments["alibi"].unflatten(0, (q.shape[0], q.shape[1])) * module.beta
    mask = arguments["attention_mask"]
    allowed = None if mask is None else split_mask(mask, k.shape[2])[0]
    return AttentionView(q, k, v, float(module.inv_norm_factor), mask=allowed, bias=alibi)


def read_mpt(module: Any, arguments: dict[str, Any], fused: Tensor) -> AttentionView:
    if module.clip_qkv:
        fused = fused.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = fused.unflatten(-1, (3, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    hidden, bias = arguments.get("attention_mask"), arguments.get("position_bias")
    bias = None if bias is None else bias[None, :, -q.shape[2] :, -k.shape[2] :].to(q.dtype)
    mask = None if hidden is None else ~hidden
    return AttentionView(q, k, v, float(module.softmax_scale), mask=mask, bias=bias)


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
        # the mask contains the ALiBi bias; this branch of the model's code adds it a second time
        second = alibi.reshape(q.shape[0], module.num_heads, 1, -1) * module.inv_norm_factor
        fields["bias"] = second if fields["bias"] is None else fields["bias"] + second
    return AttentionView(q, k, v, float(module.inv_norm_factor), causal=mask is None, **fields)


def read_mpnet(module: Any, arguments: dict[str, Any], q: Tensor, k: Tensor, v: Tensor) -> AttentionView:
    fields = masked(arguments.get("attention_mask"), k.shape[2])
    by_distance = arguments.get("position_bias")
    if by_distance is not None:
        fields["bias"] = by_distance if fields["bias"] is None else fields["bias"] + by_distance
    return AttentionView(q, k, v, q.shape[-1] ** -0.5, **fields)


def read_deberta(module: Any, arguments: dict[str, Any], q: Tensor, k: Tensor, v: Tensor) -> AttentionView:
    if arguments.get("query_states") is not None:
        raise ArmillaryError("the tap cannot follow DeBERTa's enhanced mask decoder, which gives queries of its own")
    parts = 1 + len({"c2p", "p2c"} & set(module.pos_att_type))
    bias = arguments.get("disentangled_attention_bias")
    bias = bias.unflatten(0, (q.shape[0], q.shape[1])) if isinstance(bias, Tensor) else None
    mask = arguments["attention_mask"].bool()
    return AttentionView(q, k, v, (q.shape[-1] * parts) ** -0.5, mask=mask, bias=bias)


WATCHES: dict[str, Watch] = {
    "gpt2": watch_method("_upcast_and_reordered_attn", read_gpt2_upcast, heads_first=False),
    "gpt_neo": watch_method("_attn", read_gpt_neo),
    "gptj": watch_method("_attn", read_scaled),
    "bloom": watch_projection("query_key_value", "dense", read_bloom),
    "mpt": watch_projection("Wqkv", "out_proj", read_mpt),
    "mpnet": watch_parts(("q", "k", "v"), read_mpnet, output="o"),
    "deberta-v2": watch_parts(
        ("query_proj", "key_proj", "value_proj"), read_deberta, method="disentangled_attention_bias"
    ),
    "falcon": watch_projection("query_key_value", "dense", read_falcon),
}
"""By the name in an adapter's `watched_as`."""


def watch_for(watched_as: str) -> Watch | None:
    """The watch for modules of a family; None for families that use the interface."""
    if watched_as and watched_as not in WATCHES:
        raise ArmillaryError(
            f"the adapter says watched_as={watched_as!r}, which has no entry in armillary.observe.bypassing.WATCHES",
            advice=f"add one, or use one of {', '.join(WATCHES)}",
        )
    return WATCHES.get(watched_as)
