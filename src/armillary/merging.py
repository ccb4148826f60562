"""Parts of a scan, computed anywhere, become one atlas: the same, to the last bit, as from a single scan."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypedDict

from armillary.atlas import Atlas, open_atlas
from armillary.engines import opened
from armillary.engines.engine import Engine
from armillary.engines.scan_job import FIRST, ScanJob
from armillary.errors import ArmillaryError
from armillary.progress import Progress
from armillary.records import mismatch
from armillary.running import FIRST_FILES, Run, read_blocks_of
from armillary.settings import ScanSettings, settings_of
from armillary.shards import Part, Plan, ScanFolder, disagreements, essential, plan

NAMED = 20
"""So many shards or parts are named where more are missing."""


class ModelRecord(TypedDict):
    """The model of a scan, as scan.json names it."""

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
    """A folder that `scan --part` wrote: which shards of which scan it holds."""

    folder: ScanFolder
    description: dict[str, Any]
    part: Part
    shards: Plan

    @property
    def path(self) -> Path:
        return self.folder.out


def merge(
    parts: Sequence[str | Path],
    *,
    out: str | Path,
    model: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    device_map: Any = None,
    trust_remote_code: bool = False,
    engine: str | Engine = "local",
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Atlas:
    """The atlas of a scan whose parts were computed apart, in the folder `out`; the parts stay as they are.

    The shards are merged in their order. What a scan does when it knows the means (constituents, patterns) is done
    here, on a few blocks, and needs the model: from where the parts found it, or from `model`.
    """
    found = read_parts([Path(part) for part in parts])
    if Path(out).resolve() in {one.path.resolve() for one in found}:
        raise ArmillaryError(f"{out} is one of the parts: choose another --out")
    recorded = found[0].description
    job = ScanJob(model or recorded["model"]["name"], device, recorded["model"]["dtype"], trust_remote_code, device_map)
    with opened(engine, workers, threads, address) as started:
        try:
            facts = started.start(job)
        except ArmillaryError as error:
            raise ArmillaryError(
                f"the parts' model is needed to finish their scan, but {error}; name it with --model"
            ) from error
        if (facts.weights, facts.config) != (recorded["model"]["weights"], recorded["model"].get("config")):
            raise ArmillaryError(f"{job.model} has other weights, or another config.json, than the parts' model")
        run = Run(
            started,
            facts,
            read_blocks_of([one.folder for one in found]),
            settings_of(recorded["settings"]),
            recorded["model"]["name"],
            recorded["corpus"]["name"],
            progress or Progress(),
        )
        if run.description()["corpus"] != recorded["corpus"]:
            raise ArmillaryError("the blocks that the parts have kept are not those of their corpus: scan them again")
        adopted = {shard.index: one.folder for one in found for shard in one.shards}
        run.into(Path(out), resume=resume, overwrite=overwrite, adopted=adopted)
    return open_atlas(out)


def read_parts(folders: list[Path]) -> list[ScanPart]:
    """The parts in the order of their shards: of one scan, all of it, none twice, each finished; or an error."""
    if not folders:
        raise ArmillaryError("no parts were given: merge takes folders that `armillary scan --part` wrote")
    found = [_read_part(folder) for folder in folders]
    first = found[0]
    for other in found[1:]:
        unlike = disagreements(_whole(first.description), _whole(other.description))
        if unlike:
            told = "; ".join(f"{what}: {a} and {b}" for what, a, b in unlike)
            raise ArmillaryError(f"{first.path} and {other.path} are parts of different scans ({told})")
    found.sort(key=lambda one: one.shards[0].index)
    _refuse_gaps(found, _all_shards(first.description))
    for one in found:
        _refuse_unfinished(one)
    return found


def _read_part(folder: Path) -> ScanPart:
    place = ScanFolder(folder)
    if place.atlas.exists():
        raise ArmillaryError(
            f"{folder} holds a finished atlas, which has no shards left to merge: merge takes what "
            "`armillary scan --part` wrote"
        )
    record = folder / "scan.json"
    if not record.is_file():
        raise ArmillaryError(f"{folder} is no part of a scan: merge takes folders that `armillary scan --part` wrote")
    remedy = "scan this part again, with --overwrite"
    description = place.record(remedy)
    if "part" not in description:
        raise ArmillaryError(f"{folder} holds a scan that is no part of one: finish it with --resume")
    wrong = mismatch(description, PartRecord)
    if wrong:
        raise ArmillaryError(f"{record} is not what Armillary writes, {wrong}: {remedy}")
    part = Part(description["part"]["number"], description["part"]["of"])
    return ScanPart(place, description, part, part.shards(_all_shards(description)))


def _all_shards(description: dict[str, Any]) -> Plan:
    settings = settings_of(description["settings"])
    return plan(settings.sequences, settings.shard)


def _whole(description: dict[str, Any]) -> dict[str, Any]:
    """What the parts of one scan agree on."""
    return {key: value for key, value in essential(description).items() if key != "part"}


def _refuse_gaps(parts: list[ScanPart], every: Plan) -> None:
    """Raise if shards are in two parts or in none, with which; the parts are in the order of their shards."""
    missing, end = [], 0
    for i, one in enumerate(parts):
        held = one.shards.indices
        if held.start < end:
            other = parts[i - 1]
            raise ArmillaryError(
                f"{other.path} (part {other.part}) and {one.path} (part {one.part}) both hold "
                f"{_shards([range(held.start, min(end, held.stop))])}: every shard must be in one part only"
            )
        missing.append(range(end, held.start))
        end = held.stop
    missing = [gap for gap in (*missing, range(end, len(every))) if gap]
    if missing:
        raise ArmillaryError(
            f"{_shards(missing)} of {len(every)} are in none of these folders{_absent_parts([p.part for p in parts])}"
        )


def _absent_parts(there: list[Part]) -> str:
    """': part 2/4, 3/4', where all parts were cut alike."""
    if len({part.of for part in there}) > 1:
        return ""
    of, numbers = there[0].of, {part.number for part in there}
    absent = list(islice((number for number in range(1, of + 1) if number not in numbers), NAMED + 1))
    told = ", ".join(f"{number}/{of}" for number in absent[:NAMED])
    return f": part {told}{', ...' if len(absent) > NAMED else ''}"


def _refuse_unfinished(one: ScanPart) -> None:
    """Raise if files of a part's shards are not there; what takes time is the files, not the shards that it names."""
    held = one.shards.indices
    whole = [at for at in sorted(one.folder.indices(FIRST)) if at in held and one.folder.holds(FIRST_FILES, at)]
    gaps = [range(a + 1, b) for a, b in pairwise([held.start - 1, *whole, held.stop])]
    missing = [gap for gap in gaps if gap]
    if missing:
        raise ArmillaryError(
            f"{one.path} (part {one.part}) is not finished, or was damaged: {_shards(missing)} of its "
            f"{len(held)} are missing; go on with  armillary scan ... --part {one.part} --out {one.path} --resume"
        )


def _shards(runs: list[range]) -> str:
    """'shard 3' or 'shards 3 to 5, 9'."""
    told = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:NAMED])
    many = len(runs) > 1 or len(runs[0]) > 1
    return f"shard{'s' if many else ''} {told}{', ...' if len(runs) > NAMED else ''}"
