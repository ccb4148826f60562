"""Encoder-decoders: BART and Whisper, more T5s, and their decoders' two kinds of attention as parts of their own.

ADAPTERS describe the encoder; PARTS the decoder's attention to its own text, and its cross-attention, whose keys and
values are computed from the encoder's output.
"""

from dataclasses import replace

from armillary.anatomy.adapter import Adapter, Config
from armillary.anatomy.description import RelativeBias
from armillary.anatomy.families.t5 import T5
from armillary.anatomy.weights import Dense, Projection

ADAPTERS: list[Adapter] = []
PARTS: list[Adapter] = []

# T5 and mT5 -----------------------------------------------------------------------------------------------------


def buckets_behind(config: Config, layer: int) -> RelativeBias:
    return RelativeBias(
        config.relative_attention_num_buckets, config.relative_attention_max_distance, bidirectional=False
    )


def t5_decoder_layers(config: Config) -> int:
    return int(config.num_decoder_layers)


T5_DECODER = replace(
    T5,
    part="decoder",
    blocks="decoder.block",
    runs=t5_decoder_layers,
    causal=lambda config: True,
    position=buckets_behind,
    mlp=tuple(replace(dense, name=dense.name.replace("layer.1", "layer.2")) for dense in T5.mlp),
)
T5_CROSS = replace(
    T5_DECODER,
    part="cross",
    attention="layer.1.EncDecAttention",
    q=Projection("layer.1.EncDecAttention.q"),
    k=Projection("layer.1.EncDecAttention.k"),
    v=Projection("layer.1.EncDecAttention.v"),
    o=Projection("layer.1.EncDecAttention.o"),
    causal=lambda config: False,
    position=lambda config, layer: None,
    relative_bias="",
)
ADAPTERS.append(replace(T5, family="mt5"))
for whole in ("t5", "mt5"):
    PARTS += [replace(T5_DECODER, family=whole), replace(T5_CROSS, family=whole)]

# BART -----------------------------------------------------------------------------------------------------------

BART = Adapter(
    family="bart",
    blocks="encoder.layers",
    attention="self_attn",
    q=Projection("self_attn.q_proj"),
    k=Projection("self_attn.k_proj"),
    v=Projection("self_attn.v_proj"),
    o=Projection("self_attn.out_proj"),
    mlp=(Dense("up", "fc1"), Dense("down", "fc2")),
    norm="layer",
    norm_place=lambda config: "after",
    heads=lambda config: int(config.encoder_attention_heads),
    kv_heads=lambda config: int(config.encoder_attention_heads),
    head_width=lambda config: int(config.d_model) // int(config.encoder_attention_heads),
    scale=lambda config, layer: float((config.d_model // config.encoder_attention_heads) ** -0.5),
    causal=lambda config: False,
    positions_added=lambda config: "learned",
    hard_limit=True,
    runs=lambda config: int(config.encoder_layers),
    understands=frozenset({"encoder_attention_heads", "decoder_attention_heads"}),
)
ADAPTERS.append(BART)


def decoder_of(encoder: Adapter) -> Adapter:
    """The decoder's attention to its own text, in a family that names its parts as BART does."""
    return replace(
        encoder,
        part="decoder",
        blocks="decoder.layers",
        heads=lambda config: int(config.decoder_attention_heads),
        kv_heads=lambda config: int(config.decoder_attention_heads),
        head_width=lambda config: int(config.d_model) // int(config.decoder_attention_heads),
        scale=lambda config, layer: float((config.d_model // config.decoder_attention_heads) ** -0.5),
        causal=lambda config: True,
        runs=lambda config: int(config.decoder_layers),
        positions="tokens",
    )


def cross_of(decoder: Adapter) -> Adapter:
    """The decoder's attention to the encoder's output."""
    return replace(
        decoder,
        part="cross",
        attention="encoder_attn",
        q=Projection("encoder_attn.q_proj"),
        k=Projection("encoder_attn.k_proj"),
        v=Projection("encoder_attn.v_proj"),
        o=Projection("encoder_attn.out_proj"),
        causal=lambda config: False,
    )


PARTS += [decoder_of(BART), cross_of(decoder_of(BART))]

# Whisper: the encoder reads frames of sound ------------------------------------------------------------------------

WHISPER = replace(
    BART,
    family="whisper",
    norm_place=lambda config: "before",
    positions_added=lambda config: "sinusoidal",
    max_positions=lambda config: int(config.max_source_positions),
    positions="frames",
)
ADAPTERS.append(WHISPER)
WHISPER_DECODER = replace(
    decoder_of(WHISPER),
    positions_added=lambda config: "learned",
    max_positions=lambda config: int(config.max_target_positions),
)
PARTS += [WHISPER_DECODER, cross_of(WHISPER_DECODER)]
