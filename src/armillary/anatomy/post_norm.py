"""Llama with the norms after the sums (post-LN), which transformers cannot express: config.armillary_norm = 'post'.

h = norm(x + attention(x)), y = norm(h + mlp(h)), and no norm after the last block. The weights have Llama's own names:
input_layernorm is the norm after attention, post_attention_layernorm the one after the MLP. The last norm of Llama
stays in the checkpoint, unused.
"""

from typing import Any

from torch import Tensor, nn

from armillary.errors import ArmillaryError

# Imports inside functions: transformers takes seconds to import.

FAMILIES = ("llama",)
"""The families that can be changed so."""


def is_post_norm(config: Any) -> bool:
    """Whether this configuration asks for norms after the sums in a family that has none."""
    return getattr(config, "armillary_norm", None) == "post"


def put_norms_after(model: Any) -> None:
    """Change a Llama model in place to norms after the sums; its configuration then says so."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

    class PostNormLlamaLayer(LlamaDecoderLayer):  # type: ignore[misc]
        """A block of Llama whose norms come after the sums."""

        def forward(self, hidden_states: Tensor, **arguments: Any) -> Tensor:
            attended, _ = self.self_attn(hidden_states=hidden_states, **arguments)
            hidden_states = self.input_layernorm(hidden_states + attended)
            after: Tensor = self.post_attention_layernorm(hidden_states + self.mlp(hidden_states))
            return after

    class UnusedNorm(LlamaRMSNorm):  # type: ignore[misc]
        """The norm after the last block, which this layout does not have."""

        def forward(self, hidden_states: Tensor) -> Tensor:
            return hidden_states

    if model.config.model_type not in FAMILIES:
        raise ArmillaryError(
            f"the norms of a {model.config.model_type} model cannot be put after its sums",
            advice=f"this is known for {', '.join(FAMILIES)}; OPT and BLOOM have such a layout of their own",
        )
    base = model.base_model
    for layer in base.layers:
        layer.__class__ = PostNormLlamaLayer
    base.norm.__class__ = UnusedNorm
    _freeze(base.norm)
    model.config.armillary_norm = "post"


def _freeze(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
