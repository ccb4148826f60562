"""Image encoders: positions are patches of an image, after special ones such as the class token."""

from dataclasses import replace

from armillary.anatomy.adapter import Adapter, Config, grid_of, head_width_of
from armillary.anatomy.description import GridRotary, geometric
from armillary.anatomy.weights import Dense, Projection

ADAPTERS: list[Adapter] = []


def patches(config: Config) -> int:
    """How many patches an image has."""
    down, across = grid_of(config)
    return down * across


VIT = Adapter(
    family="vit",
    blocks="layers",
    attention="attention",
    q=Projection("attention.q_proj"),
    k=Projection("attention.k_proj"),
    v=Projection("attention.v_proj"),
    o=Projection("attention.o_proj"),
    mlp=(Dense("up", "mlp.fc1"), Dense("down", "mlp.fc2")),
    norm="layer",
    causal=lambda config: False,
    positions_added=lambda config: "learned",
    max_positions=lambda config: patches(config) + 1,
    positions="patches",
    special_first=lambda config: 1,
    in_files=(
        ("layers.", "encoder.layer."),
        ("attention.q_proj", "attention.attention.query"),
        ("attention.k_proj", "attention.attention.key"),
        ("attention.v_proj", "attention.attention.value"),
        ("attention.o_proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    ),
    renamed_since="5.9",
    understands=frozenset({"qkv_bias"}),
)
ADAPTERS.append(VIT)
ADAPTERS.append(
    replace(
        VIT,
        family="deit",
        special_first=lambda config: 2,  # the class and the distillation token
        max_positions=lambda config: patches(config) + 2,
    )
)

DINOV2 = replace(
    VIT,
    family="dinov2",
    blocks="encoder.layer",
    mlp=(*VIT.mlp, Dense("up", "mlp.weights_in"), Dense("down", "mlp.weights_out")),
    max_positions=lambda config: None,  # positions are interpolated
    in_files=tuple(pair for pair in VIT.in_files if pair[0].startswith("attention")),
    renamed_since="5.18",
)
ADAPTERS.append(DINOV2)
ADAPTERS.append(
    replace(
        DINOV2,
        family="dinov2_with_registers",
        special_first=lambda config: 1 + int(config.num_register_tokens),
        understands=frozenset({"qkv_bias"}),
    )
)

SIGLIP = replace(
    VIT,
    family="siglip_vision_model",
    blocks="encoder.layers",
    attention="self_attn",
    q=Projection("self_attn.q_proj"),
    k=Projection("self_attn.k_proj"),
    v=Projection("self_attn.v_proj"),
    o=Projection("self_attn.out_proj"),
    special_first=lambda config: 0,
    max_positions=patches,
    in_files=(),
    renamed_since="",
    understands=frozenset(),
)
ADAPTERS.append(SIGLIP)
ADAPTERS.append(
    replace(
        SIGLIP,
        family="clip_vision_model",
        special_first=lambda config: 1,
        max_positions=lambda config: patches(config) + 1,
    )
)


def dinov3_special(config: Config) -> int:
    """The class token and the registers."""
    return 1 + int(config.num_register_tokens)


def dinov3_rotary(config: Config, layer: int) -> GridRotary:
    frequencies = geometric(float(config.rope_theta), head_width_of(config) // 2)
    return GridRotary(frequencies, grid_of(config), dinov3_special(config))


ADAPTERS.append(
    replace(
        VIT,
        family="dinov3_vit",
        blocks="layer",
        mlp=(Dense("gate", "mlp.gate_proj"), Dense("up", "mlp.up_proj"), Dense("down", "mlp.down_proj")),
        position=dinov3_rotary,
        positions_added=lambda config: "none",
        max_positions=lambda config: None,
        special_first=dinov3_special,
        in_files=(),
        renamed_since="",
        understands=frozenset({"query_bias"}),
    )
)
