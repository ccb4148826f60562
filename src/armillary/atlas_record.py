"""What the metadata of an atlas must look like: its shape is checked when it is read, once for all who use it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from armillary.errors import ArmillaryError, brief
from armillary.records import mismatch, parse_record

if TYPE_CHECKING:
    import pandas as pd

REMEDY = "scan again"


class PositionRecord(TypedDict):
    """How a layer knows position; rotary ones have frequencies."""

    kind: str
    frequencies: NotRequired[list[float]]
    base: NotRequired[float]
    scaling: NotRequired[str]
    layout: NotRequired[str]


class LayerRecord(TypedDict):
    """What is read of a layer's anatomy; scale and causal are null where no adapter knows the family."""

    heads: int
    kv_heads: int
    head_width: int
    scale: float | None
    causal: bool | None
    window: int | None
    softcap: NotRequired[float | None]
    sinks: bool
    position: PositionRecord | None
    clip_qkv: NotRequired[float | None]


class AnatomyRecord(TypedDict):
    """What is read of the model's anatomy."""

    family: str
    d_model: int
    layers: list[LayerRecord]
    missing: str
    positions_added: NotRequired[str | None]


class ScannedModel(TypedDict):
    """The model; one whose weights alone were read has no dtype."""

    name: str
    weights: str
    dtype: NotRequired[str]
    family: NotRequired[str | None]
    title: NotRequired[str]


class ScannedText(TypedDict):
    """The text."""

    name: str
    sha256: NotRequired[str]


class KeptSettings(TypedDict):
    """The settings that are read of a scan; an atlas of weights has no streams and none of the others."""

    streams: list[str]
    length: NotRequired[int]
    sequences: NotRequired[int]
    skip: NotRequired[int]
    bos: NotRequired[str]
    seed: NotRequired[int]
    second_pass: NotRequired[int]


class SourceRecord(TypedDict):
    """What was read of a source."""

    source: str
    read: bool
    files_read: int
    bytes: int
    sha256: str | None


class TextRecord(TypedDict):
    """Where the text comes from, and the longest that the model was made for."""

    sources: list[SourceRecord]
    made_for: int | None
    longer_than_made_for: bool


class LossRecord(TypedDict):
    """How well the model predicts the text (text_loss.summary)."""

    chosen: Literal["with_begin", "without_begin"]
    with_begin: float | int | None
    without_begin: float | int | None
    begin_se: float | int | None
    unigram: float | int | None
    unigram_se: float | int | None
    uniform: float | int | None


class AtlasRecord(TypedDict):
    """The attributes of atlas.zarr."""

    model: ScannedModel
    corpus: ScannedText
    settings: KeptSettings
    anatomy: AnatomyRecord
    versions: dict[str, str]
    text: NotRequired[TextRecord]
    loss: NotRequired[LossRecord | None]
    notes: NotRequired[list[str]]
    skipped_blocks: NotRequired[list[int]]


class TableRecord(TypedDict):
    """The attributes of a table: its columns, in order, and those that are not in its array of numbers."""

    columns: list[str]
    numbers: list[str]
    words: dict[str, list[str | None]]
    whole: list[str]
    yes_or_no: NotRequired[list[str]]


class ArrayRecord(TypedDict):
    """What is read of zarr.json of a table's numbers."""

    data_type: Any
    codecs: list[Any]
    shape: list[int]
    chunk_grid: dict[str, Any]


def read_attributes(data: bytes, node: Path, shape: Any) -> dict[str, Any]:
    """The attributes of a Zarr group from its zarr.json, which have this shape."""
    kept: dict[str, Any] = parse_record(data, dict[str, Any], str(node / "zarr.json"), REMEDY).get("attributes", {})
    wrong = mismatch(kept, shape, "attributes")
    if wrong:
        raise ArmillaryError(f"{node / 'zarr.json'} is not what Armillary writes, {wrong}: {REMEDY}")
    return kept


def check_attributes(attributes: dict[str, Any], store: Path) -> None:
    """Raise where the attributes of an atlas are not those of one."""
    wrong = mismatch(attributes, AtlasRecord)
    layers = [] if wrong else attributes["anatomy"]["layers"]
    settings = {} if wrong else attributes["settings"]
    if not wrong and not layers:
        wrong = "anatomy.layers is empty"
    elif any(layer[name] < 1 for layer in layers for name in ("heads", "kv_heads", "head_width")):
        wrong = "a layer of its anatomy has no heads"
    elif settings.get("streams"):
        lacking = [name for name in ("length", "sequences", "skip", "seed", "bos") if name not in settings]
        wrong = f"settings.{lacking[0]} is missing" if lacking else None
    if wrong:
        raise ArmillaryError(f"{store / 'zarr.json'} is not what Armillary writes, {wrong}: {REMEDY}")


NUMBERED = {"layers": ("layer",), "heads": ("layer", "head"), "matrices": ("layer",)}
"""The columns of each table that say what a row is about."""


def check_table(kept: dict[str, Any], shape: tuple[int, ...], place: Path) -> None:
    """Raise where a table's columns do not fit its array of numbers."""
    numbered = set(NUMBERED[place.name])
    rows = shape[0] if shape else 0
    names = [*kept["numbers"], *kept["words"]]
    wrong = None
    if len(shape) != 2 or shape[1] != len(kept["numbers"]):
        wrong = f"its array has the shape {shape}, but it names {len(kept['numbers'])} columns of numbers"
    elif len(set(names)) != len(names) or len(set(kept["columns"])) != len(kept["columns"]):
        wrong = "a column is named twice"
    elif any(len(words) != rows for words in kept["words"].values()):
        wrong = f"a column of words has another length than its {rows} rows"
    elif not {*kept["whole"], *kept.get("yes_or_no", ())} <= set(kept["numbers"]):
        wrong = "a column of whole numbers, or of yes and no, is not among those of numbers"
    elif not numbered <= set(kept["columns"]) <= set(names) or not numbered <= set(kept["whole"]):
        wrong = "its columns are not those that it holds"
    if wrong:
        raise ArmillaryError(_no_table(place, wrong))


def whole_columns(table: "pd.DataFrame", kept: dict[str, Any], anatomy: dict[str, Any], place: Path) -> "pd.DataFrame":
    """The table with its whole numbers as such; those that name layers and heads name some that there are."""
    try:
        table = table.astype(dict.fromkeys(kept["whole"], "Int64"))
        table = table.astype(dict.fromkeys(kept.get("yes_or_no", ()), "boolean"))
    except (TypeError, ValueError) as error:
        wrong = f"a column holds other numbers than it says ({brief(error)})"
        raise ArmillaryError(_no_table(place, wrong)) from error
    most = {"layer": len(anatomy["layers"]), "head": max(layer["heads"] for layer in anatomy["layers"]) - 1}
    for name in NUMBERED[place.name]:
        if table[name].isna().any() or not table[name].between(0, most[name]).all():
            raise ArmillaryError(_no_table(place, f"its rows name a {name} that there is not"))
    return table


def _no_table(place: Path, wrong: str) -> str:
    return f"the table in {place} is not what Armillary writes, {wrong}: {REMEDY}"
