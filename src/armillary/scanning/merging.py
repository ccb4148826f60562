"""Merges parts of a scan, computed on different machines, into one atlas: bit for bit that of a single scan."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypedDict, Unpack

from armillary.anatomy.loading import as_recorded
from armillary.anatomy.options import ModelOptions, complete, keywords, of
from armillary.atlas.atlas import Atlas, open_atlas
from armillary.atlas.differences import disagreements, essential
from armillary.engines import opened
from armillary.errors import ArmillaryError
from armillary.files.records import mismatch
from armillary.progress import Progress
from armillary.scanning.driver import FIRST_FILES, Run
from armillary.scanning.folder import FileKind, Part, Plan, ScanFolder, plan
from armillary.scanning.job import ScanJob
from armillary.scanning.options import MergeOptions, ScanSettings
from armillary.scanning.parts import read_sequences_of
from armillary.scanning.settings import settings_of, shard_of

NAMED = 20
"""At most this many missing shards or parts are named in an error."""


class ModelRecord(TypedDict):
    """The model of a scan, as scan.json records it."""

    name: str
    weights: str
    dtype: str


class CorpusRecord(TypedDict):
    """The text of a scan."""

    name: str
    sha256: str


class WhichPart(TypedDict):
    """Part `number` of `of`."""

    number: int
    of: int


class PartRecord(TypedDict):
    """scan.json of a part."""

    model: ModelRecord
    corpus: CorpusRecord
    settings: ScanSettings
    part: WhichPart


@dataclass(frozen=True)
class ScanPart:
    """A folder written by a scan with `part`: its record, and which shards it holds."""

    folder: ScanFolder
    description: dict[str, Any]
    part: Part
    shards: Plan

    @property
    def path(self) -> Path:
        return self.folder.out


@keywords(MergeOptions)
def merge(
    parts: Sequence[str | Path],
    *,
    out: str | Path,
    model: str | Path | None = None,
    **options: Unpack[MergeOptions],
) -> Atlas:
    """Merge the parts of a scan into an atlas in the folder `out`; the parts are not changed.

    Shards are merged in their order. The passes after the first (constituents, patterns), which need the means of the
    whole text, run here on a few sequences. They need the model: from where the parts loaded it, or from `model`.
    """
    chosen: MergeOptions = complete(options, MergeOptions, "merge")
    scan_parts = read_parts([Path(part) for part in parts])
    if Path(out).resolve() in {part.path.resolve() for part in scan_parts}:
        raise ArmillaryError(f"{out} is one of the parts", advice="choose another `out`")
    recorded = scan_parts[0].description
    if chosen["dtype"] not in ("auto", recorded["model"]["dtype"]):
        raise ArmillaryError(
            f"the parts were scanned in {recorded['model']['dtype']}, not in {chosen['dtype']}",
            advice="leave `dtype` out: it is that of the parts",
        )
    given = as_recorded(recorded["model"], {**of(ModelOptions, chosen), "dtype": recorded["model"]["dtype"]})
    job = ScanJob(model or recorded["model"]["name"], ModelOptions(**given))  # type: ignore[typeddict-item]
    with opened(chosen["engine"], chosen["workers"], chosen["threads"], chosen["address"]) as engine:
        try:
            facts = engine.start(job)
        except ArmillaryError as error:
            raise ArmillaryError(
                f"the parts' model is needed to finish their scan, but {error}; give it as `model`"
            ) from error
        if (facts.weights, facts.config) != (recorded["model"]["weights"], recorded["model"].get("config")):
            raise ArmillaryError(f"{job.model} has other weights, or another config.json, than the parts' model")
        run = Run(
            engine,
            facts,
            read_sequences_of([part.folder for part in scan_parts]),
            settings_of(recorded["settings"]),
            recorded["model"]["name"],
            recorded["corpus"]["name"],
            chosen["progress"] or Progress(),
        )
        if run.description()["corpus"] != recorded["corpus"]:
            raise ArmillaryError(
                "the sequences stored in the parts are not those of their corpus", advice="scan them again"
            )
        adopted = {shard.index: part.folder for part in scan_parts for shard in part.shards}
        run.into(Path(out), resume=chosen["resume"], overwrite=chosen["overwrite"], adopted=adopted)
    return open_atlas(out)


def read_parts(folders: list[Path]) -> list[ScanPart]:
    """The parts, sorted by their shards; an error unless they are finished and together hold every shard of one scan
    exactly once."""
    if not folders:
        raise ArmillaryError(
            "no parts were given", advice="merge takes folders that `armillary scan` wrote with `part`"
        )
    parts = [_read_part(folder) for folder in folders]
    first = parts[0]
    for other in parts[1:]:
        unlike = disagreements(_without_part(first.description), _without_part(other.description))
        if unlike:
            listed = "; ".join(f"{what}: {a} and {b}" for what, a, b in unlike)
            raise ArmillaryError(f"{first.path} and {other.path} are parts of different scans ({listed})")
    parts.sort(key=lambda part: part.shards[0].index)
    _refuse_gaps(parts, _all_shards(first.description))
    for part in parts:
        _refuse_unfinished(part)
    return parts


def _read_part(folder: Path) -> ScanPart:
    place = ScanFolder(folder)
    if place.atlas.exists():
        raise ArmillaryError(
            f"{folder} holds a finished atlas, which has no shards left to merge",
            advice="merge takes folders that `armillary scan` wrote with `part`",
        )
    record = folder / "scan.json"
    if not record.is_file():
        raise ArmillaryError(
            f"{folder} is not a part of a scan", advice="merge takes folders that `armillary scan` wrote with `part`"
        )
    remedy = "scan this part again, with `overwrite=True`"
    description = place.record(remedy)
    if "part" not in description:
        raise ArmillaryError(f"{folder} holds a whole scan, not a part", advice="finish it with `resume=True`")
    wrong = mismatch(description, PartRecord)
    if wrong:
        raise ArmillaryError(f"{record} is not what Armillary writes, {wrong}: {remedy}")
    part = Part(description["part"]["number"], description["part"]["of"])
    return ScanPart(place, description, part, part.shards(_all_shards(description)))


def _all_shards(description: dict[str, Any]) -> Plan:
    settings = settings_of(description["settings"])
    return plan(settings["sequences"], shard_of(settings))


def _without_part(description: dict[str, Any]) -> dict[str, Any]:
    """The fields in which all parts of one scan must agree."""
    return {key: value for key, value in essential(description).items() if key != "part"}


def _refuse_gaps(parts: list[ScanPart], all_shards: Plan) -> None:
    """Raise if any shard is in two parts or in none, and name it; the parts are sorted by their shards."""
    missing, end = [], 0
    for i, part in enumerate(parts):
        indices = part.shards.indices
        if indices.start < end:
            other = parts[i - 1]
            raise ArmillaryError(
                f"{other.path} (part {other.part}) and {part.path} (part {part.part}) both hold "
                f"{_shards([range(indices.start, min(end, indices.stop))])}: every shard must be in one part only"
            )
        missing.append(range(end, indices.start))
        end = indices.stop
    missing = [gap for gap in (*missing, range(end, len(all_shards))) if gap]
    if missing:
        absent = _absent_parts([part.part for part in parts])
        raise ArmillaryError(f"{_shards(missing)} of {len(all_shards)} are in none of these folders{absent}")


def _absent_parts(given: list[Part]) -> str:
    """': part 2/4, 3/4'; '' if the given parts are not all of the same number of parts."""
    if len({part.of for part in given}) > 1:
        return ""
    of, numbers = given[0].of, {part.number for part in given}
    absent = list(islice((number for number in range(1, of + 1) if number not in numbers), NAMED + 1))
    listed = ", ".join(f"{number}/{of}" for number in absent[:NAMED])
    return f": part {listed}{', ...' if len(absent) > NAMED else ''}"


def _refuse_unfinished(part: ScanPart) -> None:
    """Raise if files of a part's shards are missing. Takes time by the files that exist, not by the shards declared."""
    indices = part.shards.indices
    finished = [
        index
        for index in sorted(part.folder.indices(FileKind.FIRST))
        if index in indices and part.folder.holds(FIRST_FILES, index)
    ]
    gaps = [range(a + 1, b) for a, b in pairwise([indices.start - 1, *finished, indices.stop])]
    missing = [gap for gap in gaps if gap]
    if missing:
        raise ArmillaryError(
            f"{part.path} (part {part.part}) is not finished, or was damaged: {_shards(missing)} of its "
            f"{len(indices)} are missing; continue with `part={part.part}`, `out={part.path}` and `resume=True`"
        )


def _shards(runs: list[range]) -> str:
    """'shard 3', or 'shards 3 to 5, 9'."""
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:NAMED])
    many = len(runs) > 1 or len(runs[0]) > 1
    return f"shard{'s' if many else ''} {listed}{', ...' if len(runs) > NAMED else ''}"
