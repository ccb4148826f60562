"""What the model's attention is made of, in sentences, and what its kinds of layers do differently."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from armillary.lenses.kinds import LayerKind, kind_table, layer_kinds, shown_base, spans
from armillary.report.page import Block, Grid, Words
from armillary.report.sentences import known, listed, percent

if TYPE_CHECKING:
    from armillary.atlas import Atlas


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
    """Heads and shared keys, what layers see and turn by, norms, caps and sinks: what `armillary inspect` knows."""
    described = atlas.attrs["anatomy"]
    layers = described["layers"]
    found = [_heads(layers)]
    if described["missing"]:
        return [*found, _sentence(described["missing"])]
    kinds = layer_kinds(atlas)
    found += [_kind(kind, layers[kind.layers[0]], described) for kind in kinds]
    found += _windows(atlas, kinds)
    return [*found, *_logits(layers), *_added(described)]


def _heads(layers: list[dict[str, Any]]) -> str:
    heads, keys, widths = ({layer[name] for layer in layers} for name in ("heads", "kv_heads", "head_width"))
    said = f"{len(layers)} layers of {_range(heads)} heads of width {_range(widths)}"
    if keys == heads:
        return f"{said}, each with keys and values of its own."
    if keys == {1}:
        return f"{said}; all heads of a layer share one key and value head."
    return f"{said}; they share {_range(keys)} key and value heads in groups."


def _range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


def _kind(kind: LayerKind, layer: dict[str, Any], described: dict[str, Any]) -> str:
    many = len(kind.layers) > 1
    who = "All layers" if kind.alone else f"Layer{'s' if many else ''} {spans(kind.layers)}"
    many = many or kind.alone
    sees, has = ("see", "have") if many else ("sees", "has")
    return f"{who} {sees} {_sight(kind, layer)} and {has} {_encoding(layer, described)}."


def _sight(kind: LayerKind, layer: dict[str, Any]) -> str:
    if layer["causal"] is False:
        return "the whole text" if kind.window is None else f"{kind.window - 1} tokens to either side"
    return "all tokens before" if kind.window is None else f"the last {kind.window} tokens"


def _encoding(layer: dict[str, Any], described: dict[str, Any]) -> str:
    position = layer["position"]
    if not position:
        added = described.get("positions_added", "none")
        return "no position encoding in attention" + ("" if added in ("learned", "sinusoidal") else " at all")
    if position["kind"] == "Rotary":
        width = 2 * len(position["frequencies"])
        part = "" if width == layer["head_width"] else f" on {width} of {layer['head_width']} channels"
        scaled = "" if position["scaling"] == "default" else f" ({position['scaling']})"
        return f"rotary encoding{part} with base {shown_base(position['base'])}{scaled}"
    return OTHERS.get(position["kind"], str(position["kind"]))


OTHERS = {"Alibi": "ALiBi", "RelativeBias": "a learned bias by distance"}


def _windows(atlas: "Atlas", kinds: list[LayerKind]) -> list[str]:
    """Which windows hide nothing at this length."""
    if not atlas.settings["streams"]:
        return []
    length = atlas.settings["length"]
    idle = sorted({kind.window for kind in kinds if kind.window is not None and not kind.binds(length)})
    if not idle:
        return []
    which = listed([str(window) for window in idle])
    return [f"The window of {which} tokens never binds here: the texts have {length}, so no key is hidden by it."]


def _logits(layers: list[dict[str, Any]]) -> list[str]:
    found = []
    norms = [layer["qk_norm"] for layer in layers if layer["qk_norm"]]
    if norms:
        kind = "root mean square" if norms[0]["kind"] == "rms" else "mean and variance"
        over = "each head" if norms[0]["over"] == "head" else "all heads together"
        who = "" if len(norms) == len(layers) else f" in {len(norms)} layers"
        found.append(
            f"q and k are normalised{who} ({kind} over {over}, then a gain), so the scale of W_q and W_k has no effect "
            "on the logits."
        )
    caps = sorted({layer["softcap"] for layer in layers if layer["softcap"] is not None})
    if caps:
        found.append(f"Logits are soft-capped at {listed([f'{cap:g}' for cap in caps])}.")
    sinks = sum(bool(layer["sinks"]) for layer in layers)
    if sinks:
        found.append(f"Every head{'' if sinks == len(layers) else f' of {sinks} layers'} has a learned sink, no token.")
    clips = sorted({layer["clip_qkv"] for layer in layers if layer.get("clip_qkv") is not None})
    if clips:
        found.append(f"q, k and v are clipped at {listed([f'{clip:g}' for clip in clips])}.")
    return found


def _added(described: dict[str, Any]) -> list[str]:
    added = described.get("positions_added", "none")
    return [f"The embeddings carry {added} positions."] if added in ("learned", "sinusoidal") else []


def local_and_global(table: pd.DataFrame) -> str:
    """How window and global layers differ in position and induction, from the table of kinds; '' where all are one."""
    if set(table["kind"]) != {"window", "global"}:
        return ""
    parts = {kind: table[table["kind"] == kind] for kind in ("window", "global")}
    clauses = []
    if known(table, "positional_share"):
        window, everywhere = (
            float((part["positional_share"] * part["heads"]).sum() / part["heads"].sum()) for part in parts.values()
        )
        clauses.append(
            f"Position makes {percent(window)} of the logits in window layers and {percent(everywhere)} in global "
            "ones, mean over heads"
        )
    if "induction_heads" in table and table["induction_heads"].sum():
        total, there = int(table["induction_heads"].sum()), int(parts["global"]["induction_heads"].sum())
        share = "all" if there == total else "none" if not there else str(there)
        few = f"the only induction head is {'global' if there else 'local'}"
        clauses.append(few if total == 1 else f"of {total} induction heads {share} are in global layers")
    said = "; ".join(clauses)
    return _sentence(said) if said else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
