"""Builds the model of a run: a new one with random weights from the seed, or one that exists, with its changes."""

from typing import Any

import torch

from armillary.anatomy.devices import moved, pick_device, pick_dtype
from armillary.anatomy.loading import load
from armillary.anatomy.options import ModelOptions
from armillary.anatomy.placing import place_randomly
from armillary.anatomy.post_norm import put_norms_after
from armillary.anatomy.rotary_buffers import apply
from armillary.machine.limits import refuse_beyond_memory
from armillary.training.config import RunConfig, position_of
from armillary.training.data import Text
from armillary.training.position_tables import fill_table, freeze_table
from armillary.training.positions import change_position, random_positions, rope_parameters, rotary_change
from armillary.training.regularizers import LocAteR, linear_layers, sigma_reparam
from armillary.training.settings import ModelConfig

# Imports inside functions: transformers takes seconds to import.


def build(config: RunConfig, text: Text, options: ModelOptions | None = None) -> tuple[Any, LocAteR | None]:
    """The model in its initial state, on its device, and its LocAteR penalty, if any.

    New weights are drawn on the CPU: they are the same on every device.
    """
    torch.manual_seed(config.training.seed)
    if config.model.from_ is None:
        model = _placed(_new(config, text, options), options)
    else:
        model = source_model(config, options)
        change_position(model, config.model, config.training.length, config.training.seed)
    if config.training.train == "attention":
        only_attention(model)
    penalty = None
    if config.regularizer.kind == "locater":
        regularizer = config.regularizer
        penalty = LocAteR(model, regularizer.scale, regularizer.mean, regularizer.target)
    elif config.regularizer.kind == "sigma-reparam":
        sigma_reparam(model)
    return model, penalty


def only_attention(model: Any) -> None:
    """Only W_q, W_k, W_v and W_o, and their biases, are trained from now on."""
    model.requires_grad_(False)
    for _, module in linear_layers(model, "attention"):
        module.requires_grad_(True)


def source_model(config: RunConfig, options: ModelOptions | None = None) -> Any:
    """The model that a run continues from, unchanged, in float32 unless another precision was asked for."""
    assert config.model.from_ is not None
    chosen: dict[str, Any] = {name: value for name, value in (options or {}).items() if value is not None}
    if chosen.get("dtype", "auto") == "auto":
        chosen["dtype"] = torch.float32
    model = load(config.model.from_, **chosen)
    model.config.use_cache = False
    model.loss_type = "ForCausalLM"
    return model


def _new(config: RunConfig, text: Text, options: ModelOptions | None) -> Any:
    """A model with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    refuse_too_large(config, len(text.tokenizer))
    shape = config.model
    eos = text.tokenizer.eos_token_id
    bos = eos if text.tokenizer.bos_token_id is None else text.tokenizer.bos_token_id
    ids = dict(vocab_size=len(text.tokenizer), bos_token_id=bos, eos_token_id=eos, pad_token_id=None)
    scheme = rotary_change(config)
    model_config = AutoConfig.for_model(
        family_of(shape), **ids, **_settings(config), **({"armillary_rotary": scheme} if scheme else {})
    )
    model_config.use_cache = False
    model = AutoModelForCausalLM.from_config(model_config, **_attention(options))
    model.loss_type = "ForCausalLM"
    if scheme:
        apply(model, scheme)
    position = position_of(shape)
    if shape.family == "llama" and shape.norm == "post":
        put_norms_after(model)
    if shape.family in ("gpt2", "opt") and position == "none":
        freeze_table(model)
    if position == "sinusoidal":
        fill_table(model)
    if position == "random":
        place_randomly(model, random_positions(shape, config.training.length, config.training.seed))
    return model


def family_of(shape: ModelConfig) -> str:
    """The model_type of a new model: GPT-2 has no norms after the sums, OPT is the same with them."""
    return "opt" if shape.family == "gpt2" and shape.norm == "post" else shape.family


def _settings(config: RunConfig) -> dict[str, Any]:
    """The configuration of a new model, besides its tokens."""
    shape, length, family = config.model, config.training.length, family_of(config.model)
    table = random_positions(shape, length, 0).range if position_of(shape) == "random" else length
    if family == "llama":
        return dict(
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads or shape.heads,
            intermediate_size=shape.mlp or 8 * shape.width // 3,
            max_position_embeddings=length,
            rope_parameters=rope_parameters(config),
            tie_word_embeddings=True,
        )
    if family == "gpt2":
        return dict(
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_inner=shape.mlp,
            n_positions=table,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    if family == "opt":
        return dict(
            hidden_size=shape.width,
            word_embed_proj_dim=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            ffn_dim=shape.mlp or 4 * shape.width,
            max_position_embeddings=table,
            do_layer_norm_before=shape.norm == "pre",
            activation_function="gelu_new" if shape.family == "gpt2" else "relu",
            dropout=0.0,
            attention_dropout=0.0,
        )
    return dict(
        hidden_size=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # its sums are then of normalized vectors: norms after the sums, and one after the embeddings
        apply_residual_connection_post_layernorm=shape.norm == "post",
    )


def _attention(options: ModelOptions | None) -> dict[str, str]:
    chosen = None if options is None else options.get("attn_implementation")
    return {} if chosen is None else {"attn_implementation": chosen}


def _placed(model: Any, options: ModelOptions | None) -> Any:
    """The model on its device, in float32 unless another precision was asked for."""
    if options is None:
        return model
    device = pick_device(options["device"])
    dtype = pick_dtype(options["dtype"], device)
    return moved(model if isinstance(dtype, str) else model.to(dtype), device)


def refuse_too_large(config: RunConfig, vocabulary: int) -> None:
    """Raise if the model does not fit in memory: 16 bytes per weight (weight, gradient, two moments of AdamW).

    In addition, some 40 kB of Python per layer, and the activations stored for the backward pass: fourteen vectors and
    the MLP's of every token in every layer, and the logits with their gradient, in float32.
    """
    shape, tokens = config.model, config.training.batch * config.training.length
    mlp = shape.mlp or 4 * shape.width
    weights = shape.layers * (4 * shape.width**2 + 2 * shape.width * mlp) + vocabulary * shape.width
    activations = tokens * (shape.layers * (14 * shape.width + 2 * mlp) + 2 * vocabulary)
    refuse_beyond_memory(
        16.0 * weights + 4.0 * activations + 4e4 * shape.layers,
        f"a model of {shape.layers} layers of width {shape.width} on {config.training.batch} x "
        f"{config.training.length} tokens a step",
        "train a smaller model, or use smaller batches",
    )
