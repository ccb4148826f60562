"""Samples of models that do not simply read a text: encoder-decoders with their parts, and image encoders."""

from collections.abc import Mapping
from typing import Any

T5_SIZES = dict(
    d_model=48, d_kv=10, d_ff=64, num_layers=3, num_decoder_layers=2, num_heads=6, relative_attention_num_buckets=8
)
SEQ2SEQ = dict(
    d_model=48,
    encoder_layers=3,
    decoder_layers=2,
    encoder_attention_heads=6,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
)
SOUND = dict(**SEQ2SEQ, max_source_positions=20, max_target_positions=32, num_mel_bins=8, decoder_start_token_id=1)
IMAGE = dict(image_size=32, patch_size=8)
PARTS = ("decoder", "cross")

ENCODER_DECODERS: Mapping[str, Mapping[str, Any]] = {"t5": T5_SIZES, "mt5": T5_SIZES, "bart": SEQ2SEQ, "whisper": SOUND}

OTHER: Mapping[str, Mapping[str, Any]] = {
    **{family: settings for family, settings in ENCODER_DECODERS.items() if family != "t5"},
    **{f"{family}/{part}": settings for family, settings in ENCODER_DECODERS.items() for part in PARTS},
    "vit": IMAGE,
    "deit": IMAGE,
    "dinov2": IMAGE,
    "dinov2_with_registers": dict(**IMAGE, num_register_tokens=3),
    "dinov3_vit": dict(**IMAGE, num_register_tokens=3),
    "siglip_vision_model": IMAGE,
    "clip_vision_model": IMAGE,
}


def part_of(name: str) -> str:
    """The part of an encoder-decoder that a sample stands for; '' for the encoder, and for any other model."""
    variant = name.partition("/")[2]
    return variant if variant in PARTS and name in OTHER else ""
