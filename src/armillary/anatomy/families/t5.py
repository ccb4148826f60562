"""T5's encoder: no logit scale, a learned bias per bucket of distance, stored in the first block only."""

from armillary.anatomy.adapter import Adapter, Config
from armillary.anatomy.description import RelativeBias
from armillary.anatomy.weights import Dense, Projection

ADAPTERS: list[Adapter] = []


def buckets(config: Config, layer: int) -> RelativeBias:
    return RelativeBias(
        config.relative_attention_num_buckets, config.relative_attention_max_distance, bidirectional=True
    )


T5 = Adapter(
    family="t5",
    blocks="encoder.block",
    attention="layer.0.SelfAttention",
    q=Projection("layer.0.SelfAttention.q"),
    k=Projection("layer.0.SelfAttention.k"),
    v=Projection("layer.0.SelfAttention.v"),
    o=Projection("layer.0.SelfAttention.o"),
    mlp=(
        Dense("gate", "layer.1.DenseReluDense.wi_0"),
        Dense("up", "layer.1.DenseReluDense.wi_1"),
        Dense("up", "layer.1.DenseReluDense.wi"),
        Dense("down", "layer.1.DenseReluDense.wo"),
    ),
    norm="rms",
    kv_heads=lambda config: int(config.num_heads),
    head_width=lambda config: int(config.d_kv),
    scale=lambda config, layer: 1.0,
    causal=lambda config: False,
    position=buckets,
    relative_bias="../0.layer.0.SelfAttention.relative_attention_bias.weight",
    max_positions=lambda config: None,
    understands=frozenset(
        {"relative_attention_num_buckets", "relative_attention_max_distance", "scale_decoder_outputs"}
    ),
)
ADAPTERS.append(T5)
