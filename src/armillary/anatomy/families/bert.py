"""BERT and similar families: bidirectional, learned positions; ModernBERT: rotary, windows by layer type."""

from dataclasses import replace

from armillary.anatomy.adapter import Adapter, Config, head_width_of
from armillary.anatomy.description import Rotary
from armillary.anatomy.rotary import rotary_from
from armillary.anatomy.weights import Dense, Projection, stacked
from armillary.errors import ArmillaryError

ADAPTERS: list[Adapter] = []

BERT = Adapter(
    family="bert",
    blocks="encoder.layer",
    attention="attention.self",
    q=Projection("attention.self.query"),
    k=Projection("attention.self.key"),
    v=Projection("attention.self.value"),
    o=Projection("attention.output.dense"),
    mlp=(Dense("up", "intermediate.dense"), Dense("down", "output.dense")),
    norm="layer",
    norm_place=lambda config: "after",
    causal=lambda config: bool(config.is_decoder),
    positions_added=lambda config: "learned",
    hard_limit=True,
    understands=frozenset({"position_embedding_type"}),
    allowed={"position_embedding_type": (None, "absolute")},
)
ADAPTERS.append(BERT)


def roberta_positions(config: Config) -> int:
    """RoBERTa counts positions from the padding index + 1, so that this many of its positions are never used."""
    if config.pad_token_id is None:
        raise ArmillaryError("the configuration has no pad_token_id, from which RoBERTa counts its positions")
    return int(config.max_position_embeddings) - int(config.pad_token_id) - 1


ADAPTERS.append(replace(BERT, family="roberta", max_positions=roberta_positions))

ADAPTERS.append(
    replace(
        BERT,
        family="distilbert",
        blocks="transformer.layer",
        attention="attention",
        q=Projection("attention.q_lin"),
        k=Projection("attention.k_lin"),
        v=Projection("attention.v_lin"),
        o=Projection("attention.out_lin"),
        mlp=(Dense("up", "ffn.lin1"), Dense("down", "ffn.lin2")),
        causal=lambda config: False,
        positions_added=lambda config: "sinusoidal" if config.sinusoidal_pos_embds else "learned",
        understands=BERT.understands | {"sinusoidal_pos_embds"},
    )
)


def albert_block(config: Config, run: int) -> str:
    """ALBERT runs the layers of one group repeatedly, then those of the next group."""
    layer, inner = divmod(run, config.inner_group_num)
    group = int(layer / (config.num_hidden_layers / config.num_hidden_groups))
    return f"{group}.albert_layers.{inner}"


ADAPTERS.append(
    replace(
        BERT,
        family="albert",
        blocks="encoder.albert_layer_groups",
        attention="attention",
        q=Projection("attention.query"),
        k=Projection("attention.key"),
        v=Projection("attention.value"),
        o=Projection("attention.dense"),
        mlp=(Dense("up", "ffn"), Dense("down", "ffn_output")),
        causal=lambda config: False,
        runs=lambda config: int(config.num_hidden_layers) * int(config.inner_group_num),
        block_of=albert_block,
        shared_layers=True,
    )
)


def modernbert_rotary(config: Config, layer: int) -> Rotary | None:
    return rotary_from(config, layer, head_width=head_width_of(config))


def modernbert_window(config: Config, layer: int) -> int | None:
    """Keys at a distance below the window, on both sides; config.sliding_window counts one side."""
    return int(config.sliding_window) + 1 if config.layer_types[layer] == "sliding_attention" else None


FUSED = Projection("attn.Wqkv", rows=stacked)
ADAPTERS.append(
    Adapter(
        family="modernbert",
        blocks="layers",
        attention="attn",
        q=FUSED,
        k=FUSED,
        v=FUSED,
        o=Projection("attn.Wo"),
        mlp=(
            Dense("up", "mlp.Wi", part=0, parts=2),
            Dense("gate", "mlp.Wi", part=1, parts=2),
            Dense("down", "mlp.Wo"),
        ),
        norm="layer",
        causal=lambda config: False,
        position=modernbert_rotary,
        window=modernbert_window,
        understands=frozenset(
            {
                "layer_types",
                "local_attention",
                "global_attn_every_n_layers",
                "global_rope_theta",
                "local_rope_theta",
            }
            | {"position_embedding_type", "sliding_window"}
        ),
        allowed={"position_embedding_type": (None, "absolute")},
    )
)
