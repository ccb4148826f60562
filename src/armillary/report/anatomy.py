"""The section Anatomy: the model's attention in sentences, and a comparison of its kinds of layers."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from armillary.anatomy.description import Alibi, Anatomy, Disentangled, Layer, Rotary
from armillary.lenses.kinds import LayerKind, kind_table, layer_kinds, shown_base, spans
from armillary.report.page import Block, Grid, Words
from armillary.report.sentences import known, listed, percent

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def anatomy(atlas: "Atlas") -> list[Block]:
    """The section: sentences, and a table where the model has several kinds of layers."""
    blocks: list[Block] = [Words(" ".join(sentences_of(atlas)))]
    if len(layer_kinds(atlas)) == 1:
        return blocks
    table = kind_table(atlas)
    compared = local_and_global(table)
    if compared:
        blocks.append(Words(compared))
    caption = "Kinds of layers, means over their heads."
    return [*blocks, Grid("kinds", table.dropna(axis=1, how="all"), "kinds", caption)]


def sentences_of(atlas: "Atlas") -> list[str]:
    """Heads and shared keys, windows and position encodings, norms, caps and sinks, as in `armillary inspect`."""
    described = atlas.anatomy
    layers = described.layers
    sentences = [_heads(layers)]
    if described.missing:
        return [*sentences, _sentence(described.missing)]
    kinds = layer_kinds(atlas)
    sentences += [_kind(kind, layers[kind.layers[0]], described) for kind in kinds]
    sentences += _windows(atlas, kinds)
    return [*sentences, *_logits(layers), *_added(described), *_skipped(described)]


def _heads(layers: Sequence[Layer]) -> str:
    heads, keys, widths = ({getattr(layer, name) for layer in layers} for name in ("heads", "kv_heads", "head_width"))
    size = f"{len(layers)} layers of {_range(heads)} heads of width {_range(widths)}"
    if keys == heads:
        return f"{size}, each with its own keys and values."
    if keys == {1}:
        return f"{size}; all heads of a layer share one key and value head."
    return f"{size}; they share {_range(keys)} key and value heads in groups."


def _range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


def _kind(kind: LayerKind, layer: Layer, described: Anatomy) -> str:
    many = len(kind.layers) > 1
    who = "All layers" if kind.alone else f"Layer{'s' if many else ''} {spans(kind.layers)}"
    many = many or kind.alone
    sees, has = ("see", "have") if many else ("sees", "has")
    return f"{who} {sees} {_sight(kind, layer)} and {has} {_encoding(layer, described)}."


def _sight(kind: LayerKind, layer: Layer) -> str:
    if layer.chunk is not None:
        return f"all tokens before in its chunk of {layer.chunk}"
    if layer.causal is False:
        return "the whole text" if kind.window is None else f"{kind.window - 1} tokens to either side"
    return "all tokens before" if kind.window is None else f"the last {kind.window} tokens"


def _encoding(layer: Layer, described: Anatomy) -> str:
    position = layer.position
    if position is None:
        added = described.positions_added
        return "no position encoding in attention" + ("" if added in ("learned", "sinusoidal") else " at all")
    if isinstance(position, Rotary):
        part = "" if position.width == layer.head_width else f" on {position.width} of {layer.head_width} channels"
        scaled = "" if position.scaling == "default" else f" ({position.scaling})"
        return f"rotary encoding{part} with base {shown_base(position.base)}{scaled}"
    if isinstance(position, Disentangled):
        return "keys and queries of distances of their own"
    return "ALiBi" if isinstance(position, Alibi) else "a learned bias by distance"


def _windows(atlas: "Atlas", kinds: list[LayerKind]) -> list[str]:
    """The windows that hide no key at the scanned length."""
    if atlas.kind == "weights":
        return []
    length = atlas.settings["length"]
    idle = sorted({kind.window for kind in kinds if kind.window is not None and not kind.binds(length)})
    if not idle:
        return []
    which = listed([str(window) for window in idle])
    return [f"The window of {which} tokens hides no key here: the sequences have {length} tokens."]


def _logits(layers: Sequence[Layer]) -> list[str]:
    sentences = []
    norms = [layer.qk_norm for layer in layers if layer.qk_norm]
    if norms:
        kind = "root mean square" if norms[0].kind == "rms" else "mean and variance"
        over = "each head" if norms[0].over == "head" else "all heads together"
        who = "" if len(norms) == len(layers) else f" in {len(norms)} layers"
        sentences.append(
            f"q and k are normalized{who} ({kind} over {over}, then a gain), so the scale of W_q and W_k has no effect "
            "on the logits."
        )
    caps = sorted({layer.softcap for layer in layers if layer.softcap is not None})
    if caps:
        sentences.append(f"Logits are soft-capped at {listed([f'{cap:g}' for cap in caps])}.")
    sinks = sum(layer.sinks for layer in layers)
    if sinks:
        where = "" if sinks == len(layers) else f" of {sinks} layers"
        sentences.append(f"Every head{where} has a learned sink, which is not a token.")
    clips = sorted({layer.clip_qkv for layer in layers if layer.clip_qkv is not None})
    if clips:
        sentences.append(f"q, k and v are clipped at {listed([f'{clip:g}' for clip in clips])}.")
    return sentences + _rarer(layers)


def _rarer(layers: Sequence[Layer]) -> list[str]:
    """What few families do."""
    sentences = []
    if any(layer.latent for layer in layers):
        sentences.append(
            "Keys and values come from a latent vector that all heads share (multi-head latent attention)."
        )
    if any(layer.gated for layer in layers):
        sentences.append("A head's output is multiplied by a gate that depends on the token.")
    if any(layer.value_norm is not None for layer in layers):
        sentences.append("Values are normalized.")
    growing = [layer for layer in layers if layer.growth is not None]
    if growing and growing[0].growth is not None:
        some = "1 layer" if len(growing) == 1 else f"{len(growing)} layers"
        who = "all layers" if len(growing) == len(layers) else some
        sentences.append(f"Logits of {who} grow with the position, every {growing[0].growth.every:g} tokens.")
    return sentences


def _skipped(described: Anatomy) -> list[str]:
    """Which blocks have no attention, and which blocks the layers are."""
    if not described.skipped:
        return []
    kinds = Counter(entry.partition(": ")[2] for entry in described.skipped)
    what = listed([f"{count} have {kind.replace('_', ' ')}" for kind, count in kinds.items()])
    blocks = listed([layer.block.rpartition(".")[2] for layer in described.layers])
    return [
        f"Of {len(described.layers) + len(described.skipped)} blocks {what} and no heads: they are left out. Layers 0 "
        f"to {len(described.layers) - 1} are blocks {blocks}."
    ]


def _added(described: Anatomy) -> list[str]:
    added = described.positions_added
    return [f"The embeddings have {added} positions."] if added in ("learned", "sinusoidal") else []


def local_and_global(table: pd.DataFrame) -> str:
    """How window and global layers differ in position and induction; '' for a model with one kind."""
    if set(table["kind"]) != {"window", "global"}:
        return ""
    parts = {kind: table[table["kind"] == kind] for kind in ("window", "global")}
    clauses = []
    if known(table, "positional_share"):
        window, everywhere = (
            float((part["positional_share"] * part["heads"]).sum() / part["heads"].sum()) for part in parts.values()
        )
        clauses.append(
            f"Position explains {percent(window)} of the logits in window layers and {percent(everywhere)} in global "
            "ones, mean over heads"
        )
    if "induction_heads" in table and table["induction_heads"].sum():
        total, in_global = int(table["induction_heads"].sum()), int(parts["global"]["induction_heads"].sum())
        share = "all" if in_global == total else "none" if not in_global else str(in_global)
        only = f"the only induction head is {'global' if in_global else 'local'}"
        clauses.append(only if total == 1 else f"of {total} induction heads {share} are in global layers")
    return _sentence("; ".join(clauses)) if clauses else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
