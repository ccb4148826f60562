"""Encoders that follow BERT (XLM-R, ELECTRA, ...), MPNet with its bias by distance, DeBERTa with its position terms."""

from dataclasses import replace

import torch
from torch import Tensor

from armillary.anatomy.adapter import Adapter, Config
from armillary.anatomy.description import Disentangled, Layer, RelativeBias
from armillary.anatomy.families.bert import BERT, roberta_positions
from armillary.anatomy.weights import LayerWeights, Projection, Read, head_matrices, stored
from armillary.errors import ArmillaryError

ADAPTERS: list[Adapter] = []

for family in ("xlm-roberta", "camembert"):
    ADAPTERS.append(replace(BERT, family=family, max_positions=roberta_positions))
for family in ("electra", "ernie"):
    ADAPTERS.append(replace(BERT, family=family))
# MPNet ----------------------------------------------------------------------------------------------------------


def mpnet_buckets(config: Config, layer: int) -> RelativeBias:
    """The model's code always counts 32 buckets up to a distance of 128."""
    if config.relative_attention_num_buckets != 32:
        raise ArmillaryError(
            f"the configuration has relative_attention_num_buckets={config.relative_attention_num_buckets!r}, but "
            "mpnet models count 32"
        )
    return RelativeBias(32, 128, bidirectional=True)


ADAPTERS.append(
    replace(
        BERT,
        family="mpnet",
        attention="attention.attn",
        q=Projection("attention.attn.q"),
        k=Projection("attention.attn.k"),
        v=Projection("attention.attn.v"),
        o=Projection("attention.attn.o"),
        causal=lambda config: False,
        position=mpnet_buckets,
        relative_bias="../../relative_attention_bias.weight",
        max_positions=lambda config: int(config.max_position_embeddings) - 2,
        understands=frozenset({"relative_attention_num_buckets"}),
        watched_as="mpnet",
    )
)

# DeBERTa (second and third version) -------------------------------------------------------------------------------


def terms_of(config: Config) -> tuple[str, ...]:
    terms = tuple(config.pos_att_type or ())
    for term in terms:
        if term not in ("c2p", "p2c"):
            raise ArmillaryError(f"the configuration has {term!r} in pos_att_type; known are c2p and p2c")
    return terms


def deberta_position(config: Config, layer: int) -> Disentangled | None:
    if not config.relative_attention:
        return None
    farthest = int(getattr(config, "max_relative_positions", -1))
    farthest = farthest if farthest > 0 else int(config.max_position_embeddings)
    buckets = max(0, int(getattr(config, "position_buckets", -1)))
    normalized = "layer_norm" in str(getattr(config, "norm_rel_ebd", "none")).lower().split("|")
    return Disentangled(
        buckets,
        farthest,
        terms_of(config),
        shared=bool(getattr(config, "share_att_key", False)),
        eps=float(config.layer_norm_eps) if normalized else None,
    )


class DisentangledAdapter(Adapter):
    """Adds the positions' own keys and queries: relative embeddings through the projections for positions."""

    def layer_weights(self, layer: Layer, d_model: int, read: Read) -> LayerWeights:
        weights = super().layer_weights(layer, d_model, read)
        scheme = layer.position
        if not isinstance(scheme, Disentangled):
            return weights
        table = stored(read, "../../rel_embeddings.weight")[: 2 * scheme.span]
        if scheme.eps is not None:
            gain, shift = stored(read, "../../LayerNorm.weight"), stored(read, "../../LayerNorm.bias")
            table = torch.nn.functional.layer_norm(table, (d_model,), gain, shift, scheme.eps)
        names = ("query_proj", "key_proj") if scheme.shared else ("pos_query_proj", "pos_key_proj")
        q, k = (f"attention.self.{name}" for name in names)
        return replace(
            weights,
            relative_queries=_projected(layer, d_model, read, q, table) if "p2c" in scheme.terms else None,
            relative_keys=_projected(layer, d_model, read, k, table) if "c2p" in scheme.terms else None,
        )


def _projected(layer: Layer, d_model: int, read: Read, name: str, table: Tensor) -> Tensor:
    """The relative embeddings through a projection, of every head: (head, bucket, e)."""
    matrices, biases = head_matrices(read, Projection(name), "q", (d_model, layer.head_width, layer.heads, layer.heads))
    projected = torch.stack([table @ matrix for matrix in matrices])
    return projected if biases is None else projected + torch.stack(biases)[:, None, :]


ADAPTERS.append(
    DisentangledAdapter(
        family="deberta-v2",
        blocks="encoder.layer",
        attention="attention.self",
        q=Projection("attention.self.query_proj"),
        k=Projection("attention.self.key_proj"),
        v=Projection("attention.self.value_proj"),
        o=Projection("attention.output.dense"),
        mlp=BERT.mlp,
        norm="layer",
        norm_place=lambda config: "after",
        causal=lambda config: False,
        scale=lambda config, layer: float(
            (config.hidden_size // config.num_attention_heads * (1 + len(terms_of(config)))) ** -0.5
        ),
        position=deberta_position,
        positions_added=lambda config: "learned" if config.position_biased_input else "none",
        understands=frozenset({"relative_attention", "attention_head_size"}),
        watched_as="deberta-v2",
    )
)
