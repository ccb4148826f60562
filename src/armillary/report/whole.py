"""The page of one atlas: three sentences with their pictures, the sections, and the dossiers of all heads."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from armillary.figures.head_map import LABEL_COLOURS, measure_map
from armillary.lenses import rotary as rotary_lens
from armillary.naming import corpus_title, recorded_title
from armillary.report import pictures, sentences
from armillary.report.dossiers import dossiers, plain
from armillary.report.page import Card, Page, Picture
from armillary.report.sections import sections
from armillary.text_loss import sentence

if TYPE_CHECKING:
    from armillary.atlas import Atlas

ENCODINGS = {"Rotary": "rotary encoding", "Alibi": "ALiBi", "RelativeBias": "a relative bias"}


def atlas_page(atlas: "Atlas") -> Page:
    """All that the report of an atlas shows."""
    heads, layers = atlas.heads, atlas.layers
    model, text = short_name(atlas), corpus_title(str(atlas.attrs["corpus"]["name"]))
    found, said = pictures.kinds(heads)
    where, loud = pictures.position(heads, layers), pictures.outstanding(heads)
    where = where or pictures.from_weights(heads)
    rotary = rotary_lens.recommended_by_kind(atlas) if rotary_lens.turns_at_all(atlas) else []
    told = sentences.stands_out(heads, layers, rotary)
    cards = [
        Card(sentences.kinds(heads).text, Picture(found, said, opens=True)),
        Card(sentences.position(heads, encodings(atlas), why(atlas)).text, Picture(*where) if where else None),
        Card(told.text, Picture(*loud, opens=True) if loud else None),
    ]
    evidence = evidence_of(atlas)
    data = {
        "kind": "atlas",
        "labels": LABEL_COLOURS,
        "maps": word_maps(heads),
        **dossiers(atlas, evidence),
        "evidence": by_head(heads, evidence),
    }
    weights_only = not atlas.settings["streams"]
    on = "from its weights alone" if weights_only else f"on {text}"
    subtitle = f"{size(atlas)}; Armillary {atlas.attrs['versions'].get('armillary', '')}"
    return Page(f"What the heads of {model} do, {on}", subtitle, cards, sections(atlas), data)


def short_name(atlas: "Atlas") -> str:
    """The model's name without the folders that it lies in."""
    return recorded_title(atlas.attrs["model"])


def size(atlas: "Atlas") -> str:
    """Family, layers, heads, width, and what was read."""
    anatomy, settings = atlas.attrs["anatomy"], atlas.settings
    counts = sorted({layer["heads"] for layer in anatomy["layers"]})
    heads = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    said = f"{atlas.attrs['model'].get('family') or 'unknown family'}, {len(anatomy['layers'])} layers of {heads} heads"
    if anatomy.get("d_model"):
        said += f", width {anatomy['d_model']}"
    if not settings["streams"]:
        return said
    text = atlas.attrs.get("text", {})
    beyond = f", longer than the {text['made_for']} that it was made for" if text.get("longer_than_made_for") else ""
    loss = sentence(atlas.attrs.get("loss"))
    read = f"{settings['sequences']} texts of {settings['length']} tokens{beyond}"
    return "; ".join(filter(None, (said, read, loss)))


def encodings(atlas: "Atlas") -> list[str]:
    """How the model's layers know position, as it declares."""
    kinds = {layer["position"]["kind"] for layer in atlas.attrs["anatomy"]["layers"] if layer["position"]}
    found = [ENCODINGS.get(kind, kind) for kind in sorted(kinds)]
    added = atlas.attrs["anatomy"].get("positions_added", "none")
    return [*found, *([f"{added} position embeddings"] if added not in ("none", "", None) else [])]


def why(atlas: "Atlas") -> str:
    """Why constituents may be missing."""
    if not atlas.settings["streams"]:
        return "this atlas was made from weights alone"
    if atlas.attrs["anatomy"]["layers"][0].get("clip_qkv") is not None:
        return "it clips q, k and v, so they are no sum of parts"
    return str(atlas.attrs["anatomy"]["missing"]).rstrip(".")


def evidence_of(atlas: "Atlas") -> pd.DataFrame | None:
    """The evidence for the labels, where the atlas has them."""
    from armillary.lenses.labels import evidence_table

    return evidence_table(atlas) if atlas.has("patterns") and sentences.known(atlas.heads, "label") else None


def by_head(heads: pd.DataFrame, evidence: pd.DataFrame | None) -> list[list[list[Any]]]:
    """For each row of the heads table: [label, role, measure, value, null, threshold, strength, holds]."""
    if evidence is None:
        return []
    rows: dict[tuple[int, int], list[list[Any]]] = {}
    for row in evidence.to_dict("records"):
        numbers = [_rounded(row.get(name)) for name in ("value", "null", "threshold", "strength")]
        told = [str(row["label"]), str(row.get("role", "rule")), str(row["measure"]), *numbers, bool(row["holds"])]
        rows.setdefault((int(row["layer"]), int(row["head"])), []).append(told)
    return [rows.get((int(a), int(b)), []) for a, b in zip(heads["layer"], heads["head"], strict=True)]


def _rounded(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(f"{float(value):.4g}")


def word_maps(heads: pd.DataFrame) -> dict[str, Any]:
    """Maps of the columns that hold words, and templates of the maps of numbers."""
    words = [name for name in ("label", "regime", "regime_data") if sentences.known(heads, name)]
    if "layer_kind" in heads and heads["layer_kind"].nunique() > 1:
        words.append("layer_kind")
    maps = {name: plain(measure_map(heads, name)) for name in words}
    for name, low in (("signed", -1.0), ("positive", 1.0)):
        maps[f"numbers {name}"] = plain(measure_map(heads.assign(value=low), "value"))
    return maps
