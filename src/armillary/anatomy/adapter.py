"""The Adapter: declares where a model family stores its weights and what its configuration means for attention."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from armillary.anatomy.description import Anatomy, Growth, Layer, LayerPosition, NormKind, QKNorm
from armillary.anatomy.limits import refuse_absurd_sizes
from armillary.anatomy.weights import (
    Dense,
    LayerWeights,
    NormWeights,
    Projection,
    Read,
    head_matrices,
    norm_weights,
    output_matrices,
    with_gate,
)
from armillary.errors import ArmillaryError

Config = Any
"""A transformers configuration object."""


def heads_of(config: Config) -> int:
    return int(config.num_attention_heads)


def kv_heads_of(config: Config) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def head_width_of(config: Config) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def inverse_root(config: Config, layer: int) -> float:
    """The usual logit scale, 1 / sqrt(head width)."""
    return float(head_width_of(config) ** -0.5)


def runs_of(config: Config) -> int:
    return int(config.num_hidden_layers)


def max_positions_of(config: Config) -> int | None:
    return getattr(config, "max_position_embeddings", None)


def grid_of(config: Config) -> tuple[int, int]:
    """Patches down and across an image."""

    def pair(value: Any) -> tuple[int, int]:
        return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))

    (high, across), (down, right) = pair(config.image_size), pair(config.patch_size)
    return high // down, across // right


def nothing(config: Config, layer: int = 0) -> None:
    """For a field that the family does not have: no soft-cap, no window, no norm, no position in attention."""
    return


@dataclass(frozen=True)
class Adapter:
    """Everything Armillary knows about a family. Names are paths: `blocks` inside the model, the rest inside a block.

    For a similar family, `dataclasses.replace` another adapter. `understands` lists the configuration keys about
    attention that this declaration takes into account; any other such key that is set raises an error that names it.
    """

    family: str
    blocks: str
    attention: str
    q: Projection
    k: Projection
    v: Projection
    o: Projection
    norm: NormKind
    norm_place: Callable[[Config], Literal["before", "after"]] = lambda config: "before"
    heads: Callable[[Config], int] = heads_of
    kv_heads: Callable[[Config], int] = kv_heads_of
    head_width: Callable[[Config], int] = head_width_of
    scale: Callable[[Config, int], float] = inverse_root
    causal: Callable[[Config], bool] = lambda config: True
    position: Callable[[Config, int], LayerPosition | None] = nothing
    positions_added: Callable[[Config], Literal["learned", "sinusoidal", "none"]] = lambda config: "none"
    max_positions: Callable[[Config], int | None] = max_positions_of
    hard_limit: bool = False
    softcap: Callable[[Config, int], float | None] = nothing
    window: Callable[[Config, int], int | None] = nothing
    clip_qkv: Callable[[Config], float | None] = nothing
    qk_norm: Callable[[Config], QKNorm | None] = nothing
    qk_normed: Callable[[Config, int], bool] = lambda config, layer: True
    """The layers whose q and k are normalized, in a family where only some are."""
    q_norm: str = ""
    k_norm: str = ""
    """Where the norms' gains are stored; none means that they have no gain."""
    chunk: Callable[[Config, int], int | None] = nothing
    growth: Callable[[Config, int], Growth | None] = nothing
    value_norm: Callable[[Config], float | None] = nothing
    instead: Callable[[Config, int], str] = lambda config, layer: ""
    """What a block has instead of attention, such as 'linear_attention'; '' for a block with attention."""
    at_layer: Callable[[Config, int], Config] = lambda config, layer: config
    """The configuration of one layer, in a family whose layers differ in heads or head width."""
    beyond: Callable[[Config], str] = lambda config: ""
    """A sentence on what this declaration cannot describe in a configuration; the model is then treated as unknown."""
    sinks: str = ""
    relative_bias: str = ""
    mlp: tuple[Dense, ...] = ()
    runs: Callable[[Config], int] = runs_of
    block_of: Callable[[Config, int], str] = lambda config, run: str(run)
    shared_layers: bool = False
    understands: frozenset[str] = frozenset()
    allowed: Mapping[str, tuple[Any, ...]] | None = None
    part: Literal["", "decoder", "cross"] = ""
    """Of an encoder-decoder: which part this describes besides the encoder."""
    positions: Literal["tokens", "patches", "frames"] = "tokens"
    in_files: tuple[tuple[str, str], ...] = ()
    """Parts of names in the loaded model, each with what checkpoints have instead, where transformers renames them."""
    renamed_since: str = ""
    """The version of transformers since which it renames them; in older ones the model has the names of checkpoints."""
    special_first: Callable[[Config], int] = lambda config: 0
    """How many positions before the patches of an image are none (the class token, registers)."""
    watched_as: str = ""
    """For families that bypass transformers' attention interface: their entry in observe/bypassing.py."""

    def describe(self, config: Config) -> Anatomy:
        """The anatomy that this configuration describes, without weights."""
        self.refuse_unknown(config)
        first = self.at_layer(config, 0)
        vocabulary = 0 if self.positions == "patches" else int(config.vocab_size)
        refuse_absurd_sizes(
            self.family,
            layers=self.runs(config),
            heads=self.heads(first),
            key_heads=self.kv_heads(first),
            head_width=self.head_width(first),
            model_width=config.hidden_size,
            **({} if self.positions == "patches" else {"vocabulary": vocabulary}),
        )
        instead = [self.instead(config, run) for run in range(self.runs(config))]
        attending = [run for run, other in enumerate(instead) if not other]
        if not attending:
            raise ArmillaryError(f"no block of this {self.family} model has attention: all have {instead[0]}")
        return Anatomy(
            family=self.family,
            d_model=int(config.hidden_size),
            layers=tuple(replace(self.layer(config, run), index=i) for i, run in enumerate(attending)),
            vocabulary=vocabulary,
            max_positions=self.max_positions(config),
            hard_limit=self.hard_limit,
            positions_added=self.positions_added(config),
            norm=self.norm,
            norm_place=self.norm_place(config),
            shared_layers=self.shared_layers,
            part=self.part,
            positions=self.positions,
            special_first=self.special_first(config),
            grid=grid_of(config) if self.positions == "patches" else None,
            skipped=tuple(f"{self.blocks}.{run}: {other}" for run, other in enumerate(instead) if other),
        )

    def layer(self, config: Config, run: int) -> Layer:
        own = self.at_layer(config, run)
        return Layer(
            index=run,
            block=f"{self.blocks}.{self.block_of(config, run)}",
            heads=self.heads(own),
            kv_heads=self.kv_heads(own),
            head_width=self.head_width(own),
            scale=self.scale(config, run),
            causal=self.causal(config),
            position=self.position(config, run),
            qk_norm=self.qk_norm(config) if self.qk_normed(config, run) else None,
            softcap=self.softcap(config, run),
            window=self.window(config, run),
            sinks=bool(self.sinks),
            clip_qkv=self.clip_qkv(config),
            chunk=self.chunk(config, run),
            growth=self.growth(config, run),
            value_norm=self.value_norm(config),
            gated=self.q.rows is with_gate,
            crosses=self.part == "cross",
        )

    def layer_weights(self, layer: Layer, d_model: int, read: Read) -> LayerWeights:
        """The layer's weights, as views of the tensors that `read` returns for names inside its block."""
        shape = (d_model, layer.head_width, layer.heads, layer.kv_heads)
        q, q_bias = head_matrices(read, self.q, "q", shape)
        k, k_bias = head_matrices(read, self.k, "k", shape)
        v, v_bias = head_matrices(read, self.v, "v", shape)
        o, o_bias = output_matrices(read, self.o, shape)
        gate, gate_bias = head_matrices(read, self.q, "gate", shape) if layer.gated else (None, None)
        return LayerWeights(
            q,
            k,
            v,
            o,
            q_bias,
            k_bias,
            v_bias,
            o_bias,
            q_norm=self._norm(layer, read, self.q_norm, q),
            k_norm=self._norm(layer, read, self.k_norm, k),
            sinks=read(self.sinks) if self.sinks else None,
            relative_bias=read(self.relative_bias) if self.relative_bias else None,
            gate=gate,
            gate_bias=gate_bias,
        )

    def _norm(self, layer: Layer, read: Read, name: str, matrices: tuple[Tensor, ...]) -> NormWeights | None:
        """The gains of the q or k norm of every head; ones if the family stores none."""
        if layer.qk_norm is None:
            return None
        if not name:
            return NormWeights(tuple(matrix.new_ones(layer.head_width) for matrix in matrices), None)
        return norm_weights(read, name, len(matrices), layer.qk_norm.over)

    def layer_matrices(self, layer: Layer, d_model: int, read: Read) -> Iterator[tuple[str, Tensor]]:
        """q, k, v, o of all heads together, then the MLP's matrices, as y = x W, one at a time."""
        shape = (d_model, layer.head_width, layer.heads, layer.kv_heads)
        for part, at in (("q", self.q), ("k", self.k), ("v", self.v)):
            yield part, torch.cat(head_matrices(read, at, part, shape)[0], 1)
        yield "o", torch.cat(output_matrices(read, self.o, shape)[0], 0)
        for dense in self.mlp:
            matrix = dense.read(read)
            if matrix is not None:
                yield dense.label, matrix

    def name_in_files(self, name: str) -> str:
        """What checkpoints call the tensor of that name in the model."""
        for own, stored_as in self.in_files:
            name = name.replace(own, stored_as)
        return name

    def as_in_files(self) -> "Adapter":
        """The adapter for versions of transformers whose models have the names of checkpoints."""

        def stored_at(projection: Projection) -> Projection:
            return replace(projection, name=self.name_in_files(projection.name))

        q = stored_at(self.q)
        return replace(
            self,
            blocks=self.name_in_files(f"{self.blocks}.").removesuffix("."),
            attention=q.name.rpartition(".")[0],
            q=q,
            k=stored_at(self.k),
            v=stored_at(self.v),
            o=stored_at(self.o),
            mlp=tuple(replace(dense, name=self.name_in_files(dense.name)) for dense in self.mlp),
            in_files=(),
        )

    def refuse_unknown(self, config: Config) -> None:
        """Raise an error that names a configuration value if it may change attention in a way not declared here."""
        for key, value in config.to_dict().items():
            if self.allowed and key in self.allowed and value not in self.allowed[key]:
                expected = " or ".join(repr(option) for option in self.allowed[key])
                raise ArmillaryError(
                    f"the configuration has {key}={value!r}, which the {self.family} adapter does not understand "
                    f"(expected {expected})"
                )
            if value and ABOUT_ATTENTION.search(key) and key not in UNDERSTOOD | self.understands:
                raise ArmillaryError(
                    f"the configuration has {key}={value!r}, which the {self.family} adapter does not know: "
                    "if it does not change attention, register an adapter that lists it in `understands`"
                )


ABOUT_ATTENTION = re.compile(
    r"rope|rotary|alibi|attn|attention|softcap|sliding|window|qk|kv|sink|query|layer_types|causal|bidirectional|"
    r"position_embedding_type"
)
"""Configuration keys that concern how attention is computed."""

UNDERSTOOD = frozenset(
    [
        # read by every adapter, or visible in the weights
        *("num_attention_heads", "num_key_value_heads", "attention_bias", "rope_parameters", "rope_scaling"),
        *("rope_theta", "d_kv", "armillary_rotary", "armillary_alibi"),
        # how it is computed, not what: the tap records the result
        *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "deterministic_flash_attn"),
        *("_attn_implementation_internal", "_flash_attn_2_enabled", "use_flash_attn", "use_flash_attention_2"),
        *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "output_attentions"),
        "ignore_keys_at_rope_validation",  # which keys transformers 5.1 does not check
        # only in training, or outside self-attention
        *("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "attn_dropout", "add_cross_attention"),
        *("final_logit_softcapping", "pooler_num_attention_heads"),
    ]
)
"""Keys that no adapter needs to list."""
