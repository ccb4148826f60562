"""The report of one atlas: three sentences with figures, the sections, and the dossiers of all heads."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from armillary.anatomy.description import Alibi, Disentangled, GridRotary, LayerPosition, RelativeBias, Rotary
from armillary.anatomy.naming import corpus_title, recorded_title
from armillary.figures.head_map import LABEL_COLORS, measure_map
from armillary.lenses import rotary as rotary_lens
from armillary.lenses.labels import evidence_table
from armillary.report import pictures, sentences
from armillary.report.causes import circuit_data, matters
from armillary.report.dossiers import dossiers, plain
from armillary.report.page import Card, Page, Picture
from armillary.report.reading import reading_cards
from armillary.report.sections import sections
from armillary.text.loss import sentence

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

ENCODINGS: dict[type[LayerPosition], str] = {
    Alibi: "ALiBi",
    GridRotary: "rotary encoding by row and column",
    Disentangled: "keys and queries of distances",
    RelativeBias: "a relative bias",
    Rotary: "rotary encoding",
}


def atlas_page(atlas: "Atlas") -> Page:
    """The report of an atlas."""
    heads, layers = atlas.heads, atlas.layers
    model, text = short_name(atlas), corpus_title(str(atlas.attrs["corpus"]["name"]))
    kinds = pictures.kinds(heads)
    position = pictures.position(heads, layers) or pictures.from_weights(heads)
    outstanding = pictures.outstanding(heads)
    most = matters(atlas)
    rotary = rotary_lens.recommended_by_kind(atlas) if rotary_lens.has_rotation(atlas) else []
    cards = [
        Card(
            " ".join(filter(None, (sentences.kinds(heads).text, most.text if most else ""))),
            Picture(*kinds, opens=True),
        ),
        Card(sentences.position(heads, encodings(atlas), why(atlas)).text, Picture(*position) if position else None),
        Card(
            sentences.stands_out(heads, layers, rotary).text,
            Picture(*outstanding, opens=True) if outstanding else None,
        ),
    ]
    evidence = evidence_of(atlas)
    data = {
        "kind": "atlas",
        "labels": LABEL_COLORS,
        "maps": word_maps(heads),
        "circuit": circuit_data(atlas),
        **dossiers(atlas, evidence),
        "evidence": by_head(heads, evidence),
        "reading": reading_cards(atlas),
    }
    weights_only = atlas.kind == "weights"
    on = "from its weights alone" if weights_only else f"on {text}"
    subtitle = f"{size(atlas)}; Armillary {atlas.attrs['versions'].get('armillary', '')}"
    return Page(f"What the heads of {model} do, {on}", subtitle, cards, sections(atlas), data)


def short_name(atlas: "Atlas") -> str:
    """The model's name without its path."""
    return recorded_title(atlas.attrs["model"])


def size(atlas: "Atlas") -> str:
    """Family, layers, heads, width, text and loss."""
    anatomy, settings = atlas.anatomy, atlas.settings
    counts = sorted({layer.heads for layer in anatomy.layers})
    heads = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    model = f"{atlas.attrs['model'].get('family') or 'unknown family'}, {len(anatomy.layers)} layers of {heads} heads"
    if anatomy.d_model:
        model += f", width {anatomy.d_model}"
    if atlas.kind == "weights":
        return model
    text = atlas.attrs.get("text", {})
    beyond = f", beyond the model's context length of {text['made_for']}" if text.get("longer_than_made_for") else ""
    loss = sentence(atlas.attrs.get("loss"))
    read = f"{settings['sequences']} sequences of {settings['length']} tokens{beyond}"
    return "; ".join(filter(None, (model, read, loss)))


def encodings(atlas: "Atlas") -> list[str]:
    """The model's position encodings, in words."""
    kinds = {type(layer.position) for layer in atlas.anatomy.layers}
    in_attention = [words for kind, words in ENCODINGS.items() if kind in kinds]
    added = atlas.anatomy.positions_added
    return [*in_attention, *([f"{added} position embeddings"] if added != "none" else [])]


def why(atlas: "Atlas") -> str:
    """Why constituents may be missing."""
    if atlas.kind == "weights":
        return "this atlas was made from weights alone"
    if atlas.anatomy.layers[0].clip_qkv is not None:
        return "it clips q, k and v, so they are not sums of parts"
    return atlas.anatomy.missing.rstrip(".")


def evidence_of(atlas: "Atlas") -> pd.DataFrame | None:
    """The evidence for the labels, where the atlas has them."""
    return evidence_table(atlas) if atlas.has("patterns") and sentences.known(atlas.heads, "label") else None


def by_head(heads: pd.DataFrame, evidence: pd.DataFrame | None) -> list[list[list[Any]]]:
    """For each row of the heads table: [label, role, measure, value, null, threshold, strength, holds]."""
    if evidence is None:
        return []
    rows: dict[tuple[int, int], list[list[Any]]] = {}
    for row in evidence.to_dict("records"):
        numbers = [_rounded(row.get(name)) for name in ("value", "null", "threshold", "strength")]
        entry = [str(row["label"]), str(row.get("role", "rule")), str(row["measure"]), *numbers, bool(row["holds"])]
        rows.setdefault((int(row["layer"]), int(row["head"])), []).append(entry)
    return [rows.get((int(a), int(b)), []) for a, b in zip(heads["layer"], heads["head"], strict=True)]


def _rounded(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(f"{float(value):.4g}")


def word_maps(heads: pd.DataFrame) -> dict[str, Any]:
    """Maps of the columns of words, and templates of the maps of numbers."""
    words = [name for name in ("label", "regime", "regime_data") if sentences.known(heads, name)]
    if "layer_kind" in heads and heads["layer_kind"].nunique() > 1:
        words.append("layer_kind")
    maps = {name: plain(measure_map(heads, name)) for name in words}
    for name, low in (("signed", -1.0), ("positive", 1.0)):
        maps[f"numbers {name}"] = plain(measure_map(heads.assign(value=low), "value"))
    return maps
