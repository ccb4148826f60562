"""The shape of an atlas's metadata, which is checked when it is read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from armillary.anatomy.description import Anatomy
from armillary.errors import ArmillaryError, brief
from armillary.files.records import mismatch, parse_record, read_record

if TYPE_CHECKING:
    import pandas as pd

REMEDY = "scan again"


class ScannedModel(TypedDict):
    """The model; without a dtype if only its weights were read."""

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
    """The settings of a scan that Armillary reads; an atlas of weights has no streams and none of the others."""

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
    """Where the text comes from, and the model's maximum length."""

    sources: list[SourceRecord]
    made_for: int | None
    longer_than_made_for: bool


class LossRecord(TypedDict):
    """How well the model predicts the text (text/loss.py, `summary`)."""

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
    anatomy: dict[str, Any]
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
    """The fields read from zarr.json of a table's array."""

    data_type: Any
    codecs: list[Any]
    shape: list[int]
    chunk_grid: dict[str, Any]


def read_attributes(data: bytes, node: Path, shape: Any) -> dict[str, Any]:
    """The attributes of a Zarr group from its zarr.json; an error if they do not have this shape."""
    record: dict[str, Any] = parse_record(data, dict[str, Any], str(node / "zarr.json"), REMEDY)
    attributes: dict[str, Any] = record.get("attributes", {})
    wrong = mismatch(attributes, shape, "attributes")
    if wrong:
        raise not_written_by_us(node, wrong)
    return attributes


def check_attributes(attributes: dict[str, Any], store: Path) -> None:
    """Raise if these are not the attributes of an atlas; the anatomy is checked where it is read."""
    wrong = mismatch(attributes, AtlasRecord)
    settings = {} if wrong else attributes["settings"]
    if settings.get("streams"):
        lacking = [name for name in ("length", "sequences", "skip", "seed", "bos") if name not in settings]
        wrong = f"settings.{lacking[0]} is missing" if lacking else None
    if wrong:
        raise not_written_by_us(store, wrong)


class PartRecord(TypedDict):
    """Which part of a scan a folder holds."""

    number: int
    of: int


class FolderRecord(TypedDict):
    """The fields read from scan.json if there is no atlas beside it."""

    part: NotRequired[PartRecord]


def part_of_scan(folder: Path) -> str:
    """'2/4' if a folder holds the second of four parts of a scan; '' if it holds a whole scan."""
    part = read_record(folder / "scan.json", FolderRecord, REMEDY).get("part")
    return f"{part['number']}/{part['of']}" if part else ""


def read_anatomy(attributes: dict[str, Any], store: Path) -> Anatomy:
    """The model's anatomy; an error names the attribute that is wrong."""
    try:
        return Anatomy.from_dict(attributes.get("anatomy"))
    except ArmillaryError as error:
        raise not_written_by_us(store, error.problem) from error


def not_written_by_us(node: Path, wrong: str) -> ArmillaryError:
    """The error for metadata that Armillary did not write."""
    return ArmillaryError(f"{node / 'zarr.json'} is not what Armillary writes, {wrong}", advice=REMEDY)


NUMBERED = {
    "layers": ("layer",),
    "heads": ("layer", "head"),
    "matrices": ("layer",),
    "weight_changes": ("layer",),
    **dict.fromkeys(("tokens", "pairs", "relations", "examples", "writes", "evidence"), ("layer", "head")),
}
"""The columns of each table that identify a row."""


def check_table(record: dict[str, Any], shape: tuple[int, ...], place: Path) -> None:
    """Raise if a table's columns do not fit its array of numbers."""
    numbered = set(NUMBERED[place.name])
    rows = shape[0] if shape else 0
    names = [*record["numbers"], *record["words"]]
    wrong = None
    if len(shape) != 2 or shape[1] != len(record["numbers"]):
        wrong = f"its array has the shape {shape}, but it names {len(record['numbers'])} columns of numbers"
    elif len(set(names)) != len(names) or len(set(record["columns"])) != len(record["columns"]):
        wrong = "a column is named twice"
    elif any(len(words) != rows for words in record["words"].values()):
        wrong = f"a column of words has another length than its {rows} rows"
    elif not {*record["whole"], *record.get("yes_or_no", ())} <= set(record["numbers"]):
        wrong = "a column of whole numbers, or of yes and no, is not among those of numbers"
    elif not numbered <= set(record["columns"]) <= set(names) or not numbered <= set(record["whole"]):
        wrong = "its columns are not those that it holds"
    if wrong:
        raise ArmillaryError(_no_table(place, wrong))


def whole_columns(table: "pd.DataFrame", record: dict[str, Any], anatomy: Anatomy, place: Path) -> "pd.DataFrame":
    """The table with its integer and boolean columns; an error if a layer or head does not exist."""
    try:
        table = table.astype(dict.fromkeys(record["whole"], "Int64"))
        table = table.astype(dict.fromkeys(record.get("yes_or_no", ()), "boolean"))
    except (TypeError, ValueError) as error:
        wrong = f"a column holds values that are not of its kind ({brief(error)})"
        raise ArmillaryError(_no_table(place, wrong)) from error
    most = {"layer": len(anatomy.layers), "head": max(layer.heads for layer in anatomy.layers) - 1}
    for name in NUMBERED[place.name]:
        if table[name].isna().any() or not table[name].between(0, most[name]).all():
            raise ArmillaryError(_no_table(place, f"its rows name a {name} that does not exist"))
    return table


def _no_table(place: Path, wrong: str) -> str:
    return f"the table in {place} is not what Armillary writes, {wrong}: {REMEDY}"
